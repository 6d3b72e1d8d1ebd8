"""Internal topics are nobody's streams, and what strangers write into the catalog's own topic breaks nothing."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from logflume.log import connect
from logflume.log.interfaces import Log
from logflume.sql import Rows, SqlEngine, StatementError

COMMANDS = "_logflume-sql-commands"
CREATE = "CREATE STREAM s (id INT KEY, v INT) WITH (KAFKA_TOPIC='s', PARTITIONS=1, VALUE_FORMAT='JSON');"
JUNK = {
    "no JSON": b"\xff\xfe",
    "a number": b"7",
    "null": None,
    "deep": b"[" * 100_000,
    "deep object": b'{"v":' * 100_000,
    "no statement": b'{"v": 1}',
    "a list as statement": json.dumps({"v": 1, "statement": [], "query_id": None, "properties": {}}).encode(),
    "properties of numbers": json.dumps({"v": 1, "statement": CREATE, "query_id": None, "properties": {"a": 1}}).encode(),
    "a version that is no number": json.dumps({"v": "x", "statement": CREATE, "query_id": None, "properties": {}}).encode(),
}
WRONG = {
    "no SQL": "what is this",
    "a query without an id": "CREATE TABLE c AS SELECT id, COUNT(*) AS n FROM s GROUP BY id;",
    "an id is missing": "TERMINATE ALL;",
    "deep": f"CREATE STREAM d AS SELECT {'(' * 3000}1{')' * 3000} AS x FROM s;",
    "not a definition": "SELECT * FROM s;",
    "the catalog itself": f"CREATE STREAM c (v STRING) WITH (KAFKA_TOPIC='{COMMANDS}', VALUE_FORMAT='JSON');",
}


def write(log: Log, *values: bytes | None) -> None:
    producer = log.producer()
    for value in values:
        producer.send(COMMANDS, value, key=b"k", partition=0)
    producer.flush()
    producer.close()


def as_command(statement: str) -> bytes:
    return json.dumps({"v": 1, "statement": statement, "query_id": None, "properties": {}}).encode()


@pytest.mark.parametrize(
    "topic", [COMMANDS, "_logflume-else", "__consumer_offsets", "__transaction_state", "_schemas", "connect-offsets"]
)
@pytest.mark.parametrize(
    "statement",
    [
        "CREATE STREAM x (v STRING) WITH (KAFKA_TOPIC='{topic}', VALUE_FORMAT='JSON');",
        "CREATE TABLE x (k STRING PRIMARY KEY, v STRING) WITH (KAFKA_TOPIC='{topic}', PARTITIONS=1, VALUE_FORMAT='JSON');",
        "CREATE STREAM x WITH (KAFKA_TOPIC='{topic}') AS SELECT * FROM s;",
        "CREATE TABLE x WITH (KAFKA_TOPIC='{topic}') AS SELECT id, COUNT(*) AS n FROM s GROUP BY id;",
    ],
)
def test_no_source_and_no_result_is_an_internal_topic(engine: SqlEngine, statement: str, topic: str) -> None:
    with pytest.raises(StatementError, match=f"line 1, column .*topic {topic} is internal"):
        list(engine.execute(statement.format(topic=topic)))
    assert set(engine.catalog.sources) == {"S"}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlEngine]:
    path = tmp_path_factory.mktemp("engine")
    with connect(path / "log") as log, SqlEngine(log, path / "sql", runs_queries=False) as made:
        list(made.execute(CREATE))
        yield made


def test_junk_among_the_commands_is_left_out_named_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with connect(tmp_path / "log") as log:
        with SqlEngine(log, tmp_path / "sql", runs_queries=False) as first:
            list(first.execute(CREATE))
            write(log, *JUNK.values())
            with caplog.at_level(logging.WARNING, "logflume.sql"):
                list(first.execute("CREATE STREAM t (id INT KEY) WITH (KAFKA_TOPIC='t', PARTITIONS=1, VALUE_FORMAT='JSON');"))
        left_out = [record.getMessage() for record in caplog.records if "is not a SQL command" in record.getMessage()]
        assert [line.partition(" is not")[0] for line in left_out] == [f"{COMMANDS} offset {1 + n}" for n in range(len(JUNK))]
        assert left_out[-1].endswith(f"{len(JUNK)} so far")
        with SqlEngine(log, tmp_path / "sql", runs_queries=False) as second:
            assert set(second.catalog.sources) == {"S", "T"}


def test_commands_that_cannot_be_applied_are_kept_as_problems(tmp_path: Path) -> None:
    with connect(tmp_path / "log") as log, SqlEngine(log, tmp_path / "sql", runs_queries=False) as engine:
        list(engine.execute(CREATE))
        write(log, *map(as_command, WRONG.values()))
        (shown,) = engine.execute("SHOW STREAMS;")
        assert isinstance(shown, Rows)
        assert [row[0] for row in shown.rows] == ["S"]
        assert [problem.partition(" (")[0] for problem in engine.following.problems] == [
            f"command {1 + n}" for n in range(len(WRONG))
        ]
