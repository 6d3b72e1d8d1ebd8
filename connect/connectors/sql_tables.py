"""Tables for the SQL sink: column types per kind, creation, and the check of a table that exists already."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from logflume.connect.errors import TargetRefused
from logflume.log import near_matches
from logflume.log.schemas import Column, DataType, Kind

OFFSETS_TABLE = "logflume_offsets"
_KEY_TEXT_CHARS = 255
"""MySQL indexes text only up to a length."""
_EPOCH_DAY = datetime.date(1970, 1, 1)
_EPOCH = datetime.datetime(1970, 1, 1)


def sql_type(data_type: DataType, *, is_key: bool) -> sa.types.TypeEngine[Any]:
    """Return the SQL type that holds a column type; nested values are JSON texts."""
    match data_type.kind:
        case Kind.BOOLEAN:
            return sa.Boolean()
        case Kind.INTEGER:
            return sa.Integer()
        case Kind.BIGINT:
            return sa.BigInteger()
        case Kind.DOUBLE:
            return sa.Double()
        case Kind.DECIMAL:
            return sa.Numeric(data_type.precision, data_type.scale)
        case Kind.STRING:
            return sa.Text().with_variant(sa.String(_KEY_TEXT_CHARS), "mysql", "mariadb") if is_key else sa.Text()
        case Kind.BYTES:
            return sa.LargeBinary(_KEY_TEXT_CHARS) if is_key else sa.LargeBinary()
        case Kind.DATE:
            return sa.Date()
        case Kind.TIME:
            return sa.Time()
        case Kind.TIMESTAMP:
            return sa.DateTime()
        case _:
            return sa.Text()


def to_sql(data_type: DataType) -> Callable[[Any], Any] | None:
    """Return what turns a row value (not null) into what the driver takes; None: it is taken as it is. Times are UTC."""
    match data_type.kind:
        case Kind.DATE:
            return lambda days: _EPOCH_DAY + datetime.timedelta(days=days)
        case Kind.TIME:
            return lambda ms: (_EPOCH + datetime.timedelta(milliseconds=ms)).time()
        case Kind.TIMESTAMP:
            return lambda ms: _EPOCH + datetime.timedelta(milliseconds=ms)
        case Kind.ARRAY | Kind.MAP | Kind.STRUCT | Kind.ANY:
            return lambda value: msgspec.json.encode(value).decode()
        case _:
            return None


def offsets_table(metadata: sa.MetaData) -> sa.Table:
    """The table that keeps, per connector and partition, the next offset; changed in the same transaction as the rows."""
    return sa.Table(
        OFFSETS_TABLE,
        metadata,
        sa.Column("connector", sa.String(128), primary_key=True),
        sa.Column("topic", sa.String(249), primary_key=True),
        sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("next_offset", sa.BigInteger, nullable=False),
    )


def make_table(name: str, columns: tuple[Column, ...], primary_key: tuple[str, ...]) -> sa.Table:
    """Return the definition of the table for these columns; nothing is created."""
    return sa.Table(
        name,
        sa.MetaData(),
        *(
            sa.Column(
                column.name,
                sql_type(column.type, is_key=column.name in primary_key),
                primary_key=column.name in primary_key,
                nullable=column.name not in primary_key,
                autoincrement=False,
            )
            for column in columns
        ),
    )


def create_or_check(connection: sa.Connection, table: sa.Table, *, is_creating: bool, is_upsert: bool) -> None:
    """Create the table when it is missing, else check that it has the columns, and for an upsert a unique key to go by.

    Raises:
        TargetRefused: it is missing and may not be created, or does not fit; says what is there.
    """
    inspector = sa.inspect(connection)
    if not inspector.has_table(table.name):
        if not is_creating:
            raise TargetRefused(f"table {table.name!r} does not exist; create it, or set auto.create = true")
        table.create(connection)
        return
    found = [column["name"] for column in inspector.get_columns(table.name)]
    missing = [column.name for column in table.columns if column.name not in found]
    if missing:
        near = [match for name in missing for match in near_matches(name, found)]
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise TargetRefused(f"table {table.name!r} has no column {', '.join(missing)} (it has {', '.join(found)}){hint}")
    if is_upsert:
        _check_key(inspector, table)


def _check_key(inspector: sa.Inspector, table: sa.Table) -> None:
    wanted = {column.name for column in table.primary_key.columns}
    keys = [_named(inspector.get_pk_constraint(table.name)["constrained_columns"])]
    keys += [_named(unique["column_names"]) for unique in inspector.get_unique_constraints(table.name)]
    keys += [_named(index["column_names"]) for index in inspector.get_indexes(table.name) if index.get("unique")]
    if wanted not in keys:
        raise TargetRefused(
            f"table {table.name!r} has no primary key or unique constraint on {', '.join(sorted(wanted))}; "
            "add one, set pk.fields to the one it has, or set insert.mode = insert"
        )


def _named(names: Sequence[str | None]) -> set[str]:
    """Return the names; a part of an index that is an expression has none."""
    return {name or "(expression)" for name in names}
