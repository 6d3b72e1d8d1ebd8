"""Column lists in SQL type syntax: `carrier STRING, delay DOUBLE, tags ARRAY<STRING>`; names keep their case. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from logflume.log import InvalidInput, UnknownName
from logflume.log.schemas import (
    BIGINT,
    BOOLEAN,
    BYTES,
    DATE,
    DOUBLE,
    INTEGER,
    STRING,
    TIME,
    TIMESTAMP,
    Column,
    DataType,
    array,
    decimal,
    map_of,
    struct,
)

_SIMPLE: dict[str, DataType] = {
    "BOOLEAN": BOOLEAN,
    "INTEGER": INTEGER,
    "INT": INTEGER,
    "BIGINT": BIGINT,
    "DOUBLE": DOUBLE,
    "STRING": STRING,
    "VARCHAR": STRING,
    "BYTES": BYTES,
    "DATE": DATE,
    "TIME": TIME,
    "TIMESTAMP": TIMESTAMP,
}
_TYPE_NAMES = (*_SIMPLE, "DECIMAL", "ARRAY", "MAP", "STRUCT")
_TOKEN = re.compile(r"\s*(?:(?P<name>[^\W\d]\w*)|`(?P<quoted>[^`]+)`|(?P<number>\d+)|(?P<mark>[(),<>:]))")
_PLAIN_NAME = re.compile(r"[^\W\d]\w*\Z")
_MAX_DEPTH = 32


def parse_columns(text: str) -> tuple[Column, ...]:
    """Parse a list of columns; an empty text is no column.

    >>> [str(c.type) for c in parse_columns("a STRING, b DECIMAL(6, 2), c MAP<STRING, INT>")]
    ['STRING', 'DECIMAL(6, 2)', 'MAP<STRING, INTEGER>']

    Raises:
        InvalidInput: with the position and what was expected there.
    """
    parser = _Parser(text)
    columns = parser.columns(end="", depth=0) if text.strip() else ()
    parser.expect_end()
    return columns


def columns_text(columns: Iterable[Column]) -> str:
    """Write columns as `parse_columns` reads them.

    >>> columns_text([Column("a", STRING), Column("b c", BIGINT)])
    'a STRING, `b c` BIGINT'
    """
    return ", ".join(f"{c.name if _PLAIN_NAME.match(c.name) else f'`{c.name}`'} {c.type}" for c in columns)


class _Parser:
    """Recursive descent over one text; `_at` is the position of the next token."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def columns(self, *, end: str, depth: int) -> tuple[Column, ...]:
        found: list[Column] = []
        while True:
            name = self._name("a column name")
            if any(column.name == name for column in found):
                raise InvalidInput(f"column {name!r} is declared twice in {self._text!r}")
            found.append(Column(name, self.type(depth=depth)))
            if not self._take(","):
                break
        if end:
            self._need(end)
        return tuple(found)

    def type(self, *, depth: int) -> DataType:
        if depth > _MAX_DEPTH:
            raise InvalidInput(f"types nested deeper than {_MAX_DEPTH} in {self._text[:80]!r}")
        name = self._name("a type").upper()
        if name in _SIMPLE:
            return _SIMPLE[name]
        match name:
            case "DECIMAL":
                return self._decimal()
            case "ARRAY":
                self._need("<")
                element = self.type(depth=depth + 1)
                self._need(">")
                return array(element)
            case "MAP":
                self._need("<")
                key = self.type(depth=depth + 1)
                self._need(",")
                value = self.type(depth=depth + 1)
                self._need(">")
                return map_of(key, value)
            case "STRUCT":
                self._need("<")
                return struct(*self.columns(end=">", depth=depth + 1))
            case _:
                raise UnknownName("type", name, _TYPE_NAMES)

    def _decimal(self) -> DataType:
        self._need("(")
        precision = self._number()
        self._need(",")
        scale = self._number()
        self._need(")")
        if not 1 <= precision <= 38 or scale > precision:
            raise InvalidInput(f"DECIMAL({precision}, {scale}): expected 1 <= precision <= 38 and scale <= precision")
        return decimal(precision, scale)

    def expect_end(self) -> None:
        if self._text[self._at :].strip():
            raise self._unexpected("',' or the end")

    def _name(self, what: str) -> str:
        match = _TOKEN.match(self._text, self._at)
        if match is None or not (match["name"] or match["quoted"]):
            raise self._unexpected(what)
        self._at = match.end()
        return match["name"] or match["quoted"]

    def _number(self) -> int:
        match = _TOKEN.match(self._text, self._at)
        if match is None or not match["number"]:
            raise self._unexpected("a number")
        self._at = match.end()
        return int(match["number"][:9])

    def _take(self, mark: str) -> bool:
        match = _TOKEN.match(self._text, self._at)
        if match is None or match["mark"] != mark:
            return False
        self._at = match.end()
        return True

    def _need(self, mark: str) -> None:
        if not self._take(mark):
            raise self._unexpected(repr(mark))

    def _unexpected(self, expected: str) -> InvalidInput:
        rest = self._text[self._at :].strip()
        found = repr(rest[:20]) if rest else "the end"
        return InvalidInput(f"position {self._at + 1} of {self._text!r}: expected {expected}, found {found}")
