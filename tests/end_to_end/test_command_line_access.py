"""acl and quota commands against a real server that runs with an authorizer, as an administrator and as a client."""

import contextlib
import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logflume.cli import main
from logflume.log import KafkaError, connect

from ._command import run as run_process
from ._command import serving

AUTHORIZER = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("serve") / "data"


@pytest.fixture(scope="module")
def server(data: Path) -> Iterator[str]:
    with serving(data, "--workers", "0", "--config", AUTHORIZER) as (address, _):
        yield address


def run(*args: str, code: int = 0) -> tuple[str, str]:
    """Run a command in this process; it must end with the exit code. Returns what it printed."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        found = main(args)
    assert found == code, out.getvalue() + err.getvalue()
    return out.getvalue(), err.getvalue()


def rows(*args: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(*args, "--json")[0].splitlines()]


def test_an_administrator_lets_a_client_in_and_out(server: str, data: Path) -> None:
    """Who joins over the data directory's own socket is its owner; who comes over TCP has rights by ACLs only."""
    owner = ("--data", str(data))
    run("topic", "create", "flights", *owner)
    with connect(server) as client, pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED"):
        client.producer(acks=1).send("flights", b"v").result(30)
    allow = ("--principal", "User:ANONYMOUS", "--topic", "fli", "--prefixed")
    assert len(rows("acl", "create", *allow, "--operation", "write", "--operation", "describe", *owner)) == 2
    run("acl", "create", "--principal", "User:*", "--operation", "idempotent_write", "--cluster", *owner)
    with connect(server) as client:
        client.producer().send("flights", b"v").result(30)
    found = rows("acl", "list", "--topic", "flights", *owner)
    assert {(each["operation"], each["pattern"], each["name"]) for each in found} == {
        ("write", "prefixed", "fli"),
        ("describe", "prefixed", "fli"),
    }
    assert len(rows("acl", "list", *owner)) == 3
    run("acl", "create", "--principal", "User:ANONYMOUS", "--operation", "write", "--topic", "flights", "--deny", *owner)
    with connect(server) as client, pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED"):
        client.producer().send("flights", b"v").result(30)
    assert len(rows("acl", "delete", "--topic", "flights", "--dry-run", *owner)) == 1
    assert len(rows("acl", "delete", "--topic", "flights", *owner)) == 1
    with connect(server) as client:
        client.producer().send("flights", b"v").result(30)
    assert len(rows("acl", "delete", "--every", *owner)) == 3
    assert rows("acl", "list", *owner) == []


def test_a_topic_that_its_maker_may_not_describe_is_told_as_made(server: str, data: Path) -> None:
    owner, client = ("--data", str(data)), ("--bootstrap", server)
    run("acl", "create", "--principal", "User:ANONYMOUS", "--topic", "made", "--prefixed", "--operation", "create", *owner)
    assert run("topic", "create", "made", *client)[0] == "created topic made\n"
    assert run("topic", "create", "made-3", "--partitions", "3", *client)[0] == "created topic made-3 with 3 partitions\n"
    assert {"made", "made-3"} <= {row["topic"] for row in rows("topic", "list", *owner)}


def test_a_client_asks_for_its_own_rights(server: str, data: Path) -> None:
    owner, topic = ("--data", str(data)), ("--topic", "mine", "--group", "mine")
    run("topic", "create", "mine", *owner)
    by_resource = {each["resource"]: each for each in rows("acl", "mine", *topic, *owner)}
    assert by_resource["topic"]["principal"] == "Owner:local"
    assert "delete" in by_resource["topic"]["operations"].split()
    found = rows("acl", "mine", *topic, "--bootstrap", server)
    assert [(each["resource"], each["operations"]) for each in found] == [
        ("cluster", "none"),
        ("topic", "none"),
        ("group", "none"),
    ]
    run("acl", "create", "--principal", "User:ANONYMOUS", "--operation", "read", "--topic", "mine", "--group", "mine", *owner)
    out, err = run("acl", "mine", *topic, "--bootstrap", server)
    assert "principal: User:ANONYMOUS (login: none)" in err
    assert [line.split("\t") for line in out.splitlines()[2:]] == [
        ["topic", "mine", "read describe"],
        ["group", "mine", "read describe"],
    ]
    run("acl", "delete", "--every", *owner)


def test_reading_takes_the_rights_that_readme_grants_and_no_more(server: str, data: Path) -> None:
    owner = ("--data", str(data))
    run("topic", "create", "reports", *owner)
    with connect(str(data)) as log:
        log.producer().send("reports", b"v").result(30)
    _, err = run("consume", "reports", "--bootstrap", server, code=1)
    assert "TOPIC_AUTHORIZATION_FAILED 29 (reports)" in err
    run("acl", "create", "--principal", "User:ANONYMOUS", "--operation", "read", "--topic", "reports", "--group", "*", *owner)
    assert run("consume", "reports", "--bootstrap", server)[0] == "0:0\t\tv\n"
    assert run("consume", "reports", "--group", "crew", "-n", "1", "--bootstrap", server)[0] == "0:0\t\tv\n"
    _, err = run("topic", "describe", "reports", "--bootstrap", server, code=1)
    assert "(reports): its configs take the right DescribeConfigs" in err
    run("acl", "delete", "--every", *owner)


def test_quotas_are_set_listed_and_removed(server: str, data: Path) -> None:
    at = ("--data", str(data))
    run("quota", "set", "producer_byte_rate=1e6", "request_percentage=50", "--user", "alice", "--default-client-id", *at)
    run("quota", "set", "connection_creation_rate=1000", "--default-ip", *at)
    run("quota", "set", "consumer_byte_rate=5", "--user", "bob", "--dry-run", *at)
    assert rows("quota", "list", *at) == [
        {"user": "alice", "client-id": "<default>", "ip": None, "quota": "producer_byte_rate", "limit": 1e6},
        {"user": "alice", "client-id": "<default>", "ip": None, "quota": "request_percentage", "limit": 50.0},
        {"user": None, "client-id": None, "ip": "<default>", "quota": "connection_creation_rate", "limit": 1000.0},
    ]
    assert len(rows("quota", "list", "--user", "alice", *at)) == 2
    gone = rows("quota", "remove", "request_percentage", "--user", "alice", "--default-client-id", *at)
    assert [(each["quota"], each["limit"]) for each in gone] == [("request_percentage", 50.0)]
    run("quota", "remove", "--user", "alice", "--default-client-id", *at)
    run("quota", "remove", "--default-ip", *at)
    assert rows("quota", "list", *at) == []


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("acl", "create", "--principal", "User:a", "--operation", "read"), "say what for"),
        (("acl", "create", "--principal", "alice", "--operation", "read", "--topic", "t"), "User:alice"),
        (("acl", "create", "--principal", "User:a", "--operation", "raed", "--topic", "t"), "did you mean 'read'"),
        (("acl", "create", "--principal", "User:a", "--operation", "read", "--topic", "t", "--host", "10.0/99"), "10.0.0.0/8"),
        (("acl", "delete"), "say which"),
        (("quota", "set", "producer_byte_rate=1"), "say whose"),
        (("quota", "set", "producer_byte_rate", "--user", "a"), "expected NAME=NUMBER"),
        (("quota", "set", "producer_byte_rat=1", "--user", "a"), "did you mean 'producer_byte_rate'"),
        (("quota", "set", "producer_byte_rate=-1", "--user", "a"), "greater than 0"),
        (("quota", "set", "producer_byte_rate=1", "--user", "a", "--default-user"), "not both"),
        (("quota", "remove", "--user", "nobody"), "has no quotas"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_do(server: str, data: Path, args: tuple[str, ...], says: str) -> None:
    out, err = run(*args, "--data", str(data), code=1)
    assert says in err
    assert len(err.splitlines()) == 1
    assert out == ""


def test_a_client_without_rights_may_not_change_them(server: str) -> None:
    _, err = run("acl", "list", "--bootstrap", server, code=1)
    assert "CLUSTER_AUTHORIZATION_FAILED" in err
    _, err = run("quota", "set", "producer_byte_rate=1", "--user", "a", "--bootstrap", server, code=1)
    assert "CLUSTER_AUTHORIZATION_FAILED" in err


@pytest.mark.slow
def test_queries_run_whatever_acls_say_and_clients_without_rights_do_not_see_them(tmp_path: Path) -> None:
    """The processes of `serve` come as the owner of the data."""
    data = tmp_path / "data"
    create = (
        "CREATE STREAM s (k STRING KEY, v INT) WITH (KAFKA_TOPIC='s', PARTITIONS=1, VALUE_FORMAT='JSON');"
        "CREATE TABLE n AS SELECT k, COUNT(*) AS n FROM s GROUP BY k;"
    )
    with serving(data, "--config", AUTHORIZER) as (address, _):
        run_process("sql", "-e", create, "--data", str(data))
        run_process("produce", "s", "-K", ":", "--data", str(data), stdin='a:{"V": 1}\na:{"V": 2}\n')
        end_s, found = time.monotonic() + 60, ""
        while '"N":2' not in found and time.monotonic() < end_s:
            found = run_process("sql", "-e", "SELECT * FROM n;", "--json", "--data", str(data)).stdout
        assert '"N":2' in found
        out, _ = run("topic", "list", "--bootstrap", address)
        assert out.splitlines()[1:] == []


def test_without_an_authorizer_acl_says_how_to_get_one(tmp_path: Path) -> None:
    run("topic", "create", "t", "--data", str(tmp_path))
    _, err = run("acl", "list", "--data", str(tmp_path), code=1)
    assert "SECURITY_DISABLED" in err
    assert "authorizer.class.name" in err


@pytest.mark.parametrize("command", ["acl", "quota"])
def test_help_has_an_example(command: str) -> None:
    assert f"logflume {command}" in run_process(command, "--help").stdout
