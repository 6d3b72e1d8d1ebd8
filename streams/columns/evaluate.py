"""Expressions over batches: by columns where there is such a form and it pays, else, and where that is not certain, by rows.

Both forms are in the same expression: rows of which the column form is not certain are computed again by the exact one and put
back into the same column, so nothing leaves the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from logflume.log.records import I64
from logflume.log.schemas import Kind

from .. import expr as e
from ..exact.rows import Exact, exact
from ..kernels import loaded_kernels
from ..vectors.expressions import KINDS, Mask, Unsupported, Vector, VectorOf, compile_vector, full
from ..vectors.expressions import Rows as VectorRows
from ..vectors.function_calls import Formed, compile_form
from .batch import Batch, ColumnId
from .column import Column, patched, spread

FEW_ROWS = 48
"""Below, a loop over rows is cheaper than the operations over columns."""

Report = Callable[[int, Exception], None]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """One expression. `is_truth`: a condition, whose null counts as False; `is_on_table`: over rows of a table."""

    expr: e.Expr
    is_truth: bool = False
    is_on_table: bool = False

    @cached_property
    def _exact(self) -> Exact:
        return exact(self.expr, is_truth=self.is_truth)

    @cached_property
    def used(self) -> tuple[ColumnId, ...]:
        return tuple(sorted(e.columns_used(self.expr)))

    @cached_property
    def sees_null(self) -> bool:
        """Whether it is computed for a null value too: a plain callable takes the whole of a stream's value.

        On a table a null value is a deleted row, which no callable is asked about.
        """
        nodes = e.walk(self.expr)
        return not self.is_on_table and any(
            isinstance(n, e.PyCall) and (e.Side.VALUE, e.WHOLE) in e.columns_used(n) for n in nodes
        )

    @cached_property
    def is_callable(self) -> bool:
        """Whether it holds a plain callable: what that raises ends the row's way."""
        return any(isinstance(node, e.PyCall) for node in e.walk(self.expr))

    @cached_property
    def _kinds(self) -> dict[ColumnId, Kind]:
        refs = [x for x in e.walk(self.expr) if isinstance(x, e.ColumnRef)]
        return {(ref.side, ref.name): ref.type.kind for ref in refs if ref.type.kind in KINDS}

    @cached_property
    def _form(self) -> Formed | None:
        """The form over columns of a function that gives texts: it says itself which are not plain."""
        if not isinstance(self.expr, e.Call) or self.kind is not Kind.STRING or self.expr.function.kernel:
            return None
        try:
            return compile_form(self.expr, self._kinds)
        except Unsupported:
            return None

    @cached_property
    def _vector(self) -> VectorOf | None:
        try:
            kind, found = compile_vector(self.expr, self._kinds)
        except Unsupported:
            return None
        return found if kind is self.kind else None

    @property
    def kind(self) -> Kind:
        return Kind.BOOLEAN if self.is_truth else self.expr.type.kind

    # -- values ----------------------------------------------------------------------------------------------------------

    def column(self, batch: Batch, report: Report) -> Column:
        """Return the value for each row, null where the row's value is null or the expression raised (which is reported)."""
        if isinstance(self.expr, e.ColumnRef):
            return batch.column(self.expr.side, self.expr.name)
        nulls = batch.nulls
        if nulls is None or self.sees_null or not self._reads_value:
            return self._evaluate(batch, report)
        rows = np.flatnonzero(~nulls)
        places = rows.tolist()
        part = self._evaluate(batch.take(rows), lambda row, error: report(places[row], error))
        return spread(part, rows, len(batch))

    def truth(self, batch: Batch, report: Report) -> Mask:
        """Return where a condition is True; a null value meets none, but one that sees nulls."""
        found = self._evaluate(batch, report) if batch.nulls is None or self.sees_null else self.column(batch, report)
        if found.has_vector:
            vector = found.vector()
            assert vector is not None
            data: Mask = vector.data if vector.nulls is None else vector.data & ~vector.nulls
            return data
        return np.fromiter([value is True for value in found.objects()], np.bool_, len(batch))

    @cached_property
    def _reads_value(self) -> bool:
        return self.is_truth or any(side is e.Side.VALUE for side, _ in self.used)

    def _evaluate(self, batch: Batch, report: Report) -> Column:
        found = self._by_columns(batch, report)
        if found is not None:
            return found
        lists = [batch.column(*column).objects() for column in self._exact.columns]
        return Column.of_objects(self._exact.run(lists, len(batch), report), self.kind)

    def _by_columns(self, batch: Batch, report: Report) -> Column | None:
        """Return the values by the column form; None where there is none, or it would not pay."""
        loaded = loaded_kernels()
        if loaded is None or len(batch) < FEW_ROWS or self._vector is None:
            return None
        columns = [batch.column(*column) for column in self.used]
        if not all(column.has_vector for column in columns):
            return None
        rows = VectorRows(len(batch), {}, loaded.texts, batch.memory)
        for name, column in zip(self.used, columns, strict=True):
            vector = column.vector()
            assert vector is not None
            rows.columns[name] = vector
            if column.memory is not None and column.memory is not batch.memory:
                batch.memory.append(column.memory)
        special: Mask | None = None
        with np.errstate(all="ignore"):
            if self._form is not None:
                found, special = self._form(rows)
            else:
                assert self._vector is not None
                found = self._vector(rows)
        if self.is_truth and found.nulls is not None:
            found = Vector(found.data & ~found.nulls, unsure=found.unsure)
        unsure, found = found.unsure, found._replace(unsure=special)
        if unsure is None or not np.any(unsure):
            return Column.of_vector(found, len(batch), self.kind, batch.memory)
        return self._again(batch, found, np.flatnonzero(full(unsure, len(batch), np.bool_)), report)

    def _again(self, batch: Batch, found: Vector, rows: I64, report: Report) -> Column:
        """Compute uncertain rows by the exact form, and put them back."""
        places = rows.tolist()
        part = batch.take(rows)
        lists = [part.column(*column).objects() for column in self._exact.columns]
        values = self._exact.run(lists, len(rows), lambda row, error: report(places[row], error))
        return patched(found, len(batch), self.kind, rows, values, batch.memory)


def evaluations(columns: Sequence[tuple[str, e.Expr]], *, is_on_table: bool) -> tuple[tuple[str, Evaluation], ...]:
    """Return the evaluations of named expressions."""
    return tuple((name, Evaluation(expr, is_on_table=is_on_table)) for name, expr in columns)
