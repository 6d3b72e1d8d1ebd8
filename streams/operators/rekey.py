"""New key columns; the encoded key is made where it is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import eq
from typing import Any

import numpy as np

from logflume.log.records import I64
from logflume.log.schemas import Column as Field

from .. import graph as g
from ..columns import Batch, Column
from ..columns.batch import ColumnId
from ..columns.column import emptied
from ..columns.evaluate import Evaluation, evaluations
from ..expr import Meta, Side, columns_used
from ..seams import State
from ..vectors.expressions import Mask
from .operator import Bind, Errors, Operator, RawKey, Task, Wiring, Work
from .rows import Rows


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


@dataclass(frozen=True, slots=True, eq=False)
class NewKeys:
    """The new keys of rows of a table: their columns, the keys themselves, and where there is a row with one."""

    parts: list[list[Any]]
    keys: list[State]
    there: Mask

    @classmethod
    def of(cls, columns: Sequence[tuple[str, Evaluation]], batch: Batch, errors: Errors) -> NewKeys:
        """Make them of the rows of a batch; a key of which one part is null is none."""
        parts = [each.column(batch, errors.of(each)).objects() for _, each in columns]
        there = Rows.of(batch).there(len(batch))
        for part in parts:
            if None in part:
                there &= np.fromiter([value is not None for value in part], np.bool_, len(batch))
        return cls(parts, list(zip(*parts, strict=True)), there)

    def stay(self, before: NewKeys) -> Mask:
        """Return which rows have, and had before, the same key."""
        return self.there & before.there & np.fromiter(map(eq, self.keys, before.keys), np.bool_, len(self.keys))

    def columns(self, before: NewKeys, fields: Sequence[Field], rows: I64, was: Mask) -> dict[ColumnId, Column]:
        """Return the keys of some rows, where `was` is set those from before, as key columns; null where there is none."""
        lost = ~np.where(was, before.there[rows], self.there[rows])
        places = np.where(was, rows + len(self.keys), rows)
        parts = zip(fields, self.parts, before.parts, strict=True)
        found = {(Side.KEY, f.name): Column.of_objects([*now, *then], f.type.kind).take(places) for f, now, then in parts}
        return {c: emptied(column, lost) for c, column in found.items()} if lost.any() else found


def in_turn(first: Mask, second: Mask) -> tuple[I64, Mask]:
    """Return the rows where either is set, those where both are twice, and of which it is the first that counts."""
    rows = np.concatenate([np.flatnonzero(first), np.flatnonzero(second)])
    order = np.argsort(rows, kind="stable")
    return rows[order], order < int(first.sum())
