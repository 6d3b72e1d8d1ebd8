"""A stream read as a table: the latest value of each key, a null value deletes it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .. import graph as g
from ..columns import Batch
from ..columns.batch import ColumnId
from ..expr import Side
from ..seams import StoreSpec
from .operator import Bind, Operator, Task, Wiring, Work
from .rows import keep_rows


class ToTableOperator(Operator[g.ToTable]):
    """A ToTable. Rows without a key are left out."""

    node_class = g.ToTable

    def keeps(self) -> set[ColumnId]:
        return set() if self.node.store is None else {(Side.VALUE, column.name) for column in self.node.schema.value}

    def stores(self) -> tuple[StoreSpec, ...]:
        schema = self.node.schema
        return () if self.node.store is None else (StoreSpec(self.node.store, schema.key, schema.value, schema.window),)

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
        batch = replace(batch, schema=self._node.schema, old=None)
        if self._store is not None:
            batch.old = keep_rows(self._store, batch, wants_old=self._wants_old)
        if len(batch):
            self._task.forward(self._node.name, batch)


def keyed_rows(task: Task, node: str, batch: Batch) -> Batch:
    """Return the rows with a key; the others are reported."""
    assert batch.keys is not None, "a change of key is followed by a repartition"
    nulls = batch.keys.nulls()
    if nulls is None:
        return batch
    for row in np.flatnonzero(nulls).tolist():
        task.report("null_key", node, batch, row, None)
    return batch.without(nulls)
