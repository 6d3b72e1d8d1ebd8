"""Schedules by stream time and by the wall clock, in batches and in a running engine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import logflume.streams as lf
from logflume.streams.operators.program import BoundProgram
from logflume.streams.runtime import Engine, EngineOptions, StreamsError
from logflume.streams.testing import TopologyTestDriver
from tests.streams.running import embedded, read, send_json, until

HOUR_MS = 3_600_000


class Clock:
    """Time that goes on by itself and can be moved on."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


class Ticker(lf.Processor):
    """Counts records, and lets the count out each hour of one of the times."""

    time = lf.Time.WALL_CLOCK

    def init(self, context: lf.Context) -> None:
        super().init(context)
        self.seen = 0
        context.schedule(HOUR_MS, self.tick, time=self.time)

    def process(self, record: lf.Record) -> None:
        self.seen += 1

    def tick(self, now_ms: int) -> None:
        self.context.forward(lf.Record("seen", self.seen, now_ms if self.time is lf.Time.STREAM else 1))


class StreamTicker(Ticker):
    time = lf.Time.STREAM


class Clocked(lf.Processor):
    """Puts out the stream time that it sees with each record."""

    def process(self, record: lf.Record) -> None:
        self.context.forward(record.with_value(self.context.stream_time_ms))


def test_the_wall_clock_of_an_engine_drives_schedules(tmp_path: Path) -> None:
    clock = Clock()
    app = lf.App("ticks")
    app.stream("in").process(Ticker, key=str).to("out", partitions=1)
    with embedded(tmp_path / "data") as log:
        log.admin().ensure_topic("in", partitions=1)
        send_json(log, "in", [("a", {"n": n}, 1000 + n) for n in range(5)])
        engine = Engine(app.plan(), log, EngineOptions(state_dir=tmp_path / "state", commit_interval_ms=10), wall_s=clock)
        engine.start()
        try:
            until(lambda: engine.status().records_in == 5, engine)
            assert read(log, "out") == []
            clock.ahead_s += HOUR_MS / 1000
            until(lambda: len(read(log, "out")) == 1, engine)
            clock.ahead_s += HOUR_MS / 1000
            until(lambda: len(read(log, "out")) == 2, engine)
        finally:
            engine.stop()
        assert [record.value for record in read(log, "out")] == [b"5", b"5"]


def test_what_a_suppress_holds_back_leaves_an_engine_by_stream_time(tmp_path: Path) -> None:
    app = lf.App("held")
    app.table("in").suppress(lf.until_time_limit(1000)).to_stream().to("out", partitions=1)
    with embedded(tmp_path / "data") as log:
        log.admin().ensure_topic("in", partitions=1)
        engine = Engine(app.plan(), log, EngineOptions(state_dir=tmp_path / "state", commit_interval_ms=10))
        engine.start()
        try:
            send_json(log, "in", [("a", 1, 0), ("a", 2, 500), ("b", 3, 999)])
            until(lambda: engine.status().records_in == 3, engine)
            assert read(log, "out") == []
            send_json(log, "in", [("c", 4, 1000)])
            until(lambda: len(read(log, "out")) == 1, engine)
        finally:
            engine.stop()
        assert [(record.key, record.value) for record in read(log, "out")] == [(b"a", b"2")]


@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_schedules_and_stream_time_do_not_depend_on_batches(batch_size: int) -> None:
    times = [5, 3, HOUR_MS - 1, 7, HOUR_MS, HOUR_MS + 1, 4 * HOUR_MS + 5, 9, 4 * HOUR_MS + 6, 5 * HOUR_MS]

    def run(make: Any, size: int) -> list[Any]:
        app = lf.App("times")
        app.stream("in").process(make, key=str).to("out")
        driver = TopologyTestDriver(app)
        for at in range(0, len(times), size):
            driver.input("in").send_together([("k", b"1", time) for time in times[at : at + size]])
        return [(record.key, record.value, record.timestamp_ms) for record in driver.output("out").read()]

    assert run(Clocked, batch_size) == [("k", max(times[: n + 1]), time) for n, time in enumerate(times)]
    ticks = [(1, 5), (5, HOUR_MS), (7, 4 * HOUR_MS + 5), (10, 5 * HOUR_MS)]
    assert run(StreamTicker, batch_size) == [("seen", seen, time) for seen, time in ticks]


def test_joins_of_two_tables_take_batches_and_self_joins_single_records() -> None:
    app = lf.App("joins")
    left, right = app.table("left"), app.table("right")
    left.join(right, lambda a, b: [a, b]).to_stream().to("out")
    left.join(right, lambda a, b: [a, b], on=lambda row: str(row), name="far").to_stream().to("far")
    plan: Any = app.plan()
    assert [part.program.careful for part in plan.subtopologies if part.program.careful] == []
    alone = lf.App("alone")
    table = alone.table("left")
    table.join(table.map_values(lambda row: row), lambda a, b: [a, b]).to_stream().to("out")
    plan = alone.plan()
    assert [part.program.careful for part in plan.subtopologies] == [frozenset({"left"})]


def test_what_leaves_at_a_commit_goes_through_a_self_join_together(monkeypatch: pytest.MonkeyPatch) -> None:
    alone: list[int] = []

    def counted(self: Any, node: str, batch: Any) -> None:
        alone.append(len(batch))
        give_rows(self, node, batch)

    give_rows = BoundProgram._give_rows
    monkeypatch.setattr(BoundProgram, "_give_rows", counted)
    app = lf.App("test")
    counts = app.stream("in", int, key=str).group_by_key().aggregate(0, lambda total, n: total + n, name="sums")
    counts.join(counts.map_values(lambda total: -total), lambda a, b: [a, b], name="both").to_stream().to("out")
    driver = TopologyTestDriver(app, commits_each_record=False)
    for number in range(6):
        driver.input("in").send(number, key=f"k{number % 3}", timestamp_ms=number)
    alone.clear()
    driver.commit()
    found = {record.key: record.value for record in driver.output("out").read()}
    assert found == {"k0": [3, -3], "k1": [5, -5], "k2": [7, -7]}
    assert alone == []


class Failing(lf.Processor):
    """Forwards records, and each hour forwards the time and then fails."""

    time = lf.Time.STREAM

    def init(self, context: lf.Context) -> None:
        super().init(context)
        context.schedule(HOUR_MS, self.tick, time=self.time)

    def process(self, record: lf.Record) -> None:
        self.context.forward(record)

    def tick(self, now_ms: int) -> None:
        self.context.forward(lf.Record("tick", now_ms, 0))
        raise ValueError("in a schedule")


class FailingByTheWall(Failing):
    time = lf.Time.WALL_CLOCK


@pytest.mark.parametrize("processor", [Failing, FailingByTheWall])
def test_a_schedule_that_raises_is_counted_and_called_again(processor: type[Failing], tmp_path: Path) -> None:
    app = lf.App("failing")
    app.stream("in").process(processor, name="ticks").to("out")
    clock = Clock()
    with embedded(tmp_path / "log") as log:
        log.admin().ensure_topic("in")
        engine = Engine(app.plan(), log, EngineOptions(state_dir=tmp_path / "state", commit_interval_ms=20), wall_s=clock)
        engine.start()
        try:
            for number in (1, 2):
                send_json(log, "in", [("k", number, number * HOUR_MS)])
                until(lambda n=number: engine.status().records_in == n, engine)
                clock.ahead_s += HOUR_MS / 1000
                until(lambda n=number: engine.status().dropped == {"callable": n}, engine)
                until(lambda n=number: len(read(log, "out")) == 2 * n, engine)
            (left_out,) = engine.status().left_out
        finally:
            engine.stop()
    assert left_out.node == "ticks"
    assert "ValueError: in a schedule in Failing.tick" in left_out.first


@pytest.mark.parametrize("processor", [Failing, FailingByTheWall])
def test_a_schedule_that_raises_stops_where_that_is_asked_for(processor: type[Failing]) -> None:
    app = lf.App("failing")
    app.stream("in").process(processor).to("out")
    driver = TopologyTestDriver(app)
    driver.advance(0)
    by_time = {lf.Time.STREAM: lambda: driver.input("in").send(1, key="k", timestamp_ms=HOUR_MS)}
    tick = by_time.get(processor.time, lambda: driver.advance(HOUR_MS))
    with pytest.raises(StreamsError, match="in a schedule"):
        tick()
