"""Spans of bytes, as all kernels of formats take and write them: searched, checked, copied.

A span is an address in memory and a size in bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from logflume.log.memory import load_byte, load_half, load_word, store_byte, store_half, store_word, trailing_zeros

_ONES = np.int64(0x0101010101010101)
_HIGHS = np.int64(-0x7F7F7F7F7F7F7F80)


@njit(inline="always")
def interesting(at: int, end: int, limit: int) -> int:
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


@njit
def wide(at: int, end: int) -> int:
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


@njit(inline="always")
def put_span(source: int, size: int, out: int, at: int) -> int:
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
