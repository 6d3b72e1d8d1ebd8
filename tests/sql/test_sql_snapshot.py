"""EMIT SNAPSHOT, CHANGES: a table's rows as they are, each once, then each change once, whatever is written meanwhile."""

from __future__ import annotations

import queue
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logflume.log import InvalidInput, Log, LogflumeError, TransportError
from logflume.sql import SqlEngine, StatementError, push
from logflume.sql.errors import QueryFailed
from logflume.sql.first_read import FirstRead
from logflume.sql.results import PushQuery, PushRow, watch_function
from logflume.sql.snapshot import Snapshot, SnapshotMemory

TABLE = "CREATE TABLE t (k INT PRIMARY KEY, v INT) WITH (KAFKA_TOPIC='t', PARTITIONS=3, VALUE_FORMAT='JSON');"
STREAM = "CREATE STREAM s (k INT KEY, v INT) WITH (KAFKA_TOPIC='s', PARTITIONS=2, VALUE_FORMAT='JSON');"
KEYS = 5


@pytest.fixture
def engine(log: Log, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlEngine]:
    with SqlEngine(log, tmp_path_factory.mktemp("sql")) as opened:
        yield opened


def run(engine: SqlEngine, text: str) -> Any:
    return list(engine.execute(text))[-1]


def followed(engine: SqlEngine, text: str) -> PushQuery:
    found = run(engine, text)
    assert isinstance(found, PushQuery)
    return found


def take(query: PushQuery, count: int) -> list[tuple[Any, ...] | None]:
    """Take so many rows; None for a removal."""
    found: list[PushRow] = []
    while len(found) < count:
        row = query.poll()
        found += [] if row is None else [row]
    return [None if row.is_tombstone else row.values for row in found]


@pytest.mark.parametrize("where", ["", "WHERE v >= 0"])
def test_rows_as_they_are_come_first_and_then_what_changes(engine: SqlEngine, log: Log, where: str) -> None:
    run(engine, TABLE.replace("PARTITIONS=3", "PARTITIONS=1") + "INSERT INTO t VALUES (1, 1), (2, 1), (1, 2), (3, 1);")
    with log.producer() as producer:
        for gone in (3, 9):  # a row, and none
            producer.send("t", key=gone.to_bytes(4, "big"), value=None)
    query = followed(engine, f"SET 'auto.offset.reset' = 'latest'; SELECT * FROM t {where} EMIT SNAPSHOT, CHANGES;")
    assert take(query, 2) == [(2, 1), (1, 2)]
    run(engine, "INSERT INTO t VALUES (2, 4), (2, 5);")
    assert take(query, 2) == [(2, 4), (2, 5)]
    query.close()


def test_windows_and_groups_are_given_once_too(engine: SqlEngine) -> None:
    run(engine, STREAM + "INSERT INTO s (ROWTIME, k, v) VALUES (0, 1, 2), (1, 2, 3), (2, 1, 4), (1000, 1, 5);")
    run(engine, "CREATE TABLE n AS SELECT k, SUM(v) AS total FROM s WINDOW TUMBLING (SIZE 1 SECOND) GROUP BY k;")
    for text in (
        "SELECT k, WINDOWSTART AS w, total FROM n EMIT SNAPSHOT, CHANGES LIMIT 3;",
        "SELECT k, WINDOWSTART AS w, SUM(v) AS total FROM s WINDOW TUMBLING (SIZE 1 SECOND) GROUP BY k "
        "EMIT SNAPSHOT, CHANGES LIMIT 3;",
    ):
        query = followed(engine, text)
        assert sorted(row.values for row in query) == [(1, 0, 6), (1, 1000, 5), (2, 0, 3)]


def test_a_join_of_tables_is_given_as_it_is(engine: SqlEngine) -> None:
    run(engine, TABLE + TABLE.replace("TABLE t", "TABLE u").replace("'t'", "'u'"))
    run(engine, "INSERT INTO t VALUES (1, 1), (1, 2), (2, 3); INSERT INTO u VALUES (1, 10), (1, 20), (3, 30);")
    query = followed(engine, "SELECT t.k, t.v, u.v FROM t JOIN u ON t.k = u.k EMIT SNAPSHOT, CHANGES;")
    assert take(query, 1) == [(1, 2, 20)]
    query.close()


def test_nothing_is_left_out_or_given_twice_while_somebody_writes(engine: SqlEngine) -> None:
    run(engine, TABLE)
    counts, is_over = dict.fromkeys(range(KEYS), 0), threading.Event()

    def write() -> None:
        while not is_over.is_set():
            for key in counts:
                counts[key] += 1
                run(engine, f"INSERT INTO t VALUES ({key}, {counts[key]});")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(3):
            query = followed(engine, "SELECT * FROM t EMIT SNAPSHOT, CHANGES;")
            last: dict[int, int] = {}
            for values in take(query, 40):
                assert values is not None
                key, value = values
                assert value == last.get(key, value - 1) + 1, (key, value, last)
                last[key] = value
            query.close()
    finally:
        is_over.set()
        writer.join()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELECT * FROM s EMIT SNAPSHOT, CHANGES;", "gives a STREAM: EMIT CHANGES"),
        ("CREATE TABLE c AS SELECT k, COUNT(*) AS n FROM s GROUP BY k EMIT SNAPSHOT, CHANGES;", "for who looks at a table"),
    ],
)
def test_where_there_is_no_snapshot_it_is_refused_at_its_place(engine: SqlEngine, text: str, message: str) -> None:
    run(engine, STREAM)
    with pytest.raises(StatementError, match=message) as refused:
        run(engine, text)
    assert refused.value.pointer().splitlines()[0][refused.value.column - 1 :].startswith("EMIT SNAPSHOT")


def snapshot_of(memory: SnapshotMemory, *, rows_max: int = 3) -> tuple[Snapshot, queue.Queue[PushRow]]:
    rows: queue.Queue[PushRow] = queue.Queue(2)
    return Snapshot(rows, watch_function(rows, lambda: False), memory, rows_max=rows_max), rows


def test_a_snapshot_that_is_too_large_says_so_and_keeps_no_more() -> None:
    snapshot, rows = snapshot_of(SnapshotMemory())
    for key in range(10):
        snapshot.watch(key, [key], 0)
    for key in range(10):  # what was not kept is not made good by rows that go
        snapshot.watch(key, None, 0)
    assert "at most 3 rows" in str(snapshot.failed(lambda: True))
    assert rows.empty()


def test_a_row_too_many_that_comes_while_it_is_asked_is_noticed() -> None:
    snapshot, rows = snapshot_of(SnapshotMemory())

    def is_read() -> bool:
        for key in range(4):
            snapshot.watch(key, [key], 0)
        return True

    assert "at most 3 rows" in str(snapshot.failed(is_read))
    assert rows.empty()


def test_snapshots_share_a_bound_in_bytes_and_give_back_what_they_took() -> None:
    memory = SnapshotMemory(bytes_max=10_000)
    first, rows = snapshot_of(memory)
    for _ in range(9):  # the same row
        first.watch(1, ["x" * 5_000, {"a": [1, 2]}], 0)
    second, _ = snapshot_of(memory)
    second.watch(1, ["x" * 5_000], 0)
    assert "at most 10,000 bytes together" in str(second.failed(lambda: True))
    assert first.failed(lambda: True) is None
    assert len(rows.queue) == 1
    third, _ = snapshot_of(memory)
    third.watch(1, ["x" * 5_000], 0)
    assert third.failed(lambda: True) is not None, "the rows of the first wait to be taken"
    assert first.failed(lambda: True) is None
    for _ in range(3):  # each is closed before the next
        last, _ = snapshot_of(memory)
        last.watch(1, ["x" * 8_000], 0)
        assert last.failed(lambda: False) is None
        last.end()


@pytest.mark.parametrize(("fault", "is_told"), [(TransportError("gone for a moment"), False), (InvalidInput("no"), True)])
def test_a_log_that_does_not_answer_for_a_moment_ends_no_snapshot(
    engine: SqlEngine, monkeypatch: pytest.MonkeyPatch, fault: LogflumeError, is_told: bool
) -> None:
    run(engine, TABLE + "INSERT INTO t VALUES (1, 1);")
    faults, left = [fault], FirstRead.left

    def sometimes(first: FirstRead) -> int:
        if faults:
            raise faults.pop()
        return left(first)

    monkeypatch.setattr(FirstRead, "left", sometimes)
    query = followed(engine, "SELECT k, SUM(v) AS total FROM t GROUP BY k EMIT SNAPSHOT, CHANGES;")
    if is_told:
        with pytest.raises(QueryFailed, match="stopped: no"):
            take(query, 1)
    else:
        assert take(query, 1) == [(1, 1)]
    query.close()


def test_only_a_snapshot_asks_how_far_its_topics_go(engine: SqlEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fails(*args: object) -> None:
        raise InvalidInput("no ends")

    run(engine, TABLE + "INSERT INTO t VALUES (1, 1);")
    monkeypatch.setattr(push, "FirstRead", fails)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    query = followed(engine, "SELECT k, SUM(v) AS total FROM t GROUP BY k EMIT CHANGES;")
    assert take(query, 1) == [(1, 1)]
    query.close()
    with pytest.raises(InvalidInput, match="no ends"):
        run(engine, "SELECT k, SUM(v) AS total FROM t GROUP BY k EMIT SNAPSHOT, CHANGES;")
    assert not list(tmp_path.glob("logflume-push-*")), "nothing is left of either"


def test_the_words_may_be_names(engine: SqlEngine) -> None:
    run(engine, "CREATE STREAM snapshot (snapshot INT KEY, v INT) WITH (KAFKA_TOPIC='w', PARTITIONS=1, VALUE_FORMAT='JSON');")
    assert run(engine, "SELECT snapshot FROM snapshot;").rows == ()
