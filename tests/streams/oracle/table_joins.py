"""Joins of two tables by their key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .base import Json, Record, Row, Rules, Table, put

Join = Callable[[Any, Json, Json], Json]


class TableJoin(Table):
    """`kind`: inner, left or outer. Unstored results are computed from both sides when they are looked up."""

    def __init__(self, left: Table, right: Table, kind: str, join: Join, *, is_stored: bool, rules: Rules) -> None:
        super().__init__()
        self.left, self.right, self.kind, self.join, self.is_stored = left, right, kind, join, is_stored
        self.sends_old, self.rules = False, rules
        self.rows: dict[Any, Row] = {}
        for side in (left, right):
            side.need_rows()
        if kind != "inner":
            left.demand_old()
        if kind == "outer":
            right.demand_old()

    def receive_left(self, r: Record) -> None:
        if r.is_latest:
            other = self.right.get(r.key)
            self._change(r, other, lambda v: self._pair(r.key, v, other.value if other else None), is_left=True)

    def receive_right(self, r: Record) -> None:
        if r.is_latest:
            other = self.left.get(r.key)
            self._change(r, other, lambda v: self._pair(r.key, other.value if other else None, v), is_left=False)

    def _change(self, r: Record, other: Row | None, pair: Callable[[Json], Json], *, is_left: bool) -> None:
        needs_other = self.kind == "inner" or (self.kind == "left" and not is_left)
        if other is None and (needs_other or (r.value is None and r.old is None)):
            return
        ts = max(r.ts, other.ts) if other else r.ts
        change = Record(r.key, pair(r.value), ts, pair(r.old) if self.sends_old else None)
        if self.is_stored:
            if self.rules.joins_know_their_rows and self.sends_old:
                row = self.rows.get(r.key)
                change = change.but(old=row.value if row else None)
            put(self.rows, change)
        self.forward(change)

    def _pair(self, key: Any, left: Json, right: Json) -> Json:
        has_enough = {
            "inner": left is not None and right is not None,
            "left": left is not None,
            "outer": left is not None or right is not None,
        }
        return self.join(key, left, right) if has_enough[self.kind] else None

    def get(self, key: Any) -> Row | None:
        if self.is_stored:
            return self.rows.get(key)
        left, right = self.left.get(key), self.right.get(key)
        value = self._pair(key, left.value if left else None, right.value if right else None)
        return None if value is None else Row(value, max(row.ts for row in (left, right) if row))

    def demand_old(self) -> None:
        self.sends_old = True
        self.left.demand_old()
        self.right.demand_old()

    def ask_old(self) -> bool:
        self.demand_old()
        return True

    def need_rows(self) -> None:
        pass
