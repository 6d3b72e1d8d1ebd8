"""The SQL server over real HTTP: what each endpoint takes, gives and refuses."""

from __future__ import annotations

import json
import logging
import re
import socket
import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

from logflume.log import InvalidInput, TransportError
from logflume.log.registry import Rights
from logflume.log.schemas import BIGINT, STRING, Column, FormatSpec, decimal, serde
from logflume.sql import SqlEngine
from logflume.sql.rest import SqlServer, app, errors
from logflume.sql.rest.queries import Queries
from logflume.sql.session import Session

from .conftest import served

SETUP = """
CREATE STREAM s (id INT KEY, n STRING, d DECIMAL(5, 2), x DOUBLE) WITH (KAFKA_TOPIC='s', PARTITIONS=1, VALUE_FORMAT='JSON');
INSERT INTO s VALUES (1, 'a', 1.50, 2.0); INSERT INTO s VALUES (2, 'b', 2.25, 3.0);
CREATE TABLE t AS SELECT n, COUNT(*) AS c FROM s GROUP BY n;
"""
DELIMITED = "application/vnd.ksqlapi.delimited.v1"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlServer]:
    with served(tmp_path_factory.mktemp("rest"), SETUP) as opened:
        yield opened


def ksql(client: httpx.Client, text: str, **more: Any) -> Any:
    answer = client.post("/ksql", json={"ksql": text, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


def eventually_count(client: httpx.Client, n: int) -> None:
    for _ in range(200):
        rows = client.post("/query", json={"ksql": "SELECT * FROM t;"}).json()
        if len(rows) == n + 1:
            return
    raise AssertionError(rows)


def test_statements_give_one_entity_each(client: httpx.Client) -> None:
    made = ksql(client, "CREATE STREAM o AS SELECT id, n FROM s; INSERT INTO s VALUES (9, 'z', 0, 0); SHOW STREAMS; DESCRIBE o;")
    assert [e["@type"] for e in made] == ["currentStatus", "streams", "sourceDescription"]
    assert made[0]["commandId"] == "stream/`O`/create"
    assert made[0]["commandStatus"]["status"] == "SUCCESS"
    query_id = made[0]["commandStatus"]["queryId"]
    assert {s["name"] for s in made[1]["streams"]} >= {"S", "O"}
    described = made[2]["sourceDescription"]
    assert described["fields"][0] == {
        "name": "ID",
        "type": "KEY",
        "schema": {"type": "INTEGER", "fields": None, "memberSchema": None},
    }
    assert [q["id"] for q in described["writeQueries"]] == [query_id]
    assert client.get("/status/stream/O/create").json()["status"] == "SUCCESS"
    assert "stream/O/create" in client.get("/status").json()["commandStatuses"]
    (shown,) = ksql(client, "SHOW QUERIES;")
    assert {q["id"]: q["state"] for q in shown["queries"]}[query_id] == "RUNNING"
    ksql(client, f"PAUSE {query_id};")
    (shown,) = ksql(client, "SHOW QUERIES;")
    assert {q["id"]: q["state"] for q in shown["queries"]}[query_id] == "PAUSED"
    (explained,) = ksql(client, f"EXPLAIN {query_id};")
    assert explained["queryDescription"]["sinks"] == ["O"]
    assert "SINK" in explained["queryDescription"]["topology"]
    ksql(client, "DROP STREAM o DELETE TOPIC;")


@pytest.mark.parametrize("text", ["SHOW TABLES;", "SHOW TOPICS;", "SHOW ALL TOPICS EXTENDED;", "SHOW FUNCTIONS;", "SHOW TYPES;"])
def test_what_is_there_is_listed(client: httpx.Client, text: str) -> None:
    (entity,) = ksql(client, text)
    assert entity["statementText"] == text
    assert len(entity) >= 3


def test_header_columns_of_a_table_stand_behind_its_key(client: httpx.Client) -> None:
    ksql(client, "CREATE STREAM hs (k INT KEY, v STRING) WITH (KAFKA_TOPIC='h', PARTITIONS=1, VALUE_FORMAT='JSON');")
    ksql(client, "INSERT INTO hs VALUES (1, 'x');")
    ksql(
        client,
        "CREATE SOURCE TABLE h (k INT PRIMARY KEY, v STRING, b BYTES HEADER('abc')) WITH (KAFKA_TOPIC='h', VALUE_FORMAT='JSON');",
    )
    header, row = client.post("/query", json={"ksql": "SELECT * FROM h;"}).json()[:2]
    assert header["header"]["schema"] == "`K` INTEGER KEY, `B` BYTES HEADER('abc'), `V` STRING"
    assert row["row"]["columns"] == [1, None, "x"]
    ksql(client, "DROP TABLE h; DROP STREAM hs DELETE TOPIC;")


def test_sessions_live_for_one_request(client: httpx.Client) -> None:
    text = "SET 'auto.offset.reset' = 'latest'; DEFINE who = 'S'; DESCRIBE ${who}; SHOW PROPERTIES;"
    found = ksql(client, text, sessionVariables={"x": "y"})
    assert found[0]["sourceDescription"]["name"] == "S"
    assert {"auto.offset.reset": "latest"}.items() <= {p["name"]: p["value"] for p in found[1]["properties"]}.items()
    assert ksql(client, "SHOW VARIABLES;")[0]["variables"] == []


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "message"),
    [
        ("/ksql", {"ksql": "SHOW STREAMZ;"}, 400, 40001, "STREAMZ"),
        ("/ksql", {"ksql": "SHOW STREAMS; DESCRIBE nope;"}, 400, 40001, "does not exist"),
        ("/ksql", {"ksql": "SELECT * FROM s;"}, 400, 40002, "'/query'"),
        ("/ksql", {"sql": "x"}, 400, 40000, "ksql"),
        ("/query", {"ksql": "SHOW STREAMS;"}, 400, 40001, "not a query"),
        ("/query", {"ksql": "SELECT * FROM s; SELECT * FROM s;"}, 400, 40001, "found 2"),
        ("/query", {"ksql": "SELECT nope FROM s;"}, 400, 40001, "NOPE"),
        ("/query-stream", {"sql": f"SELECT {'(' * 5000}1 FROM s;"}, 400, 40001, "nested"),
        ("/close-query", {"queryId": "nope"}, 400, 40000, "nope"),
        ("/inserts-stream", {"target": "nope"}, 400, 40001, "unknown stream"),
        ("/nope", {}, 404, 40400, "no endpoint"),
    ],
)
def test_mistakes_are_told_in_the_interface_s_form(
    client: httpx.Client, path: str, body: dict[str, Any], status: int, code: int, message: str
) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == status
    assert answer.json()["error_code"] == code
    assert message in answer.json()["message"]


def test_a_body_that_is_too_large_or_no_json_is_refused(client: httpx.Client) -> None:
    assert client.post("/ksql", content=b"x" * (5 << 20)).json()["error_code"] == 41300
    assert client.post("/ksql", content=b"[" * 100_000).json()["error_code"] == 40000


def test_pull_queries_in_all_forms(client: httpx.Client) -> None:
    eventually_count(client, 3)
    rows = client.post("/query", json={"ksql": "SELECT * FROM t WHERE n = 'a';"}).json()
    assert rows[0]["header"]["schema"] == "`N` STRING KEY, `C` BIGINT"
    assert rows[1:] == [{"row": {"columns": ["a", 1]}}]
    stream = client.post("/query", json={"ksql": "SELECT id, d FROM s LIMIT 1;"}).json()
    assert stream[1:] == [{"row": {"columns": [1, 1.5]}}, {"finalMessage": "Limit Reached"}]
    lines = client.post("/query-stream", json={"sql": "SELECT n, d FROM s WHERE id = 2;"}).text.splitlines()
    head = json.loads(lines[0])
    assert (head["columnNames"], head["columnTypes"]) == (["N", "D"], ["STRING", "DECIMAL(5, 2)"])
    assert lines[1:] == ['["b",2.25]']
    asked = {"sql": "SELECT n FROM s WHERE id = 2;"}
    assert client.post("/query-stream", json=asked, headers={"Accept": "application/json"}).json()[1:] == [["b"]]
    refused = client.post("/query-stream", json=asked, headers={"Accept": "text/csv"})
    assert (refused.status_code, refused.json()["error_code"]) == (406, 40600)


@pytest.mark.parametrize(
    ("wanted", "given"),
    [
        ("*/*", DELIMITED),
        (f"*/*, {DELIMITED};q=0", "application/json"),
        (f"{DELIMITED};q=0.2, application/json;q=0.5", "application/json"),
        ("text/csv, application/*;q=0.1", DELIMITED),
        (f"{DELIMITED};q=0, text/csv", None),
        ("*/*;q=0", None),
    ],
)
def test_rows_come_in_the_form_that_is_wanted_most(client: httpx.Client, wanted: str, given: str | None) -> None:
    answer = client.post("/query-stream", json={"sql": "SELECT n FROM s WHERE id = 2;"}, headers={"Accept": wanted})
    assert answer.status_code == (200 if given else 406)
    assert given is None or answer.headers["content-type"] == given


def test_rows_are_protobuf_messages_of_the_schema_that_their_header_has(client: httpx.Client) -> None:
    from base64 import b64decode

    columns = (Column("N", STRING), Column("D", decimal(5, 2)), Column("C", BIGINT))
    headers = {"Accept": "application/vnd.ksql.v1+protobuf"}
    for more in ("", " EMIT CHANGES LIMIT 1"):
        asked = {"sql": f"SELECT n, d, CAST(null AS BIGINT) AS c FROM s WHERE id = 2{more};"}
        answer = client.post("/query-stream", json=asked, headers=headers)
        assert answer.headers["content-type"] == headers["Accept"]
        header, row, end = answer.json()
        assert "optional string N = 1;" in header["header"]["protoSchema"]
        read = serde(FormatSpec("PROTOBUF_NOSR", nullables="OPTIONAL"), columns).decode(b64decode(row["row"]["protobufBytes"]))
        assert read == ("b", Decimal("2.25"), None)
        assert set(end) == {"finalMessage"}


def test_rows_that_protobuf_cannot_hold_are_refused_and_not_followed(client: httpx.Client, server: SqlServer) -> None:
    asked = {"sql": "SELECT ARRAY[ARRAY[n]] AS a FROM s EMIT CHANGES;"}
    answer = client.post("/query-stream", json=asked, headers={"Accept": "application/vnd.ksql.v1+protobuf"})
    assert (answer.status_code, answer.json()["error_code"]) == (406, 40600)
    assert not server._app._queries._running


def test_a_request_waits_for_the_command_that_it_names(
    client: httpx.Client, server: SqlServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (made,) = ksql(client, "CREATE TYPE numbered AS INT;")
    number = made["commandSequenceNumber"]
    (dropped,) = ksql(client, "DROP TYPE numbered;", commandSequenceNumber=number)
    assert dropped["commandSequenceNumber"] == number + 1
    assert client.post("/query", json={"ksql": "SELECT id FROM s LIMIT 1;", "commandSequenceNumber": number}).status_code == 200
    with SqlEngine(server._engine.log, tmp_path / "other", runs_queries=False) as engine, SqlServer(engine) as other:
        follower = other._engine.following
        monkeypatch.setattr(follower, "catch_up", lambda **kwargs: None)  # it follows no more, until it is asked to
        (made,) = ksql(client, "CREATE TYPE later AS INT;")
        monkeypatch.undo()
        found = httpx.post(
            f"{other.address}/ksql",
            json={"ksql": "SHOW TYPES;", "commandSequenceNumber": made["commandSequenceNumber"]},
            timeout=120,
        ).json()
        assert "LATER" in found[0]["types"]
    ksql(client, "DROP TYPE later;")
    monkeypatch.setattr(app, "COMMAND_WAIT_S", 0.0)
    for path in ("/ksql", "/query"):
        refused = client.post(path, json={"ksql": "SHOW TYPES;", "commandSequenceNumber": number + 100})
        assert (refused.status_code, refused.json()["error_code"]) == (503, 50301)
        assert str(number + 100) in refused.json()["message"]


def test_a_command_that_no_server_can_have_is_not_waited_for(
    client: httpx.Client, server: SqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = list[int]()
    monkeypatch.setattr(app, "COMMAND_POLL_S", 0.0)
    monkeypatch.setattr(server._engine.following, "last_command", lambda *, at_least: looked.append(at_least) or 5)
    refused = client.post("/ksql", json={"ksql": "SHOW TYPES;", "commandSequenceNumber": 1_000_000})
    assert (refused.status_code, refused.json()["error_code"]) == (503, 50301)
    assert looked == [1_000_000]


def test_requests_that_wait_for_a_new_query_leave_threads_to_others(
    client: httpx.Client, server: SqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, goes_on, statuses = 50, threading.Event(), list[int]()
    within, inside_max, lock = [0], [0], threading.Lock()

    def execute(text: str, session: Any) -> list[Any]:
        assert session.reads_until_s is not None
        with lock:
            within[0] += 1
            inside_max[0] = max(inside_max[0], within[0])
        assert goes_on.wait(60)
        with lock:
            within[0] -= 1
        return []

    def ask() -> None:
        asked = {"ksql": "SHOW TYPES;", "waitsUntilRead": True}
        statuses.append(httpx.post(f"{server.address}/ksql", json=asked, timeout=120).status_code)

    monkeypatch.setattr(server._app._statements, "execute", execute)
    threads = [threading.Thread(target=ask) for _ in range(count)]
    for thread in threads:
        thread.start()
    deadline_s = time.monotonic() + 60
    while within[0] < app.FIRST_READS_MAX and time.monotonic() < deadline_s:
        assert client.get("/healthcheck").status_code == 200
    assert client.get("/healthcheck").status_code == 200
    goes_on.set()
    for thread in threads:
        thread.join()
    assert statuses == [200] * count
    assert inside_max[0] <= app.FIRST_READS_MAX


def test_numbers_that_json_has_not_are_text(client: httpx.Client, server: SqlServer) -> None:
    log = server._engine.log
    producer = log.producer()
    producer.send("s", b'{"N": "inf", "X": 1e300}', key=(50).to_bytes(4, "big")).result()
    producer.close()
    answer = client.post("/query", json={"ksql": "SELECT X * 1e300 AS big, 0e0 * (X * 1e300) AS nan FROM s WHERE id = 50;"})
    assert answer.status_code == 200
    assert answer.json()[1] == {"row": {"columns": ["Infinity", "NaN"]}}


def test_push_queries_are_followed_limited_and_closed(client: httpx.Client, server: SqlServer) -> None:
    rows = client.post("/query", json={"ksql": "SELECT n FROM s EMIT CHANGES LIMIT 2;"}).json()
    assert rows[0]["header"]["schema"] == "`N` STRING"
    assert rows[1:] == [{"row": {"columns": ["a"]}}, {"row": {"columns": ["b"]}}, {"finalMessage": "Limit Reached"}]
    with client.stream("POST", "/query-stream", json={"sql": "SELECT id FROM s EMIT CHANGES;"}) as answer:
        lines = answer.iter_lines()
        query_id = json.loads(next(lines))["queryId"]
        assert next(lines) == "[1]"
        assert client.post("/close-query", json={"queryId": query_id}).status_code == 200
        assert list(lines)[:1] == ["[2]"]
    with client.stream("POST", "/query-stream", json={"sql": "SELECT id FROM s EMIT CHANGES;"}) as answer:
        next(answer.iter_lines())
    for _ in range(200):
        if not server._app._queries._running:
            break
        threading.Event().wait(0.05)
    assert not server._app._queries._running


def test_too_many_push_queries_are_refused(client: httpx.Client, server: SqlServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server._app._queries, "_push_max", 0)
    assert client.post("/query", json={"ksql": "SELECT n FROM s EMIT CHANGES;"}).json()["error_code"] == 40003


def test_rows_are_inserted_by_the_line(client: httpx.Client) -> None:
    ksql(
        client,
        "CREATE STREAM i (k STRING KEY, v INT, m MAP<STRING, INT>) WITH (KAFKA_TOPIC='i', PARTITIONS=1, VALUE_FORMAT='JSON');",
    )
    rows = [{"K": "a", "v": 1, "M": {"x": 2}}, {"K": "b", "V": "no"}, {"nope": 1}, {"K": "c"}]
    lines = [json.dumps({"target": "i"}), *map(json.dumps, rows), "{", ""]
    told = [json.loads(line) for line in client.post("/inserts-stream", content="\n".join(lines)).text.splitlines()]
    assert [(each["status"], each["seq"]) for each in told] == [("ok", 0), ("error", 1), ("error", 2), ("ok", 3), ("error", 4)]
    found = client.post("/query", json={"ksql": "SELECT * FROM i;"}).json()
    assert [row["row"]["columns"] for row in found[1:-1]] == [["a", 1, {"x": 2}], ["c", None, None]]


def test_rows_of_many_parts_are_told_of_in_order_each_for_itself(client: httpx.Client) -> None:
    """Parts that are right go to the log together, those with a wrong row row by row."""
    ksql(client, "CREATE STREAM i3 (k STRING KEY, v INT) WITH (KAFKA_TOPIC='i3', PARTITIONS=1, VALUE_FORMAT='JSON');")
    rows = [json.dumps({"K": f"key {n} {'x' * 50}", "V": n if n != 3000 else "no"}) for n in range(6000)]
    content = "\r\n".join([json.dumps({"target": "i3"}), *rows])
    told = [json.loads(line) for line in client.post("/inserts-stream", content=content).text.splitlines()]
    assert [each["seq"] for each in told] == list(range(6000))
    assert [each["seq"] for each in told if each["status"] != "ok"] == [3000]
    found = client.post("/query", json={"ksql": "SELECT v FROM i3;"}).json()
    assert [row["row"]["columns"][0] for row in found if "row" in row] == [n for n in range(6000) if n != 3000]


def test_rows_of_a_client_that_goes_away_are_written_as_far_as_they_came(
    server: SqlServer, client: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    ksql(client, "CREATE STREAM i4 (k STRING KEY, v INT) WITH (KAFKA_TOPIC='i4', PARTITIONS=1, VALUE_FORMAT='JSON');")
    with socket.create_connection((server.host, server.port), timeout=120) as sock:
        sock.sendall(b"POST /inserts-stream HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n")
        sock.sendall(b'{"target": "i4"}\n{"K": "a", "V": 1}\n{"K": "b", "V": 2}\n{"K": "cut o')
        got = b""
        while b'"seq":1' not in got:
            got += sock.recv(65536)
    assert ksql(client, "INSERT INTO i4 VALUES ('after', 3);") == []
    found = client.post("/query", json={"ksql": "SELECT k FROM i4;"}).json()
    assert [row["row"]["columns"][0] for row in found if "row" in row] == ["a", "b", "after"]
    assert [each for each in caplog.records if each.name.startswith("uvicorn") and each.levelno >= logging.WARNING] == []


def test_rows_are_acknowledged_while_more_are_still_to_come(server: SqlServer, client: httpx.Client) -> None:
    ksql(client, "CREATE STREAM i2 (k STRING KEY, a BIGINT) WITH (KAFKA_TOPIC='i2', PARTITIONS=2, VALUE_FORMAT='JSON');")
    with socket.create_connection((server.host, server.port), timeout=120) as sock:

        def send(text: str) -> None:
            sock.sendall(f"{len(text):x}\r\n{text}\r\n".encode())

        sock.sendall(b"POST /inserts-stream HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        send('{"target": "i2"}\n{"K": "a", "A": 1}\n')
        got = b""
        while b'"seq":0' not in got:
            got += sock.recv(65536)
        send("".join(f'{{"k": "{n}", "a": {n}}}\n' for n in range(1000)) + '{"K": "end"')
        send("}")
        send("")
        while b'"seq":1001' not in got:
            got += sock.recv(65536)
    found = client.post("/query", json={"ksql": "SELECT k FROM i2;"}).json()
    assert len([row for row in found if "row" in row]) == 1002


def test_the_server_tells_about_itself(client: httpx.Client) -> None:
    info = client.get("/", follow_redirects=True).json()["KsqlServerInfo"]
    assert info["ksqlServiceId"] == "logflume-sql"
    assert info["serverStatus"] == "RUNNING"
    assert client.get("/healthcheck").json()["isHealthy"]
    assert client.get("/is_valid_property/auto.offset.reset").json() is True
    assert client.get("/is_valid_property/nope").json()["error_code"] == 40000
    (host,) = client.get("/clusterStatus").json()["clusterStatus"].values()
    assert "CTAS_T_0" in host["hostStoreLags"]["stateStoreLags"]


def test_what_a_body_has_beside_its_text_goes_for_that_request(client: httpx.Client) -> None:
    scan = {"ksql.query.pull.table.scan.enabled": False}
    described = client.post("/ksql", json={"ksql": "DESCRIBE ${what};", "sessionVariables": {"what": "S"}}).json()
    assert described[0]["sourceDescription"]["name"] == "S"
    (shown,) = ksql(client, "SHOW PROPERTIES;", streamsProperties=scan)
    assert {each["name"]: each["value"] for each in shown["properties"]}["ksql.query.pull.table.scan.enabled"] == "false"
    assert shown["overwrittenProperties"] == list(scan)
    asked = "SELECT n FROM ${what} EMIT CHANGES LIMIT 1;"
    for path, text, properties in (("/query", "ksql", "streamsProperties"), ("/query-stream", "sql", "properties")):
        refused = client.post(path, json={text: "SELECT * FROM t;", properties: scan})
        assert (refused.status_code, refused.json()["error_code"]) == (400, 40001)
        assert "table.scan" in refused.json()["message"]
        answered = client.post(path, json={text: asked, "sessionVariables": {"what": "s"}})
        assert answered.status_code == 200, answered.text
        tokens = {properties: {"ksql.query.push.v2.continuation.tokens.enabled": True}}
        told = client.post(path, json={text: "SELECT n FROM s EMIT CHANGES LIMIT 1;", **tokens}).text
        token = re.findall(r'"continuationToken":"([^"]+)"', told)[0]
        goes_on = {"requestProperties": {"request.ksql.query.push.continuation.token": token}}
        rest = client.post(path, json={text: "SELECT n FROM s EMIT CHANGES LIMIT 1;", **goes_on}).text
        assert '["b"]' in rest
        assert '["a"]' not in rest
        assert client.post(path, json={text: asked, properties: {"auto.offset.reset": ["latest"]}}).json()["error_code"] == 40000


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/lag", {"lags": {"CTAS_T_0": 0}}),
        ("/v1/metadata", "ksql-cluster"),
        ("/v1/metadata/id", "ksql-cluster"),
        ("/chc/live", {}),
        ("/chc/ready", {}),
        ("/status/stream/NOPE/create", "Command not found"),
    ],
)
def test_other_endpoints_tell_what_they_are_for(client: httpx.Client, path: str, found: Any) -> None:
    deadline_s = time.monotonic() + 60
    while (answer := client.get(path).json()) == {"lags": {"CTAS_T_0": None}}:  # not known before the first fetch
        assert time.monotonic() < deadline_s, "no lag is known"
    assert answer == found if isinstance(found, dict) else found in json.dumps(answer)


def test_what_other_servers_of_ksqldb_tell_is_taken(client: httpx.Client) -> None:
    for path in ("/lag", "/heartbeat"):
        assert client.post(path, json={"hostInfo": {"host": "h", "port": 1}, "timestamp": 1}).json() == {"isOk": True}


def test_http_2_is_spoken_too(server: SqlServer) -> None:
    with httpx.Client(base_url=server.address, http1=False, http2=True, timeout=120) as client:
        answer = client.post("/query-stream", json={"sql": "SELECT n FROM s WHERE id = 1;"})
        assert answer.http_version == "HTTP/2"
        assert answer.text.splitlines()[1:] == ['["a"]']


def test_pages_of_other_sites_and_other_names_are_refused(client: httpx.Client) -> None:
    assert client.get("/info", headers={"Origin": "http://evil.example"}).status_code == 403
    assert client.get("/info", headers={"Host": "evil.example:8088"}).status_code == 403
    assert client.get("/info", headers={"Origin": str(client.base_url).rstrip("/")}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},  # of a frame in a sandbox, or a file
        {"Origin": "http://127.0.0.1:1"},  # another server of this machine
        {"Host": "evil.example:8088", "Origin": "http://evil.example:8088"},  # its name leads to this machine meanwhile
    ],
)
def test_a_page_of_another_site_can_neither_change_nor_follow_anything(
    client: httpx.Client, server: SqlServer, headers: dict[str, str]
) -> None:
    plain = {"Content-Type": "text/plain", **headers}  # which a browser sends without asking first
    for path, body in (
        ("/ksql", '{"ksql": "DROP TABLE IF EXISTS t;"}'),
        ("/inserts-stream", '{"target": "s"}\n{"id": 77}\n'),
        ("/query-stream", '{"sql": "SELECT * FROM s EMIT CHANGES;"}'),
        ("/console/picture", '{"ksql": "EXPLAIN CTAS_T_0;"}'),
    ):
        answer = client.post(path, content=body, headers=plain)
        assert (answer.status_code, answer.json()["error_code"]) == (403, 40300), path
    assert "T" in server._engine.catalog.sources
    assert not server._app._queries._running
    host = headers.get("Host", f"{server.host}:{server.port}")
    asked = "GET /ws/query?request=%7B%22ksql%22%3A%22SELECT%20*%20FROM%20s%3B%22%7D HTTP/1.1"
    upgrade = (
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    )
    lines = [asked, f"Host: {host}", f"Origin: {headers['Origin']}", *upgrade]
    with socket.create_connection((server.host, server.port), timeout=120) as sock:
        sock.sendall("\r\n".join([*lines, "", ""]).encode())
        assert sock.recv(65536).startswith(b"HTTP/1.1 403 ")


def test_only_this_machine_is_served_without_users(server: SqlServer) -> None:
    with pytest.raises(InvalidInput, match="loopback"):
        SqlServer(server._engine, host="0.0.0.0")


def test_passwords_do_not_go_to_other_machines_in_the_clear(server: SqlServer) -> None:
    class Nobody:
        async def rights(self, authorization: bytes | None) -> Rights:
            raise AssertionError("nothing is served")

    with pytest.raises(InvalidInput, match=r"no TLS.*`logflume cert issue NAME --host HOST`.*--insecure"):
        SqlServer(server._engine, host="0.0.0.0", users=Nobody())


def over_websocket(server: SqlServer, asked: dict[str, Any]) -> list[Any]:
    """Return the messages that a request is answered with."""
    from urllib.parse import quote

    from wsproto import ConnectionType, WSConnection
    from wsproto.events import AcceptConnection, CloseConnection, Request, TextMessage

    connection = WSConnection(ConnectionType.CLIENT)
    request = quote(json.dumps(asked))
    texts: list[str] = []
    with socket.create_connection((server.host, server.port), timeout=120) as sock:
        target = f"/ws/query?request={request}&version=1"
        sock.sendall(connection.send(Request(host=f"127.0.0.1:{server.port}", target=target)))
        is_open = True
        while is_open:
            connection.receive_data(sock.recv(65536) or None)
            for event in connection.events():
                if isinstance(event, TextMessage):
                    texts.append(event.data)
                elif isinstance(event, CloseConnection):
                    is_open = False
                else:
                    assert isinstance(event, AcceptConnection)
    return [json.loads(text) for text in texts]


def test_a_table_is_followed_over_a_websocket(server: SqlServer) -> None:
    found = over_websocket(server, {"ksql": "SELECT n FROM s EMIT CHANGES LIMIT 2;"})
    assert found[0]["header"]["schema"] == "`N` STRING"
    assert found[1:] == [{"row": {"columns": ["a"]}}, {"row": {"columns": ["b"]}}, {"finalMessage": "Limit Reached"}]


def test_a_log_that_does_not_answer_is_told_over_a_websocket(server: SqlServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*, at_least: int) -> int:
        raise TransportError("no broker answers")

    monkeypatch.setattr(server._engine.following, "last_command", fails)
    (found,) = over_websocket(server, {"ksql": "SELECT n FROM s EMIT CHANGES LIMIT 2;", "commandSequenceNumber": 7})
    assert (found["error_code"], found["message"]) == (errors.NOT_READY, "no broker answers")


def test_inserts_of_one_script_are_written_in_order_up_to_the_one_at_fault(client: httpx.Client) -> None:
    made = "CREATE STREAM many (n INT) WITH (KAFKA_TOPIC='many', PARTITIONS=1, VALUE_FORMAT='JSON');"
    inserts = "".join(f"INSERT INTO many VALUES ({n});" for n in range(1500))
    found = ksql(client, f"{made} {inserts} SHOW TYPES;")
    assert [each["@type"] for each in found] == ["currentStatus", "type_list"]
    refused = client.post(
        "/ksql", json={"ksql": "INSERT INTO many VALUES (1500); INSERT INTO many VALUES ('x'); DROP STREAM many;"}
    )
    assert (refused.status_code, refused.json()["statementText"]) == (400, "INSERT INTO many VALUES ('x')")
    lines = client.post("/query-stream", json={"sql": "SELECT n FROM many;"}).text.splitlines()[1:]
    assert [json.loads(line) for line in lines] == [[n] for n in range(1501)]


def test_the_page_of_the_server_names_every_endpoint_and_no_other(server: SqlServer) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "sql-server.md").read_text()
    named = re.findall(r"^\| (GET|POST) \| `(\S+)` \|", page, re.MULTILINE)
    assert sorted(named) == sorted(server._app.endpoints)


def test_the_page_of_the_server_names_every_code() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "sql-server.md").read_text()
    known = {value for name, value in vars(errors).items() if name.isupper() and isinstance(value, int)}
    assert {int(code) for code in re.findall(r"^\| (\d{5}) \|", page, re.MULTILINE)} == known


@pytest.mark.parametrize("sends", ["a request in pieces", "an upgrade to HTTP/2", "pipelined requests"])
def test_a_connection_is_understood_however_its_first_bytes_come(server: SqlServer, sends: str) -> None:
    """The server looks at what a client sends first to know what it speaks."""
    head = b"GET /info HTTP/1.1\r\nHost: localhost\r\n"
    upgrade = b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"
    with socket.create_connection((server.host, server.port), timeout=60) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if sends == "a request in pieces":
            for byte in head + b"\r\n":
                sock.send(bytes([byte]))
        elif sends == "pipelined requests":
            sock.sendall((head + b"\r\n") * 3)
        else:
            sock.sendall(head + upgrade + b"\r\n")
        found = b""
        wanted = 3 if sends == "pipelined requests" else 1
        while b"HTTP/1.1 101" not in found and found.count(b"kafkaClusterId") < wanted:
            part = sock.recv(65536)
            assert part, found
            found += part
    assert found.startswith(b"HTTP/1.1 101 Switching Protocols\r\n") is (sends == "an upgrade to HTTP/2")


def test_statements_that_differ_in_their_values_alone_are_answered_each_by_its_own(client: httpx.Client) -> None:
    """From the second on they are neither parsed nor given to another thread."""
    ksql(client, "CREATE STREAM v (k STRING KEY, n INT) WITH (KAFKA_TOPIC='v', PARTITIONS=3, VALUE_FORMAT='JSON');")
    ksql(client, "CREATE TABLE vt AS SELECT k, SUM(n) AS total FROM v GROUP BY k;")
    for n in range(20):
        assert ksql(client, f"INSERT INTO v VALUES ('it''s {n}', {n * 1000});") == []
    refused = client.post("/ksql", json={"ksql": "INSERT INTO v VALUES ('it''s 1', 99999999999);"})
    assert refused.status_code == 400
    assert "99999999999" in refused.text

    def pulled(where: str) -> list[list[Any]]:
        found = client.post("/query", json={"ksql": f"SELECT * FROM vt WHERE {where};"}).json()
        return [each["row"]["columns"] for each in found[1:]]

    while len(pulled("total >= 0")) < 20:  # the test's own limit ends it
        time.sleep(0.01)
    for n in range(20):
        assert pulled(f"k = 'it''s {n}'") == [[f"it's {n}", n * 1000]]
        assert pulled(f"k = 'it''s {n}' AND total > {n * 1000}") == []
        assert sorted(pulled(f"k IN ('it''s {n}', 'no', 'it''s {(n + 1) % 20}') AND total < 20000")) == sorted(
            [[f"it's {m}", m * 1000] for m in (n, (n + 1) % 20)]
        )
    assert pulled("k = 'it''s 1' AND k = 'it''s 2'") == []


TO_BE_ENDED = """
CREATE STREAM s (id INT KEY, n STRING) WITH (KAFKA_TOPIC='s', PARTITIONS=1, VALUE_FORMAT='JSON');
CREATE STREAM made WITH (KAFKA_TOPIC='made-1') AS SELECT * FROM s;
CREATE STREAM kept WITH (KAFKA_TOPIC='kept-1') AS SELECT * FROM s;
"""


def test_a_service_is_ended_with_its_queries_and_the_topics_that_are_named(tmp_path: Path) -> None:
    with served(tmp_path, TO_BE_ENDED) as server, httpx.Client(base_url=server.address, timeout=120) as client:
        engine = server._engine
        refused = client.post("/ksql/terminate", json={"deleteTopicList": ["made.*", "("]})
        assert (refused.status_code, refused.json()["error_code"]) == (400, 40000)
        assert len(engine.catalog.queries) == 2, "nothing was done"
        assert client.post("/ksql/terminate", json={"deleteTopicList": ["made.*", "s"]}).status_code == 200
        assert not engine.catalog.sources
        assert not engine.catalog.queries
        assert {"s", "kept-1", "made-1"} & set(engine.log.admin().list_topics()) == {"s", "kept-1"}, "what a query made alone"
        for path, asked in (("/ksql", {"ksql": "SHOW STREAMS;"}), ("/query-stream", {"sql": "SELECT * FROM s;"})):
            answer = client.post(path, json=asked)
            assert (answer.status_code, answer.json()["error_code"]) == (503, 50304)
        assert client.get("/info").json()["KsqlServerInfo"]["serverStatus"] == "TERMINATED"
        assert client.get("/healthcheck").status_code == 200
        (said,) = over_websocket(server, {"ksql": "SELECT * FROM s EMIT CHANGES;"})
        assert said["error_code"] == 50304


FAILS_TO_END = """
CREATE STREAM `a-b` (id INT KEY, n STRING) WITH (KAFKA_TOPIC='s', PARTITIONS=1, VALUE_FORMAT='JSON');
CREATE STREAM made WITH (KAFKA_TOPIC='made-1') AS SELECT * FROM `a-b`;
INSERT INTO made SELECT * FROM `a-b`;
"""


def test_a_service_that_fails_to_end_goes_on_and_ends_at_another_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path, FAILS_TO_END) as server, httpx.Client(base_url=server.address, timeout=120) as client:
        engine = server._engine
        admin, asked = type(engine.log.admin()), {"deleteTopicList": ["made.*"]}
        during: list[int] = []

        def fails(self: Any, name: str) -> None:
            during.append(client.post("/ksql", json={"ksql": "CREATE STREAM late WITH (VALUE_FORMAT='JSON');"}).status_code)
            raise TransportError("no broker answers")

        with monkeypatch.context() as broken:
            broken.setattr(admin, "delete_topic", fails)
            refused = client.post("/ksql/terminate", json=asked)
        assert refused.status_code == 503
        assert refused.json()["message"].endswith("no broker answers; topics that are still to be deleted: made-1")
        assert during == [503], "nothing is begun meanwhile"
        assert not engine.catalog.queries
        assert client.post("/ksql", json={"ksql": "SHOW STREAMS;"}).status_code == 200
        assert client.post("/ksql/terminate", json=asked).status_code == 200
        assert not engine.catalog.sources
        assert "made-1" not in engine.log.admin().list_topics()


def test_rows_over_an_open_connection_are_refused_once_nothing_is_begun_any_more(tmp_path: Path) -> None:
    with served(tmp_path, TO_BE_ENDED) as server, socket.create_connection((server.host, server.port), timeout=120) as sock:

        def send(text: str) -> None:
            sock.sendall(f"{len(text):x}\r\n{text}\r\n".encode())

        def wait_for(text: bytes) -> bytes:
            got = b""
            while text not in got:
                more = sock.recv(65536)
                assert more, got
                got += more
            return got

        sock.sendall(b"POST /inserts-stream HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        send('{"target": "s"}\n{"ID": 1, "N": "a"}\n')
        wait_for(b'"seq":0')
        server._app.close()
        send('{"ID": 2, "N": "b"}\n')
        assert b"50303" in wait_for(b"shutting down")


def test_a_server_that_is_closing_says_so(tmp_path: Path) -> None:
    with served(tmp_path, "") as server, httpx.Client(base_url=server.address, timeout=120) as client:
        server._app.close()
        answer = client.post("/ksql", json={"ksql": "SHOW STREAMS;"})
        assert (answer.status_code, answer.json()["error_code"]) == (503, 50303)


def test_a_query_that_is_being_started_when_all_are_closed_is_closed_too(server: SqlServer) -> None:
    queries = Queries(server._engine)
    queries.close_all(errors.RestError(errors.SHUTTING_DOWN, "closing"))
    with pytest.raises(errors.RestError, match="closing"):
        queries.start("SELECT * FROM s EMIT CHANGES;", Session())
    assert not queries._running
