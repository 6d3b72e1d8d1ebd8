"""Each row of a stream looks up the table's row of its key; the table's changes put out nothing.

The table may be a view (Filter, Project) of one that is kept: its rows are computed when they are looked up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from logflume.log.schemas import Column as Field

from .. import graph as g
from ..columns import Batch, Column
from ..columns.batch import ColumnId
from ..columns.column import emptied, patched
from ..columns.evaluate import FEW_ROWS, Evaluation, evaluations
from ..expr import TABLE_PREFIX, WHOLE, Side, columns_used
from ..functions import results_of
from ..kernels import loaded_kernels
from ..seams import StoreSpec
from ..vectors.expressions import KINDS
from .lookup_join import WAITING, LookupJoinWork
from .lookups import stores_behind
from .operator import Bind, Cut, Errors, Operator, RawKey, Task, Wiring, Work
from .project import computed
from .rows import entries_of, nulls_of, state_columns, states_and_times
from .table_columns import TableColumns
from .versions import is_versioned


class StreamTableJoinOperator(Operator[g.StreamTableJoin]):
    """A StreamTableJoin, inner or left."""

    node_class = g.StreamTableJoin

    def takes(self, source: str) -> bool:
        return source == self.node.inputs[0]

    def reads(self, source: g.Node, below: frozenset[ColumnId], wiring: Wiring) -> set[ColumnId]:
        beside = {c for c in below if c[0] is not Side.VALUE}
        is_whole = (Side.VALUE, WHOLE) in below
        wanted = [x for name, x in self.node.columns if is_whole or (Side.VALUE, name) in below]
        used = set().union(*(columns_used(x) for x in wanted))
        if not self._is_plain(wiring):
            beside |= {(Side.VALUE, column.name) for column in source.schema.value}
            beside |= set[ColumnId]().union(*(columns_used(x) for _, x in self.node.key))
            beside |= {(Side.KEY, column.name) for column in source.schema.key}
        elif any(side is Side.KEY for side, _ in _view_reads(wiring, self.node.inputs[1])):
            beside |= {(Side.KEY, column.name) for column in source.schema.key}
        return beside | {c for c in used if not c[1].startswith(TABLE_PREFIX)}

    def looks_up(self, source: str, wiring: Wiring) -> frozenset[str]:
        return stores_behind(wiring, self.node.inputs[1])

    def raw_key(self, inputs: Sequence[RawKey | None]) -> RawKey | None:
        return inputs[0]

    def cut(self, wiring: Wiring) -> Cut:
        table = wiring.node(self.node.inputs[1])
        if g.is_global(table):
            return Cut.KEYS  # each slice has all of the table, whichever rows it takes
        return Cut.KEYS if self._is_plain(wiring) and wiring.schema(table.name).window is None else Cut.WHOLE

    def stores(self) -> tuple[StoreSpec, ...]:
        node = self.node
        return () if node.store is None else (StoreSpec(node.store, node.schema.key, WAITING),)

    def plan(self, wiring: Wiring) -> Bind:
        if not self._is_plain(wiring):
            return lambda task: LookupJoinWork(self.node, wiring, task)
        wanted = [(name, expr) for name, expr in self.node.columns if wiring.is_needed(self.node.name, name)]
        columns = evaluations(wanted, is_on_table=False)
        used = {name for _, each in columns for side, name in each.used if side is Side.VALUE}
        read = {name.removeprefix(TABLE_PREFIX) for name in used if name.startswith(TABLE_PREFIX)}
        view = View.of(wiring, self.node.inputs[1], read)
        keys = tuple(
            (theirs.name, ours.name) for ours, theirs in zip(wiring.schema(self.node.inputs[0]).key, view.schema.key, strict=True)
        )
        return lambda task: StreamTableJoinWork(self.node, columns, Lookup(view, keys, task), task)

    def _is_plain(self, wiring: Wiring) -> bool:
        """Return whether a row is looked up as it is now, by the record's key, in a table or a view of one."""
        node, table = self.node, wiring.node(self.node.inputs[1])
        while g.store_of(table) is None and isinstance(table, g.Filter | g.Project):
            table = wiring.node(table.inputs[0])
        is_session = isinstance(table, g.Aggregate) and isinstance(table.window, g.SessionWindow)
        is_kept = isinstance(table, g.Source | g.ToTable | g.Filter | g.Project | g.Aggregate) and not is_session
        return is_kept and not is_versioned(table) and not node.key and node.grace_ms is None


def _kept(wiring: Wiring, name: str) -> g.Node:
    """Return the table that is kept, which a view leads to."""
    node = wiring.node(name)
    return node if g.store_of(node) is not None else _kept(wiring, node.inputs[0])


def _view_reads(wiring: Wiring, name: str) -> set[ColumnId]:
    """Return what the views between a joined table and the table that is kept read."""
    node = wiring.node(name)
    if g.store_of(node) is not None:
        return set()
    below = _view_reads(wiring, node.inputs[0])
    if isinstance(node, g.Filter):
        return columns_used(node.predicate) | below
    assert isinstance(node, g.Project), f"{name} is not a table that can be looked up"
    return below.union(*(columns_used(x) for _, x in node.columns))


class View:
    """A table that rows are looked up in: one that is kept, and what its rows go through.

    Attributes:
        kept: the table that is kept; `steps` lead from it to the view, each with its evaluations.
        read: the columns that are read of the table that is kept.
    """

    def __init__(self, kept: g.Node, steps: Sequence[tuple[g.Node, Any]], schema: g.Schema, read: tuple[Field, ...]) -> None:
        self.kept, self.steps, self.schema, self.read = kept, steps, schema, read
        has_time = any((Side.META, "ROWTIME") in used for used in map(_used, steps))
        is_plain = not isinstance(kept, g.Aggregate) and kept.schema.window is None and not has_time
        self.has_columns = is_plain and all(column.type.kind in KINDS for column in read)

    @classmethod
    def of(cls, wiring: Wiring, name: str, wanted: set[str]) -> View:
        """Make it of a table or a view of which some columns are wanted."""
        steps: list[tuple[g.Node, Any]] = []
        node = wiring.node(name)
        schema = node.schema
        while g.store_of(node) is None:
            if isinstance(node, g.Filter):
                steps.append((node, Evaluation(node.predicate, is_truth=True, is_on_table=True)))
            else:
                assert isinstance(node, g.Project), f"{name} is not a table that can be looked up"
                steps.append((node, evaluations(node.columns, is_on_table=True)))
            node = wiring.node(node.inputs[0])
        for step in steps:
            used = {column for side, column in _used(step) if side is Side.VALUE}
            wanted = used if isinstance(step[0], g.Project) else wanted | used
        is_whole = WHOLE in wanted
        return cls(node, steps[::-1], schema, tuple(c for c in node.schema.value if is_whole or c.name in wanted))


def _used(step: tuple[g.Node, Any]) -> set[ColumnId]:
    node, found = step
    return set(found.used) if isinstance(node, g.Filter) else set().union(*(each.used for _, each in found))


class Lookup:
    """A view at work in one task: the rows of keys, from the store, or from columns beside it once the kernels are there."""

    def __init__(self, view: View, keys: Sequence[tuple[str, str]], task: Task) -> None:
        self._view, self._keys, self._task = view, keys, task
        self._name = g.store_of(view.kept) or ""
        self._store = task.store(self._name)
        self._table: TableColumns | None = None
        if view.has_columns:
            task.watch(self._name, self._changed)

    def rows(self, batch: Batch) -> Batch:
        """Return the table's rows of the keys of a batch, null where there is none."""
        table = self._columns()
        if table is None or len(batch) < FEW_ROWS:
            found = self._by_objects(batch)
        else:
            found = self._by_columns(batch, table)
        for theirs, ours in self._keys:
            if (Side.KEY, ours) in batch.columns:
                found.columns[Side.KEY, theirs] = batch.columns[Side.KEY, ours]
        return self._through(found)

    def _columns(self) -> TableColumns | None:
        """Return the columns beside the store, from when the kernels are there."""
        loaded = loaded_kernels() if self._view.has_columns else None
        if loaded is None:
            return None
        if self._table is None:
            self._table = TableColumns(self._store, self._view.read, loaded.tables)
        return self._table

    def _changed(self, batch: Batch | None) -> None:
        if batch is None and self._table is not None:
            self._table.clear()
        elif batch is not None and (self._table is not None or self._columns() is not None):
            assert self._table is not None
            self._table.changed(batch)

    def _by_columns(self, batch: Batch, table: TableColumns) -> Batch:
        assert batch.keys is not None
        found = table.find(*batch.keys.addresses())
        batch.memory.append(found.memory)
        gone, count = ~found.present, len(batch)
        columns: dict[ColumnId, Column] = {}
        rows = np.empty(0, np.int64) if found.unsure is None else np.flatnonzero(found.unsure)
        rest = self._by_objects(batch.take(rows)) if len(rows) else None
        for field in self._view.read:
            vector, kind = found.columns[field.name], field.type.kind
            if rest is None:
                columns[Side.VALUE, field.name] = Column.of_vector(vector, count, kind, batch.memory)
            else:
                values = rest.column(Side.VALUE, field.name).objects()
                columns[Side.VALUE, field.name] = patched(vector, count, kind, rows, values, batch.memory)
        if rest is not None:
            gone[rows] = False if rest.nulls is None else rest.nulls
        return replace(batch, schema=self._view.kept.schema, columns=columns, nulls=gone if gone.any() else None, old=None)

    def _by_objects(self, batch: Batch) -> Batch:
        assert batch.keys is not None
        states, times = states_and_times(entries_of(self._store, batch.keys.objects()))
        node = self._view.kept
        gone = nulls_of(states)
        if isinstance(node, g.Aggregate):
            result = results_of(node.aggregations)
            states = [None if state is None else result(state) for state in states]
        columns = state_columns(states, [(column.name, column.type.kind) for column in node.schema.value])
        return replace(batch, schema=node.schema, times=times, columns=columns, nulls=gone, old=None)

    def _through(self, found: Batch) -> Batch:
        """Let rows go through the steps of the view."""
        for node, step in self._view.steps:
            if isinstance(node, g.Filter):
                failing = ~step.truth(found, Errors(self._task, node, found).of(step))
                found = replace(found, schema=node.schema, nulls=failing if failing.any() else None)
            else:
                values, nulls = computed(Errors(self._task, node, found), node, step, found)
                if found.nulls is not None:
                    nulls = found.nulls if nulls is None else nulls | found.nulls
                found = found.with_values(node.schema, values, nulls=nulls, old=None)
        return found


class StreamTableJoinWork(Work):
    """See `StreamTableJoinOperator`."""

    def __init__(
        self,
        node: g.StreamTableJoin,
        columns: Sequence[tuple[str, Evaluation]],
        table: Lookup,
        task: Task,
    ) -> None:
        self._node, self._columns, self._table, self._task = node, columns, table, task
        self._is_left = node.join is g.JoinKind.LEFT

    def process(self, batch: Batch, source: str) -> None:
        assert batch.keys is not None, "a change of key is followed by a repartition"
        batch = self._without(batch, batch.nulls, "null_value")
        if not self._is_left:
            assert batch.keys is not None
            batch = self._without(batch, batch.keys.nulls(), "null_key")
        if not len(batch):
            return
        table = self._table.rows(batch)
        if not self._is_left and table.nulls is not None:
            rows = np.flatnonzero(~table.nulls)
            batch, table = batch.take(rows), table.take(rows)
        columns = dict(batch.columns)
        for (side, name), column in table.columns.items():
            if side is Side.VALUE and name != WHOLE:
                columns[side, TABLE_PREFIX + name] = emptied(column, table.nulls)
        if any((Side.VALUE, TABLE_PREFIX + WHOLE) in each.used for _, each in self._columns):
            columns[Side.VALUE, TABLE_PREFIX + WHOLE] = emptied(table.column(Side.VALUE, WHOLE), table.nulls)
        both = replace(batch, columns=columns)
        errors = Errors(self._task, self._node, both)
        values, nulls = computed(errors, self._node, self._columns, both)
        after = errors.left(batch.with_values(self._node.schema, values, nulls=nulls, old=None))
        if len(after):
            self._task.forward(self._node.name, after)

    def _without(self, batch: Batch, mask: Any, reason: str) -> Batch:
        if mask is None:
            return batch
        for row in np.flatnonzero(mask).tolist():
            self._task.report(reason, self._node.name, batch, row, None)
        return batch.without(mask)
