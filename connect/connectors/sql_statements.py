"""The statements the SQL sink writes a table with: insert, upsert in the dialect's own words, delete by key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite

from logflume.log.schemas import Column, Row

from .sql_tables import to_sql


class TableWriter:
    """The statements of one table, made once."""

    def __init__(self, table: sa.Table, dialect: str, *, is_upsert: bool) -> None:
        key = [column.name for column in table.primary_key.columns]
        self._names = [column.name for column in table.columns]
        self._delete = sa.delete(table).where(*(table.c[name] == sa.bindparam(f"key_{name}") for name in key))
        self._key = key
        upsert = upsert_of(dialect, table, key) if is_upsert else None
        self._is_deleted_first = is_upsert and upsert is None
        self._insert = sa.insert(table) if upsert is None else upsert

    def write(
        self,
        connection: sa.Connection,
        rows: Sequence[Row],
        by_key: Mapping[Row, Row | None],
        columns: Sequence[Column],
        pk_indices: Sequence[int],
    ) -> None:
        converters = [to_sql(column.type) for column in columns]
        kept = [*rows, *(row for row in by_key.values() if row is not None)]
        gone = [key for key, row in by_key.items() if row is None or self._is_deleted_first]
        if gone:
            key_converters = [converters[index] for index in pk_indices]
            names = [f"key_{columns[index].name}" for index in pk_indices]
            connection.execute(self._delete, _parameters(names, gone, key_converters))
        if kept:
            connection.execute(self._insert, _parameters(self._names, kept, converters))


def _parameters(
    names: Sequence[str], rows: Sequence[Row], converters: Sequence[Callable[[Any], Any] | None]
) -> list[dict[str, Any]]:
    columns = [
        values if convert is None else [None if value is None else convert(value) for value in values]
        for values, convert in zip(zip(*rows, strict=True), converters, strict=True)
    ]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _on_conflict(insert: Callable[[sa.Table], Any]) -> Callable[[sa.Table, Sequence[str]], Any]:
    def make(table: sa.Table, key: Sequence[str]) -> Any:
        statement = insert(table)
        others = {column.name: statement.excluded[column.name] for column in table.columns if column.name not in key}
        if not others:
            return statement.on_conflict_do_nothing(index_elements=list(key))
        return statement.on_conflict_do_update(index_elements=list(key), set_=others)

    return make


def _on_duplicate_key(table: sa.Table, key: Sequence[str]) -> Any:
    statement = mysql.insert(table)
    return statement.on_duplicate_key_update({column.name: statement.inserted[column.name] for column in table.columns})


_UPSERTS: Mapping[str, Callable[[sa.Table, Sequence[str]], Any]] = {
    "sqlite": _on_conflict(sqlite.insert),
    "postgresql": _on_conflict(postgresql.insert),
    "mysql": _on_duplicate_key,
    "mariadb": _on_duplicate_key,
}


def upsert_of(dialect: str, table: sa.Table, key: Sequence[str]) -> Any | None:
    """Return the upsert statement of a dialect; None when it has none and rows are deleted and inserted, in one transaction."""
    return _UPSERTS[dialect](table, key) if dialect in _UPSERTS else None
