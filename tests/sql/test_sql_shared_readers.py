"""Push queries that keep nothing share one reader of their topic: each gets all of its rows, and none holds up another."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logflume.log import connect
from logflume.sql import SqlEngine
from logflume.sql.errors import QueryFailed
from logflume.sql.results import PushQuery
from logflume.sql.shared_readers import ROWS_MAX
from tests.log._client_tools import wait_until

STREAM = "CREATE STREAM s (k STRING KEY, v INT) WITH (KAFKA_TOPIC='s', PARTITIONS=2, VALUE_FORMAT='JSON');"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SqlEngine]:
    with connect(tmp_path / "log") as log, SqlEngine(log, tmp_path / "sql") as opened:
        list(opened.execute(STREAM))
        yield opened


def push(engine: SqlEngine, text: str = "SELECT v FROM s EMIT CHANGES;", reset: str = "earliest") -> PushQuery:
    (query,) = engine.execute_one(text, {"auto.offset.reset": reset})
    assert isinstance(query, PushQuery)
    return query


def write(engine: SqlEngine, values: range) -> None:
    with engine.log.producer() as producer:
        for v in values:
            producer.send("s", b'{"V": %d}' % v, key=b"k%d" % v)


def taken(query: PushQuery, count: int) -> list[Any]:
    """Return that many rows; the query goes on."""
    rows: list[Any] = []
    while len(rows) < count:
        row = query.poll(timeout_s=30)
        assert row is not None, f"{len(rows)} of {count} rows"
        rows.append(row.values[0])
    return sorted(rows)


def readers() -> int:
    return sum(thread.name == "sql-reader-s" for thread in threading.enumerate())


def test_queries_from_anywhere_share_one_reader_and_miss_nothing(engine: SqlEngine) -> None:
    queries: list[tuple[PushQuery, range]] = []
    for written in range(0, 500, 100):
        queries += [(push(engine), range(500)), (push(engine, reset="latest"), range(written, 500))]
        write(engine, range(written, written + 100))
    for query, expected in queries:
        assert taken(query, len(expected)) == list(expected)
        assert query.poll(timeout_s=0) is None
    wait_until(lambda: readers() == 1)
    write(engine, range(1000, 1001))
    assert [taken(query, 1) for query, _ in queries] == [[1000]] * len(queries)


def test_what_ends_leaves_no_reader_and_no_group(engine: SqlEngine) -> None:
    write(engine, range(10))
    groups = engine.log.admin().list_groups()
    queries = [push(engine) for _ in range(3)]
    for query in queries:
        assert taken(query, 10) == list(range(10))
        query.close()
    wait_until(lambda: readers() == 0)
    assert engine.log.admin().list_groups() == groups


def test_who_takes_no_rows_holds_up_nobody(engine: SqlEngine) -> None:
    idle, busy = push(engine), push(engine)
    write(engine, range(3 * ROWS_MAX))
    assert taken(busy, 3 * ROWS_MAX) == list(range(3 * ROWS_MAX))
    assert taken(idle, 3 * ROWS_MAX) == list(range(3 * ROWS_MAX))


def test_partitions_that_come_later_are_read_whole(engine: SqlEngine) -> None:
    query = push(engine, reset="latest")
    engine.log.admin().create_partitions("s", 5)
    write(engine, range(50))
    assert taken(query, 50) == list(range(50))


def test_a_topic_that_is_gone_ends_its_queries_and_says_so(engine: SqlEngine) -> None:
    queries = [push(engine), push(engine)]
    engine.log.admin().delete_topic("s")
    for query in queries:
        with pytest.raises(QueryFailed, match="'s' was deleted"):
            list(query)
