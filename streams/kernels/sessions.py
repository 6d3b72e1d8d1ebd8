"""Sessions: which ones a record joins, and the states of those that it makes one. Needs numba.

A session is a slot of its store (`kernels.slots`): its window start is the session's end, its first state column the session's
start. The sessions of a key are more than a gap apart, so a record joins at most a few.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

from logflume.log.memory import load_byte

from .chains import FOLD_TYPE, copy, copy_out, note, place_of
from .signatures import I64, IN_I32, IN_I64, U8
from .slots import ARENA, COUNT, MEAN, MIN, SLOTS, SUM, add_row, find_slot, hash_of, new_slot


@njit(inline="always")
def _drop_place(table: Any, hashes: Any, slot: int) -> None:
    """Take a slot out of the table; those behind it that could stand in its place move up."""
    mask = np.int64(len(table) - 1)
    hole = hashes[slot] & mask
    while table[hole] != slot:
        hole = (hole + 1) & mask
    k = (hole + 1) & mask
    while table[k] >= 0:
        home = hashes[table[k]] & mask
        if ((k - home) & mask) >= ((k - hole) & mask):
            table[hole] = table[k]
            hole = k
        k = (k + 1) & mask
    table[hole] = -1


@njit(inline="always")
def _merge(
    states: Any, reals: Any, gaps: Any, into: int, slot: int, steps: Any, columns: Any, is_float: Any
) -> None:  # fmt: skip
    """Merge the state of a slot into that of another one, which is the earlier of the two."""
    for j in range(len(steps)):
        kind, c = steps[j], columns[j]
        if kind == COUNT:
            states[into, c] += states[slot, c]
            continue
        if gaps[slot, c]:
            continue
        was_null = gaps[into, c]
        gaps[into, c] = False
        if is_float[c]:
            number, old = reals[slot, c], reals[into, c]
            if kind in (SUM, MEAN):
                reals[into, c] = old + number
            elif was_null or (number < old if kind == MIN else number > old):
                reals[into, c] = number
        else:
            whole, held = states[slot, c], states[into, c]
            if kind in (SUM, MEAN):
                states[into, c] = held + whole
            elif was_null or (whole < held if kind == MIN else whole > held):
                states[into, c] = whole
        if kind == MEAN:
            states[into, c + 1] += states[slot, c + 1]


@njit(FOLD_TYPE, cache=True, nogil=True, error_model="numpy")
def fold_sessions(
    slots: Any, before: Any, chains: Any, spec: Any, trail: Any, keys: Any, key_sizes: Any, times: Any, clocks: Any,
    limits: Any, first: int, last: int, arguments: Any, late: Any, late_starts: Any,
) -> int:  # fmt: skip
    """Take rows first..last into their sessions; return where it stopped for want of room (two slots, a key, the trail).

    limits: gap, how long a session waits for records, how far behind the newest one sessions are seen. late: bool[N], rows that
    are; late_starts: the start of the session that each of them would have made. The last slot of room is for what is merged.
    """
    table, hashes, slot_starts, slot_sizes, arena, ends, slot_times, states, reals, gaps, dirty, used, _, _, _, _ = slots
    changed, counters, gone, stored = slots.changed, slots.counters, slots.gone, slots.stored
    steps, columns, args, is_float, arg_is_float, first_ints, first_floats, first_nulls, numbers = spec
    had, before_ints, before_floats, before_nulls = before
    heads, older, turns, newest = chains
    gap, wait, keep, keeps, is_traced = limits[0], limits[1], limits[2], numbers[0] == 1, len(trail.rows) > 0
    spare, arena_room = len(hashes) - 1, len(arena)
    for row in range(first, last):
        key, size, time, clock = keys[row], np.int64(key_sizes[row]), times[row], clocks[row]
        if counters[SLOTS] + 1 > spare or counters[ARENA] + size > arena_room:
            return row
        place = place_of(heads, slot_starts, slot_sizes, arena, key, size)
        low = max(time - gap, newest[0] - keep + 1)
        later, slot = np.int64(-1), np.int64(heads[place])
        while slot >= 0 and states[slot, 0] - gap > time and ends[slot] >= low:
            later, slot = slot, np.int64(older[slot])
        met, count, start, end = slot, 0, time, time
        while slot >= 0 and ends[slot] >= low:
            count += 1
            start, end = min(start, states[slot, 0]), max(end, ends[slot])
            slot = np.int64(older[slot])
        if end < clock - wait:
            late[row], late_starts[row] = True, start
            continue
        if is_traced and trail.count[0] + count + 1 > len(trail.rows):
            return row
        earlier, is_same = slot, start == time and end == time
        for k in range(count):  # the earliest first
            slot = met
            for _ in range(count - 1 - k):
                slot = np.int64(older[slot])
            note(
                slot, False, dirty, used, changed, counters, gone, turns, newest, keeps, had, before_ints, before_floats,
                before_nulls, states, reals, gaps,
            )  # fmt: skip
            if k == 0:
                copy(states, reals, gaps, spare, slot)
            else:
                _merge(states, reals, gaps, spare, slot, steps, columns, is_float)
            if is_traced and not is_same:
                at = trail.count[0]
                trail.count[0] = at + 1
                trail.rows[at], trail.starts[at], trail.ends[at] = row, states[slot, 0], ends[slot]
                trail.gone[at] = trail.had[at] = True
                copy_out(trail.old_ints, trail.old_floats, trail.old_nulls, at, states, reals, gaps, slot)
                copy_out(trail.ints, trail.floats, trail.nulls, at, states, reals, gaps, slot)
        target, is_new, is_linked = met, False, False
        if count == 0 or ends[met] != end:
            hashed = hash_of(key, size, end)
            target, at_table = find_slot(
                table, hashes, slot_starts, slot_sizes, arena, ends, key, size, end, hashed
            )  # fmt: skip
            if target >= 0:
                is_linked = not gone[target]
            elif count > 0 and not stored[met]:
                target = met
                _drop_place(table, hashes, target)
                _, at_table = find_slot(table, hashes, slot_starts, slot_sizes, arena, ends, key, size, end, hashed)
                table[at_table], hashes[target], ends[target], turns[target] = target, hashed, end, newest[1]
                newest[1] += 1
            else:
                is_new = True
                target = new_slot(
                    table, hashes, slot_starts, slot_sizes, arena, ends, dirty, counters, gone, stored, key, size, end, hashed,
                    at_table,
                )  # fmt: skip
            note(
                target, is_new, dirty, used, changed, counters, gone, turns, newest, keeps, had, before_ints, before_floats,
                before_nulls, states, reals, gaps,
            )  # fmt: skip
        slot = met
        for _ in range(count):
            following = np.int64(older[slot])
            if slot != target:
                gone[slot] = True
            slot = following
        if not is_linked:
            older[target] = earlier
            if later < 0:
                heads[place] = target
            else:
                older[later] = target
        if count == 0:
            for c in range(states.shape[1]):
                states[target, c], reals[target, c], gaps[target, c] = first_ints[c], first_floats[c], first_nulls[c]
        else:
            copy(states, reals, gaps, target, spare)
        gone[target], slot_times[target], states[target, 0] = False, end, start
        newest[0] = max(newest[0], end)
        add_row(states, reals, gaps, target, steps, columns, args, is_float, arg_is_float, arguments, row)
        if is_traced:
            at = trail.count[0]
            trail.count[0] = at + 1
            trail.rows[at], trail.starts[at], trail.ends[at] = row, start, end
            trail.gone[at], trail.had[at] = False, is_same and count > 0
            copy_out(trail.ints, trail.floats, trail.nulls, at, states, reals, gaps, target)
            copy_out(trail.old_ints, trail.old_floats, trail.old_nulls, at, states, reals, gaps, spare)
    return last


@njit(types.int64(IN_I64, IN_I32, IN_I64, IN_I64, U8, I64), cache=True, nogil=True)
def bounded_keys(keys: Any, key_sizes: Any, starts: Any, ends: Any, out: Any, out_starts: Any) -> int:
    """Write each key (addresses) with the end and the start of a session behind it; return the bytes written."""
    at = 0
    for i in range(len(keys)):
        out_starts[i] = at
        for k in range(key_sizes[i]):
            out[at + k] = load_byte(keys[i], k)
        at += key_sizes[i]
        for bound in (ends[i], starts[i]):
            for k in range(8):
                out[at + k] = (bound >> (56 - 8 * k)) & 255
            at += 8
    return at
