"""What a reader sees of queries: windows with bounds, rows from now on, each change or the last, tables in the order of keys."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from logflume.log import connect
from logflume.sql import SqlEngine
from logflume.sql.batch import Runner
from logflume.sql.render import row_csv
from logflume.sql.results import PushQuery, Rows

STREAM = "CREATE STREAM s (k STRING KEY, v INT) WITH (KAFKA_TOPIC='s', PARTITIONS={n}, VALUE_FORMAT='JSON');"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SqlEngine]:
    with connect(tmp_path / "log") as log, SqlEngine(log, tmp_path / "sql") as opened:
        yield opened


def run(engine: SqlEngine, text: str) -> Any:
    return list(engine.execute(text))[-1]


def watched(engine: SqlEngine, text: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    query = run(engine, text)
    assert isinstance(query, PushQuery)
    return [c.name for c in query.columns], [row.values for row in query]


def test_all_columns_of_a_windowed_table_are_shown_with_the_bounds(engine: SqlEngine) -> None:
    run(engine, STREAM.format(n=1))
    run(engine, "CREATE TABLE t AS SELECT k, COUNT(*) AS n FROM s WINDOW TUMBLING (SIZE 1 SECOND) GROUP BY k;")
    run(engine, "INSERT INTO s (ROWTIME, k, v) VALUES (12345, 'a', 1);")
    names, rows = watched(engine, "SELECT * FROM t EMIT CHANGES LIMIT 1;")
    assert names == ["K", "WINDOWSTART", "WINDOWEND", "N"]
    assert rows == [("a", 12_000, 13_000, 1)]


@pytest.mark.parametrize("repeat", range(3))
def test_a_query_from_the_end_on_sees_all_that_is_written_once_it_runs(engine: SqlEngine, repeat: int) -> None:
    run(engine, STREAM.format(n=4))
    run(engine, "INSERT INTO s VALUES ('before', 0);")
    query = run(engine, "SET 'auto.offset.reset' = 'latest'; SELECT * FROM s EMIT CHANGES LIMIT 4;")
    run(engine, "INSERT INTO s VALUES ('a', 1), ('b', 2), ('c', 3), ('d', 4);")
    assert sorted(row.values for row in query) == [("a", 1), ("b", 2), ("c", 3), ("d", 4)]


def test_without_a_cache_a_table_puts_out_each_change(engine: SqlEngine) -> None:
    run(engine, STREAM.format(n=1) + "INSERT INTO s VALUES ('a', 1), ('a', 2), ('a', 3);")
    run(engine, "SET 'ksql.streams.cache.max.bytes.buffering' = '0'; CREATE TABLE t AS SELECT k, SUM(v) AS n FROM s GROUP BY k;")
    _, rows = watched(engine, "SELECT n FROM t EMIT CHANGES LIMIT 3;")
    assert rows == [(1,), (3,), (6,)]


def test_rows_of_a_table_that_is_read_from_its_topic_come_in_the_order_of_their_keys(engine: SqlEngine) -> None:
    run(engine, "CREATE TABLE t (k STRING PRIMARY KEY, v INT) WITH (KAFKA_TOPIC='t', PARTITIONS=1, VALUE_FORMAT='JSON');")
    run(engine, "INSERT INTO t VALUES ('m', 1), ('z', 2), ('a', 3), ('m', 4);")
    result = run(engine, "SELECT * FROM t LIMIT 2;")
    assert isinstance(result, Rows)
    assert result.rows == (("a", 3), ("m", 4))


def test_all_columns_of_a_join_of_windowed_streams_have_the_bounds_of_each(engine: SqlEngine) -> None:
    for name in ("l", "r"):
        run(
            engine,
            f"CREATE STREAM {name} (k INT KEY, v INT) WITH (KAFKA_TOPIC='{name}', PARTITIONS=1, VALUE_FORMAT='JSON', "
            "WINDOW_TYPE='TUMBLING', WINDOW_SIZE='2 SECONDS');",
        )
    run(engine, "CREATE STREAM j AS SELECT * FROM l JOIN r WITHIN 1 MINUTE ON l.k = r.k;")
    names = [c.name for c in engine.catalog.sources["J"].columns()]
    assert names == ["L_K", "L_WINDOWSTART", "L_WINDOWEND", "L_V", "R_K", "R_WINDOWSTART", "R_WINDOWEND", "R_V"]


def test_a_record_without_a_value_is_no_row_of_a_stream_and_a_removal_in_a_table(engine: SqlEngine) -> None:
    run(engine, STREAM.format(n=1))
    run(engine, "CREATE TABLE t (k STRING PRIMARY KEY, v INT) WITH (KAFKA_TOPIC='s', VALUE_FORMAT='JSON');")
    producer = engine.log.producer()
    for value in (b'{"V": 1}', None, b'{"V": 2}'):
        producer.send("s", value, key=b"a")
    producer.close()
    assert watched(engine, "SELECT v FROM s EMIT CHANGES LIMIT 2;")[1] == [(1,), (2,)]
    query = run(engine, "SELECT v FROM t EMIT CHANGES LIMIT 3;")
    assert [(row.values, row.is_tombstone) for row in query] == [((1,), False), ((None,), True), ((2,), False)]
    query = run(engine, "SELECT v, k, UCASE(k) AS u FROM t EMIT CHANGES LIMIT 2;")
    assert [(row.values, row.is_tombstone) for row in query] == [((1, "a", "A"), False), ((None, "a", None), True)]


def test_a_row_that_went_is_told_by_its_key(engine: SqlEngine) -> None:
    run(engine, "CREATE STREAM s (k STRING KEY, j INT KEY, v INT) WITH (KAFKA_TOPIC='s', PARTITIONS=1, FORMAT='JSON');")
    for v in (1, 5):
        run(engine, f"INSERT INTO s (ROWTIME, k, j, v) VALUES (0, 'a', 7, {v});")
    run(engine, "SET 'ksql.streams.cache.max.bytes.buffering' = '0';")
    for window in ("", "WINDOW TUMBLING (SIZE 1 SECOND) "):
        text = f"SELECT SUM(v) AS total, j, k FROM s {window}GROUP BY k, j HAVING SUM(v) < 5 EMIT CHANGES LIMIT 2;"
        query = run(engine, text)
        assert [(row.values, row.is_tombstone) for row in query] == [((1, 7, "a"), False), ((None, 7, "a"), True)]


@pytest.mark.parametrize(
    ("type", "key", "told"), [("STRING", "'ann'", "ann"), ("INT", "17", 17), ("STRUCT<a INT>", "STRUCT(a:=1)", {"A": 1})]
)
def test_a_row_that_went_is_told_by_a_key_of_one_column(engine: SqlEngine, type: str, key: str, told: Any) -> None:
    run(engine, f"CREATE TABLE t (k {type} PRIMARY KEY, v INT) WITH (KAFKA_TOPIC='t', PARTITIONS=1, FORMAT='JSON');")
    for v in (1, 9):
        run(engine, f"INSERT INTO t (k, v) VALUES ({key}, {v});")
    query = run(engine, "SELECT v, k FROM t WHERE v < 5 EMIT CHANGES LIMIT 2;")
    assert [(row.values, row.is_tombstone) for row in query] == [((1, told), False), ((None, told), True)]


def test_a_row_of_a_window_that_went_is_told_with_its_bounds(engine: SqlEngine) -> None:
    run(engine, STREAM.format(n=1) + "SET 'ksql.streams.cache.max.bytes.buffering' = '0';")
    run(engine, "CREATE TABLE t AS SELECT k, SUM(v) AS n FROM s WINDOW TUMBLING (SIZE 1 SECOND) GROUP BY k;")
    for v in (1, 5):
        run(engine, f"INSERT INTO s (ROWTIME, k, v) VALUES (12345, 'ann', {v});")
    query = run(engine, "SELECT * FROM t WHERE n < 5 EMIT CHANGES LIMIT 2;")
    told = [(("ann", 12_000, 13_000, 1), False), (("ann", 12_000, 13_000, None), True)]
    assert [(row.values, row.is_tombstone) for row in query] == told


@pytest.mark.parametrize(("kind", "right"), [("", "ann"), ("LEFT", None)])
def test_a_row_of_joined_tables_that_went_is_told_by_the_key_they_share(engine: SqlEngine, kind: str, right: str | None) -> None:
    for name in ("t", "u"):
        run(
            engine, f"CREATE TABLE {name} (k STRING PRIMARY KEY, v INT) WITH (KAFKA_TOPIC='{name}', PARTITIONS=1, FORMAT='JSON');"
        )
        run(engine, f"INSERT INTO {name} VALUES ('ann', 1);")
    follow = run(engine, f"SELECT t.k, u.k, u.v FROM t {kind} JOIN u ON t.k = u.k WHERE t.v < 5 EMIT CHANGES;")
    with follow as query:
        rows = iter(query)
        row = next(rows)
        while row.values != ("ann", "ann", 1):  # LEFT: perhaps first without the right
            row = next(rows)
        run(engine, "INSERT INTO t VALUES ('ann', 9);")
        row = next(rows)
        assert (row.values, row.is_tombstone) == (("ann", right, None), True)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"is_json": True}, ['{"V":1,"K":"a"}', '{"tombstone":{"V":null,"K":"a"}}']),
        ({"row_text": row_csv}, ["V,K", "1,a", "(removed)"]),
    ],
)
def test_a_row_that_went_is_marked_where_it_is_written(engine: SqlEngine, options: Any, told: list[str]) -> None:
    run(engine, "CREATE TABLE t (k STRING PRIMARY KEY, v INT) WITH (KAFKA_TOPIC='t', PARTITIONS=1, FORMAT='JSON');")
    run(engine, "INSERT INTO t VALUES ('a', 1);")
    run(engine, "INSERT INTO t VALUES ('a', 9);")
    out = StringIO()
    runner = Runner(engine, Console(file=out, width=200), **options)
    runner.run_text("SELECT v, k FROM t WHERE v < 5 EMIT CHANGES LIMIT 2;")
    assert out.getvalue().splitlines() == told
