"""The worker over the embedded log: records, states, causes, restarts, fencing, following and pausing."""

from __future__ import annotations

import logging
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow.dataset as ds
import pytest

from logflume.connect import (
    ConfigErrors,
    State,
    Worker,
    connector_names,
    load_connector,
    pause_connector,
    resume_connector,
    run_connectors,
)
from logflume.log import InvalidInput, Log, Record, TopicPartition, connect

SOURCE = {"name": "src", "connector": "file-source", "topic": "t", "value.columns": "id INT, name STRING"}
SINK = {
    "name": "out",
    "connector": "parquet-sink",
    "topics": "t",
    "value.columns": "id INT, name STRING",
    "offset.flush.interval.ms": 20,
}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with connect(str(tmp_path / "data")) as opened:
        yield opened


def eventually(condition: Callable[[], bool], *, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    tick = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        tick.wait(0.02)


def records_of(log: Log, topic: str) -> list[Record]:
    partitions = [TopicPartition(topic, n) for n in range(log.admin().describe_topics([topic])[topic].partitions)]
    ends = log.admin().end_offsets(partitions, read_committed=True)
    consumer = log.consumer(read_committed=True)
    consumer.assign(partitions)
    found: list[Record] = []
    while any(consumer.position(partition) < ends[partition] for partition in partitions):
        for chunk in consumer.poll(timeout_s=1.0):
            found.extend(chunk.records())
    consumer.close()
    return found


def ids_of(log: Log) -> list[int]:
    return [orjson.loads(record.value or b"")["id"] for record in records_of(log, "t")]


def write_rows(path: Path, rows: range, *, mode: str = "w") -> None:
    with path.open(mode) as file:
        if mode == "w":
            file.write("id,name\n")
        file.writelines(f"{i},n{i}\n" for i in rows)


def run_once(log: Log, keys: dict[str, Any]) -> Worker:
    worker = Worker(log, [load_connector(keys)], is_once=True, max_restarts=2)
    with worker:
        assert worker.wait(timeout_s=30)
    return worker


def test_a_source_writes_keys_times_and_topic_configs_and_goes_on(log: Log, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    write_rows(path, range(100))
    keys = {**SOURCE, "file": str(path), "key.columns": "id", "timestamp.columns": "id", "topic.partitions": 3}
    keys |= {"topic.config.cleanup.policy": "compact", "batch.max.records": 30}
    worker = run_once(log, keys)
    (status,) = worker.status()
    assert (status.state, status.records, status.tasks[0].fraction) == (State.COMPLETED, 100, 1.0)
    assert log.admin().topic_configs("t")["cleanup.policy"] == "compact"
    records = records_of(log, "t")
    assert {record.partition for record in records} == {0, 1, 2}
    for record in records:
        value = orjson.loads(record.value or b"")
        assert (record.key, record.timestamp_ms, value["name"]) == (
            struct.pack(">i", value["id"]),
            value["id"],
            f"n{value['id']}",
        )
    write_rows(path, range(100, 120), mode="a")
    assert run_once(log, keys).status()[0].records == 20
    assert sorted(ids_of(log)) == list(range(120))


def test_a_broken_row_stops_the_task_with_its_place_and_a_mended_file_goes_on(log: Log, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,name\n1,a\n2,b\nx,c\n4,d\n")
    worker = Worker(log, [load_connector({**SOURCE, "file": str(path), "batch.max.records": 1})])
    with worker:
        assert worker.wait(timeout_s=30)
        (status,) = worker.status()
        assert status.state is State.FAILED
        assert status.cause == (
            f"{path}, line 4, column id: expected INTEGER, found 'x'; correct the row, "
            'or set errors.tolerance = "all" to keep such rows in the dead-letter topic and go on'
        )
        assert ids_of(log) == [1, 2]
        path.write_text("id,name\n1,a\n2,b\n3,c\n4,d\n")
        worker.restart("src")
        assert worker.wait(timeout_s=30)
    assert worker.status()[0].state is State.COMPLETED
    assert ids_of(log) == [1, 2, 3, 4]


def test_a_file_is_followed_and_a_rewritten_one_is_refused(log: Log, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    write_rows(path, range(3))
    keys = {**SOURCE, "file": str(path), "follow": True}
    with Worker(log, [load_connector(keys)]) as worker:
        eventually(lambda: worker.status()[0].records == 3)
        with path.open("a") as file:
            file.write("3,n3\n4,n")
        eventually(lambda: worker.status()[0].records == 4)
        with path.open("a") as file:
            file.write("4\n")
        eventually(lambda: worker.status()[0].records == 5)
        rotated = tmp_path / "new"
        write_rows(rotated, range(10, 13))
        rotated.rename(path)
        eventually(lambda: worker.status()[0].state is State.FAILED)
        assert "was truncated" in str(worker.status()[0].cause) or "was rewritten or rotated" in str(worker.status()[0].cause)
    assert ids_of(log) == [0, 1, 2, 3, 4]
    assert run_once(log, {**keys, "follow": False, "on.change": "restart"}).status()[0].records == 3
    assert ids_of(log) == [0, 1, 2, 3, 4, 10, 11, 12]


def test_a_second_worker_takes_over_and_the_first_one_says_so(log: Log, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    write_rows(path, range(200))
    keys = {**SOURCE, "file": str(path), "follow": True, "rate.records.per.second": 100}
    first, second = Worker(log, [load_connector(keys)]), Worker(log, [load_connector({**keys, "rate.records.per.second": 0})])
    with first:
        eventually(lambda: first.status()[0].records > 10)
        with second:
            eventually(lambda: first.status()[0].state is State.FAILED)
            assert "another worker runs task 0 of connector 'src'" in str(first.status()[0].cause)
            eventually(lambda: len(ids_of(log)) == 200)
    assert ids_of(log) == list(range(200))


def test_tasks_share_partitions_and_pause_and_resume(log: Log, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    write_rows(path, range(500))
    run_once(log, {**SOURCE, "file": str(path), "key.columns": "id", "topic.partitions": 4})
    keys = {**SINK, "path": str(tmp_path / "out"), "tasks.max": 2, "rotate.seconds": 0.1}
    with Worker(log, [load_connector(keys)]) as worker:
        eventually(lambda: worker.status()[0].records == 500)
        assert len(worker.status()[0].tasks) == 2
        pause_connector(log, "out")
        eventually(lambda: worker.status()[0].state is State.PAUSED)
        resume_connector(log, "out")
        write_rows(path, range(500, 600), mode="a")
        run_once(log, {**SOURCE, "file": str(path), "key.columns": "id", "topic.partitions": 4})
        eventually(lambda: worker.status()[0].records == 600)
    assert worker.status()[0].state is State.STOPPED
    ids = ds.dataset(tmp_path / "out", format="parquet").to_table().column("id").to_pylist()
    assert sorted(ids) == list(range(600))


def test_once_completes_with_several_tasks(log: Log, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    write_rows(path, range(300))
    run_once(log, {**SOURCE, "file": str(path), "key.columns": "id", "topic.partitions": 3})
    worker = run_once(log, {**SINK, "path": str(tmp_path / "out"), "tasks.max": 8})
    assert [task.state for task in worker.status()[0].tasks] == [State.COMPLETED] * 3
    assert worker.status()[0].records == 300


def test_windowed_keys_become_columns(log: Log, tmp_path: Path) -> None:
    log.admin().create_topic("delays", partitions=1)
    producer = log.producer()
    for hour in range(3):
        producer.send("delays", orjson.dumps({"n": hour}), key=b"UA" + struct.pack(">q", hour * 3_600_000), timestamp_ms=hour)
    producer.send("delays", b"{}", key=b"short")
    producer.flush()
    producer.close()
    keys = {**SINK, "topics": "delays", "path": str(tmp_path / "out"), "key.columns": "carrier STRING", "value.columns": "n INT"}
    keys |= {"key.windowed": True, "window.size.ms": 3_600_000, "record.offset.column": "o", "errors.tolerance": "all"}
    assert run_once(log, keys).status()[0].broken == 1
    rows = ds.dataset(tmp_path / "out", format="parquet").to_table().to_pylist()
    assert [
        (row["carrier"], row["window_start"].timestamp(), row["window_end"].timestamp(), row["n"], row["o"]) for row in rows
    ] == [("UA", hour * 3600, (hour + 1) * 3600, hour, hour) for hour in range(3)]
    (letter,) = records_of(log, "out.dead-letters")
    assert dict(letter.headers)["__connect.errors.stage"] == b"KEY_CONVERTER"


def test_a_record_that_cannot_be_decoded_stops_a_sink_and_names_its_offset(log: Log, tmp_path: Path) -> None:
    log.admin().create_topic("t", partitions=1)
    producer = log.producer()
    producer.send("t", b'{"id": 1}')
    producer.send("t", b'{"id": "one"}')
    producer.flush()
    producer.close()
    (status,) = run_once(log, {**SINK, "path": str(tmp_path / "out")}).status()
    assert status.state is State.FAILED
    assert str(status.cause).startswith(
        "t-0, offset 1, VALUE_CONVERTER: $.id: expected INTEGER, found text 'one'; set errors.tolerance"
    )


def test_a_topic_that_was_made_again_is_found(log: Log, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    write_rows(path, range(50))
    run_once(log, {**SOURCE, "file": str(path)})
    keys = {**SINK, "path": str(tmp_path / "out")}
    run_once(log, keys)
    log.admin().delete_topic("t")
    write_rows(path, range(20))
    run_once(log, {**SOURCE, "name": "new", "file": str(path)})
    (status,) = run_once(log, {**keys, "name": "again"}).status()
    assert status.state is State.FAILED
    assert "the topic ends at 21: it was deleted and made again" in str(status.cause)


def test_a_topic_that_does_not_exist_is_named_with_near_matches(log: Log, tmp_path: Path) -> None:
    log.admin().create_topic("flights", partitions=1)
    worker = Worker(log, [load_connector({**SINK, "topics": "flight", "path": str(tmp_path)})])
    with pytest.raises(InvalidInput, match="topics: unknown topic 'flight'; did you mean 'flights'"):
        worker.start()


def test_two_connectors_of_one_name_are_refused(log: Log, tmp_path: Path) -> None:
    connector = load_connector({**SOURCE, "file": str(tmp_path / "a.csv")})
    with pytest.raises(ConfigErrors, match="'src' is the name of two connectors"):
        Worker(log, [connector, connector])


def test_a_target_that_is_down_is_tried_again(log: Log, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    write_rows(path, range(50))
    run_once(log, {**SOURCE, "file": str(path)})
    keys = {"name": "db", "connector": "sql-sink", "topics": "t", "value.columns": "id INT, name STRING"}
    (tmp_path / "a.db").write_bytes(b"what a crash has left of it" * 100)
    with Worker(log, [load_connector({**keys, "connection.url": f"sqlite:///{tmp_path / 'a.db'}"})]) as worker:
        eventually(lambda: worker.status()[0].state is State.RESTARTING)
        assert "file is not a database" in str(worker.status()[0].cause)
        (tmp_path / "a.db").unlink()
        eventually(lambda: worker.status()[0].records == 50)
        assert worker.status()[0].state is State.RUNNING
        assert worker.status()[0].tasks[0].restarts >= 1


PLUGIN = """
from logflume.connect import *
import numpy as np
attempts = []
def read(config, context):
    attempts.append(1)
    if len(attempts) <= config.integer("failures"):
        raise OSError(f"login with {config.secret('token')} at db://u:{config.secret('token')}@h failed")
    schema = RowSchema(key=(), value=parse_columns("id INT"))
    times = np.zeros(1, np.int64)
    yield SourceBatch(partition={"n": "1"}, offset={"at": 1}, schema=schema, keys=[None], values=[(1,)], timestamps_ms=times)
CONNECTOR = SourceConnector(
    name="flaky", doc="Fails.", read=read,
    spec=Spec(options=(
        Option(name="failures", type=OptionType.INTEGER, doc="How often."),
        Option(name="token", type=OptionType.PASSWORD, doc="Token."),
    )),
)
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A connector of another distribution, registered by its entry point."""
    site = tmp_path / "site"
    (site / "flaky_connect-1.0.dist-info").mkdir(parents=True)
    (site / "flaky_connect-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: flaky-connect\nVersion: 1.0\n")
    (site / "flaky_connect-1.0.dist-info" / "entry_points.txt").write_text(
        "[logflume.connectors]\nflaky = flaky_connect:CONNECTOR\n"
    )
    (site / "flaky_connect.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(site)
    yield
    sys.modules.pop("flaky_connect", None)


@pytest.mark.usefixtures("plugin")
def test_a_plug_in_is_started_again_with_a_pause_and_its_secret_stays_secret(
    log: Log, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert "flaky" in connector_names()
    caplog.set_level(logging.DEBUG)
    keys = {"name": "f", "connector": "flaky", "topic": "t", "failures": 2, "token": "hunter2"}
    with Worker(log, [load_connector(keys)]) as worker:
        eventually(lambda: worker.status()[0].state is State.RESTARTING)
        assert worker.status()[0].cause == "OSError: login with **** at db://u:****@h failed"
        eventually(lambda: worker.status()[0].state is State.COMPLETED)
        (status,) = worker.status()
    assert (status.records, status.tasks[0].restarts) == (1, 2)
    assert "hunter2" not in caplog.text
    assert "starts again in 1.0 s" in caplog.text
    assert "hunter2" not in f"{status} {status.to_json()} {worker.status()}"


@pytest.mark.usefixtures("plugin")
def test_once_gives_up_and_tells_the_cause(log: Log, tmp_path: Path) -> None:
    config = tmp_path / "f.json"
    config.write_text('{"name": "f", "connector": "flaky", "topic": "t", "failures": 99, "token": "x"}')
    worker = Worker(log, [load_connector(config)], max_restarts=1)
    with worker:
        assert worker.wait(timeout_s=30)
    (status,) = worker.status()
    assert (status.state, status.tasks[0].restarts) == (State.FAILED, 1)
    assert isinstance(worker.errors()[0], OSError)


def test_run_connectors_reports_and_raises(log: Log, tmp_path: Path) -> None:
    write_rows(tmp_path / "a.csv", range(10))
    config = tmp_path / "a.toml"
    config.write_text(f'name = "src"\nconnector = "file-source"\nfile = "{tmp_path}/a.csv"\ntopic = "t"\n')
    seen: list[int] = []
    (status,) = run_connectors(log, [config], is_once=True, report=lambda all_of_them: seen.append(all_of_them[0].records))
    assert (status.records, seen[-1]) == (10, 10)
    with pytest.raises(InvalidInput, match="no file matches"):
        run_connectors(log, [config], is_once=True, overrides={"file": "nowhere.csv", "name": "other"})
