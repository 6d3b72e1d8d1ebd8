"""Entries of one store as typed columns, for stores whose states are numbers (architecture, D6).

An entry is a slot: its key (interned in one byte arena), window start, time and state at the same place of several arrays. The
kernels work on the arrays (`streams.kernels.slots`); who wants objects is lent single entries and gives them back
(`Store.settle`).

Shapes: S slots in use, A state columns.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from logflume.log.records import Chunk
from logflume.log.schemas import Column, Kind
from logflume.streams.seams import Entry, State

from .codec import ENTRY_VERSION
from .dirty import DirtyColumns
from .windows import WINDOW_START_BYTES

I64 = npt.NDArray[np.int64]
_FIRST_SLOTS = 1024
_FIRST_ARENA_BYTES = 16 * _FIRST_SLOTS
_SPARE_SHARE = 8
"""After entries have gone, arrays keep room for up to so many times what remains: it soon fills again."""
_PER_SLOT = ("hashes", "key_sizes", "starts", "times", "ints", "floats", "nulls", "dirty", "used", "gone", "stored")
_PAGES_FROM_BYTES = 1 << 21
"""Of keys, or so many slots by sixteen: the arrays of such a store are not of glibc's heap.

That keeps what lies between live pieces, and hands out large pieces again with all their pages.
"""
_KINDS = (Kind.INTEGER, Kind.BIGINT, Kind.TIMESTAMP, Kind.DOUBLE)
_MAX_STATES = 13
"""With version and time, what one byte of MessagePack can say the length of."""


def holds(columns: Sequence[Column]) -> bool:
    """Return whether states of these columns can be kept as arrays."""
    return len(columns) <= _MAX_STATES and all(column.type.kind in _KINDS for column in columns)


class EntryColumns:
    """See the module. One thread.

    Invariants: every slot in use is in the table; `changed` lists the dirty slots, each once, in the order of their first change
    since the last commit.
    """

    def __init__(
        self, kernels: ModuleType, columns: Sequence[Column], *, is_windowed: bool, keeps_before: bool = False,
        beside_bytes: int = 0,
    ) -> None:  # fmt: skip
        """`keeps_before`: keep the states of dirty slots as they were at the last commit. `beside_bytes`: as in `Store`."""
        self.kernels = kernels
        self._keeps_before, self._beside_bytes = keeps_before, beside_bytes
        self.is_windowed = is_windowed
        self.is_float = np.array([column.type.kind is Kind.DOUBLE for column in columns], np.int64)
        self.slots: Any = self._empty(_FIRST_SLOTS, _FIRST_ARENA_BYTES)
        self._gone_count = 0
        self.renumbered = 0
        """How many times the slots have been given other numbers."""
        self.turns: I64 | None = None
        """Of each slot, what dirty ones are written in order of, where slots may get other keys."""
        self.before: Any = self._empty_before(_FIRST_SLOTS)

    def __len__(self) -> int:
        return int(self.slots.counters[self.kernels.SLOTS])

    @property
    def changed(self) -> I64:
        """The dirty slots, in order of their first change since the last commit."""
        found: I64 = self.slots.changed[: self.slots.counters[self.kernels.CHANGED]]
        return found

    def all_slots(self) -> I64:
        """The slots in use."""
        return np.arange(len(self))

    def window_starts(self) -> I64:
        """The window start of each slot in use, int64[S]; 0 without windows."""
        starts: I64 = self.slots.starts[: len(self)]
        return starts

    @property
    def is_whole(self) -> bool:
        """Whether all entries that are alive have to be here."""
        return self._beside_bytes > 0

    def size_bytes(self) -> int:
        """Return how much memory the slots in use take, and the table."""
        per_slot = 3 * 8 + 4 + 8 + 8 + 4 + len(self.is_float) * 17 + self._beside_bytes
        return len(self) * per_slot + len(self.slots.table) * 4 + int(self.slots.counters[self.kernels.ARENA])

    # -- objects ---------------------------------------------------------------------------------------------------------

    def find(self, keys: Sequence[bytes]) -> I64:
        """Return the slot of each key, -1 where there is none."""
        _kept, starts, sizes, windows = self._spans(keys)
        found = np.empty(len(keys), np.int64)
        self.kernels.find(self.slots, starts, sizes, windows, found)
        return found

    def entries(self, slots: I64) -> list[Entry]:
        """Return the entries of slots as objects; those that are deleted have no state."""
        found = self._entries(slots)
        for place in np.flatnonzero(self.slots.gone[slots]).tolist():
            found[place].state = None
        return found

    def _entries(self, slots: I64) -> list[Entry]:
        nulls, parts = self.slots.nulls[slots], []
        for c, is_float in enumerate(self.is_float.tolist()):
            values = (self.slots.floats if is_float else self.slots.ints)[slots, c].tolist()
            if nulls[:, c].any():
                values = [None if null else value for value, null in zip(values, nulls[:, c].tolist(), strict=True)]
            parts.append(values)
        return list(map(Entry, zip(*parts, strict=True), self.slots.times[slots].tolist()))

    def states_before(self) -> list[State | None]:
        """Return the state of each dirty slot at the last commit, None where there was none; in the order of `changed`."""
        assert self._keeps_before
        count, parts = len(self.changed), []
        for c, is_float in enumerate(self.is_float.tolist()):
            values = (self.before.floats if is_float else self.before.ints)[:count, c].tolist()
            nulls = self.before.nulls[:count, c].tolist()
            parts.append([None if null else value for value, null in zip(values, nulls, strict=True)])
        had = self.before.had[:count].tolist()
        return [state if there else None for state, there in zip(zip(*parts, strict=True), had, strict=True)]

    def keys(self, slots: I64) -> list[bytes]:
        """Return the keys of slots, with the window start."""
        arena, starts, sizes = self.slots.arena.tobytes(), self.slots.key_starts[slots], self.slots.key_sizes[slots]
        keys = [arena[a:b] for a, b in zip(starts.tolist(), (starts + sizes).tolist(), strict=True)]
        if not self.is_windowed:
            return keys
        tails = self.slots.starts[slots].astype(">i8").tobytes()
        size = WINDOW_START_BYTES
        return [key + tails[at : at + size] for key, at in zip(keys, range(0, len(tails), size), strict=True)]

    def put(
        self, keys: Sequence[bytes], entries: Sequence[Entry], *, is_changed: bool, before: Sequence[State | None] = ()
    ) -> None:
        """Take entries given as objects; those without a state are deleted.

        `is_changed`: they differ from what is on disk; `before`: then their states before, used for those not dirty yet.
        """
        if not keys:
            return
        _kept, starts, sizes, windows = self._spans(keys)
        found, at = np.empty(len(keys), np.int64), 0
        while (at := self.kernels.find_or_add(self.slots, starts, sizes, windows, at, found)) < len(keys):
            self.grow(1, int(sizes[at]))
        slots = self.slots
        slots.times[found] = [entry.timestamp_ms for entry in entries]
        slots.gone[found] = [entry.state is None for entry in entries]
        nothing = (None,) * len(self.is_float)
        for c, values in enumerate(zip(*[entry.state or nothing for entry in entries], strict=True)):
            is_null = [value is None for value in values]
            slots.nulls[found, c] = is_null
            target = slots.floats if self.is_float[c] else slots.ints
            target[found, c] = [0 if value is None else value for value in values] if any(is_null) else values
        if not is_changed:
            slots.stored[found] = ~slots.gone[found]
            return
        clean = ~slots.dirty[found]
        slots.stored[found[clean]] = np.fromiter([state is not None for state in before], np.bool_, len(keys))[clean]
        if self._keeps_before:
            fresh = np.flatnonzero(~slots.dirty[found]).tolist()
            self._note_before([before[i] for i in fresh])
        self.kernels.mark_changed(slots, found)

    def _note_before(self, states: Sequence[State | None]) -> None:
        """Keep the states before of slots that are about to become dirty, in this order."""
        at = len(self.changed)
        for k, state in enumerate(states, at):
            self.before.had[k] = state is not None
            for c, value in enumerate(state or ()):
                self.before.nulls[k, c] = value is None
                if value is not None:
                    (self.before.floats if self.is_float[c] else self.before.ints)[k, c] = value

    def _spans(self, keys: Sequence[bytes]) -> tuple[Any, I64, npt.NDArray[np.int32], I64]:
        """Return one buffer of all keys; addresses in it and sizes of the record keys, and the window starts."""
        data = np.frombuffer(b"".join(keys) or b"\0", np.uint8)
        sizes = np.fromiter(map(len, keys), np.int64, len(keys))
        ends = np.cumsum(sizes)
        starts = ends - sizes
        if not self.is_windowed:
            return data, starts + data.ctypes.data, sizes.astype(np.int32), np.zeros(len(keys), np.int64)
        tails = data[(ends - WINDOW_START_BYTES)[:, None] + np.arange(WINDOW_START_BYTES)]
        windows = np.ascontiguousarray(tails).view(">i8").reshape(-1).astype(np.int64)
        return data, starts + data.ctypes.data, (sizes - WINDOW_START_BYTES).astype(np.int32), windows

    # -- task commit -----------------------------------------------------------------------------------------------------

    def encode(self, which: I64, prefix: bytes, segment_ms: int) -> DirtyColumns:
        """Return the entries of slots as the object store would write them; see `slots.encode`."""
        slots = self.slots
        count, head = len(which), len(prefix) + (WINDOW_START_BYTES if segment_ms else 0)
        room = int(slots.key_sizes[which].sum(dtype=np.int64))
        room += count * (head + self.kernels.MAX_ENTRY_OVERHEAD + self.kernels.STATE_BYTES * len(self.is_float))
        out = np.empty(room + 1, np.uint8)
        key_starts, value_starts = np.empty(count, np.int64), np.empty(count, np.int64)
        key_sizes, value_sizes = np.empty(count, np.int32), np.empty(count, np.int32)
        ranks = np.empty(count, np.int64)
        self.kernels.encode(
            slots, slots.floats.view(np.int64), which, self.is_float, np.frombuffer(prefix or b"\0", np.uint8)[: len(prefix)],
            segment_ms, ENTRY_VERSION, out, key_starts, key_sizes, value_starts, value_sizes,
            ranks,
        )  # fmt: skip
        none = np.zeros(count, np.int32)
        chunk = Chunk(
            "", -1, out, np.arange(count), slots.times[which], key_starts, key_sizes, value_starts, value_sizes,
            none.astype(np.int64), none, count,
        )  # fmt: skip
        return DirtyColumns(chunk, head, ranks)

    def unwritten(self) -> I64:
        """Return the dirty slots that have something to write: not those that came and went since the last commit."""
        changed, slots = self.changed, self.slots
        if self.turns is not None:
            changed = changed[np.argsort(self.turns[changed], kind="stable")]
        found: I64 = changed[~slots.gone[changed] | slots.stored[changed]]
        return found

    def committed(self) -> None:
        """Nothing differs from the disk any more. Deleted entries go once they are half of all."""
        slots, changed = self.slots, self.changed
        slots.dirty[changed] = False
        slots.stored[changed] = ~slots.gone[changed]
        slots.counters[self.kernels.CHANGED] = 0
        self._gone_count += int(slots.gone[changed].sum())
        if 2 * self._gone_count > len(self):
            self.keep(~slots.gone[: len(self)])

    # -- room ------------------------------------------------------------------------------------------------------------

    def grow(self, slots: int, key_bytes: int) -> None:
        """Make room for more slots and bytes of keys: at least as many as are asked for, and at least twice what there is."""
        counters, room, arena = self.slots.counters, len(self.slots.hashes), len(self.slots.arena)
        assert len(self) < 2**31, "slots are numbered in 32 bits"
        while room < counters[self.kernels.SLOTS] + slots:
            room *= 2
        while arena < counters[self.kernels.ARENA] + key_bytes:
            arena *= 2
        self._rebuild(None, room, arena)

    def make_room(self, slots: int, key_bytes: int) -> None:
        """Grow unless there is room for so many more slots, with so many bytes of keys."""
        counters, kernels = self.slots.counters, self.kernels
        if counters[kernels.SLOTS] + slots > len(self.slots.hashes) or counters[kernels.ARENA] + key_bytes > len(
            self.slots.arena
        ):
            self.grow(slots, key_bytes)

    def evict(self, wanted: int) -> I64:
        """Keep about `wanted` slots, clean ones that were not used since the last time going first, then the oldest.

        Returns the window starts of those that went.
        """
        count = len(self)
        rank = self.slots.used[:count].astype(np.int64) * count + np.arange(count)
        rank[self.slots.dirty[:count]] = 2 * count
        mask = np.ones(count, np.bool_)
        mask[np.argsort(rank, kind="stable")[: count - wanted]] = False
        mask |= self.slots.dirty[:count]
        gone = self.window_starts()[~mask]
        self.slots.used[:count] = False
        self.keep(mask)
        return gone

    def keep(self, mask: npt.NDArray[np.bool_]) -> int:
        """Drop the slots whose place in bool[S] is False; return how many."""
        gone = len(self) - int(mask.sum())
        which = np.flatnonzero(mask)
        room, arena = len(self.slots.hashes), len(self.slots.arena)
        while room > max(_SPARE_SHARE * len(which), _FIRST_SLOTS):
            room //= 2
        while arena > max(_SPARE_SHARE * int(self.slots.key_sizes[which].sum(dtype=np.int64)), _FIRST_ARENA_BYTES):
            arena //= 2
        self._rebuild(which, room, arena)
        return gone

    def _rebuild(self, which: I64 | None, room: int, arena: int) -> None:
        """Copy the slots `which` (None: all, keeping their numbers) into new arrays, in that order.

        Array by array, each old one let go of at once: so the store never takes twice its memory.
        """
        kernels, changed, count = self.kernels, self.changed, len(self) if which is None else len(which)
        kept: Any = slice(None)
        if which is not None:
            self.renumbered += 1
            self._gone_count = int(self.slots.gone[which].sum())
            place = np.full(len(self), -1, np.int64)
            place[which] = np.arange(count)
            kept = place[changed] >= 0
            changed = place[changed[kept]]
        new, before = self._empty(room, arena), self._empty_before(room)
        if self._keeps_before:
            for ours, theirs in zip(self.before, before, strict=True):
                part = ours[: len(self.changed)][kept]
                theirs[: len(part)] = part
        self.before = before
        new.counters[:] = self.slots.counters
        new.counters[kernels.SLOTS], new.counters[kernels.CHANGED] = count, len(changed)
        new.changed[: len(changed)] = changed
        old = self.slots._asdict()
        self.slots = self.slots._replace(**dict.fromkeys(old.keys() - {"counters"}))  # those are asked for by other threads
        if which is None:
            used = int(new.counters[kernels.ARENA])
            new.arena[:used] = old.pop("arena")[:used]
            new.key_starts[:count] = old.pop("key_starts")[:count]
        else:
            new.counters[kernels.ARENA] = kernels.gather(
                old.pop("arena"), old.pop("key_starts"), old["key_sizes"], which, new.arena, new.key_starts
            )
        for name in _PER_SLOT:
            getattr(new, name)[:count] = old.pop(name)[slice(count) if which is None else which]
        kernels.rebuild(new)
        self.slots = new

    def _empty_before(self, room: int) -> Any:
        room, states = room if self._keeps_before else 0, len(self.is_float)
        return self.kernels.Before(
            had=np.empty(room, np.bool_),
            ints=np.empty((room, states), np.int64),
            floats=np.empty((room, states), np.float64),
            nulls=np.empty((room, states), np.bool_),
        )

    def _empty(self, room: int, arena: int) -> Any:
        states = len(self.is_float)
        make = pages if max(16 * room, arena) >= _PAGES_FROM_BYTES else np.empty
        table = make(2 * room, np.int32)
        table.fill(-1)
        return self.kernels.Slots(
            table=table,
            hashes=make(room, np.int64),
            key_starts=make(room, np.int64),
            key_sizes=make(room, np.int32),
            arena=make(arena, np.uint8),
            starts=make(room, np.int64),
            times=make(room, np.int64),
            ints=make((room, states), np.int64),
            floats=make((room, states), np.float64),
            nulls=make((room, states), np.bool_),
            dirty=make(room, np.bool_),
            used=make(room, np.bool_),
            changed=make(room, np.int64),
            counters=np.zeros(8, np.int64),
            gone=make(room, np.bool_),
            stored=make(room, np.bool_),
        )


def pages(shape: int | tuple[int, ...], kind: type[np.generic]) -> Any:
    """Return an array of zeros that is pages of its own: taken as they fill, given back with it."""
    count = int(np.prod(shape))
    data = mmap.mmap(-1, max(1, count * np.dtype(kind).itemsize), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(data, kind, count).reshape(shape)
