"""Numeric functions over columns, by numpy: only where IEEE 754 leaves one result (logarithms and angles may differ)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .columns import NotHeld, as_numbers, size_of, valid_in

_LEAST = np.int64(-(2**31))
_SMALLEST = np.int64(-(2**63))
_INT64_BOUND = 2.0**63


def abs_columns(number: Any) -> tuple[Any, ...]:
    """The smallest INTEGER and BIGINT have no counterpart: they are unsure."""
    values = number[0]
    if values.dtype == np.float64:
        return np.abs(values), None
    return np.abs(values), None, (values == _LEAST) | (values == _SMALLEST)


def same_columns(value: Any) -> tuple[Any, ...]:
    values, valid = value
    return values, valid


def ceil_columns(number: Any) -> tuple[Any, ...]:
    """-0.5 gives 0.0, not -0.0."""
    return np.ceil(number[0]) + 0.0, None


def floor_columns(number: Any) -> tuple[Any, ...]:
    return np.floor(number[0]) + 0.0, None


def sqrt_columns(number: Any) -> tuple[Any, ...]:
    return np.sqrt(number[0]), None


def degrees_columns(angle: Any) -> tuple[Any, ...]:
    return angle[0] * (180.0 / math.pi), None


def radians_columns(angle: Any) -> tuple[Any, ...]:
    return angle[0] * (math.pi / 180.0), None


def sign_columns(number: Any) -> tuple[Any, ...]:
    values = number[0]
    return (values > 0).astype(np.int64) - (values < 0), None


def round_columns(number: Any) -> tuple[Any, ...]:
    return _whole(np.floor(number[0] + 0.5))


def trunc_columns(number: Any) -> tuple[Any, ...]:
    return _whole(np.trunc(number[0]))


def _whole(values: Any) -> tuple[Any, ...]:
    """Doubles as BIGINT; what it does not hold is unsure."""
    inside = np.abs(values) < _INT64_BOUND
    return np.where(inside, values, 0.0).astype(np.int64), None, ~inside


def greatest_columns(*arguments: Any) -> tuple[Any, ...]:
    return _extreme(arguments, np.greater)


def least_columns(*arguments: Any) -> tuple[Any, ...]:
    return _extreme(arguments, np.less)


def _extreme(arguments: tuple[Any, ...], is_better: Any) -> tuple[Any, ...]:
    """Numbers and times; NaN depends on the order and is unsure."""
    count = size_of(arguments)
    found: Any = None
    valid = np.zeros(count, np.bool_)
    unsure = np.zeros(count, np.bool_)
    for argument in arguments:
        if argument is None:
            continue
        values = as_numbers(argument)
        if not isinstance(values, np.ndarray | int | float):
            raise NotHeld("an order of Arrow values")
        here = valid_in(argument, count)
        values = np.broadcast_to(np.asarray(values), count)
        if values.dtype == np.float64:
            unsure |= here & (values != values)
            unsure |= here & (values == 0)  # 0.0 and -0.0 are equal: the first one stays
        found = values if found is None else np.where(here & (~valid | is_better(values, found)), values, found)
        valid = valid | here
    return found, None if valid.all() else valid, unsure
