"""What the fields of a class are where a record lacks them, as values of columns: its defaults.

An absent field takes its default; one that is there and null stays null. Nested objects of JSON are filled likewise.
"""

from __future__ import annotations

import copy
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from logflume.log.errors import InvalidInput

from .objects import ClassField, class_fields, is_object_class, required_fields
from .types import Kind

Fill = Callable[[Any, Any], Any]
"""(value of a column, the JSON that it was read of) -> the value with what the JSON lacks."""

_CLASSES: Mapping[Kind, type[Any] | tuple[type[Any], ...]] = {
    Kind.BOOLEAN: bool, Kind.INTEGER: int, Kind.BIGINT: int, Kind.DOUBLE: (float, int), Kind.STRING: str, Kind.BYTES: bytes,
}  # fmt: skip
_CONTAINERS = frozenset({Kind.ARRAY, Kind.MAP, Kind.STRUCT, Kind.ANY})


@dataclass(frozen=True, slots=True)
class ColumnDefault:
    """The value of a column where its field is absent: `is_constant`: it is the same, and no object that could be changed."""

    make: Callable[[], Any]
    is_constant: bool


def column_defaults(cls: type[Any]) -> dict[str, ColumnDefault]:
    """Return the default of each column whose field has one other than None.

    Raises:
        InvalidInput: a default is not of the field's type.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Order:
    ...     item: str
    ...     price: float = 5
    >>> {name: default.make() for name, default in column_defaults(Order).items()}
    {'price': 5.0}
    """
    found = {field.name: _column_default(field, f"{cls.__name__}.{field.name}") for field in class_fields(cls)}
    return {name: default for name, default in found.items() if default is not None}


def never_null(cls: type[Any]) -> frozenset[str]:
    """Return the names of the fields that may be null neither in a record nor by their default."""
    defaults = column_defaults(cls)
    return required_fields(cls) | {f.name for f in class_fields(cls) if not f.is_nullable and f.name in defaults}


def _column_default(field: ClassField, where: str) -> ColumnDefault | None:
    make = field.make_default
    if make is not None:
        return ColumnDefault(lambda: _column_value(field, make(), where), is_constant=False)
    if field.default is None:
        return None
    if field.type.kind in _CONTAINERS:
        return ColumnDefault(lambda: _column_value(field, copy.deepcopy(field.default), where), is_constant=False)
    value = _column_value(field, field.default, where)
    return ColumnDefault(lambda: value, is_constant=True)


def _column_value(field: ClassField, value: Any, where: str) -> Any:
    if value is None:
        return None
    try:
        found = value if field.to_column is None else field.to_column(value)
    except Exception as error:
        raise InvalidInput(f"{where}: its default {value!r:.100} is no {field.type}: {error}") from error
    expected = _CLASSES.get(field.type.kind)
    if expected is not None and (not isinstance(found, expected) or (isinstance(found, bool) and expected is not bool)):
        raise InvalidInput(f"{where}: its default {value!r:.100} is no {field.type}")
    return float(found) if field.type.kind is Kind.DOUBLE else found


def filler_of(hint: Any) -> Fill | None:
    """Return what fills values of a type that holds classes with defaults; None: there is nothing to fill."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Annotated, typing.Required, typing.NotRequired):
        return filler_of(args[0])
    if origin in (typing.Union, types.UnionType):
        rest = [arg for arg in args if arg is not types.NoneType]
        return filler_of(rest[0]) if len(rest) == 1 else None
    if origin in (list, tuple, set, frozenset) and args:
        inner = filler_of(args[0])
        return None if inner is None else _of_items(inner)
    if origin is dict and args:
        inner = filler_of(args[1])
        return None if inner is None else _of_entries(inner)
    return _of_class(hint) if is_object_class(hint) else None


def _of_items(fill: Fill) -> Fill:
    def filled(value: Any, raw: Any) -> Any:
        return [fill(item, part) for item, part in zip(value, raw, strict=True)] if _are(list, value, raw) else value

    return filled


def _of_entries(fill: Fill) -> Fill:
    def filled(value: Any, raw: Any) -> Any:
        return {key: fill(item, raw.get(key)) for key, item in value.items()} if _are(dict, value, raw) else value

    return filled


def _of_class(cls: type[Any]) -> Fill | None:
    defaults = column_defaults(cls)
    found = [(field.name, defaults.get(field.name), filler_of(field.hint)) for field in class_fields(cls)]
    fields = [each for each in found if each[1] is not None or each[2] is not None]

    def filled(value: Any, raw: Any) -> Any:
        if not _are(dict, value, raw):
            return value
        made = dict(value)
        for name, default, fill in fields:
            part = field_of(raw, name)
            if part is ABSENT:
                made[name] = value.get(name) if default is None else default.make()
            elif fill is not None:
                made[name] = fill(value.get(name), part)
        return made

    return filled if fields else None


def _are(cls: type[Any], value: Any, raw: Any) -> bool:
    return isinstance(value, cls) and isinstance(raw, cls)


ABSENT = object()
"""What `field_of` finds where there is nothing."""


def field_of(raw: Mapping[str, Any], name: str) -> Any:
    """Return the field of a JSON object that a column is read of, by the rule of the JSON format; else ABSENT."""
    if name in raw or name != name.upper():
        return raw.get(name, ABSENT)
    return {key.upper(): value for key, value in raw.items()}.get(name, ABSENT)
