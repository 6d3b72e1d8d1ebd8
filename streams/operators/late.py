"""The records that came too late for the windows of an aggregate, as a stream of their own.

The aggregate says which they are (`Task.late`); the task gives their rows, as they came to it, to this node.
"""

from __future__ import annotations

from .. import graph as g
from ..columns import Batch
from ..columns.batch import ColumnId
from .operator import Bind, Operator, Task, Wiring, Work


class LateOperator(Operator[g.Late]):
    """A Late."""

    node_class = g.Late

    def takes(self, source: str) -> bool:
        return False

    def reads(self, source: g.Node, below: frozenset[ColumnId], wiring: Wiring) -> set[ColumnId]:
        return set()

    def wants_old(self, *, is_asked: bool) -> bool:
        return False

    def plan(self, wiring: Wiring) -> Bind:
        return lambda task: LateWork(self.node, task)


class LateWork(Work):
    """See `LateOperator`."""

    def __init__(self, node: g.Late, task: Task) -> None:
        self._node, self._task = node, task

    def process(self, batch: Batch, source: str) -> None:
        self._task.forward(self._node.name, batch)
