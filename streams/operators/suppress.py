"""Holds changes of a table back: the latest of each key, until its window closes or a time has passed.

An entry of the store is what is held back of a key: the time by which it leaves (its window's end, the time of its first
change), the latest row with the headers of its record, and the row before the first change, which is the one that left last;
of either whether there is one, and its columns. Which entry leaves when depends on times and keys alone: `Leaving`.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any

import numpy as np

from logflume.log import LogflumeError
from logflume.log.records import I64, Headers
from logflume.log.schemas import BIGINT, BOOLEAN, BYTES, STRING, array, struct
from logflume.log.schemas import Column as Field

from .. import graph as g
from ..columns import Batch
from ..columns.batch import ColumnId, headers_of
from ..expr import Meta, Side
from ..seams import Entry, State, StoreSpec
from ..vectors.expressions import Mask
from ..windows import close_wait_ms
from .emission import Emission, Emitted, olds_of, rows_of
from .operator import Bind, Cut, Operator, Task, Wiring, Work
from .rows import drop_entry
from .slices import TOLD_OF_NOTHING_MS, Slice, writes_repartition

_HEAD = 4
"""Columns of an entry before those of the two rows."""
_ENTRY_OVERHEAD_BYTES = 32
_NEVER_MS = 1 << 63
_HEADERS = array(struct(Field("KEY", STRING), Field("VALUE", BYTES)))


def held_columns(row: Sequence[Field]) -> tuple[Field, ...]:
    """Return the columns of what is held back of rows."""
    head = (Field("leaves", BIGINT), Field("has_row", BOOLEAN), Field("had_row", BOOLEAN), Field("headers", _HEADERS))
    return (*head, *(Field(f"{side}:{c.name}", c.type) for side in ("row", "before") for c in row))


def before_of(state: State) -> State | None:
    """Return the row before of what is held back."""
    return state[(_HEAD + len(state)) // 2 :] if state[2] else None


class BufferFull(LogflumeError):
    """A bounded suppress() holds back more than it may, and was told to stop then."""

    code = "BUFFER_FULL"


class SuppressOperator(Operator[g.Suppress]):
    """A Suppress."""

    node_class = g.Suppress
    keeps_windows_apart = True

    def reads(self, source: g.Node, below: frozenset[ColumnId], wiring: Wiring) -> set[ColumnId]:
        return {(Side.VALUE, column.name) for column in source.schema.value}

    def stores(self) -> tuple[StoreSpec, ...]:
        return (StoreSpec(self.node.store, self.node.schema.key, held_columns(self.node.schema.value)),)

    def wants_old(self, *, is_asked: bool) -> bool:
        return True

    def cut(self, wiring: Wiring) -> Cut:
        """Not where a bound holds over all keys: which one leaves for want of room hangs on those of others.

        Nor where results go to a repartition topic: those that one record lets go are of several slices, and have an order there.
        """
        is_bounded = self.node.max_records is not None or self.node.max_bytes is not None
        return Cut.WHOLE if is_bounded or writes_repartition(wiring, self.node.name) else Cut.TIMES

    def plan(self, wiring: Wiring) -> Bind:
        return lambda task: SuppressWork(self.node, wiring, task)


class SuppressWork(Work):
    """See `SuppressOperator`."""

    def __init__(self, node: g.Suppress, wiring: Wiring, task: Task) -> None:
        self._node, self._task, self._window = node, task, node.schema.window
        self._store = task.store(node.store)
        assert node.wait_ms is not None or self._window is not None
        self._wait_ms = node.wait_ms if node.wait_ms is not None else close_wait_ms(self._window)  # type: ignore[arg-type]
        self._emission = Emission(node, wiring, keeps_keys=False)
        self._leaving: Leaving | None = None
        self._sizes: dict[bytes, int] = {}
        self._held_bytes = 0
        self._is_bounded = node.max_records is not None or node.max_bytes is not None
        self._has_wait = node.wait_ms is not None
        self._is_measured = node.max_bytes is not None
        self._nothing = (None,) * len(node.schema.value)
        self._slice: Slice | None = None

    # -- slices ----------------------------------------------------------------------------------------------------------

    def cut(self, own: Slice) -> bool:
        """What is held back leaves with the row that ends its time, of whichever slice: so all rows are wanted."""
        self._slice = own
        return True

    @property
    def slack_ms(self) -> int:
        return TOLD_OF_NOTHING_MS

    def moves_time(self, batch: Batch) -> Mask:
        return np.ones(len(batch), np.bool_)

    def note_time(self, source: str, time_ms: int) -> None:
        self._store.stream_time_ms = max(self._store.stream_time_ms, time_ms)

    # -- holding back ----------------------------------------------------------------------------------------------------

    def process(self, batch: Batch, source: str) -> None:
        leaving, store, is_bounded, wait_ms = self._held(), self._store, self._is_bounded, self._wait_ms
        clocks = np.maximum.accumulate(np.maximum(batch.times, store.stream_time_ms))
        places = np.arange(len(batch)) if self._slice is None else np.flatnonzero(self._slice.own(batch))
        mine = batch if self._slice is None else batch.take(places)
        assert mine.keys is not None
        columns, keys = self._node.schema.value, mine.keys.objects()
        store.load(keys)  # type: ignore[arg-type]
        coming = batch.headers()
        own = [None] * len(mine) if coming is None else headers_of([coming[row] for row in places.tolist()])
        rows: Any = zip(
            places.tolist(), keys, rows_of(mine, columns), olds_of(mine, columns), mine.times.tolist(), self._leaving_times(mine),
            own, strict=True,
        )  # fmt: skip
        times = clocks.tolist()
        emitted, headers = Emitted(), list[Headers]()
        resident, note, nothing = store.resident, store.dirty.setdefault, self._nothing
        stop, following = _HEAD + len(nothing), 0
        for row, key, new, old, time, leaves, came_with in rows:
            if row > following and leaving.first_ms <= times[row - 1] - wait_ms:
                self._release_due(leaving, clocks[:row], emitted, headers)
            following, now = row + 1, times[row]
            store.stream_time_ms = now
            entry = resident.get(key)
            known = None if entry is None else entry.state
            note(key, known)
            latest = nothing if new is None else new
            if entry is not None and known is not None:
                entry.state = (known[0], new is not None, known[2], came_with, *latest, *known[stop:])
                entry.timestamp_ms = time
            else:
                before = nothing if old is None else old
                resident[key] = Entry((leaves, new is not None, old is not None, came_with, *latest, *before), time)
                leaving.add(leaves, key)
            if is_bounded:
                self._measure(key)
                self._release_surplus(leaving, emitted, headers, row)
            if leaving.first_ms <= now - wait_ms:
                self._release(leaving.take(now - wait_ms), emitted, headers, row)
        self._release_due(leaving, clocks, emitted, headers)
        store.stream_time_ms = int(clocks[-1])
        self._emission.forward(self._task, emitted, batch, headers=headers)

    def _release_due(self, leaving: Leaving, clocks: I64, emitted: Emitted, headers: list[Headers]) -> None:
        """Let go of what rows of other slices have ended the time of; `clocks`: stream time with each row so far."""
        while leaving.first_ms <= int(clocks[-1]) - self._wait_ms:
            row = int(clocks.searchsorted(leaving.first_ms + self._wait_ms))
            self._release(leaving.take(int(clocks[row]) - self._wait_ms), emitted, headers, row)

    def _held(self) -> Leaving:
        if self._leaving is None:
            self._leaving = Leaving()
            held = list(self._store.range(b"", None))
            self._store.resident.update(held)
            for key, entry in held:
                assert entry.state is not None, "a store shows living entries"
                self._leaving.add(entry.state[0], key)
                self._measure(key)
        return self._leaving

    def _leaving_times(self, batch: Batch) -> list[Any]:
        """Return the time of each row, or the end of its window, by which it leaves."""
        return batch.times.tolist() if self._has_wait else batch.column(Side.META, Meta.WINDOWEND).objects()

    def _measure(self, key: bytes) -> None:
        """Count the bytes that an entry holds, where they are bounded."""
        if not self._is_measured:
            return
        entry = self._store.resident.get(key)
        state = None if entry is None else entry.state
        size = 0
        if state is not None:
            row = list(state[_HEAD : _HEAD + len(self._nothing)]) if state[1] else None
            headers = len(repr(state[3])) if state[3] else 0
            size = len(key) + len(repr(row)) + headers + _ENTRY_OVERHEAD_BYTES
        self._held_bytes += size - self._sizes.pop(key, 0)
        if size:
            self._sizes[key] = size

    def _release_surplus(self, leaving: Leaving, emitted: Emitted, headers: list[Headers], row: int) -> None:
        """Let go of what is held back beyond the bounds, and of what is due."""
        node, closed = self._node, self._store.stream_time_ms - self._wait_ms
        while leaving.count and (leaving.first_ms <= closed or self._is_over(leaving.count)):
            if leaving.first_ms > closed and node.when_full is g.WhenFull.SHUT_DOWN:
                raise BufferFull(
                    f"{node.name}: {leaving.count} results are held back, more than max_records={node.max_records} or "
                    f"max_bytes={node.max_bytes} allow: raise the bound, or let when_full='emit_early'"
                )
            self._release([leaving.pop()], emitted, headers, row)

    def _release(self, keys: Sequence[bytes], emitted: Emitted, headers: list[Headers], row: int) -> None:
        """Let go of what is held back of keys, with the headers that each came with."""
        store = self._store
        found = [(key, store.resident[key]) for key in keys]
        held: list[tuple[bytes, Any, int]] = [(key, entry.state, entry.timestamp_ms) for key, entry in found]
        for key, _, time in held:
            drop_entry(store, key, time)
        if self._is_measured:
            for key in keys:
                self._measure(key)
        if not self._has_wait:
            held = [each for each in held if each[1][1]]
        stop = _HEAD + len(self._nothing)
        values = [state[_HEAD:stop] if state[1] else None for _, state, _ in held]
        olds = [before_of(state) for _, state, _ in held]
        emitted.add_all(row, [key for key, _, _ in held], [time for _, _, time in held], values, olds)
        headers += [tuple((header["KEY"], header["VALUE"]) for header in state[3]) if state[3] else () for _, state, _ in held]

    def _is_over(self, count: int) -> bool:
        node = self._node
        too_many = node.max_records is not None and count > node.max_records
        return too_many or (node.max_bytes is not None and self._held_bytes > node.max_bytes)


class Leaving:
    """Keys in the order in which they leave, by (time, key): a heap of times, and for each one of keys.

    Attributes:
        count: how many there are.
        first_ms: the time of the first, far away if there is none.
    """

    def __init__(self) -> None:
        self.count, self.first_ms = 0, _NEVER_MS
        self._times: list[int] = []
        self._keys: dict[int, list[bytes]] = {}

    def add(self, time_ms: int, key: bytes) -> None:
        """Add a key that is not there."""
        keys = self._keys.get(time_ms)
        if keys is None:
            keys = self._keys[time_ms] = []
            heappush(self._times, time_ms)
            self.first_ms = self._times[0]
        heappush(keys, key)
        self.count += 1

    def pop(self) -> bytes:
        """Take the first key."""
        keys = self._keys[self.first_ms]
        key = heappop(keys)
        self.count -= 1
        if not keys:
            self._drop_first()
        return key

    def take(self, until_ms: int) -> list[bytes]:
        """Take the keys up to and with a time."""
        found: list[bytes] = []
        while self.first_ms <= until_ms:
            found += sorted(self._drop_first())
        self.count -= len(found)
        return found

    def _drop_first(self) -> list[bytes]:
        keys = self._keys.pop(heappop(self._times))
        self.first_ms = self._times[0] if self._times else _NEVER_MS
        return keys
