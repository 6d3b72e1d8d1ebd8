"""Joins of two tables by key: a change of either side looks the other one up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .. import graph as g
from ..columns import Batch
from ..columns.batch import ColumnId
from ..columns.evaluate import evaluations
from ..expr import Side
from ..seams import StoreSpec
from ..vectors.expressions import Mask
from ..windows import store_window
from .emission import Emission, Joiner
from .lookups import has_result, lookup_of, stores_behind
from .operator import Bind, Cut, Operator, RawKey, Task, Wiring, Work
from .rows import Rows, entries_of
from .to_table import keyed_rows
from .versions import is_view_of_versions, without_earlier


class TableJoinOperator(Operator[g.TableJoin]):
    """A TableJoin, inner, left or outer."""

    node_class = g.TableJoin

    def reads(self, source: g.Node, below: frozenset[ColumnId], wiring: Wiring) -> set[ColumnId]:
        return {(Side.VALUE, c.name) for c in source.schema.value} | {(Side.KEY, c.name) for c in source.schema.key}

    def keeps(self) -> set[ColumnId]:
        return set() if self.node.store is None else {(Side.VALUE, column.name) for column in self.node.schema.value}

    def stores(self) -> tuple[StoreSpec, ...]:
        node = self.node
        return (
            ()
            if node.store is None
            else (StoreSpec(node.store, node.schema.key, node.schema.value, store_window(node.schema.window)),)
        )

    def looks_up(self, source: str, wiring: Wiring) -> frozenset[str]:
        left, right = self.node.inputs
        sides = {other for mine, other in ((left, right), (right, left)) if mine == source}
        return frozenset[str]().union(*(stores_behind(wiring, side) for side in sides))

    def raw_key(self, inputs: Sequence[RawKey | None]) -> RawKey | None:
        return inputs[0]

    def wants_old(self, *, is_asked: bool) -> bool:
        return is_asked or self.node.join is not g.JoinKind.INNER

    def cut(self, wiring: Wiring) -> Cut:
        """Not with windows, whose rows expire, nor with versions of rows, which do."""
        has_time = any(wiring.schema(name).window is not None or is_view_of_versions(wiring, name) for name in self.node.inputs)
        return Cut.WHOLE if has_time else Cut.KEYS

    def plan(self, wiring: Wiring) -> Bind:
        return lambda task: TableJoinWork(self.node, wiring, task)


class TableJoinWork(Work):
    """See `TableJoinOperator`."""

    def __init__(self, node: g.TableJoin, wiring: Wiring, task: Task) -> None:
        self._node, self._task = node, task
        left, right = node.inputs
        self._schemas = (wiring.schema(left), wiring.schema(right))
        self._lookups = (lookup_of(wiring, left), lookup_of(wiring, right))
        self._joiner = Joiner(node, evaluations(node.columns, is_on_table=False), *self._schemas)
        self._emission = Emission(node, wiring, keeps_keys=True, computes=node.columns)
        self._store = None if node.store is None else task.store(node.store)

    def process(self, batch: Batch, source: str) -> None:
        sides = [side for side, name in enumerate(self._node.inputs) if name == source]
        for place, side in enumerate(sides):  # both of a join with itself, one after the other
            own = batch.branch(place, len(sides))
            self._process(without_earlier(keyed_rows(self._task, self._node.name, own)), side)

    def _process(self, batch: Batch, side: int) -> None:
        """Join the rows of a batch with those of the other table: as they are, and, for who compares, as they were."""
        assert batch.keys is not None
        other, times = self._lookups[1 - side].find(self._task, batch.keys.objects(), batch)
        mine, before = Rows.of(batch), Rows.before(batch)
        has_other, is_left, count = other.there(len(batch)), side == 0, len(batch)
        kept = has_other
        if self._node.join is g.JoinKind.OUTER or (self._node.join is g.JoinKind.LEFT and is_left):
            kept = has_other | mine.there(count) if before is None else has_other | mine.there(count) | before.there(count)
        if self._store is not None and self._node.takes_back and mine.gone is not None:
            entries = entries_of(self._store, batch.keys.objects())
            kept = kept | (mine.gone & np.fromiter([entry is not None for entry in entries], np.bool_, count))
        times = np.where(has_other, np.maximum(times, batch.times), batch.times)
        rows = np.flatnonzero(kept)
        if not len(rows):
            return
        shell = self._emission.shell_of(rows, None, times[rows], batch)
        if len(rows) < count:
            mine, other, before = mine.take(rows), other.take(rows), None if before is None else before.take(rows)
        left, right, needed = self._pairs(mine, other, len(rows), is_left=is_left)
        old = None
        if self._store is None and self._emission.wants_old and before is not None:
            old_left, old_right, was_needed = self._pairs(before, other, len(rows), is_left=is_left)
            old = self._joiner.before(self._task, shell, old_left, old_right, needed=was_needed)
        after = self._joiner.joined(self._task, shell, left, right, needed=needed, old=old)
        self._emission.put_out(self._task, self._store, after)

    def _pairs(self, mine: Rows, other: Rows, count: int, *, is_left: bool) -> tuple[Rows, Rows, Mask]:
        """Return the left and the right rows, and which pairs have a result."""
        left, right = (mine, other) if is_left else (other, mine)
        return left, right, has_result(self._node.join, left.there(count), right.there(count))
