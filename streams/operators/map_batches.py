"""A user's function over the value columns of many rows at once: Arrow, polars, pandas or numpy; a model, for example.

The function is called with what a batch holds. If it raises, the rows are tried again in halves, down to single ones, so that
only those which fail by themselves are left out; so it may be asked about a row several times.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from logflume.log import InvalidInput, LogflumeError
from logflume.log.records import I64
from logflume.log.schemas import Column as Field

from .. import graph as g
from ..columns import Batch, Column
from ..columns.batch import ColumnId
from ..expr import Side
from .operator import Bind, Errors, Operator, Task, Wiring, Work


class WrongBatch(LogflumeError):
    """A function over batches gave something else than one row for each row."""

    code = "BROKEN_CONTRACT"


class MapBatchesOperator(Operator[g.MapBatches]):
    """A MapBatches."""

    node_class = g.MapBatches
    is_stateless = True

    def reads(self, source: g.Node, below: frozenset[ColumnId], wiring: Wiring) -> set[ColumnId]:
        return {c for c in below if c[0] is not Side.VALUE} | {(Side.VALUE, c.name) for c in source.schema.value}

    def plan(self, wiring: Wiring) -> Bind:
        taken = wiring.schema(self.node.inputs[0]).value
        return lambda task: MapBatchesWork(self.node, taken, task)


class MapBatchesWork(Work):
    """See `MapBatchesOperator`."""

    def __init__(self, node: g.MapBatches, taken: tuple[Field, ...], task: Task) -> None:
        self._node, self._taken, self._task = node, taken, task

    def process(self, batch: Batch, source: str) -> None:
        errors = Errors(self._task, self._node, batch)
        fields = self._node.schema.value
        results: list[list[Any]] = [[None] * len(batch) for _ in fields]
        lists = [batch.column(Side.VALUE, field.name).objects() for field in self._taken]
        rows = np.arange(len(batch)) if batch.nulls is None else np.flatnonzero(~batch.nulls)
        for at in range(0, len(rows), self._node.rows_max):
            self._run(lists, rows[at : at + self._node.rows_max], results, errors)
        columns: dict[ColumnId, Column] = {
            (Side.VALUE, field.name): Column.of_objects(values, field.type.kind)
            for field, values in zip(fields, results, strict=True)
        }
        left = errors.left(batch.with_values(self._node.schema, columns, nulls=batch.nulls, old=None))
        if len(left):
            self._task.forward(self._node.name, left)

    def _run(self, lists: list[list[Any]], rows: I64, results: list[list[Any]], errors: Errors) -> None:
        """Call the function about some rows; what it cannot do at once it is asked in halves."""
        places = rows.tolist()
        try:
            found = self._called(lists, places)
        except WrongBatch as error:
            for row in places:
                errors.callable(row, error)
            return
        except Exception as error:  # noqa: BLE001
            if len(places) == 1:
                errors.callable(places[0], error)
                return
            half = len(places) // 2
            self._run(lists, rows[:half], results, errors)
            self._run(lists, rows[half:], results, errors)
            return
        for target, values in zip(results, found, strict=True):
            for row, value in zip(places, values, strict=True):
                target[row] = value

    def _called(self, lists: list[list[Any]], rows: list[int]) -> list[list[Any]]:
        import pyarrow as pa

        from logflume.log.arrow_values import arrow_type, to_arrow_values

        types = [arrow_type(field.type) for field in self._taken]
        arrays = [
            pa.array(to_arrow_values([values[row] for row in rows], type), type)
            for values, type in zip(lists, types, strict=True)
        ]
        given = pa.table(arrays, names=[field.name for field in self._taken])
        made = to_table(self._node.function(from_table(given, self._node.form)))
        return rows_of_table(made, self._node.schema.value, len(rows))


def from_table(table: Any, form: g.BatchForm) -> Any:
    """Return an Arrow table in the form that a function takes; numpy: arrays by name, nulls as NaN or None."""
    match form:
        case g.BatchForm.ARROW:
            return table
        case g.BatchForm.PANDAS:
            return table.to_pandas()
        case g.BatchForm.POLARS:
            import polars

            return polars.from_arrow(table)
    return {name: column.to_numpy() for name, column in zip(table.column_names, table.columns, strict=True)}


def to_table(made: Any) -> Any:
    """Return what a function gave as an Arrow table. Raises WrongBatch."""
    import pyarrow as pa

    arrays = (pa.Array, pa.ChunkedArray)
    if isinstance(made, pa.Table):
        return made
    if isinstance(made, pa.RecordBatch):
        return pa.table(made)
    if hasattr(made, "to_arrow"):
        return made.to_arrow()
    if type(made).__module__.startswith("pandas."):
        return pa.Table.from_pandas(made, preserve_index=False)
    if isinstance(made, Mapping):
        return pa.table({name: value if isinstance(value, arrays) else pa.array(value) for name, value in made.items()})
    raise WrongBatch(f"the function must return a table, a data frame or arrays by name, found {type(made).__name__}")


def rows_of_table(table: Any, fields: tuple[Field, ...], count: int) -> list[list[Any]]:
    """Return the values of an Arrow table, one list per field. Raises WrongBatch."""
    import pyarrow as pa

    from logflume.log.arrow_values import row_values

    missing = [field.name for field in fields if field.name not in table.column_names]
    if missing:
        raise WrongBatch(f"the function must return the columns {[f.name for f in fields]}, found {table.column_names}")
    if table.num_rows != count:
        raise WrongBatch(f"the function must return one row for each of {count}, found {table.num_rows}")
    found = []
    for field in fields:
        try:
            found.append(row_values(table.column(field.name).combine_chunks(), field.type))
        except (pa.ArrowException, InvalidInput) as error:
            raise WrongBatch(f"column {field.name!r} must be {field.type}: {error}") from error
    return found
