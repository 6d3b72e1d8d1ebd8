"""Joins of two tables by key: a change of either side looks the other one up."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

from .. import graph as g
from ..columns import Batch
from ..columns.batch import ColumnId
from ..columns.evaluate import evaluations
from ..expr import Side
from ..seams import State, StoreSpec
from ..windows import store_window
from .emission import Emission, Emitted, Joiner, olds_of, rows_of
from .lookups import has_result, lookup_of, stores_behind
from .operator import Bind, Cut, Operator, RawKey, Task, Wiring, Work
from .rows import put_entry
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
        for side, name in enumerate(self._node.inputs):
            if name == source:
                self._process(without_earlier(keyed_rows(self._task, self._node.name, batch)), side)

    def _process(self, batch: Batch, side: int) -> None:
        assert batch.keys is not None
        keys = batch.keys.objects()
        columns = self._schemas[side].value
        news, olds = rows_of(batch, columns), olds_of(batch, columns)
        others, times = self._lookups[1 - side].find(self._task, keys, batch)
        kind, is_left = self._node.join, side == 0
        needs_other = kind is g.JoinKind.INNER or (kind is g.JoinKind.LEFT and not is_left)
        emitted = Emitted()
        pairs: list[tuple[State | None, State | None, State | None]] = []
        for row, (key, new, old, other, time, at) in enumerate(
            zip(keys, news, olds, others, times, batch.times.tolist(), strict=True)
        ):
            if other is None and (needs_other or (new is None and old is None)):
                continue
            emitted.add(row, key, at if other is None else max(at, time), None)
            pairs.append((new, old, other))
        if not pairs:
            return
        shell = self._emission.shell(emitted, batch)
        emitted.values = self._joined(shell, [(new, other) for new, _, other in pairs], is_left=is_left)
        failed = self._joiner.failed
        if self._store is not None:
            self._keep(emitted, failed)
        elif self._emission.wants_old:
            emitted.olds = self._joined(shell, [(old, other) for _, old, other in pairs], is_left=is_left)
        if self._emission.has_consumers:
            self._task.forward(self._node.name, self._emission.filled(shell, emitted, failed))

    def _joined(self, shell: Batch, pairs: Sequence[tuple[State | None, State | None]], *, is_left: bool) -> list[State | None]:
        lefts = [mine if is_left else other for mine, other in pairs]
        rights = [other if is_left else mine for mine, other in pairs]
        needed = [has_result(self._node.join, left, right) for left, right in zip(lefts, rights, strict=True)]
        return self._joiner.values(self._task, shell, lefts, rights, is_needed=needed)

    def _keep(self, emitted: Emitted, failed: Set[int]) -> None:
        store = self._store
        assert store is not None
        keys: list[Any] = emitted.keys
        store.load(keys)
        emitted.olds = []
        for place, (key, value, time) in enumerate(zip(keys, emitted.values, emitted.times, strict=True)):
            entry = store.resident.get(key)
            emitted.olds.append(None if entry is None else entry.state)
            if place not in failed:
                put_entry(store, key, value, time)
