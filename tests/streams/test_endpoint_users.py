"""What an instance tells others goes to users of the log, over TLS, with rights to its group; or nowhere but this machine."""

from __future__ import annotations

import socket
import ssl
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import logflume.streams as lf
from logflume.log import InvalidInput, Log, LoginRefused, Security, connect
from logflume.log.access import AclRule, create_acls
from logflume.log.http_login import Verdict
from logflume.log.page_door import KNOWN_S, MAX_STRANGERS, Asker, PageDoor
from logflume.streams import count
from logflume.streams.query import StoreQuery
from logflume.streams.runtime import instances, statuses
from logflume.streams.runtime.endpoint import Endpoint
from tests.log._secured import PASSWORDS, Secured, revoke
from tests.streams.running import embedded, running, send_json, until

HERE = "127.0.0.1:0"


class Order(msgspec.Struct):
    ms: int


def orders(log: Log, name: str = "guarded") -> lf.App:
    app = lf.App(name, log=log)
    app.stream("orders", Order, key=str).group_by_key().aggregate(n=count(), name="totals").to("totals-out")
    return app


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A broker with ACLs: admin may everything, alice may read the application's group, bob nothing."""
    directory = tmp_path_factory.mktemp("secured")
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    started = Secured(directory, **{"authorizer.class.name": authorizer, "super.users": "User:admin;User:CN=app"})
    with logged_in(started, "admin") as log:
        rules = [AclRule("group", "guarded-", "User:alice", operation, "prefixed") for operation in ("read", "describe")]
        topics = [AclRule("topic", "orders", "User:alice", "describe")]
        create_acls(log.admin(), [*rules, *topics])
        create_acls(log.admin(), [AclRule("topic", "orders", "User:bob", "describe")])
    yield started
    started.close()


def logged_in(secured: Secured, user: str, protocol: str = "SASL_SSL", **settings: str) -> Log:
    found = {**secured.client(protocol, user=user), **settings}
    return connect(found.pop("bootstrap.servers"), security=Security.from_settings(found))


def fetch(secured: Secured, address: str, path: str, login: str = "") -> int:
    context = ssl.create_default_context(cafile=secured.authority_path)
    request = urllib.request.Request(address + path)
    if login:
        request.add_header("Authorization", "Basic " + b64encode(login.encode()).decode())
    while True:
        try:
            with urllib.request.urlopen(request, context=context, timeout=30) as page:
                return int(page.status)
        except urllib.error.HTTPError as error:
            if error.code != Verdict.BUSY.value:  # the broker was slow to say who this is: ask again
                return error.code


def states(at: str, log: Log) -> list[str]:
    """Return the state of the instance at an address, nothing if it does not answer in time."""
    return [status["state"] for _, status in statuses([at], Asker(log.security))]


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
def test_an_instance_answers_users_who_may_read_its_group(secured: Secured, tmp_path: Path, mechanism: str) -> None:
    """Instances and queries show the login of their own profile; a stranger, a wrong password and a user without rights go."""
    with logged_in(secured, "admin", **{"sasl.mechanism": mechanism}) as log:
        log.admin().ensure_topic("orders", partitions=2)
        send_json(log, "orders", [(f"user{i}", {"ms": i}, i) for i in range(8)])
        app = orders(log, f"guarded-{mechanism}")
        options = {"endpoint": HERE, "endpoint_certificate": secured.server_path}
        with running(app, log, tmp_path / "state", **options) as engine, app.query("totals") as totals:
            until(lambda: len(totals.rows()) == 8, engine)
            (at,) = instances(log.admin(), app.name)
            assert at.startswith("https://127.0.0.1:")
            assert until(lambda: states(at, log), engine) == ["running"]
            assert fetch(secured, at, "/metrics") == 401
            assert fetch(secured, at, "/metrics", f"alice:{PASSWORDS['alice']}") == 200
            assert fetch(secured, at, "/metrics", "alice:wrong") == 401
            assert fetch(secured, at, "/status", "nobody:wrong") == 401
            assert fetch(secured, at, "/status", f"bob:{PASSWORDS['bob']}") == 403
            with logged_in(secured, "alice") as other, StoreQuery(app.topology(), "totals", other) as seen:
                assert seen.get("user7") == {"n": totals.get("user7")["n"]}
            with logged_in(secured, "bob") as other, pytest.raises(LoginRefused, match="403"):
                until(lambda: states(at, other), engine)


def test_instances_with_certificates_know_each_other_by_them(secured: Secured, tmp_path: Path) -> None:
    def by_certificate(name: str) -> Log:
        pair = secured.write_pair(f"{name}.pem", secured.issue(name))
        own = {"ssl.certificate.location": pair, "ssl.key.location": pair, "ssl.ca.location": secured.authority_path}
        return connect(f"127.0.0.1:{secured.ports['SSL']}", security=Security({"security.protocol": "SSL", **own}))

    with by_certificate("app") as log, by_certificate("someone") as other:
        log.admin().ensure_topic("orders", partitions=2)
        app = orders(log, "certified")
        with running(app, log, tmp_path, endpoint=HERE, endpoint_certificate=secured.server_path) as engine:
            (at,) = until(lambda: instances(log.admin(), app.name), engine)
            assert until(lambda: states(at, log), engine) == ["running"]
            with pytest.raises(LoginRefused, match="403"):
                until(lambda: states(at, other), engine)
            assert fetch(secured, at, "/status") == 401


def test_an_endpoint_that_strangers_reach_is_refused_with_what_mends_it(secured: Secured, tmp_path: Path) -> None:
    with embedded(tmp_path / "data") as log:
        log.admin().ensure_topic("orders")
        app = orders(log)
        with pytest.raises(InvalidInput, match=r"`logflume secure init --host HOST`.*127\.0\.0\.1.*\(endpoint_insecure=True\)"):
            running(app, log, tmp_path / "state", endpoint="0.0.0.0:0").__enter__()
    with logged_in(secured, "admin") as log:
        log.admin().ensure_topic("orders", partitions=2)
        with pytest.raises(InvalidInput, match=r"`logflume cert issue NAME --host HOST`.*endpoint_certificate"):
            running(orders(log), log, tmp_path / "state", endpoint="0.0.0.0:0").__enter__()
        client_only = secured.write_pair("client.pem", secured.issue("client"))
        with pytest.raises(InvalidInput, match="a certificate of no host"):
            running(orders(log), log, tmp_path / "state", endpoint=HERE, endpoint_certificate=client_only).__enter__()


@pytest.mark.parametrize(
    "options", [{"endpoint": HERE}, {"endpoint": "0.0.0.0:0", "endpoint_insecure": True}], ids=["here", "open"]
)
def test_a_certificate_is_not_left_unused(secured: Secured, tmp_path: Path, options: dict[str, Any]) -> None:
    with embedded(tmp_path / "data") as log:
        log.admin().ensure_topic("orders")
        with pytest.raises(InvalidInput, match=r"endpoint_certificate.*is for a log with users"):
            running(orders(log), log, tmp_path / "state", **options, endpoint_certificate=secured.server_path).__enter__()


def test_a_login_is_shown_to_none_but_the_clusters_own(secured: Secured) -> None:
    """Members of a group write where its instances answer: that address is nobody's proof."""
    settings = settings_of(secured)
    assert Asker(Security.from_settings(settings)).headers()["Authorization"].startswith("Basic ")
    for change in ({"ssl.ca.location": ""}, {"ssl.endpoint.identification.algorithm": "none"}):
        with pytest.raises(InvalidInput, match=r"ssl\.ca\.location.*ssl\.endpoint\.identification\.algorithm"):
            Asker(Security.from_settings({**settings, **change})).headers()


def test_the_door_knows_revoked_certificates_and_delegation_tokens(secured: Secured, tmp_path: Path) -> None:
    pair = secured.write_pair("own.pem", secured.issue("own"))
    own = {
        "ssl.certificate.location": pair,
        "ssl.key.location": pair,
        "ssl.crl.location": revoke(tmp_path, secured.authority, None),
    }
    broker, seen = Broker(), list[bool]()

    def rights(security: Security) -> frozenset[str]:
        seen.append(security.is_delegated)
        return broker(security)

    settings = {**settings_of(secured), **own, "sasl.mechanism": "SCRAM-SHA-256", "sasl.scram.tokenauth": "true"}
    door = PageDoor(Security.from_settings(settings), Path(secured.server_path), rights)
    assert door.context.verify_flags & ssl.VERIFY_CRL_CHECK_CHAIN
    assert door.judge(basic("alice"), None, "read") is Verdict.WELCOME
    assert seen == [True]


def test_an_endpoint_may_be_open_if_somebody_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with embedded(tmp_path / "data") as log:
        log.admin().ensure_topic("orders")
        with running(orders(log), log, tmp_path / "state", endpoint="0.0.0.0:0", endpoint_insecure=True):
            assert "insecure: the endpoint of 'guarded' on 0.0.0.0 has no users" in caplog.text


class Broker:
    """Says what users may do, and counts how often it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.rights = {"alice": frozenset({"read", "describe"})}

    def __call__(self, security: Security) -> frozenset[str]:
        self.asked.append(security.username)
        if security.username not in self.rights:
            raise LoginRefused("nobody")
        return self.rights[security.username]


def basic(user: str) -> str:
    return "Basic " + b64encode(f"{user}:secret".encode()).decode()


def test_what_the_broker_said_of_a_login_counts_for_seconds(secured: Secured) -> None:
    """A user who is deleted, or loses a right, is noticed then."""
    now_s, broker = [0.0], Broker()
    door = door_of(secured, broker, lambda: now_s[0])
    assert [door.judge(basic("alice"), None, each) for each in ("read", "describe", "alter")] == [
        Verdict.WELCOME,
        Verdict.WELCOME,
        Verdict.FORBIDDEN,
    ]
    assert broker.asked == ["alice"]
    del broker.rights["alice"]
    now_s[0] = KNOWN_S + 1
    assert door.judge(basic("alice"), None, "read") is Verdict.UNKNOWN
    assert door.judge(basic("alice"), None, "read") is Verdict.UNKNOWN
    assert broker.asked == ["alice"] * 3


def test_logins_of_strangers_keep_nobody_waiting_who_is_known(secured: Secured) -> None:
    """Both places are taken by strangers: a third is sent away, who was known is asked for anew although the time is over."""
    now_s, asked, verdicts = [0.0], list[str](), dict[str, Verdict]()

    def broker(security: Security) -> frozenset[str]:
        asked.append(security.username)
        if security.username == "alice":
            return frozenset({"read"})
        place = int(security.username)
        if place + 1 < MAX_STRANGERS:  # while this one is answered another asks
            verdicts[str(place + 1)] = door.judge(basic(str(place + 1)), None, "read")
        else:
            now_s[0] = KNOWN_S + 1
            verdicts["late"] = door.judge(basic("99"), None, "read")
            verdicts["alice"] = door.judge(basic("alice"), None, "read")
        raise LoginRefused("nobody")

    door = door_of(secured, broker, lambda: now_s[0])
    assert door.judge(basic("alice"), None, "read") is Verdict.WELCOME
    assert door.judge(basic("0"), None, "read") is Verdict.UNKNOWN
    assert verdicts == {"late": Verdict.BUSY, "alice": Verdict.WELCOME, "1": Verdict.UNKNOWN}
    assert asked == ["alice", "0", "1", "alice"]
    assert door.judge(basic("0"), None, "read") is Verdict.UNKNOWN, "places are free again"


@pytest.mark.parametrize(
    "header", ["", "Basic", "Basic !!", "Basic " + b64encode(b"nocolon").decode(), "Bearer x", "Basic Og==", "x" * 9]
)
def test_what_is_no_login_is_not_tried_at_the_broker(secured: Secured, header: str) -> None:
    broker = Broker()
    assert door_of(secured, broker, lambda: 0.0).judge(header, None, "read") is Verdict.UNKNOWN
    assert broker.asked == []


def settings_of(secured: Secured) -> dict[str, str]:
    settings = secured.client("SASL_SSL")
    del settings["bootstrap.servers"]
    return settings


def door_of(secured: Secured, broker: object, monotonic_s: object) -> PageDoor:
    security = Security.from_settings(settings_of(secured))
    return PageDoor(security, Path(secured.server_path), broker, monotonic_s=monotonic_s)  # type: ignore[arg-type]


def test_who_speaks_no_tls_or_nothing_does_not_keep_others_out(secured: Secured) -> None:
    door = door_of(secured, Broker(), lambda: 0.0)
    endpoint = Endpoint(HERE, {("GET", "/status"): lambda _: ("text/plain", b"fine")}, door=door)
    port = int(endpoint.address.rpartition(":")[2])
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(8)]
    try:
        silent[0].sendall(b"GET /status HTTP/1.1\r\n\r\n")
        assert fetch(secured, endpoint.address, "/status", "alice:secret") == 200
    finally:
        for sock in silent:
            sock.close()
        endpoint.close()
