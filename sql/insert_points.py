"""INSERT VALUES that differ in their literals alone: checked once, then made into records by the text of their literals.

Only where each value is a literal of its column's own kind, so that nothing has to be bound, cast or computed; everything else is
looked at anew each time (`inserts.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from logflume.log.schemas import INT_RANGES, Column, Kind

from . import ast
from .row_records import RowRecords, ValuesRecord
from .templates import Token, unquoted

_Filled = Callable[[Sequence[Token]], Any]


class NotALiteral(Exception):
    """A value is not, or not any more, a literal that its column holds as it is."""


@dataclass(frozen=True, slots=True)
class RepeatedInsert:
    """A statement that was found right.

    Attributes:
        rows: what gives each value of the key, then of the value, of each row.
        fixed: literals that are none of them, which must be as they were.
    """

    records: RowRecords
    rows: tuple[tuple[tuple[_Filled, ...], tuple[_Filled, ...]], ...]
    fixed: tuple[tuple[int, str], ...]

    def made(self, tokens: Sequence[Token], timestamp_ms: int) -> list[ValuesRecord]:
        """Return the records of the statement with other literals.

        Raises:
            NotALiteral: it has to be looked at anew. StatementError: a value cannot be written in the source's format.
        """
        if any(tokens[n].text != text for n, text in self.fixed):
            raise NotALiteral
        record = self.records.record
        found = []
        for key_of, value_of in self.rows:
            key, value = [of(tokens) for of in key_of], [of(tokens) for of in value_of]
            is_keyed = any(each is not None for each in key)
            found.append(record(tuple(key) if is_keyed else None, tuple(value), timestamp_ms))
        return found


def repeated_insert(s: ast.InsertValues, records: RowRecords, tokens: Sequence[Token]) -> RepeatedInsert | None:
    """Return a statement that was found right as it is made for other literals; None: a value is more than a literal."""
    source = records.source
    names = s.columns or tuple(c.name for c in source.columns())
    by_stop = {token.stop: n for n, token in enumerate(tokens)}
    taken: set[int] = set()
    rows = []
    for row in s.rows:
        if len(names) != len(row) or not {c.name for c in source.columns()}.issuperset(names):
            return None
        given = dict(zip(names, row, strict=True))
        try:
            key = tuple([_filled(given.get(c.name), c, tokens, by_stop, taken) for c in source.key])
            value = tuple([_filled(given.get(c.name), c, tokens, by_stop, taken) for c in source.value])
        except NotALiteral:
            return None
        if source.is_table and all(of is _null for of in key):
            return None
        rows.append((key, value))
    fixed = tuple((n, token.text) for n, token in enumerate(tokens) if n not in taken)
    return RepeatedInsert(records, tuple(rows), fixed)


def _filled(
    e: ast.Expression | None, column: Column, tokens: Sequence[Token], by_stop: dict[int, int], taken: set[int]
) -> _Filled:
    """Return what gives a column's value from the literals of a text; notes which it takes. Raises NotALiteral."""
    kind = column.type.kind
    if e is None or isinstance(e, ast.NullLiteral):
        return _null
    if isinstance(e, ast.BooleanLiteral) and kind is Kind.BOOLEAN:
        value = e.value
        return lambda tokens: value
    if not isinstance(e, ast.StringLiteral | ast.IntegerLiteral | ast.DecimalLiteral):
        raise NotALiteral
    place = by_stop.get(e.span.stop)
    if place is None:
        raise NotALiteral
    taken.add(place)
    is_negative = e.span.start < tokens[place].start
    match e, kind:
        case ast.StringLiteral(), Kind.STRING:
            return lambda tokens: unquoted(tokens[place].text)
        case ast.IntegerLiteral(), (Kind.INTEGER | Kind.BIGINT):
            return _whole(place, is_negative, *INT_RANGES[kind])
        case ast.IntegerLiteral() | ast.DecimalLiteral(), Kind.DOUBLE:
            return _double(place, is_negative)
    raise NotALiteral


def _null(tokens: Sequence[Token]) -> None:
    return None


def _whole(place: int, is_negative: bool, least: int, most: int) -> _Filled:
    def filled(tokens: Sequence[Token]) -> int:
        number = int(tokens[place].text)
        value = -number if is_negative else number
        if least <= value <= most:
            return value
        raise NotALiteral

    return filled


def _double(place: int, is_negative: bool) -> _Filled:
    def filled(tokens: Sequence[Token]) -> float:
        text = tokens[place].text
        if len(text) > DIGITS_MAX or (is_negative and not float(text)):
            raise NotALiteral
        return -float(text) if is_negative else float(text)

    return filled


DIGITS_MAX = 18
"""More digits of a decimal are looked at anew: their type may not hold them."""
