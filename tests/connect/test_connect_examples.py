"""The examples: every connector file is valid and short, the flights are prepared and loaded as they say."""

from __future__ import annotations

import runpy
import sqlite3
import struct
from pathlib import Path

import orjson
import pytest

from logflume.connect import load_connector, run_connectors
from logflume.log import Log, TopicPartition, connect

FLIGHTS = Path(__file__).parents[2] / "examples" / "flights"


@pytest.mark.parametrize("path", sorted(FLIGHTS.glob("*.*")), ids=lambda path: path.name)
def test_files_are_short_and_valid(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 40
    if path.suffix == ".toml":
        assert load_connector(path).name == path.stem


def first_records(log: Log, topic: str, count: int) -> list[tuple[bytes | None, dict[str, object], int]]:
    consumer = log.consumer()
    partitions = log.admin().describe_topics([topic])[topic].partitions
    consumer.assign([TopicPartition(topic, n) for n in range(partitions)])
    found: list[tuple[bytes | None, dict[str, object], int]] = []
    while len(found) < count:
        for chunk in consumer.poll(timeout_s=1.0):
            found.extend((r.key, orjson.loads(r.value or b""), r.timestamp_ms) for r in chunk.records())
    consumer.close()
    return found


def test_the_flights_are_prepared_and_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(FLIGHTS / "prepare.py"))["main"](tmp_path / "demo-data")
    names = ("airlines", "airports", "planes", "weather", "flights")
    with connect("./data") as log:
        statuses = run_connectors(log, [FLIGHTS / f"{name}.toml" for name in names], is_once=True)
        assert {status.name: (status.records, status.broken) for status in statuses} == {
            "airlines": (16, 0),
            "airports": (1458, 0),
            "planes": (3322, 0),
            "weather": (26115, 0),
            "flights": (336776, 0),
        }
        assert (b"UA", {"carrier": "UA", "name": "United Air Lines Inc."}) in [r[:2] for r in first_records(log, "airlines", 16)]
        for key, flight, time_ms in first_records(log, "flights", 10_000):
            assert (key, time_ms) == (str(flight["carrier"]).encode(), flight["event_ms"])


def test_hourly_delays_go_to_sqlite_and_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo-data").mkdir()
    with connect("./data") as log:
        log.admin().create_topic("delays", partitions=2)
        producer = log.producer()
        for flights, hour in ((1, 0), (2, 0), (1, 1)):
            key = b"United" + struct.pack(">q", hour * 3_600_000)
            producer.send("delays", orjson.dumps({"flights": flights, "mean_delay": 20.5}), key=key, timestamp_ms=hour)
        producer.flush()
        producer.close()
        run_connectors(log, [FLIGHTS / "delays-sqlite.toml", FLIGHTS / "delays-parquet.toml"], is_once=True)
    with sqlite3.connect("demo-data/delays.db") as database:
        rows = database.execute("select name, window_start, window_end, flights, mean_delay from delays order by 2").fetchall()
    assert rows == [
        ("United", "1970-01-01 00:00:00.000000", "1970-01-01 01:00:00.000000", 2, 20.5),
        ("United", "1970-01-01 01:00:00.000000", "1970-01-01 02:00:00.000000", 1, 20.5),
    ]
    assert len(list((tmp_path / "demo-data" / "out" / "delays").glob("delays-*.parquet"))) >= 1
