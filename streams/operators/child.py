"""One of the named children of a processor: what it forwarded to that child, and what it forwarded to all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .. import graph as g
from ..columns import Batch
from ..columns.batch import ColumnId
from ..expr import Side
from .operator import Bind, Operator, Task, Wiring, Work

CHILD_COLUMN: ColumnId = (Side.META, "child")
"""For which child each row of a processor's batch is, None for all; absent where all are for all."""


class ChildOperator(Operator[g.Child]):
    """A Child."""

    node_class = g.Child
    is_stateless = True

    def reads(self, source: g.Node, below: frozenset[ColumnId], wiring: Wiring) -> set[ColumnId]:
        return set(below)

    def plan(self, wiring: Wiring) -> Bind:
        return lambda task: ChildWork(self.node, task)


class ChildWork(Work):
    """See `ChildOperator`."""

    def __init__(self, node: g.Child, task: Task) -> None:
        self._node, self._task = node, task

    def process(self, batch: Batch, source: str) -> None:
        named = batch.columns.get(CHILD_COLUMN)
        if named is not None:
            wanted = (None, self._node.child)
            batch = batch.where(np.fromiter([name in wanted for name in named.objects()], np.bool_, len(batch)))
            batch = replace(batch, columns={c: column for c, column in batch.columns.items() if c != CHILD_COLUMN})
        if len(batch):
            self._task.forward(self._node.name, batch)
