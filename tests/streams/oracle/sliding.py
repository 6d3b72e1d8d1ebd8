"""Aggregates per sliding window: [t - diff, t], both ends inclusive, that end at a record or start right after one."""

from __future__ import annotations

from .aggregates import Fold
from .base import NEVER, Json, Record, Row, WindowedKey
from .windows import Throttle, WindowTable


class SlidingWindows:
    """One input of an aggregate per sliding window; those of a cogroup share the table."""

    def __init__(self, fold: Fold, table: WindowTable, diff: int, grace: int, throttle: Throttle) -> None:
        self.fold, self.table, self.diff, self.grace, self.throttle = fold, table, diff, grace, throttle
        self.stream_time = NEVER

    def receive(self, r: Record) -> None:
        if r.key is None or r.value is None:
            return
        self.stream_time = max(self.stream_time, r.ts)
        close = self.stream_time - self.grace
        if r.ts + self.diff < close:
            return
        rows = self._rows(r.key, max(0, r.ts - 2 * self.diff), r.ts + 1)
        if r.ts < self.diff:
            self._early(r, rows, close)
            return
        self._usual(r, rows, close)
        if self.table.is_on_close and self.throttle.may(close):
            self._close(close)

    def _rows(self, key: str, low: int, high: int) -> dict[int, Row]:
        found = {k.window_start: row for k, row in self.table.rows.items() if k.key == key and low <= k.window_start <= high}
        return {start: found[start] for start in sorted(found) if self.table.is_visible(start)}

    def _update(self, r: Record, start: int, row: Row, close: int) -> None:
        if start + self.diff >= close:
            value = self.fold.add(row.value, r.value, r.key)
            known = self.table.rows.get(WindowedKey(r.key, start, start + self.diff))
            before = known.value if known and self.table.rules.has_no_first_row else row.value
            self._keep(r.key, start, value, self.table.old(known, before), max(row.ts, r.ts))

    def _keep(self, key: str, start: int, value: Json, old: Json, ts: int) -> None:
        self.table.update(WindowedKey(key, start, start + self.diff), value, old, ts)

    def _after(self, r: Record, right: Row | None, rows: dict[int, Row], close: int) -> None:
        """The window that starts right after the record holds what the windows it meets held of later ones."""
        if right and right.ts > r.ts and r.ts + 1 not in rows and r.ts + 1 + self.diff >= close:
            self._keep(r.key, r.ts + 1, right.value, None, right.ts)

    def _before(self, r: Record, previous: int, close: int) -> None:
        """The window that starts right after the record before this one, whose first record this is."""
        self._update(r, previous + 1, Row(self.fold.initial, r.ts), close)

    def _early(self, r: Record, rows: dict[int, Row], close: int) -> None:
        combined = rows.get(0)
        previous = combined.ts if combined and combined.ts < r.ts else None
        right = None
        for start in rows:
            if 0 < start <= r.ts:
                right = rows[start]
                self._update(r, start, right, close)
        if right is None and combined and combined.ts > r.ts:
            right = combined
        self._after(r, right, rows, close)
        if previous is not None and previous + 1 not in rows:
            self._before(r, previous, close)
        self._update(r, 0, combined or Row(self.fold.initial, r.ts), close)

    def _usual(self, r: Record, rows: dict[int, Row], close: int) -> None:
        diff = self.diff
        right: Row | None = None
        left: Row | None = None
        previous: int | None = None
        has_left = False
        seen = set(rows) & {r.ts + 1}
        for start in sorted((s for s in rows if s != r.ts + 1), reverse=True):
            row = rows[start]
            seen.add(start)
            if start + diff > r.ts:
                right = right or row
                self._update(r, start, row, close)
            elif start + diff == r.ts:
                has_left = True
                self._update(r, start, row, close)
                if row.ts < r.ts:
                    previous = row.ts
                else:
                    self._after(r, right, rows, close)
                    return
            else:
                left, previous = row, row.ts
                break
        if previous is not None and previous + 1 not in seen and previous + 1 + diff >= r.ts:
            self._before(r, previous, close)
        if not has_left:
            has_more = left is not None and previous is not None and previous >= r.ts - diff
            base = Row(left.value, r.ts) if has_more and left else Row(self.fold.initial, r.ts)
            self._update(r, r.ts - diff, base, close)
        self._after(r, right, rows, close)

    def _close(self, close: int) -> None:
        last = self.throttle.last
        high = close - self.diff - 1
        if high >= 0:
            self.table.emit(0 if last is None else max(0, last - self.diff), high)
            self.throttle.last = close
