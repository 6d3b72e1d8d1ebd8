"""Texts as spans: comparison, search, change of case, numbers to text and back, keys. Needs numba.

A span is an address and a size in bytes, as in `json_rows`: plain ASCII, unless it is a constant that is only compared with. The
order of UTF-8 bytes is that of code points, so bytes decide. Kernels that write take `out` with room for all they write.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

from logflume.log.memory import load_byte, store_byte

from .signatures import B1, I64, IN_I32, IN_I64, IN_U8, U8

_I8 = types.Array(types.int8, 1, "C")

STARTS, ENDS, CONTAINS = 0, 1, 2
"""What `search` looks for."""

_MAX_PARSED_DIGITS = 18


@njit(inline="always")
def _order(a: int, a_size: int, b: int, b_size: int) -> int:
    for k in range(min(a_size, b_size)):
        difference: Any = load_byte(a, k) - load_byte(b, k)
        if difference != 0:
            return 1 if difference > 0 else -1
    return 0 if a_size == b_size else (1 if a_size > b_size else -1)


@njit(types.void(IN_I64, IN_I64, IN_I64, IN_I64, _I8), cache=True, nogil=True)
def compare(starts: Any, sizes: Any, other_starts: Any, other_sizes: Any, order: Any) -> None:
    """Set order[i] to -1, 0 or 1 as the span comes before, equals or comes after the other one."""
    for i in range(len(order)):
        order[i] = _order(starts[i], sizes[i], other_starts[i], other_sizes[i])


@njit(types.void(IN_I64, IN_I64, types.int64, types.int64, _I8), cache=True, nogil=True)
def differ_from(starts: Any, sizes: Any, text: int, size: int, order: Any) -> None:
    """Set order[i] to 0 where the span is this text, else to 1."""
    for i in range(len(order)):
        order[i] = 1
        if sizes[i] == size:
            order[i] = _order(starts[i], size, text, size)


@njit(types.void(IN_I64, IN_I64, IN_I64, IN_I64, types.int64, B1), cache=True, nogil=True)
def search(starts: Any, sizes: Any, part_starts: Any, part_sizes: Any, what: int, found: Any) -> None:
    """Set found[i]: whether the span starts with, ends with or contains the other one."""
    for i in range(len(found)):
        found[i] = False
        room = sizes[i] - part_sizes[i]
        if room < 0:
            continue
        first = room if what == ENDS else np.int64(0)
        last = np.int64(0) if what == STARTS else room
        for at in range(first, last + 1):
            if _order(starts[i] + at, part_sizes[i], part_starts[i], part_sizes[i]) == 0:
                found[i] = True
                break


@njit(types.void(IN_I64, IN_I64, U8), cache=True, nogil=True)
def copy_texts(starts: Any, sizes: Any, out: Any) -> None:
    """Copy texts one behind the other."""
    target = np.int64(out.ctypes.data)
    for i in range(len(starts)):
        for k in range(sizes[i]):
            store_byte(target, k, load_byte(starts[i], k))
        target += sizes[i]


@njit(types.boolean(IN_I64, IN_I64, B1), cache=True, nogil=True)
def find_special(starts: Any, sizes: Any, found: Any) -> bool:
    """Set found[i] where a text is not plain: not ASCII, or not as JSON writes it; return whether one is."""
    some = False
    for i in range(len(found)):
        found[i] = False
        for k in range(sizes[i]):
            byte: Any = load_byte(starts[i], k)
            if byte < 32 or byte > 126 or byte == 34 or byte == 92:
                found[i] = some = True
                break
    return some


@njit(types.void(IN_I64, IN_I64, types.int64, types.int64, types.int64, U8, I64), cache=True, nogil=True)
def shift_case(starts: Any, sizes: Any, first: int, last: int, step: int, out: Any, out_starts: Any) -> None:
    """Copy the spans, with `step` added to the bytes first..last; out_starts: addresses in `out`."""
    target = np.int64(out.ctypes.data)
    at = np.int64(0)
    for i in range(len(starts)):
        out_starts[i] = target + at
        for k in range(sizes[i]):
            byte: Any = load_byte(starts[i], k)
            store_byte(target, at + k, byte + step if first <= byte <= last else byte)
        at += sizes[i]


@njit(types.void(IN_I64, IN_I64, IN_I64, IN_I64, U8, I64), cache=True, nogil=True)
def join(starts: Any, sizes: Any, other_starts: Any, other_sizes: Any, out: Any, out_starts: Any) -> None:
    """Write each span followed by the other one; out_starts: addresses in `out`."""
    target = np.int64(out.ctypes.data)
    at = np.int64(0)
    for i in range(len(starts)):
        out_starts[i] = target + at
        for k in range(sizes[i]):
            store_byte(target, at + k, load_byte(starts[i], k))
        at += sizes[i]
        for k in range(other_sizes[i]):
            store_byte(target, at + k, load_byte(other_starts[i], k))
        at += other_sizes[i]


@njit(types.void(IN_I64, U8, I64, I64), cache=True, nogil=True)
def integer_texts(values: Any, out: Any, out_starts: Any, out_sizes: Any) -> None:
    """Write each integer in decimal; `out` has 20 bytes for each."""
    target = np.int64(out.ctypes.data)
    for i in range(len(values)):
        end = target + 20 * (i + 1)
        at = end
        value = values[i]
        rest = np.uint64(value) if value >= 0 else np.uint64(0) - np.uint64(value)
        while True:
            at -= 1
            store_byte(at, 0, np.int64(48) + np.int64(rest % np.uint64(10)))
            rest //= np.uint64(10)
            if rest == np.uint64(0):
                break
        if value < 0:
            at -= 1
            store_byte(at, 0, 45)
        out_starts[i] = at
        out_sizes[i] = end - at


@njit(types.void(IN_I64, IN_I64, types.int64, I64, B1), cache=True, nogil=True)
def parse_integers(starts: Any, sizes: Any, limit: int, values: Any, unsure: Any) -> None:
    """Read plain decimal integers of at most 18 digits and -limit <= value < limit; anything else is unsure."""
    for i in range(len(starts)):
        at, end = starts[i], starts[i] + sizes[i]
        is_negative = at < end and load_byte(at, 0) == 45
        if is_negative:
            at += 1
        value = np.int64(0)
        is_sure = 0 < end - at <= _MAX_PARSED_DIGITS
        while at < end and is_sure:
            digit = load_byte(at, 0) - 48
            is_sure = 0 <= digit <= 9
            value = value * 10 + digit
            at += 1
        value = -value if is_negative else value
        values[i] = value
        unsure[i] = not (is_sure and -limit <= value < limit)


@njit(types.void(IN_U8, IN_I64, IN_I32, types.int64, I64, I64, B1, B1), cache=True, nogil=True)
def text_keys(buffer: Any, starts: Any, sizes: Any, count: int, out_starts: Any, out_sizes: Any, nulls: Any, unsure: Any) -> None:
    """Read keys as texts: addresses and sizes; unsure where a byte is not plain ASCII."""
    base = np.int64(buffer.ctypes.data)
    for i in range(count):
        nulls[i] = sizes[i] < 0
        unsure[i] = False
        out_starts[i] = base + starts[i]
        out_sizes[i] = max(np.int64(sizes[i]), np.int64(0))
        for k in range(out_sizes[i]):
            byte: Any = load_byte(out_starts[i], k)
            if byte < 32 or byte > 126 or byte == 34 or byte == 92:
                unsure[i] = True
        if unsure[i]:
            out_sizes[i] = 0


@njit(types.void(IN_U8, IN_I64, IN_I32, types.int64, I64, B1, B1), cache=True, nogil=True)
def number_keys(buffer: Any, starts: Any, sizes: Any, width: int, out: Any, nulls: Any, unsure: Any) -> None:
    """Read keys of `width` (4 or 8) bytes as big-endian integers; unsure where the key has another size."""
    base = np.int64(buffer.ctypes.data)
    for i in range(len(starts)):
        nulls[i] = sizes[i] < 0
        unsure[i] = sizes[i] >= 0 and sizes[i] != width
        value = np.int64(0)
        if sizes[i] == width:
            for k in range(width):
                value = value << 8 | load_byte(base + starts[i], k)
            if width == 4:
                value = np.int64(np.int32(value))
        out[i] = value


@njit(types.void(IN_I64, types.int64, U8, I64), cache=True, nogil=True)
def write_number_keys(values: Any, width: int, out: Any, out_starts: Any) -> None:
    """Write integers as big-endian keys of `width` bytes; out_starts: addresses in `out`."""
    target = np.int64(out.ctypes.data)
    for i in range(len(values)):
        out_starts[i] = target + i * width
        for k in range(width):
            store_byte(target, i * width + k, values[i] >> ((width - 1 - k) << 3))
