"""What the test driver gives, the engine gives: topologies of the DSL on a log of several partitions, last results compared."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import logflume.streams as lf
from logflume.log import connect
from logflume.log.interfaces import Log
from logflume.log.records import TopicPartition
from logflume.streams import col
from logflume.streams.runtime import Engine, EngineOptions
from logflume.streams.testing import TopologyTestDriver

RECORDS = 600
Rows = dict[bytes | None, bytes | None]


class Flight(msgspec.Struct):
    carrier: str
    dep_delay: float | None
    origin: str


class Airline(msgspec.Struct):
    carrier: str
    name: str


def delays(app: lf.App) -> None:
    flights, airlines = app.stream("flights", Flight), app.table("airlines", Airline)
    late = flights.filter(col.dep_delay > 15).join(airlines, on=col.carrier)
    grouped = late.group_by(col.name).window(lf.tumbling(minutes=1, grace=lf.hours(1)))
    grouped.aggregate(flights=lf.count(), mean_delay=lf.mean(col.dep_delay)).to("out")


def busy(app: lf.App) -> None:
    counts = app.stream("flights", Flight).group_by(col.origin, col.carrier).count(emit="update")
    counts.filter(col["count"] > 10).select(origin=col.origin, n=col["count"] * 2).to("out")


def plain_functions(app: lf.App) -> None:
    def worst(so_far: float, flight: Flight) -> float:
        return max(so_far, flight.dep_delay or 0.0)

    flights = app.stream("flights", Flight).select_key(lambda flight: flight.origin, key=str, name="by-origin")
    flights.group_by_key().aggregate(0.0, worst, name="worst").to("out")


def unnamed_json(app: lf.App) -> None:
    flights, airlines = app.stream("flights"), app.table("airlines")
    joined = flights.left_join(airlines, on=col.carrier, prefix="airline_")
    joined.select_key(col.origin.cast(str)).to_table(name="last").to("out")


TOPOLOGIES: list[Callable[[lf.App], None]] = [delays, busy, plain_functions, unnamed_json]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    with connect(str(tmp_path_factory.mktemp("log") / "data")) as opened:
        for topic in ("flights", "airlines"):
            opened.admin().ensure_topic(topic, partitions=3)
        producer = opened.producer()
        for topic, key, value, timestamp_ms in inputs():
            producer.send(topic, value, key=key, timestamp_ms=timestamp_ms)
        producer.flush()
        yield opened


def inputs() -> list[tuple[str, bytes, bytes, int]]:
    """Airlines, then flights in order of time. Of one key each value is later than the one before, so that the last one is."""
    rng = random.Random(7)
    rows = [
        ("airlines", code.encode(), msgspec.json.encode(Airline(code, f"{code} Airlines")), 0)
        for code in ("AA", "UA", "DL", "B6")
    ]
    for i in range(RECORDS):
        delay = rng.choice([None, 0.0, 15.0, 15.5, 40.0, 61.25])
        flight = Flight(rng.choice(["AA", "UA", "DL", "XX"]), delay, rng.choice(["JFK", "LGA", "EWR"]))
        rows.append(("flights", b"f%d" % i, msgspec.json.encode(flight), 1_000 + 500 * i))
    return rows


def by_driver(build: Callable[[lf.App], None]) -> Rows:
    app = lf.App("driver")
    build(app)
    driver = TopologyTestDriver(app)
    for topic, key, value, timestamp_ms in inputs():
        if topic in app.topology().nodes:
            driver.process(topic, key, value, timestamp_ms)
    assert not driver.problems
    return {key: value for key, value, *_ in driver.output("out").raw}


def by_engine(build: Callable[[lf.App], None], log: Log, state_dir: Path, is_done: Callable[[Rows], bool]) -> Rows:
    """Run until the results are as expected and nothing is left to read; return what is there after the end."""
    app = lf.App(f"app-{build.__name__}", log=log)
    build(app)
    engine = Engine(app.plan(), log, EngineOptions(state_dir=state_dir, commit_interval_ms=30))
    engine.start()
    try:
        deadline = time.monotonic() + 30
        while not (engine.status().lag_records == 0 and is_done(read(log, "out"))):
            assert not engine.has_ended
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
    finally:
        engine.stop()
    return read(log, "out")


def read(log: Log, topic: str) -> Rows:
    """Return the last value of each key, {} before the topic is there."""
    admin = log.admin()
    if topic not in admin.list_topics():
        return {}
    consumer = log.consumer()
    partitions = [TopicPartition(topic, p) for p in range(admin.describe_topics([topic])[topic].partitions)]
    ends = admin.end_offsets(partitions, read_committed=True)
    consumer.assign(partitions)
    rows: Rows = {}
    while any(consumer.position(tp) < ends[tp] for tp in partitions):
        for chunk in consumer.poll(timeout_s=0.2):
            rows |= dict(zip(chunk.keys(), chunk.values(), strict=True))
    consumer.close()
    return rows


@pytest.mark.parametrize("build", TOPOLOGIES, ids=lambda build: build.__name__)
def test_driver_and_engine_agree(build: Callable[[lf.App], None], log: Log, tmp_path: Path) -> None:
    expected = by_driver(build)
    assert len(expected) >= 3
    found = by_engine(build, log, tmp_path / "state", lambda rows: comparable(rows, build) == comparable(expected, build))
    log.admin().delete_topic("out")
    assert comparable(found, build) == comparable(expected, build)


def comparable(rows: Rows, build: Callable[[lf.App], None]) -> Any:
    """The last row of an origin depends on which partition was read last; its keys do not."""
    return sorted(rows) if build is unnamed_json else rows
