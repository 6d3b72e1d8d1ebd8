"""Values of column types as text: what CAST(... AS STRING) gives, and what people read. Needs no numpy."""

from __future__ import annotations

import base64
import datetime
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from logflume.log.schemas import ANY, BIGINT, BOOLEAN, BYTES, DOUBLE, STRING, DataType, Kind, any_json, java_double_text

from .java_time import EPOCH_DAY, format_iso_timestamp

_BY_CLASS = {bool: BOOLEAN, int: BIGINT, float: DOUBLE, str: STRING, bytes: BYTES}


def boolean_text(value: bool) -> str:
    """Write true or false."""
    return "true" if value else "false"


def decimal_text(value: Decimal) -> str:
    """Write all digits, never an exponent."""
    return format(value, "f")


def bytes_text(value: bytes) -> str:
    """Write base64."""
    return base64.b64encode(value).decode()


def date_text(days: int) -> str:
    """Write yyyy-MM-dd."""
    return datetime.date.fromordinal(days + EPOCH_DAY).isoformat()


def time_text(ms: int) -> str:
    """Write HH:mm:ss; milliseconds are left out, as ksqlDB does."""
    seconds = ms // 1000 % 86_400
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


_TEXT_WRITERS: dict[Kind, Callable[[Any], str]] = {
    Kind.STRING: str,
    Kind.INTEGER: str,
    Kind.BIGINT: str,
    Kind.BOOLEAN: boolean_text,
    Kind.DOUBLE: java_double_text,
    Kind.DECIMAL: decimal_text,
    Kind.BYTES: bytes_text,
    Kind.DATE: date_text,
    Kind.TIME: time_text,
    Kind.TIMESTAMP: format_iso_timestamp,
}


def to_text(value: Any, type: DataType) -> str:
    """Write a value of a type as CAST(... AS STRING) does; null as `null`."""
    return _nullable_text(type)(value)


def text_writer(source: DataType) -> Callable[[Any], str]:
    match source.kind:
        case Kind.ARRAY:
            item = _nullable_text(_part(source.element))
            return lambda items: "[" + ", ".join([item(i) for i in items]) + "]"
        case Kind.MAP:
            key, entry = _nullable_text(_part(source.key)), _nullable_text(_part(source.element))
            return lambda items: "{" + ", ".join([f"{key(k)}={entry(v)}" for k, v in items.items()]) + "}"
        case Kind.STRUCT:
            texts = {field.name: _nullable_text(field.type) for field in source.fields}
            return lambda value: (
                "Struct{" + ",".join([f"{n}={t(value[n])}" for n, t in texts.items() if value[n] is not None]) + "}"
            )
        case Kind.ANY:
            return any_text
    return _TEXT_WRITERS[source.kind]


def _nullable_text(type: DataType) -> Callable[[Any], str]:
    write = text_writer(type)
    return lambda value: "null" if value is None else write(value)


def any_text(value: Any) -> str:
    """Write a value as the column type that its class fits, else as JSON."""
    source = type_of(value)
    if source.kind is not Kind.ANY:
        return text_writer(source)(value)
    return any_json(value).decode()


def _part(type: DataType | None) -> DataType:
    assert type is not None
    return type


def type_of(value: Any) -> DataType:
    """Return the column type of a Python value by its class, ANY where none fits."""
    if isinstance(value, Decimal):
        return DataType(Kind.DECIMAL, precision=38, scale=max(0, -int(value.as_tuple().exponent)))
    return _BY_CLASS.get(type(value), ANY)
