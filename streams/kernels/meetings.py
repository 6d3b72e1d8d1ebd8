"""Which rows of two streams meet: the kernels. Needs numba; `operators/meetings.py` owns the arrays and says what they mean.

Each key has a slot, found through `table` (int32[2^n], -1 is free) by open addressing, and for each side a region of that side's
pool: the times of its rows in order, and their numbers beside them. A region that is full moves to the end of its pool, with
twice the room. Nothing here grows an array: a kernel that finds no room stops at a row and is called again from there.

Shapes: C keys of room, P rows of room in a pool, N rows taken, M pairs of room.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit, types

from logflume.log.memory import load_byte

from .slots import hash_of

KEYS, ARENA, POOL = 0, 1, 2
"""Places in `counters`: keys in use, bytes of the arena in use, places of the pool of the right (2) and of the left side (3)."""
STOPPED_BY_KEYS, STOPPED_BY_POOL, STOPPED_BY_PAIRS = 4, 5, 6
"""Places in `counters`: how much more room was asked for where a kernel stopped."""


class Meetings(NamedTuple):
    """The arrays of one join. begins, counts, rooms: int64[2, C], of each side's region; times, numbers: int64[2, P]."""

    table: Any
    hashes: Any
    key_starts: Any
    key_sizes: Any
    arena: Any
    begins: Any
    counts: Any
    rooms: Any
    times: Any
    numbers: Any
    newest: Any
    counters: Any


_IN_I64 = types.Array(types.int64, 1, "C", readonly=True)
_IN_I32 = types.Array(types.int32, 1, "C", readonly=True)
_IN_I8 = types.Array(types.int8, 1, "C", readonly=True)
_U8, _I32, _I64 = (types.Array(t, 1, "C") for t in (types.uint8, types.int32, types.int64))
_I2 = types.Array(types.int64, 2, "C")
_MEETINGS = types.NamedTuple((_I32, _I64, _I64, _I32, _U8, _I2, _I2, _I2, _I2, _I2, _I64, _I64), Meetings)


@njit(inline="always")
def _first_from(times: Any, side: int, begin: int, count: int, time: int) -> int:
    """Return the first place of a region whose time is not before `time`; mostly it is near the end."""
    low, high = begin, begin + count
    if high > low and times[side, high - 1] < time:
        return high
    while low < high:
        middle = (low + high) >> 1
        if times[side, middle] < time:
            low = middle + 1
        else:
            high = middle
    return low


@njit(inline="always")
def _slot_of(made: Any, key: int, size: int) -> int:
    """Return the slot of a key, a new one for a key that has none; there must be room."""
    hashed = hash_of(key, size, 0)
    mask = np.int64(len(made.table) - 1)
    place = hashed & mask
    while True:
        slot = np.int64(made.table[place])
        if slot < 0:
            break
        if made.hashes[slot] == hashed and made.key_sizes[slot] == size:
            begin, same = made.key_starts[slot], True
            for k in range(size):
                if made.arena[begin + k] != load_byte(key, k):
                    same = False
                    break
            if same:
                return slot
        place = (place + 1) & mask
    slot = made.counters[KEYS]
    made.counters[KEYS] = slot + 1
    begin = made.counters[ARENA]
    made.counters[ARENA] = begin + size
    for k in range(size):
        made.arena[begin + k] = load_byte(key, k)
    made.table[place] = slot
    made.hashes[slot] = hashed
    made.key_starts[slot] = begin
    made.key_sizes[slot] = size
    for side in range(2):
        made.begins[side, slot], made.counts[side, slot], made.rooms[side, slot] = 0, 0, 0
    return slot


@njit(inline="always")
def _needs(made: Any, side: int, slot: int) -> int:
    """Return how many places of the pool one more row of a key takes."""
    count = made.counts[side, slot]
    return 0 if count < made.rooms[side, slot] else 2 * count + 1


@njit(inline="always")
def _insert(made: Any, side: int, slot: int, time: int, number: int) -> None:
    """Put a row behind those of its time; there must be room."""
    count, needs = made.counts[side, slot], _needs(made, side, slot)
    if needs > 0:
        begin, old = made.counters[POOL + side], made.begins[side, slot]
        made.counters[POOL + side] = begin + needs
        for k in range(count):
            made.times[side, begin + k] = made.times[side, old + k]
            made.numbers[side, begin + k] = made.numbers[side, old + k]
        made.begins[side, slot], made.rooms[side, slot] = begin, needs
    begin = made.begins[side, slot]
    place = _first_from(made.times, side, begin, count, time + 1)
    for k in range(begin + count, place, -1):
        made.times[side, k] = made.times[side, k - 1]
        made.numbers[side, k] = made.numbers[side, k - 1]
    made.times[side, place] = time
    made.numbers[side, place] = number
    made.counts[side, slot] = count + 1


@njit(
    types.int64(
        _MEETINGS, _IN_I64, _IN_I64, _IN_I8, _IN_I64, _IN_I32, _IN_I64, _IN_I64, types.int64, types.int64, _I64, _I64, _I64, _I64
    ),
    cache=True,
    nogil=True,
    error_model="numpy",
)
def meet(
    made: Any, keep: Any, ahead: Any, sides: Any, keys: Any, key_sizes: Any, times: Any, numbers: Any, first: int, looks: int,
    pairs: Any, met: Any, met_times: Any, filled: Any,
) -> int:  # fmt: skip
    """Take rows from `first` on in order: each meets those of the other side that are there; return where it stopped.

    keep: int64[1], how far rows are seen behind the newest of their side. ahead: int64[2], how far ahead of a row of the right
    (0) and of the left side (1) one that it meets may be. keys: addresses. Rows without a key (size -1) or a number (-1) are
    passed over. looks: 0 to put rows in only. Pairs go behind filled[0] others: the row, the number of the one met, and its time.
    """
    at = filled[0]
    for i in range(first, len(times)):
        size, number = np.int64(key_sizes[i]), numbers[i]
        if size < 0 or number < 0:
            continue
        side, time = np.int64(sides[i]), times[i]
        other = 1 - side
        if made.counters[KEYS] + 1 > len(made.hashes) or made.counters[ARENA] + size > len(made.arena):
            made.counters[STOPPED_BY_KEYS] = size + 1
            filled[0] = at
            return i
        slot = _slot_of(made, keys[i], size)
        oldest = made.newest[side] - keep[0] + 1
        needs = _needs(made, side, slot) if time >= oldest else np.int64(0)
        if made.counters[POOL + side] + needs > made.times.shape[1]:
            made.counters[STOPPED_BY_POOL] = needs
            filled[0] = at
            return i
        if looks != 0:
            begin, count = made.begins[other, slot], made.counts[other, slot]
            low = max(time - ahead[other], made.newest[other] - keep[0] + 1)
            place, end = _first_from(made.times, other, begin, count, low), begin + count
            high = max(0, time + ahead[side])
            last = place
            while last < end and made.times[other, last] <= high:
                last += 1
            if at + last - place > len(pairs):
                made.counters[STOPPED_BY_PAIRS] = last - place
                filled[0] = at
                return i
            for k in range(place, last):
                pairs[at], met[at], met_times[at] = i, made.numbers[other, k], made.times[other, k]
                at += 1
        if time >= oldest:
            made.newest[side] = max(made.newest[side], time)
            _insert(made, side, slot, time, number)
    filled[0] = at
    return len(times)


@njit(types.void(_MEETINGS, _MEETINGS, _IN_I64), cache=True, nogil=True)
def move(old: Any, made: Any, keep: Any) -> None:
    """Put the rows that are seen into empty arrays with as much room at least; keys without rows are left out."""
    made.newest[:] = old.newest
    for slot in range(old.counters[KEYS]):
        target = np.int64(-1)
        for side in range(2):
            begin, count = old.begins[side, slot], old.counts[side, slot]
            first = _first_from(old.times, side, begin, count, old.newest[side] - keep[0] + 1)
            left = begin + count - first
            if left == 0:
                continue
            if target < 0:
                target = made.counters[KEYS]
                made.counters[KEYS] = target + 1
                size, start = np.int64(old.key_sizes[slot]), made.counters[ARENA]
                made.counters[ARENA] = start + size
                for k in range(size):
                    made.arena[start + k] = old.arena[old.key_starts[slot] + k]
                made.hashes[target], made.key_starts[target], made.key_sizes[target] = old.hashes[slot], start, size
                mask = np.int64(len(made.table) - 1)
                place = old.hashes[slot] & mask
                while made.table[place] >= 0:
                    place = (place + 1) & mask
                made.table[place] = target
                for each in range(2):
                    made.begins[each, target], made.counts[each, target], made.rooms[each, target] = 0, 0, 0
            at = made.counters[POOL + side]
            made.counters[POOL + side] = at + left
            made.begins[side, target], made.counts[side, target], made.rooms[side, target] = at, left, left
            for k in range(left):
                made.times[side, at + k] = old.times[side, first + k]
                made.numbers[side, at + k] = old.numbers[side, first + k]
