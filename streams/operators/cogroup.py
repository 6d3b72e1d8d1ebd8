"""Aggregates of several inputs (a cogroup) into the same states, and those over unlimited and calendar windows: row by row.

Each input has its own stream time, which decides what is late of it; the windows are those of all inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from .. import graph as g
from ..calendars import LAST_CALENDAR_MS, LONGEST_MS, calendar_span
from ..columns import Batch
from ..seams import Entry
from ..windows import WINDOW_START
from .clocks import Clocks
from .closing import ClosingHeaders, OpenEntries, closing_wait_ms
from .emission import Emission, Emitted
from .folding import Folding
from .operator import Errors, Task, Wiring, Work
from .rows import put_entry
from .table_aggregate import changed_entries
from .to_table import keyed_rows
from .windows import windows_of


class CogroupWork(Work):
    """See the module; without windows, over time windows, unlimited or calendar ones."""

    def __init__(self, node: g.Aggregate, wiring: Wiring, task: Task) -> None:
        self._node, self._task, self._store = node, task, task.store(node.store)
        self._window = node.window
        self._foldings = {
            source: Folding(node, aggregations)
            for source, aggregations in zip(node.inputs, (node.aggregations, *node.others), strict=True)
        }
        self._folding = self._foldings[node.inputs[0]]
        self._is_update = node.emit is g.Emit.UPDATE
        self._emission = Emission(node, wiring, keeps_keys=self._is_update)
        self._goes_by_row = task.goes_by_row(node.name) and self._is_update
        self._clocks = Clocks(node.inputs, self._store)
        self._open, self._closing, self._keep_ms = None, None, 0
        if isinstance(node.window, g.TimeWindow):
            self._keep_ms = max(node.window.retention_ms, node.window.size_ms + node.window.grace_ms)
            if node.emit is g.Emit.FINAL:
                wait_ms = closing_wait_ms(node.window)
                self._open, self._closing = OpenEntries(self._store, wait_ms), ClosingHeaders(wait_ms)
        if isinstance(node.window, g.CalendarWindow):
            self._keep_ms = max(node.window.retention_ms, LONGEST_MS[node.window.unit] + node.window.grace_ms)
            if node.emit is g.Emit.FINAL:
                wait_ms, end_of = node.window.grace_ms - 1, node.window.end_of
                self._open = OpenEntries(self._store, wait_ms, time_of=end_of)
                self._closing = ClosingHeaders(wait_ms, time_of=end_of)

    def start(self) -> None:
        self._clocks.start()
        if self._open is not None:
            self._open.start()

    def process(self, batch: Batch, source: str) -> None:
        batch = keyed_rows(self._task, self._node.name, batch)
        if self._window is None and batch.nulls is not None:
            for row in np.flatnonzero(batch.nulls).tolist():
                self._task.report("null_value", self._node.name, batch, row, None)
            batch = batch.without(batch.nulls)
        if not len(batch):
            return
        assert batch.keys is not None
        folding = self._foldings[source]
        errors = Errors(self._task, self._node, batch)
        report = errors.callable
        arguments = folding.arguments(batch, errors)
        keys: list[Any] = batch.keys.objects()
        rows, starts = self._pairs(batch, source)
        places = keys if starts is None else [keys[r] + WINDOW_START.pack(s) for r, s in zip(rows, starts, strict=True)]
        self._store.load(places)
        times = batch.times.tolist()
        emitted = Emitted()
        puts: list[Callable[[], None]] | None = [] if self._goes_by_row and len(batch) == 1 else None
        for at, (row, key) in enumerate(zip(rows, places, strict=True)):
            is_seen = starts is None or not self._keep_ms or starts[at] >= self._store.newest_ms - self._keep_ms + 1
            entry = self._store.resident.get(key) if is_seen else None
            old = None if entry is None else entry.state
            state = folding.add(old, arguments[row], row, report)
            stamp = times[row] if old is None or entry is None else max(times[row], entry.timestamp_ms)
            if starts is not None:
                self._store.newest_ms = max(self._store.newest_ms, starts[at])
            if puts is not None:
                puts.append(partial(put_entry, self._store, key, state, stamp) if is_seen else _nothing)
            elif is_seen:
                put_entry(self._store, key, state, stamp)
            if self._is_update:
                emitted.add(row, key, stamp, folding.result(state), folding.result(old))
        if puts is not None:
            self._emission.forward_each(self._task, emitted, batch, puts, errors=errors)
        elif self._is_update:
            self._emission.forward(self._task, emitted, batch, errors=errors)

    def _pairs(self, batch: Batch, source: str) -> tuple[list[int], list[int] | None]:
        """Return the rows that count, and in which windows."""
        window, count = self._window, len(batch)
        if window is None:
            return list(range(count)), None
        times = batch.times
        if isinstance(window, g.UnlimitedWindow):
            rows = np.flatnonzero(times >= window.start_ms).tolist()
            return rows, [window.start_ms] * len(rows)
        if isinstance(window, g.CalendarWindow):
            return self._calendar_pairs(batch, source, window)
        assert isinstance(window, g.TimeWindow)
        found = windows_of(window, times, self._clocks.of(source))
        self._clocks.observe(source, int(found.clocks[-1]))
        if self._closing is not None:
            self._closing.note(batch, found.clocks)
        rows = list(range(count)) if found.rows is None else found.rows.tolist()
        starts = found.starts.tolist()
        if found.late is None:
            return rows, starts
        kept = np.flatnonzero(~found.late).tolist()
        counted = {rows[pair] for pair in kept}
        for pair in np.flatnonzero(found.late).tolist():
            cause = (starts[pair], int(found.clocks[rows[pair]]))
            self._task.late(self._node.name, batch, rows[pair], cause, counts_elsewhere=rows[pair] in counted)
        return [rows[pair] for pair in kept], [starts[pair] for pair in kept]

    def _calendar_pairs(self, batch: Batch, source: str, window: g.CalendarWindow) -> tuple[list[int], list[int]]:
        rows: list[int] = []
        starts: list[int] = []
        start, end = 0, 0
        clocks: list[int] = []
        for row, time in enumerate(batch.times.tolist()):
            if time >= LAST_CALENDAR_MS:
                self._task.report("expression", self._node.name, batch, row, f"time {time} is beyond the calendar (year 9999)")
                clocks.append(self._clocks.of(source))
                continue
            clock = self._clocks.observe(source, time)
            clocks.append(clock)
            if not start <= time < end:
                start, end = calendar_span(window.unit, window.zone, time)
            if end <= clock - window.grace_ms:
                self._task.late(self._node.name, batch, row, (start, clock))
            else:
                rows.append(row)
                starts.append(start)
        if self._closing is not None:
            self._closing.note(batch, clocks)
        return rows, starts

    def commit(self) -> None:
        if self._open is not None:
            left = finals(self._open.take_entries(self._clocks.latest), self._folding)
            headers = None if self._closing is None else self._closing.take(lambda: left.keys)
            self._emission.forward(self._task, left, None, headers=headers)
        elif not self._is_update:
            self._emission.forward(self._task, changed_entries(self._store, self._folding), None)


def finals(closed: list[tuple[bytes, Entry]], folding: Folding) -> Emitted:
    """Return the results of closed windows."""
    emitted = Emitted()
    for key, entry in closed:
        emitted.add(-1, key, entry.timestamp_ms, folding.result(entry.state))
    return emitted


def _nothing() -> None:
    """Put nothing: the window is not seen any more."""
