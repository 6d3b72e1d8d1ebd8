"""A source in FROM as an operator, with the scope of what can be named behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from logflume.log.schemas import BIGINT, BYTES, STRING, TIMESTAMP, Column, Kind, array, struct
from logflume.sql import ast
from logflume.sql import plan as p
from logflume.sql.catalog import SourceInfo
from logflume.streams import expr as x
from logflume.streams.functions import last_header
from logflume.streams.java_time import parse_timestamp

from .context import THROW_ON_INVALID_TIME, Context
from .projection import KeyColumn
from .scope import Scope, Visible, pseudo_columns

_LAST_HEADER = x.Function("last_header", last_header, handles_null=True)
_PARSE_TIMESTAMP = x.Function("parse_timestamp", parse_timestamp)
HEADERS_TYPE = array(struct(Column("KEY", STRING), Column("VALUE", BYTES)))


@dataclass(frozen=True, slots=True)
class Relation:
    """What FROM gives: an operator, the names behind it, the key of its records, and whether they are changes of a table."""

    operator: p.Operator
    scope: Scope
    keys: tuple[KeyColumn, ...]
    key_columns: tuple[Column, ...]
    sources: tuple[SourceInfo, ...]
    is_table: bool

    @property
    def first(self) -> SourceInfo:
        return self.sources[0]


def scan_relation(source: SourceInfo, alias: str, context: Context) -> Relation:
    columns = source_columns(source, alias)
    keys = tuple(KeyColumn((ast.Name(c.name, alias),)) for c in source.key)
    needs_time = context.property(THROW_ON_INVALID_TIME, "false").lower() == "true"
    scan = p.Scan(source, timestamp_expression(source), needs_time)
    return Relation(scan, Scope(tuple(columns)), keys, source.key, (source,), source.is_table)


def source_columns(source: SourceInfo, alias: str) -> list[Visible]:
    """Return all that can be named of a source: key, value and header columns, then pseudo-columns."""
    headers = {h.name: h for h in source.headers}
    visible = [Visible(alias, c.name, x.ColumnRef(x.Side.KEY, c.name, c.type), is_key=True) for c in source.key]
    visible += [Visible(alias, c.name, x.ColumnRef(x.Side.VALUE, c.name, c.type)) for c in source.value]
    for header in headers.values():
        all_headers = x.ColumnRef(x.Side.META, x.Meta.HEADERS.value, HEADERS_TYPE)
        if header.key is None:
            visible.append(Visible(alias, header.name, all_headers))
        else:
            visible.append(Visible(alias, header.name, x.Call(_LAST_HEADER, (all_headers, x.Literal(header.key, STRING)), BYTES)))
    return [*visible, *pseudo_columns(alias, is_windowed=source.window is not None)]


def timestamp_expression(source: SourceInfo) -> x.Expr | None:
    """Return the event time of a source's records in ms; None: the record's own."""
    if source.timestamp is None:
        return None
    name, pattern = source.timestamp
    for side, columns in ((x.Side.KEY, source.key), (x.Side.VALUE, source.value)):
        for column in columns:
            if column.name == name:
                return as_timestamp(x.ColumnRef(side, name, column.type), pattern)
    raise AssertionError(f"{source.name} has no column {name}")


def as_timestamp(column: x.Expr, pattern: str | None) -> x.Expr:
    """Return a column as ms since the epoch; text by its pattern."""
    if column.type.kind is Kind.STRING:
        if pattern is None:
            return x.Cast(x.Cast(column, TIMESTAMP), BIGINT)
        return x.Call(_PARSE_TIMESTAMP, (column, x.Literal(pattern, STRING)), BIGINT)
    return column


@dataclass(frozen=True, slots=True)
class Carried:
    """Columns copied among the values, and the scope that reads them there."""

    named: tuple[p.NamedExpr, ...]
    scope: Scope


def carry(relation: Relation, columns: Sequence[Visible]) -> Carried:
    """Return columns as value columns `SOURCE_NAME`; ROWTIME stays what it is of each record."""
    named: list[p.NamedExpr] = []
    visible: list[Visible] = []
    for column in columns:
        if column.is_pseudo and column.name == x.Meta.ROWTIME:
            visible.append(column)
            continue
        name = f"{column.source}_{column.name}"
        named.append((name, column.expr))
        visible.append(
            Visible(column.source, column.name, x.ColumnRef(x.Side.VALUE, name, column.type), column.is_key, column.is_pseudo)
        )
    return Carried(tuple(named), Scope(tuple(visible)))
