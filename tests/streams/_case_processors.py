"""The processors of recorded cases."""

from __future__ import annotations

from typing import Any

import logflume.streams as lf
from logflume.streams import Record

from .oracle.functions import Json, key_text, number, text


class CaseProcessor(lf.Processor):
    """`args` of the case; `rows` is the store."""

    def __init__(self, args: Json, store: str | None) -> None:
        self.args, self.name = args, store

    def init(self, context: lf.Context) -> None:
        super().init(context)
        if self.name is not None:
            self.rows = context.store(self.name)
        self.start()

    def start(self) -> None:
        """Set up schedules."""


class Dedup(CaseProcessor):
    def start(self) -> None:
        self.context.schedule(self.args["cleanup_every_ms"], self.clean)

    def process(self, record: Record) -> None:
        if record.key is None:
            return
        name = f"{key_text(record.key)}|{text(record.value)}"
        seen = self.rows.get(name)
        if seen is not None and abs(record.timestamp_ms - seen) <= self.args["within_ms"]:
            return
        self.rows.put(name, record.timestamp_ms)
        self.context.forward(record)

    def clean(self, now_ms: int) -> None:
        gone = [name for name, time in self.rows.items() if time + self.args["within_ms"] < now_ms]
        for name in gone:
            self.rows.delete(name)
        if gone:
            self.context.forward(Record("_cleaned", len(gone), now_ms))


class Ticker(CaseProcessor):
    def start(self) -> None:
        self.context.schedule(self.args["every_ms"], self.tick, time=lf.Time.WALL_CLOCK)

    def process(self, record: Record) -> None:
        if record.key is not None:
            self.rows.put(record.key, record.value)

    def tick(self, now_ms: int) -> None:
        for key, value in self.rows.items():
            self.context.forward(Record(key, value, now_ms))


class StreamTicker(CaseProcessor):
    def start(self) -> None:
        self.context.schedule(self.args["every_ms"], self.tick)

    def process(self, record: Record) -> None:
        if record.key is not None:
            self.rows.put(record.key, (self.rows.get(record.key) or 0) + 1)

    def tick(self, now_ms: int) -> None:
        for key, value in self.rows.items():
            self.rows.delete(key)
            self.context.forward(Record(key, value, now_ms))


class Shift(CaseProcessor):
    def process(self, record: Record) -> None:
        self.context.forward(record.with_timestamp(record.timestamp_ms + self.args["ms"]))


class Delta(CaseProcessor):
    def process(self, record: Record) -> None:
        previous = None if record.key is None else self.rows.get(record.key)
        if record.key is not None:
            self.rows.put(record.key, number(record.value))
        self.context.forward(record.with_value({"prev": previous, "cur": number(record.value)}))


KINDS: dict[str, Any] = {"dedup": Dedup, "ticker": Ticker, "stream_ticker": StreamTicker, "shift": Shift, "delta": Delta}
