"""New value columns; the key stays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from .. import graph as g
from ..columns import Batch, Column, Old
from ..columns.batch import ColumnId
from ..columns.evaluate import Evaluation, evaluations
from ..expr import Side, columns_used
from ..seams import StoreSpec
from ..vectors.expressions import Mask
from ..windows import store_window
from .operator import Bind, Errors, Operator, Task, Wiring, Work
from .rows import as_latest, keep_rows


class ProjectOperator(Operator[g.Project]):
    """A Project of a stream or a table."""

    node_class = g.Project
    is_stateless = True

    @cached_property
    def columns(self) -> tuple[tuple[str, Evaluation], ...]:
        return evaluations(self.node.columns, is_on_table=self.node.kind is g.EdgeKind.TABLE)

    def reads(self, source: g.Node, below: frozenset[ColumnId], wiring: Wiring) -> set[ColumnId]:
        found = {c for c in below if c[0] is not Side.VALUE}
        is_whole = (Side.VALUE, "*") in below
        return found.union(*(columns_used(x) for name, x in self.node.columns if is_whole or (Side.VALUE, name) in below))

    def keeps(self) -> set[ColumnId]:
        return set() if self.node.store is None else {(Side.VALUE, column.name) for column in self.node.schema.value}

    def stores(self) -> tuple[StoreSpec, ...]:
        schema = self.node.schema
        return (
            ()
            if self.node.store is None
            else (StoreSpec(self.node.store, schema.key, schema.value, store_window(schema.window)),)
        )

    def plan(self, wiring: Wiring) -> Bind:
        wanted = tuple((name, each) for name, each in self.columns if wiring.is_needed(self.node.name, name))
        passes_old = self.node.name in wiring.wants_old
        return lambda task: ProjectWork(self.node, wanted, task, passes_old=passes_old)


class ProjectWork(Work):
    """See `ProjectOperator`."""

    def __init__(self, node: g.Project, columns: Sequence[tuple[str, Evaluation]], task: Task, *, passes_old: bool) -> None:
        self._node, self._columns, self._task, self._passes_old = node, columns, task, passes_old
        self._store = None if node.store is None else task.store(node.store)

    def process(self, batch: Batch, source: str) -> None:
        errors = Errors(self._task, self._node, batch)
        columns, nulls = computed(errors, self._node, self._columns, batch)
        old = None
        if self._store is None and self._passes_old and batch.old is not None:
            before = batch.before()
            values, gone = computed(Errors(self._task, self._node, before, is_silent=True), self._node, self._columns, before)
            old = Old(values, batch.old.nulls if gone is None else gone)
        after = errors.left(batch.with_values(self._node.schema, columns, nulls=nulls, old=old))
        if self._store is not None:
            after = as_latest(after)
            after.old = keep_rows(self._task, self._store, after, wants_old=self._passes_old)
        if len(after):
            self._task.forward(self._node.name, after)


def computed(
    errors: Errors, node: g.Node, columns: Sequence[tuple[str, Evaluation]], batch: Batch
) -> tuple[dict[ColumnId, Column], Mask | None]:
    """Return new value columns, and where the value is null: a bare result decides by itself, else null stays null."""
    found: dict[ColumnId, Column] = {(Side.VALUE, name): each.column(batch, errors.of(each)) for name, each in columns}
    if not g.is_bare(node.schema):
        return found, batch.nulls
    nulls = found[Side.VALUE, node.schema.value[0].name].nulls()
    return found, nulls if nulls.any() else None
