"""The targets of the sinks without a log: what a task that is started again finds, and that two tasks never both write."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite

from logflume.connect import (
    RowSchema,
    SinkBatch,
    SinkContext,
    SinkTask,
    TargetConflict,
    TargetRefused,
    load_connector,
    parse_columns,
)
from logflume.connect.connectors.sql_statements import TableWriter, upsert_of
from logflume.connect.connectors.sql_tables import make_table
from logflume.log import TopicPartition

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
SQL = {"name": "s", "connector": "sql-sink", "topics": "t"}
PARQUET = {"name": "p", "connector": "parquet-sink", "topics": "t", "value.columns": "v DOUBLE"}
Rows = Sequence[tuple[Any, Any]]


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def start(keys: dict[str, Any], *, task: int = 0, clock: Clock | None = None) -> SinkTask:
    connector = load_connector(keys)
    schema = RowSchema(key=connector.config.columns("key.columns"), value=connector.config.columns("value.columns"))
    context = SinkContext(connector=connector.name, task=task, schema=schema, clock_s=clock or Clock())
    return connector.plugin.start(connector.config, context)  # type: ignore[union-attr]


def batch(
    keys: dict[str, Any], rows: Rows, *, first: int, partition: TopicPartition = P0, next_offset: int | None = None
) -> SinkBatch:
    schema = RowSchema(key=parse_columns(keys.get("key.columns", "")), value=parse_columns(keys["value.columns"]))
    return SinkBatch(
        partition=partition,
        schema=schema,
        offsets=np.arange(first, first + len(rows), dtype=np.int64),
        timestamps_ms=np.zeros(len(rows), np.int64),
        keys=[key for key, _ in rows],
        values=[value for _, value in rows],
        next_offset=first + len(rows) if next_offset is None else next_offset,
    )


def query(path: Path, text: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(path) as connection:
        return connection.execute(text).fetchall()


def upserts(tmp_path: Path, **more: str) -> dict[str, Any]:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    columns = {"key.columns": "id INT", "value.columns": "name STRING, at TIMESTAMP, tags ARRAY<STRING>"}
    return {**SQL, "connection.url": url, "insert.mode": "upsert", **columns, **more}


def test_upsert_delete_and_going_on(tmp_path: Path) -> None:
    keys = upserts(tmp_path)
    task = start(keys)
    assert task.open([P0, P1]) == {}
    task.put(batch(keys, [((1,), ("a", 1000, ["x"])), ((2,), ("b", None, None)), ((1,), ("c", 2000, []))], first=0))
    task.put(batch(keys, [((3,), ("d", None, None)), ((2,), None)], first=3, next_offset=7))
    task.put(batch(keys, [], first=0, partition=P1, next_offset=4))
    assert query(tmp_path / "a.db", "select count(*) from t") == [(0,)]
    assert task.flush(is_final=False) == {P0: 7, P1: 4}
    expected = [(1, "c", "1970-01-01 00:00:02.000000", "[]"), (3, "d", None, None)]
    assert query(tmp_path / "a.db", "select * from t order by id") == expected
    task.close()

    again = start(keys)
    assert again.open([P0, P1]) == {P0: 7, P1: 4}
    again.put(batch(keys, [((1,), None), ((3,), ("e", None, None))], first=7))
    again.flush(is_final=True)
    again.close()
    assert query(tmp_path / "a.db", "select id, name from t") == [(3, "e")]
    assert query(tmp_path / "a.db", 'select "partition", next_offset from logflume_offsets order by 1') == [(0, 9), (1, 4)]


def test_rows_that_were_not_flushed_are_not_there(tmp_path: Path) -> None:
    keys = upserts(tmp_path)
    task = start(keys)
    task.open([P0])
    task.put(batch(keys, [((1,), ("a", None, None))], first=0))
    task.close()
    again = start(keys)
    assert again.open([P0]) == {}
    again.close()
    assert query(tmp_path / "a.db", "select * from t") == []


@pytest.mark.parametrize("is_first_write", [True, False])
def test_of_two_tasks_with_one_partition_one_is_rolled_back(tmp_path: Path, is_first_write: bool) -> None:
    keys = upserts(tmp_path)
    one, other = start(keys), start(keys)
    if not is_first_write:
        one.open([P0])
        one.put(batch(keys, [((0,), ("z", None, None))], first=0))
        one.flush(is_final=True)
    first = 0 if is_first_write else 1
    one.open([P0])
    other.open([P0])
    one.put(batch(keys, [((1,), ("one", None, None))], first=first))
    other.put(batch(keys, [((1,), ("other", None, None))], first=first))
    one.flush(is_final=True)
    with pytest.raises(TargetConflict):
        other.flush(is_final=True)
    assert query(tmp_path / "a.db", "select name from t where id = 1") == [("one",)]
    one.close()
    other.close()


def test_insert_keeps_every_record_and_nulls(tmp_path: Path) -> None:
    keys = {
        **SQL,
        "connection.url": f"sqlite:///{tmp_path / 'a.db'}",
        "value.columns": "a INT, b BOOLEAN",
        "table.name.format": "x_${topic}",
    }
    task = start(keys)
    task.open([P0])
    task.put(batch(keys, [(None, (1, True)), (None, (1, True)), (None, None)], first=0))
    task.flush(is_final=True)
    task.close()
    assert query(tmp_path / "a.db", "select * from x_t") == [(1, 1), (1, 1), (None, None)]


def test_what_the_database_cannot_hold_is_refused_by_record(tmp_path: Path) -> None:
    keys = {
        **SQL,
        "connection.url": f"sqlite:///{tmp_path / 'a.db'}",
        "value.columns": "v DOUBLE",
        "key.columns": "k STRING",
        "insert.mode": "upsert",
    }
    task = start(keys)
    task.open([P0])
    refused = task.put(batch(keys, [(("a",), (1.0,)), (("b",), (float("nan"),)), (None, (2.0,))], first=5))
    assert [(each.offset, each.reason) for each in refused] == [
        (6, "column v is NaN, which sqlite cannot hold"),
        (7, "primary key column k is null"),
    ]
    assert task.flush(is_final=True) == {P0: 8}
    task.close()
    assert query(tmp_path / "a.db", "select * from t") == [("a", 1.0)]


@pytest.mark.parametrize(
    ("table", "more", "message"),
    [
        ("create table t (id int primary key, nam text, at text, tags text)", {}, "no column name .* did you mean nam"),
        ("create table t (id int, name text, at text, tags text)", {}, "no primary key or unique constraint on id"),
        ("create table u (id int)", {"auto.create": "false"}, "table 't' does not exist"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_before_anything_is_written(
    tmp_path: Path, table: str, more: dict[str, str], message: str
) -> None:
    query(tmp_path / "a.db", table)
    task = start(upserts(tmp_path, **more))
    with pytest.raises(TargetRefused, match=message):
        task.open([P0])
    task.close()


def test_a_constraint_of_the_table_stops_the_task_and_writes_nothing(tmp_path: Path) -> None:
    query(tmp_path / "a.db", "create table t (a int check (a < 10))")
    keys = {**SQL, "connection.url": f"sqlite:///{tmp_path / 'a.db'}", "value.columns": "a INT"}
    task = start(keys)
    task.open([P0])
    task.put(batch(keys, [(None, (1,)), (None, (11,))], first=0))
    with pytest.raises(TargetRefused, match="CHECK constraint failed"):
        task.flush(is_final=True)
    task.close()
    assert query(tmp_path / "a.db", "select * from t") == []


@pytest.mark.parametrize(
    ("dialect", "expected"),
    [
        (postgresql.dialect(), "ON CONFLICT (id) DO UPDATE SET name = excluded.name"),
        (mysql.dialect(), "ON DUPLICATE KEY UPDATE id = VALUES(id), name = VALUES(name)"),
        (sqlite.dialect(), "ON CONFLICT (id) DO UPDATE SET name = excluded.name"),
    ],
)
def test_upserts_speak_the_dialect(dialect: sa.Dialect, expected: str) -> None:
    table = make_table("t", parse_columns("id STRING, name STRING"), ("id",))
    statement = upsert_of(dialect.name, table, ["id"])
    assert statement is not None
    assert expected in str(statement.compile(dialect=dialect))
    assert "CREATE TABLE t" in str(sa.schema.CreateTable(table).compile(dialect=dialect))


def test_a_database_without_upsert_deletes_and_inserts() -> None:
    columns = parse_columns("id INT, name STRING")
    table = make_table("t", columns, ("id",))
    engine = sa.create_engine("sqlite://")
    writer = TableWriter(table, "oracle", is_upsert=True)
    with engine.begin() as connection:
        table.create(connection)
        writer.write(connection, [], {(1,): (1, "a"), (2,): (2, "b")}, columns, [0])
        writer.write(connection, [], {(1,): (1, "c"), (2,): None, (3,): (3, "d")}, columns, [0])
        assert connection.execute(sa.select(table).order_by("id")).all() == [(1, "c"), (3, "d")]


def files(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "t").iterdir())


def name(first: int, partition: int = 0) -> str:
    return f"t-{partition}-{first:020d}.parquet"


def test_parquet_rotates_by_records_and_by_time(tmp_path: Path) -> None:
    clock = Clock()
    keys = {**PARQUET, "path": str(tmp_path), "rotate.records": 3, "rotate.seconds": 10}
    task = start(keys, clock=clock)
    assert task.open([P0, P1]) == {}
    task.put(batch(keys, [(None, (1.0,)), (None, (2.0,))], first=5))
    assert task.flush(is_final=False) == {}
    task.put(batch(keys, [(None, (3.0,)), (None, None)], first=7, next_offset=12))
    task.put(batch(keys, [(None, (4.0,))], first=0, partition=P1))
    assert files(tmp_path)[0].startswith(".t-1-")
    assert files(tmp_path)[1:] == [name(5)]
    assert task.flush(is_final=False) == {P0: 12}
    clock.now_s = 10.0
    assert task.flush(is_final=False) == {P0: 12, P1: 1}
    assert files(tmp_path) == [name(5), name(0, 1)]
    assert ds.dataset(tmp_path, format="parquet").to_table().column("v").to_pylist() == [1.0, 2.0, 3.0, None, 4.0]
    task.close()


def test_parquet_goes_on_behind_the_last_file_and_drops_what_was_unfinished(tmp_path: Path) -> None:
    keys = {**PARQUET, "path": str(tmp_path)}
    task = start(keys)
    task.open([P0])
    task.put(batch(keys, [(None, (1.0,))], first=0, next_offset=3))
    task.flush(is_final=True)
    task.put(batch(keys, [(None, (2.0,))], first=3))
    leftover = [file for file in files(tmp_path) if file.endswith(".tmp")]
    assert len(leftover) == 1
    again = start(keys)
    assert again.open([P0]) == {P0: 3}
    assert files(tmp_path) == [name(0)]
    again.put(batch(keys, [(None, (2.0,)), (None, (3.0,))], first=3))
    assert again.flush(is_final=True) == {P0: 5}
    assert pq.read_table(tmp_path / "t" / name(3)).column("v").to_pylist() == [2.0, 3.0]
    task.close()
    assert files(tmp_path) == [name(0), name(3)]


def test_of_two_parquet_tasks_with_one_partition_one_is_refused(tmp_path: Path) -> None:
    keys = {**PARQUET, "path": str(tmp_path)}
    one, other = start(keys, task=0), start(keys, task=1)
    one.open([P0])
    other.open([P0])
    one.put(batch(keys, [(None, (1.0,)), (None, (2.0,))], first=0))
    other.put(batch(keys, [(None, (1.0,))], first=0))
    assert one.flush(is_final=True) == {P0: 2}
    with pytest.raises(TargetConflict):
        other.flush(is_final=True)
    assert files(tmp_path) == [name(0)]
    assert pq.read_table(tmp_path / "t" / name(0)).num_rows == 2


def test_parquet_types(tmp_path: Path) -> None:
    keys = {
        **PARQUET,
        "path": str(tmp_path),
        "key.columns": "k STRING",
        "value.columns": "d DATE, t TIME, at TIMESTAMP, m MAP<STRING, INT>, a ARRAY<STRUCT<x DOUBLE>>, b BYTES",
        "tombstones": "skip",
        "compression": "none",
    }
    task = start(keys)
    task.open([P0])
    task.put(batch(keys, [(("a",), (1, 1000, 5, {"x": 1}, [{"x": 0.5}, None], b"\x00")), (("a",), None)], first=0))
    assert task.flush(is_final=True) == {P0: 2}
    (row,) = pq.read_table(tmp_path / "t" / name(0)).to_pylist()
    assert (str(row["d"]), str(row["t"]), row["at"].timestamp()) == ("1970-01-02", "00:00:01", 0.005)
    assert (row["k"], row["m"], row["a"], row["b"]) == ("a", [("x", 1)], [{"x": 0.5}, None], b"\x00")


def test_a_foreign_file_in_the_directory_is_not_taken_for_ours(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / name(0)).write_bytes(b"nothing")
    with pytest.raises(TargetRefused, match="is not a file of this sink"):
        start({**PARQUET, "path": str(tmp_path)}).open([P0])
