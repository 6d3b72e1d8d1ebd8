"""Aggregates of streams: the functions, without windows, over grouped tables; what all aggregated tables share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .base import NEVER, Json, Record, Row, Rules, Table, put
from .queues import Task

Add = Callable[[Json, Json, Any], Json]


@dataclass(frozen=True, slots=True)
class Fold:
    """How values become an aggregate: `initial` where there is none, `add(aggregate, value, key)`, undoing and merging."""

    initial: Json
    add: Add
    subtract: Add | None = None
    merge: Callable[[Json, Json], Json] | None = None


def count() -> Fold:
    return Fold(0, lambda a, v, key: a + 1, lambda a, v, key: a - 1, lambda a, b: a + b)


def reduce(function: Callable[[Json, Json], Json], subtract: Callable[[Json, Json], Json] | None = None) -> Fold:
    return Fold(
        None,
        lambda a, v, key: v if a is None else function(a, v),
        None if subtract is None else lambda a, v, key: subtract(a, v),
        lambda a, b: b if a is None else function(a, b),
    )


class AggregatedTable(Table):
    """An aggregate's results by key. `store_time`: the largest time of its windows."""

    def __init__(self, task: Task, *, rules: Rules) -> None:
        super().__init__()
        self.task, self.rules = task, rules
        self.store_time = self._committed_time = NEVER
        task.at_end.append(self._commit)
        self.sends_old = False
        self.rows: dict[Any, Row] = {}

    def old(self, row: Row | None, before: Json) -> Json:
        """Return the row before a change: what there was, or what it was computed from."""
        if not self.sends_old or (row is None and self.rules.has_no_first_row):
            return None
        return before

    def _commit(self) -> None:
        self._committed_time = self.store_time

    @property
    def expiry_time(self) -> int:
        """The time by which rows that are looked up expire: as results leave at a close, that of the record before."""
        return self._committed_time if self.task.is_leaving and self.rules.loses_no_windows else self.store_time

    def leave(self, results: list[Record]) -> None:
        """Forward what closes."""
        outer, self.task.is_leaving = self.task.is_leaving, True
        for result in results:
            self.forward(result)
        self.task.is_leaving = outer

    def get(self, key: Any) -> Row | None:
        return self.rows.get(key)

    def demand_old(self) -> None:
        self.sends_old = True

    def ask_old(self) -> bool:
        self.sends_old = True
        return True

    def need_rows(self) -> None:
        pass


class Aggregate:
    """One input of an aggregate without windows; those of a cogroup share the table."""

    def __init__(self, fold: Fold, table: AggregatedTable) -> None:
        self.fold, self.table = fold, table

    def receive(self, r: Record) -> None:
        if r.key is None or r.value is None:
            return
        row = self.table.rows.get(r.key)
        before = row.value if row else self.fold.initial
        change = r.but(
            value=self.fold.add(before, r.value, r.key),
            old=self.table.old(row, before),
            ts=max(r.ts, row.ts) if row else r.ts,
        )
        put(self.table.rows, change)
        self.table.forward(change)


class TableAggregate:
    """An aggregate of a grouped table: messages have what to add as value, what to subtract as old value."""

    def __init__(self, fold: Fold, table: AggregatedTable) -> None:
        self.fold, self.table = fold, table

    def receive(self, r: Record) -> None:
        fold, row = self.fold, self.table.rows.get(r.key)
        now = row.value if row else None
        if r.old is not None and row is not None:
            assert fold.subtract is not None
            now = fold.subtract(now, r.old, r.key)
        if r.value is not None:
            now = fold.add(fold.initial if now is None else now, r.value, r.key)
        old = row.value if row and self.table.sends_old else None
        change = Record(r.key, now, max(r.ts, row.ts) if row else r.ts, old)
        put(self.table.rows, change)
        self.table.forward(change)
