"""A table by another key: what each change takes out of the old row's group and adds to the new one's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .. import graph as g
from ..columns import Batch
from ..columns.batch import ColumnId
from ..columns.evaluate import Evaluation, evaluations
from ..expr import Side, columns_used
from ..seams import State
from .emission import places_of
from .operator import Bind, Errors, Operator, RawKey, Task, Wiring, Work
from .rows import state_columns
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
        pairs = zip(self._rows(batch.before(), is_silent=True), self._rows(batch, is_silent=False), strict=True)
        rows: list[int] = []
        keys: list[State] = []
        states: list[State] = []
        nothing = (None,) * len(self._columns)
        for row, (old, new) in enumerate(pairs):
            if old is not None and new is not None and old[0] == new[0]:
                found: list[Any] = [(new[0], TAKEN_OUT | ADDED, old[1], new[1])]
            else:
                found = [(old[0], TAKEN_OUT, old[1], nothing)] if old is not None else []
                found += [(new[0], ADDED, nothing, new[1])] if new is not None else []
            for key, what, before, after in found:
                rows.append(row)
                keys.append(key)
                states.append((what, *before, *after))
        if rows:
            self._forward(batch, np.array(rows, np.int64), keys, states)

    def _rows(self, batch: Batch, *, is_silent: bool) -> list[tuple[State, State] | None]:
        """Return new key and value of each row, None where either is null."""
        errors = Errors(self._task, self._node, batch, is_silent=is_silent)
        keys, values = (_tuples(columns, batch, errors) for columns in (self._key, self._columns))
        gone = [False] * len(batch) if batch.nulls is None else batch.nulls.tolist()
        is_bare = len(self._node.columns) == 1 and self._node.columns[0][0] == g.BARE_COLUMN
        return [
            None if null or None in key or (is_bare and value[0] is None) else (key, value)
            for key, value, null in zip(keys, values, gone, strict=True)
        ]

    def _forward(self, batch: Batch, rows: Any, keys: list[State], states: list[State]) -> None:
        schema = self._node.schema
        after = batch.expand(rows, places_of(rows))
        columns = {c: x for c, x in after.columns.items() if c[0] is Side.META and c[1] not in ("WINDOWSTART", "WINDOWEND")}
        key_columns = state_columns(list(keys), [(c.name, c.type.kind) for c in schema.key])
        columns |= {(Side.KEY, name): column for (_, name), column in key_columns.items()}
        columns |= state_columns(list(states), [(c.name, c.type.kind) for c in schema.value])
        self._task.forward(self._node.name, replace(after, schema=schema, keys=None, columns=columns, nulls=None, old=None))


def _tuples(columns: Sequence[tuple[str, Evaluation]], batch: Batch, errors: Errors) -> list[State]:
    return list(zip(*(each.column(batch, errors.of(each)).objects() for _, each in columns), strict=True))
