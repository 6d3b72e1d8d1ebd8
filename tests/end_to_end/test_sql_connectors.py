"""Connectors by statement: made, seen, run by one process of a service at a time, dropped; over HTTP and in the engine."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from logflume.cli.sql_connectors import SqlConnectors
from logflume.log import Log, connect
from logflume.sql import Message, Rows, SqlEngine, StatementError
from logflume.sql.entity_results import results_of
from logflume.sql.rest import SqlServer
from logflume.sql.rest.terminating import terminate
from logflume.sql.session import Session

ROWS = "id,name\n1,ann\n2,bob\n"
SOURCE = (
    "CREATE SOURCE CONNECTOR people WITH ('connector.class' = 'file-source', file = '{path}', topic = 'people', format = 'csv', "
    "'follow' = true);"
)
SINK = (
    "CREATE SINK CONNECTOR c WITH ('connector' = 'parquet-sink', path = 'x', topics = '{topic}', 'value.columns' = 'v STRING');"
)
STREAM = "CREATE STREAM people (id STRING, name STRING) WITH (KAFKA_TOPIC='people', VALUE_FORMAT='JSON');"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with connect(tmp_path / "log") as opened:
        yield opened


def engine_on(log: Log, folder: Path) -> SqlEngine:
    return SqlEngine(log, folder, connectors=SqlConnectors)


def eventually(holds: Callable[[], Any], *, limit_s: float = 90.0) -> Any:
    deadline_s = time.monotonic() + limit_s
    while not (found := holds()):
        assert time.monotonic() < deadline_s, "it never came true"
        time.sleep(0.05)
    return found


def rows(engine: SqlEngine, text: str) -> list[tuple[Any, ...]]:
    (found,) = engine.execute(text)
    assert isinstance(found, Rows)
    return list(found.rows)


def state_of(engine: SqlEngine) -> str:
    return str(rows(engine, "SHOW CONNECTORS;")[0][3])


def test_rows_of_a_file_come_and_go_on_after_a_restart(log: Log, tmp_path: Path) -> None:
    file = tmp_path / "people.csv"
    file.write_text(ROWS)
    with engine_on(log, tmp_path / "sql") as engine:
        (made,) = engine.execute(SOURCE.format(path=file))
        assert isinstance(made, Message)
        assert made.text == "Created connector PEOPLE"
        eventually(lambda: state_of(engine) == "RUNNING")
        list(engine.execute(STREAM))
        eventually(lambda: rows(engine, "SELECT id, name FROM people;") == [("1", "ann"), ("2", "bob")])

        def described() -> list[tuple[tuple[Any, ...], ...]]:
            return [each.rows for each in engine.execute("DESCRIBE CONNECTOR people;") if isinstance(each, Rows)]

        eventually(lambda: described()[1][0][1:3] == ("RUNNING", 2))  # counted a moment after the rows can be read
        facts, _, sources = described()
        assert dict(facts)["CLASS"] == "file-source"
        assert sources == (("PEOPLE", "STREAM", "people"),)
    with file.open("a") as more:
        more.write("3,cid\n")
    with engine_on(log, tmp_path / "sql") as engine:
        eventually(lambda: len(rows(engine, "SELECT id, name FROM people;")) == 3)
        assert rows(engine, "SHOW SINK CONNECTORS;") == []
        list(engine.execute("DROP CONNECTOR people;"))
        assert rows(engine, "SHOW SOURCE CONNECTORS;") == []
        eventually(lambda: not engine.holders.connectors())


def test_one_process_of_a_service_runs_them_and_another_takes_over(log: Log, tmp_path: Path) -> None:
    file = tmp_path / "people.csv"
    file.write_text(ROWS)
    with engine_on(log, tmp_path / "other") as other:
        with engine_on(log, tmp_path / "sql") as engine:
            list(engine.execute(SOURCE.format(path=file)))
            other.following.catch_up()
            eventually(lambda: [*engine.holders.local_connectors(), *other.holders.local_connectors()])
            running = [bool(each.holders.local_connectors()) for each in (engine, other)]
            assert sorted(running) == [False, True]
        eventually(lambda: [each.state for each in other.holders.local_connectors()] == ["RUNNING"])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("CREATE SOURCE CONNECTOR c WITH ('topic' = 'x');", "a connector needs its 'connector.class'"),
        ("CREATE SOURCE CONNECTOR c WITH ('connector.class' = 'fle-source');", "file-source"),
        ("CREATE SINK CONNECTOR c WITH ('connector' = 'file-source', file = 'a.csv', topic = 'x');", "CREATE SOURCE CONNECTOR"),
        ("CREATE SOURCE CONNECTOR c WITH ('connector' = 'file-source', fil = 'a.csv', topic = 'x');", "fil"),
        ("CREATE SOURCE CONNECTOR c WITH ('connector' = 'file-source', 'name' = 'd');", "leave 'name' out"),
        ("CREATE SOURCE CONNECTOR c WITH ('connector' = 'file-source', 'connector.class' = 'd');", "given twice"),
        (SINK.replace("{topic}", "nowhere"), "nowhere"),
        (SINK.replace("{topic}", "held").replace("v STRING", "prise BIGINT"), "has 'prise'; did you mean 'price'?"),
        (SINK.replace("{topic}", "held").replace("'x'", "'/dev/null/x'"), "/dev/null is not a directory"),
        ("CREATE SOURCE CONNECTOR c WITH ('connector' = 'file-source', file = '${{env:NO_SUCH}}', topic = 'x');", "NO_SUCH"),
        ("DROP CONNECTOR c;", "Connector C does not exist; there are none"),
        ("DESCRIBE CONNECTOR c;", "SHOW CONNECTORS lists what does"),
    ],
)
def test_mistakes_are_told_before_anything_is_kept(log: Log, tmp_path: Path, text: str, told: str) -> None:
    log.admin().ensure_topic("held")
    log.producer().send("held", b'{"price": 3}').result(30)
    with engine_on(log, tmp_path / "sql") as engine:
        with pytest.raises(StatementError) as refused:
            list(engine.execute(text.replace("{{", "{").replace("}}", "}")))
        assert told in str(refused.value)
        assert engine.catalog.connectors == {}


def test_programs_see_what_they_ask_for(log: Log, tmp_path: Path) -> None:
    file = tmp_path / "people.csv"
    file.write_text(ROWS)
    with (
        engine_on(log, tmp_path / "sql") as engine,
        SqlServer(engine) as server,
        httpx.Client(base_url=server.address, timeout=120) as client,
    ):

        def ksql(text: str) -> Any:
            answer = client.post("/ksql", json={"ksql": text})
            assert answer.status_code == 200, answer.text
            return answer.json()

        text = SOURCE.format(path=file)
        (made,) = ksql(text)
        assert made["@type"] == "connector_info"
        assert made["info"]["type"] == "source"
        assert made["info"]["config"]["connector"] == "file-source"
        (again,) = ksql(text.replace("CONNECTOR", "CONNECTOR IF NOT EXISTS"))
        assert again["@type"] == "warning_entity"
        assert client.post("/ksql", json={"ksql": text}).status_code == 400
        eventually(lambda: ksql("SHOW CONNECTORS;")[0]["connectors"][0]["state"] == "RUNNING")
        (listed,) = ksql("LIST SOURCE CONNECTORS;")
        shown = {"name": "PEOPLE", "type": "source", "className": "file-source", "state": "RUNNING"}
        assert listed["connectors"] == [shown]
        (plugins,) = ksql("SHOW CONNECTOR PLUGINS;")
        assert {"className": "file-source", "type": "source", "version": ""} in plugins["connectorsPlugins"]
        (described,) = ksql("DESCRIBE CONNECTOR people;")
        assert described["@type"] == "connector_description"
        assert described["connectorClass"] == "file-source"
        assert described["status"]["connector"]["state"] == "RUNNING"
        assert described["topics"] == ["people"]
        facts, tasks, sources = [each for each in results_of(described) if isinstance(each, Rows)]
        assert ("STATE", "RUNNING") in facts.rows
        assert [row[1] for row in tasks.rows] == ["RUNNING"]
        assert sources.rows == ()
        assert results_of(made) == [Message("Created connector PEOPLE")]
        (dropped,) = ksql("DROP CONNECTOR IF EXISTS people;")
        assert dropped["@type"] == "drop_connector"
        assert dropped["connectorName"] == "PEOPLE"
        (gone,) = ksql("DROP CONNECTOR IF EXISTS people;")
        assert gone["@type"] == "warning_entity"


SALES = """
CREATE STREAM sales (shop STRING KEY, item STRING, cents BIGINT) WITH (KAFKA_TOPIC='sales', VALUE_FORMAT='JSON', PARTITIONS=1);
INSERT INTO sales (shop, item, cents) VALUES ('a', 'pen', 120);
CREATE SINK CONNECTOR out WITH ('connector' = 'sql-sink', 'connection.url' = 'sqlite:///{path}/out.db', topics = 'sales');
"""


def test_a_sink_takes_its_columns_from_the_stream_over_its_topic(log: Log, tmp_path: Path) -> None:
    with engine_on(log, tmp_path / "sql") as engine:
        list(engine.execute(SALES.format(path=tmp_path)))
        assert engine.catalog.connectors["OUT"].config["key.columns"] == "SHOP STRING"

        def stored() -> list[Any]:
            with (
                contextlib.closing(sqlite3.connect(tmp_path / "out.db")) as database,
                contextlib.suppress(sqlite3.OperationalError),
            ):
                return database.execute("SELECT shop, item, cents FROM sales").fetchall()
            return []

        assert eventually(stored) == [("a", "pen", 120)]
        list(engine.execute("CREATE STREAM items (item STRING) WITH (KAFKA_TOPIC='sales', VALUE_FORMAT='JSON');"))
        with pytest.raises(
            StatementError, match=r"ITEMS and SALES see the topics differently; .*'value.columns' = 'ITEM STRING'"
        ):
            list(engine.execute(SINK.replace(", 'value.columns' = 'v STRING'", "").format(topic="sales")))


def test_connectors_end_with_the_service(log: Log, tmp_path: Path) -> None:
    file = tmp_path / "people.csv"
    file.write_text(ROWS)
    with engine_on(log, tmp_path / "sql") as engine:
        list(engine.execute(SOURCE.format(path=file).replace("people", "`of.people`", 1)))
        assert list(engine.catalog.connectors) == ["of.people"]
        terminate(engine, [], Session())
        assert not engine.catalog.connectors
        assert not rows(engine, "SHOW CONNECTORS;")
