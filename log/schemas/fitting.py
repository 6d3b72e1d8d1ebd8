"""Whether rows of columns can be written with a schema that was there before them: asked before the first one is written.

Columns may be null and schemas are not asked for that: it is rows that are at fault then, one by one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from .types import DataType, Kind

_TAKES: Mapping[Kind, frozenset[Kind]] = {
    Kind.INTEGER: frozenset({Kind.BIGINT, Kind.DOUBLE}),
    Kind.BIGINT: frozenset({Kind.DOUBLE}),
    Kind.DATE: frozenset({Kind.INTEGER, Kind.BIGINT}),
    Kind.TIME: frozenset({Kind.INTEGER, Kind.BIGINT}),
    Kind.TIMESTAMP: frozenset({Kind.BIGINT}),
}
"""By the kind of a column: what else than its own kind holds its values."""
_JSON_TAKES: Mapping[Kind, frozenset[Kind]] = {
    Kind.DECIMAL: frozenset({Kind.DOUBLE}),
    Kind.BYTES: frozenset({Kind.STRING}),
}
_MESSAGES = frozenset({Kind.DATE, Kind.TIME, Kind.TIMESTAMP})


@dataclass(frozen=True, slots=True)
class Target:
    """What a registered schema holds. `required`: the paths of fields that must be written, elements of lists not told apart."""

    kind: str
    type: DataType
    required: Collection[str]


def misfits(columns: DataType, target: Target) -> Iterator[str]:
    """Say what keeps values of columns from being written, place by place."""
    yield from _misfits(columns, target.type, "", target)


def _misfits(column: DataType, field: DataType, path: str, target: Target) -> Iterator[str]:
    if column.kind is Kind.STRUCT and field.kind is Kind.STRUCT:
        yield from _of_fields(column, field, path, target)
    elif column.kind is not field.kind:
        if not _takes(column.kind, field.kind, target.kind):
            yield f"{_named(path)} is {column}, and the schema's field is {field}"
    elif column.element is not None and field.element is not None:
        if column.key is not None and field.key is not None:
            yield from _misfits(column.key, field.key, path, target)
        yield from _misfits(column.element, field.element, path, target)


def _of_fields(column: DataType, field: DataType, path: str, target: Target) -> Iterator[str]:
    by_upper = {each.name.upper(): each for each in field.fields}
    by_name = {each.name: each for each in field.fields}
    filled = set()
    for each in column.fields:
        found = by_name.get(each.name) or by_upper.get(each.name.upper())
        if found is None:
            yield f"it has no field for {_named(_below(path, each.name))}, whose values would be left out"
        else:
            filled.add(found.name)
            yield from _misfits(each.type, found.type, _below(path, found.name), target)
    for each in field.fields:
        if each.name not in filled and _below(path, each.name) in target.required:
            yield f"its field {_below(path, each.name)} has no default and no column"


def _takes(column: Kind, field: Kind, schema: str) -> bool:
    if schema == "JSON":
        return field in _TAKES.get(column, ()) or field in _JSON_TAKES.get(column, ())
    return field in _TAKES.get(column, ()) and not (schema == "PROTOBUF" and column in _MESSAGES)


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _named(path: str) -> str:
    return f"the column {path}" if path else "the column"
