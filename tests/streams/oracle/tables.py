"""Views of tables, and the way from a table to a grouped table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .base import Json, Node, Record, Row, Table, put

Change = Callable[[Any, Json], Json]


class View(Table):
    """Rows that are computed from the parent's: filtered or mapped; kept only in a store of their own."""

    def __init__(self, parent: Table, compute: Change, *, is_filter: bool, is_stored: bool) -> None:
        super().__init__()
        self.parent, self.compute_value = parent, compute
        self.is_filter, self.is_stored = is_filter, is_stored
        self.is_versioned = parent.is_versioned and not is_stored
        self.rows: dict[Any, Row] = {}
        self.sends_old = is_filter and parent.ask_old()

    def compute(self, key: Any, value: Json) -> Json:
        return None if value is None else self.compute_value(key, value)

    def receive(self, r: Record) -> None:
        value = self.compute(r.key, r.value)
        if self.is_stored:
            row = self.rows.get(r.key)
            old = row.value if row else None
        else:
            old = self.compute(r.key, r.old)
        hides = self.is_filter and self.sends_old and not self.parent.is_versioned
        if hides and old is None and value is None:
            return
        change = Record(r.key, value, r.ts, old if self.sends_old else None, self.is_stored or r.is_latest)
        if self.is_stored:
            put(self.rows, change)
        self.forward(change)

    def get(self, key: Any) -> Row | None:
        return self.rows.get(key) if self.is_stored else self._seen(key, self.parent.get(key))

    def get_as_of(self, key: Any, ts: int) -> Row | None:
        return self._seen(key, self.parent.get_as_of(key, ts))

    def _seen(self, key: Any, row: Row | None) -> Row | None:
        if row is None or (value := self.compute(key, row.value)) is None:
            return None
        return Row(value, row.ts)

    def demand_old(self) -> None:
        self.sends_old = True
        if not self.is_stored:
            self.parent.demand_old()

    def ask_old(self) -> bool:
        if self.is_stored or self.parent.ask_old():
            self.sends_old = True
        return self.sends_old

    def need_rows(self) -> None:
        if not self.is_stored:
            self.parent.need_rows()


class TableGroupBy(Node):
    """Sends what to subtract at the old group and what to add at the new one; in one message where it is the same."""

    def __init__(self, parent: Table, to_key: Change, to_value: Change) -> None:
        super().__init__()
        self.to_key, self.to_value = to_key, to_value
        parent.demand_old()

    def _pair(self, key: Any, value: Json) -> tuple[Any, Json] | None:
        if value is None:
            return None
        group, mapped = self.to_key(key, value), self.to_value(key, value)
        return None if group is None or mapped is None else (group, mapped)

    def receive(self, r: Record) -> None:
        if not r.is_latest:
            return
        old, new = self._pair(r.key, r.old), self._pair(r.key, r.value)
        if old and new and old[0] == new[0]:
            self.forward(Record(new[0], new[1], r.ts, old[1]))
            return
        if old:
            self.forward(Record(old[0], None, r.ts, old[1]))
        if new:
            self.forward(Record(new[0], new[1], r.ts))
