"""Rows as MessagePack arrays <-> columns: the kernels, which go through the steps of a layout (`log.schemas.row_format`).

As in `json_rows`: what a record has that is not held exactly makes it uncertain, never wrong, and the serde takes it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

from logflume.log.memory import load_byte, load_word, store_byte

from .binary import BROKEN, PLAIN, starts_with, text_state
from .signatures import B1, B2, F2, I2, IN_I2, IN_I32, IN_I64, IN_U8, WRITE
from .spans import put_span

BOOLEAN, INT, LONG, DOUBLE, STRING, WHOLE, BYTES = range(7)
_COLUMN_STRING = 4
_NULL, _FALSE, _TRUE, _BYTES, _DOUBLE, _TEXT = 0xC0, 0xC2, 0xC3, 0xC4, 0xCB, 0xD9
_NO_VALUE = np.int64(0)


@njit
def _big(at: int, size: int) -> int:
    """Return up to eight bytes as a big-endian number."""
    value = np.int64(0)
    for k in range(size):
        value = value << 8 | load_byte(at, k)
    return value


@njit
def _length(at: int, end: int, first: int) -> Any:
    """Return the size of what stands behind a head (`first`: that of one byte, those of two and four follow), and where it
    begins; that is -1 where it does not fit."""
    width = np.int64(1) << (load_byte(at, 0) - first)
    if end - at - 1 < width:
        return _NO_VALUE, np.int64(-1)
    size = _big(at + 1, width)
    at += 1 + width
    if size > end - at:
        return _NO_VALUE, np.int64(-1)
    return size, at


@njit
def _text(at: int, end: int) -> Any:
    """As `_length`, of a text; -1 where there is none."""
    first: Any = load_byte(at, 0)
    if 0xA0 <= first < 0xC0:
        size = first & 31
        return (size, at + 1) if size <= end - at - 1 else (_NO_VALUE, np.int64(-1))
    if _TEXT <= first <= _TEXT + 2:
        return _length(at, end, _TEXT)
    return _NO_VALUE, np.int64(-1)


@njit
def _integer(at: int, end: int) -> Any:
    """Return a number of 64 bits and the address behind it, -1 where there is none."""
    first: Any = load_byte(at, 0)
    if first < 0x80:
        return first, at + 1
    if first >= 0xE0:
        return first - 256, at + 1
    if first < 0xCC or first > 0xD3:
        return _NO_VALUE, np.int64(-1)
    width = np.int64(1) << (first & 3)
    if end - at - 1 < width:
        return _NO_VALUE, np.int64(-1)
    value = _big(at + 1, width)
    if first >= 0xD0:
        empty = 64 - 8 * width
        value = (value << empty) >> empty
    elif value < 0:
        return _NO_VALUE, np.int64(-1)
    return value, at + 1 + width


@njit
def _skip(at: int, end: int) -> int:
    """Return the address behind a value, -1 where it is cut off. Each step takes a byte at least."""
    left = np.int64(1)
    while left > 0:
        if left > end - at:
            return np.int64(-1)
        first: Any = load_byte(at, 0)
        left -= 1
        more = np.int64(0)
        size = np.int64(0)
        if first < 0x80 or first >= 0xE0 or first in (_NULL, _FALSE, _TRUE):
            pass
        elif first < 0x90:
            left += 2 * (first & 15)
        elif first < 0xA0:
            left += first & 15
        elif first < 0xC0:
            size = first & 31
        elif first == 0xC1:
            return np.int64(-1)
        elif first < 0xCA:
            more = np.int64(1) << ((first - 0xC4) % 3)
            size = np.int64(first >= 0xC7)
        elif first < 0xCC:
            size = np.int64(4) << (first - 0xCA)
        elif first < 0xD4:
            size = np.int64(1) << (first & 3)
        elif first < 0xD9:
            size = 1 + (np.int64(1) << (first - 0xD4))
        elif first < 0xDC:
            more = np.int64(1) << (first - 0xD9)
        else:
            more = np.int64(2) << (first & 1)
        at += 1
        if more > 0:
            if more > end - at:
                return np.int64(-1)
            count = _big(at, more)
            at += more
            if first < 0xDC:
                size += count
            else:
                left += count if first < 0xDE else 2 * count
        if size > end - at:
            return np.int64(-1)
        at += size
    return at


@njit(
    types.int64(IN_U8, IN_I64, IN_I32, IN_U8, IN_I2, IN_I64, IN_I64, IN_I64, IN_I64, B1, B1, B2, I2, F2, I2),
    cache=True,
    nogil=True,
    error_model="numpy",
)
def extract(
    buffer: Any,
    starts: Any,
    sizes: Any,
    head: Any,
    steps: Any,
    symbols: Any,
    symbol_sizes: Any,
    numbers: Any,
    kinds: Any,
    taken: Any,
    certain: Any,
    nulls: Any,
    ints: Any,
    floats: Any,
    lengths: Any,
) -> int:
    """Decode those of N records that begin with `head` and are not `taken` yet; return how many, and say of which it is certain.

    As `avro_rows.extract`; doubles go into `ints` by their bits, where `floats` has them too.
    """
    base = np.int64(buffer.ctypes.data)
    limit = base + len(buffer)
    before, before_size = np.int64(head.ctypes.data), np.int64(len(head))
    count = np.int64(0)
    for i in range(len(starts)):
        if taken[i] or sizes[i] < 0:
            continue
        at = base + starts[i]
        end = at + sizes[i]
        if not starts_with(at, end, before, before_size):
            continue
        at += before_size
        taken[i] = True
        count += 1
        for f in range(len(kinds)):
            nulls[f, i] = True
            ints[f, i] = 0
            if kinds[f] >= _COLUMN_STRING:
                lengths[f, i] = 0
        for step in range(len(steps)):
            operation, f = steps[step, 0], steps[step, 1]
            if at < 0 or at >= end:
                at = np.int64(-1)
                break
            first: Any = load_byte(at, 0)
            if f < 0:
                at = _skip(at, end)
            elif first == _NULL:
                at += 1
            elif operation in (INT, LONG):  # numba compares one by one
                value, at = _integer(at, end)
                if operation == INT and not -2147483648 <= value <= 2147483647:
                    at = np.int64(-1)
                nulls[f, i] = False
                ints[f, i] = value
            elif operation == STRING:
                size, at = _text(at, end)
                if at >= 0:
                    state = text_state(at, at + size, limit)
                    nulls[f, i] = False
                    ints[f, i] = at
                    lengths[f, i] = size if state == PLAIN else -1 - size
                    at = np.int64(-1) if state == BROKEN else at + size
            elif operation == DOUBLE:
                if first == _DOUBLE and end - at > 8:
                    nulls[f, i] = False
                    ints[f, i] = _big(at + 1, 8)
                    at += 9
                else:
                    at = np.int64(-1)
            elif operation == BOOLEAN:
                nulls[f, i] = False
                ints[f, i] = first & 1
                at = at + 1 if first in (_FALSE, _TRUE) else np.int64(-1)
            elif operation == BYTES:
                if _BYTES <= first <= _BYTES + 2:
                    size, at = _length(at, end, _BYTES)
                    nulls[f, i] = False
                    ints[f, i] = at
                    lengths[f, i] = size
                    at = at + size if at >= 0 else at
                else:
                    at = np.int64(-1)
            else:
                behind = _skip(at, end)
                nulls[f, i] = False
                ints[f, i] = at
                lengths[f, i] = behind - at
                at = behind
        certain[i] = at == end
    return count


@njit
def _put_big(out: int, at: int, value: int, size: int) -> int:
    """Write the low bytes of a number, the highest first; return the position after them."""
    for k in range(size):
        store_byte(out, at + k, value >> (8 * (size - 1 - k)))
    return at + size


@njit
def _put_integer(out: int, at: int, value: int) -> int:
    """Write a number in as few bytes as it takes; return the position after it."""
    if -32 <= value < 128:
        store_byte(out, at, value)
        return at + 1
    width = np.int64(0)
    if value >= 0:
        while width < 3 and value >> (8 << width) != 0:
            width += 1
        store_byte(out, at, 0xCC + width)
    else:
        while width < 3 and value < -(np.int64(1) << ((8 << width) - 1)):
            width += 1
        store_byte(out, at, 0xD0 + width)
    return _put_big(out, at + 1, value, np.int64(1) << width)


@njit
def _put_length(out: int, at: int, size: int, first: int) -> int:
    """Write the head of a text or of bytes; return the position after it."""
    width = np.int64(0)
    while width < 2 and size >> (8 << width) != 0:
        width += 1
    store_byte(out, at, first + width)
    return _put_big(out, at + 1, size, np.int64(1) << width)


@njit(
    WRITE,
    cache=True,
    nogil=True,
    error_model="numpy",
)
def write(
    rows: Any,
    key_starts: Any,
    key_sizes: Any,
    head: Any,
    steps: Any,
    columns: Any,
    out: Any,
    out_keys: Any,
    out_values: Any,
    out_sizes: Any,
) -> int:
    """Encode R of N rows as key, head and values, one after the other; return the bytes written. As `avro_rows.write`."""
    target = np.int64(out.ctypes.data)
    before, before_size = np.int64(head.ctypes.data), np.int64(len(head))
    position = np.int64(0)
    for r in range(len(rows)):
        i = rows[r]
        out_keys[r] = position
        begin = position
        if key_sizes[i] > 0:
            begin = put_span(key_starts[i], np.int64(key_sizes[i]), target, position)
        at = put_span(before, before_size, target, begin)
        for step in range(len(steps)):
            operation, f = steps[step, 0], steps[step, 1]
            if columns[f, 0] != 0 and load_byte(columns[f, 0], i) != 0:
                store_byte(target, at, _NULL)
                at += 1
                continue
            data = columns[f, 1]
            if operation == BOOLEAN:
                store_byte(target, at, _TRUE if load_byte(data, i) != 0 else _FALSE)
                at += 1
            elif operation == DOUBLE:
                store_byte(target, at, _DOUBLE)
                at = _put_big(target, at + 1, load_word(data, i << 3), 8)
            elif operation in (INT, LONG):
                value: Any = load_word(data, i << 3)
                at = _put_integer(target, at, value)
            else:
                size: Any = load_word(columns[f, 2], i << 3)
                if size < 0:
                    at = np.int64(-1)
                    break
                if operation == STRING and size < 32:
                    store_byte(target, at, 0xA0 + size)
                    at += 1
                elif operation != WHOLE:
                    at = _put_length(target, at, size, _TEXT if operation == STRING else _BYTES)
                at = put_span(load_word(data, i << 3), size, target, at)
        if at < 0:
            out_sizes[r] = -1
            out_values[r] = position
            continue
        out_values[r] = begin
        out_sizes[r] = at - begin
        position = at
    return position
