"""Processors with stores and punctuation, as a user would write them against Kafka's Processor API."""

from __future__ import annotations

from typing import Any

from .base import Json, Node, Record, key_bytes
from .functions import key_text, number, text
from .queues import Schedule, Task


class Processor(Node):
    """`rows` is its key-value store."""

    def __init__(self, task: Task, args: Json) -> None:
        super().__init__()
        self.args = args
        self.rows: dict[str, Json] = {}
        self.start(task)

    def start(self, task: Task) -> None:
        """Set up schedules."""

    def receive(self, record: Record) -> None:
        raise NotImplementedError

    def entries(self) -> list[tuple[str, Json]]:
        return sorted(self.rows.items(), key=lambda row: key_bytes(row[0]))


class Dedup(Processor):
    def start(self, task: Task) -> None:
        every_ms = self.args["cleanup_every_ms"]
        task.by_stream_time.append(Schedule(every_ms, self.clean, 0))

    def receive(self, r: Record) -> None:
        if r.key is None:
            return
        name = f"{key_text(r.key)}|{text(r.value)}"
        if name in self.rows and abs(r.ts - self.rows[name]) <= self.args["within_ms"]:
            return
        self.rows[name] = r.ts
        self.forward(r)

    def clean(self, now: int) -> None:
        gone = [name for name, ts in self.rows.items() if ts + self.args["within_ms"] < now]
        for name in gone:
            del self.rows[name]
        if gone:
            self.forward(Record("_cleaned", len(gone), now))


class Ticker(Processor):
    def start(self, task: Task) -> None:
        task.by_wall_clock.append(Schedule(self.args["every_ms"], self.tick, self.args["every_ms"]))

    def receive(self, r: Record) -> None:
        if r.key is None:
            return
        if r.value is None:
            self.rows.pop(r.key, None)
        else:
            self.rows[r.key] = r.value

    def tick(self, now: int) -> None:
        for key, value in self.entries():
            self.forward(Record(key, value, now))


class StreamTicker(Processor):
    def start(self, task: Task) -> None:
        task.by_stream_time.append(Schedule(self.args["every_ms"], self.tick, 0))

    def receive(self, r: Record) -> None:
        if r.key is not None:
            self.rows[r.key] = self.rows.get(r.key, 0) + 1

    def tick(self, now: int) -> None:
        for key, value in self.entries():
            del self.rows[key]
            self.forward(Record(key, value, now))


class Shift(Processor):
    def receive(self, r: Record) -> None:
        self.forward(r.but(ts=r.ts + self.args["ms"]))


class Delta(Processor):
    def receive(self, r: Record) -> None:
        previous = None if r.key is None else self.rows.get(r.key)
        if r.key is not None:
            self.rows[r.key] = number(r.value)
        self.forward(r.but(value={"prev": previous, "cur": number(r.value)}))


KINDS: dict[str, type[Processor]] = {
    "dedup": Dedup, "ticker": Ticker, "stream_ticker": StreamTicker, "shift": Shift, "delta": Delta,
}  # fmt: skip


def processor(task: Task, kind: str, args: Any) -> Processor:
    return KINDS[kind](task, args)
