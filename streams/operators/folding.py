"""The content of an aggregate, state by state: what operators share that decide row by row which states a row meets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from logflume.log.schemas import Column as Field

from .. import graph as g
from ..columns import Batch
from ..columns.evaluate import Evaluation
from ..functions import results_of
from ..seams import State
from .operator import Errors, Reporter


class Folding:
    """Aggregations over state tuples. None is no state: for a bare result whose state is None, and where there is no entry."""

    def __init__(self, node: g.Aggregate | g.TableAggregate, aggregations: Sequence[g.Aggregation]) -> None:
        self._aggregations = tuple(aggregations)
        self._args = [tuple(Evaluation(x) for x in a.args) for a in aggregations]
        self._result = results_of(self._aggregations)
        self._is_bare = g.is_bare(node.schema)
        self.initial: State = tuple(value for a in aggregations for value in a.aggregator.initial)
        self._spans: list[tuple[int, int]] = []
        for a in aggregations:
            at = self._spans[-1][1] if self._spans else 0
            self._spans.append((at, at + len(a.aggregator.state_columns)))

    def arguments(self, batch: Batch, errors: Errors) -> list[tuple[tuple[Any, ...], ...]]:
        """Return the arguments of each row, aggregation by aggregation."""
        parts = []
        for args in self._args:
            lists = [each.column(batch, errors.of(each)).objects() for each in args]
            parts.append(list(zip(*lists, strict=True)) if lists else [()] * len(batch))
        return list(zip(*parts, strict=True))

    def add(self, state: State | None, arguments: Sequence[tuple[Any, ...]], row: int, report: Reporter) -> State | None:
        """Return the state with a row's arguments; what cannot be added is reported, and leaves it as it was."""
        return self._changed("add", state, arguments, row, report)

    def subtract(self, state: State | None, arguments: Sequence[tuple[Any, ...]], row: int, report: Reporter) -> State | None:
        """Return the state without a row's arguments."""
        return self._changed("undo", state, arguments, row, report)

    def _changed(
        self, what: str, state: State | None, arguments: Sequence[tuple[Any, ...]], row: int, report: Reporter
    ) -> State | None:
        old = self.initial if state is None else state
        made: list[Any] = []
        for aggregation, (start, stop), args in zip(self._aggregations, self._spans, arguments, strict=True):
            part = old[start:stop]
            if not (aggregation.aggregator.skips_null and None in args):
                try:
                    part = getattr(aggregation.aggregator, what)(part, *args)
                except Exception as error:  # noqa: BLE001
                    report(row, error)
            made += part
        return None if self._is_bare and made[0] is None else tuple(made)

    def merge(self, left: State | None, right: State | None, row: int, report: Reporter) -> State | None:
        """Return two states in one; None is that of nothing, from which merging begins."""
        if right is None:
            return left
        if left is None:
            left = self._start()
        made: list[Any] = []
        for aggregation, (start, stop) in zip(self._aggregations, self._spans, strict=True):
            part = left[start:stop]
            assert aggregation.aggregator.merge is not None
            try:
                part = aggregation.aggregator.merge(part, right[start:stop])
            except Exception as error:  # noqa: BLE001
                report(row, error)
            made += part
        return tuple(made)

    def _start(self) -> State:
        parts = (a.aggregator.initial if a.aggregator.start is None else a.aggregator.start() for a in self._aggregations)
        return tuple(value for part in parts for value in part)

    def result(self, state: State | None) -> State | None:
        """Return the result row of a state; None for none."""
        return None if state is None else self._result(state)

    def before_first(self) -> State | None:
        """Return the result of nothing, where it is not null."""
        return None if self._is_bare and self.initial[0] is None else self._result(self.initial)


def state_fields(node: g.Aggregate | g.TableAggregate) -> tuple[Field, ...]:
    """Return the columns of an aggregate's state in its store."""
    return tuple(
        Field(a.name if len(a.aggregator.state_columns) == 1 else f"{a.name}_{c.name}", c.type)
        for a in node.aggregations
        for c in a.aggregator.state_columns
    )
