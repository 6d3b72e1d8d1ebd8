"""A table by another key: what each change takes out of the old row's group and adds to the new one's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from logflume.log.schemas import Kind

from .. import graph as g
from ..columns import Batch, Column
from ..columns.batch import ColumnId
from ..columns.column import emptied
from ..columns.evaluate import evaluations
from ..expr import Side, columns_used
from ..vectors.expressions import Vector
from .emission import places_of
from .operator import Bind, Cut, Errors, Operator, RawKey, Task, Wiring, Work
from .rekey import NewKeys, in_turn
from .versions import without_earlier

TAKEN_OUT, ADDED = 1, 2


class RegroupOperator(Operator[g.Regroup]):
    """A Regroup."""

    node_class = g.Regroup

    def reads(self, source: g.Node, below: frozenset[ColumnId], wiring: Wiring) -> set[ColumnId]:
        exprs = [x for _, x in (*self.node.key, *self.node.columns)]
        return set[ColumnId]().union(*(columns_used(x) for x in exprs))

    def raw_key(self, inputs: Sequence[RawKey | None]) -> RawKey | None:
        return None

    def wants_old(self, *, is_asked: bool) -> bool:
        return True

    def cut(self, wiring: Wiring) -> Cut:
        return Cut.KEYS  # the row before is of the same key

    def plan(self, wiring: Wiring) -> Bind:
        return lambda task: RegroupWork(self.node, task)


class RegroupWork(Work):
    """See `RegroupOperator`."""

    def __init__(self, node: g.Regroup, task: Task) -> None:
        self._node, self._task = node, task
        self._key, self._columns = evaluations(node.key, is_on_table=True), evaluations(node.columns, is_on_table=True)

    def process(self, batch: Batch, source: str) -> None:
        batch = without_earlier(batch)
        assert batch.old is not None, "a table that is regrouped knows its rows before"
        new, added = self._keyed(batch, is_silent=False)
        old, removed = self._keyed(batch.before(), is_silent=True)
        stays = new.stay(old)
        rows, is_removed = in_turn(old.there & ~stays, new.there)
        if not len(rows):
            return
        what = np.where(is_removed, TAKEN_OUT, np.where(stays[rows], TAKEN_OUT | ADDED, ADDED))
        schema, after = self._node.schema, batch.expand(rows, places_of(rows))
        columns = {c: x for c, x in after.columns.items() if c[0] is Side.META and c[1] not in ("WINDOWSTART", "WINDOWEND")}
        columns |= new.columns(old, schema.key, rows, is_removed)
        values = [Column.of_vector(Vector(what), len(rows), Kind.INTEGER)]
        values += [emptied(column.take(rows), what == ADDED) for column in removed]
        values += [emptied(column.take(rows), is_removed) for column in added]
        columns |= {(Side.VALUE, c.name): column for c, column in zip(schema.value, values, strict=True)}
        self._task.forward(self._node.name, replace(after, schema=schema, keys=None, columns=columns, nulls=None, old=None))

    def _keyed(self, batch: Batch, *, is_silent: bool) -> tuple[NewKeys, list[Column]]:
        """Return the new keys of rows and their values; there is none where either is null."""
        errors = Errors(self._task, self._node, batch, is_silent=is_silent)
        keys = NewKeys.of(self._key, batch, errors)
        values = [each.column(batch, errors.of(each)) for _, each in self._columns]
        if len(values) == 1 and self._columns[0][0] == g.BARE_COLUMN:
            keys = replace(keys, there=keys.there & ~values[0].nulls())
        return keys, values
