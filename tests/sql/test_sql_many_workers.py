"""State that is split over workers: a pull query gives all rows or says what it cannot reach, never part of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from logflume.log import connect
from logflume.log.interfaces import Log
from logflume.log.server import start_embedded
from logflume.sql import Rows, SqlEngine
from logflume.sql.errors import SqlError
from logflume.sql.pull_reads import StateUnavailable, table_rows
from logflume.sql.table_state import TablePage, TableRead, TableShape

KEYS = [f"k{n:02}" for n in range(60)]
SETUP = """
CREATE STREAM fl (id INT KEY, carrier STRING) WITH (KAFKA_TOPIC='fl', PARTITIONS=4, VALUE_FORMAT='JSON');
CREATE TABLE pu AS SELECT carrier, COUNT(*) AS n FROM fl GROUP BY carrier;
"""


def start_worker(address: str, state: Path) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "logflume.cli.worker", "--bootstrap", address, "--state-dir", str(state)]
    return subprocess.Popen(argv, stdin=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Log, SqlEngine, list[subprocess.Popen[bytes]], str, Path]]:
    path = tmp_path_factory.mktemp("workers")
    with start_embedded(str(path / "log")) as broker:
        address = str(broker.addresses[0])
        with connect(address) as log, SqlEngine(log, path / "sql", runs_queries=False) as engine:
            list(engine.execute(SETUP))
            producer = log.producer()
            for n, key in enumerate(KEYS * 2):
                producer.send("fl", json.dumps({"CARRIER": key}).encode(), key=n.to_bytes(4, "big"))
            producer.close()
            workers = [start_worker(address, path / f"state-{n}") for n in range(2)]
            try:
                yield log, engine, workers, address, path
            finally:
                for worker in workers:
                    worker.kill()
                    worker.wait()


def pulled(engine: SqlEngine, text: str) -> list[tuple[object, ...]]:
    (rows,) = engine.execute(text)
    assert isinstance(rows, Rows)
    assert "state" in rows.note
    return sorted(rows.rows, key=str)


def settled(engine: SqlEngine, text: str, expected: list[tuple[object, ...]]) -> None:
    """Pull until the answer is as expected; in between, it may only be late or refused, and never have fewer keys."""
    for _ in range(400):
        try:
            found = pulled(engine, text)
        except SqlError:
            continue
        if found == expected:
            return
        signal.sigtimedwait([], 0.05)
    raise AssertionError(found)


@pytest.mark.slow
def test_pulls_over_workers_are_complete_or_fail(
    cluster: tuple[Log, SqlEngine, list[subprocess.Popen[bytes]], str, Path],
) -> None:
    _, engine, workers, address, path = cluster
    expected: list[tuple[object, ...]] = [(key, 2) for key in KEYS]
    for _ in range(600):
        if len(engine._workers.readers()) == 2:
            break
        signal.sigtimedwait([], 0.05)
    settled(engine, "SELECT * FROM pu;", expected)
    assert {row for key in KEYS for row in pulled(engine, f"SELECT * FROM pu WHERE carrier = '{key}';")} == set(expected)
    some = KEYS[:7]
    listed = ", ".join(f"'{key}'" for key in (*some, *some))
    assert pulled(engine, f"SELECT * FROM pu WHERE carrier IN ({listed});") == [(key, 2) for key in some]
    status = engine.status()["CTAS_PU_0"]
    assert {t.name.rsplit(".", 1)[-1] for t in status.tasks} >= {"0", "1", "2", "3"}

    os.kill(workers[0].pid, signal.SIGKILL)
    workers[0].wait()
    workers[0] = start_worker(address, path / "state-0")
    for _ in range(3):
        with contextlib.suppress(StateUnavailable):
            assert pulled(engine, "SELECT * FROM pu;") == expected
    settled(engine, "SELECT * FROM pu;", expected)


def shape() -> TableShape:
    return TableShape("CTAS_T_0", "AGGREGATE", None, None, (), (), (), (), None, False)  # type: ignore[arg-type]


class Holder:
    """Holds partitions; their rows are their numbers, two pages each."""

    def __init__(self, *partitions: int) -> None:
        self.partitions = set(partitions)

    def __call__(self, read: TableRead) -> TablePage:
        held = tuple(p for p in read.partitions if p in self.partitions)
        if read.keys is not None:
            return TablePage(held, [[p] for p in held])
        if not held:
            return TablePage()
        return TablePage(held, [[held[0], read.after is None]], b"x" if read.after is None else None)


def test_each_partition_is_read_once_also_when_it_moves_meanwhile() -> None:
    one, two = Holder(0, 1), Holder(1, 2)
    assert sorted(table_rows(shape(), (b"k",), (0, 1, 2), lambda: [one, two])) == [[0], [1], [2]]
    rows = table_rows(shape(), None, (0, 1, 2), lambda: [one, two])
    first = next(rows)
    one.partitions, two.partitions = set(), {0, 1, 2}
    assert [first, *rows] == [[0, True], [0, False], [1, True], [1, False], [2, True], [2, False]]


def test_a_partition_that_nobody_holds_is_waited_for_and_then_named() -> None:
    now, holders = [0.0], [Holder(0)]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if now[0] > 3:
            holders[:] = [Holder(0, 1)]

    def rows(wait_s: float, cause: str = "") -> list[list[object]]:
        now[0], holders[:] = 0.0, [Holder(0)]
        got = table_rows(
            shape(), None, (0, 1), lambda: holders, wait_s=wait_s, sleep=sleep, monotonic_s=lambda: now[0], cause=lambda: cause
        )
        return list(got)

    assert [row[0] for row in rows(10)] == [0, 0, 1, 1]
    with pytest.raises(StateUnavailable, match=r"partition\(s\) 1 of the state of query CTAS_T_0 are held by none of the 1"):
        rows(2)
    with pytest.raises(StateUnavailable, match="it has failed: no disk"):
        rows(10, "it has failed: no disk")
