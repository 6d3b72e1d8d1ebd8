"""Aggregates over windows that their records make: what sessions and sliding windows have in common.

Their entries are objects on a timeline; where all states are numbers, they are columns from when the kernels are there until they
outgrow the memory.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np

from logflume.log.records import I64, Headers

from .. import graph as g
from ..columns import Batch, Bytes
from ..seams import State
from ..state.store import Store
from ..vectors.expressions import Mask
from ..windows import key_suffix_bytes
from .aggregate_columns import ColumnsForm
from .chained import Chained, Changes, Found, chained_form, forward, has_all, kernels_for
from .clocks import Clocks
from .closing import ClosingHeaders, OpenEntries
from .emission import Emission, Emitted
from .folding import Folding
from .operator import Errors, Task, Wiring, Work
from .timeline import Timeline
from .to_table import keyed_rows


class EntryColumns(Protocol):
    """The entries of a store as columns."""

    @property
    def chained(self) -> Chained: ...

    def followed(self, keys: Bytes, trail: Any) -> Changes:
        """Return the changes of a trail; `keys`: of the rows that were taken."""
        ...

    def changed(self) -> Changes:
        """Return what became of entries since the last commit."""
        ...

    def closed(self, stream_time_ms: int) -> Changes:
        """Return the entries that have closed since they were asked for last."""
        ...


C = TypeVar("C", bound=EntryColumns)


class RecordWindowsWork(Work, Generic[C]):
    """Such an Aggregate; several inputs (a cogroup) change the same entries."""

    kernels: ClassVar[str]
    """The name of the kernels for its columns."""

    def __init__(self, node: g.Aggregate, wiring: Wiring, task: Task, *, wait_ms: int, keep_ms: int) -> None:
        """`wait_ms`: how long behind their time entries are open; `keep_ms`: how far behind the newest one they are seen."""
        self._node, self._task = node, task
        self._store = task.store(node.store)
        self._wait_ms, self._keep_ms = wait_ms, keep_ms
        self._timeline = Timeline(self._store, keep_ms)
        self._foldings = {
            source: Folding(node, aggregations)
            for source, aggregations in zip(node.inputs, (node.aggregations, *node.others), strict=True)
        }
        self._folding = self._foldings[node.inputs[0]]
        self.is_update = node.emit is g.Emit.UPDATE
        self._is_followed = self.is_update and bool(wiring.children[node.name])
        self._emission = Emission(node, wiring, keeps_keys=self.is_update)
        self._clocks = Clocks(node.inputs, self._store)
        self._open = OpenEntries(self._store, wait_ms) if node.emit is g.Emit.FINAL else None
        self._closing = None if self._open is None else ClosingHeaders(wait_ms, times_at=key_suffix_bytes(node.window))
        self._goes_by_row = self._is_followed and task.goes_by_row(node.name)
        self._puts: list[Callable[[], None]] | None = None
        self._form = None if self._goes_by_row else chained_form(node, self._store)
        self._columns: C | None = None
        self._closed_to = -1

    def start(self) -> None:
        self._clocks.start()
        self._closed_to = self._store.stream_time_ms - self._wait_ms
        self._start_objects()

    def _start_objects(self) -> None:
        self._timeline.start()
        if self._open is not None:
            self._open.start()

    def process(self, batch: Batch, source: str) -> None:
        batch = self._valued(keyed_rows(self._task, self._node.name, batch))
        if not len(batch):
            return
        columns = self._choose()
        if columns is None:
            self._puts = [] if self._goes_by_row and len(batch) == 1 else None
            self._process_objects(batch, source)
            return
        assert batch.keys is not None
        errors = Errors(self._task, self._node, batch)
        trail = self._take(columns, batch, source, errors)
        if self._is_followed:
            forward(self._task, self._node, self._emission, columns.followed(batch.keys, trail), self._causing(batch), errors)

    def _valued(self, batch: Batch) -> Batch:
        """Return the rows that count; the others are reported."""
        return batch

    def _causing(self, batch: Batch) -> Batch:
        """Return rows as results show them."""
        return batch

    def _choose(self) -> C | None:
        """Keep the entries as columns from when the kernels are there, until they outgrow the memory."""
        if self._columns is not None and self._columns.chained.is_given_up:
            self._columns, self._form = None, None
            self._timeline = Timeline(self._store, self._keep_ms)
            self._open = None if self._open is None else OpenEntries(self._store, self._wait_ms)
            self._start_objects()
        elif self._columns is None and self._form is not None and (found := kernels_for(self.kernels)) is not None:
            assert isinstance(self._store, Store)
            if has_all(self._store):
                self._columns = self._as_columns(self._form, self._store, found)
                self._timeline = Timeline(self._store, self._keep_ms)
            else:
                self._form = None
        return self._columns

    @abstractmethod
    def _as_columns(self, form: ColumnsForm, store: Store, found: Found) -> C:
        """Return the entries of the store as columns."""

    @abstractmethod
    def _take(self, columns: C, batch: Batch, source: str, errors: Errors) -> Any:
        """Take rows into the entries; return the trail of what they changed."""

    @abstractmethod
    def _process_objects(self, batch: Batch, source: str) -> None:
        """Take rows into entries that are objects, by `_keep`; `_forward_updates` ends it."""

    def _keep(self, key: bytes, time: int, state: State | None, stamp: int) -> None:
        """Set the state of an entry; None deletes it. Where results go by row it is set when its result leaves."""
        if self._puts is None:
            self._timeline.put(key, time, state, stamp)
        else:
            self._puts.append(partial(self._timeline.put, key, time, state, stamp))

    def _forward_updates(self, emitted: Emitted, causing: Batch, errors: Errors) -> None:
        """Forward results where they leave at once: one for each entry that was set."""
        if self._puts is not None:
            puts, self._puts = self._puts, None
            self._emission.forward_each(self._task, emitted, causing, puts, errors=errors)
        elif self.is_update:
            self._emission.forward(self._task, emitted, causing, errors=errors)

    def _observe(self, batch: Batch, source: str) -> list[int]:
        """Let rows move stream time; return it at each of them."""
        clocks = self._clocks.observe_all(source, batch.times)
        if self._closing is not None:
            self._closing.note(batch, clocks)
        return clocks

    @property
    def notes_closing(self) -> bool:
        return self._closing is not None

    def note_closing(self, batch: Batch) -> None:
        assert self._closing is not None, "else it says that it does not"
        self._closing.note(batch, np.maximum.accumulate(np.maximum(batch.times, self._clocks.latest)))

    def _closing_headers(self, keys: Callable[[], Sequence[bytes | None]]) -> list[Headers] | None:
        """Return the headers of what leaves at a task commit, with these keys; None: none has any."""
        return None if self._closing is None else self._closing.take(keys)

    def _report_late(self, batch: Batch, late: Mask, starts: I64, clocks: I64) -> None:
        for row in np.flatnonzero(late).tolist():
            self._task.late(self._node.name, batch, row, (int(starts[row]), int(clocks[row])))

    # -- results at a task commit ----------------------------------------------------------------------------------------

    def commit(self) -> None:
        columns, is_final = self._columns, self._node.emit is g.Emit.FINAL
        if columns is None:
            self._closed_to = self._clocks.latest - self._wait_ms
            self._forward_objects()
            self._timeline.sweep()
            return
        self._store.newest_ms = columns.chained.newest
        if not self.is_update and not columns.chained.is_given_up:  # else nothing has come since the last commit
            columns.chained.ready()
            found = columns.closed(self._clocks.latest) if is_final else columns.changed()
            headers = self._closing_headers(found.keys.objects)
            forward(self._task, self._node, self._emission, found, None, None, headers=headers)

    @abstractmethod
    def _forward_objects(self) -> None:
        """Forward what leaves at a task commit."""
