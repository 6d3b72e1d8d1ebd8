"""What the kernels of binary forms share: varints, texts, single-precision numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from logflume.log.memory import load_byte, store_byte

from .spans import interesting, wide

PLAIN, SPECIAL, BROKEN = 0, 1, 2
"""What a text is: ASCII that JSON writes as it is; other UTF-8; no UTF-8."""

_POSITIVE = np.int64(0x7FFFFFFFFFFFFFFF)


@njit
def read_varint(at: int, end: int) -> Any:
    """Return (64 bits, the address behind); the address is -1 where it is cut off or longer than that."""
    if at < end:
        first: Any = load_byte(at, 0)
        if first < 128:
            return first, at + 1
    value, shift = np.int64(0), np.int64(0)
    while at < end:
        byte: Any = load_byte(at, 0)
        at += 1
        if shift == 63 and byte > 1:
            return np.int64(0), np.int64(-1)
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            return np.int64(0), np.int64(-1)
    return np.int64(0), np.int64(-1)


@njit
def from_zigzag(value: int) -> int:
    return ((value >> 1) & _POSITIVE) ^ -(value & 1)


@njit
def to_zigzag(value: int) -> int:
    return (value << 1) ^ (value >> 63)


@njit
def put_varint(out: int, at: int, value: int) -> int:
    """Write 64 bits; return the position after them."""
    while value < 0 or value > 127:
        store_byte(out, at, (value & 127) | 128)
        value = (value >> 7) & np.int64(0x01FFFFFFFFFFFFFF)
        at += 1
    store_byte(out, at, value)
    return at + 1


@njit
def varint_size(value: int) -> int:
    size = np.int64(1)
    while value < 0 or value > 127:
        value = (value >> 7) & np.int64(0x01FFFFFFFFFFFFFF)
        size += 1
    return size


@njit
def text_state(at: int, end: int, limit: int) -> int:
    """Return what the text from `at` to `end` is; memory can be read up to `limit`."""
    at = interesting(at, end, limit)
    if at >= end:
        return PLAIN
    while at < end:
        byte: Any = load_byte(at, 0)
        if byte < 128:
            at += 1
        else:
            size = wide(at, end)
            if size == 0:
                return BROKEN
            at += size
        at = _skip_plain(at, end, limit)
    return SPECIAL


@njit
def _skip_plain(at: int, end: int, limit: int) -> int:
    return min(interesting(at, end, limit), end)


@njit
def starts_with(at: int, end: int, head: int, size: int) -> bool:
    if end - at < size:
        return False
    k = np.int64(0)
    while k < size and load_byte(at, k) == load_byte(head, k):
        k += 1
    return k == size
