"""Where connectors are is told, running or not, and can be forgotten: the next run begins anew."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from logflume.connect import (
    State,
    Worker,
    load_connector,
    pause_connector,
    paused_connectors,
    places,
    reset_connector,
    resume_connector,
    run_connectors,
)
from logflume.log import InvalidInput, Log, TopicPartition, UnknownName, connect

ROWS = TopicPartition("rows", 0)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with connect(tmp_path / "data") as opened:
        yield opened


def source(folder: Path, columns: str) -> dict[str, Any]:
    return {
        "name": "rows", "connector": "file-source", "file": str(folder / "rows.csv"), "topic": "rows", "value.columns": columns,
    }  # fmt: skip


def run(log: Log, config: dict[str, Any]) -> int:
    (status,) = run_connectors(log, [config], is_once=True)
    assert status.state is State.COMPLETED
    return sum(task.records for task in status.tasks)


def test_a_source_whose_settings_were_mended_begins_anew_after_a_reset(log: Log, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("user,cents\nann,1\nbob,2\n")
    assert run(log, source(tmp_path, "user STRING")) == 2
    mended = source(tmp_path, "user STRING, cents BIGINT")
    assert run(log, mended) == 0, "each row is read once"
    (place,) = places(log)
    assert (place.connector, place.kind) == ("rows", "source")
    assert "rows.csv" in place.part
    assert reset_connector(log, "rows") == [place]
    assert places(log) == []
    assert run(log, mended) == 2
    with pytest.raises(UnknownName, match="did you mean 'rows'"):
        reset_connector(log, "row")


def test_a_sink_reads_its_topic_again_after_a_reset_unless_it_runs(log: Log, tmp_path: Path) -> None:
    log.admin().ensure_topic("pays")
    producer = log.producer()
    for user in (b"ann", b"bob"):
        producer.send("pays", b'{"user": "%s"}' % user).result(30)
    config = {
        "name": "out", "connector": "sql-sink", "topics": "pays", "connection.url": f"sqlite:///{tmp_path}/out.db",
        "value.columns": "user STRING",
    }  # fmt: skip
    assert run(log, config) == 2
    (place,) = places(log)
    assert (place.connector, place.kind, place.part, place.at, place.end) == ("out", "sink", "pays-0", "2", 2)
    member = log.consumer(group_id="connect-out")
    member.subscribe(["pays"])
    while not member.assignment():
        member.poll(timeout_s=0.1)
    with pytest.raises(InvalidInput, match="connector 'out' runs: 1 of its tasks"):
        reset_connector(log, "out")
    member.close()
    reset_connector(log, "out")
    assert places(log) == []
    assert log.admin().group_offsets("connect-out").get(TopicPartition("pays", 0)) is None
    (tmp_path / "out.db").unlink()
    assert run(log, config) == 2
    assert sqlite3.connect(tmp_path / "out.db").execute("SELECT COUNT(*) FROM pays").fetchone() == (2,)


def eventually(is_so: Callable[[], object], *, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def stored(folder: Path) -> int:
    """How many rows the sink's table holds; 0 before there is one."""
    with closing(sqlite3.connect(folder / "out.db")) as database:
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'rows'").fetchone():
            return 0
        return int(database.execute("SELECT COUNT(*) FROM rows").fetchone()[0])


def rows(path: Path, first: int, count: int) -> None:
    with path.open("a") as file:
        file.writelines(f"u{number}\n" for number in range(first, first + count))


@pytest.mark.parametrize("kind", ["source", "sink"])
def test_a_paused_connector_rests_also_after_a_restart_until_it_is_resumed(log: Log, tmp_path: Path, kind: str) -> None:
    given, target = tmp_path / "rows.csv", f"sqlite:///{tmp_path}/out.db"
    given.write_text("user\n")
    followed = {**source(tmp_path, "user STRING"), "follow": True}
    sink = {"name": "out", "connector": "sql-sink", "topics": "rows", "connection.url": target, "value.columns": "user STRING"}
    name, done = (
        ("rows", lambda: log.admin().end_offsets([ROWS])[ROWS]) if kind == "source" else ("out", lambda: stored(tmp_path))
    )
    configs = [load_connector(followed), load_connector(sink)]
    with Worker(log, configs) as worker:
        rows(given, 0, 3)
        eventually(lambda: done() >= 3)
        pause_connector(log, name)
        eventually(lambda: {each.name: each.state for each in worker.status()}[name] is State.PAUSED)
    assert paused_connectors(log) == {name}
    before = done()
    rows(given, 3, 3)
    with Worker(log, configs) as worker:
        eventually(lambda: {each.name: each.state for each in worker.status()}[name] is State.PAUSED)
        other = next(each for each in ("rows", "out") if each != name)
        eventually(lambda: {each.name: each.state for each in worker.status()}[other] is State.RUNNING)
        if kind == "sink":  # its input is there, and it stays where it was
            eventually(lambda: sum(log.admin().end_offsets([ROWS]).values()) > before)
        assert done() == before
        resume_connector(log, name)
        eventually(lambda: stored(tmp_path) == 6)
    assert paused_connectors(log) == frozenset()
    with pytest.raises(UnknownName, match="paused connector"):
        resume_connector(log, name)


def test_a_connector_that_nobody_knows_cannot_be_paused(log: Log, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("user\nann\n")
    assert run(log, source(tmp_path, "user STRING")) == 1
    with pytest.raises(UnknownName, match="did you mean 'rows'"):
        pause_connector(log, "row")
    assert "connect-configs" not in log.admin().list_topics(include_internal=True)
