"""The CREATE STREAM that is told to who selects from a topic can be run, and read; else there is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from logflume.log import connect
from logflume.sql import SqlEngine, StatementError


def told(folder: Path, *records: dict[str, Any]) -> tuple[str, list[tuple[Any, ...]]]:
    """Return the columns that are told, and the rows that a stream of them has; '' and none without."""
    with connect(folder / "log") as log, SqlEngine(log, folder / "sql") as engine:
        log.admin().ensure_topic("raw", partitions=1)
        with log.producer() as producer:
            for record in records:
                producer.send("raw", json.dumps(record).encode())
        with pytest.raises(StatementError) as refused:
            list(engine.execute("SELECT * FROM raw;"))
        made = str(refused.value).partition(" records: ")[2]
        if not made:
            return "", []
        *_, rows = engine.execute(f"{made} SELECT * FROM raw;")
        return made[made.index("(") + 1 : made.index(") WITH")], list(rows.rows)


@pytest.mark.parametrize(("what", "key"), [("STREAM", "k STRING KEY"), ("TABLE", "k STRING PRIMARY KEY")])
def test_who_creates_without_columns_is_told_those_of_the_topic(tmp_path: Path, what: str, key: str) -> None:
    with connect(tmp_path / "log") as log, SqlEngine(log, tmp_path / "sql") as engine:
        log.admin().ensure_topic("Raw.Sales", partitions=1)
        with log.producer() as producer:
            producer.send("Raw.Sales", b'{"shop": "riga", "cents": 5}', key=b"a")
        with pytest.raises(StatementError, match="does not define any columns") as refused:
            list(engine.execute(f"CREATE {what} sales WITH (KAFKA_TOPIC = 'Raw.Sales', VALUE_FORMAT = 'JSON');"))
        made = str(refused.value).partition(" records: ")[2].splitlines()[0]
        assert made.startswith(f"CREATE {what} SALES ({key}, SHOP STRING, CENTS BIGINT) WITH (")
        list(engine.execute(made))


def test_a_topic_whose_name_is_near_is_named(tmp_path: Path) -> None:
    with connect(tmp_path / "log") as log, SqlEngine(log, tmp_path / "sql") as engine:
        log.admin().ensure_topic("flights", partitions=1)
        with pytest.raises(StatementError, match=r"FLIHTS does not exist\..*There is a topic flights: did you mean that\?"):
            list(engine.execute("SELECT * FROM flihts;"))
        list(engine.execute("CREATE STREAM flights (v INT) WITH (KAFKA_TOPIC = 'flights', VALUE_FORMAT = 'JSON');"))
        with pytest.raises(StatementError, match="Did you mean FLIGHTS") as refused:
            list(engine.execute("SELECT * FROM flihts;"))
        assert "topic" not in str(refused.value)


def test_who_selects_what_was_never_named_is_told_create_stream(tmp_path: Path) -> None:
    with connect(tmp_path / "log") as log, SqlEngine(log, tmp_path / "sql") as engine:
        log.admin().ensure_topic("sales", partitions=1)
        with log.producer() as producer:
            producer.send("sales", b'{"cents": 5}', key=b"riga")
        for query in ("SELECT * FROM sales;", "SELECT * FROM sales EMIT CHANGES;", "CREATE TABLE n AS SELECT k FROM sales;"):
            with pytest.raises(StatementError, match="SALES does not exist") as refused:
                list(engine.execute(query))
            made = str(refused.value).partition("There is a topic sales; by its first 1 records: ")[2]
            assert made.startswith("CREATE STREAM SALES (k STRING KEY, CENTS BIGINT) WITH (KAFKA_TOPIC = 'sales', ")
        with pytest.raises(
            StatementError, match=r"NOSUCH does not exist\..* once CREATE STREAM name \(columns\) WITH \(KAFKA_TOPIC"
        ):
            list(engine.execute("SELECT * FROM nosuch;"))
        *_, found = engine.execute(f"{made} SELECT * FROM sales;")
        assert list(found.rows) == [("riga", 5)]


def test_names_that_differ_in_case_are_one_column(tmp_path: Path) -> None:
    records = [{"a": 1, "s": {"x": 1}}, {"A": 2.5, "s": {"X": 2, "": 1}}]
    columns, rows = told(tmp_path, *records)
    assert columns == "A DOUBLE, S STRUCT<X BIGINT>"
    assert [row[0] for row in rows] == [1.0, 2.5]


def test_what_cannot_be_a_column_is_left_out(tmp_path: Path) -> None:
    columns, rows = told(tmp_path, {"": 1, "rowtime": 2, "windowStart": 3, "two\nlines": 4, "from": 5})
    assert (columns, rows) == ("`FROM` BIGINT", [(5,)])


@pytest.mark.parametrize(
    "record", [{}, {"": 1}, {f"field_{n}": n for n in range(1000)}, {"s": {f"f{n}": n for n in range(1000)}}]
)
def test_nothing_is_told_where_nothing_could_be_read(tmp_path: Path, record: dict[str, Any]) -> None:
    assert told(tmp_path, record) == ("", [])
