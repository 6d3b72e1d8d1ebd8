"""Casts between column types: what CAST and every implicit conversion mean, for SQL and the DSL. Nulls stay null.

The rules are ksqlDB's. A cast that cannot be done raises ValueError or ArithmeticError; the expression around it then counts as
failed. Inside an ARRAY, MAP or STRUCT only the item that cannot be cast becomes null.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Mapping
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

from logflume.log import DecodeError, InvalidInput
from logflume.log.schemas import DataType, Kind, double_from_text

from ..java_time import DAY_MS, parse_iso
from ..texts import any_text, text_writer, type_of
from .arithmetic import wrap32, wrap64
from .types import NUMERIC

Convert = Callable[[Any], Any]

_WIDE = Context(prec=400)
_INT = re.compile(r"[+-]?[0-9]{1,64}\Z")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?\Z")
_TIME = re.compile(r"[0-9]{1,2}(?::|\Z)")
_RANGES = {Kind.INTEGER: (-(2**31), 2**31 - 1), Kind.BIGINT: (-(2**63), 2**63 - 1)}
_LONG = _RANGES[Kind.BIGINT]
_TRUE_WORDS = ("true", "yes")
_TEXT_TARGETS = (*NUMERIC, Kind.BOOLEAN, Kind.DATE, Kind.TIME, Kind.TIMESTAMP, Kind.BYTES)


class CastError(ValueError):
    """A value that its new type cannot hold."""


def can_convert(source: DataType, target: DataType) -> bool:
    """Tell whether CAST exists between two types."""
    if source == target or Kind.ANY in (source.kind, target.kind) or target.kind is Kind.STRING:
        return True
    match source.kind, target.kind:
        case (Kind.ARRAY, Kind.ARRAY):
            return can_convert(_part(source.element), _part(target.element))
        case (Kind.MAP, Kind.MAP):
            return can_convert(_part(source.key), _part(target.key)) and can_convert(_part(source.element), _part(target.element))
        case (Kind.STRUCT, Kind.STRUCT):
            theirs = {f.name: f.type for f in source.fields}
            return all(f.name not in theirs or can_convert(theirs[f.name], f.type) for f in target.fields)
    if source.kind in NUMERIC and target.kind in NUMERIC:
        return True
    if source.kind is Kind.STRING:
        return target.kind in _TEXT_TARGETS
    return (source.kind, target.kind) in _TIMES


def convert(value: Any, source: DataType, target: DataType) -> Any:
    """Return `value` of type `source` as `target`; null stays null.

    Raises:
        ValueError, ArithmeticError: it does not fit.
    """
    if value is None:
        return None
    change = make_cast(source, target)
    return value if change is None else change(value)


def make_cast(source: DataType, target: DataType) -> Convert | None:
    """Return the conversion of a non-null value, or None when the value stays as it is.

    Raises:
        InvalidInput: there is no such cast; names both types.
    """
    if source == target or target.kind is Kind.ANY or (source.kind is Kind.INTEGER and target.kind is Kind.BIGINT):
        return None
    if source.kind is Kind.ANY:
        own = _STAYS.get(target.kind)
        return lambda value: value if type(value) is own else _cast_any(value, target)
    if target.kind is Kind.STRING:
        return text_writer(source)
    if not can_convert(source, target):
        raise InvalidInput(f"cannot cast {source} to {target}")
    if source.kind in (Kind.ARRAY, Kind.MAP, Kind.STRUCT):
        return _collection(source, target)
    if source.kind is Kind.STRING:
        return _from_text(target)
    if target.kind in NUMERIC and source.kind in NUMERIC:
        return _number(source.kind, target)
    return _TIMES[source.kind, target.kind]


def _part(type: DataType | None) -> DataType:
    assert type is not None
    return type


# ------------------------------------------------------------------------------------------------ numbers


def _number(source: Kind, target: DataType) -> Convert:
    """Integers wrap and doubles saturate, as Java narrows them; fractions are cut off, but DECIMAL rounds half up."""
    if target.kind is Kind.DOUBLE:
        return float
    if target.kind is Kind.DECIMAL:
        precision, scale = target.precision, target.scale
        return lambda value: to_decimal(value, precision, scale)
    if source is Kind.DOUBLE:
        low, high = _RANGES[target.kind]
        return lambda value: _saturate(value, low, high)
    wrap = wrap32 if target.kind is Kind.INTEGER else wrap64
    return lambda value: wrap(int(value))


def _saturate(value: float, low: int, high: int) -> int:
    if value != value:
        return 0
    if math.isinf(value):
        return high if value > 0 else low
    return max(low, min(high, int(value)))


def to_decimal(value: Any, precision: int, scale: int) -> Decimal:
    """Round half up to `scale`. Raises CastError when the digits before the point do not fit."""
    try:
        exact = value if isinstance(value, Decimal) else Decimal(repr(value) if isinstance(value, float) else value)
        rounded = exact.quantize(Decimal(1).scaleb(-scale), rounding=ROUND_HALF_UP, context=_WIDE)
    except InvalidOperation:
        raise CastError(f"Cannot convert {value!r} to DECIMAL({precision}, {scale})") from None
    if not rounded.is_finite() or (rounded.adjusted() >= precision - scale and rounded != 0):
        raise CastError(f"Numeric field overflow: {value} does not fit DECIMAL({precision}, {scale})")
    return rounded


# ------------------------------------------------------------------------------------------------ from text


def _from_text(target: DataType) -> Convert:
    match target.kind:
        case Kind.INTEGER | Kind.BIGINT:
            kind = target.kind
            low, high = _RANGES[kind]
            return lambda text: _text_to_integer(text, kind, low, high)
        case Kind.DECIMAL:
            precision, scale = target.precision, target.scale
            return lambda text: _text_to_decimal(text, precision, scale)
    return _TEXT_PARSERS[target.kind]


def _text_to_integer(text: str, kind: Kind, low: int, high: int) -> int:
    stripped = text.strip()
    if not _INT.match(stripped):
        raise CastError(f"Cannot convert {_short(text)} to {kind}")
    number = int(stripped)
    if not low <= number <= high:
        raise CastError(f"{_short(text)} is out of range for {kind}")
    return number


def _text_to_decimal(text: str, precision: int, scale: int) -> Decimal:
    stripped = text.strip()
    if not _DECIMAL.match(stripped):
        raise CastError(f"Cannot convert {_short(text)} to DECIMAL({precision}, {scale})")
    return to_decimal(stripped, precision, scale)


def text_to_double(text: str) -> float:
    """Read a number as Java does: `1.5`, `1e3`, `1.5d`, NaN, Infinity; blanks around it are left out."""
    try:
        return double_from_text(text, "")
    except DecodeError:
        raise CastError(f"Cannot convert {_short(text)} to DOUBLE") from None


def text_to_boolean(text: str) -> bool:
    """Any beginning of `true` or `yes`, in any case, is true; everything else is false."""
    folded = text.strip().lower()
    return bool(folded) and any(word.startswith(folded) for word in _TRUE_WORDS)


def text_to_bytes(text: str) -> bytes:
    """Read base64."""
    return base64.b64decode(text, validate=True)


_DATE_WANTED = (
    "Failed to parse date {}\nRequired format is: \"yyyy-MM-dd\", for example '2020-05-26'. "
    "Partials are also supported, for example '2020-05'"
)
_TIME_WANTED = (
    "Failed to parse time {}\nRequired format is: \"HH:mm:ss.SSS\", for example: '01:34:20.123' or '01:34:20'. "
    "Partials are also supported, for example '01:34'"
)


def text_to_date(text: str) -> int:
    """Read an ISO date, possibly partial; a time of day must be zero."""
    try:
        ms = parse_iso(text)
    except ValueError:
        raise CastError(_DATE_WANTED.format(_short(text))) from None
    if ms % DAY_MS:
        raise CastError(_DATE_WANTED.format(_short(text)))
    return ms // DAY_MS


def text_to_time(text: str) -> int:
    """Read an ISO time, possibly partial: 10, 10:15, 10:15:30.5."""
    stripped = text.strip()
    if not _TIME.match(stripped):
        raise CastError(_TIME_WANTED.format(_short(text)))
    try:
        return parse_iso(f"1970-01-01T{stripped}")
    except ValueError:
        raise CastError(_TIME_WANTED.format(_short(text))) from None


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


_TEXT_PARSERS: dict[Kind, Convert] = {
    Kind.BOOLEAN: text_to_boolean,
    Kind.DOUBLE: text_to_double,
    Kind.BYTES: text_to_bytes,
    Kind.DATE: text_to_date,
    Kind.TIME: text_to_time,
    Kind.TIMESTAMP: parse_iso,
}


# ------------------------------------------------------------------------------------------------ times and collections


def _to_date(ms: int) -> int:
    return ms // DAY_MS


def _to_time(ms: int) -> int:
    return ms % DAY_MS


def _from_date(days: int) -> int:
    return days * DAY_MS


def _same(value: int) -> int:
    return value


_TIMES: dict[tuple[Kind, Kind], Convert] = {
    (Kind.TIMESTAMP, Kind.DATE): _to_date,
    (Kind.TIMESTAMP, Kind.TIME): _to_time,
    (Kind.DATE, Kind.TIMESTAMP): _from_date,
    # Beyond ksqlDB: a time is its number of milliseconds.
    (Kind.TIMESTAMP, Kind.BIGINT): _same,
    (Kind.BIGINT, Kind.TIMESTAMP): _same,
}


def _collection(source: DataType, target: DataType) -> Convert:
    """Return an element-wise cast; an element that cannot be cast is null, a key of a MAP that cannot be fails the whole."""
    if source.kind is Kind.ARRAY:
        item = _lenient(make_cast(_part(source.element), _part(target.element)))
        return lambda items: [item(i) for i in items]
    if source.kind is Kind.MAP:
        key = make_cast(_part(source.key), _part(target.key)) or _same
        entry = _lenient(make_cast(_part(source.element), _part(target.element)))
        return lambda items: {key(k): entry(v) for k, v in items.items()}
    known = {field.name: field.type for field in source.fields}
    casts = {f.name: _lenient(make_cast(known[f.name], f.type)) for f in target.fields if f.name in known}
    names = [field.name for field in target.fields]
    return lambda value: {n: casts[n](value[n]) if n in casts else None for n in names}


def _lenient(change: Convert | None) -> Convert:
    if change is None:
        return _same

    def convert_item(value: Any) -> Any:
        if value is None:
            return None
        try:
            return change(value)
        except (ValueError, ArithmeticError):
            return None

    return convert_item


_STAYS: Mapping[Kind, type[Any]] = {Kind.STRING: str, Kind.BOOLEAN: bool, Kind.DOUBLE: float}
"""By kind of a column, the class whose values it holds as they are."""


def _cast_any(value: Any, target: DataType) -> Any:
    """Cast a value by its Python class, as if it were of the column type that fits it."""
    source = type_of(value)
    if isinstance(value, int) and target.kind in _RANGES and not _LONG[0] <= value <= _LONG[1]:
        raise CastError(f"{_short(str(value))} is out of range for {target}")
    if source.kind is Kind.ANY:
        if target.kind is Kind.STRING:
            return any_text(value)
        if target.kind in (Kind.ARRAY, Kind.MAP, Kind.STRUCT):
            return value
        raise CastError(f"cannot cast a {type(value).__name__} to {target}")
    try:
        change = make_cast(source, target)
    except InvalidInput as error:
        raise CastError(str(error)) from None
    return value if change is None else change(value)
