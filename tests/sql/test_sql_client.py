"""The Python client and the shell over HTTP: the same results as an engine in this process gives."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from prompt_toolkit.document import Document
from rich.console import Console

from logflume.log import InvalidInput, TransportError, connect
from logflume.sql import Message, PushQuery, QueryFailed, SqlClient, SqlEngine, StatementError
from logflume.sql.batch import run_batch
from logflume.sql.client import ServerRefused
from logflume.sql.completion import SqlCompleter
from logflume.sql.rest import SqlServer

TYPES = (
    "i INT, l BIGINT, d DECIMAL(6, 2), f DOUBLE, t STRING, b BOOLEAN, y BYTES, ts TIMESTAMP, da DATE, ti TIME, "
    "a ARRAY<DECIMAL(4, 1)>, m MAP<STRING, INT>, s STRUCT<X INT, `y z` STRING>"
)
VALUES = (
    "1, 9007199254740993, 12.50, 0.5, 'é', true, TO_BYTES('ff00', 'hex'), '2024-02-29T10:11:12.345', '2024-02-29', '23:59:59', "
    "ARRAY[1.5, 2.5], MAP('k' := 7), STRUCT(X := 1, `y z` := 'in')"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlServer]:
    path = tmp_path_factory.mktemp("client")
    with connect(path / "log") as log, SqlEngine(log, path / "sql") as engine, SqlServer(engine) as opened:
        made = f"CREATE STREAM typed (k INT KEY, {TYPES}) WITH (KAFKA_TOPIC='typed', PARTITIONS=1, VALUE_FORMAT='JSON');"
        list(
            engine.execute(
                f"{made} INSERT INTO typed VALUES (5, {VALUES}); CREATE TABLE n AS SELECT k, COUNT(*) AS c FROM typed GROUP BY k;"
            )
        )
        yield opened


@pytest.fixture
def client(server: SqlServer) -> Iterator[SqlClient]:
    with SqlClient(server.address) as opened:
        yield opened


def one(results: Any) -> Any:
    (result,) = results
    return result


@pytest.mark.parametrize("emit", ["", " EMIT CHANGES LIMIT 1"])
def test_values_of_every_type_are_those_of_the_engine(server: SqlServer, client: SqlClient, emit: str) -> None:
    ours, theirs = (one(each.execute(f"SELECT * FROM typed{emit};")) for each in (server._engine, client))
    assert [(c.name, c.type) for c in theirs.columns] == [(c.name, c.type) for c in ours.columns]
    if emit:
        ours, theirs = [row.values for row in ours], [row.values for row in theirs]
    else:
        ours, theirs = list(ours.rows), list(theirs.rows)
    assert theirs == ours
    assert Decimal("12.50") in theirs[0]


def test_statements_say_what_they_did(client: SqlClient) -> None:
    made = one(client.execute("CREATE STREAM o AS SELECT k, i FROM typed;"))
    assert isinstance(made, Message)
    assert made.query_id is not None
    assert made.text.startswith("Stream O created")
    assert one(client.execute("INSERT INTO typed (k, i) VALUES (1, 1), (2, 2);")).text == "2 rows inserted"
    assert one(client.execute(f"TERMINATE {made.query_id};")).text == f"terminated {made.query_id}"
    assert one(client.execute("DROP STREAM o;")).text.startswith("Source `O`")


def test_a_session_is_the_client_s(client: SqlClient, server: SqlServer) -> None:
    list(client.execute("SET 'auto.offset.reset' = 'latest'; DEFINE top = 'typed';"))
    with one(client.execute("SELECT i FROM ${top} EMIT CHANGES LIMIT 1;")) as query:
        list(server._engine.execute("INSERT INTO typed (k, i) VALUES (3, 33);"))
        assert [row.values for row in query] == [(33,)]
    shown = one(client.execute("SHOW VARIABLES;"))
    assert shown.rows == (("TOP", "typed"),)
    with SqlClient(server.address) as other, pytest.raises(StatementError, match="unexpected character"):
        list(other.execute("SELECT * FROM ${top};"))


def test_what_is_shown_is_shown_as_rows(client: SqlClient) -> None:
    shown = one(client.execute("SHOW STREAMS;"))
    assert [c.name for c in shown.columns][:3] == ["TYPE", "NAME", "TOPIC"]
    assert ("STREAM", "TYPED", "typed") in {row[:3] for row in shown.rows}
    described = one(client.execute("DESCRIBE typed;"))
    assert described.title == "STREAM TYPED over topic typed"
    assert described.rows[0] == ("K", "INTEGER", "KEY")
    assert described.rows[-1] == ("S", "STRUCT<`X` INTEGER, `y z` STRING>", "")
    explained = one(client.execute("EXPLAIN SELECT k FROM typed EMIT CHANGES;"))
    assert explained.title == "EXPLAIN"
    assert ("Topology",) in explained.rows
    assert one(client.execute("DESCRIBE FUNCTION round;")).rows
    assert ("CTAS_N_0",) in {row[3:4] for row in one(client.execute("SHOW QUERIES;")).rows}


def test_rows_are_inserted_and_those_that_do_not_fit_are_named(client: SqlClient) -> None:
    made = "CREATE STREAM into_it (k INT KEY, v INT) WITH (KAFKA_TOPIC='into', PARTITIONS=1, VALUE_FORMAT='JSON');"
    list(client.execute(made))
    assert client.insert("into_it", ({"k": n, "v": n} for n in range(12_000))) == 12_000
    with pytest.raises(ServerRefused, match=r"1 of 2 rows are refused: row 1: .*`V`"):
        client.insert("into_it", [{"k": 1, "v": 1}, {"k": 2, "v": "x"}])
    with pytest.raises(ServerRefused, match="NOWHERE"):
        client.insert("nowhere", [{"k": 1}])
    assert len(one(client.execute("SELECT v FROM into_it;")).rows) == 12_001


def test_refusals_and_absent_servers_are_told(client: SqlClient) -> None:
    with pytest.raises(ServerRefused, match="NOPE") as refused:
        list(client.execute("SELECT * FROM nope;"))
    assert refused.value.error_code == 40001
    with pytest.raises(InvalidInput, match=r"cannot read the script x\.sql"):
        list(client.execute("RUN SCRIPT 'x.sql';"))
    with pytest.raises(ServerRefused, match="RUN SCRIPT"):
        client.request("POST", "/ksql", {"ksql": "RUN SCRIPT '/etc/hostname';"})
    with SqlClient("http://127.0.0.1:1") as absent, pytest.raises(TransportError, match="no SQL server answers"):
        list(absent.execute("SHOW STREAMS;"))


def test_a_query_is_closed_by_its_reader_and_by_the_server(tmp_path: Path) -> None:
    with connect(tmp_path / "log") as log, SqlEngine(log, tmp_path / "sql") as engine:
        made = "CREATE STREAM s (v INT) WITH (KAFKA_TOPIC='s', PARTITIONS=1, VALUE_FORMAT='JSON'); INSERT INTO s VALUES (1);"
        list(engine.execute(made))
        with SqlServer(engine) as server, SqlClient(server.address) as client:
            with one(client.execute("SELECT * FROM s EMIT CHANGES;")) as closed:
                assert isinstance(closed, PushQuery)
                assert next(iter(closed)).values == (1,)
            assert server._app._queries._running == {}
            left = one(client.execute("SELECT * FROM s EMIT CHANGES;"))
            rows = iter(left)
            assert next(rows).values == (1,)
            assert client.request("POST", "/close-query", {"queryId": left.query_id}) is None
            with pytest.raises(QueryFailed, match="the server ended it"):
                next(rows)


def test_the_command_line_talks_to_a_server(server: SqlServer, tmp_path: Path) -> None:
    script = tmp_path / "more.sql"
    script.write_text("SELECT i, t FROM typed WHERE k = 5;")
    out = Console(file=io.StringIO(), width=100)
    assert run_batch(server.address, text=f"RUN SCRIPT '{script}';", is_json=True, console=out) == 0
    assert json.loads(out.file.getvalue()) == {"I": 1, "T": "é"}  # type: ignore[attr-defined]
    errors = Console(file=io.StringIO(), width=200)
    told = io.StringIO()
    made = "CREATE TABLE counted AS SELECT k, COUNT(*) AS c FROM typed GROUP BY k; SELECT * FROM counted;"
    assert run_batch(server.address, text=made, is_json=True, console=Console(file=told)) == 0
    assert json.loads(told.getvalue().splitlines()[-1]) == {"K": 5, "C": 1}, "a statement returns when its result can be used"
    assert run_batch(server.address, text="SELECT * FROM nope;", console=out, errors=errors) == 1
    assert "NOPE" in errors.file.getvalue()  # type: ignore[attr-defined]


def test_names_of_the_server_complete(client: SqlClient) -> None:
    def completions(text: str) -> list[str]:
        return [each.text for each in SqlCompleter(client).get_completions(Document(text), None)]  # type: ignore[arg-type]

    assert completions("SELECT * FROM TYP") == ["TYPED"]
    assert "TS" in completions("SELECT T FROM typed WHERE T")
