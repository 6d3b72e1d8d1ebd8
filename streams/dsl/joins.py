"""The columns of a joined record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from logflume.log import InvalidInput
from logflume.log.schemas import ANY, Column

from ..expr import TABLE_PREFIX, WHOLE, ColumnRef, Expr, PyCall, Side
from ..graph import Schema, is_bare
from .callables import expect_arguments, returned_type


def joined_columns(
    stream: Schema, table: Schema, joiner: Callable[..., Any] | None, prefix: str, on: tuple[str, ...]
) -> tuple[Schema, tuple[tuple[str, Expr], ...]]:
    """Return the schema and the columns of a stream-table join.

    A column of the table that has the name of a column joined on is left out; any other clash of names is an error.
    """
    if joiner is not None or is_bare(stream) or is_bare(table):
        return _joined_object(stream, table, joiner, prefix)
    columns: dict[str, Expr] = {c.name: ColumnRef(Side.VALUE, c.name, c.type) for c in stream.value}
    key_names = {c.name for c in stream.key}
    for column in table.value:
        name = prefix + column.name
        if name in columns and name in on:
            continue
        if name in columns or (name in key_names and name not in on):
            raise InvalidInput(f"both sides of the join have a column {name!r}: pass prefix='...' for the table's, or a joiner")
        columns[name] = ColumnRef(Side.VALUE, TABLE_PREFIX + column.name, column.type)
    schema = replace(stream, value=tuple(Column(n, x.type) for n, x in columns.items()), value_class=None)
    return schema, tuple(columns.items())


def _joined_object(
    stream: Schema, table: Schema, joiner: Callable[..., Any] | None, prefix: str
) -> tuple[Schema, tuple[tuple[str, Expr], ...]]:
    left, right = ColumnRef(Side.VALUE, WHOLE, ANY), ColumnRef(Side.VALUE, TABLE_PREFIX + WHOLE, ANY)
    args: tuple[Expr, ...] = (left, right)
    value_class = None
    if joiner is None:
        if not (is_bare(stream) and is_bare(table)):
            raise InvalidInput("a join of typed columns with untyped values needs a joiner, or a class for both sources")
        joiner = MergeObjects(prefix)
    else:
        from .stream import object_class

        if expect_arguments(joiner, (2, 3), 2, "join()") == 3:
            args = (ColumnRef(Side.KEY, WHOLE, ANY), left, right)
        value_class = object_class(returned_type(joiner))
    schema = replace(stream, value=(Column("value", ANY),), value_class=value_class)
    return schema, (("value", PyCall(joiner, args, ANY)),)


@dataclass(frozen=True, slots=True)
class MergeObjects:
    """The members of both objects in one; the stream's win unless a prefix keeps them apart."""

    prefix: str

    def __call__(self, value: Any, row: Any) -> Any:
        if row is None:
            return value
        if not isinstance(value, dict) or not isinstance(row, dict):
            raise TypeError(f"cannot merge {type(value).__name__} with {type(row).__name__}: give a joiner")
        return {self.prefix + name: member for name, member in row.items()} | value
