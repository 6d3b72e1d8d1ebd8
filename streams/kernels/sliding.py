"""Sliding windows: those a record counts in, and those it makes (see `operators/sliding.py`). Needs numba.

A window is a slot of its store (`kernels.slots`) at its start; its time is that of the newest record in it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .chains import FOLD_TYPE, copy, copy_out, note, place_of
from .slots import ARENA, SLOTS, add_row, find_slot, hash_of, new_slot

MOST_NEW = 3
"""So many windows a record makes at most."""
_NONE = -1
_NOTHING = np.int64(-(2**63))


@njit
def _is_there(slots: Any, key: int, size: int, start: int, low: int) -> bool:
    """Return whether a key has a window that is seen."""
    if start < low:
        return False
    found, _ = find_slot(
        slots.table, slots.hashes, slots.key_starts, slots.key_sizes, slots.arena, slots.starts, key, size, start,
        hash_of(key, size, start),
    )  # fmt: skip
    return found >= 0


@njit
def _make(
    slots: Any, before: Any, chains: Any, spec: Any, place: int, later: int, key: int, size: int, start: int, like: int
) -> int:
    """Return the slot of a window, in its place in the chain, with the state of the slot `like`, or of nothing (-1).

    later: a slot of the key that starts later, -1: none is known.
    """
    states, reals, gaps, older = slots.ints, slots.floats, slots.nulls, chains.older
    hashed = hash_of(key, size, start)
    target, at = find_slot(
        slots.table, slots.hashes, slots.key_starts, slots.key_sizes, slots.arena, slots.starts, key, size, start, hashed
    )  # fmt: skip
    is_new = target < 0
    if is_new:
        target = new_slot(
            slots.table, slots.hashes, slots.key_starts, slots.key_sizes, slots.arena, slots.starts, slots.dirty, slots.counters,
            slots.gone, slots.stored, key, size, start, hashed, at,
        )  # fmt: skip
        slot = np.int64(chains.table[place]) if later < 0 else np.int64(older[later])
        while slot >= 0 and slots.starts[slot] > start:
            later, slot = slot, np.int64(older[slot])
        older[target] = slot
        if later < 0:
            chains.table[place] = target
        else:
            older[later] = target
    _touch(slots, before, chains, spec, target, is_new)
    if like < 0:
        for c in range(states.shape[1]):
            states[target, c], reals[target, c], gaps[target, c] = spec.first_ints[c], spec.first_floats[c], spec.first_nulls[c]
    else:
        copy(states, reals, gaps, target, like)
    chains.newest[0] = max(chains.newest[0], start)
    return target


@njit
def _touch(slots: Any, before: Any, chains: Any, spec: Any, slot: int, is_new: bool) -> None:
    note(
        slot, is_new, slots.dirty, slots.used, slots.changed, slots.counters, slots.gone, chains.turns, chains.newest,
        spec.numbers[0] == 1, before.had, before.ints, before.floats, before.nulls, slots.ints, slots.floats, slots.nulls,
    )  # fmt: skip


@njit
def _add(slots: Any, spec: Any, trail: Any, slot: int, time: int, arguments: Any, row: int, had: int, adds: bool) -> None:
    """Fold a row into a slot if it `adds`, and tell of it. had: the slot with the state before, -1: none."""
    states, reals, gaps = slots.ints, slots.floats, slots.nulls
    is_traced = len(trail.rows) > 0
    at = trail.count[0]
    if is_traced:
        trail.count[0] = at + 1
        trail.rows[at], trail.starts[at], trail.gone[at], trail.had[at] = row, slots.starts[slot], False, had >= 0
        copy_out(trail.old_ints, trail.old_floats, trail.old_nulls, at, states, reals, gaps, max(had, 0))
    if adds:
        add_row(
            states, reals, gaps, slot, spec.kinds, spec.columns, spec.args, spec.is_float, spec.arg_is_float, arguments, row
        )  # fmt: skip
    slots.times[slot] = time
    if is_traced:
        trail.ends[at] = time
        copy_out(trail.ints, trail.floats, trail.nulls, at, states, reals, gaps, slot)


@njit(FOLD_TYPE, cache=True, nogil=True, error_model="numpy")
def fold_sliding(
    slots: Any, before: Any, chains: Any, spec: Any, trail: Any, keys: Any, key_sizes: Any, times: Any, clocks: Any,
    limits: Any, first: int, last: int, arguments: Any, late: Any, met: Any,
) -> int:  # fmt: skip
    """Take rows first..last into their windows; return where it stopped for want of room (four slots, keys, the trail).

    limits: size, grace, how far behind the newest start windows are seen; then, of each row or of none, the newest start
    before it of windows that are not here. late: bool[N], rows that are. met: room for the slots of a key. The last slot of room
    is for what the newest window of a row held before it.
    """
    size, grace, keep = limits[0], limits[1], limits[2]
    starts, stamps, older, newest = slots.starts, slots.times, chains.older, chains.newest
    is_traced, spare, arena_room = len(trail.rows) > 0, len(slots.hashes) - 1, len(slots.arena)
    is_told = len(limits) > 3
    for row in range(first, last):
        if is_told:
            newest[0] = max(newest[0], limits[3 + row])
        key, key_size, time, close = keys[row], np.int64(key_sizes[row]), times[row], clocks[row] - grace
        if time < close - size:
            late[row] = True
            continue
        if slots.counters[SLOTS] + MOST_NEW > spare or slots.counters[ARENA] + MOST_NEW * key_size > arena_room:
            return row
        place = place_of(chains.table, slots.key_starts, slots.key_sizes, slots.arena, key, key_size)
        low = max(time - 2 * size, newest[0] - keep + 1)
        later, slot = np.int64(_NONE), np.int64(chains.table[place])
        while slot >= 0 and starts[slot] - 1 > time:
            later, slot = slot, np.int64(older[slot])
        count = 0
        while slot >= 0 and starts[slot] >= low:
            met[count] = slot
            count += 1
            slot = np.int64(older[slot])
        if is_traced and trail.count[0] + count + MOST_NEW > len(trail.rows):
            return row
        if count == 0 and time >= size:
            if time >= close:
                slot = _make(slots, before, chains, spec, place, later, key, key_size, time - size, _NONE)
                _add(slots, spec, trail, slot, time, arguments, row, _NONE, True)
            continue
        right, right_stamp = np.int64(_NONE), np.int64(0)
        left, previous, has_left, is_known = np.int64(_NONE), _NOTHING, False, False
        if time < size:  # all such share the window [0, size]
            combined = np.int64(_NONE)
            for k in range(count):
                slot = met[count - 1 - k]
                if starts[slot] == 0:
                    combined = slot
                elif starts[slot] <= time:
                    right, right_stamp = np.int64(spare), stamps[slot]
                    copy(slots.ints, slots.floats, slots.nulls, spare, slot)
                    if starts[slot] >= close - size:
                        _touch(slots, before, chains, spec, slot, False)
                        _add(slots, spec, trail, slot, max(stamps[slot], time), arguments, row, slot, True)
            if right < 0 and combined >= 0 and stamps[combined] > time:
                right, right_stamp = combined, stamps[combined]
            if right >= 0 and right_stamp > time and time + 1 >= close - size and not _is_there(
                slots, key, key_size, time + 1, low
            ):  # fmt: skip
                slot = _make(slots, before, chains, spec, place, later, key, key_size, time + 1, right)
                _add(slots, spec, trail, slot, right_stamp, arguments, row, _NONE, False)
            if combined >= 0 and stamps[combined] < time:
                start = stamps[combined] + 1
                if start >= close - size and not _is_there(slots, key, key_size, start, low):
                    slot = _make(slots, before, chains, spec, place, later, key, key_size, start, _NONE)
                    _add(slots, spec, trail, slot, time, arguments, row, _NONE, True)
            if close - size <= 0:
                if combined >= 0:
                    _touch(slots, before, chains, spec, combined, False)
                    _add(slots, spec, trail, combined, max(stamps[combined], time), arguments, row, combined, True)
                else:
                    slot = _make(slots, before, chains, spec, place, later, key, key_size, 0, _NONE)
                    _add(slots, spec, trail, slot, time, arguments, row, _NONE, True)
            continue
        for k in range(count):
            slot = met[k]
            start = starts[slot]
            if start > time:
                continue  # the one right after this record
            if start > time - size or start == time - size:
                stamp = stamps[slot]
                if start == time - size:
                    has_left, is_known, previous = True, stamp >= time, stamp
                elif right < 0:
                    right, right_stamp = np.int64(spare), stamp
                    copy(slots.ints, slots.floats, slots.nulls, spare, slot)
                if start >= close - size:
                    _touch(slots, before, chains, spec, slot, False)
                    _add(slots, spec, trail, slot, max(stamp, time), arguments, row, slot, True)
                if is_known:
                    break
            else:
                left, previous = slot, stamps[slot]
                break
        if not is_known:
            start, twice = previous + 1, np.int64(_NONE)
            if previous != _NOTHING and start >= time - size and start >= close - size and not _is_there(
                slots, key, key_size, start, low
            ):  # fmt: skip
                slot = _make(slots, before, chains, spec, place, later, key, key_size, start, _NONE)
                _add(slots, spec, trail, slot, time, arguments, row, _NONE, True)
                twice = slot if start == time - size else twice
            if not has_left and time - size >= close - size:
                if twice >= 0:  # the window of the row is the one behind the row before: told again, and held once
                    _add(slots, spec, trail, twice, time, arguments, row, twice, False)
                else:
                    like = left if left >= 0 and previous >= time - size else np.int64(_NONE)
                    slot = _make(slots, before, chains, spec, place, later, key, key_size, time - size, like)
                    _add(slots, spec, trail, slot, time, arguments, row, _NONE, True)  # new, whatever it begins with
        if right >= 0 and right_stamp > time and time + 1 >= close - size and not _is_there(
            slots, key, key_size, time + 1, low
        ):  # fmt: skip
            slot = _make(slots, before, chains, spec, place, later, key, key_size, time + 1, right)
            _add(slots, spec, trail, slot, right_stamp, arguments, row, _NONE, False)
    return last
