"""A table's rows in slots, found by their encoded keys: the kernels. Needs numba; `operators/table_columns.py` owns the arrays.

A slot is found through `table` (int32[2^n], -1 is free) by open addressing over the hash of its key. All that is known of it
lies together in one row of `records`, mostly one line of the cache: a lookup is as fast as the lines that it touches. Nothing
here grows an array: who calls has made room for N more slots and their bytes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit, types

from logflume.log.memory import load_byte, load_word

STALE, PRESENT, MISSING, UNSURE, WANTED = 0, 1, 2, 3, 4
"""Not known; a row; no row; a row that columns cannot hold; not known and asked for."""
HASH, KEY, KEY_SIZE, STATE, FIRST_COLUMN = 0, 1, 2, 3, 4
"""Places in a record. KEY: the bytes of a key of up to 8, big-endian, else its position in the arena. Each kept column takes two
places: its value (of texts the position in the arena), and the size of a text (else 0), -1 for null."""
SLOTS, BYTES = 0, 1
"""Places in `counters`: slots in use, bytes of the arena in use."""
SHORT_KEY_BYTES = 8


class Slots(NamedTuple):
    """The arrays of one table; records: int64[C, 4 + 2K]."""

    table: Any
    records: Any
    arena: Any
    counters: Any


_IN_I64 = types.Array(types.int64, 1, "C", readonly=True)
_IN_I32 = types.Array(types.int32, 1, "C", readonly=True)
_IN_B1 = types.Array(types.boolean, 1, "C", readonly=True)
_U8, _I8, _I32, _I64 = (types.Array(t, 1, "C") for t in (types.uint8, types.int8, types.int32, types.int64))
_B2, _I2 = types.Array(types.boolean, 2, "C"), types.Array(types.int64, 2, "C")
_SLOTS = types.NamedTuple((_I32, _I2, _U8, _I64), Slots)


@njit(inline="always")
def _packed(at: int, size: int) -> int:
    """Return up to eight bytes as one integer."""
    word = np.int64(0)
    for k in range(size):
        word = word << 8 | load_byte(at, k)
    return word


@njit(inline="always")
def _hash(at: int, size: int, word: int) -> int:
    """Return a hash >= 0 of a key: multiply and shift, eight bytes at a time. `word`: the packed bytes of a short key."""
    value = np.uint64(size) * np.uint64(0x9E3779B97F4A7C15)
    if size > SHORT_KEY_BYTES:
        k = np.int64(0)
        while k + 8 <= size:
            value = (value ^ np.uint64(load_word(at, k))) * np.uint64(0xD6E8FEB86659FD93)
            value ^= value >> np.uint64(32)
            k += 8
        word = _packed(at + k, size - k)
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
    is_short = size <= SHORT_KEY_BYTES
    word = _packed(at, size) if is_short else np.int64(0)
    hashed = _hash(at, size, word)
    mask = np.int64(len(slots.table) - 1)
    place = hashed & mask
    while True:
        slot = np.int64(slots.table[place])
        if slot < 0:
            break
        if slots.records[slot, HASH] == hashed and slots.records[slot, KEY_SIZE] == size:
            key = slots.records[slot, KEY]
            if (is_short and key == word) or (not is_short and _same(arena + key, at, size)):
                return slot
        place = (place + 1) & mask
    slot = slots.counters[SLOTS]
    slots.counters[SLOTS] = slot + 1
    slots.table[place] = slot
    slots.records[slot, HASH] = hashed
    slots.records[slot, KEY] = word
    slots.records[slot, KEY_SIZE] = size
    slots.records[slot, STATE] = STALE
    if not is_short:
        begin = slots.counters[BYTES]
        slots.counters[BYTES] = begin + size
        slots.records[slot, KEY] = begin
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
            if slots.records[slot, STATE] == STALE:
                slots.records[slot, STATE] = WANTED
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
            slots.records[slot, STATE] = MISSING
            continue
        if not certain[i]:
            slots.records[slot, STATE] = STALE
            continue
        slots.records[slot, STATE] = PRESENT
        for k in range(len(kept)):
            is_text = kept[k] < 0
            field = -1 - kept[k] if is_text else kept[k]
            at = FIRST_COLUMN + 2 * k
            slots.records[slot, at] = values[field, i]
            slots.records[slot, at + 1] = -1 if nulls[field, i] else 0
            if is_text and not nulls[field, i]:
                size = lengths[field, i]
                begin = slots.counters[BYTES]
                slots.counters[BYTES] = begin + size
                slots.records[slot, at] = begin
                slots.records[slot, at + 1] = size
                for place in range(size):
                    slots.arena[begin + place] = load_byte(values[field, i], place)


@njit(types.void(_SLOTS, _I32), cache=True, nogil=True)
def rehash(slots: Any, table: Any) -> None:
    """Fill a larger table with the slots in use."""
    mask = np.int64(len(table) - 1)
    table[:] = -1
    for slot in range(slots.counters[SLOTS]):
        place = slots.records[slot, HASH] & mask
        while table[place] >= 0:
            place = (place + 1) & mask
        table[place] = slot


@njit(types.void(_SLOTS, _IN_I64, _IN_B1, _I8, _I2, _I2, _B2), cache=True, nogil=True)
def gather(slots: Any, found: Any, is_text: Any, states: Any, data: Any, sizes: Any, nulls: Any) -> None:
    """Read the rows found: states [N]; [K, N]: values (of texts addresses), sizes and nulls. Without a row all is null."""
    arena = np.int64(slots.arena.ctypes.data)
    for i in range(len(found)):
        slot = found[i]
        state = slots.records[slot, STATE] if slot >= 0 else np.int64(MISSING)
        states[i] = state
        for k in range(len(is_text)):
            at = FIRST_COLUMN + 2 * k
            is_null = state != PRESENT or slots.records[slot, at + 1] < 0
            nulls[k, i] = is_null
            data[k, i] = 0
            sizes[k, i] = 0
            if not is_null:
                data[k, i] = slots.records[slot, at] + (arena if is_text[k] else np.int64(0))
                sizes[k, i] = slots.records[slot, at + 1]
