"""Exactly-once through SIGKILL: between read, produce and commit of a source; between write, flush and commit of a sink."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import orjson
import pyarrow.dataset as ds
import pytest

from logflume.log import connect
from logflume.log.records import Record, TopicPartition

ROWS = 2000
WORKER = Path(__file__).with_name("_killed_worker.py")
ROOT = Path(__file__).parents[2]


def run(data: Path, config: Path, *points: str) -> int:
    """Run the worker in a process of its own; returns its exit code (-9: killed)."""
    command = [sys.executable, str(WORKER), str(data), str(config), *points]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, timeout=60, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()
    return done.returncode


def run_through(data: Path, config: Path, points: Sequence[str]) -> None:
    """Kill at each point in turn, then run to the end."""
    for point in points:
        assert run(data, config, point) == -signal.SIGKILL, f"{point} was not reached"
    assert run(data, config) == 0


def records_of(data: Path, topic: str) -> list[Record]:
    """Read a topic to its end as read_committed."""
    with connect(str(data)) as log:
        partitions = [TopicPartition(topic, n) for n in range(log.admin().describe_topics([topic])[topic].partitions)]
        ends = log.admin().end_offsets(partitions, read_committed=True)
        assert ends == log.admin().end_offsets(partitions), "a transaction was left open"
        consumer = log.consumer(read_committed=True)
        consumer.assign(partitions)
        found: list[Record] = []
        while any(consumer.position(p) < ends[p] for p in partitions):
            for chunk in consumer.poll(timeout_s=1.0):
                found.extend(chunk.records())
        consumer.close()
    return found


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A connector that reads 2000 rows, one of them broken, in batches of 150."""
    rows = [f"{i},n{i}" for i in range(ROWS)]
    rows[777] = "777,too,many"
    (tmp_path / "a.csv").write_text("id,name\n" + "\n".join(rows) + "\n")
    config = tmp_path / "source.toml"
    config.write_text(
        f'name = "src"\nconnector = "file-source"\nfile = "{tmp_path}/a.csv"\ntopic = "t"\n"topic.partitions" = 2\n'
        'key.columns = "id"\nvalue.columns = "id INT, name STRING"\nbatch.max.records = 150\nerrors.tolerance = "all"\n'
    )
    return config


def test_a_source_is_exactly_once_through_kills(tmp_path: Path, source: Path) -> None:
    data = tmp_path / "data"
    run_through(
        data,
        source,
        [
            "Producer.begin_transaction:before:2",
            "Producer.send_chunk:after:2",
            "Producer.commit_transaction:before:3",
            "Producer.commit_transaction:after:2",
            "Producer.send_chunk:before:1",
        ],
    )
    ids = [orjson.loads(record.value or b"")["id"] for record in records_of(data, "t")]
    assert sorted(ids) == [i for i in range(ROWS) if i != 777]
    (letter,) = records_of(data, "src.dead-letters")
    headers = dict(letter.headers)
    assert letter.value == b"777,too,many"
    assert headers["__connect.errors.line"] == b"779"
    assert headers["__connect.errors.exception.message"] == b"expected 2 fields, found 3"
    assert run(data, source) == 0
    assert len(records_of(data, "t")) == ROWS - 1


@pytest.mark.parametrize("is_tolerant", [False, True], ids=["plain", "with-dead-letters"])
def test_a_sql_sink_is_exactly_once_through_kills(tmp_path: Path, source: Path, is_tolerant: bool) -> None:
    data, database = tmp_path / "data", tmp_path / "a.db"
    assert run(data, source) == 0
    if is_tolerant:
        with connect(str(data)) as log:
            producer = log.producer()
            producer.send("t", b"not json", key=b"\x00\x00\x00\x01")
            producer.flush()
            producer.close()
    config = tmp_path / "sink.toml"
    config.write_text(
        f'name = "out"\nconnector = "sql-sink"\ntopics = "t"\nconnection.url = "sqlite:///{database}"\n'
        'value.columns = "id INT, name STRING"\noffset.flush.interval.ms = 60000\n'
        + ('errors.tolerance = "all"\n' if is_tolerant else "")
    )
    commit = "Producer.commit_transaction" if is_tolerant else "Consumer.commit"
    run_through(
        data, config, ["SqlTarget.put:after:1", "SqlTarget.flush:before:1", "SqlTarget.flush:after:1", f"{commit}:before:1"]
    )
    with sqlite3.connect(database) as connection:
        ids = [row[0] for row in connection.execute("select id from t")]
    assert sorted(ids) == [i for i in range(ROWS) if i != 777]
    if is_tolerant:
        assert [record.value for record in records_of(data, "out.dead-letters")] == [b"not json"]


def test_a_parquet_sink_is_exactly_once_through_kills(tmp_path: Path, source: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    assert run(data, source) == 0
    config = tmp_path / "sink.toml"
    config.write_text(
        f'name = "out"\nconnector = "parquet-sink"\ntopics = "t"\npath = "{out}"\nvalue.columns = "id INT, name STRING"\n'
        "rotate.records = 100\noffset.flush.interval.ms = 60000\n"
    )
    run_through(
        data,
        config,
        ["ParquetTarget.put:after:1", "_OpenFile.publish:before:1", "_OpenFile.publish:after:1", "Consumer.commit:before:1"],
    )
    ids = ds.dataset(out, format="parquet").to_table().column("id").to_pylist()
    assert sorted(ids) == [i for i in range(ROWS) if i != 777]
    assert not [path for path in out.rglob("*") if path.name.endswith(".tmp")]
