"""JSON rows <-> columns: the kernels. Needs numba; `stateless.py` decides when they are used.

A row is a flat JSON object in ASCII without escapes, its numbers of at most 15 digits without exponent. Whatever else it is
(a nested value, a duplicate field, a type that does not fit, malformed bytes) it is marked, never judged: the reference tier
takes it. Nothing here may give a value that the reference tier would not.

Shapes: N rows, F fields or columns. Kinds are those of `columns.KINDS`.
"""

# mypy: disable-error-code="untyped-decorator,no-any-return,no-untyped-call"

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, types

_IN_U8 = types.Array(types.uint8, 1, "C", readonly=True)
_IN_I64 = types.Array(types.int64, 1, "C", readonly=True)
_IN_I32 = types.Array(types.int32, 1, "C", readonly=True)
_U8 = types.Array(types.uint8, 1, "C")
_I64 = types.Array(types.int64, 1, "C")
_I32 = types.Array(types.int32, 1, "C")
_B2 = types.Array(types.boolean, 2, "C")
_I2 = types.Array(types.int64, 2, "C")
_F2 = types.Array(types.float64, 2, "C")

BOOLEAN, INTEGER, BIGINT, DOUBLE, STRING = 0, 1, 2, 3, 4
DROPPED, CERTAIN, MARKED = 0, 1, 2
NUMBER_SIZE = 28
"""Bytes that a number, a boolean or null takes at most."""

_MAX_DIGITS = 15
_POWERS = np.array([10.0**n for n in range(23)])
_INTEGER_POWERS = np.array([10**n for n in range(19)], dtype=np.int64)


@njit(inline="always")
def _skip_space(buffer: Any, at: int, end: int) -> int:
    while at < end and (buffer[at] == 32 or buffer[at] == 10 or buffer[at] == 13 or buffer[at] == 9):
        at += 1
    return at


@njit(inline="always")
def _string_end(buffer: Any, at: int, end: int) -> int:
    """Return the position of the closing quote; -1 when a byte is not plain ASCII or it does not end."""
    while at < end:
        byte = buffer[at]
        if byte == 34:
            return at
        if byte < 32 or byte > 126 or byte == 92:
            return -1
        at += 1
    return -1


@njit(inline="always")
def _word(buffer: Any, at: int, end: int) -> int:
    """Return 1 for true, 2 for false, 3 for null, else 0."""
    if at + 4 <= end and buffer[at] == 116 and buffer[at + 1] == 114 and buffer[at + 2] == 117 and buffer[at + 3] == 101:
        return 1
    if at + 4 <= end and buffer[at] == 110 and buffer[at + 1] == 117 and buffer[at + 2] == 108 and buffer[at + 3] == 108:
        return 3
    if (
        at + 5 <= end
        and buffer[at] == 102
        and buffer[at + 1] == 97
        and buffer[at + 2] == 108
        and buffer[at + 3] == 115
        and buffer[at + 4] == 101
    ):
        return 2
    return 0


@njit(inline="always")
def _number(buffer: Any, at: int, end: int) -> Any:
    """Return (digits as an integer with its sign, digits behind the point or -1 without one, position after it).

    The position is -1 where it is no number, has an exponent or too many digits, or is a negative zero.
    """
    is_negative = at < end and buffer[at] == 45
    if is_negative:
        at += 1
    first = at
    mantissa = np.int64(0)
    digits, scale = 0, -1
    while at < end and 48 <= buffer[at] <= 57:
        mantissa = mantissa * 10 + (np.int64(buffer[at]) - 48)
        digits += 1
        at += 1
        if digits > _MAX_DIGITS:
            return 0, 0, -1
    if digits == 0 or (digits > 1 and buffer[first] == 48):
        return 0, 0, -1
    if at < end and buffer[at] == 46:
        at += 1
        scale = 0
        while at < end and 48 <= buffer[at] <= 57:
            mantissa = mantissa * 10 + (np.int64(buffer[at]) - 48)
            digits += 1
            scale += 1
            at += 1
            if digits > _MAX_DIGITS:
                return 0, 0, -1
        if scale == 0:
            return 0, 0, -1
    if at < end and (buffer[at] == 101 or buffer[at] == 69):
        return 0, 0, -1
    if is_negative and mantissa == 0:
        return 0, 0, -1
    return (-mantissa if is_negative else mantissa), scale, at


@njit(inline="always")
def _field(buffer: Any, start: int, stop: int, names: Any, name_ends: Any, guess: int) -> int:
    """Return the number of the field with this name, -1 for one that is not used. `guess` is tried first."""
    count = len(name_ends)
    for step in range(count):
        field = guess + step
        if field >= count:
            field -= count
        begin = name_ends[field - 1] if field > 0 else 0
        size = name_ends[field] - begin
        if size != stop - start:
            continue
        same = True
        for k in range(size):
            if names[begin + k] != buffer[start + k]:
                same = False
                break
        if same:
            return field
    return -1


@njit(
    types.void(_IN_U8, _IN_I64, _IN_I32, _IN_I64, _IN_U8, _IN_I64, _IN_I64, _IN_I64, _I64, _B2, _I2, _F2, _I2, _I2),
    cache=True,
    nogil=True,
    error_model="numpy",
)
def extract(
    buffer: Any,
    starts: Any,
    sizes: Any,
    times: Any,
    names: Any,
    name_ends: Any,
    kinds: Any,
    required: Any,
    status: Any,
    nulls: Any,
    ints: Any,
    floats: Any,
    begins: Any,
    lengths: Any,
) -> None:
    """Decode the used fields of N rows; `status` becomes CERTAIN or MARKED.

    names: the used names, joined; name_ends: int64[F]. required[F]: 1 marks a row without that field.
    nulls, ints (numbers and booleans), floats, begins and lengths (string spans of `buffer`): [F, N].
    """
    count = len(kinds)
    for i in range(len(starts)):
        status[i] = MARKED
        for f in range(count):
            nulls[f, i] = True
        if sizes[i] < 2 or times[i] < 0:
            continue
        at, end = starts[i], starts[i] + sizes[i]
        if buffer[at] != 123:
            continue
        at += 1
        seen = np.int64(0)
        guess = 0
        is_sure = False
        while True:
            at = _skip_space(buffer, at, end)
            if at >= end or buffer[at] != 34:
                break
            name_end = _string_end(buffer, at + 1, end)
            if name_end < 0:
                break
            f = _field(buffer, at + 1, name_end, names, name_ends, guess)
            at = _skip_space(buffer, name_end + 1, end)
            if at >= end or buffer[at] != 58:
                break
            at = _skip_space(buffer, at + 1, end)
            if at >= end:
                break
            if f >= 0:
                if (seen >> f) & 1:
                    break
                seen |= np.int64(1) << f
                guess = f + 1 if f + 1 < count else 0
            kind = kinds[f] if f >= 0 else -1
            byte = buffer[at]
            if byte == 34:
                close = _string_end(buffer, at + 1, end)
                if close < 0 or (f >= 0 and kind != STRING):
                    break
                if f >= 0:
                    begins[f, i] = at + 1
                    lengths[f, i] = close - at - 1
                    nulls[f, i] = False
                at = close + 1
            elif byte == 45 or 48 <= byte <= 57:
                value, scale, after = _number(buffer, at, end)
                if after < 0:
                    break
                at = after
                if f >= 0:
                    if kind == DOUBLE:
                        floats[f, i] = value / _POWERS[scale] if scale > 0 else float(value)
                    elif kind == BIGINT or (kind == INTEGER and -2147483648 <= value <= 2147483647):
                        if scale >= 0:
                            break
                        ints[f, i] = value
                    else:
                        break
                    nulls[f, i] = False
            else:
                word = _word(buffer, at, end)
                if word == 0 or (f >= 0 and word != 3 and kind != BOOLEAN):
                    break
                at += 5 if word == 2 else 4
                if f >= 0 and word != 3:
                    ints[f, i] = 1 if word == 1 else 0
                    nulls[f, i] = False
            at = _skip_space(buffer, at, end)
            if at >= end:
                break
            if buffer[at] == 44:
                at += 1
                continue
            is_sure = buffer[at] == 125 and at + 1 == end
            break
        if not is_sure:
            continue
        for f in range(count):
            if required[f] == 1 and not (seen >> f) & 1:
                is_sure = False
        if is_sure:
            status[i] = CERTAIN


@njit(inline="always")
def _put_integer(out: Any, at: int, value: int) -> int:
    """Write a non-negative integer; return the position after it."""
    size = 1
    rest = value // 10
    while rest > 0:
        size += 1
        rest //= 10
    for k in range(size):
        out[at + size - 1 - k] = 48 + value % 10
        value //= 10
    return at + size


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
        while value >= _POWERS[power]:
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
    unit = np.int64(100)
    while unit > 0:
        low = quotient - quotient % unit
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
        unit //= 10
    return np.int64(0), -1


@njit(inline="always")
def _put_double(out: Any, at: int, value: float) -> int:
    """Write a double as Python's repr does; return the position after it, -1 if unsure."""
    if value < 0.0:
        out[at] = 45
        at += 1
        value = -value
    elif value == 0.0:
        if math.copysign(1.0, value) < 0.0:
            return -1
        out[at], out[at + 1], out[at + 2] = 48, 46, 48
        return at + 3
    if not 0.001 <= value < 4503599627370496.0:
        return -1
    digits, places = _shortest(value)
    if places < 0:
        return -1
    while places > 1 and digits % 10 == 0:
        digits //= 10
        places -= 1
    if places == 0:
        at = _put_integer(out, at, digits)
        out[at], out[at + 1] = 46, 48
        return at + 2
    scale = _INTEGER_POWERS[places]
    whole = digits // scale
    at = _put_integer(out, at, whole)
    out[at] = 46
    digits -= whole * scale
    for k in range(places):
        out[at + places - k] = 48 + digits % 10
        digits //= 10
    return at + places + 1


@njit(
    types.int64(_IN_U8, _IN_I64, _IN_U8, _IN_I64, _IN_I64, _B2, _I2, _F2, _I2, _I2, _I64, _U8, _I64, _I32),
    cache=True,
    nogil=True,
    error_model="numpy",
)
def write(
    buffer: Any,
    rows: Any,
    labels: Any,
    label_ends: Any,
    kinds: Any,
    nulls: Any,
    ints: Any,
    floats: Any,
    begins: Any,
    lengths: Any,
    status: Any,
    out: Any,
    out_starts: Any,
    out_sizes: Any,
) -> int:
    """Encode the given rows as JSON objects; return the bytes written. A row that is unsure is MARKED.

    labels: what stands before each value (`{"a":`, `,"b":`), joined; label_ends: int64[F]. nulls ... lengths: [F, N].
    out: room for all rows; out_starts and out_sizes: [N], set for the rows that stay CERTAIN.
    """
    position = 0
    for i in rows:
        at = position
        for f in range(len(kinds)):
            for k in range(label_ends[f - 1] if f > 0 else 0, label_ends[f]):
                out[at] = labels[k]
                at += 1
            if nulls[f, i]:
                out[at], out[at + 1], out[at + 2], out[at + 3] = 110, 117, 108, 108
                at += 4
            elif kinds[f] == STRING:
                out[at] = 34
                at += 1
                begin = begins[f, i]
                for k in range(lengths[f, i]):
                    out[at + k] = buffer[begin + k]
                at += lengths[f, i]
                out[at] = 34
                at += 1
            elif kinds[f] == DOUBLE:
                at = _put_double(out, at, floats[f, i])
                if at < 0:
                    break
            elif kinds[f] == BOOLEAN:
                if ints[f, i] == 1:
                    out[at], out[at + 1], out[at + 2], out[at + 3] = 116, 114, 117, 101
                    at += 4
                else:
                    out[at], out[at + 1], out[at + 2], out[at + 3], out[at + 4] = 102, 97, 108, 115, 101
                    at += 5
            else:
                value = ints[f, i]
                if value == -9223372036854775808:
                    at = -1
                    break
                if value < 0:
                    out[at] = 45
                    at += 1
                    value = -value
                at = _put_integer(out, at, value)
        if at < 0:
            status[i] = MARKED
            continue
        out[at] = 125
        at += 1
        out_starts[i] = position
        out_sizes[i] = at - position
        position = at
    return position


@njit(types.void(_IN_U8, _IN_I64, _IN_I64, _IN_U8, types.Array(types.boolean, 1, "C")), cache=True, nogil=True)
def equals_text(buffer: Any, begins: Any, lengths: Any, text: Any, found: Any) -> None:
    """Set found[i] where the span is this text, byte for byte. A span of negative length is no text."""
    size = len(text)
    for i in range(len(begins)):
        found[i] = lengths[i] == size
        if found[i]:
            for k in range(size):
                if buffer[begins[i] + k] != text[k]:
                    found[i] = False
                    break
