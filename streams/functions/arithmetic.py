"""What operators of the expression tree do where Python's own operator differs: called by generated code.

Follows the meaning written in `streams/expr.py`. Nulls never get here: generated code tests for them first.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal, Inexact, InvalidOperation, Overflow
from functools import lru_cache
from typing import Any

from logflume.log.schemas import DataType


def wrap32(value: int) -> int:
    """Return the value modulo 2**32 as a signed 32-bit integer.

    >>> wrap32(2**31)
    -2147483648
    """
    return (value + 0x8000_0000 & 0xFFFF_FFFF) - 0x8000_0000


def wrap64(value: int) -> int:
    """Return the value modulo 2**64 as a signed 64-bit integer."""
    return (value + 0x8000_0000_0000_0000 & 0xFFFF_FFFF_FFFF_FFFF) - 0x8000_0000_0000_0000


def divide_integers(left: int, right: int) -> int:
    """Return the quotient truncated towards zero. Raises ZeroDivisionError.

    >>> divide_integers(-7, 2)
    -3
    """
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def remainder_integers(left: int, right: int) -> int:
    """Return the remainder with the sign of the dividend. Raises ZeroDivisionError.

    >>> remainder_integers(-7, 2)
    -1
    """
    remainder = abs(left) % abs(right)
    return -remainder if left < 0 else remainder


def divide_doubles(left: float, right: float) -> float:
    """Return left / right as IEEE 754 has it: infinities and NaN instead of errors.

    >>> divide_doubles(1, 0.0)
    inf
    """
    try:
        return float(left) / float(right)
    except ZeroDivisionError:
        dividend = float(left)
        if dividend != dividend or dividend == 0:
            return math.nan
        return math.copysign(math.inf, dividend) * math.copysign(1.0, float(right))


def remainder_doubles(left: float, right: float) -> float:
    """Return the remainder with the sign of the dividend, NaN where there is none."""
    try:
        return math.fmod(left, right)
    except ValueError:
        return math.nan


def floor_divide_doubles(left: float, right: float) -> float:
    """Return Python's left // right; by zero as in IEEE 754."""
    try:
        return float(left) // float(right)
    except ZeroDivisionError:
        return divide_doubles(left, right)


def floor_remainder_doubles(left: float, right: float) -> float:
    """Return Python's left % right; NaN by zero."""
    try:
        return float(left) % float(right)
    except ZeroDivisionError:
        return math.nan


def decimal_operator(symbol: str, type: DataType) -> Callable[[Any, Any], Decimal]:
    """Return the operator on decimals (or integers) whose result is of `type`.

    The function raises InvalidOperation or Inexact when the exact result does not fit the type, DivisionByZero by zero.
    """
    context = _context(type.precision)
    wide = Context(prec=2 * type.precision + 40, Emax=999_999, Emin=-999_999)
    unit = Decimal(1).scaleb(-type.scale)
    compute: Callable[[Decimal, Decimal], Decimal] = {
        "+": wide.add,
        "-": wide.subtract,
        "*": wide.multiply,
        "/": context.divide,
        "%": wide.remainder,
        "//": lambda a, b: wide.divide_int(a, b) - (1 if wide.remainder(a, b) and (a < 0) != (b < 0) else 0),
        "floor %": lambda a, b: wide.remainder(wide.add(wide.remainder(a, b), b), b),
    }[symbol]
    return lambda left, right: context.quantize(compute(Decimal(left), Decimal(right)), unit)


def round_decimal(value: Decimal, type: DataType) -> Decimal:
    """Return the value rounded half-up to the scale of `type`.

    Raises:
        InvalidOperation: it has too many digits.
    """
    context = Context(prec=type.precision, rounding=ROUND_HALF_UP, traps=[InvalidOperation, Overflow])
    return context.quantize(value, Decimal(1).scaleb(-type.scale))


@lru_cache(maxsize=256)
def _context(precision: int) -> Context:
    from decimal import DivisionByZero

    return Context(prec=precision, traps=[Inexact, InvalidOperation, DivisionByZero, Overflow])


def field_of(value: Any, name: str) -> Any:
    """Return a member of an object whose class is not known: item of a dict, else attribute; None when it has none."""
    if value.__class__ is dict:
        return value.get(name)
    if isinstance(value, dict):
        return value.get(name)
    return getattr(value, name, None)


def item_of(value: Any, index: Any) -> Any:
    """Return value[index] with Python's meaning, None when there is none."""
    try:
        return value[index]
    except (KeyError, IndexError, TypeError):
        return None


def array_item(items: list[Any], index: int) -> Any:
    """Return the item at a 1-based index, from the end when negative; None out of range.

    >>> [array_item([7, 8, 9], i) for i in (1, -1, 0, 4)]
    [7, 9, None, None]
    """
    size = len(items)
    if 1 <= index <= size:
        return items[index - 1]
    if -size <= index <= -1:
        return items[index]
    return None


def attempt(compute: Callable[[], Any]) -> Any:
    """Return what a part of a value gives; None where it fails: only that part is null then."""
    try:
        return compute()
    except Exception:  # noqa: BLE001 - whatever a function raises
        return None


def make_map(*items: Any) -> dict[Any, Any]:
    """Return a map from alternating keys and values; the last of equal keys wins."""
    return dict(zip(items[::2], items[1::2], strict=True))


PYTHON_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}
