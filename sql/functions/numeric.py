"""Numeric functions. INTEGER and BIGINT results wrap as in Java; DOUBLE follows IEEE 754 (no ValueError of Python's math)."""

from __future__ import annotations

import math
import random as _random
from collections.abc import Callable, Sequence
from decimal import ROUND_CEILING, ROUND_DOWN, ROUND_FLOOR, Context, Decimal, localcontext
from typing import Any

from logflume.log.schemas import DataType, decimal

from .signature import Overload, overload

_INT64_MAX = 2**63 - 1
_WIDE = Context(prec=200)


def wrap64(value: int) -> int:
    """Return the value as a 64-bit two's complement number."""
    return (value + 2**63) % 2**64 - 2**63


def saturate64(value: float) -> int:
    """Return a double as BIGINT: NaN is 0, beyond the range is the nearest end."""
    if value != value:
        return 0
    return max(-(2**63), min(_INT64_MAX, int(value))) if math.isfinite(value) else (_INT64_MAX if value > 0 else -(2**63))


def _total(function: Callable[[float], float], value: float) -> float:
    """Apply a function of `math` with IEEE results where Python raises."""
    try:
        return function(value)
    except ValueError:
        return math.nan
    except OverflowError:
        return math.inf


def sin(x: float) -> float:
    return _total(math.sin, x)


def cos(x: float) -> float:
    return _total(math.cos, x)


def tan(x: float) -> float:
    return _total(math.tan, x)


def cot(x: float) -> float:
    tangent = _total(math.tan, x)
    return math.copysign(math.inf, tangent) if tangent == 0 else 1.0 / tangent


def asin(x: float) -> float:
    return _total(math.asin, x)


def acos(x: float) -> float:
    return _total(math.acos, x)


def atan(x: float) -> float:
    return math.atan(x)


def atan2(y: float, x: float) -> float:
    return math.atan2(y, x)


def sinh(x: float) -> float:
    try:
        return math.sinh(x)
    except OverflowError:
        return math.copysign(math.inf, x)


def cosh(x: float) -> float:
    return _total(math.cosh, x)


def tanh(x: float) -> float:
    return math.tanh(x)


def exp(x: float) -> float:
    return _total(math.exp, x)


def sqrt(x: float) -> float:
    return _total(math.sqrt, x)


def cbrt(x: float) -> float:
    """The C library may miss a perfect cube by the last digit."""
    root = math.cbrt(x)
    if not math.isfinite(root):
        return root
    nearest = round(root)
    return float(nearest) if nearest**3 == x else root


def ln(x: float) -> float:
    return -math.inf if x == 0 else _total(math.log, x)


def log10(x: float) -> float:
    return -math.inf if x == 0 else _total(math.log10, x)


def log_base(base: float, x: float) -> float:
    """log of x to a base; the bases 0, 1 and negative ones have none."""
    if base <= 0 or base == 1:
        return math.nan
    denominator = ln(base)
    return ln(x) / denominator if denominator != 0 else math.nan


def power(x: float, y: float) -> float:
    try:
        return math.pow(x, y)
    except ValueError:
        return math.inf if x == 0 else math.nan
    except OverflowError:
        return -math.inf if x < 0 and y % 2 == 1 else math.inf


def degrees(x: float) -> float:
    return math.degrees(x)


def radians(x: float) -> float:
    return math.radians(x)


def pi() -> float:
    return math.pi


def random() -> float:
    return _random.random()


def sign(x: Any) -> int:
    return int(x > 0) - int(x < 0)


def absolute(x: Any) -> Any:
    return abs(x)


def absolute_integer(x: int) -> int:
    """The smallest INTEGER has no positive counterpart: it stays, as in Java."""
    return x if x == -(2**31) else abs(x)


def absolute_bigint(x: int) -> int:
    return wrap64(abs(x))


def same(x: Any) -> Any:
    return x


def ceil_double(x: float) -> float:
    return float(math.ceil(x)) if math.isfinite(x) else x


def floor_double(x: float) -> float:
    return float(math.floor(x)) if math.isfinite(x) else x


def ceil_decimal(x: Decimal) -> Decimal:
    return _at_scale_of(x.to_integral_value(rounding=ROUND_CEILING), x)


def floor_decimal(x: Decimal) -> Decimal:
    return _at_scale_of(x.to_integral_value(rounding=ROUND_FLOOR), x)


def round_double(x: float) -> int:
    """Round half up (towards positive infinity), to BIGINT."""
    return saturate64(math.floor(x + 0.5)) if math.isfinite(x) else saturate64(x)


def round_double_places(x: float, places: int) -> float:
    """Round half up on the shortest decimal text of the number."""
    return _double_places(x, places, is_truncated=False)


def trunc_double(x: float) -> int:
    return saturate64(x)


def trunc_double_places(x: float, places: int) -> float:
    return _double_places(x, places, is_truncated=True)


def _double_places(x: float, places: int, *, is_truncated: bool) -> float:
    if not math.isfinite(x):
        return x
    return float(_places(Decimal(repr(x)), places, is_truncated=is_truncated))


def _places(value: Decimal, places: int, *, is_truncated: bool) -> Decimal:
    """Negative numbers round half towards positive infinity, as `floor(x + 0.5)` does."""
    with localcontext(_WIDE):
        scaled = value.scaleb(places)
        if is_truncated:
            return scaled.to_integral_value(rounding=ROUND_DOWN).scaleb(-places)
        return (scaled + Decimal("0.5")).to_integral_value(rounding=ROUND_FLOOR).scaleb(-places)


def _at_scale_of(value: Decimal, like: Decimal) -> Decimal:
    return value.quantize(like, context=_WIDE)


def round_decimal(x: Decimal) -> Decimal:
    return _places(x, 0, is_truncated=False)


def round_decimal_places(x: Decimal, places: int) -> Decimal:
    """The scale of the type stays."""
    return _at_scale_of(_places(x, places, is_truncated=False), x)


def trunc_decimal(x: Decimal) -> Decimal:
    return _places(x, 0, is_truncated=True)


def trunc_decimal_places(x: Decimal, places: int) -> Decimal:
    return _at_scale_of(_places(x, places, is_truncated=True), x)


def greatest(*values: Any) -> Any:
    """The largest of the arguments that are not null."""
    present = [v for v in values if v is not None]
    return max(present) if present else None


def least(*values: Any) -> Any:
    present = [v for v in values if v is not None]
    return min(present) if present else None


def _whole(types: Sequence[DataType]) -> DataType:
    """ROUND and TRUNC of a decimal without places: the digits before the point."""
    first = types[0]
    return decimal(max(first.precision - first.scale, 1), 0)


_TRIGONOMETRY = {
    "ACOS": acos,
    "ASIN": asin,
    "ATAN": atan,
    "CBRT": cbrt,
    "COS": cos,
    "COSH": cosh,
    "COT": cot,
    "DEGREES": degrees,
    "EXP": exp,
    "LN": ln,
    "RADIANS": radians,
    "SIN": sin,
    "SINH": sinh,
    "SQRT": sqrt,
    "TAN": tan,
    "TANH": tanh,
}

OVERLOADS: tuple[Overload, ...] = (
    overload("ABS", "(INTEGER) -> INTEGER", absolute_integer, doc="The absolute value, of the same type.", kernel="abs"),
    overload("ABS", "(BIGINT) -> BIGINT", absolute_bigint, kernel="abs"),
    overload("ABS", "(DECIMAL) -> DECIMAL", absolute),
    overload("ABS", "(DOUBLE) -> DOUBLE", absolute, spark="abs", kernel="abs"),
    *(overload(name, "(DOUBLE) -> DOUBLE", impl) for name, impl in _TRIGONOMETRY.items()),
    overload("ATAN2", "(DOUBLE, DOUBLE) -> DOUBLE", atan2),
    overload("CEIL", "(INTEGER) -> INTEGER", same, doc="The smallest whole number not below the argument, of the same type."),
    overload("CEIL", "(BIGINT) -> BIGINT", same),
    overload("CEIL", "(DECIMAL) -> DECIMAL", ceil_decimal),
    overload("CEIL", "(DOUBLE) -> DOUBLE", ceil_double),
    overload("FLOOR", "(INTEGER) -> INTEGER", same, doc="The largest whole number not above the argument, of the same type."),
    overload("FLOOR", "(BIGINT) -> BIGINT", same),
    overload("FLOOR", "(DECIMAL) -> DECIMAL", floor_decimal),
    overload("FLOOR", "(DOUBLE) -> DOUBLE", floor_double),
    overload("LOG", "(DOUBLE) -> DOUBLE", ln, doc="The natural logarithm; with two arguments to the base given first."),
    overload("LOG", "(DOUBLE, DOUBLE) -> DOUBLE", log_base),
    overload("POWER", "(DOUBLE, DOUBLE) -> DOUBLE", power),
    overload("PI", "() -> DOUBLE", pi),
    overload("RANDOM", "() -> DOUBLE", random, doc="A number in [0, 1)."),
    overload("SIGN", "(INTEGER) -> INTEGER", sign, doc="-1, 0 or 1."),
    overload("SIGN", "(BIGINT) -> INTEGER", sign),
    overload("SIGN", "(DECIMAL) -> INTEGER", sign),
    overload("SIGN", "(DOUBLE) -> INTEGER", sign),
    overload("ROUND", "(INTEGER) -> BIGINT", same, doc="Rounds half up; with two arguments to that many decimal places."),
    overload("ROUND", "(BIGINT) -> BIGINT", same),
    overload("ROUND", "(DOUBLE) -> BIGINT", round_double),
    overload("ROUND", "(DOUBLE, INTEGER) -> DOUBLE", round_double_places),
    overload("ROUND", "(DECIMAL) -> DECIMAL", round_decimal, result_type=_whole),
    overload("ROUND", "(DECIMAL, INTEGER) -> DECIMAL", round_decimal_places),
    overload(
        "TRUNC", "(INTEGER) -> BIGINT", same, doc="Cuts the fraction off; with two arguments after that many decimal places."
    ),
    overload("TRUNC", "(BIGINT) -> BIGINT", same),
    overload("TRUNC", "(DOUBLE) -> BIGINT", trunc_double),
    overload("TRUNC", "(DOUBLE, INTEGER) -> DOUBLE", trunc_double_places),
    overload("TRUNC", "(DECIMAL) -> DECIMAL", trunc_decimal, result_type=_whole),
    overload("TRUNC", "(DECIMAL, INTEGER) -> DECIMAL", trunc_decimal_places),
    overload("GREATEST", "(T, T...) -> T", greatest, handles_null=True, doc="The largest argument; nulls do not count."),
    overload("LEAST", "(T, T...) -> T", least, handles_null=True, doc="The smallest argument; nulls do not count."),
)
