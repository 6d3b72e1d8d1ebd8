"""Changes of a table that are held back until their window closes or a time has passed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .base import NEVER, Record, Row, Rules, Table, key_bytes


@dataclass(slots=True)
class Held:
    """`time`: of the key's first change in the buffer; `before`: the row before it."""

    time: int
    change: Record
    before: Row | None


class Suppress(Table):
    """`wait_ms` after an entry's time it leaves; earlier, oldest first, while there are more than `max_records` entries."""

    def __init__(self, parent: Table, *, until_close: bool, wait_ms: int, max_records: int | None, rules: Rules) -> None:
        super().__init__()
        self.rules = rules
        self.parent, self.until_close, self.wait_ms, self.max_records = parent, until_close, wait_ms, max_records
        self.stream_time = NEVER
        self.held: dict[Any, Held] = {}
        parent.demand_old()

    def receive(self, r: Record) -> None:
        self.stream_time = max(self.stream_time, r.ts)
        known = self.held.get(r.key)
        if known is not None:
            known.change = r
        else:
            before = None if r.old is None else Row(r.old, -1)
            self.held[r.key] = Held(r.key.window_end if self.until_close else r.ts, r, before)
        for key in sorted(self.held, key=lambda key: (self.held[key].time, key_bytes(key))):
            is_over = self.max_records is not None and len(self.held) > self.max_records
            if self.held[key].time > self.stream_time - self.wait_ms and not is_over:
                return
            held = self.held[key]
            change = held.change
            if self.rules.suppress_takes_back:
                del self.held[key]
                change = change.but(old=held.before.value if held.before else None)
            if change.value is not None or not self.until_close:
                self.forward(change)
            self.held.pop(key, None)

    def get(self, key: Any) -> Row | None:
        return self.held[key].before if key in self.held else self.parent.get(key)

    def demand_old(self) -> None:
        self.parent.demand_old()

    def ask_old(self) -> bool:
        return self.parent.ask_old()

    def need_rows(self) -> None:
        self.parent.need_rows()
