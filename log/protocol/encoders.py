"""Generates straight-line encoders: one Python function per (message, version), from the tables.

An encoder is `encode(message, out, parts) -> out`: it appends to the bytearray `out`. Large `records` are not copied: what is
complete so far goes to `parts`, then the records object itself, and a new bytearray is begun; the caller appends the
returned one. `records` may be any object with a length that the transport can send (bytes, memoryview, file range).
Fields that the version does not have are left out silently.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from .classes import ZERO_UUID, default_source
from .source import FORMATS, Source
from .tables import PRIMITIVES, Field, Message, Struct

Encoder = Callable[[Any, bytearray, list[Any]], bytearray]

COPY_BELOW_BYTES = 1024
"""Records shorter than this are copied into the response: cheaper than one more buffer to send."""


def put_uvarint(out: bytearray, value: int) -> None:
    """Append an unsigned varint."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def make_encoder(message: Message, version: int, cls: type[Any]) -> Encoder:
    """Return the encoder of one version of a message."""
    encode: Encoder = _EncoderSource(message, version, cls).compile(f"{message.name}.v{version}.encode", "encode")
    return encode


class _EncoderSource(Source):
    """Writes the encoder's source. Fixed-size fields in a row become one `pack`."""

    def __init__(self, message: Message, version: int, cls: type[Any]) -> None:
        super().__init__(message, version)
        self.cls = cls
        self.scope |= {"_uvarint": put_uvarint, "_ZERO_UUID": ZERO_UUID, "_pack": struct.pack}
        self.scope |= {"_bytes_like": (bytes, bytearray, memoryview)}
        self.emit("def encode(m, out, parts):")
        with self.indented():
            self.struct(message.top, "m")
            self.emit("return out")

    def struct(self, struct: Struct, var: str) -> None:
        run: list[Field] = []
        for field in struct.fields:
            if self.is_fixed(field):
                run.append(field)
            elif self.is_plain(field):
                self.flush(var, run)
                self.value(field, f"{var}.{field.name}")
        self.flush(var, run)
        if self.is_flexible:
            self.tags(var, [field for field in struct.fields if self.is_tagged(field)])

    def flush(self, var: str, run: list[Field]) -> None:
        if run:
            codes = "".join(FORMATS[field.type_name] for field in run)
            self.emit(f"out += {self.packer(codes, 'pack')}({', '.join(f'{var}.{field.name}' for field in run)})")
            run.clear()

    def value(self, field: Field, value: str) -> None:
        """Write the encoding of a field that is not part of a run."""
        is_nullable = self.version in field.nullable
        if field.is_array or field.type_name in ("string", "bytes", "records"):
            local = self.new_variable("v")
            self.emit(f"{local} = {value}")
            if is_nullable or field.type_name == "records":
                self.emit(f"if {local} is None: {self.null(field)}", "else:")
                with self.indented():
                    self.not_null(field, local)
            else:
                self.not_null(field, local)
        elif field.type_name == "uuid":
            self.emit(f"if len({value}) != 16: raise ValueError('{field.name}: a uuid is 16 bytes')", f"out += {value}")
        elif field.type_name in PRIMITIVES:
            self.emit(f"out += {self.packer(FORMATS[field.type_name], 'pack')}({value})")
        elif is_nullable:
            local = self.new_variable("v")
            self.emit(f"{local} = {value}", f"if {local} is None: out.append(255)", "else:")
            with self.indented():
                self.emit("out.append(1)")
                self.struct(self.message.structs[field.type_name], local)
        else:
            local = self.new_variable("v")
            self.emit(f"{local} = {value}")
            self.struct(self.message.structs[field.type_name], local)

    def null(self, field: Field) -> str:
        if self.is_flexible:
            return "out.append(0)"
        return r"out += b'\xff\xff'" if field.type_name == "string" and not field.is_array else r"out += b'\xff\xff\xff\xff'"

    def not_null(self, field: Field, local: str) -> None:
        if field.is_array:
            self.array(field, local)
        elif field.type_name == "records":
            self.length(f"len({local})", code="i")
            self.emit(f"if len({local}) < {COPY_BELOW_BYTES} and isinstance({local}, _bytes_like): out += {local}", "else:")
            with self.indented():
                self.emit("parts.append(out)", f"parts.append({local})", "out = bytearray()")
        else:
            if field.type_name == "string":
                self.emit(f"{local} = {local}.encode()")
            self.length(f"len({local})", code="h" if field.type_name == "string" else "i")
            self.emit(f"out += {local}")

    def length(self, length: str, *, code: str) -> None:
        if self.is_flexible:
            self.emit(f"n = {length} + 1", "if n < 128: out.append(n)", "else: _uvarint(out, n)")
        else:
            self.emit(f"out += {self.packer(code, 'pack')}({length})")

    def array(self, field: Field, local: str) -> None:
        self.length(f"len({local})", code="i")
        if field.type_name in FORMATS:
            self.emit(f"out += _pack(f'>{{len({local})}}{FORMATS[field.type_name]}', *{local})")
            return
        item = self.new_variable("i")
        self.emit(f"for {item} in {local}:")
        with self.indented():
            if field.type_name in PRIMITIVES:
                self.value(self.element_of(field), item)
            else:
                mark = len(self._lines)
                self.struct(self.message.structs[field.type_name], item)
                if len(self._lines) == mark:
                    self.emit("pass")

    def tags(self, var: str, fields: list[Field]) -> None:
        """Write the tagged fields that differ from their default, in order of their tags."""
        if not fields:
            self.emit("out.append(0)")
            return
        fields = sorted(fields, key=lambda field: field.tag or 0)
        conditions = [self.is_set(field, f"{var}.{field.name}") for field in fields]
        self.emit(f"if not ({' or '.join(conditions)}): out.append(0)", "else:")
        with self.indented():
            self.emit(f"out.append({' + '.join(f'bool({condition})' for condition in conditions)})")
            for field, condition in zip(fields, conditions, strict=True):
                outer = self.new_variable("s")
                self.emit(f"if {condition}:")
                with self.indented():
                    self.emit(f"{outer}, out = out, bytearray()")
                    self.value(field, f"{var}.{field.name}")
                    self.emit(f"_uvarint({outer}, {field.tag})", f"_uvarint({outer}, len(out))")
                    self.emit(f"{outer} += out", f"out = {outer}")

    def is_set(self, field: Field, value: str) -> str:
        """Return the condition under which a tagged field is sent."""
        if field.default is None:
            return f"{value} is not None"
        if field.is_array:
            return f"len({value})"
        if field.type_name not in PRIMITIVES:
            default = f"_default_{field.type_name}"
            self.scope[default] = getattr(self.cls, field.type_name)()
            return f"({value} is not None and {value} != {default})"
        return f"{value} != {default_source(field)}"
