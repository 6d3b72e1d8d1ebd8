"""Joins of streams: with streams within a window, with tables, with global tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .base import NEVER, Json, Node, Record, Row, Rules, StoredTable, Table, key_bytes
from .queues import Task
from .table_joins import Join
from .windows import FOREVER

LEFT, RIGHT = 1, 0


@dataclass(frozen=True, slots=True)
class JoinWindow:
    before: int
    after: int
    grace: int


class StreamJoin(Node):
    """Pairs records of two streams whose times are within the window; outer sides wait for a partner until it has closed."""

    def __init__(self, task: Task, kind: str, window: JoinWindow, join: Join, interval_ms: int, rules: Rules) -> None:
        super().__init__()
        self.rules = rules
        self.task, self.kind, self.window, self.join, self.interval_ms = task, kind, window, join, interval_ms
        self.ahead = {LEFT: window.after, RIGHT: window.before}
        self.outer = {"inner": set(), "left": {LEFT}, "outer": {LEFT, RIGHT}}[kind]
        self.stored: dict[int, list[Record]] = {LEFT: [], RIGHT: []}
        self.store_time = {LEFT: NEVER, RIGHT: NEVER}
        self.waiting: dict[tuple[int, int, Any], list[Json]] = {}
        self.stream_time = NEVER
        self.min_time = FOREVER
        self.next_ms = 0

    def receive_left(self, r: Record) -> None:
        self._receive(r, LEFT)

    def receive_right(self, r: Record) -> None:
        self._receive(r, RIGHT)

    def _receive(self, r: Record, side: int) -> None:
        if r.key is not None and r.value is not None:
            self.stored[side].append(r)
            self.store_time[side] = max(self.store_time[side], r.ts)
        self.stream_time = max(self.stream_time, r.ts)
        if r.value is None or (r.key is None and side not in self.outer):
            return
        if r.key is None:
            self._send(r, side, None, r.ts)
            return
        if self.outer and r.ts == self.stream_time:
            self._flush(side)
        self._pair(r, side)

    def _pair(self, r: Record, side: int) -> None:
        found = self._partners(r, side)
        for row in found:
            self.waiting.pop((row.ts, 1 - side, r.key), None)
            self._send(r, side, row.value, max(r.ts, row.ts))
        if found or side not in self.outer:
            return
        if max(0, r.ts + self.ahead[side]) < self.stream_time:
            self._send(r, side, None, r.ts)
        else:
            self.min_time = min(self.min_time, r.ts)
            self.waiting.setdefault((r.ts, side, r.key), []).append(r.value)

    def _partners(self, r: Record, side: int) -> list[Record]:
        other, window = 1 - side, self.window
        low = max(0, r.ts - self.ahead[other], self.store_time[other] - (window.before + window.after + window.grace) + 1)
        high = max(0, r.ts + self.ahead[side])
        return sorted((x for x in self.stored[other] if x.key == r.key and low <= x.ts <= high), key=lambda x: x.ts)

    def _send(self, r: Record, side: int, other: Json, ts: int) -> None:
        left, right = (r.value, other) if side == LEFT else (other, r.value)
        self.forward(Record(r.key, self.join(r.key, left, right), ts))

    def _flush(self, taken: int) -> None:
        open_after = {side: self.stream_time - self.ahead[side] - self.window.grace for side in (LEFT, RIGHT)}
        if (
            not self.rules.holds_nothing_back
            and _wrapped(self.min_time + self.ahead[taken] + self.window.grace) >= self.stream_time
        ):
            return
        if self.task.wall_clock_ms < self.next_ms:
            return
        self.next_ms = self.task.wall_clock_ms + self.interval_ms
        self.min_time = FOREVER
        still_open: set[int] = set()
        for entry in sorted(self.waiting, key=lambda e: (e[0], e[1], key_bytes(e[2]))):
            ts, side, key = entry
            self.min_time = ts
            if len(still_open) == 2 and not self.rules.holds_nothing_back:
                break
            if ts >= open_after[side]:
                still_open.add(side)
                continue
            for value in self.waiting.pop(entry):
                self._send(Record(key, value, ts), side, None, ts)


def _wrapped(x: int) -> int:
    return (x + (1 << 63)) % (1 << 64) - (1 << 63)


class StreamTableJoin(Node):
    """Each record of the stream meets the table's row of its key: now, as of its time, or after a grace period."""

    def __init__(self, table: Table, kind: str, join: Join, grace: int | None) -> None:
        super().__init__()
        self.table, self.kind, self.join, self.grace = table, kind, join, grace
        self.stream_time = NEVER
        self.waiting: list[Record] = []
        table.need_rows()

    def receive(self, r: Record) -> None:
        if r.value is None or (r.key is None and self.kind == "inner"):
            return
        self.stream_time = max(self.stream_time, r.ts)
        if self.grace is None or r.ts < self.stream_time - self.grace:
            self._join(r)
            return
        self.waiting.append(r)
        due = [x for x in self.waiting if x.ts <= self.stream_time - self.grace]
        self.waiting = [x for x in self.waiting if x.ts > self.stream_time - self.grace]
        for x in sorted(due, key=lambda x: (x.ts, key_bytes(x.key))):
            self._join(x)

    def _join(self, r: Record) -> None:
        row = self._row(r) if r.key is not None else None
        if row is not None or self.kind == "left":
            self.forward(r.but(value=self.join(r.key, r.value, row.value if row else None)))

    def _row(self, r: Record) -> Row | None:
        return self.table.get_as_of(r.key, r.ts) if self.table.is_versioned else self.table.get(r.key)


class StreamGlobalJoin(Node):
    """Each record of the stream meets the row of a global table that it names."""

    def __init__(self, table: StoredTable, kind: str, to_key: Callable[[Any, Json], Any], join: Join) -> None:
        super().__init__()
        self.table, self.kind, self.to_key, self.join = table, kind, to_key, join

    def receive(self, r: Record) -> None:
        if r.value is None:
            return
        key = self.to_key(r.key, r.value)
        row = self.table.get(key) if key is not None else None
        if row is not None or self.kind == "left":
            self.forward(r.but(value=self.join(r.key, r.value, row.value if row else None)))
