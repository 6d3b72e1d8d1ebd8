"""Numeric functions. INTEGER and BIGINT results wrap as in Java; DOUBLE follows IEEE 754 (no ValueError of Python's math)."""

from __future__ import annotations

import math
import random as _random
from collections.abc import Callable, Sequence
from decimal import ROUND_CEILING, ROUND_DOWN, ROUND_FLOOR, Context, Decimal, localcontext
from typing import Any

from logflume.log.schemas import DataType, decimal

from .arithmetic import wrap64
from .numeric_columns import (
    abs_columns,
    ceil_columns,
    degrees_columns,
    floor_columns,
    greatest_columns,
    least_columns,
    radians_columns,
    round_columns,
    same_columns,
    sign_columns,
    sqrt_columns,
    trunc_columns,
)
from .scalar import Scalar, gives, over, scalar

_INT64_MAX = 2**63 - 1
_WIDE = Context(prec=200)


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


def _of_double(
    name: str, impl: Callable[[float], float], doc: str, result: float, argument: float, columns: Any = None
) -> Scalar:
    return scalar(name, doc, gives(result, argument), over("(DOUBLE) -> DOUBLE", impl, columns=columns))


FUNCTIONS: tuple[Scalar, ...] = (
    scalar(
        "ABS",
        "The absolute value, of the same type.",
        gives(3, -3),
        over("(INTEGER) -> INTEGER", absolute_integer, columns=abs_columns, kernel="abs"),
        over("(BIGINT) -> BIGINT", absolute_bigint, columns=abs_columns, kernel="abs"),
        over("(DECIMAL) -> DECIMAL", absolute),
        over("(DOUBLE) -> DOUBLE", absolute, columns=abs_columns, kernel="abs"),
    ),
    _of_double("ACOS", acos, "The arc cosine in radians.", 0.0, 1.0),
    _of_double("ASIN", asin, "The arc sine in radians.", 0.0, 0.0),
    _of_double("ATAN", atan, "The arc tangent in radians.", 0.0, 0.0),
    scalar(
        "ATAN2",
        "The angle of a point from its y and x, in radians.",
        gives(0.0, 0.0, 1.0),
        over("(DOUBLE, DOUBLE) -> DOUBLE", atan2),
    ),
    _of_double("CBRT", cbrt, "The cube root.", 3.0, 27.0),
    _of_double("COS", cos, "The cosine of an angle in radians.", 1.0, 0.0),
    _of_double("COSH", cosh, "The hyperbolic cosine.", 1.0, 0.0),
    _of_double("COT", cot, "The cotangent of an angle in radians.", math.inf, 0.0),
    _of_double("DEGREES", degrees, "Radians as degrees.", 180.0, math.pi, degrees_columns),
    _of_double("EXP", exp, "e to a power.", 1.0, 0.0),
    _of_double("LN", ln, "The natural logarithm.", 0.0, 1.0),
    _of_double("RADIANS", radians, "Degrees as radians.", math.pi, 180.0, radians_columns),
    _of_double("SIN", sin, "The sine of an angle in radians.", 0.0, 0.0),
    _of_double("SINH", sinh, "The hyperbolic sine.", 0.0, 0.0),
    _of_double("SQRT", sqrt, "The square root; NaN of a negative number.", 1.5, 2.25, sqrt_columns),
    _of_double("TAN", tan, "The tangent of an angle in radians.", 0.0, 0.0),
    _of_double("TANH", tanh, "The hyperbolic tangent.", 0.0, 0.0),
    scalar(
        "CEIL",
        "The smallest whole number not below the argument, of the same type.",
        gives(2.0, 1.2),
        over("(INTEGER) -> INTEGER", same, columns=same_columns),
        over("(BIGINT) -> BIGINT", same, columns=same_columns),
        over("(DECIMAL) -> DECIMAL", ceil_decimal),
        over("(DOUBLE) -> DOUBLE", ceil_double, columns=ceil_columns),
    ),
    scalar(
        "FLOOR",
        "The largest whole number not above the argument, of the same type.",
        gives(-2.0, -1.2),
        over("(INTEGER) -> INTEGER", same, columns=same_columns),
        over("(BIGINT) -> BIGINT", same, columns=same_columns),
        over("(DECIMAL) -> DECIMAL", floor_decimal),
        over("(DOUBLE) -> DOUBLE", floor_double, columns=floor_columns),
    ),
    scalar(
        "LOG",
        "The natural logarithm; with two arguments to the base given first.",
        gives(3.0, 2.0, 8.0),
        over("(DOUBLE) -> DOUBLE", ln),
        over("(DOUBLE, DOUBLE) -> DOUBLE", log_base),
        subject=-1,
    ),
    scalar(
        "POWER",
        "The first argument to the power of the second.",
        gives(1024.0, 2.0, 10.0),
        over("(DOUBLE, DOUBLE) -> DOUBLE", power),
    ),
    scalar("PI", "The number pi.", gives(math.pi), over("() -> DOUBLE", pi)),
    scalar("RANDOM", "A number in [0, 1).", None, over("() -> DOUBLE", random)),
    scalar(
        "SIGN",
        "-1, 0 or 1.",
        gives(-1, -2),
        over("(INTEGER) -> INTEGER", sign, columns=sign_columns),
        over("(BIGINT) -> INTEGER", sign, columns=sign_columns),
        over("(DECIMAL) -> INTEGER", sign),
        over("(DOUBLE) -> INTEGER", sign, columns=sign_columns),
    ),
    scalar(
        "ROUND",
        "Rounds half up to a BIGINT; with two arguments to that many decimal places, of the same type.",
        gives(3, 2.5),
        over("(INTEGER) -> BIGINT", same, columns=same_columns),
        over("(BIGINT) -> BIGINT", same, columns=same_columns),
        over("(DOUBLE) -> BIGINT", round_double, columns=round_columns),
        over("(DOUBLE, INTEGER) -> DOUBLE", round_double_places),
        over("(DECIMAL) -> DECIMAL", round_decimal, result_type=_whole),
        over("(DECIMAL, INTEGER) -> DECIMAL", round_decimal_places),
    ),
    scalar(
        "TRUNC",
        "Cuts the fraction off; with two arguments after that many decimal places.",
        gives(-1.2, -1.29, 1),
        over("(INTEGER) -> BIGINT", same, columns=same_columns),
        over("(BIGINT) -> BIGINT", same, columns=same_columns),
        over("(DOUBLE) -> BIGINT", trunc_double, columns=trunc_columns),
        over("(DOUBLE, INTEGER) -> DOUBLE", trunc_double_places),
        over("(DECIMAL) -> DECIMAL", trunc_decimal, result_type=_whole),
        over("(DECIMAL, INTEGER) -> DECIMAL", trunc_decimal_places),
    ),
    scalar(
        "GREATEST",
        "The largest argument; nulls do not count.",
        gives(3, 1, None, 3),
        over("(T, T...) -> T", greatest, handles_null=True, columns=greatest_columns),
    ),
    scalar(
        "LEAST",
        "The smallest argument; nulls do not count.",
        gives("a", "b", "a"),
        over("(T, T...) -> T", least, handles_null=True, columns=least_columns),
    ),
)
