"""JSON text scanned: ends of strings and of nested values, escapes, numbers; -1 where it is in doubt.

`end` is where the value's text ends, `limit` until where a whole word may be loaded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from logflume.log.memory import load_byte, store_byte

from .spans import interesting, wide

TRUE = np.int64(0x65757274)
NULL = np.int64(0x6C6C756E)
FALS = np.int64(0x736C6166)
_MAX_DIGITS = 15
_MAX_DEPTH = 60


@njit(inline="always")
def skip_space(at: int, end: int) -> int:
    while at < end:
        byte: Any = load_byte(at, 0)
        if byte != 32 and byte != 10 and byte != 13 and byte != 9:
            break
        at += 1
    return at


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


@njit(inline="always")
def string_end(at: int, end: int, limit: int) -> int:
    """Return the address of the closing quote; -1 when a byte is not plain ASCII or it does not end."""
    at = interesting(at, end, limit)
    return at if at < end and load_byte(at, 0) == 34 else -1


@njit
def any_string_end(at: int, end: int, limit: int) -> Any:
    """Return (address of the closing quote, whether there are escapes) of any string; the address is -1 where it is in doubt."""
    has_escapes = False
    while True:
        at = interesting(at, end, limit)
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
            size = wide(at, end)
            if size == 0:
                return np.int64(-1), has_escapes
            at += size


@njit
def unescape(at: int, close: int, out: int) -> int:
    """Write the text of a string that `any_string_end` has accepted; return its size, which is smaller than the string's."""
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
    at = skip_space(at, end)
    if at >= end or load_byte(at, 0) != 34:
        return -1
    close, _ = any_string_end(at + 1, end, limit)
    if close < 0:
        return -1
    at = skip_space(close + 1, end)
    return at + 1 if at < end and load_byte(at, 0) == 58 else -1


@njit
def nested_end(at: int, end: int, limit: int) -> int:
    """Return the address behind the object or array at `at`; -1 where it is malformed, deep, or has a number in doubt."""
    stack, depth, wants_value = np.int64(0), 0, True
    while True:
        at = skip_space(at, end)
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
                at = skip_space(at + 1, end)
                if at >= end:
                    return -1
                if load_byte(at, 0) != (125 if stack & 1 else 93):
                    wants_value = True
                    if stack & 1:
                        at = _name_end(at, end, limit)
                        if at < 0:
                            return -1
            elif byte == 34:
                close, _ = any_string_end(at + 1, end, limit)
                if close < 0:
                    return -1
                at = close + 1
            elif byte == 45 or 48 <= byte <= 57:
                _, _, at = number(at, end)
                if at < 0:
                    return -1
            else:
                word = literal(at, end)
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
def literal(at: int, end: int) -> int:
    """Return 1 for true, 2 for false, 3 for null, else 0."""
    if at + 4 > end:
        return 0
    found = load_byte(at, 0) | load_byte(at, 1) << 8 | load_byte(at, 2) << 16 | load_byte(at, 3) << 24
    if found == TRUE:
        return 1
    if found == NULL:
        return 3
    if found == FALS and at + 5 <= end and load_byte(at, 4) == 101:
        return 2
    return 0


@njit(inline="always")
def number(at: int, end: int) -> Any:
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
