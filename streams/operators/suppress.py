"""Holds changes of a table back: the latest of each key, until its window closes or a time has passed.

An entry of the store is what is held back of a key: the time by which it leaves (its window's end, the time of its first
change), the latest row, and the row before the first change, which is the one that left last. Which entry leaves when depends on
times and keys alone: a heap of (time, key).
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Any

from logflume.log import LogflumeError
from logflume.log.schemas import ANY, BIGINT
from logflume.log.schemas import Column as Field

from .. import graph as g
from ..columns import Batch
from ..columns.batch import ColumnId
from ..expr import Side
from ..seams import Entry, State, StoreSpec
from ..windows import WINDOW_START, TimeWindow, bounds_of_key, close_wait_ms
from .emission import Emission, Emitted, olds_of, rows_of
from .operator import Bind, Operator, Task, Wiring, Work
from .rows import drop_entry

HELD = (Field("leaves", BIGINT), Field("row", ANY), Field("before", ANY))
_ENTRY_OVERHEAD_BYTES = 32


class BufferFull(LogflumeError):
    """A bounded suppress() holds back more than it may, and was told to stop then."""

    code = "BUFFER_FULL"


class SuppressOperator(Operator[g.Suppress]):
    """A Suppress."""

    node_class = g.Suppress

    def reads(self, source: g.Node, below: frozenset[ColumnId], wiring: Wiring) -> set[ColumnId]:
        return {(Side.VALUE, column.name) for column in source.schema.value}

    def stores(self) -> tuple[StoreSpec, ...]:
        return (StoreSpec(self.node.store, self.node.schema.key, HELD),)

    def wants_old(self, *, is_asked: bool) -> bool:
        return True

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
        self._heap: list[tuple[int, bytes]] | None = None
        self._sizes: dict[bytes, int] = {}
        self._held_bytes = 0
        self._is_bounded = node.max_records is not None or node.max_bytes is not None

    def process(self, batch: Batch, source: str) -> None:
        assert batch.keys is not None
        columns = self._node.schema.value
        keys: list[Any] = batch.keys.objects()
        heap = self._held()
        self._store.load(keys)
        emitted, store, is_bounded = Emitted(), self._store, self._is_bounded
        now = store.stream_time_ms
        for row, (key, new, old, time) in enumerate(
            zip(keys, rows_of(batch, columns), olds_of(batch, columns), batch.times.tolist(), strict=True)
        ):
            if time > now:
                store.stream_time_ms = now = time
            self._hold(heap, key, new, old, time)
            if is_bounded or heap[0][0] <= now - self._wait_ms:
                self._release(heap, emitted, row)
        self._emission.forward(self._task, emitted, batch)

    def _held(self) -> list[tuple[int, bytes]]:
        if self._heap is None:
            self._heap = [(entry.state[0], key) for key, entry in self._store.range(b"", None) if entry.state is not None]
            heapify(self._heap)
            self._store.load([key for _, key in self._heap])
            if self._node.max_bytes is not None:
                for _, key in self._heap:
                    self._measure(key)
        return self._heap

    def _hold(self, heap: list[tuple[int, bytes]], key: bytes, new: State | None, old: State | None, time: int) -> None:
        store = self._store
        entry = store.resident.get(key)
        known = None if entry is None else entry.state
        if key not in store.dirty:
            store.dirty[key] = known
        if entry is not None and known is not None:
            entry.state, entry.timestamp_ms = (known[0], None if new is None else list(new), known[2]), time
        else:
            leaves = self._leaving_time(key, time)
            state = (leaves, None if new is None else list(new), None if old is None else list(old))
            heappush(heap, (leaves, key))
            store.resident[key] = Entry(state, time)
        if self._node.max_bytes is not None:
            self._measure(key)

    def _leaving_time(self, key: bytes, time: int) -> int:
        if self._node.wait_ms is not None:
            return time
        if isinstance(self._window, TimeWindow):
            return int(WINDOW_START.unpack_from(key, len(key) - WINDOW_START.size)[0]) + self._window.size_ms
        assert self._window is not None
        return bounds_of_key(self._window, key)[1]

    def _measure(self, key: bytes) -> None:
        """Count the bytes that an entry holds."""
        entry = self._store.resident.get(key)
        state = None if entry is None else entry.state
        size = 0 if state is None else len(key) + len(repr(state[1])) + _ENTRY_OVERHEAD_BYTES
        self._held_bytes += size - self._sizes.pop(key, 0)
        if size:
            self._sizes[key] = size

    def _release(self, heap: list[tuple[int, bytes]], emitted: Emitted, row: int) -> None:
        closed = self._store.stream_time_ms - self._wait_ms
        while heap and (heap[0][0] <= closed or self._is_over(heap)):
            if heap[0][0] > closed and self._node.when_full is g.WhenFull.SHUT_DOWN:
                raise BufferFull(
                    f"{self._node.name}: {len(heap)} results are held back, more than max_records={self._node.max_records} or "
                    f"max_bytes={self._node.max_bytes} allow: raise the bound, or let when_full='emit_early'"
                )
            _, key = heappop(heap)
            entry = self._store.resident[key]
            assert entry.state is not None
            _, new, old = entry.state
            time = entry.timestamp_ms
            drop_entry(self._store, key, time)
            if self._node.max_bytes is not None:
                self._measure(key)
            if new is not None or self._node.wait_ms is not None:
                emitted.add(row, key, time, None if new is None else tuple(new), None if old is None else tuple(old))

    def _is_over(self, heap: list[tuple[int, bytes]]) -> bool:
        node = self._node
        too_many = node.max_records is not None and len(heap) > node.max_records
        return too_many or (node.max_bytes is not None and self._held_bytes > node.max_bytes)
