"""A table's rows in slots, found by their encoded keys: the kernels. Needs numba; `tables.py` owns the arrays.

A slot is found through `table` (int32[2^n], -1 is free) by open addressing over the hash of its key. `states` says what is known
of the row of a slot. Nothing here grows an array: who calls has made room for N more slots and their bytes.
"""

# numba gives its functions, and what is an integer in them, no types that mypy could follow.
# mypy: disable-error-code="untyped-decorator,no-any-return,no-untyped-call,call-arg,arg-type,assignment,return-value"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit, types

from logflume.log.batch.memory import load_byte, load_word

STALE, PRESENT, MISSING, UNSURE, WANTED = 0, 1, 2, 3, 4
"""Not known; a row; no row; a row that columns cannot hold; not known and asked for."""
SLOTS, BYTES = 0, 1
"""Places in `counters`: slots in use, bytes of the arena in use."""


class Slots(NamedTuple):
    """C slots: keys as spans of `arena`; per kept column [K, C]: nulls, values (of texts positions in `arena`), sizes."""

    table: Any
    hashes: Any
    key_starts: Any
    key_sizes: Any
    states: Any
    arena: Any
    nulls: Any
    values: Any
    sizes: Any
    counters: Any


_IN_I64 = types.Array(types.int64, 1, "C", readonly=True)
_IN_I32 = types.Array(types.int32, 1, "C", readonly=True)
_IN_B1 = types.Array(types.boolean, 1, "C", readonly=True)
_U8, _I8, _I32, _I64 = (types.Array(t, 1, "C") for t in (types.uint8, types.int8, types.int32, types.int64))
_B2, _I2 = types.Array(types.boolean, 2, "C"), types.Array(types.int64, 2, "C")
_SLOTS = types.NamedTuple((_I32, _I64, _I64, _I64, _I8, _U8, _B2, _I2, _I2, _I64), Slots)


@njit(inline="always")
def _hash(at: int, size: int) -> int:
    """Return a hash >= 0 of a key: multiply and shift, eight bytes at a time."""
    value = np.uint64(size) * np.uint64(0x9E3779B97F4A7C15)
    k = np.int64(0)
    while k + 8 <= size:
        value = (value ^ np.uint64(load_word(at, k))) * np.uint64(0xD6E8FEB86659FD93)
        value ^= value >> np.uint64(32)
        k += 8
    word = np.int64(0)
    while k < size:
        word = word << 8 | load_byte(at, k)
        k += 1
    value = (value ^ np.uint64(word)) * np.uint64(0xD6E8FEB86659FD93)
    value ^= value >> np.uint64(32)
    value *= np.uint64(0xD6E8FEB86659FD93)
    return np.int64(value >> np.uint64(1))


@njit(inline="always")
def _same(a: int, b: int, size: int) -> bool:
    k = np.int64(0)
    while k + 8 <= size:
        if load_word(a, k) != load_word(b, k):
            return False
        k += 8
    while k < size:
        if load_byte(a, k) != load_byte(b, k):
            return False
        k += 1
    return True


@njit(inline="always")
def _slot_of(slots: Any, arena: int, at: int, size: int) -> int:
    """Return the slot of a key, a new STALE one for a key that has none."""
    hashed = _hash(at, size)
    mask = np.int64(len(slots.table) - 1)
    place = hashed & mask
    while True:
        slot = np.int64(slots.table[place])
        if slot < 0:
            break
        if slots.hashes[slot] == hashed and slots.key_sizes[slot] == size and _same(arena + slots.key_starts[slot], at, size):
            return slot
        place = (place + 1) & mask
    slot = slots.counters[SLOTS]
    begin = slots.counters[BYTES]
    slots.counters[SLOTS] = slot + 1
    slots.counters[BYTES] = begin + size
    slots.table[place] = slot
    slots.hashes[slot] = hashed
    slots.key_starts[slot] = begin
    slots.key_sizes[slot] = size
    slots.states[slot] = STALE
    for k in range(size):
        slots.arena[begin + k] = load_byte(at, k)
    return slot


@njit(types.int64(_SLOTS, _IN_I64, _IN_I32, _IN_B1, _I64, _I64), cache=True, nogil=True)
def find(slots: Any, starts: Any, sizes: Any, wanted: Any, found: Any, unknown: Any) -> int:
    """Set found[i] to the slot of each wanted key, else to -1; list the slots of which nothing is known, return their number."""
    arena = np.int64(slots.arena.ctypes.data)
    count = 0
    for i in range(len(starts)):
        found[i] = -1
        if wanted[i]:
            slot = _slot_of(slots, arena, starts[i], np.int64(sizes[i]))
            found[i] = slot
            if slots.states[slot] == STALE:
                slots.states[slot] = WANTED
                unknown[count] = slot
                count += 1
    return count


@njit(types.void(_SLOTS, _IN_I64, _IN_I32, _IN_B1, _IN_B1, _IN_I64, _B2, _I2, _I2), cache=True, nogil=True)
def put(slots: Any, starts: Any, sizes: Any, certain: Any, gone: Any, kept: Any, nulls: Any, values: Any, lengths: Any) -> None:
    """Take N changes of the table in order: a certain row [F, N], no row any more, or something that is not known here.

    kept[k]: the field that column k keeps, or -1 - field for a text, given by addresses and lengths. Null keys are skipped.
    """
    arena = np.int64(slots.arena.ctypes.data)
    for i in range(len(starts)):
        if sizes[i] < 0:
            continue
        slot = _slot_of(slots, arena, starts[i], np.int64(sizes[i]))
        if gone[i]:
            slots.states[slot] = MISSING
            continue
        if not certain[i]:
            slots.states[slot] = STALE
            continue
        slots.states[slot] = PRESENT
        for k in range(len(kept)):
            field = kept[k]
            is_text = field < 0
            if is_text:
                field = -1 - field
            slots.nulls[k, slot] = nulls[field, i]
            slots.values[k, slot] = values[field, i]
            if is_text:
                size = lengths[field, i]
                begin = slots.counters[BYTES]
                slots.counters[BYTES] = begin + size
                slots.values[k, slot] = begin
                slots.sizes[k, slot] = size
                for at in range(size):
                    slots.arena[begin + at] = load_byte(values[field, i], at)


@njit(types.void(_SLOTS, _I32), cache=True, nogil=True)
def rehash(slots: Any, table: Any) -> None:
    """Fill a larger table with the slots in use."""
    mask = np.int64(len(table) - 1)
    table[:] = -1
    for slot in range(slots.counters[SLOTS]):
        place = slots.hashes[slot] & mask
        while table[place] >= 0:
            place = (place + 1) & mask
        table[place] = slot


@njit(
    types.void(_SLOTS, _IN_I64, types.int64, types.int64, _I64, _I64, types.Array(types.boolean, 1, "C")), cache=True, nogil=True
)
def gather(slots: Any, found: Any, column: int, is_text: int, data: Any, sizes: Any, nulls: Any) -> None:
    """Read one column of the rows found: values (of texts addresses), sizes and nulls; without a row it is null."""
    base = np.int64(slots.arena.ctypes.data) if is_text else np.int64(0)
    for i in range(len(found)):
        slot = found[i]
        is_null = slot < 0 or slots.states[slot] != PRESENT or slots.nulls[column, slot]
        nulls[i] = is_null
        data[i] = base + slots.values[column, slot] if not is_null else np.int64(0)
        if is_text:
            sizes[i] = slots.sizes[column, slot] if not is_null else np.int64(0)
