"""Users of the SQL server: who is let in, which topics their statements may touch, HTTPS."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from logflume.log import InvalidInput, connect
from logflume.log.registry import Tls, UserFile
from logflume.log.security.issuing import issue, make_authority
from logflume.sql import SqlEngine
from logflume.sql.rest import SqlServer
from logflume.streams.runtime import EngineState, EngineStatus

USERS = """
[ada]
password = "ada-secret"
admin = true

[bob]
password = "bob-secret"
token = "bob-token"
read = ["open*"]
write = ["out*"]

["*"]
read = ["open"]
"""
SETUP = """
CREATE STREAM open (k INT KEY, v STRING) WITH (KAFKA_TOPIC='open', PARTITIONS=1, VALUE_FORMAT='JSON');
CREATE STREAM secret (k INT KEY, v STRING) WITH (KAFKA_TOPIC='secret', PARTITIONS=1, VALUE_FORMAT='JSON');
CREATE STREAM mine (k INT KEY, v STRING) WITH (KAFKA_TOPIC='out-mine', PARTITIONS=1, VALUE_FORMAT='JSON');
CREATE STREAM copied AS SELECT * FROM secret;
INSERT INTO open VALUES (1, 'seen'); INSERT INTO secret VALUES (1, 'hidden');
"""
BOB = ("bob", "bob-secret")


def user_file(folder: Path) -> UserFile:
    path = folder / "users.toml"
    path.write_text(USERS)
    return UserFile(path, login=lambda user, password: password == f"{user} of the cluster")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlServer]:
    folder = tmp_path_factory.mktemp("users")
    with (
        connect(folder / "log") as log,
        SqlEngine(log, folder / "sql") as engine,
        SqlServer(engine, host="0.0.0.0", users=user_file(folder), is_insecure=True) as opened,
    ):
        list(engine.execute(SETUP))
        yield opened


@pytest.fixture
def bob(server: SqlServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", auth=BOB, timeout=120) as client:
        yield client


def asked(client: httpx.Client, text: str) -> tuple[int, Any]:
    is_query = text.startswith(("SELECT", "PRINT"))
    answer = client.post("/query" if is_query else "/ksql", json={"ksql": text})
    return answer.status_code, answer.json()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer nobody"}, 401),
        ({"Authorization": "Basic !!"}, 401),
        ({"Authorization": "Bearer bob-token"}, 200),
        ({"Authorization": "Basic Ym9iOmJvYi1zZWNyZXQ="}, 200),
    ],
)
def test_who_is_known_is_let_in(server: SqlServer, headers: dict[str, str], status: int) -> None:
    answer = httpx.get(f"http://127.0.0.1:{server.port}/info", headers=headers, timeout=120)
    assert answer.status_code == status
    assert status == 200 or answer.json()["error_code"] == 40100


@pytest.mark.parametrize(
    ("text", "refused_for"),
    [
        ("SELECT * FROM secret;", "read topic secret"),
        ("SELECT * FROM secret EMIT CHANGES LIMIT 1;", "read topic secret"),
        ("SELECT o.k, s.v FROM open o JOIN secret s WITHIN 1 HOUR ON o.k = s.k EMIT CHANGES LIMIT 1;", "read topic secret"),
        ("PRINT SECRET FROM BEGINNING LIMIT 1;", "read topic secret"),
        ("CREATE STREAM out1 WITH (KAFKA_TOPIC='out1') AS SELECT * FROM secret;", "read topic secret"),
        ("CREATE STREAM other AS SELECT * FROM open;", "write to topic OTHER"),
        ("CREATE OR REPLACE STREAM copied WITH (KAFKA_TOPIC='out2') AS SELECT * FROM open;", "write to topic COPIED"),
        ("CREATE STREAM again (v STRING) WITH (KAFKA_TOPIC='secret', VALUE_FORMAT='JSON');", "write to topic secret"),
        ("INSERT INTO open VALUES (2, 'x');", "write to topic open"),
        ("INSERT INTO secret SELECT * FROM open;", "write to topic secret"),
        ("DROP STREAM mine; DROP STREAM secret;", "write to topic secret"),
        ("ALTER STREAM open ADD COLUMN w INT;", "write to topic open"),
        ("TERMINATE CSAS_COPIED_0;", "write to topic COPIED"),
        ("PAUSE ALL;", "write to topic COPIED"),
        ("CREATE TYPE t AS INT;", "is no admin"),
    ],
)
def test_what_a_user_has_no_right_to_is_refused_and_not_done(
    server: SqlServer, bob: httpx.Client, text: str, refused_for: str
) -> None:
    if text.startswith("DROP STREAM mine"):
        list(
            server._engine.execute("CREATE STREAM IF NOT EXISTS mine (v INT) WITH (KAFKA_TOPIC='out-mine', VALUE_FORMAT='JSON');")
        )
    before = dict(server._engine.catalog.sources)
    status, body = asked(bob, text)
    assert (status, body["error_code"]) == (403, 40301)
    assert refused_for in body["message"]
    left = {name: source for name, source in before.items() if name != "MINE" or "mine" not in text}
    assert {name: source for name, source in server._engine.catalog.sources.items() if name in left} == left
    assert set(server._engine.catalog.queries) == {"CSAS_COPIED_0"}
    assert not any(query.is_paused for query in server._engine.catalog.queries.values())


def test_no_user_ends_the_service(server: SqlServer, bob: httpx.Client) -> None:
    answer = bob.post("/ksql/terminate", json={})
    assert (answer.status_code, answer.json()["error_code"]) == (403, 40301)
    assert server._engine.catalog.queries


@pytest.mark.parametrize(("who", "is_told"), [(("ada", "ada-secret"), True), (BOB, False)])
def test_the_error_of_a_query_is_told_to_who_may_read_its_topics(
    server: SqlServer, monkeypatch: pytest.MonkeyPatch, who: tuple[str, str], is_told: bool
) -> None:
    failed = EngineStatus("x", EngineState.FAILED, "", error="no number: 'hidden'")
    monkeypatch.setattr(server._engine.following.running, "status", lambda: {"CSAS_COPIED_0": failed})
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", auth=who, timeout=120) as client:
        told = [
            client.post("/ksql", json={"ksql": text}).text
            for text in (
                "DESCRIBE copied EXTENDED;",
                "SHOW QUERIES EXTENDED;",
                "EXPLAIN CSAS_COPIED_0;",
                "EXPLAIN ANALYZE CSAS_COPIED_0;",
            )
        ]
    assert any("hidden" in each for each in told) == is_told
    assert is_told or any("secret, which user 'bob' may not read" in each for each in told)


def test_what_a_user_has_a_right_to_is_done(server: SqlServer, bob: httpx.Client) -> None:
    made = "CREATE STREAM own (k INT KEY, v STRING) WITH (KAFKA_TOPIC='out-own', PARTITIONS=1, VALUE_FORMAT='JSON');"
    assert asked(bob, f"SHOW STREAMS; DESCRIBE secret; {made} INSERT INTO own VALUES (5, 'five');")[0] == 200
    status, found = asked(bob, "SELECT v FROM open EMIT CHANGES LIMIT 1;")
    assert (status, found[1]["row"]["columns"]) == (200, ["seen"])
    status, found = asked(bob, "SELECT v FROM own EMIT CHANGES LIMIT 1;")
    assert (status, found[1]["row"]["columns"]) == (200, ["five"])
    assert asked(bob, "DROP STREAM own;")[0] == 200


def test_users_of_the_cluster_are_let_in_by_the_password_that_the_broker_knows(server: SqlServer) -> None:
    address = f"http://127.0.0.1:{server.port}"
    with httpx.Client(base_url=address, auth=("eve", "eve of the cluster"), timeout=120) as eve:
        assert asked(eve, "SELECT v FROM open LIMIT 1;")[0] == 200
        assert "user 'eve' may not write" in asked(eve, "INSERT INTO open VALUES (1, 'x');")[1]["message"]
    assert httpx.get(f"{address}/info", auth=("eve", "other"), timeout=120).status_code == 401


def test_rows_from_outside_are_taken_of_who_may_write(server: SqlServer, bob: httpx.Client) -> None:
    body = b'{"target":"open"}\n{"k":1,"v":"x"}\n'
    assert bob.post("/inserts-stream", content=body).json()["error_code"] == 40301
    list(
        server._engine.execute(
            "CREATE STREAM IF NOT EXISTS in2 (v STRING) WITH (KAFKA_TOPIC='out2', PARTITIONS=1, VALUE_FORMAT='JSON');"
        )
    )
    told = bob.post("/inserts-stream", content=b'{"target":"in2"}\n{"v":"x"}\n').text.splitlines()
    assert [json.loads(line)["status"] for line in told] == ["ok"]


def test_https_alone_is_spoken(tmp_path: Path) -> None:
    authority = make_authority("Test authority", now=datetime.now(UTC))
    issued = issue(authority, "sql", hosts=["127.0.0.1"], is_server=True, now=datetime.now(UTC))
    (tmp_path / "certificate.pem").write_bytes(issued.certificate_pem)
    (tmp_path / "key.pem").write_bytes(issued.key_pem)
    (tmp_path / "ca.pem").write_bytes(authority.certificate_pem)
    tls = Tls(str(tmp_path / "certificate.pem"), str(tmp_path / "key.pem"))
    trusted = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    with (
        connect(tmp_path / "log") as log,
        SqlEngine(log, tmp_path / "sql") as engine,
        SqlServer(engine, users=user_file(tmp_path), tls=tls) as server,
    ):
        assert server.address.startswith("https://")
        with httpx.Client(base_url=server.address, verify=trusted, http2=True, auth=BOB, timeout=120) as client:
            answer = client.post("/ksql", json={"ksql": "SHOW STREAMS;"})
            assert (answer.status_code, answer.http_version) == (200, "HTTP/2")
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{server.port}/info", timeout=120)
        with pytest.raises(InvalidInput, match="certificate"):
            SqlServer(engine, tls=Tls(str(tmp_path / "certificate.pem"), str(tmp_path / "ca.pem")))
