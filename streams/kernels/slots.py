"""Entries of a store as columns: the kernels. Needs numba; `streams.state.columns` owns the arrays and says what they mean.

A slot holds one entry: the span of its record key in `arena`, its window start (0 without windows), its time and its state. A
slot is found through `table` by open addressing over the hash of (key, start). Nothing here grows an array: a kernel that
finds no room stops at a row and is called again from there. Keys are given as addresses; who calls keeps the memory alive.

Shapes: C slots of room, A state columns, J aggregations, N rows, G arguments.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit, types

from logflume.log.memory import load_byte, load_double, load_word

COUNT, SUM, MEAN, MIN, MAX = 0, 1, 2, 3, 4
SLOTS, ARENA, CHANGED = 0, 1, 2
"""Places in `counters`: slots in use, bytes of the arena in use, slots changed."""
MAX_ENTRY_OVERHEAD = 16 + 5 + 9
"""Bytes of an encoded entry beside its key's prefix and states: array head, version and time, window start and segment."""
STATE_BYTES = 9


class Slots(NamedTuple):
    """The arrays of one store. table: int32[2^n], -1 is free; changed: the slots changed since the last commit, in order.

    gone: whether the entry is deleted; stored: whether there was one at the last commit.
    """

    table: Any
    hashes: Any
    key_starts: Any
    key_sizes: Any
    arena: Any
    starts: Any
    times: Any
    ints: Any
    floats: Any
    nulls: Any
    dirty: Any
    used: Any
    changed: Any
    counters: Any
    gone: Any
    stored: Any


class Before(NamedTuple):
    """The states of changed entries before their first change since the last commit, aligned with `changed`; or nothing.

    had: whether there was an entry.
    """

    had: Any
    ints: Any
    floats: Any
    nulls: Any


class Spec(NamedTuple):
    """What `fold` does: per aggregation its kind, first state column and argument (-1: none); per state column its start.

    numbers: 1 to keep the state before.
    """

    kinds: Any
    columns: Any
    args: Any
    is_float: Any
    arg_is_float: Any
    first_ints: Any
    first_floats: Any
    first_nulls: Any
    numbers: Any


_IN_U8 = types.Array(types.uint8, 1, "C", readonly=True)
_IN_I64 = types.Array(types.int64, 1, "C", readonly=True)
_IN_I32 = types.Array(types.int32, 1, "C", readonly=True)
_U8, _I32, _I64 = (types.Array(t, 1, "C") for t in (types.uint8, types.int32, types.int64))
_IN_B1, _IN_I2 = types.Array(types.boolean, 1, "C", readonly=True), types.Array(types.int64, 2, "C", readonly=True)
_F1, _B1 = types.Array(types.float64, 1, "C"), types.Array(types.boolean, 1, "C")
_I2, _F2, _B2 = (types.Array(t, 2, "C") for t in (types.int64, types.float64, types.boolean))
_SLOTS = types.NamedTuple((_I32, _I64, _I64, _I32, _U8, _I64, _I64, _I2, _F2, _B2, _B1, _B1, _I64, _I64, _B1, _B1), Slots)
_BEFORE = types.NamedTuple((_B1, _I2, _F2, _B2), Before)
_SPEC = types.NamedTuple((_I64, _I64, _I64, _I64, _I64, _I64, _F1, _B1, _I64), Spec)


@njit(inline="always")
def hash_of(key: int, size: int, start: int) -> int:
    """Return a hash of a key and a window start: multiply and shift, eight bytes at a time."""
    value = np.uint64(size) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(start)
    value ^= value >> np.uint64(29)
    k = np.int64(0)
    while k + 8 <= size:
        value = (value ^ np.uint64(load_word(key, k))) * np.uint64(0xD6E8FEB86659FD93)
        value ^= value >> np.uint64(32)
        k += 8
    word = np.uint64(0)
    while k < size:
        word = (word << np.uint64(8)) | np.uint64(load_byte(key, k))
        k += 1
    value = (value ^ word) * np.uint64(0xD6E8FEB86659FD93)
    value ^= value >> np.uint64(32)
    value *= np.uint64(0xD6E8FEB86659FD93)
    value ^= value >> np.uint64(29)
    return np.int64(value >> np.uint64(1))


@njit(inline="always")
def find_slot(
    table: Any, hashes: Any, key_starts: Any, key_sizes: Any, arena: Any, starts: Any, key: int, size: int, start: int,
    hashed: int,
) -> Any:  # fmt: skip
    """Return (slot or -1, place in the table where it is or would be)."""
    mask = len(table) - 1
    place = hashed & mask
    found = np.int64(-1)
    while True:
        slot = np.int64(table[place])
        if slot < 0:
            break
        if hashes[slot] == hashed and starts[slot] == start and key_sizes[slot] == size:
            begin = key_starts[slot]
            same = True
            for k in range(size):
                if arena[begin + k] != load_byte(key, k):
                    same = False
                    break
            if same:
                found = slot
                break
        place = (place + 1) & mask
    return found, place


@njit(inline="always")
def new_slot(
    table: Any, hashes: Any, key_starts: Any, key_sizes: Any, arena: Any, starts: Any, dirty: Any, counters: Any, gone: Any,
    stored: Any, key: int, size: int, start: int, hashed: int, place: int,
) -> int:  # fmt: skip
    """Take the next slot for a key that is not there; there must be room."""
    slot = counters[SLOTS]
    counters[SLOTS] = slot + 1
    begin = counters[ARENA]
    counters[ARENA] = begin + size
    for k in range(size):
        arena[begin + k] = load_byte(key, k)
    table[place] = slot
    hashes[slot] = hashed
    key_starts[slot] = begin
    key_sizes[slot] = size
    starts[slot] = start
    dirty[slot] = gone[slot] = stored[slot] = False
    return slot


@njit(inline="always")
def _put_big_endian(out: Any, at: int, value: int, size: int) -> int:
    for k in range(size):
        out[at + k] = (value >> (8 * (size - 1 - k))) & 255
    return at + size


@njit(inline="always")
def add_row(
    states: Any, reals: Any, gaps: Any, slot: int, steps: Any, columns: Any, args: Any, is_float: Any, arg_is_float: Any,
    arguments: Any, row: int,
) -> None:  # fmt: skip
    """Fold the arguments of a row into the state of a slot; see `fold`."""
    for j in range(len(steps)):
        arg = args[j]
        if arg >= 0 and arguments[arg, 0] != 0 and load_byte(arguments[arg, 0], row) != 0:
            continue
        kind, c = steps[j], columns[j]
        if kind == COUNT:
            states[slot, c] += 1
            continue
        was_null = gaps[slot, c]
        gaps[slot, c] = False
        if is_float[c]:
            number: Any = 0.0
            if arg_is_float[arg]:
                number = load_double(arguments[arg, 1], row << 3)
            else:
                number = float(load_word(arguments[arg, 1], row << 3))
            old = reals[slot, c]
            if kind in (SUM, MEAN):
                reals[slot, c] = number if was_null else old + number
            elif was_null or (number < old if kind == MIN else number > old):
                reals[slot, c] = number
        else:
            whole: Any = load_word(arguments[arg, 1], row << 3)
            held = states[slot, c]
            if kind in (SUM, MEAN):
                states[slot, c] = whole if was_null else held + whole
            elif was_null or (whole < held if kind == MIN else whole > held):
                states[slot, c] = whole
        if kind == MEAN:
            states[slot, c + 1] += 1


class Traced(NamedTuple):
    """What `fold` tells of each pair where somebody follows single updates, else nothing: slot, time, state; the state before.

    had: whether there was an entry before. Arrays of P rows, or of none.
    """

    slots: Any
    times: Any
    ints: Any
    floats: Any
    nulls: Any
    had: Any
    old_ints: Any
    old_floats: Any
    old_nulls: Any


_TRACED = types.NamedTuple((_I64, _I64, _I2, _F2, _B2, _B1, _I2, _F2, _B2), Traced)


@njit(
    types.int64(_SLOTS, _BEFORE, _SPEC, _TRACED, _IN_I64, _IN_I32, _IN_I64, _IN_I64, _IN_I64, types.int64, types.int64, _IN_I2),
    cache=True,
    nogil=True,
    error_model="numpy",
)
def fold(
    slots: Any,
    before: Any,
    spec: Any,
    traced: Any,
    keys: Any,
    key_sizes: Any,
    times: Any,
    pair_rows: Any,
    pair_starts: Any,
    first: int,
    last: int,
    arguments: Any,
) -> int:
    """Fold pairs first..last of a row and a window start into their entries; return where it stopped for want of room.

    keys (addresses), key_sizes, times: of the rows, each of which has a key. arguments: int64[G, 2], addresses of the nulls (0:
    none is null) and the data of each.
    """
    table, hashes, slot_starts, slot_sizes, arena, starts, slot_times, states, reals, gaps, dirty, used, _, _, _, _ = slots
    changed, counters, gone, stored = slots.changed, slots.counters, slots.gone, slots.stored
    steps, columns, args, is_float, arg_is_float, first_ints, first_floats, first_nulls, numbers = spec
    had, before_ints, before_floats, before_nulls = before
    keeps, is_traced, has_old = numbers[0] == 1, len(traced.slots) > 0, len(traced.had) > 0
    room, arena_room = len(hashes), len(arena)
    for pair in range(first, last):
        row, start = pair_rows[pair], pair_starts[pair]
        key, key_size, time = keys[row], np.int64(key_sizes[row]), times[row]
        if counters[SLOTS] + 1 > room or counters[ARENA] + key_size > arena_room:
            return pair
        hashed = hash_of(key, key_size, start)
        slot, place = find_slot(table, hashes, slot_starts, slot_sizes, arena, starts, key, key_size, start, hashed)
        is_new = slot < 0 or gone[slot]
        if is_new:
            if slot < 0:
                slot = new_slot(
                    table, hashes, slot_starts, slot_sizes, arena, starts, dirty, counters, gone, stored, key, key_size, start,
                    hashed, place,
                )  # fmt: skip
            gone[slot] = False
            slot_times[slot] = time
            for c in range(len(is_float)):
                states[slot, c] = first_ints[c]
                reals[slot, c] = first_floats[c]
                gaps[slot, c] = first_nulls[c]
        elif time > slot_times[slot]:
            slot_times[slot] = time
        used[slot] = True
        if not dirty[slot]:
            dirty[slot] = True
            k = counters[CHANGED]
            changed[k] = slot
            counters[CHANGED] = k + 1
            if keeps:
                had[k] = not is_new
                for c in range(len(is_float)):
                    before_ints[k, c] = states[slot, c]
                    before_floats[k, c] = reals[slot, c]
                    before_nulls[k, c] = gaps[slot, c]
        if has_old:
            traced.had[pair] = not is_new
            for c in range(len(is_float)):
                traced.old_ints[pair, c] = states[slot, c]
                traced.old_floats[pair, c] = reals[slot, c]
                traced.old_nulls[pair, c] = gaps[slot, c]
        add_row(states, reals, gaps, slot, steps, columns, args, is_float, arg_is_float, arguments, row)
        if is_traced:
            traced.slots[pair], traced.times[pair] = slot, slot_times[slot]
            for c in range(len(is_float)):
                traced.ints[pair, c] = states[slot, c]
                traced.floats[pair, c] = reals[slot, c]
                traced.nulls[pair, c] = gaps[slot, c]
    return last


@njit(types.int64(_IN_I64, _IN_I32, _IN_I64, _U8, _I64), cache=True, nogil=True)
def windowed_keys(keys: Any, key_sizes: Any, starts: Any, out: Any, out_starts: Any) -> int:
    """Write each key (addresses) with a window start behind it; return the bytes written. out_starts: positions in `out`."""
    at = 0
    for i in range(len(keys)):
        out_starts[i] = at
        for k in range(key_sizes[i]):
            out[at + k] = load_byte(keys[i], k)
        at = _put_big_endian(out, at + key_sizes[i], starts[i], 8)
    return at


@njit(types.void(_SLOTS, _IN_I64, _IN_I32, _IN_I64, _I64), cache=True, nogil=True)
def find(slots: Any, keys: Any, key_sizes: Any, starts: Any, found: Any) -> None:
    """Set found[i] to the slot of each (record key, window start), -1 where there is none."""
    table, hashes, slot_starts, slot_sizes, arena, slot_windows, _, _, _, _, _, used, _, _, _, _ = slots
    for i in range(len(key_sizes)):
        size, key, start = np.int64(key_sizes[i]), keys[i], starts[i]
        hashed = hash_of(key, size, start)
        slot, _ = find_slot(table, hashes, slot_starts, slot_sizes, arena, slot_windows, key, size, start, hashed)
        found[i] = slot
        if slot >= 0:
            used[slot] = True


@njit(types.int64(_SLOTS, _IN_I64, _IN_I32, _IN_I64, types.int64, _I64), cache=True, nogil=True)
def find_or_add(slots: Any, keys: Any, key_sizes: Any, starts: Any, first: int, found: Any) -> int:
    """Set found[i] to the slot of each (record key, window start), a new one where there was none.

    Returns where it stopped for want of room.
    """
    table, hashes, slot_starts, slot_sizes, arena, slot_windows, _, _, _, _, dirty, used, _, counters, gone, stored = slots
    for i in range(first, len(key_sizes)):
        size, key, start = np.int64(key_sizes[i]), keys[i], starts[i]
        if counters[SLOTS] + 1 > len(hashes) or counters[ARENA] + size > len(arena):
            return i
        hashed = hash_of(key, size, start)
        slot, place = find_slot(table, hashes, slot_starts, slot_sizes, arena, slot_windows, key, size, start, hashed)
        if slot < 0:
            slot = new_slot(
                table, hashes, slot_starts, slot_sizes, arena, slot_windows, dirty, counters, gone, stored, key, size, start,
                hashed, place,
            )  # fmt: skip
        used[slot] = True
        found[i] = slot
    return len(key_sizes)


@njit(types.void(_SLOTS, _IN_I64), cache=True, nogil=True)
def mark_changed(slots: Any, which: Any) -> None:
    """Note slots as changed, in order; those that are already stay where they are."""
    dirty, used, changed, counters = slots.dirty, slots.used, slots.changed, slots.counters
    for slot in which:
        used[slot] = True
        if not dirty[slot]:
            dirty[slot] = True
            changed[counters[CHANGED]] = slot
            counters[CHANGED] += 1


@njit(types.void(_SLOTS), cache=True, nogil=True)
def rebuild(slots: Any) -> None:
    """Fill an empty table with all slots in use."""
    table, hashes, counters = slots.table, slots.hashes, slots.counters
    mask = len(table) - 1
    for slot in range(counters[SLOTS]):
        place = hashes[slot] & mask
        while table[place] >= 0:
            place = (place + 1) & mask
        table[place] = slot


@njit(types.int64(_IN_U8, _IN_I64, _IN_I32, _IN_I64, _U8, _I64), cache=True, nogil=True)
def gather(buffer: Any, starts: Any, sizes: Any, which: Any, out: Any, out_starts: Any) -> int:
    """Copy the spans of `which` one behind the other; return the bytes written."""
    at = 0
    for i in range(len(which)):
        begin = starts[which[i]]
        out_starts[i] = at
        for k in range(sizes[which[i]]):
            out[at] = buffer[begin + k]
            at += 1
    return at


@njit(types.int64(_IN_I64, _IN_I32, _IN_I64, _U8), cache=True, nogil=True)
def copy_keys(keys: Any, key_sizes: Any, rows: Any, out: Any) -> int:
    """Copy the keys of rows one behind the other; return the bytes written."""
    at = 0
    for row in rows:
        key = keys[row]
        for k in range(key_sizes[row]):
            out[at + k] = load_byte(key, k)
        at += key_sizes[row]
    return at


@njit(inline="always")
def _put_int(out: Any, at: int, value: int) -> int:
    """Write an integer as MessagePack in as few bytes as it takes; return the position after it."""
    if value >= 0:
        if value < 128:
            out[at] = value
            return at + 1
        if value < 256:
            out[at] = 0xCC
            return _put_big_endian(out, at + 1, value, 1)
        if value < 65536:
            out[at] = 0xCD
            return _put_big_endian(out, at + 1, value, 2)
        if value < 4294967296:
            out[at] = 0xCE
            return _put_big_endian(out, at + 1, value, 4)
        out[at] = 0xCF
        return _put_big_endian(out, at + 1, value, 8)
    if value >= -32:
        out[at] = value & 255
        return at + 1
    if value >= -128:
        out[at] = 0xD0
        return _put_big_endian(out, at + 1, value, 1)
    if value >= -32768:
        out[at] = 0xD1
        return _put_big_endian(out, at + 1, value, 2)
    if value >= -2147483648:
        out[at] = 0xD2
        return _put_big_endian(out, at + 1, value, 4)
    out[at] = 0xD3
    return _put_big_endian(out, at + 1, value, 8)


@njit(
    types.int64(_SLOTS, _I2, _IN_I64, _I64, _IN_U8, types.int64, types.int64, _U8, _I64, _I32, _I64, _I32, _I64),
    cache=True,
    nogil=True,
)
def encode(
    slots: Any,
    float_bits: Any,
    which: Any,
    is_float: Any,
    prefix: Any,
    segment: int,
    version: int,
    out: Any,
    key_starts: Any,
    key_sizes: Any,
    value_starts: Any,
    value_sizes: Any,
    ranks: Any,
) -> int:
    """Encode entries as `codec.EntryCodec` and `Store.disk_key` do; return the bytes written.

    segment: length of a segment in ms, 0 for a store without windows. Before each key stand prefix and, with windows, the
    segment's start; key_starts points behind them; the value of a deleted entry is null. float_bits: slots.floats as int64.
    ranks: numbers that sort about as the keys on disk do, of the segment, five bytes behind what all record keys begin with, and
    the start.
    """
    _, _, slot_starts, slot_sizes, arena, starts, times, ints, _, nulls, _, _, _, _, gone, _ = slots
    at, columns, common, oldest = 0, ints.shape[1], np.int64(0), np.int64(0)
    if len(which) > 0:
        model = slot_starts[which[0]]
        common = np.int64(slot_sizes[which[0]])
        if segment > 0:
            oldest = starts[which[0]] // segment
        for slot in which:
            begin, k = slot_starts[slot], np.int64(0)
            common = min(common, np.int64(slot_sizes[slot]))
            while k < common and arena[begin + k] == arena[model + k]:
                k += 1
            common = k
            if segment > 0:
                oldest = min(oldest, starts[slot] // segment)
    for i in range(len(which)):
        slot = which[i]
        for k in range(len(prefix)):
            out[at + k] = prefix[k]
        at += len(prefix)
        start = starts[slot]
        if segment > 0:
            at = _put_big_endian(out, at, start - start % segment, 8)
        key_starts[i] = at
        begin = slot_starts[slot]
        rank = np.int64(0)
        if segment > 0:
            rank = min(np.int64(127), start // segment - oldest) << 56 | start % segment * 65535 // segment
        for k in range(slot_sizes[slot]):
            byte = arena[begin + k]
            out[at + k] = byte
            if common <= k < common + 5:
                rank |= np.int64(byte) << (48 - 8 * (k - common))
        ranks[i] = rank
        at += slot_sizes[slot]
        if segment > 0:
            at = _put_big_endian(out, at, start, 8)
        key_sizes[i] = at - key_starts[i]
        value_starts[i] = at
        if gone[slot]:
            value_sizes[i] = -1
            continue
        out[at] = 0x90 | (columns + 2)
        at = _put_int(out, at + 1, version)
        at = _put_int(out, at, times[slot])
        for c in range(columns):
            if nulls[slot, c]:
                out[at] = 0xC0
                at += 1
            elif is_float[c]:
                out[at] = 0xCB
                at = _put_big_endian(out, at + 1, float_bits[slot, c], 8)
            else:
                at = _put_int(out, at, ints[slot, c])
        value_sizes[i] = at - value_starts[i]
    return at


@njit(inline="always")
def _big_endian(data: Any, at: int, size: int) -> int:
    value = np.int64(0)
    for k in range(size):
        value = (value << 8) | np.int64(data[at + k])
    return value


@njit(inline="always")
def _int_size(head: int) -> int:
    """Return how many bytes of an integer follow its head in MessagePack, -1 where it is no integer."""
    if head < 0x80 or head >= 0xE0:
        return 0
    return 1 << (head & 3) if 0xCC <= head <= 0xD3 else -1


@njit(inline="always")
def _take_int(data: Any, at: int, size: int) -> int:
    """Return the integer whose head is at `at`, with `size` bytes behind it."""
    head = np.int64(data[at])
    if size == 0:
        return head if head < 0x80 else head - 256
    value = _big_endian(data, at + 1, size)
    if head >= 0xD0 and size < 8 and value >> (8 * size - 1) != 0:
        value -= np.int64(1) << (8 * size)
    return value


@njit(types.int64(_IN_U8, _IN_I64, _IN_I32, types.int64, _I64, _I2, _B2), cache=True, nogil=True)
def decode(data: Any, starts: Any, sizes: Any, version: int, times: Any, ints: Any, nulls: Any) -> int:
    """Read encoded entries whose states are integers: their times, and states and which of them are null, [A, N].

    Returns the first entry that is not of this version with A integers or nulls, N where all are. What begins as one is whole.
    """
    columns, count = ints.shape
    for i in range(count):
        if sizes[i] < 0:
            return i
        at, fields = starts[i], np.int64(-1)
        if data[at] & 0xF0 == 0x90:
            fields = data[at] & 15
            at += 1
        elif data[at] == 0xDC:
            fields = _big_endian(data, at + 1, 2)
            at += 3
        if fields != columns + 2:
            return i
        for c in range(-2, columns):
            if c >= 0:
                nulls[c, i] = data[at] == 0xC0
                if nulls[c, i]:
                    ints[c, i] = 0
                    at += 1
                    continue
            size = _int_size(np.int64(data[at]))
            if size < 0:
                return i
            value = _take_int(data, at, size)
            at += 1 + size
            if c >= 0:
                ints[c, i] = value
            elif c == -1:
                times[i] = value
            elif value != version:
                return i
        if at != starts[i] + sizes[i]:
            return i
    return count
