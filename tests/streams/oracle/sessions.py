"""Aggregates per session: records of a key that follow each other within a gap."""

from __future__ import annotations

from typing import Any

from .aggregates import AggregatedTable, Fold
from .base import NEVER, Json, Record, Row, Rules, WindowedKey
from .queues import Task
from .windows import Throttle


class SessionTable(AggregatedTable):
    """Aggregates by session; those too old for the store's own time (the largest end) are not seen any more."""

    def __init__(self, task: Task, keep_ms: int, *, is_on_close: bool, rules: Rules) -> None:
        super().__init__(task, rules=rules)
        self.keep_ms = keep_ms
        self.is_on_close = is_on_close

    def is_visible(self, end: int) -> bool:
        return self._is_kept(end, self.store_time)

    def _is_kept(self, end: int, time: int) -> bool:
        waits_for_close = self.rules.loses_no_windows and self.is_on_close
        return end >= time - self.keep_ms + (not waits_for_close)

    def is_in_segment(self, end: int) -> bool:
        if self.rules.loses_no_windows:
            return True
        segment = max(self.keep_ms // 2, 60_000)
        return end >= (self.store_time - self.keep_ms) // segment * segment

    def get(self, key: WindowedKey) -> Row | None:
        return self.rows.get(key) if self._is_kept(key.window_end, self.expiry_time) else None

    def keep(self, key: WindowedKey, value: Json) -> None:
        self.store_time = max(self.store_time, key.window_end)
        if value is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = Row(value, key.window_end)

    def send(self, key: WindowedKey, value: Json, old: Json) -> None:
        if not self.is_on_close:
            self.forward(Record(key, value, key.window_end, old if self.sends_old else None))

    def emit(self, low: int, high: int) -> None:
        closing = [k for k in self.rows if low <= k.window_end <= high and self.is_in_segment(k.window_end)]
        ordered = sorted(closing, key=lambda k: (k.window_end, k.window_start, k.key.encode()))
        self.leave([Record(key, self.rows[key].value, key.window_end) for key in ordered])


class Sessions:
    """One input of an aggregate per session; those of a cogroup share the table."""

    def __init__(self, fold: Fold, table: SessionTable, gap: int, grace: int, throttle: Throttle) -> None:
        self.fold, self.table, self.gap, self.grace, self.throttle = fold, table, gap, grace, throttle
        self.stream_time = NEVER

    def receive(self, r: Record) -> None:
        if r.key is None:
            return
        self.stream_time = max(self.stream_time, r.ts)
        close = self.stream_time - self.grace - self.gap
        self._add(r, close)
        if self.table.is_on_close and self.throttle.may(close):
            self._close(close)

    def _add(self, r: Record, close: int) -> None:
        table = self.table
        met = self._met(r.key, r.ts)
        start = min([r.ts, *(k.window_start for k in met)])
        end = max([r.ts, *(k.window_end for k in met)])
        if end < close:
            return
        assert self.fold.merge is not None
        before = table.rows[met[0]].value if met else None
        value = self.fold.initial
        for key in met:
            value = self.fold.merge(value, table.rows[key].value)
        merged = WindowedKey(r.key, start, end, True)
        if (start, end) != (r.ts, r.ts):
            for key in met:
                old = table.rows[key].value
                table.keep(key, None)
                table.send(key, None, old)
        value = self.fold.add(value, r.value, r.key)
        table.keep(merged, value)
        is_same = self.table.rules.sessions_take_back and bool(met) and (start, end) == (r.ts, r.ts)
        table.send(merged, value, before if is_same else None)

    def _met(self, key: Any, ts: int) -> list[WindowedKey]:
        found = [
            k
            for k in self.table.rows
            if k.key == key and k.window_end >= ts - self.gap and k.window_start <= ts + self.gap
            and k.window_end > self.table.store_time - self.table.keep_ms
        ]  # fmt: skip
        return sorted(found, key=lambda k: (k.window_end, k.window_start))

    def _close(self, close: int) -> None:
        low = max(0, self.throttle.last or 0)
        if close - 1 >= low:
            self.table.emit(low, close - 1)
            self.throttle.last = close
