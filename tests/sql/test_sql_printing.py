"""PRINT shows records as they are; ASSERT TOPIC and SCHEMA wait and refuse; EXPLAIN of a query shows what it runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from logflume.log import connect
from logflume.log.schemas import STRING, Column, FormatSpec, MemoryRegistry, register_schema
from logflume.sql import SqlEngine, StatementError
from logflume.sql.rest import SqlServer
from logflume.sql.results import PushQuery


@pytest.fixture
def registry() -> MemoryRegistry:
    return MemoryRegistry()


@pytest.fixture
def engine(tmp_path: Path, registry: MemoryRegistry) -> Iterator[SqlEngine]:
    with connect(tmp_path / "log") as log, SqlEngine(log, tmp_path / "sql", registry=registry.location) as opened:
        log.admin().create_topic("Raw", partitions=1)
        yield opened


def run(engine: SqlEngine, text: str) -> Any:
    return list(engine.execute(text))[-1]


def write(engine: SqlEngine, *records: tuple[bytes | None, bytes | None]) -> None:
    producer = engine.log.producer()
    for key, value in records:
        producer.send("Raw", value, key=key, timestamp_ms=5)
    producer.close()


def printed(query: Any) -> list[tuple[Any, ...]]:
    assert isinstance(query, PushQuery)
    return [row.values for row in query]


def test_print_shows_text_numbers_other_bytes_and_nothing(engine: SqlEngine) -> None:
    write(engine, (b"k", b'{"a": 1}'), (b"\0\0\0\x07", None), (None, b"\xff\xfe"))
    assert printed(run(engine, "PRINT raw FROM BEGINNING LIMIT 3;")) == [
        (5, 0, 0, "k", '{"a": 1}'),
        (5, 0, 1, "7", None),
        (5, 0, 2, None, "0xfffe"),
    ]


def test_print_reads_by_the_registered_schema(engine: SqlEngine, registry: MemoryRegistry) -> None:
    run(engine, "CREATE STREAM s (a INT, b STRING) WITH (KAFKA_TOPIC='Raw', VALUE_FORMAT='AVRO'); INSERT INTO s VALUES (1, 'x');")
    ((*_, value),) = printed(run(engine, "PRINT 'Raw' FROM BEGINNING LIMIT 1;"))
    assert value == '{"A": 1, "B": "x"}'


def test_print_begins_with_what_is_written_from_then_on(engine: SqlEngine) -> None:
    write(engine, (None, b"before"))
    query = run(engine, "PRINT 'Raw' LIMIT 1;")
    write(engine, (None, b"after"))
    assert [row[-1] for row in printed(query)] == ["after"]


def test_print_of_every_second_record(engine: SqlEngine) -> None:
    write(engine, *((None, b"%d" % n) for n in range(5)))
    assert [row[-1] for row in printed(run(engine, "PRINT 'Raw' FROM BEGINNING INTERVAL 2 LIMIT 3;"))] == ["0", "2", "4"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("PRINT rawe;", "Did you mean Raw"),
        ("PRINT raw INTERVAL 0;", "at least 1"),
        ("ASSERT TOPIC nope TIMEOUT 10 MILLISECONDS;", "Topic NOPE does not exist"),
        ("ASSERT TOPIC raw WITH (PARTITIONS=3) TIMEOUT 10 MILLISECONDS;", "expected 3 got 1"),
        ("ASSERT TOPIC raw WITH (COLOUR='red');", "PARTITIONS"),
        ("ASSERT NOT EXISTS TOPIC raw TIMEOUT 10 MILLISECONDS;", "Topic Raw exists"),
        ("ASSERT TOPIC raw TIMEOUT 1 DAY;", "at most 600 SECONDS"),
        ("ASSERT SCHEMA SUBJECT 'x' TIMEOUT 10 MILLISECONDS;", "subject x does not exist"),
        ("ASSERT SCHEMA;", "SUBJECT, ID, or both"),
        ("EXPLAIN nope;", "Query with id:NOPE does not exist"),
    ],
)
def test_what_is_not_so_is_refused(engine: SqlEngine, text: str, message: str) -> None:
    with pytest.raises(StatementError, match=message):
        run(engine, text)


def test_what_is_so_is_told(engine: SqlEngine, registry: MemoryRegistry) -> None:
    number = register_schema(FormatSpec("AVRO", registry=registry.location, subject="x-value"), (Column("A", STRING),))
    assert run(engine, "ASSERT TOPIC raw WITH (PARTITIONS=1);").text == "Topic RAW exists"
    assert run(engine, "ASSERT NOT EXISTS TOPIC nope;").text == "Topic NOPE does not exist"
    assert run(engine, f"ASSERT SCHEMA SUBJECT 'x-value' ID {number};").text.endswith("exists")
    assert run(engine, f"ASSERT NOT EXISTS SCHEMA ID {number + 1};").text.endswith("does not exist")


def test_an_assertion_waits_for_what_comes(engine: SqlEngine) -> None:
    made = threading.Thread(target=engine.log.admin().create_topic, args=("late",))
    made.start()
    assert run(engine, "ASSERT TOPIC late TIMEOUT 30 SECONDS;").text == "Topic LATE exists"
    made.join()


def test_explain_of_a_query_shows_what_it_runs_whatever_the_session_says_now(engine: SqlEngine) -> None:
    run(engine, "CREATE STREAM s (k STRING KEY, v INT) WITH (KAFKA_TOPIC='Raw', VALUE_FORMAT='JSON');")
    made = run(engine, "CREATE STREAM o AS SELECT k, v + 1 AS w FROM s;")
    before = run(engine, f"EXPLAIN {made.query_id};")
    run(engine, "ALTER STREAM s ADD COLUMN extra INT; SET 'ksql.persistence.default.format.value' = 'DELIMITED';")
    assert run(engine, f"EXPLAIN {made.query_id};") == before


def test_over_http(engine: SqlEngine) -> None:
    write(engine, (None, b"one"))
    with SqlServer(engine) as server, httpx.Client(base_url=server.address, timeout=120) as client:
        lines = client.post("/query-stream", json={"sql": "PRINT 'Raw' FROM BEGINNING LIMIT 1;"}).text.splitlines()
        assert lines[1] == '[5,0,0,null,"one"]'
        asked = client.post("/ksql", json={"ksql": "ASSERT TOPIC raw; ASSERT NOT EXISTS SCHEMA ID 9;"}).json()
        assert [(each["@type"], each["exists"]) for each in asked] == [("assert_topic", True), ("assert_schema", False)]
        refused = client.post("/ksql", json={"ksql": "ASSERT TOPIC nope TIMEOUT 10 MILLISECONDS;"})
        assert (refused.status_code, refused.json()["error_code"]) == (417, 41700)
