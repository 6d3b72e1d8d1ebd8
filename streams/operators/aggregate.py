"""Aggregates per key and window.

Structure first: which rows count, in which windows, what is late. Then content: the states of the entries, as objects
(`aggregate_objects.py`) or, where all are numbers and the kernels are loaded, as typed columns (`aggregate_columns.py`); a store
goes from the one to the other once, between two batches. Then results, for those who follow single updates, commits or windows'
ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from logflume.log.records import Chunk, Headers
from logflume.log.schemas import BIGINT, Kind
from logflume.log.schemas import Column as Field

from .. import graph as g
from ..columns import Batch, Column, Old
from ..columns.batch import ColumnId
from ..columns.evaluate import Evaluation
from ..expr import WHOLE, Meta, Side, columns_used
from ..kernels import loaded_kernels
from ..seams import StoreSpec
from ..state.store import Store
from ..vectors.expressions import Mask, Vector
from ..windows import store_window
from .aggregate_columns import ColumnEntries, columns_form
from .aggregate_objects import ObjectEntries, is_fold
from .closing import ClosingHeaders, closing_wait_ms
from .cogroup import CogroupWork
from .emission import key_decoder
from .entries import Change, Entries, Updated
from .expiring import ExpiringWork
from .folding import state_fields
from .operator import Bind, Cut, Errors, Operator, Task, Wiring, Work
from .partial import partial_node
from .results import results_of_states
from .session import SessionWork
from .slices import Slice, is_ordered_at_commit
from .sliding import SlidingWork, is_told_by_times
from .to_table import has_key, keyed_rows
from .windows import window_end, windows_of


class AggregateOperator(Operator[g.Aggregate]):
    """An Aggregate."""

    node_class = g.Aggregate

    @cached_property
    def args(self) -> tuple[Evaluation, ...]:
        """The arguments of all aggregations, one after the other."""
        return tuple(Evaluation(expr) for a in self.node.aggregations for expr in a.args)

    def reads(self, source: g.Node, below: frozenset[ColumnId], wiring: Wiring) -> set[ColumnId]:
        inputs = zip(self.node.inputs, (self.node.aggregations, *self.node.others), strict=True)
        own = [a for name, aggregations in inputs if name == source.name for a in aggregations]
        found = set().union(*(columns_used(x) for a in own for x in a.args))
        if self.node.emit is g.Emit.UPDATE:
            found |= {c for c in below if c[0] is not Side.VALUE and c[1] not in (Meta.WINDOWSTART, Meta.WINDOWEND)}
        return found

    def stores(self) -> tuple[StoreSpec, ...]:
        node = self.node
        columns, window, kept = state_fields(node), node.window, store_window(node.window)
        if isinstance(window, g.SessionWindow):
            columns = (Field("start", BIGINT), *columns)
            still_open_ms = 1 if node.emit is g.Emit.FINAL else 0  # one that ends at the limit leaves with the next millisecond
            kept = g.TimeWindow(window.gap_ms + still_open_ms, 1, window.grace_ms, max(window.retention_ms, 1))
        return (StoreSpec(node.store, node.schema.key, columns, kept),)

    def wants_old(self, *, is_asked: bool) -> bool:
        return False

    def partial(self) -> g.Aggregate | None:
        node = self.node
        used = [aggregation.aggregator for aggregation in node.aggregations]
        is_mergeable = node.window is None or isinstance(node.window, g.TimeWindow)
        if node.ttl_ms is not None or node.emit is not g.Emit.COMMIT or g.is_bare(node.schema) or node.others or not is_mergeable:
            return None
        if any(each.is_ordered for each in used):
            return None
        if not all(each.merge is not None and all(c.type.kind in _EXACT_KINDS for c in each.state_columns) for each in used):
            return None
        return partial_node(node)

    def cut(self, wiring: Wiring) -> Cut:
        """With time where key and time of a row say whether it moves time: one whose argument a callable refuses does not."""
        node = self.node
        if node.others or node.ttl_ms is not None or is_ordered_at_commit(wiring, node):
            return Cut.WHOLE
        match node.window:
            case None:
                return Cut.KEYS
            case g.SessionWindow():
                return Cut.TIMES
            case g.SlidingWindow() if is_told_by_times(node.window):
                return Cut.TIMES
            case g.TimeWindow() if not any(each.is_callable for each in self.args):
                return Cut.TIMES
        return Cut.WHOLE

    def plan(self, wiring: Wiring) -> Bind:
        node = self.node
        match node.window:
            case g.SessionWindow():
                return lambda task: SessionWork(node, wiring, task)
            case g.SlidingWindow():
                return lambda task: SlidingWork(node, wiring, task)
        if node.ttl_ms is not None:
            return lambda task: ExpiringWork(node, wiring, task)
        if node.others or isinstance(node.window, g.UnlimitedWindow | g.CalendarWindow):
            return lambda task: CogroupWork(node, wiring, task)
        return lambda task: AggregateWork(self, wiring, task)


class AggregateWork(Work):
    """See `AggregateOperator`."""

    def __init__(self, operator: AggregateOperator, wiring: Wiring, task: Task) -> None:
        node = operator.node
        self._node, self._task, self._args = node, task, operator.args
        self._spec = operator.stores()[0]
        self._is_fold = any(is_fold(a.aggregator) for a in node.aggregations)
        self._store = task.store(node.store)
        self._is_followed = bool(wiring.children[node.name])
        self._goes_by_row = task.goes_by_row(node.name)
        self._wants_old = node.name in wiring.wants_old
        self._needs = wiring.needs[node.name]
        self._key_decoder = key_decoder(node, wiring)
        self._columns_form = columns_form(node, self._spec)
        self._entries: Entries = ObjectEntries(node, self._store, wants_old=self._wants_old)
        self._closing = None
        if self._is_followed and node.emit is g.Emit.FINAL and isinstance(node.window, g.TimeWindow):
            self._closing = ClosingHeaders(closing_wait_ms(node.window))

    # -- slices ----------------------------------------------------------------------------------------------------------

    def cut(self, own: Slice) -> bool:
        return False

    @property
    def slack_ms(self) -> int:
        return self._node.window.grace_ms if isinstance(self._node.window, g.TimeWindow) else 0

    def moves_time(self, batch: Batch) -> Mask:
        return has_key(batch)

    def note_time(self, source: str, time_ms: int) -> None:
        self._store.stream_time_ms = max(self._store.stream_time_ms, time_ms)

    @property
    def notes_closing(self) -> bool:
        return self._closing is not None

    def note_closing(self, batch: Batch) -> None:
        assert self._closing is not None, "else it says that it does not"
        self._closing.note(batch, np.maximum.accumulate(np.maximum(batch.times, self._store.stream_time_ms)))

    # -- counting --------------------------------------------------------------------------------------------------------

    def process(self, batch: Batch, source: str) -> None:
        node = self._node
        batch = keyed_rows(self._task, node.name, batch)
        if node.window is None and batch.nulls is not None:
            for row in np.flatnonzero(batch.nulls).tolist():
                self._task.report("null_value", node.name, batch, row, None)
            batch = batch.without(batch.nulls)
        if not len(batch):
            return
        self._choose_entries()
        self._entries.open()
        errors = Errors(self._task, node, batch)
        args = [each.column(batch, errors.of(each)) for each in self._args]
        left = errors.rows(len(batch))
        if left is not None:
            batch, args = batch.take(left), [column.take(left) for column in args]
            errors = Errors(self._task, node, batch)
        if not len(batch):
            return
        change, clock = self._change(batch, args)
        if change.count == 0:
            self._store.stream_time_ms = clock
            return
        is_update = node.emit is g.Emit.UPDATE and self._is_followed
        report = errors.callable if self._is_fold else errors.expression
        if is_update and self._goes_by_row and len(batch) == 1 and change.starts is not None:
            after = _caused(batch, change)
            for pair, start in enumerate(change.starts.tolist()):
                updated = self._entries.update(change.pair(pair), report, is_traced=True)
                assert updated is not None, "it is traced"
                self._store.stream_time_ms = max(self._store.stream_time_ms, start)  # that of the last window comes last
                self._forward_updated(updated, after.take(np.array([pair])))
            self._store.stream_time_ms = clock
            return
        updated = self._entries.update(change, report, is_traced=is_update)
        self._store.stream_time_ms = clock
        if updated is not None:
            self._forward_updated(updated, _caused(batch, change))

    def _forward_updated(self, updated: Updated, after: Batch) -> None:
        """Forward the results of a change as those of rows, one for each pair of it."""
        if updated.pairs is not None:
            after = after.take(updated.pairs)
        if len(after):
            self._forward(updated, after)

    def _change(self, batch: Batch, args: list[Column]) -> tuple[Change, int]:
        """Return which entries the rows change: one each, or one in each window that is still open; and stream time behind them.

        The store's own moves after the change: entries that were alive when a row came must still be read.
        """
        assert batch.keys is not None
        window = self._node.window
        if not isinstance(window, g.TimeWindow):
            return Change(batch.keys, batch.times, args, None, None), self._store.stream_time_ms
        found = windows_of(window, batch.times, self._store.stream_time_ms)
        rows, starts, clock = found.rows, found.starts, int(found.clocks[-1])
        if self._closing is not None:
            self._closing.note(batch, found.clocks)
        if found.late is None:
            return Change(batch.keys, batch.times, args, rows, starts), clock
        kept = np.flatnonzero(~found.late)
        counted = set() if rows is None else set(rows[kept].tolist())
        for pair in np.flatnonzero(found.late).tolist():
            row = pair if rows is None else int(rows[pair])
            cause = (int(starts[pair]), int(found.clocks[row]))
            self._task.late(self._node.name, batch, row, cause, counts_elsewhere=row in counted)
        return Change(batch.keys, batch.times, args, kept if rows is None else rows[kept], starts[kept]), clock

    def _choose_entries(self) -> None:
        """Keep the entries as columns from when the kernels are there."""
        form = self._columns_form
        if form is not None and isinstance(self._entries, ObjectEntries) and isinstance(self._store, Store):
            loaded = loaded_kernels()
            if loaded is not None:
                self._entries.open()
                self._entries = ColumnEntries(
                    form, self._store, loaded, wants_old=self._wants_old, emitted_to=self._entries.emitted_to
                )

    def absorb(self, partials: Chunk) -> int:
        self._choose_entries()
        return self._entries.absorb(partials)

    # -- results ---------------------------------------------------------------------------------------------------------

    def commit(self) -> None:
        if self._node.emit is g.Emit.UPDATE or not self._is_followed:
            return
        is_final = self._node.emit is g.Emit.FINAL
        updated = self._entries.closed() if is_final else self._entries.changed()
        headers = None if self._closing is None else self._closing.take(updated.keys.objects)
        if len(updated.times):
            self._forward(updated, None, headers)

    def _forward(self, updated: Updated, causing: Batch | None, headers: Sequence[Headers] | None = None) -> None:
        """Forward the results of changed entries; `causing`: the rows that changed them, None at a task commit.

        `headers`: of each result; None: those of the row that caused it.
        """
        node, count = self._node, len(updated.times)
        columns: dict[ColumnId, Column] = {}
        if causing is not None:
            columns = {c: x for c, x in causing.columns.items() if c[0] is not Side.VALUE and c[1] not in _OWN}
        if updated.starts is not None and isinstance(node.window, g.TimeWindow):
            starts = updated.starts
            columns[Side.META, Meta.WINDOWSTART] = Column.of_vector(Vector(starts), count, Kind.BIGINT)
            columns[Side.META, Meta.WINDOWEND] = Column.of_vector(Vector(window_end(starts, node.window)), count, Kind.BIGINT)
        batch = Batch(node.schema, updated.times, updated.keys, columns)
        if causing is not None:
            batch.chunk, batch.rows, batch.order, batch.memory = causing.chunk, causing.rows, causing.order, causing.memory
            batch.path_bits = causing.path_bits
        else:
            found, _ = self._key_decoder.decode(updated.keys, batch.memory, _never)
            columns |= found
        report = self._task.reporter(node.name, batch)
        columns |= results_of_states(node, updated.states, report)
        batch.nulls = updated.states.gone
        if self._wants_old:
            assert updated.before is not None
            gone = updated.before.gone
            batch.old = Old(results_of_states(node, updated.before, report), np.zeros(count, np.bool_) if gone is None else gone)
        if headers is not None:
            batch.set_headers(headers)
        self._task.forward(node.name, batch)


_EXACT_KINDS = frozenset({Kind.BOOLEAN, Kind.INTEGER, Kind.BIGINT, Kind.STRING, Kind.BYTES, Kind.DATE, Kind.TIME, Kind.TIMESTAMP})
"""Kinds of state columns whose merge is exact. Not DOUBLE (sums round by order, a NaN stays where it came first), nor DECIMAL."""
_OWN = (WHOLE, Meta.ROWTIME, Meta.WINDOWSTART, Meta.WINDOWEND)


def _caused(batch: Batch, change: Change) -> Batch:
    """Return the row of each pair of a change."""
    return batch if change.rows is None else batch.expand(change.rows, _places(change.rows))


def _places(rows: Any) -> Any:
    """Return the place of each of the pairs of one row, of rows that never fall."""
    firsts = np.searchsorted(rows, rows)
    return np.arange(len(rows)) - firsts


def _never(row: int, error: Exception) -> None:
    raise AssertionError(f"the key of an entry was decoded before: {error}")
