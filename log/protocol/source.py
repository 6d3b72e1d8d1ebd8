"""What the generators of decoders and encoders share: the text being written, and questions to the tables."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from .tables import PRIMITIVES, Field, Message

FORMATS = {
    "bool": "?", "int8": "b", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I", "int64": "q", "float64": "d",
}  # fmt: skip
"""The `struct` codes of the fixed-size types."""
SIZES = {name: struct.calcsize(">" + code) for name, code in FORMATS.items()}


class Source:
    """Python source under construction, with the names it may use in `scope`."""

    def __init__(self, message: Message, version: int) -> None:
        self.message, self.version = message, version
        self.is_flexible = version in message.flexible
        self.scope: dict[str, Any] = {}
        self._lines: list[str] = []
        self._depth = 0
        self._variables = 0

    def emit(self, *lines: str) -> None:
        self._lines += [" " * self._depth + line for line in lines]

    @contextmanager
    def indented(self) -> Iterator[None]:
        self._depth += 1
        yield
        self._depth -= 1

    def new_variable(self, prefix: str) -> str:
        self._variables += 1
        return f"{prefix}{self._variables}"

    def packer(self, codes: str, method: str) -> str:
        """Return the name of a bound method (pack, unpack_from) of the big-endian struct of these codes."""
        name = f"_{method}_" + codes.replace("?", "o")
        self.scope[name] = getattr(struct.Struct(">" + codes), method)
        return name

    def compile(self, file_name: str, function: str) -> Any:
        exec(compile("\n".join(self._lines), f"<{file_name}>", "exec"), self.scope)  # the source comes from our own tables only
        return self.scope[function]

    def is_tagged(self, field: Field) -> bool:
        return self.version in field.versions and self.version in field.tagged

    def is_plain(self, field: Field) -> bool:
        """Whether this version has the field in its place, not as a tagged field."""
        return self.version in field.versions and self.version not in field.tagged

    def is_fixed(self, field: Field) -> bool:
        return self.is_plain(field) and not field.is_array and field.type_name in FORMATS

    def element_of(self, field: Field) -> Field:
        """Return the (never null) field that one element of an array field is."""
        return replace(field, is_array=False, nullable=type(field.nullable)(0, -1))

    def least_size(self, field: Field) -> int:
        """Return the fewest bytes an element of the array field can have; at least 1."""
        return max(1, self._least(self.element_of(field)))

    def _least(self, field: Field) -> int:
        if field.is_array:
            return 1 if self.is_flexible else 4
        if field.type_name in FORMATS:
            return SIZES[field.type_name]
        if field.type_name in PRIMITIVES:
            if field.type_name == "uuid":
                return 16
            return 1 if self.is_flexible else 2 if field.type_name == "string" else 4
        if self.version in field.nullable:
            return 1
        inner = self.message.structs[field.type_name].fields
        return sum(self._least(each) for each in inner if self.is_plain(each)) + self.is_flexible
