"""Each row becomes zero or more: lists that are exploded side by side, shorter ones padded with null."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import numpy as np

from logflume.log import InvalidInput

from .. import graph as g
from ..columns import Batch, Column
from ..columns.batch import ColumnId
from ..columns.evaluate import Evaluation
from ..expr import Side, columns_used
from .operator import Bind, Errors, Operator, Task, Wiring, Work


class FlatMapOperator(Operator[g.FlatMap]):
    """A FlatMap."""

    node_class = g.FlatMap
    is_stateless = True

    def reads(self, source: g.Node, below: frozenset[ColumnId], wiring: Wiring) -> set[ColumnId]:
        found = {c for c in below if c[0] is not Side.VALUE}
        return found.union(*(columns_used(x) for _, x, _ in self.node.columns))

    def plan(self, wiring: Wiring) -> Bind:
        if not any(is_exploded for _, _, is_exploded in self.node.columns):
            raise InvalidInput(f"{self.node.name}: a flat map needs a column that gives a list")
        columns = [(name, Evaluation(expr), is_exploded) for name, expr, is_exploded in self.node.columns]
        return lambda task: FlatMapWork(self.node, columns, task)


class FlatMapWork(Work):
    """See `FlatMapOperator`."""

    def __init__(self, node: g.FlatMap, columns: list[tuple[str, Evaluation, bool]], task: Task) -> None:
        self._node, self._columns, self._task = node, columns, task
        self._kinds = {column.name: column.type.kind for column in node.schema.value}

    def process(self, batch: Batch, source: str) -> None:
        errors = Errors(self._task, self._node, batch)
        found = {name: each.column(batch, errors.of(each)) for name, each, _ in self._columns}
        report = errors.callable if any(each.is_callable for _, each, _ in self._columns) else errors.expression
        left = errors.rows(len(batch))
        if left is not None:
            batch, found = batch.take(left), {name: column.take(left) for name, column in found.items()}
        names = [name for name, _, is_exploded in self._columns if is_exploded]
        rows: list[int] = []
        places: list[int] = []
        items: list[list[Any]] = [[] for _ in names]
        lists = [found[name].objects() for name in names]
        for row, values in enumerate(zip(*lists, strict=True)):
            try:
                parts = list(zip_longest(*[value or () for value in values]))
            except Exception as error:  # noqa: BLE001
                report(row if left is None else int(left[row]), error)
                continue
            rows += [row] * len(parts)
            places += range(len(parts))
            for target, column in zip(items, zip(*parts, strict=True), strict=bool(parts)):
                target += column
        if not rows:
            return
        after = batch.expand(np.array(rows, np.int64), np.array(places, np.int64))
        columns: dict[ColumnId, Column] = {
            (Side.VALUE, name): Column.of_objects(values, self._kinds[name]) for name, values in zip(names, items, strict=True)
        }
        for name, _, is_exploded in self._columns:
            if not is_exploded:
                columns[Side.VALUE, name] = found[name].take(np.array(rows, np.int64))
        nulls = None
        if g.is_bare(self._node.schema):
            nulls = columns[Side.VALUE, names[0]].nulls()
        self._task.forward(self._node.name, after.with_values(self._node.schema, columns, nulls=_any(nulls), old=None))


def _any(mask: Any) -> Any:
    return mask if mask is not None and mask.any() else None
