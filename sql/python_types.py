"""Python's types as the dialect's, and values between them: what functions written in Python take and give."""

from __future__ import annotations

import copy
import datetime
import reprlib
import types
import typing
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any, TypedDict

import msgspec

from logflume.log import InvalidInput
from logflume.log.schemas import (
    BIGINT,
    BOOLEAN,
    BYTES,
    DATE,
    DOUBLE,
    INT_RANGES,
    STRING,
    TIME,
    TIMESTAMP,
    DataType,
    Kind,
    array,
    column_of_hint,
    map_of,
    python_type,
)
from logflume.streams.functions import Pattern

from . import ast
from .errors import StatementError
from .types import resolve_type, show_type

Convert = Callable[[Any], Any]

ANY_DECIMAL = DataType(Kind.DECIMAL)
"""What `Decimal` alone says: an argument of any precision. A result needs a precision."""

_BY_HINT: dict[Any, DataType] = {
    bool: BOOLEAN,
    int: BIGINT,
    float: DOUBLE,
    str: STRING,
    bytes: BYTES,
    Decimal: ANY_DECIMAL,
    datetime.datetime: TIMESTAMP,
    datetime.date: DATE,
    datetime.time: TIME,
}
_HINTS: dict[Kind, Any] = {type.kind: hint for hint, type in _BY_HINT.items()} | {Kind.INTEGER: int}
_COLLECTIONS = (Kind.ARRAY, Kind.MAP, Kind.STRUCT)
_KEPT_AS_THEY_ARE = (bytes, Decimal)


def type_of_text(text: str) -> DataType:
    """Return the type that a text of the dialect names.

    >>> str(type_of_text("MAP<STRING, DECIMAL(10, 2)>"))
    'MAP<STRING, DECIMAL(10, 2)>'

    Raises:
        InvalidInput: it names none.
    """
    from .parser import parse_expression  # who declares no type as text needs no parser

    try:
        cast = parse_expression(f"CAST(x AS {text})")
        if isinstance(cast, ast.Cast):
            return resolve_type(cast.type, {})
    except StatementError as error:
        raise InvalidInput(f"{text!r} is no type of SQL: {error.reason}") from None
    raise InvalidInput(f"{text!r} is no type of SQL")


def type_of_hint(hint: Any, where: str) -> tuple[DataType, bool]:
    """Return the type that an annotation means, and whether it allows None. `where` is told in errors.

    >>> type_of_hint(list[int] | None, "f")
    (DataType(kind=<Kind.ARRAY: 'ARRAY'>, precision=0, scale=0, key=None, element=DataType(kind=<Kind.BIGINT: 'BIGINT'>, \
precision=0, scale=0, key=None, element=None, fields=()), fields=()), True)

    Raises:
        InvalidInput: it means none.
    """
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        rest = [each for each in args if each is not types.NoneType]
        if len(rest) == 1:
            return type_of_hint(rest[0], where)[0], True
    if origin is list:
        return array(type_of_hint(args[0], where)[0]), False
    if origin is dict and args[0] is str:
        return map_of(STRING, type_of_hint(args[1], where)[0]), False
    try:
        return _BY_HINT[hint], False
    except (KeyError, TypeError):
        known = ", ".join(each.__name__ for each in _BY_HINT)
        raise InvalidInput(
            f"{where}: no type of SQL for {hint!r}; expected {known}, list[...], dict[str, ...] or these with None, "
            "or a type of SQL as text in the decorator"
        ) from None


def is_whole(type: DataType) -> bool:
    """Tell whether nothing is left open of a type: each DECIMAL in it has its precision."""
    inner = [part for part in (type.key, type.element) if part is not None] + [field.type for field in type.fields]
    return type != ANY_DECIMAL and all(map(is_whole, inner))


def pattern_of(type: DataType) -> Pattern:
    """Return what an argument has to match: a DECIMAL comes with the digits that it has."""
    match type.kind:
        case Kind.DECIMAL:
            return Pattern("decimal")
        case Kind.ARRAY if type.element:
            return Pattern("array", parts=(pattern_of(type.element),))
        case Kind.MAP if type.key and type.element:
            return Pattern("map", parts=(pattern_of(type.key), pattern_of(type.element)))
    return Pattern("type", type)


def to_python(type: DataType, where: str) -> Convert:
    """Return what makes a value of Python of one of a column. Collections are the caller's own: it may change them."""
    convert = column_of_hint(_hint(type, is_given=True), where)[2]
    if type.kind in _COLLECTIONS:
        return lambda value: None if value is None else copy.deepcopy(value) if convert is None else convert(copy.deepcopy(value))
    return (lambda value: value) if convert is None else (lambda value: None if value is None else convert(value))


def to_column(type: DataType, where: str) -> Convert:
    """Return what makes a value of a column of one of Python.

    It raises TypeError for what is not of the type.
    """
    convert, stored = column_of_hint(_hint(type, is_given=False), where)[1], _stored(type)
    msgspec.msgpack.Decoder(stored)  # msgspec looks at classes now, in one thread, and not first when a query runs

    def made(value: Any) -> Any:
        if value is None:
            return None
        try:
            plain = value if convert is None else convert(value)
            return msgspec.convert(plain, stored, builtin_types=_KEPT_AS_THEY_ARE)
        except Exception as error:  # whatever a value of another type does  # noqa: BLE001
            raise TypeError(f"{where} is {shown(value)}, expected {show_type(type)}: {error}") from None

    return made


def shown(value: Any) -> str:
    """Return a value as an error shows it."""
    return reprlib.repr(value)


def _hint(type: DataType, *, is_given: bool) -> Any:
    """Return the annotation of a type. `is_given`: of an argument, whose decimals are as they are."""
    match type.kind:
        case Kind.ARRAY if type.element:
            return list[_hint(type.element, is_given=is_given)]  # type: ignore[misc]
        case Kind.MAP if type.key and type.element:
            if type.key != STRING:
                raise InvalidInput(f"keys of a MAP must be STRING, found {show_type(type)}")
            return dict[str, _hint(type.element, is_given=is_given)]  # type: ignore[misc]
        case Kind.STRUCT:
            fields = {field.name: _hint(field.type, is_given=is_given) for field in type.fields}
            return TypedDict("Struct", fields)  # type: ignore[operator]
        case Kind.DECIMAL:
            return Any if is_given else Annotated[Decimal, type]
    return Annotated[_HINTS[type.kind], type]


def _stored(type: DataType) -> Any:
    """Return what a value of a column has to be."""
    match type.kind:
        case Kind.ARRAY if type.element:
            return list[_stored(type.element) | None]  # type: ignore[misc]
        case Kind.MAP if type.element:
            return dict[str, _stored(type.element) | None]  # type: ignore[misc]
        case Kind.STRUCT:
            return TypedDict("Struct", {field.name: _stored(field.type) | None for field in type.fields})  # type: ignore[operator]
    bounds = INT_RANGES.get(type.kind)
    return python_type(type) if bounds is None else Annotated[int, msgspec.Meta(ge=bounds[0], le=bounds[1])]
