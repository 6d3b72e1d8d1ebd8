"""Aggregates of a regrouped table: the row before is taken out, the new one added."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .. import graph as g
from ..columns import Batch, Column
from ..columns.batch import ColumnId
from ..expr import Side, columns_used
from ..seams import State, StoreSpec
from .emission import Emission, Emitted
from .folding import Folding, state_fields
from .operator import Bind, Errors, Operator, Task, Wiring, Work
from .regroup import ADDED, TAKEN_OUT
from .rows import put_entry
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
        store.load(keys)
        emitted = Emitted()
        what = batch.column(Side.VALUE, g.REGROUPED).objects()
        for row, (key, kind, time) in enumerate(zip(keys, what, batch.times.tolist(), strict=True)):
            entry = store.resident.get(key)
            old = None if entry is None else entry.state
            state: State | None = old
            if kind & TAKEN_OUT and old is not None:
                state = folding.subtract(state, removed[row], row, report)
            if kind & ADDED:
                state = folding.add(state, added[row], row, report)
            at = time if old is None or entry is None else max(time, entry.timestamp_ms)
            put_entry(store, key, state, at)
            if self._is_update:
                emitted.add(row, key, at, folding.result(state), folding.result(old))
        if self._is_update:
            self._emission.forward(self._task, emitted, batch, errors=errors)

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
