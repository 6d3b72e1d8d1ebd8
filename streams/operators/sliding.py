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
from .aggregate_columns import ColumnsForm
from .chained import Found
from .cogroup import finals
from .emission import Emitted
from .folding import Folding
from .operator import Errors, Reporter, Task, Wiring
from .record_windows import RecordWindowsWork
from .sliding_columns import Limits, SlidingColumns
from .table_aggregate import changed_entries

Held = tuple[State | None, int]
"""State and time of a window's entry."""


def sliding_keep_ms(window: g.SlidingWindow) -> int:
    """Return how far behind the newest window's start windows are seen."""
    return max(window.retention_ms, 2 * window.size_ms + window.grace_ms, 1)


class SlidingWork(RecordWindowsWork[SlidingColumns]):
    """An Aggregate over sliding windows."""

    kernels = "sliding"

    def __init__(self, node: g.Aggregate, wiring: Wiring, task: Task) -> None:
        assert isinstance(node.window, g.SlidingWindow)
        self.window = node.window
        wait_ms = self.window.size_ms + self.window.grace_ms
        super().__init__(node, wiring, task, wait_ms=wait_ms, keep_ms=sliding_keep_ms(node.window))

    def _as_columns(self, form: ColumnsForm, store: Store, found: Found) -> SlidingColumns:
        limits = Limits(self.window.size_ms, self.window.grace_ms, self._keep_ms)
        return SlidingColumns(
            form, store, found, limits, newest=self._timeline.newest, emitted_to=self._closed_to,
            keeps_before=self._node.emit is g.Emit.COMMIT,
        )  # fmt: skip

    def _take(self, columns: SlidingColumns, batch: Batch, source: str, errors: Errors) -> Any:
        assert batch.keys is not None
        args = self._foldings[source].columns(batch, errors)
        clocks = np.array(self._observe(batch, source), np.int64)
        late, trail = columns.take(batch.keys, batch.times, clocks, args, is_traced=self._is_followed)
        self._report_late(batch, late, batch.times - self.window.size_ms, clocks)
        return trail

    def _process_objects(self, batch: Batch, source: str) -> None:
        assert batch.keys is not None
        size, folding = self.window.size_ms, self._foldings[source]
        errors = Errors(self._task, self._node, batch)
        report = errors.callable
        arguments = folding.arguments(batch, errors)
        keys: list[Any] = batch.keys.objects()
        times = batch.times.tolist()
        first, last = min(times), max(times)
        self._timeline.load((key, first - 2 * size, last + 1) for key in dict.fromkeys(keys))
        clocks = self._observe(batch, source)
        emitted, find, grace = Emitted(), self._timeline.times, self.window.grace_ms
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
        self._forward_updates(emitted, batch, errors)

    def _begin(self, emitted: Emitted, row: int, key: bytes, time: int, state: State | None) -> None:
        """A record that no other is near makes the window that ends at it."""
        edge_key = self.put(key, time - self.window.size_ms, state, time)
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
        for start in self._timeline.times(key, low, high):
            entry = self._timeline.entry(key, start)
            assert entry is not None, "what the timeline shows is in the store"
            found[start] = (entry.state, entry.timestamp_ms)
        return found

    def put(self, key: bytes, start: int, state: State | None, stamp: int) -> bytes:
        """Set the state of a window; return its key."""
        self._keep(key, start, state, stamp)
        return key + WINDOW_START.pack(start)

    def _forward_objects(self) -> None:
        if self._open is not None:
            closed = [item for item in self._open.take_closed(self._clocks.latest) if item[1].state is not None]
            left = finals(closed, self._folding)
            self._emission.forward(self._task, left, None, headers=self._closing_headers(lambda: left.keys))
        elif not self.is_update:
            self._emission.forward(self._task, changed_entries(self._store, self._folding), None)


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
        known = self._rows.get(start)  # not `held`: a new window begins with what another one holds
        before = None if known is None else known[0]
        self._keep(start, state, before, max(held[1], self._time))

    def _keep(self, start: int, state: State | None, before: State | None, stamp: int) -> None:
        edge_key = self._work.put(self._key, start, state, stamp)
        self._rows[start] = (state, stamp)
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
