"""Aggregates per session: records of a key that follow each other within a gap.

An entry of the store is a session, its key the record key and the session's end, its state the session's start and the
aggregates'. What a record meets (which sessions it merges, whether it is late) depends on keys and times alone; states follow.
Where all states are numbers and the kernels are there, `session_columns.py` does that over columns, else the loop below.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from logflume.log.records import I64

from .. import graph as g
from ..columns import Batch
from ..seams import State, StateStore
from ..state.store import Store
from ..vectors.expressions import Mask
from ..windows import WINDOW_START, key_of_bounds
from .chained import chained_form, forward, has_all, kernels_for
from .closing import OpenEntries
from .emission import Emission, Emitted
from .folding import Folding
from .operator import Errors, Reporter, Task, Wiring, Work
from .session_columns import Limits, SessionColumns
from .slices import Slice
from .timeline import Timeline
from .to_table import has_key, keyed_rows


class SessionWork(Work):
    """An Aggregate over sessions; several inputs (a cogroup) change the same ones."""

    def __init__(self, node: g.Aggregate, wiring: Wiring, task: Task) -> None:
        assert isinstance(node.window, g.SessionWindow)
        self._node, self._task, self._window = node, task, node.window
        self._store = task.store(node.store)
        self._wait_ms = self._window.gap_ms + self._window.grace_ms
        self._keep_ms = max(self._window.retention_ms, self._wait_ms)
        self._sessions = Timeline(self._store, self._keep_ms)
        self._foldings = {
            source: Folding(node, aggregations)
            for source, aggregations in zip(node.inputs, (node.aggregations, *node.others), strict=True)
        }
        self._folding = self._foldings[node.inputs[0]]
        self._is_update = node.emit is g.Emit.UPDATE
        self._is_followed = self._is_update and bool(wiring.children[node.name])
        self._emission = Emission(node, wiring, keeps_keys=self._is_update)
        self._clocks = Clocks(node.inputs, self._store)
        self._open = OpenEntries(self._store, self._wait_ms) if node.emit is g.Emit.FINAL else None
        self._form = chained_form(node, self._store)
        self._columns: SessionColumns | None = None
        self._closed_to = -1

    def start(self) -> None:
        self._clocks.start()
        self._closed_to = self._store.stream_time_ms - self._wait_ms
        self._start_objects()

    def _start_objects(self) -> None:
        self._sessions.start()
        if self._open is not None:
            self._open.start()

    def cut(self, own: Slice) -> bool:
        return False

    @property
    def slack_ms(self) -> int:
        return self._window.grace_ms

    def moves_time(self, batch: Batch) -> Mask:
        return has_key(batch)

    def note_time(self, source: str, time_ms: int) -> None:
        self._clocks.observe(source, time_ms)
        if self._columns is None:
            self._sessions.newest = max(self._sessions.newest, time_ms)
        else:
            self._columns.chained.note_time(time_ms)

    def _choose(self) -> SessionColumns | None:
        """Keep the sessions as columns from when the kernels are there, until they outgrow the memory."""
        if self._columns is not None and self._columns.chained.is_given_up:
            newest, self._columns, self._form = self._columns.chained.newest, None, None
            self._sessions = Timeline(self._store, self._keep_ms)
            self._sessions.newest = newest
            self._open = None if self._open is None else OpenEntries(self._store, self._wait_ms)
            self._start_objects()
        elif self._columns is None and self._form is not None:
            found = kernels_for("sessions")
            if found is not None:
                assert isinstance(self._store, Store)
                if has_all(self._store):
                    limits = Limits(self._window.gap_ms, self._wait_ms, self._keep_ms)
                    self._columns = SessionColumns(
                        self._form, self._store, found, limits, newest=self._sessions.newest, emitted_to=self._closed_to,
                        keeps_before=self._node.emit is g.Emit.COMMIT,
                    )  # fmt: skip
                    self._sessions = Timeline(self._store, self._keep_ms)
                else:
                    self._form = None
        return self._columns

    def process(self, batch: Batch, source: str) -> None:
        batch = keyed_rows(self._task, self._node.name, batch)
        if not len(batch):
            return
        columns = self._choose()
        if columns is None:
            self._process_objects(batch, source)
        else:
            self._process_columns(columns, batch, source)

    def _process_columns(self, columns: SessionColumns, batch: Batch, source: str) -> None:
        assert batch.keys is not None
        errors = Errors(self._task, self._node, batch)
        args = self._foldings[source].columns(batch, errors)
        clocks = np.array(self._clocks.observe_all(source, batch.times), np.int64)
        late, starts, trail = columns.take(batch.keys, batch.times, clocks, args, is_traced=self._is_followed)
        for row in np.flatnonzero(late).tolist():
            self._task.late(self._node.name, batch, row, (int(starts[row]), int(clocks[row])))
        if not self._is_followed:
            return
        forward(self._task, self._node, self._emission, columns.followed(batch.keys, trail), batch, errors)

    def _process_objects(self, batch: Batch, source: str) -> None:
        assert batch.keys is not None
        gap, folding = self._window.gap_ms, self._foldings[source]
        errors = Errors(self._task, self._node, batch)
        report = errors.callable
        arguments = folding.arguments(batch, errors)
        keys: list[Any] = batch.keys.objects()
        times = batch.times.tolist()
        first = min(times)
        self._sessions.load((key, first - gap, FAR) for key in dict.fromkeys(keys))
        clocks = self._clocks.observe_all(source, batch.times)
        emitted, find, oldest_ms = Emitted(), self._sessions.times, self._wait_ms
        for row, (key, time, clock, given) in enumerate(zip(keys, times, clocks, arguments, strict=True)):
            if ends := find(key, time - gap, FAR):
                self._join(emitted, row, key, time, self._met(key, time, ends), clock, given, folding, batch, report)
            elif time < clock - oldest_ms:
                self._task.late(self._node.name, batch, row, (time, clock))
            else:
                self._begin(emitted, row, key, time, folding.add(None, given, row, report))
        if self._is_update:
            self._emission.forward(self._task, emitted, batch, errors=errors)

    def _begin(self, emitted: Emitted, row: int, key: bytes, time: int, state: State | None) -> None:
        """A record that no session is near begins one."""
        self._put(key, time, time, state)
        if self._is_update:
            emitted.add(row, self._edge_key(key, time, time), time, self._folding.result(state))

    def _join(
        self, emitted: Emitted, row: int, key: bytes, time: int, met: Sequence[tuple[int, int, State]], clock: int,
        arguments: Sequence[Any], folding: Folding, batch: Batch, report: Reporter,
    ) -> None:  # fmt: skip
        """A record and the sessions that it is in become one."""
        start = min([time, *(began for began, _, _ in met)])
        end = max([time, *(ended for _, ended, _ in met)])
        if end < clock - self._wait_ms:
            self._task.late(self._node.name, batch, row, (start, clock))
            return
        state: State | None = None
        for _, _, own in met:
            state = folding.merge(state, own, row, report)
        if (start, end) != (time, time):
            for began, ended, own in met:
                if ended != end:
                    self._put(key, began, ended, None)
                if self._is_update:
                    emitted.add(row, self._edge_key(key, began, ended), ended, None, folding.result(own))
        before = state
        state = folding.add(state, arguments, row, report)
        self._put(key, start, end, state)
        if not self._is_update:
            return
        old = folding.result(before) if (start, end) == (time, time) else None
        emitted.add(row, self._edge_key(key, start, end), end, folding.result(state), old)

    def _met(self, key: bytes, time: int, ends: Sequence[int]) -> list[tuple[int, int, State]]:
        """Return start, end and state of the sessions that a record would be in, in order, of those that end so late."""
        gap, found = self._window.gap_ms, []
        for end in ends:
            entry = self._sessions.entry(key, end)
            assert entry is not None, "what the timeline shows is in the store"
            assert entry.state is not None
            if entry.state[0] > time + gap:
                break
            found.append((entry.state[0], end, entry.state[1:]))
        return found

    def _put(self, key: bytes, start: int, end: int, state: State | None) -> None:
        self._sessions.put(key, end, None if state is None else (start, *state), end)
        if self._open is not None:
            self._open.note(key + WINDOW_START.pack(end))

    def _edge_key(self, key: bytes, start: int, end: int) -> bytes:
        return key_of_bounds(self._window, key, start, end)

    # -- results at a task commit ----------------------------------------------------------------------------------------

    def commit(self) -> None:
        columns, is_final = self._columns, self._node.emit is g.Emit.FINAL
        if columns is None:
            self._commit_objects()
        elif not self._is_update and not columns.chained.is_given_up:  # else nothing has come since the last commit
            columns.chained.ready()
            found = columns.closed(self._clocks.latest) if is_final else columns.changed()
            forward(self._task, self._node, self._emission, found, None, None)

    def _commit_objects(self) -> None:
        self._closed_to = self._clocks.latest - self._wait_ms
        if not self._is_update:
            closed = self._changed() if self._open is None else self._closed(self._open)
            self._emission.forward(self._task, closed, None)
        self._sessions.sweep()

    def _changed(self) -> Emitted:
        emitted, result = Emitted(), self._folding.result
        for key, old in self._store.dirty.items():
            entry = self._store.resident.get(key)
            new = None if entry is None else entry.state
            if old is not None and (new is None or new[0] != old[0]):
                emitted.add(-1, *self._session(key, old), None, result(old[1:]))
                old = None
            if new is not None:
                emitted.add(-1, *self._session(key, new), result(new[1:]), None if old is None else result(old[1:]))
        return emitted

    def _closed(self, opened: OpenEntries) -> Emitted:
        emitted = Emitted()
        closed = [(key, entry) for key, entry in opened.take_closed(self._clocks.latest) if entry.state is not None]
        for key, entry in sorted(closed, key=lambda item: (item[0][-8:], item[1].state[0], item[0])):  # type: ignore[index]
            assert entry.state is not None
            emitted.add(-1, *self._session(key, entry.state), self._folding.result(entry.state[1:]))
        return emitted

    def _session(self, key: bytes, state: State) -> tuple[bytes, int]:
        end = WINDOW_START.unpack_from(key, len(key) - 8)[0]
        return self._edge_key(key[:-8], state[0], end), end


FAR = (1 << 63) - 1


class Clocks:
    """The stream time of each input of an operator. After a restart all begin with that of the store."""

    def __init__(self, inputs: Sequence[str], store: StateStore) -> None:
        self._times = dict.fromkeys(inputs, -1)
        self._store = store

    def start(self) -> None:
        """Begin: the store is restored."""
        self._times = dict.fromkeys(self._times, self._store.stream_time_ms)

    def observe(self, source: str, time: int) -> int:
        """Note a record's time; return the input's stream time."""
        now = max(self._times[source], time)
        self._times[source] = now
        if now > self._store.stream_time_ms:
            self._store.stream_time_ms = now
        return int(now)

    def observe_all(self, source: str, times: I64) -> list[int]:
        """Note the times of records; return the input's stream time at each of them."""
        clocks = np.maximum.accumulate(np.maximum(times, self._times[source]))
        self.observe(source, int(clocks[-1]))
        return clocks.tolist()  # type: ignore[no-any-return]

    def of(self, source: str) -> int:
        """Return the stream time of an input."""
        return int(self._times[source])

    @property
    def latest(self) -> int:
        return int(self._store.stream_time_ms)
