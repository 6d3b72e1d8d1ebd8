"""A stream read as a table: the latest value of each key, a null value deletes it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .. import graph as g
from ..columns import Batch
from ..columns.batch import ColumnId
from ..expr import Side
from ..seams import StateStore, StoreSpec
from ..vectors.expressions import Mask
from ..windows import store_window
from .operator import Bind, Cut, Operator, Task, Wiring, Work
from .rows import as_latest, keep_rows
from .versions import is_versioned, keep_versions, versions_spec


class ToTableOperator(Operator[g.ToTable]):
    """A ToTable. Rows without a key are left out."""

    node_class = g.ToTable

    def keeps(self) -> set[ColumnId]:
        return set() if self.node.store is None else {(Side.VALUE, column.name) for column in self.node.schema.value}

    def stores(self) -> tuple[StoreSpec, ...]:
        schema = self.node.schema
        if self.node.store is None:
            return ()
        if is_versioned(self.node):
            return (versions_spec(self.node),)
        return (StoreSpec(self.node.store, schema.key, schema.value, store_window(schema.window)),)

    def cut(self, wiring: Wiring) -> Cut:
        return Cut.WHOLE if is_versioned(self.node) or self.node.schema.window is not None else Cut.KEYS

    def plan(self, wiring: Wiring) -> Bind:
        wants_old = self.node.name in wiring.wants_old
        return lambda task: ToTableWork(self.node, task, wants_old=wants_old)


class ToTableWork(Work):
    """See `ToTableOperator`."""

    def __init__(self, node: g.ToTable, task: Task, *, wants_old: bool) -> None:
        self._node, self._task, self._wants_old = node, task, wants_old
        self._store = None if node.store is None else task.store(node.store)

    def process(self, batch: Batch, source: str) -> None:
        batch = keyed_rows(self._task, self._node.name, batch)
        batch = replace(as_latest(batch), schema=self._node.schema, old=None)
        if self._store is not None and self._node.history_ms is not None:
            batch = self._versions(self._store, batch, self._node.history_ms)
        elif self._store is not None:
            batch.old = keep_rows(self._task, self._store, batch, wants_old=self._wants_old)
        if len(batch):
            self._task.forward(self._node.name, batch)

    def _versions(self, store: StateStore, batch: Batch, history_ms: int) -> Batch:
        kept, late = keep_versions(store, batch, history_ms, wants_old=self._wants_old)
        for row in late:
            self._task.report("late", self._node.name, batch, row, store.stream_time_ms)
        return kept


def has_key(batch: Batch) -> Mask:
    """Return which rows have a key."""
    nulls = None if batch.keys is None else batch.keys.nulls()
    return np.ones(len(batch), np.bool_) if nulls is None else ~nulls


def has_key_and_value(batch: Batch) -> Mask:
    """Return which rows have a key and a value."""
    return has_key(batch) if batch.nulls is None else has_key(batch) & ~batch.nulls


def keyed_rows(task: Task, node: str, batch: Batch) -> Batch:
    """Return the rows with a key; the others are reported."""
    assert batch.keys is not None, "a change of key is followed by a repartition"
    nulls = batch.keys.nulls()
    if nulls is None:
        return batch
    for row in np.flatnonzero(nulls).tolist():
        task.report("null_key", node, batch, row, None)
    return batch.without(nulls)
