"""Casts between column types: what `Cast` means (ksqlDB's rules). Nulls never get here.

A cast that cannot be done raises ValueError or ArithmeticError; the expression around it then counts as failed.
"""

from __future__ import annotations

import base64
import datetime
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from logflume.log import InvalidInput
from logflume.log.schemas import ANY, BIGINT, BOOLEAN, BYTES, DOUBLE, STRING, DataType, Kind, java_double_text

from .arithmetic import round_decimal, wrap32, wrap64

Convert = Callable[[Any], Any]

_INTEGERS = (Kind.INTEGER, Kind.BIGINT)
_NUMBERS = (Kind.INTEGER, Kind.BIGINT, Kind.DECIMAL, Kind.DOUBLE)
_DAY_MS = 86_400_000
_EPOCH = datetime.datetime(1970, 1, 1)
_EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()


def make_cast(source: DataType, target: DataType) -> Convert | None:
    """Return the conversion of a non-null value, or None when the value stays as it is.

    Raises:
        InvalidInput: there is no such cast; names both types.
    """
    if source == target or target.kind is Kind.ANY or (source.kind is Kind.INTEGER and target.kind is Kind.BIGINT):
        return None
    if source.kind is Kind.ANY:
        return lambda value: _cast_any(value, target)
    if target.kind is Kind.STRING:
        return _to_text(source)
    if source.kind in _NUMBERS and target.kind in _NUMBERS:
        return _number(source.kind, target)
    if source.kind is Kind.STRING and (parse := _from_text(target)) is not None:
        return parse
    pair = (source.kind, target.kind)
    if pair in _TIMES:
        return _TIMES[pair]
    collection = _collection(source, target)
    if collection is not None:
        return collection
    raise InvalidInput(f"cannot cast {source} to {target}")


def _number(source: Kind, target: DataType) -> Convert:
    match target.kind:
        case Kind.DOUBLE:
            return float
        case Kind.DECIMAL if source is Kind.DOUBLE:
            return lambda value: round_decimal(Decimal(repr(value)), target)
        case Kind.DECIMAL:
            return lambda value: round_decimal(Decimal(value), target)
        case Kind.INTEGER if source is Kind.DOUBLE:
            return lambda value: _saturate(value, 31)
        case Kind.BIGINT if source is Kind.DOUBLE:
            return lambda value: _saturate(value, 63)
        case Kind.INTEGER:
            return lambda value: wrap32(int(value))
        case _:
            return lambda value: wrap64(int(value))


def _saturate(value: float, bits: int) -> int:
    """Return the integer part, the nearest of the range beyond it, 0 for NaN (as Java converts)."""
    if value != value:
        return 0
    limit: int = 1 << bits
    if value >= limit:
        return limit - 1
    return int(value) if value > -limit else -limit


def _from_text(target: DataType) -> Convert | None:
    match target.kind:
        case Kind.BOOLEAN:
            return _boolean
        case Kind.INTEGER:
            return lambda text: _integer(text, 31)
        case Kind.BIGINT:
            return lambda text: _integer(text, 63)
        case Kind.DOUBLE:
            return float
        case Kind.DECIMAL:
            return lambda text: round_decimal(Decimal(text.strip()), target)
        case Kind.BYTES:
            return lambda text: base64.b64decode(text, validate=True)
        case Kind.TIMESTAMP:
            return timestamp_from_text
        case Kind.DATE:
            return lambda text: timestamp_from_text(text) // _DAY_MS
        case Kind.TIME:
            return time_from_text
    return None


def _boolean(text: str) -> bool:
    folded = text.strip().lower()
    return folded != "" and ("true".startswith(folded) or "yes".startswith(folded))


def _integer(text: str, bits: int) -> int:
    if len(text) > 64 or "_" in text:
        raise ValueError(f"not an integer: {text[:40]!r}")
    value = int(text)
    if not -(2**bits) <= value < 2**bits:
        raise ValueError(f"{value} is out of range")
    return value


def timestamp_from_text(text: str) -> int:
    """Return ms since the epoch of an ISO 8601 date or date-time, UTC without a zone; year or month alone are allowed.

    >>> timestamp_from_text("1970-01-02"), timestamp_from_text("1970-01-01T00:00:01.5Z")
    (86400000, 1500)
    """
    padded = text.strip()
    padded += {4: "-01-01", 7: "-01"}.get(len(padded), "")
    moment = datetime.datetime.fromisoformat(padded)
    if moment.tzinfo is not None:
        moment = moment.astimezone(datetime.UTC).replace(tzinfo=None)
    return (moment - _EPOCH) // datetime.timedelta(milliseconds=1)


def time_from_text(text: str) -> int:
    """Return the milliseconds of the day of an ISO time.

    >>> time_from_text("01:00:00.250")
    3600250
    """
    time = datetime.time.fromisoformat(text.strip())
    return ((time.hour * 60 + time.minute) * 60 + time.second) * 1000 + time.microsecond // 1000


def _to_text(source: DataType) -> Convert:
    match source.kind:
        case Kind.BOOLEAN:
            return lambda value: "true" if value else "false"
        case Kind.DOUBLE:
            return java_double_text
        case Kind.DECIMAL:
            return lambda value: format(value, "f")
        case Kind.BYTES:
            return lambda value: base64.b64encode(value).decode()
        case Kind.TIMESTAMP:
            return timestamp_text
        case Kind.DATE:
            return lambda days: datetime.date.fromordinal(days + _EPOCH_DAY).isoformat()
        case Kind.TIME:
            return _time_text
        case Kind.ARRAY:
            each = _nullable_text(source.element)
            return lambda items: "[" + ", ".join(each(item) for item in items) + "]"
        case Kind.MAP:
            item_text = _nullable_text(source.element)
            return lambda items: "{" + ", ".join(f"{key}={item_text(item)}" for key, item in items.items()) + "}"
        case Kind.STRUCT:
            texts = {field.name: _nullable_text(field.type) for field in source.fields}
            return lambda value: (
                "Struct{" + ",".join(f"{n}={t(value[n])}" for n, t in texts.items() if value[n] is not None) + "}"
            )
        case _:
            return str


def _nullable_text(type: DataType | None) -> Convert:
    assert type is not None
    convert = str if type.kind is Kind.STRING else make_cast(type, STRING)
    assert convert is not None
    return lambda value: "null" if value is None else convert(value)


def timestamp_text(ms: int) -> str:
    """Return ISO text in UTC with milliseconds: `2013-01-01T05:15:00.000`."""
    return (_EPOCH + datetime.timedelta(milliseconds=ms)).isoformat(timespec="milliseconds")


def _time_text(ms: int) -> str:
    time = (_EPOCH + datetime.timedelta(milliseconds=ms)).time()
    return time.isoformat(timespec="milliseconds" if ms % 1000 else "seconds")


_TIMES: dict[tuple[Kind, Kind], Convert] = {
    (Kind.TIMESTAMP, Kind.DATE): lambda ms: ms // _DAY_MS,
    (Kind.TIMESTAMP, Kind.TIME): lambda ms: ms % _DAY_MS,
    (Kind.DATE, Kind.TIMESTAMP): lambda days: days * _DAY_MS,
    (Kind.TIMESTAMP, Kind.BIGINT): lambda ms: ms,
    (Kind.BIGINT, Kind.TIMESTAMP): lambda ms: ms,
}


def _collection(source: DataType, target: DataType) -> Convert | None:
    """Return an element-wise cast; an element that cannot be cast fails the whole."""
    if source.kind is not target.kind:
        return None
    if source.kind in (Kind.ARRAY, Kind.MAP):
        assert source.element is not None
        assert target.element is not None
        inner = make_cast(source.element, target.element)
        each = _nullable(inner)
        if source.kind is Kind.ARRAY:
            return lambda items: [each(item) for item in items]
        return lambda items: {key: each(item) for key, item in items.items()}
    if source.kind is Kind.STRUCT:
        known = {field.name: field.type for field in source.fields}
        casts = {f.name: _nullable(make_cast(known[f.name], f.type)) for f in target.fields if f.name in known}
        names = [field.name for field in target.fields]
        return lambda value: {n: casts[n](value[n]) if n in casts else None for n in names}
    return None


def _nullable(convert: Convert | None) -> Convert:
    if convert is None:
        return lambda value: value
    return lambda value: None if value is None else convert(value)


def _cast_any(value: Any, target: DataType) -> Any:
    """Cast a value by its Python class, as if it were of the column type that fits it."""
    kinds = {bool: BOOLEAN, int: BIGINT, float: DOUBLE, str: STRING, bytes: BYTES}
    source = kinds.get(type(value), ANY)
    if isinstance(value, Decimal):
        source = DataType(Kind.DECIMAL, precision=38, scale=max(0, -int(value.as_tuple().exponent)))
    if source.kind is Kind.ANY:
        if target.kind is Kind.STRING:
            import msgspec

            return msgspec.json.encode(value).decode()
        if target.kind in (Kind.ARRAY, Kind.MAP, Kind.STRUCT):
            return value
        raise ValueError(f"cannot cast a {type(value).__name__} to {target}")
    convert = make_cast(source, target)
    return value if convert is None else convert(value)
