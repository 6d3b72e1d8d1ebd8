"""Generates straight-line decoders: one Python function per (message, version), from the tables.

A decoder is `decode(buf, pos, left) -> (message, pos)`; `buf` is a memoryview that ends where the message ends, `left` how many
elements all its arrays may have together. Every length and count is checked against that and against the bytes that are left
before anything of that size is made. `records` come as memoryviews of
`buf` (zero-copy), everything else as values of its own. Malformed input raises `Malformed`, IndexError, struct.error or
UnicodeDecodeError; `codec` turns these into DecodeError.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from .classes import ZERO_UUID, default_source
from .source import FORMATS, SIZES, Source
from .tables import PRIMITIVES, Field, Message, Struct

Decoder = Callable[[memoryview, int, int], tuple[Any, int]]


class Malformed(Exception):
    """The bytes do not have the form of the message."""


class TooMany(Malformed):
    """The message has more elements in its arrays than may be decoded."""


def read_uvarint(buf: memoryview, pos: int) -> tuple[int, int]:
    """Read an unsigned varint of up to 5 bytes."""
    value = shift = 0
    while True:
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
        shift += 7
        if shift > 28:
            raise Malformed("a varint is longer than 5 bytes")


def skip_tag(buf: memoryview, pos: int) -> int:
    """Skip the value of an unknown tagged field; `pos` is at its size."""
    size, pos = read_uvarint(buf, pos)
    if size > len(buf) - pos:
        raise Malformed(f"a tagged field of {size} bytes, {len(buf) - pos} are left")
    return pos + size


def make_decoder(message: Message, version: int, cls: type[Any]) -> Decoder:
    """Return the decoder of one version of a message."""
    source = _DecoderSource(message, version, cls)
    decode: Decoder = source.compile(f"{message.name}.v{version}.decode", "decode")
    return decode


class _DecoderSource(Source):
    """Writes the decoder's source. Fixed-size fields in a row become one `unpack_from`."""

    def __init__(self, message: Message, version: int, cls: type[Any]) -> None:
        super().__init__(message, version)
        self.scope |= {
            "_new": object.__new__,
            "_uvarint": read_uvarint,
            "_skip": skip_tag,
            "_Malformed": Malformed,
            "_TooMany": TooMany,
        }
        self.scope |= {"_ZERO_UUID": ZERO_UUID, "_unpack_from": struct.unpack_from, "_top": cls}
        self.scope |= {f"_c_{name}": getattr(cls, name) for name in message.structs}
        self.emit("def decode(buf, pos, left):")
        with self.indented():
            self.emit("end = len(buf)")
            top = self.struct(message.top, "_top")
            self.emit(f"return {top}, pos")

    def struct(self, struct: Struct, cls: str) -> str:
        """Write the decoding of a structure; return the variable that holds it."""
        var = self.new_variable("o")
        self.emit(f"{var} = _new({cls})")
        run: list[Field] = []
        for field in struct.fields:
            if self.is_fixed(field):
                run.append(field)
                continue
            if not self.is_plain(field):
                self.emit(f"{var}.{field.name} = {self.default(field)}")
                continue
            self.flush(var, run)
            self.value(field, f"{var}.{field.name}")
        self.flush(var, run)
        if self.is_flexible:
            self.tags(var, [field for field in struct.fields if self.is_tagged(field)])
        return var

    def default(self, field: Field) -> str:
        return default_source(field)

    def flush(self, var: str, run: list[Field]) -> None:
        if not run:
            return
        codes = "".join(FORMATS[field.type_name] for field in run)
        targets = ", ".join(f"{var}.{field.name}" for field in run) + ("," if len(run) == 1 else "")
        self.emit(f"{targets} = {self.packer(codes, 'unpack_from')}(buf, pos)")
        self.emit(f"pos += {struct.calcsize('>' + codes)}")
        run.clear()

    def value(self, field: Field, target: str) -> None:
        """Write the decoding of a field that is not part of a run."""
        if field.is_array:
            self.array(field, target)
        elif field.type_name in ("string", "bytes", "records"):
            self.sized(field, target)
        elif field.type_name == "uuid":
            self.check("16", "a uuid")
            self.emit(f"{target} = bytes(buf[pos:pos + 16])", "pos += 16")
        elif field.type_name in PRIMITIVES:
            self.emit(f"{target}, = {self.packer(FORMATS[field.type_name], 'unpack_from')}(buf, pos)")
            self.emit(f"pos += {SIZES[field.type_name]}")
        elif self.version in field.nullable:
            marker = self.new_variable("m")
            self.emit(f"{marker} = buf[pos]", "pos += 1", f"if {marker} == 255:")
            with self.indented():
                self.emit(f"{target} = None")
            self.emit("else:")
            with self.indented():
                self.emit(f"{target} = {self.struct(self.message.structs[field.type_name], '_c_' + field.type_name)}")
        else:
            self.emit(f"{target} = {self.struct(self.message.structs[field.type_name], '_c_' + field.type_name)}")

    def check(self, needed: str, what: str) -> None:
        self.emit(f"if {needed} > end - pos: raise _Malformed(f'{what} of {{{needed}}} bytes, {{end - pos}} are left')")

    def length(self, field: Field, *, code: str) -> None:
        """Write the reading of a length or count into `n`, -1 for null; refuses null where it is not allowed."""
        if self.is_flexible:
            self.emit("n = buf[pos]", "pos += 1", "if n > 127: n, pos = _uvarint(buf, pos - 1)", "n -= 1")
        else:
            self.emit(f"n, = {self.packer(code, 'unpack_from')}(buf, pos)", f"pos += {struct.calcsize('>' + code)}")
            self.emit(f"if n < -1: raise _Malformed(f'{field.name}: a length of {{n}}')")
        if self.version not in field.nullable and field.type_name != "records":
            self.emit(f"if n < 0: raise _Malformed('{field.name} may not be null')")

    def sized(self, field: Field, target: str) -> None:
        kind = field.type_name
        self.length(field, code="h" if kind == "string" else "i")
        self.check("n", field.name)
        make = {"string": "str(buf[pos:pos + n], 'utf-8')", "bytes": "bytes(buf[pos:pos + n])", "records": "buf[pos:pos + n]"}
        if self.version in field.nullable or kind == "records":
            self.emit(f"if n < 0: {target} = None", "else:")
            with self.indented():
                self.emit(f"{target} = {make[kind]}", "pos += n")
        else:
            self.emit(f"{target} = {make[kind]}", "pos += n")

    def array(self, field: Field, target: str) -> None:
        self.length(field, code="i")
        least = self.least_size(field)
        self.emit(
            f"if n > (end - pos) // {least}: raise _Malformed(f'{field.name}: {{n}} elements, {{end - pos}} bytes are left')",
            "left -= n",
            f"if left < 0: raise _TooMany(f'{field.name}: {{n}} elements, {{left + n}} more are allowed')",
        )
        if self.version in field.nullable:
            self.emit(f"if n < 0: {target} = None", "else:")
            with self.indented():
                self.elements(field, target)
        else:
            self.elements(field, target)

    def elements(self, field: Field, target: str) -> None:
        if field.type_name in FORMATS:
            self.emit(f"{target} = list(_unpack_from(f'>{{n}}{FORMATS[field.type_name]}', buf, pos))")
            self.emit(f"pos += n * {SIZES[field.type_name]}")
            return
        items, item = self.new_variable("l"), self.new_variable("v")
        self.emit(f"{items} = []", "for _ in range(n):")
        with self.indented():
            if field.type_name in PRIMITIVES:
                self.value(self.element_of(field), item)
            else:
                item = self.struct(self.message.structs[field.type_name], "_c_" + field.type_name)
            self.emit(f"{items}.append({item})")
        self.emit(f"{target} = {items}")

    def tags(self, var: str, fields: list[Field]) -> None:
        count, tag = self.new_variable("k"), self.new_variable("t")
        for field in fields:
            self.emit(f"{var}.{field.name} = {self.default(field)}")
        self.emit(f"{count} = buf[pos]", "pos += 1", f"if {count}:")
        with self.indented():
            self.emit(f"if {count} > 127: {count}, pos = _uvarint(buf, pos - 1)")
            self.emit(
                f"if {count} > (end - pos) // 2: raise _Malformed(f'{{{count}}} tagged fields, {{end - pos}} bytes are left')",
                f"left -= {count}",
                f"if left < 0: raise _TooMany(f'{{{count}}} tagged fields, {{left + {count}}} more elements are allowed')",
            )
            self.emit(f"for _ in range({count}):")
            with self.indented():
                self.emit(f"{tag}, pos = _uvarint(buf, pos)")
                keyword = "if"
                for field in fields:
                    self.emit(f"{keyword} {tag} == {field.tag}:")
                    with self.indented():
                        stop = self.new_variable("e")
                        self.emit("n, pos = _uvarint(buf, pos)")
                        self.check("n", "a tagged field")
                        self.emit(f"{stop} = pos + n")
                        self.value(field, f"{var}.{field.name}")
                        self.emit(f"if pos != {stop}: raise _Malformed('{field.name}: the size of the tagged field is wrong')")
                    keyword = "elif"
                self.emit("else: pos = _skip(buf, pos)" if fields else "pos = _skip(buf, pos)")
