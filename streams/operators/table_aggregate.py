"""Aggregates of a regrouped table: the row before is taken out, the new one added."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .. import graph as g
from ..columns import Batch, Column
from ..columns.batch import ColumnId
from ..expr import Side, columns_used
from ..seams import Entry, State, StoreSpec
from .chained import Changes, forward
from .emission import Emission, Emitted
from .entries import States
from .folding import Folding, state_fields
from .operator import Bind, Cut, Errors, Operator, Task, Wiring, Work
from .regroup import ADDED, TAKEN_OUT
from .slices import is_ordered_at_commit
from .to_table import keyed_rows


class TableAggregateOperator(Operator[g.TableAggregate]):
    """A TableAggregate."""

    node_class = g.TableAggregate

    def reads(self, source: g.Node, below: frozenset[ColumnId], wiring: Wiring) -> set[ColumnId]:
        used = set[ColumnId]().union(*(columns_used(x) for a in self.node.aggregations for x in a.args))
        found = {c for c in used if c[0] is not Side.VALUE} | {(Side.KEY, c.name) for c in source.schema.key}
        return found | {(Side.VALUE, c.name) for c in source.schema.value}

    def stores(self) -> tuple[StoreSpec, ...]:
        return (StoreSpec(self.node.store, self.node.schema.key, state_fields(self.node)),)

    def wants_old(self, *, is_asked: bool) -> bool:
        return False

    def cut(self, wiring: Wiring) -> Cut:
        """Not with windows, which are behind the key."""
        is_whole = self.node.schema.window is not None or is_ordered_at_commit(wiring, self.node)
        return Cut.WHOLE if is_whole else Cut.KEYS

    def plan(self, wiring: Wiring) -> Bind:
        return lambda task: TableAggregateWork(self.node, wiring, task)


class TableAggregateWork(Work):
    """See `TableAggregateOperator`."""

    def __init__(self, node: g.TableAggregate, wiring: Wiring, task: Task) -> None:
        self._node, self._task = node, task
        self._folding = Folding(node, node.aggregations)
        self._store = task.store(node.store)
        self._is_update = node.emit is g.Emit.UPDATE
        self._emission = Emission(node, wiring, keeps_keys=self._is_update)

    def process(self, batch: Batch, source: str) -> None:
        batch = keyed_rows(self._task, self._node.name, batch)
        if not len(batch):
            return
        assert batch.keys is not None
        folding, store = self._folding, self._store
        errors = Errors(self._task, self._node, batch)
        report = errors.callable
        removed, added = (folding.arguments(self._side(batch, sign), errors) for sign in "-+")
        keys: list[Any] = batch.keys.objects()
        what = batch.column(Side.VALUE, g.REGROUPED).objects()
        store.load(keys)
        find, mark, subtract, add = store.resident.get, store.dirty.setdefault, folding.subtract, folding.add
        before: list[State | None] = []
        after: list[State | None] = []
        times: list[int] = []
        for row, (key, kind, time) in enumerate(zip(keys, what, batch.times.tolist(), strict=True)):
            entry = find(key)
            old = state = None if entry is None else entry.state
            if kind & TAKEN_OUT and old is not None:
                state = subtract(state, removed[row], row, report)
            if kind & ADDED:
                state = add(state, added[row], row, report)
            mark(key, old)
            if entry is None:
                store.resident[key] = Entry(state, time)
            else:
                entry.state, entry.timestamp_ms = state, time if old is None else max(time, entry.timestamp_ms)
                time = entry.timestamp_ms
            before.append(old)
            after.append(state)
            times.append(time)
        if self._is_update:
            fields = store.spec.columns
            states, olds = States.of(after, fields), States.of(before, fields)
            changes = Changes(np.arange(len(keys)), batch.keys, np.array(times, np.int64), states, olds)
            forward(self._task, self._node, self._emission, changes, batch, errors)

    def _side(self, batch: Batch, sign: str) -> Batch:
        """Return the rows that are taken out ("-") or added ("+")."""
        columns: dict[ColumnId, Column] = {c: x for c, x in batch.columns.items() if c[0] is not Side.VALUE}
        for column in self._node.row.value:
            columns[Side.VALUE, column.name] = batch.column(Side.VALUE, sign + column.name)
        return replace(batch, schema=self._node.row, columns=columns, nulls=None, old=None)

    def commit(self) -> None:
        if not self._is_update:
            self._emission.forward(self._task, changed_entries(self._store, self._folding), None)


def changed_entries(store: Any, folding: Folding) -> Emitted:
    """Return the results of the entries that changed since the last commit, in order of their first change."""
    emitted = Emitted()
    for key, old in store.dirty.items():
        entry = store.resident.get(key)
        if entry is not None and (entry.state is not None or old is not None):
            emitted.add(-1, key, entry.timestamp_ms, folding.result(entry.state), folding.result(old))
    return emitted
