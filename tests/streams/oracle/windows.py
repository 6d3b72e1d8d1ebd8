"""Aggregates per tumbling, hopping and unlimited window, as updates or when the windows close."""

from __future__ import annotations

from dataclasses import dataclass

from .aggregates import AggregatedTable, Fold
from .base import NEVER, Json, Record, Row, Rules, WindowedKey
from .queues import Task

FOREVER = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Span:
    """Windows [start, start + size) that start every `advance` ms, from `first` on; rows are visible for `keep_ms`."""

    size: int
    advance: int
    grace: int
    keep_ms: int
    first: int = 0

    def starts(self, ts: int) -> range:
        if self.size == FOREVER:
            return range(self.first, self.first + (ts >= self.first))
        first = max(0, ts - self.size + self.advance) // self.advance * self.advance
        return range(first, ts + 1, self.advance)

    def end(self, start: int) -> int:
        return FOREVER if self.size == FOREVER else start + self.size


class WindowTable(AggregatedTable):
    """Rows by windowed key; those too old for the store's own time are not seen any more."""

    def __init__(self, task: Task, keep_ms: int, *, is_on_close: bool, rules: Rules) -> None:
        super().__init__(task, rules=rules)
        self.keep_ms = keep_ms
        self.is_on_close = is_on_close

    def is_visible(self, start: int) -> bool:
        return self._is_kept(start, self.store_time)

    def _is_kept(self, start: int, time: int) -> bool:
        first_seen = time - self.keep_ms + (self.rules.loses_no_windows or not self.is_on_close)
        return self.keep_ms == FOREVER or start >= first_seen

    def get(self, key: WindowedKey) -> Row | None:
        return self.rows.get(key) if self._is_kept(key.window_start, self.expiry_time) else None

    def own(self, key: WindowedKey) -> Row | None:
        """Return the row that a change of it begins with."""
        return self.rows.get(key) if self.is_visible(key.window_start) else None

    def keep(self, key: WindowedKey, row: Row) -> None:
        self.store_time = max(self.store_time, key.window_start)
        if row.value is None or not self._may_close(key):
            self.rows.pop(key, None)
        else:
            self.rows[key] = row

    def update(self, key: WindowedKey, value: Json, old: Json, ts: int) -> None:
        """Keep a result, and send it unless results leave at the close."""
        self.keep(key, Row(value, ts))
        if not self.is_on_close:
            self.forward(Record(key, value, ts, old))

    def _may_close(self, key: WindowedKey) -> bool:
        return self.rules.loses_no_windows or self.is_visible(key.window_start)

    def emit(self, low: int, high: int) -> None:
        closing = [key for key in self.rows if low <= key.window_start <= high and self._may_close(key)]
        self.leave([Record(k, self.rows[k].value, self.rows[k].ts) for k in sorted(closing, key=_in_order)])


def _in_order(key: WindowedKey) -> tuple[int, bytes]:
    return key.window_start, key.key.encode()


class Throttle:
    """When an emission may be tried, by the wall clock, and how far the last one got."""

    def __init__(self, task: Task, interval_ms: int) -> None:
        self.task, self.interval_ms = task, interval_ms
        self.next_ms = 0
        self.last: int | None = None

    def may(self, close: int) -> bool:
        if self.interval_ms:
            if self.task.wall_clock_ms < self.next_ms:
                return False
            self.next_ms = self.task.wall_clock_ms + self.interval_ms
        return self.last is None or close > self.last


class TimeWindows:
    """One input of an aggregate per time window; those of a cogroup share the table."""

    def __init__(self, fold: Fold, table: WindowTable, span: Span, throttle: Throttle) -> None:
        self.fold, self.table, self.span, self.throttle = fold, table, span, throttle
        self.stream_time = NEVER

    def receive(self, r: Record) -> None:
        if r.key is None:
            return
        span = self.span
        self.stream_time = max(self.stream_time, r.ts)
        close = self.stream_time - span.grace
        for start in span.starts(r.ts):
            if span.end(start) <= close:
                continue
            key = WindowedKey(r.key, start, span.end(start))
            row = self.table.own(key)
            before = row.value if row else self.fold.initial
            ts = max(r.ts, row.ts) if row else r.ts
            self.table.update(key, self.fold.add(before, r.value, r.key), self.table.old(row, before), ts)
        if self.table.is_on_close and self.throttle.may(close):
            self._close(close)

    def _close(self, close: int) -> None:
        span, last = self.span, self.throttle.last
        high = close - span.size
        low = 0 if last is None else max(0, last - span.size) + 1
        if high < 0 or (last is not None and span.starts(high) == span.starts(low - 1)):
            return
        self.table.emit(low, high)
        self.throttle.last = close
