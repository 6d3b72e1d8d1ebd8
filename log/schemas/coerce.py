"""Exact conversions between text, JSON values and column values, as ksqlDB's deserializers do them.

Slow and complete: the meaning of every format. The fast decoders hand a record over to this module as soon as it holds
anything that they do not take as it is.

JSON values arrive as Python objects whose numbers are int, or Decimal when the text has a fraction or an exponent. What is
like JSON but is not text may have bytes, too.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import math
import re
import struct
from collections.abc import Callable
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, Inexact, InvalidOperation
from functools import lru_cache
from typing import Any

from logflume.log.errors import DecodeError, InvalidInput

from .types import Column, DataType, Kind

INT_RANGES: dict[Kind, tuple[int, int]] = {
    Kind.INTEGER: (-(2**31), 2**31 - 1),
    Kind.BIGINT: (-(2**63), 2**63 - 1),
    Kind.DATE: (-(2**31), 2**31 - 1),
    Kind.TIME: (0, 86_400_000 - 1),
    Kind.TIMESTAMP: (-(2**63), 2**63 - 1),
}
_INT_TEXT = re.compile(r"[+-]?[0-9]{1,40}\Z")
_DECIMAL_TEXT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,9})?\Z")
_MAX_INT_DIGITS = 40


def from_json(value: Any, type: DataType, path: str) -> Any:
    """Return a parsed JSON value as a value of the column type; None stays None.

    Raises:
        DecodeError: the value does not fit; the message names `path`.
    """
    if value is None:
        return None
    match type.kind:
        case Kind.STRING:
            return json_to_text(value)
        case Kind.BOOLEAN:
            if isinstance(value, bool):
                return value
        case Kind.INTEGER | Kind.BIGINT | Kind.DATE | Kind.TIME | Kind.TIMESTAMP:
            if isinstance(value, str):
                return moment_from_text(value, type.kind, path) if type.kind in MOMENTS else int_from_text(value, type.kind, path)
            if isinstance(value, int | Decimal) and not isinstance(value, bool):
                return _check_range(_truncate(value, path), type.kind, path)
        case Kind.DOUBLE:
            if isinstance(value, str):
                return double_from_text(value, path)
            if isinstance(value, int | Decimal) and not isinstance(value, bool):
                return float(Decimal(value))
        case Kind.DECIMAL:
            if isinstance(value, str):
                return decimal_from_text(value, type, path)
            if isinstance(value, int | Decimal) and not isinstance(value, bool):
                return fit_decimal(Decimal(value), type, path)
        case Kind.BYTES:
            if isinstance(value, str):
                return bytes_from_base64(value, path)
            if isinstance(value, bytes):
                return value
        case Kind.ARRAY:
            if isinstance(value, list):
                assert type.element is not None
                return [from_json(item, type.element, f"{path}[{i}]") for i, item in enumerate(value)]
        case Kind.MAP:
            if isinstance(value, dict):
                assert type.element is not None
                return {key: from_json(item, type.element, f"{path}.{key}") for key, item in value.items()}
        case Kind.STRUCT:
            if isinstance(value, dict):
                return struct_from_json(value, type.fields, path)
        case Kind.ANY:
            return plain(value)
    raise DecodeError(f"{path}: expected {type}, found {_describe(value)}")


def json_value(value: Any, type: DataType) -> Any:
    """Return a parsed JSON value as a value of a type. Raises DecodeError."""
    return from_json(value, type, "$")


def struct_from_json(value: dict[str, Any], fields: tuple[Column, ...], path: str) -> dict[str, Any]:
    """Return the fields of a JSON object by name: looked up exactly, then among its upper-cased names; missing is null."""
    upper: dict[str, Any] | None = None
    out: dict[str, Any] = {}
    for field in fields:
        name = field.name
        if name in value:
            found = value[name]
        else:
            if upper is None:
                upper = {key.upper(): item for key, item in value.items()}
            found = upper.get(name)
        out[name] = from_json(found, field.type, f"{path}.{name}")
    return out


def json_to_text(value: Any) -> str:
    """Return a JSON value as the text a STRING column gets: numbers as written, objects as JSON, arrays as `[a, b]`."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | Decimal):
        return str(value)
    if isinstance(value, list):
        return "[" + ", ".join("null" if item is None else json_to_text(item) for item in value) + "]"
    if value is None:
        return "null"
    return json_text(value)


def json_text(value: Any) -> str:
    """Return compact JSON of a parsed value, decimals exact and as written."""
    import msgspec

    return msgspec.json.Encoder(decimal_format="number").encode(value).decode()


def plain(value: Any) -> Any:
    """Return a parsed JSON value with its decimals as floats: what `json.loads` gives."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def int_from_text(text: str, kind: Kind, path: str) -> int:
    """Return a decimal integer written as text: digits with an optional sign, nothing else."""
    if not _INT_TEXT.match(text):
        raise DecodeError(f"{path}: expected {kind}, found text {_shorten(text)!r}")
    return _check_range(int(text), kind, path)


def moment_from_text(text: str, kind: Kind, path: str) -> int:
    """Return a time, a day or a time of day: a number as text, or as ISO 8601 writes it (a time without a zone is UTC)."""
    if _INT_TEXT.match(text):
        return _check_range(int(text), kind, path)
    try:
        return MOMENTS[kind](text)
    except ValueError:
        example = {Kind.TIMESTAMP: "2024-05-17T09:30:00Z", Kind.DATE: "2024-05-17", Kind.TIME: "09:30:00"}[kind]
        raise DecodeError(f"{path}: expected {kind} as a number or like {example}, found text {_shorten(text)!r}") from None


def _timestamp_ms(text: str) -> int:
    found = datetime.datetime.fromisoformat(text)
    return ((found if found.tzinfo is not None else found.replace(tzinfo=datetime.UTC)) - _EPOCH) // _MILLISECOND


def _day(text: str) -> int:
    return datetime.date.fromisoformat(text).toordinal() - _EPOCH.toordinal()


def _time_ms(text: str) -> int:
    found = datetime.time.fromisoformat(text)
    if found.tzinfo is not None:
        raise ValueError("a time of day has no zone")
    return ((found.hour * 60 + found.minute) * 60 + found.second) * 1000 + found.microsecond // 1000


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND = datetime.timedelta(milliseconds=1)
MOMENTS: dict[Kind, Callable[[str], int]] = {Kind.TIMESTAMP: _timestamp_ms, Kind.DATE: _day, Kind.TIME: _time_ms}


def moment_text(kind: Kind) -> Callable[[int], str | int]:
    """Return what writes a time, a day or a time of day as ISO 8601 text; what lies beyond the years 1 to 9999 stays a number.

    >>> moment_text(Kind.TIMESTAMP)(1_715_938_200_500), moment_text(Kind.DATE)(19860)
    ('2024-05-17T09:30:00.500Z', '2024-05-17')
    """

    def text(value: int) -> str | int:
        try:
            if kind is Kind.DATE:
                return datetime.date.fromordinal(value + _EPOCH.toordinal()).isoformat()
            moment = _EPOCH + value * _MILLISECOND
        except (OverflowError, ValueError):
            return value
        spec = "milliseconds" if value % 1000 else "seconds"
        if kind is Kind.TIME:
            return moment.time().isoformat(spec)
        return moment.replace(tzinfo=None).isoformat("T", spec) + "Z"

    return text


def double_from_text(text: str, path: str) -> float:
    """Return a number written as text, as Java reads it: blanks around it, NaN, Infinity and a suffix (`1.5d`) are allowed."""
    stripped = text.strip()
    number = stripped[:-1] if stripped[-1:] in ("d", "D", "f", "F") else stripped
    if _DECIMAL_TEXT.match(number):
        return float(number)
    specials = {"NaN": float("nan"), "Infinity": float("inf"), "+Infinity": float("inf"), "-Infinity": float("-inf")}
    if stripped in specials:
        return specials[stripped]
    raise DecodeError(f"{path}: expected DOUBLE, found text {_shorten(text)!r}")


def decimal_from_text(text: str, type: DataType, path: str) -> Decimal:
    """Return an exact decimal written as text."""
    if not _DECIMAL_TEXT.match(text):
        raise DecodeError(f"{path}: expected {type}, found text {_shorten(text)!r}")
    return fit_decimal(Decimal(text), type, path)


def shortest_decimal(value: Decimal) -> str:
    """Return the digits of a decimal without an exponent and without zeros behind the last one."""
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def fit_decimal(value: Decimal, type: DataType, path: str) -> Decimal:
    """Return the decimal with exactly `type.scale` fractional digits; never rounds.

    Raises:
        DecodeError: it has more digits than the type holds.
    """
    try:
        fitted = value.quantize(_unit(type.scale), context=_exact_context(type.precision))
    except (Inexact, InvalidOperation):
        raise DecodeError(f"{path}: {_shorten(str(value))} does not fit {type} without rounding") from None
    if not fitted.is_finite():
        raise DecodeError(f"{path}: expected {type}, found {value}")
    return fitted


_UNBOUNDED = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)
"""The usual context keeps 28 digits."""


def from_unscaled(data: bytes, scale: int) -> Decimal:
    """Return the decimal whose digits, as a whole number of big-endian bytes, end `scale` places behind the point."""
    return Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-scale, _UNBOUNDED)


def unscaled(value: Decimal, scale: int) -> int:
    """Return the digits of a decimal as a whole number. Raises ValueError: it has more than `scale` digits behind the point."""
    scaled = value.scaleb(scale, _UNBOUNDED)
    whole = int(scaled)
    if whole != scaled:
        raise ValueError(f"{value} has more than {scale} digits behind the point")
    return whole


def bytes_from_base64(text: str, path: str) -> bytes:
    """Return the bytes of standard base64 text, padded."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise DecodeError(f"{path}: expected BYTES as base64, found text {_shorten(text)!r}") from None


def from_text(type: DataType, path: str) -> Callable[[str], Any]:
    """Return a function that parses one non-empty field of delimited text as a value of `type`."""
    kind = type.kind
    match kind:
        case Kind.STRING:
            return str
        case Kind.BOOLEAN:
            return lambda text: text.lower() == "true"  # as Java reads it: whatever else it says is false
        case Kind.DOUBLE:
            return lambda text: double_from_text(text, path)
        case Kind.DECIMAL:
            return lambda text: decimal_from_text(text, type, path)
        case Kind.BYTES:
            return lambda text: bytes_from_base64(text + "=" * (-len(text) % 4), path)
        case _ if kind in INT_RANGES:
            return lambda text: int_from_text(text, kind, path)
    raise InvalidInput(f"{path}: {type} has no form as delimited text")


def java_double_text(value: float) -> str:
    """Return a double the way Java's `Double.toString` writes it (shortest digits; E notation below 1e-3 and from 1e7).

    >>> [java_double_text(x) for x in (1.0, 1e7, 123456789.5, 0.001, 0.00012, 5e-324, float("-inf"))]
    ['1.0', '1.0E7', '1.234567895E8', '0.001', '1.2E-4', '4.9E-324', '-Infinity']
    """
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return format(Decimal(repr(value)), "f") if "e" in repr(value) else repr(value)
    sign, digits, _ = Decimal(repr(value)).normalize().as_tuple()
    text = "".join(map(str, digits))
    exponent = Decimal(repr(value)).adjusted()
    if len(text) == 1:  # Java writes at least two digits: of those that read back, the nearest to the value (4.9E-324)
        nearest = Decimal(f"{value:.1e}")
        if float(nearest) == value:
            text, exponent = "".join(map(str, nearest.as_tuple().digits)), nearest.adjusted()
    return f"{'-' if sign else ''}{text[0]}.{text[1:] or '0'}E{exponent}"


def java_float_text(value: float) -> str:
    """Return a number of 32 bits the way Java's `Float.toString` writes it: with the fewest digits that tell it from the others.

    >>> java_float_text(0.10000000149011612), java_float_text(16777216.0)
    ('0.1', '1.6777216E7')
    """
    if not math.isfinite(value):
        return java_double_text(value)
    return java_double_text(next(short for n in range(2, 10) if _as_float(short := float(f"{value:.{n}g}")) == value))


def _as_float(value: float) -> float | None:
    """Return the nearest number of 32 bits; None: there is none, it is rounded up beyond the largest."""
    try:
        return float(struct.unpack(">f", struct.pack(">f", value))[0])
    except OverflowError:
        return None


@lru_cache(maxsize=256)
def _exact_context(precision: int) -> Context:
    return Context(prec=precision, traps=[Inexact, InvalidOperation])


@lru_cache(maxsize=256)
def _unit(scale: int) -> Decimal:
    return Decimal(1).scaleb(-scale)


def _truncate(value: int | Decimal, path: str) -> int:
    if isinstance(value, int):
        return value
    if value.adjusted() > _MAX_INT_DIGITS:
        raise DecodeError(f"{path}: {_shorten(str(value))} is out of range")
    return int(value)


def _check_range(value: int, kind: Kind, path: str) -> int:
    low, high = INT_RANGES[kind]
    if not low <= value <= high:
        raise DecodeError(f"{path}: {_shorten(str(value))} is out of range for {kind}")
    return value


def _describe(value: Any) -> str:
    name = {bool: "a boolean", int: "a number", Decimal: "a number", str: "text", list: "an array", dict: "an object"}
    return f"{name.get(type(value), 'a value')} ({_shorten(json_to_text(value))})"


def _shorten(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
