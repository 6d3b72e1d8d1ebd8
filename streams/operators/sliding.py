"""Aggregates per sliding window [t - size, t], both ends inclusive (KIP-450).

A window ends at a record or begins right after one, so that each combination of records within `size` of each other has one. A
record counts in all windows that it lies in, and makes up to three new ones: the one that ends at it, the one right after it
(with what its windows held of later records), and the one right after the record before it.
Where all states are numbers and the kernels are there, `sliding_columns.py` does that over columns, else the loop below.

Windows are seen back to some time behind the newest start of all keys' windows (`sliding_keep_ms`). A slice of a task has to know
that start: where a window waits as long as it is long, it follows from keys and times alone (`_NewestStarts`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from logflume.log.records import I64

from .. import graph as g
from ..columns import Batch
from ..seams import State
from ..state.store import Store
from ..vectors.expressions import Mask
from ..windows import WINDOW_START
from .aggregate_columns import ColumnsForm
from .chained import Found
from .cogroup import finals
from .emission import Emitted
from .folding import Folding
from .operator import Errors, Reporter, Task, Wiring
from .record_windows import RecordWindowsWork
from .slices import TOLD_OF_NOTHING_MS, Slice
from .sliding_columns import Limits, SlidingColumns
from .table_aggregate import changed_entries
from .to_table import has_key_and_value

Held = tuple[State | None, int]
"""State and time of a window's entry."""


def sliding_keep_ms(window: g.SlidingWindow) -> int:
    """Return how far behind the newest window's start windows are seen."""
    return max(window.retention_ms, 2 * window.size_ms + window.grace_ms, 1)


def is_told_by_times(window: g.SlidingWindow) -> bool:
    """Return whether keys and times alone tell which windows are seen: then a slice of a task can know it of other keys.

    A record that comes behind the grace makes no window that ends at it, so what it makes hangs on the windows of its key. Where
    the grace is as long as a window, none of these is the newest; where windows are kept for long, all that matter are seen.
    """
    is_kept = sliding_keep_ms(window) > 3 * window.size_ms + window.grace_ms
    return window.size_ms > 0 and (window.grace_ms >= window.size_ms or is_kept)


class SlidingWork(RecordWindowsWork[SlidingColumns]):
    """An Aggregate over sliding windows."""

    kernels = "sliding"
    _slice: Slice | None = None
    _starts: _NewestStarts
    _told: _Told | None = None

    def __init__(self, node: g.Aggregate, wiring: Wiring, task: Task) -> None:
        assert isinstance(node.window, g.SlidingWindow)
        self.window = node.window
        wait_ms = self.window.size_ms + self.window.grace_ms
        super().__init__(node, wiring, task, wait_ms=wait_ms, keep_ms=sliding_keep_ms(node.window))

    # -- slices ----------------------------------------------------------------------------------------------------------

    def cut(self, own: Slice) -> bool:
        self._slice, self._starts = own, _NewestStarts(self.window.size_ms, self._keep_ms)
        return True

    @property
    def slack_ms(self) -> int:
        return TOLD_OF_NOTHING_MS

    def moves_time(self, batch: Batch) -> Mask:
        return has_key_and_value(batch)

    def note_time(self, source: str, time_ms: int) -> None:
        self._clocks.observe(source, time_ms)

    def process(self, batch: Batch, source: str) -> None:
        if self._slice is None:
            super().process(batch, source)
            return
        moves, own = self.moves_time(batch), self._slice.own(batch)
        moving, mine = batch.where(moves), own[moves]
        if len(moving):
            clocks = np.maximum.accumulate(np.maximum(moving.times, self._clocks.of(source)))
            starts = self._starts.before(moving, clocks, mine)
            self._told = _Told(clocks[mine], None if starts is None else starts[mine])
        super().process(batch.where(own), source)
        self._told = None

    def _observe(self, batch: Batch, source: str) -> list[int]:
        """Of a slice, the time that it is by the rows of all."""
        if self._told is None:
            return super()._observe(batch, source)
        clocks: list[int] = self._told.clocks.tolist()
        self._clocks.observe(source, clocks[-1])
        return clocks

    # -- counting --------------------------------------------------------------------------------------------------------

    def _as_columns(self, form: ColumnsForm, store: Store, found: Found) -> SlidingColumns:
        limits = Limits(self.window.size_ms, self.window.grace_ms, self._keep_ms)
        return SlidingColumns(
            form, store, found, limits, newest=self._store.newest_ms, emitted_to=self._closed_to,
            keeps_before=self._node.emit is g.Emit.COMMIT,
        )  # fmt: skip

    def _take(self, columns: SlidingColumns, batch: Batch, source: str, errors: Errors) -> Any:
        assert batch.keys is not None
        args = self._foldings[source].columns(batch, errors)
        clocks = np.array(self._observe(batch, source), np.int64)
        starts = None if self._told is None else self._told.starts
        late, trail = columns.take(batch.keys, batch.times, clocks, args, starts, is_traced=self._is_followed)
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
        self._timeline.load(list(dict.fromkeys(keys)), first - 2 * size, last + 1)
        clocks = self._observe(batch, source)
        emitted, find, grace = Emitted(), self._timeline.times, self.window.grace_ms
        starts = None if self._told is None or self._told.starts is None else self._told.starts.tolist()
        for row, (key, time, clock) in enumerate(zip(keys, times, clocks, strict=True)):
            if starts is not None:
                self._store.newest_ms = max(self._store.newest_ms, starts[row])
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
            left = finals(self._open.take_entries(self._clocks.latest), self._folding)
            self._emission.forward(self._task, left, None, headers=self._closing_headers(lambda: left.keys))
        elif not self.is_update:
            self._emission.forward(self._task, changed_entries(self._store, self._folding), None)


@dataclass(frozen=True, slots=True, eq=False)
class _Told:
    """What a slice is told of each of its rows: stream time, and the newest start before it; None: that does not matter."""

    clocks: I64
    starts: I64 | None


class _NewestStarts:
    """The newest start of all keys' windows, from the rows of all slices.

    It is that of the window that ends at the latest time, or of one right behind a record that another of its key is later than:
    behind the latest of the key so far where a row is later still, else behind the row. Records further than `size_ms` behind the
    latest time make none that is newer. So those are kept, and what they come to is found when a row is so far behind that it
    matters.
    """

    def __init__(self, size_ms: int, keep_ms: int) -> None:
        self._size_ms, self._reach_ms = size_ms, keep_ms - 2 * size_ms
        self._recent: list[tuple[list[bytes | None], I64]] = []
        self._clock = -1

    def before(self, batch: Batch, clocks: I64, own: Mask) -> I64 | None:
        """Take N rows; return the newest start before each of them, None where it matters to no own one. clocks: int64[N]."""
        assert batch.keys is not None
        found = None
        if (own & (batch.times <= clocks - self._reach_ms)).any():
            found = self._found(batch.keys.objects(), batch.times, clocks)
        self._clock = int(clocks[-1])
        rows = np.flatnonzero(batch.times >= self._clock - self._size_ms)
        held = [each for each in self._recent if each[1].max() >= self._clock - self._size_ms]
        self._recent = [*held, (batch.keys.take(rows).objects(), batch.times[rows])]
        return found

    def _found(self, keys: Sequence[bytes | None], times: I64, clocks: I64) -> I64:
        """Return the newest start before each row; those of a key stand together in `order`, as they came."""
        numbers: dict[bytes | None, int] = {}
        known = [key for held, _ in self._recent for key in held]
        which = np.fromiter((numbers.setdefault(key, len(numbers)) for key in (*known, *keys)), np.int64, len(known) + len(keys))
        oldest = max(self._clock - self._size_ms - 1, 0)  # what is before makes none that is the newest
        all_times = np.maximum(np.concatenate([*(held for _, held in self._recent), times]), oldest) - oldest
        order = np.argsort(which, kind="stable")
        sorted_times, groups = all_times[order], which[order] * (int(all_times.max()) + 2)
        latest = np.maximum.accumulate(sorted_times + 1 + groups)  # so far, in its key: those of the next key are all larger
        is_first = np.diff(which[order], prepend=-1) != 0
        last = np.concatenate([[0], latest[:-1]]) - groups - 1
        behind = np.minimum(last, sorted_times) + 1 + oldest
        behind[is_first | (last == sorted_times)] = -1
        made = np.empty_like(behind)
        made[order] = behind
        risen = np.maximum.accumulate(np.concatenate([[-1], made]))[len(known) : -1]
        before = np.concatenate([[self._clock], clocks[:-1]])
        return np.maximum(risen, np.where(before < 0, -1, np.maximum(before - self._size_ms, 0)))


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
