"""EMIT SNAPSHOT, CHANGES: a table's rows as they are, each once, then each change once, whatever is written meanwhile."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from logflume.log import Log
from logflume.sql import SqlEngine, StatementError
from logflume.sql.results import PushQuery, PushRow, watch_function
from logflume.sql.snapshot import Snapshot

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


def test_a_snapshot_that_is_too_large_says_so_and_keeps_no_more() -> None:
    rows: queue.Queue[PushRow] = queue.Queue(2)
    snapshot = Snapshot(rows, watch_function(rows, lambda: False), rows_max=3)
    for key in range(10):
        snapshot.watch(key, [key], 0)
    assert "at most 3 rows" in str(snapshot.failed(lambda: True))
    assert rows.empty()


def test_the_words_may_be_names(engine: SqlEngine) -> None:
    run(engine, "CREATE STREAM snapshot (snapshot INT KEY, v INT) WITH (KAFKA_TOPIC='w', PARTITIONS=1, VALUE_FORMAT='JSON');")
    assert run(engine, "SELECT snapshot FROM snapshot;").rows == ()
