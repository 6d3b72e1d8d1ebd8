"""Unions of several types in JSON Schema, and maps that are lists of entries, as Kafka Connect's JSON Schema data has them.

A union is a struct with a field for each of its types, and the names of the fields tell that it is one. A value in JSON is that
of the first field whose type takes it, or of the struct that has most of its members. Of a struct the one field that is not null
is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

from logflume.log.errors import DecodeError, InvalidInput

from .coerce import json_to_text
from .types import Column, DataType, Kind

FIELD_PREFIX = "io.confluent.connect.json.OneOf.field."
_PREFIXES = (FIELD_PREFIX, "connect_union_field_")
"""The second: of schemas made for other formats."""
_UPPER_PREFIXES = tuple(prefix.upper() for prefix in _PREFIXES)
Convert = Callable[[Any], Any]


def union_of(types: Iterable[DataType]) -> DataType:
    """Return the struct that stands for one of several types."""
    return DataType(Kind.STRUCT, fields=tuple(Column(f"{FIELD_PREFIX}{i}", type) for i, type in enumerate(types)))


def is_union(type: DataType, *, in_any_case: bool) -> bool:
    """Return whether a struct is a union; `in_any_case`: also by names that have become upper-case."""
    names = [field.name for field in type.fields]
    if in_any_case:
        return bool(names) and all(name.upper().startswith(_UPPER_PREFIXES) for name in names)
    return bool(names) and all(name.startswith(_PREFIXES) for name in names)


def holds_union(type: DataType, *, in_any_case: bool) -> bool:
    """Return whether a type is a union or has one in it."""
    inner = [each for each in (type.element, *(field.type for field in type.fields)) if each is not None]
    return is_union(type, in_any_case=in_any_case) or any(holds_union(each, in_any_case=in_any_case) for each in inner)


def as_objects(type: DataType, *, has_unions: bool) -> Convert:
    """Return what brings JSON into the form that a column of this type is read from.

    The value of a union becomes an object with one member, if the schema `has_unions`, and the list of a map's entries an object.
    Of a value that the type does not take nothing is made: who reads it says so. Raises DecodeError: no field takes the value.
    """
    if has_unions and is_union(type, in_any_case=True):
        return _object_of(type)
    if type.kind is Kind.STRUCT:
        members = {field.name: as_objects(field.type, has_unions=has_unions) for field in type.fields}
        return lambda value: (
            {name: (members.get(name) or members.get(name.upper(), _same))(item) for name, item in value.items()}
            if isinstance(value, dict)
            else value
        )
    if type.element is None:
        return _same
    each = as_objects(type.element, has_unions=has_unions)
    if type.kind is Kind.ARRAY:
        return lambda value: [each(item) for item in value] if isinstance(value, list) else value

    def make_map(value: Any) -> Any:
        if isinstance(value, list) and all(isinstance(entry, dict) and entry.keys() == {"key", "value"} for entry in value):
            value = {"null" if (key := entry["key"]) is None else json_to_text(key): entry["value"] for entry in value}
        return {name: each(item) for name, item in value.items()} if isinstance(value, dict) else value

    return make_map


def _same(value: Any) -> Any:
    return value


def _object_of(union: DataType) -> Convert:
    convert = {field.name: as_objects(field.type, has_unions=True) for field in union.fields}

    def make(value: Any) -> Any:
        if value is None:
            return None
        fit, name = max(((_fit(field.type, value), field.name) for field in union.fields), key=lambda pair: pair[0])
        if fit < 0:
            raise DecodeError(f"no type of the union {union} takes the value {str(value)[:40]!r}")
        return {name: convert[name](value)}

    return make


def _fit(type: DataType, value: Any) -> float:
    """Return how well a type takes a JSON value: infinity for one that does, the number of members for a struct, -1 if not."""
    if type.kind is Kind.STRUCT and not is_union(type, in_any_case=True):
        names = {field.name for field in type.fields}
        return sum(name in names or name.upper() in names for name in value) if isinstance(value, dict) else -1
    if type.kind is Kind.STRUCT:
        return max(_fit(field.type, value) for field in type.fields)
    return float("inf") if isinstance(value, _TAKES[type.kind]) and isinstance(value, bool) == (type.kind is Kind.BOOLEAN) else -1


_INTEGERS = (Kind.INTEGER, Kind.BIGINT, Kind.DATE, Kind.TIME, Kind.TIMESTAMP)
_TAKES: dict[Kind, tuple[type, ...]] = {
    Kind.BOOLEAN: (bool,),
    **dict.fromkeys(_INTEGERS, (int,)),
    **dict.fromkeys((Kind.DOUBLE, Kind.DECIMAL), (int, Decimal)),
    **dict.fromkeys((Kind.STRING, Kind.BYTES), (str,)),
    Kind.ARRAY: (list,),
    Kind.MAP: (dict, list),
}


def values_of_unions(type: DataType, prepared: Callable[[DataType], Convert], *, in_any_case: bool) -> Convert:
    """Return what makes JSON of a column's values that are not null; `prepared`: what does of a type that holds no union.

    The function that is returned raises InvalidInput: a union of which two fields are set.
    """

    def inner(each: DataType) -> Convert:
        convert = values_of_unions(each, prepared, in_any_case=in_any_case)
        return lambda value: None if value is None else convert(value)

    if not holds_union(type, in_any_case=in_any_case):
        return prepared(type)
    if type.kind is Kind.STRUCT:
        fields = {field.name: inner(field.type) for field in type.fields}
        if is_union(type, in_any_case=in_any_case):
            return lambda value: _one_of(value, fields)
        return lambda value: {name: convert(value.get(name)) for name, convert in fields.items()}
    assert type.element is not None
    each = inner(type.element)
    if type.kind is Kind.MAP:
        return lambda value: {"null" if key is None else key: each(item) for key, item in value.items()}
    return lambda value: [each(item) for item in value]


def _one_of(value: dict[str, Any], fields: dict[str, Convert]) -> Any:
    given = [name for name in fields if value.get(name) is not None]
    if len(given) > 1:
        raise InvalidInput(f"a union has one value, but {' and '.join(given)} are set")
    return fields[given[0]](value[given[0]]) if given else None
