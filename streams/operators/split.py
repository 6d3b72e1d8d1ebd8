"""Splits a stream: which branch takes a row is decided once, and each branch takes the rows of its number."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from logflume.log.records import I64
from logflume.log.schemas import Kind

from .. import graph as g
from ..columns import Batch, Column
from ..columns.batch import ColumnId
from ..columns.evaluate import Evaluation
from ..expr import Side, columns_used
from ..vectors.expressions import Mask, Vector
from .operator import Bind, Errors, Operator, Reporter, Task, Wiring, Work

BRANCH_COLUMN: ColumnId = (Side.META, "branch")
"""The number of the branch that takes each row of a split's batch."""


class SplitOperator(Operator[g.Split]):
    """A Split."""

    node_class = g.Split
    is_stateless = True

    def reads(self, source: g.Node, below: frozenset[ColumnId], wiring: Wiring) -> set[ColumnId]:
        return set(below).union(*(columns_used(predicate) for predicate in self.node.predicates))

    def plan(self, wiring: Wiring) -> Bind:
        conditions = tuple(Evaluation(predicate, is_truth=True) for predicate in self.node.predicates)
        return lambda task: SplitWork(self.node, conditions, task)


class SplitWork(Work):
    """See `SplitOperator`. No row that a condition took, or failed for, is asked about again."""

    def __init__(self, node: g.Split, conditions: tuple[Evaluation, ...], task: Task) -> None:
        self._node, self._conditions, self._task = node, conditions, task

    def process(self, batch: Batch, source: str) -> None:
        branches = np.full(len(batch), g.REST)
        is_left = np.ones(len(batch), np.bool_)
        failed: list[int] = []
        for number, condition in enumerate(self._conditions):
            if not is_left.any():
                break
            report = Errors(self._task, self._node, batch).of(condition)
            if condition.is_callable:
                taken = self._called(batch, condition, np.flatnonzero(is_left), report, failed)
            else:
                taken = self._computed(batch, condition, is_left, report, failed)
            np.putmask(branches, taken, number)
            is_left &= ~taken
            is_left[failed] = False
        numbers = Column.of_vector(Vector(branches), len(batch), Kind.INTEGER)
        numbered = replace(batch, schema=self._node.schema, columns={**batch.columns, BRANCH_COLUMN: numbers})
        if failed:
            numbered = numbered.take(np.delete(np.arange(len(batch)), failed))
        if len(numbered):
            self._task.forward(self._node.name, numbered)

    def _called(self, batch: Batch, condition: Evaluation, rows: I64, report: Reporter, failed: list[int]) -> Mask:
        """Return which of some rows a condition takes that calls what a user wrote."""

        def tell(row: int, error: Exception) -> None:
            failed.append(int(rows[row]))
            report(failed[-1], error)

        for column in condition.used:
            batch.column(*column)  # made once, of all rows, for all that ask
        taken = np.zeros(len(batch), np.bool_)
        taken[rows] = condition.truth(batch.take(rows), tell)
        return taken

    def _computed(self, batch: Batch, condition: Evaluation, wanted: Mask, report: Reporter, failed: list[int]) -> Mask:
        """Return which of the wanted rows an expression takes: over columns it costs less for all than choosing some."""

        def tell(row: int, error: Exception) -> None:
            if wanted[row]:
                failed.append(row)
                report(row, error)

        return condition.truth(batch, tell) & wanted


class BranchOperator(Operator[g.Branch]):
    """A Branch."""

    node_class = g.Branch
    is_stateless = True

    def plan(self, wiring: Wiring) -> Bind:
        return lambda task: BranchWork(self.node, task)


class BranchWork(Work):
    """See `BranchOperator`."""

    def __init__(self, node: g.Branch, task: Task) -> None:
        self._node, self._task = node, task

    def process(self, batch: Batch, source: str) -> None:
        numbers = batch.columns[BRANCH_COLUMN].vector()
        assert numbers is not None
        columns = {column: values for column, values in batch.columns.items() if column != BRANCH_COLUMN}
        own = replace(batch, columns=columns).where(numbers.data == self._node.number)
        if len(own):
            self._task.forward(self._node.name, own)
