"""Values, types and schemas as the REST interface writes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from logflume.log.schemas import Column, DataType, Kind
from logflume.sql.render import json_value
from logflume.sql.types import show_type


def rest_row(columns: Sequence[Column], values: Sequence[Any]) -> list[Any]:
    """Return a row, aligned with its columns; of a row that is gone, nulls."""
    if not values:
        return [None] * len(columns)
    return [json_value(v, c.type) for c, v in zip(columns, values, strict=True)]


def schema_text(columns: Iterable[Column], roles: Mapping[str, str]) -> str:
    """Return a schema on one line. `roles`: what columns are other than values, by name.

    >>> from logflume.log.schemas import BIGINT, STRING
    >>> schema_text([Column("ID", STRING), Column("N", BIGINT)], {"ID": "KEY"})
    '`ID` STRING KEY, `N` BIGINT'
    """
    return _schema_text(tuple(columns), tuple(roles.items()))


@lru_cache(maxsize=256)
def _schema_text(columns: tuple[Column, ...], roles: tuple[tuple[str, str], ...]) -> str:
    known = dict(roles)
    return ", ".join(f"`{c.name}` {show_type(c.type)} {known.get(c.name, '')}".rstrip() for c in columns)


def type_entity(type: DataType) -> dict[str, Any]:
    """Return a type as descriptions have it: {type, fields, memberSchema}."""
    fields = [{"name": f.name, "schema": type_entity(f.type)} for f in type.fields] if type.kind is Kind.STRUCT else None
    member = type_entity(type.element) if type.kind in (Kind.ARRAY, Kind.MAP) and type.element is not None else None
    found: dict[str, Any] = {"type": str(type.kind.value).upper(), "fields": fields, "memberSchema": member}
    if type.kind is Kind.DECIMAL:
        found["parameters"] = {"precision": type.precision, "scale": type.scale}
    return found
