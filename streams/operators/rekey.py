"""New key columns; the encoded key is made where it is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .. import graph as g
from ..columns import Batch
from ..columns.batch import ColumnId
from ..columns.evaluate import Evaluation, evaluations
from ..expr import Meta, Side, columns_used
from .operator import Bind, Errors, Operator, RawKey, Task, Wiring, Work


class RekeyOperator(Operator[g.Rekey]):
    """A Rekey."""

    node_class = g.Rekey
    is_stateless = True

    def reads(self, source: g.Node, below: frozenset[ColumnId], wiring: Wiring) -> set[ColumnId]:
        kept = {c for c in below if c[0] is not Side.KEY}
        return kept.union(*(columns_used(x) for _, x in self.node.key))

    def raw_key(self, inputs: Sequence[RawKey | None]) -> RawKey | None:
        return None

    def plan(self, wiring: Wiring) -> Bind:
        columns = evaluations(self.node.key, is_on_table=self.node.kind is g.EdgeKind.TABLE)
        return lambda task: RekeyWork(self.node, columns, task)


class RekeyWork(Work):
    """See `RekeyOperator`."""

    def __init__(self, node: g.Rekey, columns: Sequence[tuple[str, Evaluation]], task: Task) -> None:
        self._node, self._columns, self._task = node, columns, task

    def process(self, batch: Batch, source: str) -> None:
        errors = Errors(self._task, self._node, batch)
        columns = {c: column for c, column in batch.columns.items() if c[0] is not Side.KEY and c[1] not in _BOUNDS}
        for name, each in self._columns:
            columns[Side.KEY, name] = each.column(batch, errors.of(each))
        after = errors.left(replace(batch, schema=self._node.schema, columns=columns, keys=None))
        if len(after):
            self._task.forward(self._node.name, after)


_BOUNDS = (Meta.WINDOWSTART, Meta.WINDOWEND)
