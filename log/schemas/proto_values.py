"""Values of Protobuf messages <-> values of columns: a getter and a setter for each field, made once per (message, columns)."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from logflume.log.errors import DecodeError

from .coerce import fit_decimal, from_unscaled, java_double_text, java_float_text, json_to_text, unscaled
from .proto_schema import (
    DATE_MESSAGE,
    DECIMAL,
    TIME_MESSAGE,
    TIMESTAMP_MESSAGE,
    WRAPPERS_FILE,
    entry_of,
    fields_of,
    is_oneof,
    is_repeated,
    members_of,
)
from .types import Column, DataType, Kind

Convert = Callable[[Any], Any]
Set = Callable[[Any, Any], None]
_EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()


def getters_of(message: Any, columns: tuple[Column, ...], path: str) -> list[Convert]:
    """Return what reads each column of a message."""
    found = zip(columns, fields_of(message, columns), strict=True)
    return [_nothing if field is None else _getter(field, column.type, f"{path}.{column.name}") for column, field in found]


def _nothing(message: Any) -> None:
    return None


def _getter(field: Any, type: DataType, path: str) -> Convert:
    if is_oneof(field):
        return _oneof_getter(field, type, path)
    name, entry = field.name, entry_of(field)
    if entry is not None and type.kind is Kind.MAP:
        assert type.key is not None
        assert type.element is not None
        key, value = _getter(entry["key"], type.key, path), _getter(entry["value"], type.element, path)
        if field.message_type.GetOptions().map_entry:
            to_key, to_value = _from_value(entry["key"], type.key, path), _from_value(entry["value"], type.element, path)
            return lambda message: {to_key(k): to_value(v) for k, v in getattr(message, name).items()}
        return lambda message: {key(each): value(each) for each in getattr(message, name)}
    if is_repeated(field):
        if type.kind is not Kind.ARRAY or type.element is None:
            raise _mismatch(field, type, path)
        to_item = _from_value(field, type.element, path)
        return lambda message: [to_item(item) for item in getattr(message, name)]
    convert = _from_value(field, type, path)
    if field.has_presence:
        return lambda message: convert(getattr(message, name)) if message.HasField(name) else None
    return lambda message: convert(getattr(message, name))


def _oneof_getter(oneof: Any, type: DataType, path: str) -> Convert:
    """Return what reads a oneof: a struct in which the field that was set is not null; null if none was."""
    if type.kind is not Kind.STRUCT:
        raise _no_struct(oneof, type, path)
    readers = {
        field.name: (column.name, _getter(field, column.type, f"{path}.{column.name}"))
        for column, field in zip(type.fields, members_of(oneof, type.fields), strict=True)
        if field is not None
    }
    name, empty = oneof.name, dict.fromkeys(column.name for column in type.fields)

    def get(message: Any) -> Any:
        given = message.WhichOneof(name)
        if given is None:
            return None
        found = readers.get(given)
        return dict(empty) if found is None else empty | {found[0]: found[1](message)}

    return get


def _from_value(field: Any, type: DataType, path: str) -> Convert:
    """Return what makes a column's value of a field's value that is there."""
    if field.message_type is not None:
        return _from_message(field, type, path)
    if field.enum_type is not None and type.kind is Kind.STRING:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number, str(number))
    is_integer = field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_INT64, field.CPPTYPE_UINT32, field.CPPTYPE_UINT64)
    is_float = field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE)
    is_bytes = field.type == field.TYPE_BYTES
    fits = {
        Kind.BOOLEAN: field.cpp_type == field.CPPTYPE_BOOL,
        Kind.INTEGER: field.cpp_type == field.CPPTYPE_INT32,
        Kind.BIGINT: is_integer,
        Kind.DOUBLE: is_float or is_integer,
        Kind.BYTES: is_bytes,
        Kind.STRING: not is_bytes,
        Kind.DATE: field.cpp_type == field.CPPTYPE_INT32,
        Kind.TIME: field.cpp_type == field.CPPTYPE_INT32,
        Kind.TIMESTAMP: is_integer,
    }
    if not fits.get(type.kind, False):
        raise _mismatch(field, type, path)
    if type.kind is Kind.DOUBLE and is_integer:
        return float
    if type.kind is Kind.STRING and field.type != field.TYPE_STRING:
        return {field.CPPTYPE_FLOAT: java_float_text, field.CPPTYPE_DOUBLE: java_double_text}.get(field.cpp_type, json_to_text)
    return _same


def _from_message(field: Any, type: DataType, path: str) -> Convert:
    message = field.message_type
    if message.full_name == DECIMAL and type.kind is Kind.DECIMAL:
        return lambda value: fit_decimal(from_unscaled(value.value, value.scale or type.scale), type, path)
    if message.full_name in _MOMENT_KINDS and type.kind in _MOMENT_KINDS[message.full_name]:
        return _moment(message.full_name, path, is_text=type.kind is Kind.STRING)
    if message.file.name == WRAPPERS_FILE and type.kind is not Kind.STRUCT:
        convert = _from_value(message.fields_by_name["value"], type, path)
        return lambda value: convert(value.value)
    if type.kind is not Kind.STRUCT:
        raise _mismatch(field, type, path)
    names = [column.name for column in type.fields]
    getters = getters_of(message, type.fields, path)
    return lambda value: {name: get(value) for name, get in zip(names, getters, strict=True)}


_MOMENT_KINDS = {
    TIMESTAMP_MESSAGE: (Kind.TIMESTAMP, Kind.BIGINT, Kind.STRING),
    DATE_MESSAGE: (Kind.DATE, Kind.INTEGER, Kind.BIGINT, Kind.STRING),
    TIME_MESSAGE: (Kind.TIME, Kind.INTEGER, Kind.BIGINT, Kind.STRING),
}
"""Columns of numbers and text take the number that a moment is in columns of its own type."""


def _moment(message: str, path: str, *, is_text: bool) -> Convert:
    def number(value: Any) -> int | None:
        if message == TIMESTAMP_MESSAGE:
            return int(value.seconds * 1000 + value.nanos // 1_000_000)
        if message == DATE_MESSAGE:
            return _days(value, path)
        return int(((value.hours * 60 + value.minutes) * 60 + value.seconds) * 1000 + value.nanos // 1_000_000)

    def text(value: Any) -> str | None:
        found = number(value)
        return None if found is None else str(found)

    return text if is_text else number


def _days(value: Any, path: str) -> int | None:
    """Return a date's day; null for a message without any part of it, which is how a null in a list is written."""
    if not (value.year or value.month or value.day):
        return None
    try:
        return datetime.date(value.year, value.month, value.day).toordinal() - _EPOCH_DAY
    except ValueError as error:
        raise DecodeError(f"{path}: not a date: {error}") from None


def _same(value: Any) -> Any:
    return value


def _mismatch(field: Any, type: DataType, path: str) -> DecodeError:
    what = field.message_type.full_name if field.message_type is not None else "another type"
    return DecodeError(f"{path}: the column is {type}, but the Protobuf field {field.full_name} is {what}")


def _no_struct(oneof: Any, type: DataType, path: str) -> DecodeError:
    return DecodeError(f"{path}: the column is {type}, but {oneof.full_name} is a oneof, whose fields are a struct's")


# ------------------------------------------------------------------------------------------------ writing


def setters_of(message: Any, columns: tuple[Column, ...], path: str) -> list[Set]:
    """Return what writes each column into a message."""
    found = zip(columns, fields_of(message, columns), strict=True)
    return [_ignored if field is None else _setter(field, column.type, f"{path}.{column.name}") for column, field in found]


def _ignored(message: Any, value: Any) -> None:
    """The schema that was asked for has no field for this column."""


def _setter(field: Any, type: DataType, path: str) -> Set:
    """Return what writes a value that is not null into a field of a message."""
    if is_oneof(field):
        return _oneof_setter(field, type, path)
    name, entry = field.name, entry_of(field)
    if entry is not None and type.kind is Kind.MAP:
        return _map_setter(field, entry, type, path)
    if is_repeated(field):
        if type.kind is not Kind.ARRAY or type.element is None:
            raise _mismatch(field, type, path)
        if field.message_type is None:
            scalar = _scalar(field, type.element)
            default = field.default_value if not isinstance(field.default_value, list) else type_default(type.element)

            def set_items(message: Any, value: Any) -> None:
                getattr(message, name).extend(default if item is None else scalar(item) for item in value)

            return set_items
        fill = _filler(field, type.element, path)

        def add_items(message: Any, value: Any) -> None:
            target = getattr(message, name)
            for item in value:
                each = target.add()
                if item is not None:
                    fill(each, item)

        return add_items
    if field.message_type is not None:
        fill = _filler(field, type, path)

        def set_message(message: Any, value: Any) -> None:
            target = getattr(message, name)
            target.SetInParent()
            fill(target, value)

        return set_message
    scalar = _scalar(field, type)
    return lambda message, value: setattr(message, name, scalar(value))


def _oneof_setter(oneof: Any, type: DataType, path: str) -> Set:
    """Return what writes the one field of a struct that is not null."""
    if type.kind is not Kind.STRUCT:
        raise _no_struct(oneof, type, path)
    setters = {
        column.name: _ignored if field is None else _setter(field, column.type, f"{path}.{column.name}")
        for column, field in zip(type.fields, members_of(oneof, type.fields), strict=True)
    }

    def set_one(message: Any, value: Any) -> None:
        given = [name for name, item in value.items() if item is not None]
        if len(given) > 1:
            raise ValueError(f"a oneof has one value, but {' and '.join(given)} are set")
        for name in given:
            setters[name](message, value[name])

    return set_one


def type_default(type: DataType) -> Any:
    """Return Protobuf's default of a scalar type, which stands for a null in a list."""
    return {Kind.BOOLEAN: False, Kind.DOUBLE: 0.0, Kind.STRING: "", Kind.BYTES: b""}.get(type.kind, 0)


def _scalar(field: Any, type: DataType) -> Convert:
    if field.enum_type is not None:
        numbers = {name: value.number for name, value in field.enum_type.values_by_name.items()}
        return lambda name: numbers[name] if name in numbers else int(name)
    return _same


def _map_setter(field: Any, entry: Any, type: DataType, path: str) -> Set:
    assert type.key is not None
    assert type.element is not None
    name, element = field.name, type.element
    if field.message_type.GetOptions().map_entry:
        value_field = entry["value"]
        if value_field.message_type is None:
            scalar = _scalar(value_field, element)

            def set_scalars(message: Any, value: Any) -> None:
                target = getattr(message, name)
                for key, item in value.items():
                    target[key] = type_default(element) if item is None else scalar(item)

            return set_scalars
        fill = _filler(value_field, element, path)

        def set_messages(message: Any, value: Any) -> None:
            target = getattr(message, name)
            for key, item in value.items():
                target[key].SetInParent()
                if item is not None:
                    fill(target[key], item)

        return set_messages
    set_key, set_value = _setter(entry["key"], type.key, path), _setter(entry["value"], element, path)

    def add_entries(message: Any, value: Any) -> None:
        target = getattr(message, name)
        for key, item in value.items():
            each = target.add()
            if key is not None:
                set_key(each, key)
            if item is not None:
                set_value(each, item)

    return add_entries


def _filler(field: Any, type: DataType, path: str) -> Set:
    """Return what writes a value that is not null into a message."""
    message = field.message_type
    match message.full_name:
        case full if full == DECIMAL:
            return _fill_decimal
        case full if full == TIMESTAMP_MESSAGE:
            return _fill_timestamp
        case full if full == DATE_MESSAGE:
            return _fill_date
        case full if full == TIME_MESSAGE:
            return _fill_time
    if message.file.name == WRAPPERS_FILE and type.kind is not Kind.STRUCT:
        return lambda target, value: setattr(target, "value", value)
    if type.kind is not Kind.STRUCT:
        raise _mismatch(field, type, path)
    names = [column.name for column in type.fields]
    setters = setters_of(message, type.fields, path)

    def fill(target: Any, value: Any) -> None:
        for name, set_field in zip(names, setters, strict=True):
            if (item := value.get(name)) is not None:
                set_field(target, item)

    return fill


def _fill_decimal(target: Any, value: Decimal) -> None:
    scale = -int(value.as_tuple().exponent)
    digits = unscaled(value, scale)
    target.value = digits.to_bytes((digits.bit_length() + 8) // 8 or 1, "big", signed=True)
    target.scale = scale
    target.precision = len(value.as_tuple().digits)


def _fill_timestamp(target: Any, value: int) -> None:
    target.seconds, target.nanos = value // 1000, value % 1000 * 1_000_000


def _fill_date(target: Any, value: int) -> None:
    day = datetime.date.fromordinal(value + _EPOCH_DAY)
    target.year, target.month, target.day = day.year, day.month, day.day


def _fill_time(target: Any, value: int) -> None:
    seconds, millis = divmod(value, 1000)
    target.hours, target.minutes, target.seconds = seconds // 3600, seconds // 60 % 60, seconds % 60
    target.nanos = millis * 1_000_000
