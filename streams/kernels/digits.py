"""Numbers as text: integers, and doubles as Python's repr writes them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from logflume.log.memory import store_byte, store_word

POWERS = np.array([10.0**n for n in range(23)])
_INTEGER_POWERS = np.array([10**n for n in range(19)], dtype=np.int64)
_PAIRS = np.array([(48 + n % 10) << 8 | (48 + n // 10) for n in range(100)], dtype=np.int64)


@njit(inline="always")
def _put_digits(out: int, end: int, value: int, size: int) -> int:
    """Write the lowest `size` digits of a non-negative integer before `end`; return `end`."""
    place = end
    while size >= 2:
        rest = value // 100
        pair = _PAIRS[value - rest * 100]
        place -= 2
        store_byte(out, place, pair & 255)
        store_byte(out, place + 1, pair >> 8)
        value = rest
        size -= 2
    if size == 1:
        store_byte(out, place - 1, 48 + value % 10)
    return end


@njit(inline="always")
def put_integer(out: int, at: int, value: int) -> int:
    """Write a non-negative integer; return the position after it."""
    size = np.int64(1)
    bound = np.int64(10)
    while size < 19 and value >= bound:
        size += 1
        bound *= 10
    end = at + size
    return _put_digits(out, end, value, size)


@njit(inline="always")
def _shortest(value: float) -> Any:
    """Return (m, k) with m / 10**k the shortest decimal that reads back as `value` (closest of several); (0, -1) if unsure.

    For 1e-3 <= value < 2**52. Below 1/16, 15 digits or nothing. Above, value * 10**k is q + r / 2**shift exactly, with 17 digits
    in q: the product is kept modulo 2**64, of which only a difference is used that is known to be small. A multiple of 100,
    10 or 1 that is nearest to it is the answer if it lies less than half a unit in the last place of `value` away; on the
    edge, or at a power of two where the places differ, it is left to others.
    """
    if value < 0.0625:
        scaled = np.int64(np.rint(value * 1e15))
        return (scaled, 15) if scaled / 1e15 == value else (np.int64(0), -1)
    fraction, exponent = math.frexp(value)
    mantissa = np.int64(fraction * 9007199254740992.0)
    if mantissa == 4503599627370496:
        whole = np.int64(value)
        if value == float(whole):
            return whole, 0
        scaled = np.int64(np.rint(value * 1e6))
        return (scaled, 6) if scaled / 1e6 == value else (np.int64(0), -1)
    shift = 53 - exponent
    if shift < 1 or shift > 56:
        return np.int64(0), -1
    places = 16
    if value < 0.1:
        places = 18
    elif value < 1.0:
        places = 17
    else:
        power = 1
        while value >= POWERS[power]:
            power += 1
        places = 17 - power
    scale = _INTEGER_POWERS[places]
    guess = np.int64(value * float(scale))
    difference = mantissa * scale - (guess << shift)
    step = difference >> shift
    quotient = guess + step
    rest = difference - (step << shift)
    if quotient < 10000000000000000 or quotient >= 100000000000000000:
        return np.int64(0), -1
    for step in range(3):
        low = quotient // 100 * 100 if step == 0 else (quotient // 10 * 10 if step == 1 else quotient)
        unit = np.int64(100) if step == 0 else (np.int64(10) if step == 1 else np.int64(1))
        below = ((quotient - low) << shift) + rest
        above = (unit << shift) - below
        if below == above:
            return np.int64(0), -1
        nearest = low if below < above else low + unit
        distance = min(below, above)
        if 2 * distance == scale:
            return np.int64(0), -1
        if 2 * distance < scale:
            return nearest, places
    return np.int64(0), -1


@njit(inline="always")
def _few_digits(value: float) -> Any:
    """Return (m, 6) for m / 10**6 that reads back as `value`, if m has at most 15 digits; else (0, -1).

    No two decimals of at most 15 digits read back as the same double, so without its zeros at the end it is the shortest one.
    """
    if value < 1e9:
        scaled = np.int64(np.rint(value * 1e6))
        if scaled / 1e6 == value:
            return scaled, np.int64(6)
    return np.int64(0), np.int64(-1)


@njit(inline="always")
def put_double(out: int, at: int, value: float) -> int:
    """Write a double as Python's repr does; return the position after it, -1 if unsure."""
    if value < 0.0:
        store_byte(out, at, 45)
        at += 1
        value = -value
    elif value == 0.0:
        if math.copysign(1.0, value) < 0.0:
            return -1
        store_word(out, at, 0x302E30)
        return at + 3
    if not 0.001 <= value < 4503599627370496.0:
        return -1
    digits, places = _few_digits(value)
    if places < 0:
        digits, places = _shortest(value)
    if places < 0:
        return -1
    if places == 0:
        at = put_integer(out, at, digits)
        store_word(out, at, 0x302E)
        return at + 2
    while places > 8 and digits % 100000000 == 0:
        digits //= 100000000
        places -= 8
    while places > 1 and digits % 10 == 0:
        digits //= 10
        places -= 1
    scale = _INTEGER_POWERS[places]
    whole = digits // scale
    at = put_integer(out, at, whole)
    store_byte(out, at, 46)
    return _put_digits(out, at + 1 + places, digits - whole * scale, places)
