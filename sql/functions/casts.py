"""Conversions between types, and arithmetic of decimals: what CAST and the operators mean beyond plain numbers.

Each conversion is one function of the value; nested types go through `convert`, which takes both types as constants.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation, localcontext
from typing import Any

from logflume.log.schemas import DataType, Kind, java_double_text

from .java_time import DAY_MS, format_date, format_iso_timestamp, format_time, parse_iso
from .signature import Overload

_WIDE = Context(prec=200)
_INT = re.compile(r"[+-]?\d+")
_RANGES = {Kind.INTEGER: (-(2**31), 2**31 - 1), Kind.BIGINT: (-(2**63), 2**63 - 1)}
_TRUE_PREFIXES = ("true", "yes")


class CastError(ValueError):
    """A value that its new type cannot hold."""


def convert(value: Any, source: DataType, target: DataType) -> Any:
    """Return `value` of type `source` as `target`; null stays null. Raises ValueError when it does not fit."""
    if value is None or source == target:
        return value
    if target.kind is Kind.STRING:
        return to_text(value, source)
    match source.kind, target.kind:
        case Kind.ARRAY, Kind.ARRAY:
            element, wanted = _part(source.element), _part(target.element)
            return [convert(item, element, wanted) for item in value]
        case Kind.MAP, Kind.MAP:
            key, key_wanted = _part(source.key), _part(target.key)
            element, wanted = _part(source.element), _part(target.element)
            return {convert(k, key, key_wanted): convert(v, element, wanted) for k, v in value.items()}
        case Kind.STRUCT, Kind.STRUCT:
            theirs = {f.name: f.type for f in source.fields}
            return {
                f.name: convert(value.get(f.name), theirs[f.name], f.type) if f.name in theirs else None for f in target.fields
            }
    if source.kind is Kind.ANY:
        return value
    return _scalar(value, source, target)


def _part(type: DataType | None) -> DataType:
    assert type is not None
    return type


def can_convert(source: DataType, target: DataType) -> bool:
    """Tell whether CAST exists between two types."""
    if source == target or Kind.ANY in (source.kind, target.kind) or target.kind is Kind.STRING:
        return True
    match source.kind, target.kind:
        case (Kind.ARRAY, Kind.ARRAY):
            return source.element is not None and target.element is not None and can_convert(source.element, target.element)
        case (Kind.MAP, Kind.MAP):
            return all(a and b and can_convert(a, b) for a, b in ((source.key, target.key), (source.element, target.element)))
        case (Kind.STRUCT, Kind.STRUCT):
            theirs = {f.name: f.type for f in source.fields}
            return all(f.name not in theirs or can_convert(theirs[f.name], f.type) for f in target.fields)
    numbers = (Kind.INTEGER, Kind.BIGINT, Kind.DECIMAL, Kind.DOUBLE)
    if source.kind in numbers:
        return target.kind in numbers
    if source.kind is Kind.STRING:
        return target.kind in (*numbers, Kind.BOOLEAN, Kind.DATE, Kind.TIME, Kind.TIMESTAMP, Kind.BYTES)
    return (source.kind, target.kind) in {
        (Kind.TIMESTAMP, Kind.TIME),
        (Kind.TIMESTAMP, Kind.DATE),
        (Kind.DATE, Kind.TIMESTAMP),
    }


def _scalar(value: Any, source: DataType, target: DataType) -> Any:
    match target.kind:
        case Kind.INTEGER | Kind.BIGINT:
            return _to_integer(value, target.kind)
        case Kind.DOUBLE:
            return _text_to_double(value) if isinstance(value, str) else float(value)
        case Kind.DECIMAL:
            return to_decimal(value, target.precision, target.scale)
        case Kind.BOOLEAN:
            return text_to_boolean(value)
        case Kind.BYTES:
            return base64.b64decode(value, validate=True)
        case Kind.TIMESTAMP:
            return value * DAY_MS if source.kind is Kind.DATE else parse_iso(value)
        case Kind.DATE:
            return value // DAY_MS if source.kind is Kind.TIMESTAMP else text_to_date(value)
        case Kind.TIME:
            return value % DAY_MS if source.kind is Kind.TIMESTAMP else text_to_time(value)
    raise CastError(f"Cast of {source} to {target} is not supported")


def _to_integer(value: Any, kind: Kind) -> int:
    """Cut fractions off; numbers wrap like Java's narrowing, except that doubles saturate."""
    low, high = _RANGES[kind]
    if isinstance(value, str):
        if not _INT.fullmatch(value.strip()):
            raise CastError(f"Cannot convert {value!r} to {kind}")
        number = int(value)
        if not low <= number <= high:
            raise CastError(f"{value} does not fit {kind}")
        return number
    if isinstance(value, float):
        if value != value:
            return 0
        return max(low, min(high, int(value))) if math.isfinite(value) else (high if value > 0 else low)
    number = int(value)
    return (number - low) % (high - low + 1) + low


def _text_to_double(text: str) -> float:
    stripped = text.strip()
    if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?[dDfF]?|NaN|[+-]?Infinity", stripped):
        raise CastError(f"Cannot convert {text!r} to DOUBLE")
    return float(stripped.rstrip("dDfF") if stripped[-1:] in "dDfF" else stripped)


def text_to_boolean(text: str) -> bool:
    """Any beginning of `true` or `yes`, in any case, is true; everything else is false."""
    folded = text.strip().lower()
    return bool(folded) and any(word.startswith(folded) for word in _TRUE_PREFIXES)


def text_to_date(text: str) -> int:
    """ISO, possibly partial; a time of day must be zero."""
    ms = parse_iso(text)
    if ms % DAY_MS:
        raise CastError(f'Required format is: "yyyy-MM-dd", found {text!r}')
    return ms // DAY_MS


def text_to_time(text: str) -> int:
    """ISO, possibly partial: 10, 10:15, 10:15:30.5."""
    if not re.match(r"\d{1,2}(:|$)", text.strip()):
        raise CastError(f'Required format is: "HH:mm:ss.SSS", found {text!r}')
    return parse_iso(f"1970-01-01T{text.strip()}")


def to_decimal(value: Any, precision: int, scale: int) -> Decimal:
    """Round half up to `scale`. Raises CastError when the digits before the point do not fit."""
    try:
        exact = (
            value
            if isinstance(value, Decimal)
            else Decimal(java_double_text(value) if isinstance(value, float) else str(value).strip())
        )
        rounded = exact.quantize(Decimal(1).scaleb(-scale), rounding=ROUND_HALF_UP, context=_WIDE)
    except InvalidOperation:
        raise CastError(f"Cannot convert {value!r} to DECIMAL({precision}, {scale})") from None
    if not rounded.is_finite() or (rounded.adjusted() >= precision - scale and rounded != 0):
        raise CastError(f"Numeric field overflow: {value} does not fit DECIMAL({precision}, {scale})")
    return rounded


def to_text(value: Any, type: DataType) -> str:
    """Write a value as CAST(... AS STRING) does; nested nulls as `null`."""
    if value is None:
        return "null"
    match type.kind:
        case Kind.STRING:
            return str(value)
        case Kind.BOOLEAN:
            return "true" if value else "false"
        case Kind.DOUBLE:
            return java_double_text(value)
        case Kind.DECIMAL:
            return format(value, "f")
        case Kind.DATE:
            return format_date(value, "yyyy-MM-dd")
        case Kind.TIME:
            return format_time(value, "HH:mm:ss")
        case Kind.TIMESTAMP:
            return format_iso_timestamp(value)
        case Kind.BYTES:
            return base64.b64encode(value).decode()
        case Kind.ARRAY:
            assert type.element is not None
            return "[" + ", ".join(to_text(item, type.element) for item in value) + "]"
        case Kind.MAP:
            key, element = _part(type.key), _part(type.element)
            return "{" + ", ".join(f"{to_text(k, key)}={to_text(v, element)}" for k, v in value.items()) + "}"
        case Kind.STRUCT:
            fields = (f"{f.name}={to_text(value[f.name], f.type)}" for f in type.fields if value[f.name] is not None)
            return "Struct{" + ",".join(fields) + "}"
    return str(value)


# ------------------------------------------------------------------------------------------------ decimals


def _exactly(compute: Callable[[], Decimal], precision: int, scale: int) -> Decimal:
    """Compute at the result's precision. Raises CastError when it overflows, or is inexact where the type should hold it."""
    with localcontext(_WIDE):
        value = compute()
        rounded = value.quantize(Decimal(1).scaleb(-scale), rounding=ROUND_HALF_UP, context=_WIDE)
    if rounded.adjusted() >= precision - scale and rounded != 0:
        raise CastError(f"Numeric field overflow: {value} does not fit DECIMAL({precision}, {scale})")
    return rounded


def decimal_add(left: Any, right: Any, precision: int, scale: int) -> Decimal:
    return _exactly(lambda: Decimal(left) + Decimal(right), precision, scale)


def decimal_subtract(left: Any, right: Any, precision: int, scale: int) -> Decimal:
    return _exactly(lambda: Decimal(left) - Decimal(right), precision, scale)


def decimal_multiply(left: Any, right: Any, precision: int, scale: int) -> Decimal:
    return _exactly(lambda: Decimal(left) * Decimal(right), precision, scale)


def decimal_divide(left: Any, right: Any, precision: int, scale: int) -> Decimal:
    """Rounded half up to the result's scale. Raises ZeroDivisionError."""
    if right == 0:
        raise ZeroDivisionError("division of a DECIMAL by zero")
    return _exactly(lambda: Decimal(left) / Decimal(right), precision, scale)


def decimal_modulo(left: Any, right: Any, precision: int, scale: int) -> Decimal:
    """The sign is the dividend's."""
    if right == 0:
        raise ZeroDivisionError("modulo of a DECIMAL by zero")
    return _exactly(lambda: Decimal(left) % Decimal(right), precision, scale)


def double_modulo(left: float, right: float) -> float:
    """The remainder of a division that truncates; NaN for a zero divisor or an infinite dividend."""
    return math.nan if right == 0 or math.isinf(left) else math.fmod(left, right)


DECIMAL_OPERATORS: dict[str, Callable[..., Decimal]] = {
    "+": decimal_add,
    "-": decimal_subtract,
    "*": decimal_multiply,
    "/": decimal_divide,
    "%": decimal_modulo,
}

# Casts are made by the binder; nothing here is called by a name of the dialect.
OVERLOADS: tuple[Overload, ...] = ()
