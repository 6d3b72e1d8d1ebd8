"""Results of an aggregate's states, column by column."""

from __future__ import annotations

from typing import Any

import numpy as np

from logflume.log.schemas import Kind

from .. import graph as g
from ..columns import Column
from ..columns.batch import ColumnId
from ..expr import Side
from ..functions.aggregate import first
from ..vectors.expressions import Vector
from .entries import States
from .operator import Reporter

_EXACT = 2**53


def results_of_states(node: g.Aggregate | g.TableAggregate, states: States, report: Reporter) -> dict[ColumnId, Column]:
    """Return the results of states as value columns, null where there is no state."""
    found: dict[ColumnId, Column] = {}
    at = 0
    for aggregation in node.aggregations:
        stop = at + len(aggregation.aggregator.state_columns)
        found[Side.VALUE, aggregation.name] = _result(aggregation, states.columns[at:stop], states.gone, report)
        at = stop
    return found


def _result(aggregation: g.Aggregation, states: list[Column], gone: Any, report: Any) -> Column:
    aggregator = aggregation.aggregator
    if aggregator.result is first:
        return states[0]
    if aggregator.kernel == "mean" and gone is None and all(state.has_vector for state in states):
        found = _mean(aggregator, states)
        if found is not None:
            return found
    values: list[Any] = []
    is_gone = [False] * states[0].count if gone is None else gone.tolist()
    for row, (state, null) in enumerate(zip(zip(*[s.objects() for s in states], strict=True), is_gone, strict=True)):
        try:
            values.append(None if null else aggregator.result(state))
        except Exception as error:  # noqa: BLE001
            values.append(None)
            report(row, error)
    return Column.of_objects(values, aggregator.type.kind)


def _mean(aggregator: g.Aggregator, states: list[Column]) -> Column | None:
    """Return sum / count as typed columns; None where a sum is too large to be divided exactly."""
    sums, counts = states[0].vector(), states[1].vector()
    assert sums is not None
    assert counts is not None
    if sums.data.dtype == np.int64 and ((sums.data > _EXACT) | (sums.data < -_EXACT)).any():
        return None
    is_empty = counts.data == 0
    empty = aggregator.result(aggregator.initial)
    data = np.where(is_empty, empty or 0.0, sums.data / np.where(is_empty, 1, counts.data))
    nulls = is_empty if empty is None and is_empty.any() else None
    return Column.of_vector(Vector(data, None, nulls), states[0].count, Kind.DOUBLE)
