"""What changes nothing of a row itself: streams merged, a table's changes as a stream, a stream that a function looks at."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from logflume.log.schemas import Kind

from .. import graph as g
from ..columns import Batch, Column
from ..columns.batch import ColumnId
from ..expr import WHOLE, Side
from .operator import Bind, Cut, Errors, Operator, Task, Wiring, Work
from .rows import as_latest


class MergeOperator(Operator[g.Merge]):
    """A Merge: rows of several streams in order of cause."""

    node_class = g.Merge
    is_stateless = True

    def reads(self, source: g.Node, below: frozenset[ColumnId], wiring: Wiring) -> set[ColumnId]:
        if not self._is_whole(source):
            return set(below)
        values = {(Side.VALUE, WHOLE), *((Side.VALUE, column.name) for column in source.schema.value)}
        return values | {column for column in below if column[0] is not Side.VALUE}

    def _is_whole(self, source: g.Node) -> bool:
        """Return whether typed values of an input go on as objects."""
        return g.is_bare(self.node.schema) and not g.is_bare(source.schema)

    def plan(self, wiring: Wiring) -> Bind:
        has_keys = wiring.raw_keys[self.node.name] is not None
        wholes = frozenset(name for name in self.node.inputs if self._is_whole(wiring.node(name)))
        return lambda task: PassWork(self.node, task, has_keys=has_keys, wholes=wholes)


class ToStreamOperator(Operator[g.ToStream]):
    """A ToStream: new rows, tombstones included."""

    node_class = g.ToStream

    def cut(self, wiring: Wiring) -> Cut:
        return Cut.ROWS

    def plan(self, wiring: Wiring) -> Bind:
        has_keys = wiring.raw_keys[self.node.name] is not None
        return lambda task: PassWork(self.node, task, has_keys=has_keys)


class PassWork(Work):
    """Passes rows on without the rows before; without encoded keys where the inputs' differ.

    `wholes`: the inputs whose typed values become objects.
    """

    def __init__(self, node: g.Node, task: Task, *, has_keys: bool, wholes: frozenset[str] = frozenset()) -> None:
        self._node, self._task, self._has_keys, self._wholes = node, task, has_keys, wholes

    def process(self, batch: Batch, source: str) -> None:
        keys = batch.keys if self._has_keys else None
        if source in self._wholes:
            objects = batch.column(Side.VALUE, WHOLE).objects()
            nulls = np.fromiter((value is None for value in objects), np.bool_, len(objects))
            columns = {(Side.VALUE, g.BARE_COLUMN): Column.of_objects(objects, Kind.ANY)}
            batch = batch.with_values(self._node.schema, columns, nulls=nulls if nulls.any() else None, old=None)
        passed = replace(as_latest(batch), schema=self._node.schema, keys=keys, old=None)
        self._task.forward(self._node.name, passed)


class ForeachOperator(Operator[g.Foreach]):
    """A Foreach: a plain function is called for each row, in order; what it raises is reported and ends the row's way."""

    node_class = g.Foreach
    has_effects = True

    def reads(self, source: g.Node, below: frozenset[ColumnId], wiring: Wiring) -> set[ColumnId]:
        return set(below) | {(Side.VALUE, WHOLE), (Side.KEY, WHOLE)}

    def plan(self, wiring: Wiring) -> Bind:
        return lambda task: ForeachWork(self.node, task)


class ForeachWork(Work):
    """See `ForeachOperator`."""

    def __init__(self, node: g.Foreach, task: Task) -> None:
        self._node, self._task = node, task

    def process(self, batch: Batch, source: str) -> None:
        function, errors = self._node.function, Errors(self._task, self._node, batch)
        keys, values = (batch.column(side, WHOLE).objects() for side in (Side.KEY, Side.VALUE))
        for row, (key, value, time) in enumerate(zip(keys, values, batch.times.tolist(), strict=True)):
            try:
                function(key, value, time)
            except Exception as error:  # noqa: BLE001
                errors.callable(row, error)
        left = errors.left(batch)
        if len(left):
            self._task.forward(self._node.name, left)
