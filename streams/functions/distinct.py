"""Counting distinct values in constant space: HyperLogLog with linear counting while few (Flajolet et al. 2007).

The sketch is 4,096 registers of one byte: a standard error of 1.6 %, and practically exact for a few hundred values.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

_BITS = 12
_REGISTERS = 1 << _BITS
_ALPHA = 0.7213 / (1 + 1.079 / _REGISTERS)


def distinct_start() -> bytes:
    """Return the empty sketch; it grows to its registers with the first value."""
    return b""


def _hash(value: Any) -> int:
    return int.from_bytes(hashlib.blake2b(repr(value).encode(), digest_size=8).digest(), "big")


def distinct_add(state: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    number = _hash(value)
    register = number >> (64 - _BITS)
    rank = (64 - _BITS) - (number & ((1 << (64 - _BITS)) - 1)).bit_length() + 1
    sketch = state[0] or bytes(_REGISTERS)
    if sketch[register] >= rank:
        return (sketch,)
    return (sketch[:register] + bytes((rank,)) + sketch[register + 1 :],)


def distinct_merge(left: tuple[Any, ...], right: tuple[Any, ...]) -> tuple[Any, ...]:
    if not left[0] or not right[0]:
        return (left[0] or right[0],)
    return (bytes(map(max, left[0], right[0])),)


def distinct_count(state: tuple[Any, ...]) -> int:
    """Return the estimate, rounded."""
    sketch = state[0]
    if not sketch:
        return 0
    estimate = _ALPHA * _REGISTERS**2 / sum(2.0**-rank for rank in sketch)
    zeros = sketch.count(0)
    if estimate <= 2.5 * _REGISTERS and zeros:
        estimate = _REGISTERS * math.log(_REGISTERS / zeros)
    rounded: int = round(estimate)
    return rounded
