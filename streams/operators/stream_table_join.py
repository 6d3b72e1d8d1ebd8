"""Each row of a stream looks up the table's row of its key; the table's changes put out nothing.

The table may be a view (Filter, Project) of one that is kept: its rows are computed when they are looked up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .. import graph as g
from ..columns import Batch, Column
from ..columns.batch import ColumnId
from ..columns.evaluate import Evaluation, evaluations
from ..expr import TABLE_PREFIX, WHOLE, Side, columns_used
from ..seams import StoreSpec
from .lookup_join import WAITING, LookupJoinWork
from .lookups import stores_behind
from .operator import Bind, Operator, RawKey, Task, Wiring, Work
from .project import computed
from .rows import state_columns
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

    def looks_up(self, wiring: Wiring) -> frozenset[str]:
        return stores_behind(wiring, self.node.inputs[1])

    def raw_key(self, inputs: Sequence[RawKey | None]) -> RawKey | None:
        return inputs[0]

    def stores(self) -> tuple[StoreSpec, ...]:
        node = self.node
        return () if node.store is None else (StoreSpec(node.store, node.schema.key, WAITING),)

    def plan(self, wiring: Wiring) -> Bind:
        if not self._is_plain(wiring):
            return lambda task: LookupJoinWork(self.node, wiring, task)
        wanted = [(name, expr) for name, expr in self.node.columns if wiring.is_needed(self.node.name, name)]
        view = View.of(wiring, self.node.inputs[1])
        columns = evaluations(wanted)
        keys = tuple(
            (theirs.name, ours.name) for ours, theirs in zip(wiring.schema(self.node.inputs[0]).key, view.schema.key, strict=True)
        )
        return lambda task: StreamTableJoinWork(self.node, columns, view, keys, task)

    def _is_plain(self, wiring: Wiring) -> bool:
        """Return whether a row is looked up as it is now, by the record's key, in a table or a view of one."""
        node, table = self.node, wiring.node(self.node.inputs[1])
        while g.store_of(table) is None and isinstance(table, g.Filter | g.Project):
            table = wiring.node(table.inputs[0])
        is_kept = g.store_of(table) is not None and not isinstance(table, g.TableAggregate)
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
    """A table that rows are looked up in: one that is kept, and what its rows go through."""

    def __init__(self, kept: g.Node, steps: Sequence[tuple[g.Node, Any]], schema: g.Schema) -> None:
        self.kept, self.steps, self.schema = kept, steps, schema

    @classmethod
    def of(cls, wiring: Wiring, name: str) -> View:
        """Make it of a table or a view."""
        steps: list[tuple[g.Node, Any]] = []
        node = wiring.node(name)
        schema = node.schema
        while g.store_of(node) is None:
            if isinstance(node, g.Filter):
                steps.append((node, Evaluation(node.predicate, is_truth=True)))
            else:
                assert isinstance(node, g.Project), f"{name} is not a table that can be looked up"
                steps.append((node, evaluations(node.columns)))
            node = wiring.node(node.inputs[0])
        return cls(node, steps[::-1], schema)

    def rows(self, task: Task, batch: Batch, keys: Sequence[tuple[str, str]]) -> Batch:
        """Return the table's rows of the keys of a batch, null where there is none."""
        assert batch.keys is not None
        store = task.store(g.store_of(self.kept) or "")
        encoded: list[Any] = batch.keys.objects()
        store.load([key for key in encoded if key is not None] if None in encoded else encoded)
        entries = list(map(store.resident.get, encoded))
        states = [None if entry is None else entry.state for entry in entries]
        gone = np.fromiter([state is None for state in states], np.bool_, len(states))
        times = np.fromiter([-1 if entry is None else entry.timestamp_ms for entry in entries], np.int64, len(entries))
        columns = self._columns(task, states, batch)
        for theirs, ours in keys:
            if (Side.KEY, ours) in batch.columns:
                columns[Side.KEY, theirs] = batch.columns[Side.KEY, ours]
        found = replace(
            batch, schema=self.kept.schema, times=times, columns=columns, nulls=gone if gone.any() else None, old=None
        )
        for node, step in self.steps:
            if isinstance(node, g.Filter):
                failing = ~step.truth(found, task.reporter(node.name, found))
                found = replace(found, schema=node.schema, nulls=failing if failing.any() else None)
            else:
                values, nulls = computed(task, node, step, found)
                if found.nulls is not None:
                    nulls = found.nulls if nulls is None else nulls | found.nulls
                found = found.with_values(node.schema, values, nulls=nulls, old=None)
        return found

    def _columns(self, task: Task, states: list[Any], batch: Batch) -> dict[ColumnId, Column]:
        from ..aggregators import results_of

        node = self.kept
        if isinstance(node, g.Aggregate):
            result = results_of(node.aggregations)
            states = [None if state is None else result(state) for state in states]
        return state_columns(states, [(column.name, column.type.kind) for column in node.schema.value])


class StreamTableJoinWork(Work):
    """See `StreamTableJoinOperator`."""

    def __init__(
        self,
        node: g.StreamTableJoin,
        columns: Sequence[tuple[str, Evaluation]],
        view: View,
        keys: Sequence[tuple[str, str]],
        task: Task,
    ) -> None:
        self._node, self._columns, self._view, self._keys, self._task = node, columns, view, keys, task
        self._is_left = node.join is g.JoinKind.LEFT

    def process(self, batch: Batch, source: str) -> None:
        assert batch.keys is not None, "a change of key is followed by a repartition"
        batch = self._without(batch, batch.nulls, "null_value")
        if not self._is_left:
            assert batch.keys is not None
            batch = self._without(batch, batch.keys.nulls(), "null_key")
        if not len(batch):
            return
        table = self._view.rows(self._task, batch, self._keys)
        if not self._is_left and table.nulls is not None:
            rows = np.flatnonzero(~table.nulls)
            batch, table = batch.take(rows), table.take(rows)
        columns = dict(batch.columns)
        for (side, name), column in table.columns.items():
            if side is Side.VALUE and name != WHOLE:
                columns[side, TABLE_PREFIX + name] = _emptied(column, table.nulls)
        if any((Side.VALUE, TABLE_PREFIX + WHOLE) in each.used for _, each in self._columns):
            columns[Side.VALUE, TABLE_PREFIX + WHOLE] = _emptied(table.column(Side.VALUE, WHOLE), table.nulls)
        both = replace(batch, columns=columns)
        values, nulls = computed(self._task, self._node, self._columns, both)
        self._task.forward(self._node.name, batch.with_values(self._node.schema, values, nulls=nulls, old=None))

    def _without(self, batch: Batch, mask: Any, reason: str) -> Batch:
        if mask is None:
            return batch
        for row in np.flatnonzero(mask).tolist():
            self._task.report(reason, self._node.name, batch, row, None)
        return batch.without(mask)


def _emptied(column: Column, nulls: Any) -> Column:
    """Return a column that is null where the table has no row: a filter's view may hold values there."""
    if nulls is None:
        return column
    values = column.objects()
    return Column.of_objects([None if null else v for v, null in zip(values, nulls.tolist(), strict=True)], column.kind)
