"""JSON rows <-> columns: the kernels. Needs numba; `columns/decode.py` and `encode.py` decide when they are used.

A row is a JSON object, its numbers of at most 15 digits without exponent, its texts valid UTF-8 without escaped surrogates.
Nested values are stepped over where nobody reads them. Whatever else it is (a duplicate field, a type that does not fit,
malformed bytes) it is not certain, never judged: the exact decoder takes it. Nothing here may give a value that the exact decoder
would not.

Shapes: N rows, F fields or columns. Kinds are those of `columns.KINDS`. Strings are spans: an address in memory and a size in
bytes. Who calls keeps the memory alive; every load lies inside of it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, types

from logflume.log.memory import load_byte, load_double, load_half, load_word, store_byte, store_half, store_word, trailing_zeros

from .signatures import B1, B2, F2, I2, I32, I64, IN_I2, IN_I32, IN_I64, IN_U8, U8

BOOLEAN, INTEGER, BIGINT, DOUBLE, STRING = 0, 1, 2, 3, 4
NUMBER_SIZE = 28
"""Bytes that a number, a boolean or null takes at most."""
SPARE_BYTES = 8
"""Bytes that `write` may touch behind what it has written."""

_MAX_DIGITS = 15
_MAX_PLACES = 64
_MAX_DEPTH = 60
_POWERS = np.array([10.0**n for n in range(23)])
_INTEGER_POWERS = np.array([10**n for n in range(19)], dtype=np.int64)
_PAIRS = np.array([(48 + n % 10) << 8 | (48 + n // 10) for n in range(100)], dtype=np.int64)
_ONES = np.int64(0x0101010101010101)
_HIGHS = np.int64(-0x7F7F7F7F7F7F7F80)
_TRUE = np.int64(0x65757274)
_NULL = np.int64(0x6C6C756E)
_FALS = np.int64(0x736C6166)
_LOW_HALF = np.int64(0xFFFFFFFF)


@njit(inline="always")
def _skip_space(at: int, end: int) -> int:
    while at < end:
        byte: Any = load_byte(at, 0)
        if byte != 32 and byte != 10 and byte != 13 and byte != 9:
            break
        at += 1
    return at


@njit(inline="always")
def _interesting(at: int, end: int, limit: int) -> int:
    """Return the address of the next byte that is a quote, a backslash, a control character, or above 126; `end` or more if none.

    Eight bytes at a time while they lie before `limit`: the lowest bit that is set belongs to the first such byte; bits above
    it may be wrong.
    """
    while at + 8 <= limit:
        word: Any = load_word(at, 0)
        quote, slash, last = word ^ (_ONES * 34), word ^ (_ONES * 92), word ^ (_ONES * 127)
        found = ((quote - _ONES) & ~quote) | ((slash - _ONES) & ~slash) | ((last - _ONES) & ~last)
        found = (found | ((word - _ONES * 32) & ~word) | word) & _HIGHS
        if found != 0:
            return at + (trailing_zeros(found) >> 3)
        at += 8
        if at > end:
            return end
    while at < end:
        byte: Any = load_byte(at, 0)
        if byte == 34 or byte < 32 or byte > 126 or byte == 92:
            return at
        at += 1
    return at


@njit(inline="always")
def _string_end(at: int, end: int, limit: int) -> int:
    """Return the address of the closing quote; -1 when a byte is not plain ASCII or it does not end."""
    at = _interesting(at, end, limit)
    return at if at < end and load_byte(at, 0) == 34 else -1


@njit
def _wide(at: int, end: int) -> int:
    """Return how many bytes the valid UTF-8 sequence at `at` has, of a character beyond ASCII; 0 if it is none."""
    first: Any = load_byte(at, 0)
    size = 2 if 0xC2 <= first <= 0xDF else 3 if 0xE0 <= first <= 0xEF else 4 if 0xF0 <= first <= 0xF4 else 0
    if size == 0 or at + size > end:
        return 0
    for k in range(1, size):
        if load_byte(at, k) & 0xC0 != 0x80:
            return 0
    second: Any = load_byte(at, 1)
    if (first == 0xE0 and second < 0xA0) or (first == 0xED and second > 0x9F):
        return 0
    if (first == 0xF0 and second < 0x90) or (first == 0xF4 and second > 0x8F):
        return 0
    return size


@njit
def _hex4(at: int) -> int:
    """Return the number of four hexadecimal digits, -1 if one is none."""
    found = np.int64(0)
    for k in range(4):
        byte: Any = load_byte(at, k)
        low = byte | 32
        if 48 <= byte <= 57:
            found = found << 4 | (byte - 48)
        elif 97 <= low <= 102:
            found = found << 4 | (low - 87)
        else:
            return -1
    return found


@njit
def _any_string_end(at: int, end: int, limit: int) -> Any:
    """Return (address of the closing quote, whether there are escapes) of any string; the address is -1 where it is in doubt."""
    has_escapes = False
    while True:
        at = _interesting(at, end, limit)
        if at >= end:
            return np.int64(-1), has_escapes
        byte: Any = load_byte(at, 0)
        if byte == 34:
            return at, has_escapes
        if byte < 32:
            return np.int64(-1), has_escapes
        if byte == 127:
            at += 1
        elif byte == 92:
            has_escapes = True
            if at + 2 > end:
                return np.int64(-1), has_escapes
            escaped: Any = load_byte(at, 1)
            if escaped == 117:
                code = _hex4(at + 2) if at + 6 <= end else np.int64(-1)
                if code < 0 or 0xD800 <= code <= 0xDFFF:
                    return np.int64(-1), has_escapes
                at += 6
            elif _plain_escape(escaped) >= 0:
                at += 2
            else:
                return np.int64(-1), has_escapes
        else:
            size = _wide(at, end)
            if size == 0:
                return np.int64(-1), has_escapes
            at += size


@njit
def _plain_escape(byte: int) -> int:
    """Return what stands for a backslash and this byte, -1 if nothing does."""
    if byte == 34 or byte == 92 or byte == 47:
        return byte
    if byte == 110:
        return 10
    if byte == 116:
        return 9
    if byte == 114:
        return 13
    if byte == 98:
        return 8
    if byte == 102:
        return 12
    return -1


@njit
def _unescape(at: int, close: int, out: int) -> int:
    """Write the text of a string that `_any_string_end` has accepted; return its size, which is smaller than the string's."""
    size = np.int64(0)
    while at < close:
        byte: Any = load_byte(at, 0)
        if byte != 92:
            store_byte(out, size, byte)
            at += 1
            size += 1
            continue
        escaped: Any = load_byte(at, 1)
        if escaped != 117:
            store_byte(out, size, _plain_escape(escaped))
            at += 2
            size += 1
            continue
        code = _hex4(at + 2)
        at += 6
        if code < 0x80:
            store_byte(out, size, code)
            size += 1
        elif code < 0x800:
            store_byte(out, size, 0xC0 | code >> 6)
            store_byte(out, size + 1, 0x80 | (code & 63))
            size += 2
        else:
            store_byte(out, size, 0xE0 | code >> 12)
            store_byte(out, size + 1, 0x80 | (code >> 6 & 63))
            store_byte(out, size + 2, 0x80 | (code & 63))
            size += 3
    return size


@njit
def _name_end(at: int, end: int, limit: int) -> int:
    """Return the address behind a name and its colon; -1 where there is none."""
    at = _skip_space(at, end)
    if at >= end or load_byte(at, 0) != 34:
        return -1
    close, _ = _any_string_end(at + 1, end, limit)
    if close < 0:
        return -1
    at = _skip_space(close + 1, end)
    return at + 1 if at < end and load_byte(at, 0) == 58 else -1


@njit
def _nested_end(at: int, end: int, limit: int) -> int:
    """Return the address behind the object or array at `at`; -1 where it is malformed, deep, or has a number in doubt."""
    stack, depth, wants_value = np.int64(0), 0, True
    while True:
        at = _skip_space(at, end)
        if at >= end:
            return -1
        byte: Any = load_byte(at, 0)
        if wants_value:
            wants_value = False
            if byte == 123 or byte == 91:
                if depth == _MAX_DEPTH:
                    return -1
                stack = stack << 1 | (1 if byte == 123 else 0)
                depth += 1
                at = _skip_space(at + 1, end)
                if at >= end:
                    return -1
                if load_byte(at, 0) != (125 if stack & 1 else 93):
                    wants_value = True
                    if stack & 1:
                        at = _name_end(at, end, limit)
                        if at < 0:
                            return -1
            elif byte == 34:
                close, _ = _any_string_end(at + 1, end, limit)
                if close < 0:
                    return -1
                at = close + 1
            elif byte == 45 or 48 <= byte <= 57:
                _, _, at = _number(at, end)
                if at < 0:
                    return -1
            else:
                word = _word(at, end)
                if word == 0:
                    return -1
                at += 5 if word == 2 else 4
        elif byte == 44:
            wants_value = True
            at += 1
            if stack & 1:
                at = _name_end(at, end, limit)
                if at < 0:
                    return -1
        elif byte == (125 if stack & 1 else 93):
            at += 1
            stack >>= 1
            depth -= 1
            if depth == 0:
                return at
        else:
            return -1


@njit(inline="always")
def _word(at: int, end: int) -> int:
    """Return 1 for true, 2 for false, 3 for null, else 0."""
    if at + 4 > end:
        return 0
    found = load_byte(at, 0) | load_byte(at, 1) << 8 | load_byte(at, 2) << 16 | load_byte(at, 3) << 24
    if found == _TRUE:
        return 1
    if found == _NULL:
        return 3
    if found == _FALS and at + 5 <= end and load_byte(at, 4) == 101:
        return 2
    return 0


@njit(inline="always")
def _number(at: int, end: int) -> Any:
    """Return (digits as an integer with its sign, digits behind the point or -1 without one, address after it).

    The address is -1 where it is no number, has an exponent or too many digits, or is a negative zero.
    """
    is_negative: Any = load_byte(at, 0) == 45
    if is_negative:
        at += 1
    first = at
    mantissa = np.int64(0)
    while at < end:
        digit = load_byte(at, 0) - 48
        if digit < 0 or digit > 9:
            break
        mantissa = mantissa * 10 + digit
        at += 1
    digits = at - first
    if digits == 0 or (digits > 1 and load_byte(first, 0) == 48):
        return np.int64(0), np.int64(0), np.int64(-1)
    scale = np.int64(-1)
    if at < end and load_byte(at, 0) == 46:
        at += 1
        first = at
        while at < end:
            digit = load_byte(at, 0) - 48
            if digit < 0 or digit > 9:
                break
            mantissa = mantissa * 10 + digit
            at += 1
        scale = at - first
        digits += scale
        if scale == 0:
            return np.int64(0), np.int64(0), np.int64(-1)
    if digits > _MAX_DIGITS or (is_negative and mantissa == 0):
        return np.int64(0), np.int64(0), np.int64(-1)
    if at < end and load_byte(at, 0) | 32 == 101:
        return np.int64(0), np.int64(0), np.int64(-1)
    return (-mantissa if is_negative else mantissa), scale, at


@njit(inline="always")
def _field(start: int, stop: int, names: int, name_ends: Any, name_fields: Any) -> int:
    """Return the number of the field with this name, -1 for one that is not used."""
    for name in range(len(name_ends)):
        begin = name_ends[name - 1] if name > 0 else np.int64(0)
        size = name_ends[name] - begin
        if size != stop - start:
            continue
        same = True
        for k in range(size):
            if load_byte(names, begin + k) != load_byte(start, k):
                same = False
                break
        if same:
            return name_fields[name]
    return -1


@njit(inline="always")
def _may_mean(start: int, stop: int, names: int, name_ends: Any, name_fields: Any, folded: Any) -> bool:
    """Return whether a name is that of a field that is looked up in any spelling, but for upper and lower case."""
    for name in range(len(name_ends)):
        begin = name_ends[name - 1] if name > 0 else np.int64(0)
        if folded[name_fields[name]] == 0 or name_ends[name] - begin != stop - start:
            continue
        same = True
        for k in range(stop - start):
            byte: Any = load_byte(names, begin + k)
            other: Any = load_byte(start, k)
            if byte != other and ((byte ^ other) != 32 or not 97 <= (byte | 32) <= 122):
                same = False
                break
        if same:
            return True
    return False


@njit(inline="always")
def _is_at(pattern: int, size: int, at: int) -> bool:
    """Return whether the `size` > 0 bytes at both addresses are the same, if eight bytes from the last one on can be read."""
    k = np.int64(0)
    while k + 8 <= size:
        if load_word(pattern, k) != load_word(at, k):
            return False
        k += 8
    rest = size - k
    return rest == 0 or (load_word(pattern, k) ^ load_word(at, k)) << ((8 - rest) << 3) == 0


@njit(
    types.void(IN_U8, IN_I64, IN_I32, IN_I64, IN_U8, IN_I64, IN_I64, IN_I64, IN_I64, B1, B2, I2, F2, I2, U8),
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
    name_fields: Any,
    kinds: Any,
    folded: Any,
    certain: Any,
    nulls: Any,
    ints: Any,
    floats: Any,
    lengths: Any,
    scratch: Any,
) -> None:
    """Decode the used fields of N rows; `certain` says of which.

    names: the used names, joined, where each ends, and the field that each names (a field may have two). folded[F]: 1 for a
    field that is looked for in any spelling: a row with one that is not among the names is not certain.
    nulls, ints (numbers, booleans, addresses of strings), floats (may share memory with ints), lengths (of strings): [F, N];
    the length of a string that is not plain is -1 - length. scratch: room for all rows; strings with escapes are written there.

    Rows mostly have the same fields in the same places: the text of a name with its quotes and colon is kept per place and
    tried first.
    """
    count = len(kinds)
    base = np.int64(buffer.ctypes.data)
    limit = base + len(buffer)
    all_names = np.int64(names.ctypes.data)
    known_at = np.zeros(_MAX_PLACES, np.int64)
    known_sizes = np.zeros(_MAX_PLACES, np.int64)
    known_fields = np.zeros(_MAX_PLACES, np.int64)
    full = (np.int64(1) << count) - 1
    spare: Any = np.int64(scratch.ctypes.data)
    for i in range(len(starts)):
        seen = np.int64(0)
        is_sure = False
        place = 0
        at = base + starts[i]
        end = at + sizes[i]
        if sizes[i] >= 2 and times[i] >= 0 and load_byte(at, 0) == 123:
            at += 1
            is_sure = at + 1 == end and load_byte(at, 0) == 125
            while not is_sure:
                size = known_sizes[place] if place < _MAX_PLACES else np.int64(0)
                if size > 0 and at + size < end and at + size + 8 <= limit and _is_at(known_at[place], size, at):
                    f = known_fields[place]
                    at += size
                else:
                    at = _skip_space(at, end)
                    if at >= end or load_byte(at, 0) != 34:
                        break
                    first = at
                    name_end = _string_end(at + 1, end, limit)
                    if name_end < 0:
                        break
                    f = _field(at + 1, name_end, all_names, name_ends, name_fields)
                    if f < 0 and _may_mean(at + 1, name_end, all_names, name_ends, name_fields, folded):
                        break
                    at = _skip_space(name_end + 1, end)
                    if at >= end or load_byte(at, 0) != 58:
                        break
                    at += 1
                    if place < _MAX_PLACES and at == name_end + 2 and at + 8 <= limit:
                        known_at[place] = first
                        known_sizes[place] = at - first
                        known_fields[place] = f
                place += 1
                byte = load_byte(at, 0) if at < end else np.int64(32)
                if byte <= 32:
                    at = _skip_space(at, end)
                    if at >= end:
                        break
                    byte = load_byte(at, 0)
                kind = np.int64(-1)
                if f >= 0:
                    if (seen >> f) & 1:
                        break
                    seen |= np.int64(1) << f
                    kind = kinds[f]
                if byte == 34:
                    has_escapes, is_plain = False, True
                    close: Any = _string_end(at + 1, end, limit)
                    if close < 0:
                        is_plain = False
                        close, has_escapes = _any_string_end(at + 1, end, limit)
                        if close < 0:
                            break
                    if f >= 0:
                        if kind != STRING:
                            break
                        begin: Any = at + 1
                        length: Any = close - at - 1
                        if has_escapes:
                            length = _unescape(begin, close, spare)
                            begin = spare
                            spare = spare + length
                        ints[f, i] = begin
                        lengths[f, i] = length if is_plain else -1 - length
                        nulls[f, i] = False
                    at = close + 1
                elif byte == 123 or byte == 91:
                    if f >= 0:
                        break
                    behind: Any = _nested_end(at, end, limit)
                    if behind < 0:
                        break
                    at = behind
                elif byte == 45 or 48 <= byte <= 57:
                    value, scale, after = _number(at, end)
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
                    word = _word(at, end)
                    if word == 0 or (f >= 0 and word != 3 and kind != BOOLEAN):
                        break
                    at += 5 if word == 2 else 4
                    if f >= 0:
                        nulls[f, i] = word == 3
                        ints[f, i] = 1 if word == 1 else 0
                        if kind == STRING:
                            lengths[f, i] = 0
                if at >= end:
                    break
                byte = load_byte(at, 0)
                if byte <= 32:
                    at = _skip_space(at, end)
                    if at >= end:
                        break
                    byte = load_byte(at, 0)
                at += 1
                if byte == 44:
                    continue
                is_sure = byte == 125 and at == end
                break
        certain[i] = is_sure
        if is_sure and seen == full:
            continue
        for f in range(count):
            if not is_sure or not (seen >> f) & 1:
                nulls[f, i] = True
                ints[f, i] = 0
                if kinds[f] == STRING:
                    lengths[f, i] = 0


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
def _put_integer(out: int, at: int, value: int) -> int:
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
def _put_double(out: int, at: int, value: float) -> int:
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
        at = _put_integer(out, at, digits)
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
    at = _put_integer(out, at, whole)
    store_byte(out, at, 46)
    return _put_digits(out, at + 1 + places, digits - whole * scale, places)


@njit(inline="always")
def _put_span(source: int, size: int, out: int, at: int) -> int:
    """Copy bytes, in words that may overlap; return the position after them."""
    if size >= 8:
        k = np.int64(0)
        while k + 8 < size:
            store_word(out, at + k, load_word(source, k))
            k += 8
        store_word(out, at + size - 8, load_word(source, size - 8))
    elif size >= 4:
        store_half(out, at, load_half(source, 0))
        store_half(out, at + size - 4, load_half(source, size - 4))
    else:
        for k in range(size):
            store_byte(out, at + k, load_byte(source, k))
    return at + size


@njit
def _put_escaped(source: int, size: int, out: int, at: int) -> int:
    """Write a text as JSON writes it; return the position after it. It takes up to six times its size."""
    for k in range(size):
        byte: Any = load_byte(source, k)
        if byte == 34 or byte == 92:
            store_byte(out, at, 92)
            store_byte(out, at + 1, byte)
            at += 2
        elif byte >= 32:
            store_byte(out, at, byte)
            at += 1
        else:
            short = (
                98 if byte == 8 else 116 if byte == 9 else 110 if byte == 10 else 102 if byte == 12 else 114 if byte == 13 else 0
            )
            store_byte(out, at, 92)
            if short:
                store_byte(out, at + 1, short)
                at += 2
            else:
                store_word(out, at + 1, 0x303075)
                store_byte(out, at + 4, 48 + (byte >> 4))
                low = byte & 15
                store_byte(out, at + 5, 48 + low if low < 10 else 87 + low)
                at += 6
    return at


@njit(inline="always")
def _put_label(source: int, size: int, out: int, at: int) -> int:
    """Copy bytes in whole words, up to seven bytes too many; return the position after those meant."""
    k = np.int64(0)
    while k < size:
        store_word(out, at + k, load_word(source, k))
        k += 8
    return at + size


@njit(
    types.int64(IN_I64, IN_I64, IN_I32, IN_U8, IN_I64, IN_I64, IN_I2, U8, I64, I64, I32),
    cache=True,
    nogil=True,
    error_model="numpy",
)
def write(
    rows: Any,
    key_starts: Any,
    key_sizes: Any,
    labels: Any,
    label_ends: Any,
    kinds: Any,
    columns: Any,
    out: Any,
    out_keys: Any,
    out_values: Any,
    out_sizes: Any,
) -> int:
    """Encode R of N rows as key and JSON object, one after the other; return the bytes written.

    key_starts: addresses [N]; key_sizes: [N], -1 is null. labels: what stands before each value (`{"a":`, `,"b":`), joined;
    label_ends: int64[F]; SPARE_BYTES lie behind the last one. columns: int64[F, 4], addresses of the nulls (0: none is null),
    data and sizes of each column, and of which texts are not plain (0: none).
    out: room for all rows and SPARE_BYTES. out_keys, out_values: positions [R]; out_sizes: of the values [R], -1 where unsure.
    """
    target = np.int64(out.ctypes.data)
    texts = np.int64(labels.ctypes.data)
    count = len(kinds)
    position = np.int64(0)
    for r in range(len(rows)):
        i = rows[r]
        out_keys[r] = position
        begin = position
        if key_sizes[i] > 0:
            begin = _put_span(key_starts[i], np.int64(key_sizes[i]), target, position)
        at = begin
        label = np.int64(0)
        for f in range(count):
            at = _put_label(texts + label, label_ends[f] - label, target, at)
            label = label_ends[f]
            kind = kinds[f]
            data = columns[f, 1]
            if columns[f, 0] != 0 and load_byte(columns[f, 0], i) != 0:
                store_word(target, at, _NULL)
                at += 4
            elif kind == STRING:
                store_byte(target, at, 34)
                if columns[f, 3] != 0 and load_byte(columns[f, 3], i) != 0:
                    at = _put_escaped(load_word(data, i << 3), load_word(columns[f, 2], i << 3), target, at + 1)
                else:
                    at = _put_span(load_word(data, i << 3), load_word(columns[f, 2], i << 3), target, at + 1)
                store_byte(target, at, 34)
                at += 1
            elif kind == DOUBLE:
                at = _put_double(target, at, load_double(data, i << 3))
                if at < 0:
                    break
            elif kind == BOOLEAN:
                if load_byte(data, i) != 0:
                    store_word(target, at, _TRUE)
                    at += 4
                else:
                    store_word(target, at, _FALS | 101 << 32)
                    at += 5
            else:
                value: Any = load_word(data, i << 3)
                if value < 0:
                    store_byte(target, at, 45)
                    at += 1
                    value = -value
                    if value < 0:
                        at = np.int64(-1)
                        break
                at = _put_integer(target, at, value)
        if at < 0:
            out_sizes[r] = -1
            out_values[r] = position
            continue
        store_byte(target, at, 125)
        at += 1
        out_values[r] = begin
        out_sizes[r] = at - begin
        position = at
    return position


@njit(types.void(IN_I64, IN_I64, IN_U8, B1), cache=True, nogil=True)
def equals_text(begins: Any, lengths: Any, text: Any, found: Any) -> None:
    """Set found[i] where the span is this text, byte for byte."""
    size = len(text)
    wanted = np.int64(text.ctypes.data)
    for i in range(len(begins)):
        same = lengths[i] == size
        if same:
            for k in range(size):
                if load_byte(begins[i], k) != load_byte(wanted, k):
                    same = False
                    break
        found[i] = same
