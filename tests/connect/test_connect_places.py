"""Where connectors are is told, running or not, and can be forgotten: the next run begins anew."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logflume.connect import State, places, reset_connector, run_connectors
from logflume.log import InvalidInput, Log, TopicPartition, UnknownName, connect


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
