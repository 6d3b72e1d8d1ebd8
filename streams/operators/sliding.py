"""Aggregates per sliding window [t - size, t], both ends inclusive (KIP-450).

A window ends at a record or begins right after one, so that each combination of records within `size` of each other has one. A
record counts in all windows that it lies in, and makes up to three new ones: the one that ends at it, the one right after it
(with what its windows held of later records), and the one right after the record before it.
Where all states are numbers and the kernels are there, `sliding_columns.py` does that over columns, else the loop below.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import graph as g
from ..columns import Batch
from ..seams import State
from ..state.store import Store
from ..windows import WINDOW_START
from .chained import chained_form, forward, has_all, kernels_for
from .closing import OpenEntries
from .cogroup import finals
from .emission import Emission, Emitted
from .folding import Folding
from .operator import Errors, Reporter, Task, Wiring, Work
from .session import Clocks
from .sliding_columns import Limits, SlidingColumns
from .table_aggregate import changed_entries
from .timeline import Timeline
from .to_table import keyed_rows

Held = tuple[State | None, int]
"""State and time of a window's entry."""


def sliding_keep_ms(window: g.SlidingWindow) -> int:
    """Return how far behind the newest window's start windows are seen."""
    return max(window.retention_ms, 2 * window.size_ms + window.grace_ms)


class SlidingWork(Work):
    """An Aggregate over sliding windows; several inputs (a cogroup) change the same ones."""

    def __init__(self, node: g.Aggregate, wiring: Wiring, task: Task) -> None:
        assert isinstance(node.window, g.SlidingWindow)
        self._node, self._task, self._window = node, task, node.window
        self._store = task.store(node.store)
        size, grace = node.window.size_ms, node.window.grace_ms
        is_final = node.emit is g.Emit.FINAL
        self._keep_ms, self._wait_ms = sliding_keep_ms(node.window), size + grace
        self._windows = Timeline(self._store, self._keep_ms)
        self._foldings = {
            source: Folding(node, aggregations)
            for source, aggregations in zip(node.inputs, (node.aggregations, *node.others), strict=True)
        }
        self._folding = self._foldings[node.inputs[0]]
        self.is_update = node.emit is g.Emit.UPDATE
        self._emission = Emission(node, wiring, keeps_keys=self.is_update)
        self._clocks = Clocks(node.inputs, self._store)
        self._open = OpenEntries(self._store, self._wait_ms) if is_final else None
        self._form = chained_form(node, self._store)
        self._columns: SlidingColumns | None = None
        self._closed_to = -1
        self._is_followed = self.is_update and bool(wiring.children[node.name])

    def start(self) -> None:
        self._clocks.start()
        self._closed_to = self._store.stream_time_ms - self._wait_ms
        self._start_objects()

    def _start_objects(self) -> None:
        self._windows.start()
        if self._open is not None:
            self._open.start()

    def _choose(self) -> SlidingColumns | None:
        """Keep the windows as columns from when the kernels are there, until they outgrow the memory."""
        if self._columns is not None and self._columns.chained.is_given_up:
            newest, self._columns, self._form = self._columns.chained.newest, None, None
            self._windows = Timeline(self._store, self._keep_ms)
            self._windows.newest = newest
            self._open = None if self._open is None else OpenEntries(self._store, self._wait_ms)
            self._start_objects()
        elif self._columns is None and self._form is not None:
            found = kernels_for("sliding")
            if found is not None:
                assert isinstance(self._store, Store)
                if has_all(self._store):
                    limits = Limits(self._window.size_ms, self._window.grace_ms, self._keep_ms)
                    self._columns = SlidingColumns(
                        self._form, self._store, found, limits, newest=self._windows.newest, emitted_to=self._closed_to,
                        keeps_before=self._node.emit is g.Emit.COMMIT,
                    )  # fmt: skip
                    self._windows = Timeline(self._store, self._keep_ms)
                else:
                    self._form = None
        return self._columns

    def process(self, batch: Batch, source: str) -> None:
        batch = self._valued(keyed_rows(self._task, self._node.name, batch))
        if not len(batch):
            return
        columns = self._choose()
        if columns is None:
            self._process_objects(batch, source)
        else:
            self._process_columns(columns, batch, source)

    def _process_columns(self, columns: SlidingColumns, batch: Batch, source: str) -> None:
        assert batch.keys is not None
        errors = Errors(self._task, self._node, batch)
        args = self._foldings[source].columns(batch, errors)
        clocks = np.array(self._clocks.observe_all(source, batch.times), np.int64)
        late, trail = columns.take(batch.keys, batch.times, clocks, args, is_traced=self._is_followed)
        for row in np.flatnonzero(late).tolist():
            self._task.late(self._node.name, batch, row, (int(batch.times[row]) - self._window.size_ms, int(clocks[row])))
        if self._is_followed:
            forward(self._task, self._node, self._emission, columns.followed(batch.keys, trail), batch, errors)

    def _process_objects(self, batch: Batch, source: str) -> None:
        assert batch.keys is not None
        size, folding = self._window.size_ms, self._foldings[source]
        errors = Errors(self._task, self._node, batch)
        report = errors.callable
        arguments = folding.arguments(batch, errors)
        keys: list[Any] = batch.keys.objects()
        times = batch.times.tolist()
        first, last = min(times), max(times)
        self._windows.load((key, first - 2 * size, last + 1) for key in dict.fromkeys(keys))
        clocks = self._clocks.observe_all(source, batch.times)
        emitted, find, grace = Emitted(), self._windows.times, self._window.grace_ms
        for row, (key, time, clock) in enumerate(zip(keys, times, clocks, strict=True)):
            if time + size < clock - grace:
                self._task.late(self._node.name, batch, row, (time - size, clock))
                continue
            if time >= size and not find(key, time - 2 * size, time + 1):
                if time >= clock - grace:
                    self._begin(emitted, row, key, time, folding.add(None, arguments[row], row, report))
                continue
            adding = _Adding(self, emitted, row, key, time, clock, arguments[row], folding, report)
            if time < size:
                adding.early()
            else:
                adding.usual()
        if self.is_update:
            self._emission.forward(self._task, emitted, batch, errors=errors)

    def _begin(self, emitted: Emitted, row: int, key: bytes, time: int, state: State | None) -> None:
        """A record that no other is near makes the window that ends at it."""
        edge_key = self.put(key, time - self._window.size_ms, state, time)
        if self.is_update:
            emitted.add(row, edge_key, time, self._folding.result(state))

    def _valued(self, batch: Batch) -> Batch:
        if batch.nulls is None:
            return batch
        for row, null in enumerate(batch.nulls.tolist()):
            if null:
                self._task.report("null_value", self._node.name, batch, row, None)
        return batch.without(batch.nulls)

    def rows(self, key: bytes, low: int, high: int) -> dict[int, Held]:
        """Return the windows of a key that start within, in order of their starts."""
        found: dict[int, Held] = {}
        for start in self._windows.times(key, low, high):
            entry = self._windows.entry(key, start)
            assert entry is not None, "what the timeline shows is in the store"
            found[start] = (entry.state, entry.timestamp_ms)
        return found

    def put(self, key: bytes, start: int, state: State | None, stamp: int) -> bytes:
        """Set the state of a window; return its key."""
        self._windows.put(key, start, state, stamp)
        edge_key = key + WINDOW_START.pack(start)
        if self._open is not None:
            self._open.note(edge_key)
        return edge_key

    @property
    def window(self) -> g.SlidingWindow:
        return self._window

    def commit(self) -> None:
        columns, is_final = self._columns, self._node.emit is g.Emit.FINAL
        if columns is None:
            self._commit_objects()
        elif not self.is_update and not columns.chained.is_given_up:  # else nothing has come since the last commit
            columns.chained.ready()
            found = columns.closed(self._clocks.latest) if is_final else columns.changed()
            forward(self._task, self._node, self._emission, found, None, None)

    def _commit_objects(self) -> None:
        self._closed_to = self._clocks.latest - self._wait_ms
        if self._open is not None:
            closed = [item for item in self._open.take_closed(self._clocks.latest) if item[1].state is not None]
            self._emission.forward(self._task, finals(closed, self._folding), None)
        elif not self.is_update:
            self._emission.forward(self._task, changed_entries(self._store, self._folding), None)
        self._windows.sweep()


class _Adding:
    """One record on its way into its windows."""

    def __init__(
        self, work: SlidingWork, emitted: Emitted, row: int, key: bytes, time: int, clock: int,
        arguments: Sequence[Any], folding: Folding, report: Reporter,
    ) -> None:  # fmt: skip
        self._work, self._emitted, self._row, self._key, self._time = work, emitted, row, key, time
        self._arguments, self._folding, self._report = arguments, folding, report
        self._size = work.window.size_ms
        self._close = clock - work.window.grace_ms
        self._rows = work.rows(key, max(0, time - 2 * self._size), time + 1)

    def _update(self, start: int, held: Held) -> None:
        if start + self._size < self._close:
            return
        state = self._folding.add(held[0], self._arguments, self._row, self._report)
        self._keep(start, state, held[0], self._time if state is None else max(held[1], self._time))

    def _keep(self, start: int, state: State | None, before: State | None, stamp: int) -> None:
        edge_key = self._work.put(self._key, start, state, stamp)
        if not self._work.is_update:
            return
        result = self._folding.result
        self._emitted.add(self._row, edge_key, stamp, result(state), result(before))

    def _new(self, start: int) -> None:
        self._update(start, (None, self._time))

    def _after(self, right: Held | None) -> None:
        """The window right after the record holds what the windows it lies in held of later records."""
        start = self._time + 1
        if right is not None and right[1] > self._time and start not in self._rows and start + self._size >= self._close:
            self._keep(start, right[0], None, right[1])

    def early(self) -> None:
        """A record before `size`: all such share the window [0, size]."""
        rows, time = self._rows, self._time
        combined = rows.get(0)
        right: Held | None = None
        for start, held in rows.items():
            if 0 < start <= time:
                right = held
                self._update(start, held)
        if right is None and combined is not None and combined[1] > time:
            right = combined
        self._after(right)
        if combined is not None and combined[1] < time and combined[1] + 1 not in rows:
            self._new(combined[1] + 1)
        self._update(0, combined or (None, time))

    def usual(self) -> None:
        """A record from `size` on."""
        rows, time, size = self._rows, self._time, self._size
        right: Held | None = None
        left: Held | None = None
        previous: int | None = None
        has_left = False
        for start in reversed([start for start in rows if start != time + 1]):
            held = rows[start]
            if start + size > time:
                right = right or held
                self._update(start, held)
            elif start + size == time:
                has_left = True
                self._update(start, held)
                if held[1] >= time:
                    self._after(right)
                    return
                previous = held[1]
            else:
                left, previous = held, held[1]
                break
        if previous is not None and previous + 1 not in rows and previous + 1 + size >= time:
            self._new(previous + 1)
        if not has_left:
            has_more = left is not None and previous is not None and previous >= time - size
            self._update(time - size, (left[0], time) if has_more and left is not None else (None, time))
        self._after(right)
