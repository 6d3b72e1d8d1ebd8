"""Aggregates per session: records of a key that follow each other within a gap.

An entry of the store is a session, its key the record key and the session's end, its state the session's start and the
aggregates'. What a record meets (which sessions it merges, whether it is late) depends on keys and times alone; states follow.
Where all states are numbers and the kernels are there, `session_columns.py` does that over columns, else the loop below.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import graph as g
from ..columns import Batch
from ..seams import State
from ..state.store import Store
from ..vectors.expressions import Mask
from ..windows import WINDOW_START, key_of_bounds
from .aggregate_columns import ColumnsForm
from .chained import Found
from .closing import OpenEntries
from .emission import Emitted
from .folding import Folding
from .operator import Errors, Reporter, Task, Wiring
from .record_windows import RecordWindowsWork
from .session_columns import Limits, SessionColumns
from .slices import Slice
from .to_table import has_key


class SessionWork(RecordWindowsWork[SessionColumns]):
    """An Aggregate over sessions."""

    kernels = "sessions"

    def __init__(self, node: g.Aggregate, wiring: Wiring, task: Task) -> None:
        assert isinstance(node.window, g.SessionWindow)
        self._window = node.window
        wait_ms = self._window.gap_ms + self._window.grace_ms
        super().__init__(node, wiring, task, wait_ms=wait_ms, keep_ms=max(self._window.retention_ms, wait_ms, 1))

    def cut(self, own: Slice) -> bool:
        return False

    @property
    def slack_ms(self) -> int:
        return self._window.grace_ms

    def _causing(self, batch: Batch) -> Batch:
        return batch.without_headers()

    def moves_time(self, batch: Batch) -> Mask:
        return has_key(batch)

    def note_time(self, source: str, time_ms: int) -> None:
        self._clocks.observe(source, time_ms)
        if self._columns is None:
            self._store.newest_ms = max(self._store.newest_ms, time_ms)
        else:
            self._columns.chained.note_time(time_ms)

    def _as_columns(self, form: ColumnsForm, store: Store, found: Found) -> SessionColumns:
        limits = Limits(self._window.gap_ms, self._wait_ms, self._keep_ms)
        return SessionColumns(
            form, store, found, limits, newest=self._store.newest_ms, emitted_to=self._closed_to,
            keeps_before=self._node.emit is g.Emit.COMMIT,
        )  # fmt: skip

    def _take(self, columns: SessionColumns, batch: Batch, source: str, errors: Errors) -> Any:
        assert batch.keys is not None
        args = self._foldings[source].columns(batch, errors)
        clocks = np.array(self._observe(batch, source), np.int64)
        late, starts, trail = columns.take(batch.keys, batch.times, clocks, args, is_traced=self._is_followed)
        self._report_late(batch, late, starts, clocks)
        return trail

    def _process_objects(self, batch: Batch, source: str) -> None:
        assert batch.keys is not None
        gap, folding = self._window.gap_ms, self._foldings[source]
        errors = Errors(self._task, self._node, batch)
        report = errors.callable
        arguments = folding.arguments(batch, errors)
        keys: list[Any] = batch.keys.objects()
        times = batch.times.tolist()
        first = min(times)
        self._timeline.load(list(dict.fromkeys(keys)), first - gap, FAR)
        clocks = self._observe(batch, source)
        emitted, find, oldest_ms = Emitted(), self._timeline.times, self._wait_ms
        for row, (key, time, clock, given) in enumerate(zip(keys, times, clocks, arguments, strict=True)):
            if ends := find(key, time - gap, FAR):
                self._join(emitted, row, key, time, self._met(key, time, ends), clock, given, folding, batch, report)
            elif time < clock - oldest_ms:
                self._task.late(self._node.name, batch, row, (time, clock))
            else:
                self._begin(emitted, row, key, time, folding.add(None, given, row, report))
        self._forward_updates(emitted, self._causing(batch), errors)

    def _begin(self, emitted: Emitted, row: int, key: bytes, time: int, state: State | None) -> None:
        """A record that no session is near begins one."""
        self._keep(key, time, self._state(time, state), time)
        if self.is_update:
            emitted.add(row, self._edge_key(key, time, time), time, self._folding.result(state))

    def _join(
        self, emitted: Emitted, row: int, key: bytes, time: int, met: Sequence[tuple[int, int, State]], clock: int,
        arguments: Sequence[Any], folding: Folding, batch: Batch, report: Reporter,
    ) -> None:  # fmt: skip
        """A record and the sessions that it is in become one."""
        start, end = time, time
        for began, ended, _ in met:
            start, end = began if began < start else start, ended if ended > end else end
        if end < clock - self._wait_ms:
            self._task.late(self._node.name, batch, row, (start, clock))
            return
        state: State | None = None
        for _, _, own in met:
            state = folding.merge(state, own, row, report)
        if (start, end) != (time, time):
            for began, ended, own in met:
                if ended != end or self._puts is not None:  # one that ends there too is changed, unless its end is looked up
                    self._keep(key, ended, None, ended)
                if self.is_update:
                    emitted.add(row, self._edge_key(key, began, ended), ended, None, folding.result(own))
        state = folding.add(state, arguments, row, report)
        self._keep(key, end, self._state(start, state), end)
        if not self.is_update:
            return
        old = folding.result(met[0][2]) if met and (start, end) == (time, time) else None
        emitted.add(row, self._edge_key(key, start, end), end, folding.result(state), old)

    def _met(self, key: bytes, time: int, ends: Sequence[int]) -> list[tuple[int, int, State]]:
        """Return start, end and state of the sessions that a record would be in, in order, of those that end so late."""
        gap, found = self._window.gap_ms, []
        for end in ends:
            entry = self._timeline.entry(key, end)
            assert entry is not None, "what the timeline shows is in the store"
            assert entry.state is not None
            if entry.state[0] > time + gap:
                break
            found.append((entry.state[0], end, entry.state[1:]))
        return found

    def _state(self, start: int, state: State | None) -> State | None:
        """Return the state of a session's entry."""
        return None if state is None else (start, *state)

    def _edge_key(self, key: bytes, start: int, end: int) -> bytes:
        return key_of_bounds(self._window, key, start, end)

    # -- results at a task commit ----------------------------------------------------------------------------------------

    def _forward_objects(self) -> None:
        if not self.is_update:
            left = self._changed() if self._open is None else self._closed(self._open)
            self._emission.forward(self._task, left, None, headers=self._closing_headers(lambda: left.keys))

    def _changed(self) -> Emitted:
        result, find = self._folding.result, self._store.resident.get
        found: list[tuple[Any, ...]] = []
        for key, old in self._store.dirty.items():
            entry = find(key)
            new = None if entry is None else entry.state
            if old is not None and (new is None or new[0] != old[0]):
                found.append((*self._session(key, old), None, result(old[1:])))
                old = None
            if new is not None:
                found.append((*self._session(key, new), result(new[1:]), None if old is None else result(old[1:])))
        return Emitted([-1] * len(found), *map(list, zip(*found, strict=True)))

    def _closed(self, opened: OpenEntries) -> Emitted:
        emitted = Emitted()
        closed = opened.take_entries(self._clocks.latest)
        for key, entry in sorted(closed, key=lambda item: (item[0][-8:], item[1].state[0], item[0])):  # type: ignore[index]
            assert entry.state is not None
            emitted.add(-1, *self._session(key, entry.state), self._folding.result(entry.state[1:]))
        return emitted

    def _session(self, key: bytes, state: State) -> tuple[bytes, int]:
        """Return the key on the edge of an entry, which is that in the store with the start behind, and the session's end."""
        return key + WINDOW_START.pack(state[0]), WINDOW_START.unpack(key[-8:])[0]


FAR = (1 << 63) - 1
