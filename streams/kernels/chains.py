"""The entries of each key one behind the other, the newest first: what the kernels of sessions and of sliding windows walk.

A chain goes over the slots of a store (`kernels.slots`), whose window starts are the times that it is in order of. Nothing here
grows an array: `operators/chained.py` owns them, and makes room before it calls.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit, types

from logflume.log.memory import load_byte

from .signatures import B1, B2, F2, I2, I32, I64, IN_I2, IN_I32, IN_I64, U8
from .slots import CHANGED, Before, Slots, Spec, hash_of


class Chains(NamedTuple):
    """Of C slots. table: int32[2^n], the newest slot of a key, -1 is free; older: int32[C], the next one of the key, -1 behind
    the oldest; turns: int64[C], by which changed slots are in order of their first change under the key that they have now;
    newest: int64[2], the largest time of all, and the turns so far.
    """

    table: Any
    older: Any
    turns: Any
    newest: Any


class Trail(NamedTuple):
    """What is told of single changes where somebody follows them, E of room, or nothing: row, key's times, state, state before.

    gone: whether the entry is deleted; had: whether there was one before; count: int64[1], how many there are.
    """

    rows: Any
    starts: Any
    ends: Any
    gone: Any
    ints: Any
    floats: Any
    nulls: Any
    had: Any
    old_ints: Any
    old_floats: Any
    old_nulls: Any
    count: Any


F1 = types.Array(types.float64, 1, "C")
SLOTS_TYPE = types.NamedTuple((I32, I64, I64, I32, U8, I64, I64, I2, F2, B2, B1, B1, I64, I64, B1, B1), Slots)
BEFORE_TYPE = types.NamedTuple((B1, I2, F2, B2), Before)
SPEC_TYPE = types.NamedTuple((I64, I64, I64, I64, I64, I64, F1, B1, I64), Spec)
CHAINS_TYPE = types.NamedTuple((I32, I32, I64, I64), Chains)
TRAIL_TYPE = types.NamedTuple((I64, I64, I64, B1, I2, F2, B2, B1, I2, F2, B2, I64), Trail)
FOLD_TYPE = types.int64(
    SLOTS_TYPE, BEFORE_TYPE, CHAINS_TYPE, SPEC_TYPE, TRAIL_TYPE, IN_I64, IN_I32, IN_I64, IN_I64, IN_I64, types.int64,
    types.int64, IN_I2, B1, I64,
)  # fmt: skip
"""What takes rows into entries: arrays, keys and sizes, times, clocks, limits, from, to, arguments, late, and one of its own."""


@njit(inline="always")
def place_of(table: Any, key_starts: Any, key_sizes: Any, arena: Any, key: int, size: int) -> int:
    """Return where in the table the newest slot of a key is or would be."""
    mask = np.int64(len(table) - 1)
    place = hash_of(key, size, -1) & mask
    while True:
        head = np.int64(table[place])
        if head < 0:
            break
        if key_sizes[head] == size:
            begin, same = key_starts[head], True
            for k in range(size):
                if arena[begin + k] != load_byte(key, k):
                    same = False
                    break
            if same:
                break
        place = (place + 1) & mask
    return place


@njit(inline="always")
def note(
    slot: int, is_new: bool, dirty: Any, used: Any, changed: Any, counters: Any, gone: Any, turns: Any, newest: Any,
    keeps: bool, had: Any, before_ints: Any, before_floats: Any, before_nulls: Any, states: Any, reals: Any, gaps: Any,
) -> None:  # fmt: skip
    """Note a slot as changed, with its state before the first change."""
    used[slot] = True
    if not dirty[slot]:
        dirty[slot] = True
        turns[slot] = newest[1]
        newest[1] += 1
        k = counters[CHANGED]
        changed[k] = slot
        counters[CHANGED] = k + 1
        if keeps:
            had[k] = not is_new and not gone[slot]
            for c in range(states.shape[1]):
                before_ints[k, c] = states[slot, c]
                before_floats[k, c] = reals[slot, c]
                before_nulls[k, c] = gaps[slot, c]


@njit(inline="always")
def copy(states: Any, reals: Any, gaps: Any, into: int, slot: int) -> None:
    """Copy the state of a slot into another one."""
    for c in range(states.shape[1]):
        states[into, c] = states[slot, c]
        reals[into, c] = reals[slot, c]
        gaps[into, c] = gaps[slot, c]


@njit(inline="always")
def copy_out(ints: Any, floats: Any, nulls: Any, at: int, states: Any, reals: Any, gaps: Any, slot: int) -> None:
    """Copy the state of a slot into a row of other arrays."""
    for c in range(states.shape[1]):
        ints[at, c] = states[slot, c]
        floats[at, c] = reals[slot, c]
        nulls[at, c] = gaps[slot, c]


@njit(types.void(SLOTS_TYPE, CHAINS_TYPE, types.int64, IN_I64), cache=True, nogil=True)
def link(slots: Any, chains: Any, arena: int, order: Any) -> None:
    """Put slots, which come in order of time, into the chains. arena: the address of the slots' arena."""
    table, older = chains.table, chains.older
    key_starts, key_sizes = slots.key_starts, slots.key_sizes
    for slot in order:
        place = place_of(table, key_starts, key_sizes, slots.arena, arena + key_starts[slot], np.int64(key_sizes[slot]))
        older[slot] = table[place]
        table[place] = slot
