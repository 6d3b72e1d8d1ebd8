"""The Python classes that stand for a type: what `logflume schema classes` writes."""

from __future__ import annotations

import keyword
import re

from logflume.log.errors import InvalidInput

from .types import DataType, Kind

_PLAIN = {
    Kind.BOOLEAN: "bool",
    Kind.BIGINT: "int",
    Kind.INTEGER: "Annotated[int, INTEGER]",
    Kind.DOUBLE: "float",
    Kind.STRING: "str",
    Kind.BYTES: "bytes",
    Kind.DATE: "datetime.date",
    Kind.TIME: "datetime.time",
    Kind.TIMESTAMP: "datetime.datetime",
}
_IMPORTS = (
    (("datetime.", "import datetime"), ("Decimal", "from decimal import Decimal"), ("Annotated", "from typing import Annotated"),
     ("Any", "from typing import Any"), ("TypedDict", "from typing import TypedDict")),
    (("msgspec.", "import msgspec"),),
    (("INTEGER", "from logflume.log.schemas import INTEGER"), ("decimal", "from logflume.log.schemas import decimal")),
)  # fmt: skip
"""What a module imports where its text has a word: the standard library, others, ours."""
_RESERVED = frozenset({word.rstrip(".") for group in _IMPORTS for word, _ in group} | set(_PLAIN.values()) | {"dict", "list"})


def class_source(name: str, type: DataType, *, about: str) -> str:
    """Return the source of a module with the class of a record type, and of what is nested in it, each before it is used.

    Every field may be null, as columns may. A record with fields that are no Python names is a TypedDict. What has no class (a
    map with other keys than text) is `Any`.

    Raises:
        InvalidInput: not a record.

    >>> from .types import BIGINT, STRING, Column, array, struct
    >>> source = class_source("order", struct(Column("id", BIGINT), Column("tags", array(STRING))), about="Orders.")
    >>> print(source.partition("import msgspec")[2].strip())
    class Order(msgspec.Struct):
        id: int | None = None
        tags: list[str] | None = None
    """
    if type.kind is not Kind.STRUCT:
        raise InvalidInput(f"{name} is {type}, not a record: it needs no class")
    module = _Module()
    module.add(name, type)
    body = "\n\n\n".join(module.classes)
    words = set(re.findall(r"datetime\.|msgspec\.|\w+", body))
    groups = ["\n".join(line for word, line in group if word in words) for group in _IMPORTS]
    head = [f'"""{re.sub(r"[^A-Za-z0-9_ .,:/()=-]", "?", about)}"""', *filter(None, groups)]
    return "\n\n".join([*head, f"\n{body}\n"])


class _Module:
    """Classes in the order of their definition, with names that none has twice."""

    def __init__(self) -> None:
        self.classes: list[str] = []
        self._names: set[str] = set(_RESERVED)

    def add(self, name: str, type: DataType) -> str:
        """Add the class of a record type; return its name."""
        own = self._free(name)
        fields = [(field.name, self._hint(field.type, f"{own}_{field.name}")) for field in type.fields]
        if all(_is_attribute(field) for field, _ in fields):
            lines = [f"    {field}: {hint} | None = None" for field, hint in fields]
            self.classes.append("\n".join([f"class {own}(msgspec.Struct):", *lines]))
        else:
            pairs = [f"    {field!r}: {hint} | None," for field, hint in fields]
            self.classes.append("\n".join([f"{own} = TypedDict({own!r}, {{", *pairs, "})"]))
        return own

    def _hint(self, type: DataType, name: str) -> str:
        match type.kind:
            case Kind.STRUCT:
                return self.add(name, type)
            case Kind.ARRAY if type.element is not None:
                return f"list[{self._hint(type.element, name)}]"
            case Kind.MAP if type.element is not None and type.key is not None and type.key.kind is Kind.STRING:
                return f"dict[str, {self._hint(type.element, name)}]"
            case Kind.DECIMAL:
                return f"Annotated[Decimal, decimal({type.precision}, {type.scale})]"
        return _PLAIN.get(type.kind, "Any")

    def _free(self, name: str) -> str:
        words = [word for word in re.split(r"[^A-Za-z0-9]+", name) if word]
        wanted = "".join(word[0].upper() + word[1:] for word in words)
        wanted = wanted if wanted.isidentifier() and not keyword.iskeyword(wanted) else f"Record{wanted}"
        found, count = wanted, 1
        while found in self._names:
            count += 1
            found = f"{wanted}{count}"
        self._names.add(found)
        return found


def _is_attribute(name: str) -> bool:
    """Return whether a field can stand in a class; one with the name of a type would hide that from the fields behind it."""
    return name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("__") and name not in _RESERVED
