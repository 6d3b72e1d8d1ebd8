"""Keeps the rows that meet a condition; on a table a row that stops meeting it goes out as a tombstone."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from .. import graph as g
from ..columns import Batch, Column, Old
from ..columns.batch import ColumnId
from ..columns.column import emptied
from ..columns.evaluate import Evaluation
from ..expr import Side, columns_used
from ..seams import StoreSpec
from ..vectors.expressions import Mask
from ..windows import store_window
from .operator import Bind, Errors, Operator, Task, Wiring, Work
from .rows import LATEST_COLUMN, as_latest, keep_rows


class FilterOperator(Operator[g.Filter]):
    """A Filter of a stream or a table."""

    node_class = g.Filter
    is_stateless = True

    @cached_property
    def condition(self) -> Evaluation:
        return Evaluation(self.node.predicate, is_truth=True, is_on_table=self.node.kind is g.EdgeKind.TABLE)

    def reads(self, source: g.Node, below: frozenset[ColumnId], wiring: Wiring) -> set[ColumnId]:
        return set(below) | columns_used(self.node.predicate)

    def keeps(self) -> set[ColumnId]:
        return set() if self.node.store is None else {(Side.VALUE, column.name) for column in self.node.schema.value}

    def stores(self) -> tuple[StoreSpec, ...]:
        schema = self.node.schema
        return (
            ()
            if self.node.store is None
            else (StoreSpec(self.node.store, schema.key, schema.value, store_window(schema.window)),)
        )

    def wants_old(self, *, is_asked: bool) -> bool:
        return self.node.kind is g.EdgeKind.TABLE

    def plan(self, wiring: Wiring) -> Bind:
        if self.node.kind is g.EdgeKind.STREAM:
            return lambda task: FilterWork(self, task)
        return lambda task: TableFilterWork(self, task)


class FilterWork(Work):
    """Of a stream."""

    def __init__(self, operator: FilterOperator, task: Task) -> None:
        self._node, self._condition, self._task = operator.node, operator.condition, task

    def process(self, batch: Batch, source: str) -> None:
        errors = Errors(self._task, self._node, batch)
        found = batch.where(self._condition.truth(batch, errors.of(self._condition)))
        if len(found):
            self._task.forward(self._node.name, replace(found, schema=self._node.schema))


class TableFilterWork(Work):
    """Of a table: the new row passes, or a tombstone goes out; nothing where the old row is known not to have passed either."""

    def __init__(self, operator: FilterOperator, task: Task) -> None:
        self._node, self._condition, self._task = operator.node, operator.condition, task
        self._store = None if operator.node.store is None else task.store(operator.node.store)

    def process(self, batch: Batch, source: str) -> None:
        errors = Errors(self._task, self._node, batch)
        gone = ~self._condition.truth(batch, errors.of(self._condition))
        kept = errors.rows(len(batch))
        if kept is not None:
            batch, gone = batch.take(kept), gone[kept]
        after = replace(
            batch, schema=self._node.schema, columns=_emptied(batch, gone), nulls=gone if gone.any() else None, old=None
        )
        if self._store is not None:
            after = as_latest(after)
            after.old = keep_rows(self._task, self._store, after, wants_old=True)
        elif batch.old is not None:
            before = batch.before()
            silent = Errors(self._task, self._node, before, is_silent=True)
            was_gone = ~self._condition.truth(before, silent.of(self._condition))
            after.old = Old({c: x for c, x in _emptied(before, was_gone).items() if c[0] is Side.VALUE}, was_gone)
        if after.old is not None and LATEST_COLUMN not in batch.columns:
            after = after.without(gone & after.old.nulls)
        if len(after):
            self._task.forward(self._node.name, after)


def _emptied(batch: Batch, gone: Mask) -> dict[ColumnId, Column]:
    """Return the columns, those of the value null where the row is gone: what follows may still read them (a change of key)."""
    if not gone.any():
        return batch.columns
    return {column: emptied(values, gone) if column[0] is Side.VALUE else values for column, values in batch.columns.items()}
