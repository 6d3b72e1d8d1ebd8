"""Between Arrow arrays and row values: casts from text that name what does not fit, lists in the form of `log.schemas`."""

from __future__ import annotations

import base64
import binascii
import datetime
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from logflume.log.errors import InvalidInput

from .schemas.types import (
    BIGINT,
    BOOLEAN,
    BYTES,
    DATE,
    DOUBLE,
    INTEGER,
    STRING,
    TIME,
    TIMESTAMP,
    Column,
    DataType,
    Kind,
    array,
    decimal,
    map_of,
    struct,
)

BadValue = tuple[int, str]
"""Index of a value and why it does not fit."""

_ARROW_TYPES = {
    Kind.BOOLEAN: pa.bool_(),
    Kind.INTEGER: pa.int32(),
    Kind.BIGINT: pa.int64(),
    Kind.DOUBLE: pa.float64(),
    Kind.STRING: pa.string(),
    Kind.BYTES: pa.binary(),
    Kind.DATE: pa.date32(),
    Kind.TIME: pa.time32("ms"),
    Kind.TIMESTAMP: pa.timestamp("ms", "UTC"),
}


def arrow_type(data_type: DataType) -> Any:
    """Return the Arrow type that holds a column type."""
    match data_type.kind:
        case Kind.DECIMAL:
            return pa.decimal128(data_type.precision, data_type.scale)
        case Kind.ARRAY:
            assert data_type.element is not None
            return pa.list_(arrow_type(data_type.element))
        case Kind.MAP:
            assert data_type.key is not None
            assert data_type.element is not None
            return pa.map_(arrow_type(data_type.key), arrow_type(data_type.element))
        case Kind.STRUCT:
            return pa.struct([pa.field(f.name, arrow_type(f.type)) for f in data_type.fields])
        case _:
            return _ARROW_TYPES[data_type.kind]


def column_type(arrow: Any) -> DataType:
    """Return the column type for an Arrow type. Raises InvalidInput for one that has none."""
    types = pa.types
    simple: tuple[tuple[Callable[[Any], bool], DataType], ...] = (
        (types.is_boolean, BOOLEAN),
        (lambda t: (types.is_integer(t) and t.bit_width < 32) or types.is_int32(t), INTEGER),
        (types.is_integer, BIGINT),
        (types.is_floating, DOUBLE),
        (lambda t: types.is_string(t) or types.is_large_string(t) or types.is_null(t), STRING),
        (lambda t: types.is_binary(t) or types.is_large_binary(t) or types.is_fixed_size_binary(t), BYTES),
        (types.is_date, DATE),
        (types.is_time, TIME),
        (types.is_timestamp, TIMESTAMP),
    )
    for fits, data_type in simple:
        if fits(arrow):
            return data_type
    if types.is_decimal(arrow) and 0 <= arrow.scale <= arrow.precision <= 38:
        return decimal(arrow.precision, arrow.scale)
    if types.is_dictionary(arrow):
        return column_type(arrow.value_type)
    if types.is_list(arrow) or types.is_large_list(arrow) or types.is_fixed_size_list(arrow):
        return array(column_type(arrow.value_type))
    if types.is_map(arrow):
        return map_of(column_type(arrow.key_type), column_type(arrow.item_type))
    if types.is_struct(arrow):
        return struct(*(Column(field.name, column_type(field.type)) for field in arrow))
    raise InvalidInput(f"Arrow type {arrow} has no column type; leave the column out with value.columns")


def cast_texts(texts: Any, data_type: DataType) -> tuple[list[Any], list[BadValue]]:
    """Turn N texts (an Arrow binary array) into row values; those that do not fit are None and named in the second list."""
    try:
        return row_values(_cast_all(texts, data_type), data_type), []
    except (pa.ArrowException, ValueError):
        pass
    values: list[Any] = []
    bad: list[BadValue] = []
    for index, raw in enumerate(texts.to_pylist()):
        try:
            one = pa.array([None if raw is None else raw.strip() if data_type != STRING else raw], pa.binary())
            values.append(row_values(_cast_all(one, data_type), data_type)[0])
        except (pa.ArrowException, ValueError):
            values.append(None)
            bad.append((index, f"expected {data_type}, found {_shown(raw)}"))
    return values, bad


def _cast_all(texts: Any, data_type: DataType) -> Any:
    match data_type.kind:
        case Kind.BYTES:
            return pa.array([_base64(text) for text in texts.to_pylist()], pa.binary())
        case Kind.TIME:
            return pa.array([_time_of_day(text) for text in texts.to_pylist()], pa.time32("ms"))
        case Kind.TIMESTAMP:
            return _timestamps(pc.cast(texts, pa.string()))
        case Kind.STRING:
            return pc.cast(texts, pa.string())
        case _:
            return pc.cast(pc.cast(texts, pa.string()), arrow_type(data_type))


def _timestamps(texts: Any) -> Any:
    """ISO 8601; without a zone it is UTC."""
    try:
        return pc.cast(texts, pa.timestamp("ms", "UTC"))
    except pa.ArrowInvalid:
        return pc.assume_timezone(pc.cast(texts, pa.timestamp("ms")), "UTC")


def _base64(text: bytes | None) -> bytes | None:
    try:
        return None if text is None else base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error


def _time_of_day(text: bytes | None) -> int | None:
    if text is None:
        return None
    time = datetime.time.fromisoformat(text.decode())
    return ((time.hour * 60 + time.minute) * 60 + time.second) * 1000 + time.microsecond // 1000


def row_values(values: Any, data_type: DataType) -> list[Any]:
    """Return an Arrow array (of any type that can be cast without loss) as the row values of a column type."""
    match data_type.kind:
        case Kind.DATE:
            return _list(pc.cast(values, pa.date32()).cast(pa.int32()))
        case Kind.TIME:
            return _list(pc.cast(values, pa.time32("ms")).cast(pa.int32()))
        case Kind.TIMESTAMP:
            return _list(pc.cast(values, pa.timestamp("ms", getattr(values.type, "tz", None)), safe=False).cast(pa.int64()))
        case Kind.ARRAY | Kind.MAP | Kind.STRUCT:
            return [nested_value(value, data_type) for value in values.to_pylist()]
        case _:
            target = arrow_type(data_type)
            return _list(values if values.type == target else pc.cast(values, target))


def _list(values: Any) -> list[Any]:
    found: list[Any] = values.to_pylist()
    return found


def nested_value(value: Any, data_type: DataType) -> Any:
    """Return one Python value as Arrow gives it (datetime objects, lists of pairs) in the form of a row."""
    if value is None:
        return None
    match data_type.kind:
        case Kind.ARRAY:
            assert data_type.element is not None
            return [nested_value(item, data_type.element) for item in value]
        case Kind.MAP:
            assert data_type.key is not None
            assert data_type.element is not None
            return {nested_value(k, data_type.key): nested_value(v, data_type.element) for k, v in value}
        case Kind.STRUCT:
            return {f.name: nested_value(value.get(f.name), f.type) for f in data_type.fields}
        case Kind.DATE | Kind.TIME | Kind.TIMESTAMP:
            return row_values(pa.array([value]), data_type)[0]
        case _:
            return value


def _shown(raw: bytes | None) -> str:
    text = (raw or b"").decode(errors="backslashreplace")
    return repr(text if len(text) <= 60 else text[:60] + "...")


def to_arrow_values(values: Sequence[Any], type: Any) -> Sequence[Any]:
    """Return row values in the form pyarrow builds arrays from: maps as lists of pairs."""
    if not pa.types.is_nested(type):
        return values
    return [_to_arrow_value(value, type) for value in values]


def _to_arrow_value(value: Any, type: Any) -> Any:
    if value is None:
        return None
    if pa.types.is_map(type):
        return [(key, _to_arrow_value(item, type.item_type)) for key, item in value.items()]
    if pa.types.is_list(type):
        return [_to_arrow_value(item, type.value_type) for item in value]
    if pa.types.is_struct(type):
        return {field.name: _to_arrow_value(value.get(field.name), field.type) for field in type}
    return value
