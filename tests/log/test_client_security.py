"""Our own client over every listener and mechanism; how it is told to, and how it tells what is wrong."""

import asyncio
import base64
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logflume.log import LoginRefused, Security, connect, connect_async
from logflume.log.client import Profile, Profiles, check_login, check_profile_name, load_profiles, save_profiles
from logflume.log.client.connection import Connection
from logflume.log.client.logins import bearer, plain, scram
from logflume.log.client.probe import probe
from logflume.log.client.security import MECHANISMS, settings_of_environment
from logflume.log.errors import InvalidInput, TransportError
from logflume.log.security.issuing import make_authority

from ._secured import LISTENERS, NOW, PASSWORDS, Secured
from .test_security_logins import RFC_7677

WAYS = [(protocol, mechanism) for protocol in LISTENERS for mechanism in (MECHANISMS[:3] if "SASL" in protocol else ("",))]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    configs = {"connections.max.reauth.ms": "1000", "listener.name.sasl_ssl.connections.max.reauth.ms": "0"}
    started = Secured(tmp_path_factory.mktemp("secured"), **configs)
    yield started
    started.close()


def split(settings: dict[str, str]) -> tuple[str, dict[str, str]]:
    return settings["bootstrap.servers"], {name: value for name, value in settings.items() if name != "bootstrap.servers"}


@pytest.mark.parametrize("has_tls", [False, True])
def test_a_port_that_hangs_up_before_it_has_answered_may_want_tls_unless_it_has_it(has_tls: bool) -> None:
    class Transport(asyncio.Transport):
        def close(self) -> None:
            """Nothing is behind it."""

        abort = close

        def is_closing(self) -> bool:
            return False

    async def told() -> str:
        connection = Connection(address="broker:9092", client_id="test")
        connection.connection_made(Transport({"ssl_object": object()} if has_tls else {}))
        connection.connection_lost(None)
        with pytest.raises(TransportError) as raised:
            await connection.negotiate(timeout_s=1)
        return str(raised.value)

    said = asyncio.run(told())
    assert "it had answered nothing yet" in said
    assert ("does it want TLS" in said) is not has_tls


def test_a_port_that_hangs_up_before_it_has_answered_may_want_tls() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            server.accept()[0].close()

        threading.Thread(target=hang_up, daemon=True).start()
        with pytest.raises(TransportError, match="answered nothing yet: does it want TLS"):
            connect(f"127.0.0.1:{server.getsockname()[1]}")


def first_value(consumer: Any) -> Any:
    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s:
        for chunk in consumer.poll(timeout_s=1.0):
            for value in chunk.values():
                return value
    return None


@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
def test_every_listener_and_mechanism(secured: Secured, topic: str, protocol: str, mechanism: str) -> None:
    address, settings = split(secured.client(protocol, mechanism=mechanism))
    big = os.urandom(500_000)
    with connect(address, security=Security.from_settings(settings)) as log:
        log.admin().create_topic(topic)
        log.producer().send(topic, big).result(20)
        consumer = log.consumer(group_id=topic)
        consumer.subscribe([topic])
        assert first_value(consumer) == big
    for line in (repr(Security.from_settings(settings)), str(Security.from_settings(settings))):
        assert PASSWORDS["alice"] not in line


def test_sessions_are_renewed_under_way_and_nothing_is_lost(secured: Secured, topic: str) -> None:
    address, settings = split(secured.client("SASL_PLAINTEXT"))
    with connect(address, security=Security.from_settings(settings)) as log:
        log.admin().create_topic(topic)
        producer, ended_s, sent = log.producer(linger_ms=1), time.monotonic() + 3.0, 0
        while time.monotonic() < ended_s:
            offsets = [producer.send(topic, str(sent + n).encode()) for n in range(20)]
            assert [future.result(20).offset for future in offsets] == list(range(sent, sent + 20))
            sent += 20
        assert sent > 0


def test_the_asynchronous_client(secured: Secured, topic: str) -> None:
    address, settings = split(secured.client("SASL_SSL"))

    async def run() -> list[str]:
        async with connect_async(address, security=Security.from_settings(settings)) as log:
            await log.admin().create_topic(topic)
            return await log.admin().list_topics()

    assert topic in asyncio.run(run())


def refusal(address: str, settings: dict[str, str], error: type[Exception] = LoginRefused) -> str:
    with pytest.raises(error) as caught:
        connect(address, security=Security.from_settings(settings))
    assert not any(password in str(caught.value) for password in (*PASSWORDS.values(), "hunter2"))
    return str(caught.value)


def test_what_is_wrong_is_said(secured: Secured) -> None:
    address, good = split(secured.client("SASL_SSL"))
    plain_address = f"127.0.0.1:{secured.ports['PLAINTEXT']}"
    assert "refused the login as 'alice' by SCRAM-SHA-512" in refusal(address, good | {"sasl.password": "hunter2"})
    assert "it has PLAIN, SCRAM-SHA-256, SCRAM-SHA-512" in refusal(
        address, {"security.protocol": "SASL_SSL", "ssl.ca.location": secured.authority_path}
        | {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token": "e30.e30.e30"},
    )  # fmt: skip
    other = secured.write("other-ca.pem", make_authority("Other", now=NOW).certificate_pem)
    assert "name its authority in ssl.ca.location" in refusal(address, good | {"ssl.ca.location": other})
    assert "Hostname mismatch" in refusal(address.replace("127.0.0.1", "127.1"), good)
    assert "a listener without TLS" in refusal(plain_address, {"security.protocol": "SSL"}, TransportError)
    without_tls = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "a",
        "sasl.password": "hunter2",
    }
    assert "none on this listener" in refusal(plain_address, without_tls)
    with pytest.raises(TransportError):
        connect(address, timeout_s=3)


def test_the_environment_and_profiles(secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address, settings = split(secured.client("SASL_SSL"))
    path = tmp_path / "config.toml"
    secret = tmp_path / "secret"
    secret.write_text(settings["sasl.password"] + "\n")
    del settings["sasl.password"]
    monkeypatch.setenv("LOGFLUME_CONFIG", str(path))
    for name, value in settings.items():
        monkeypatch.setenv("LOGFLUME_" + name.upper().replace(".", "_"), value)
    monkeypatch.setenv("LOGFLUME_SASL_PASSWORD_FILE", str(secret))
    with connect(address) as log:
        log.admin().list_topics()
    for name in settings_of_environment(dict(os.environ)):
        monkeypatch.delenv("LOGFLUME_" + name.upper().replace(".", "_"))
    with pytest.raises(TransportError):
        connect(address, timeout_s=2)
    save_profiles(path, Profiles({"own": Profile("own", address, settings | {"sasl.password.file": str(secret)})}, "own"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with connect("profile:own") as log:
        assert log.where == "profile:own"
        log.admin().list_topics()
    monkeypatch.setenv("LOGFLUME_PROFILE", "own")
    with connect(address) as log:
        log.admin().list_topics()
    with pytest.raises(InvalidInput, match="unknown profile 'onw'; did you mean 'own'"):
        connect("profile:onw")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"security.protocol": "TLS"}, "expects PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL, found 'tls'"),
        ({"security.protcol": "SSL"}, "did you mean 'security.protocol'"),
        ({"sasl.mechanism": "PLAIN"}, "need security.protocol=SASL_SSL"),
        ({"ssl.ca.location": "x"}, "need security.protocol=SSL"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism expects PLAIN"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "needs sasl.username and sasl.password"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}, "needs a token callback"),
        ({"security.protocol": "SSL", "sasl.password": "hunter2", "sasl.password.env": "X"}, "say the same thing"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Security.from_settings(settings)
    assert says in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "1a", "a b", "9092", "a/b", "x" * 65])
def test_names_that_no_profile_has(name: str) -> None:
    with pytest.raises(InvalidInput):
        check_profile_name(name)


def test_profiles_survive_any_text(tmp_path: Path) -> None:
    settings = {"sasl.username": 'a"b\\c\nd\u2028é\U0001f600'}
    save_profiles(tmp_path / "deep" / "c.toml", Profiles({"p": Profile("p", "h:1", settings)}, "p"))
    assert load_profiles(tmp_path / "deep" / "c.toml") == Profiles({"p": Profile("p", "h:1", settings)}, "p")
    (tmp_path / "wrong.toml").write_text("[profiles.a]\nbootstrap = 5\n")
    with pytest.raises(InvalidInput, match="expects text for bootstrap"):
        load_profiles(tmp_path / "wrong.toml")


def answer_to(user: str, password: str, nonce: str, challenge: str, verifier: bytes | None) -> list[bytes]:
    """Run the client's exchange against given answers; return what it sent."""
    exchange = scram(user, password, "sha256", nonce)
    sent = [next(exchange), exchange.send(challenge.encode())]
    try:
        exchange.send(verifier if verifier is not None else RFC_7677["end"])
    except StopIteration:
        return sent
    raise AssertionError("the exchange went on")


def test_the_example_of_the_rfc_on_the_client_s_side() -> None:
    sent = answer_to("user", "pencil", "rOprNGfwEbeRWgbNEkqO", RFC_7677["challenge"].decode(), None)
    assert sent == [RFC_7677["first"], RFC_7677["final"]]


NONCE, SALT = "abc", base64.b64encode(b"salt").decode()


@pytest.mark.parametrize(
    ("challenge", "verifier"),
    [
        (f"r=abc,s={SALT},i=4096", None),
        (f"r=xyzabc,s={SALT},i=4096", None),
        (f"r=abcd,s={SALT},i=1", None),
        (f"r=abcd,s={SALT},i=99999999", None),
        (f"r=abcd,s={SALT},i=4096x", None),
        ("r=abcd,s=!,i=4096", None),
        (f"s={SALT},i=4096", None),
        (f"r=abcd,s={SALT},i=4096", b"v=" + base64.b64encode(bytes(32))),
        (f"r=abcd,s={SALT},i=4096", b"e=other-error"),
        (f"r=abcd,s={SALT},i=4096", b""),
        (f"r=abcd,s={SALT},i=4096", b"\xff"),
    ],
)
def test_a_broker_that_does_not_know_the_password_is_not_trusted(challenge: str, verifier: bytes | None) -> None:
    with pytest.raises(LoginRefused):
        answer_to("user", "pencil", NONCE, challenge, verifier)


def test_tokens_that_cannot_be() -> None:
    for wrong in (lambda: next(bearer("a b")), lambda: next(bearer("")), lambda: next(plain("a\0", "b"))):
        with pytest.raises(InvalidInput):
            wrong()
    refused: Any = bearer("e30.e30.e30")
    next(refused)
    assert refused.send(b'{"status":"invalid_token"}') == b"\x01"
    with pytest.raises(LoginRefused, match="invalid_token"):
        refused.send(b"")


def test_other_servers_ask_for_the_same_users(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    own = str(secured.broker.addresses[-1])
    assert check_login(own, "alice", PASSWORDS["alice"])
    wrong = [
        ("alice", "wrong"),
        ("nobody", PASSWORDS["alice"]),
        ("", "x"),
        ("alice", ""),
        ("bob", PASSWORDS["alice"]),
        ("a\0", "b"),
    ]
    assert not any(check_login(own, user, password) for user, password in wrong)
    address, settings = split(secured.client("SASL_SSL", user="bob"))
    for name, value in settings.items():
        monkeypatch.setenv("LOGFLUME_" + name.upper().replace(".", "_"), value)
    assert check_login(address, "alice", PASSWORDS["alice"])
    assert not check_login(address, "alice", PASSWORDS["bob"])
    with connect(own) as owner:  # the environment's user is for addresses; by the socket one stays the owner
        owner.admin().list_topics()


def steps(address: str, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Return how far a connection comes."""
    for name in settings_of_environment(dict(os.environ)):
        monkeypatch.delenv("LOGFLUME_" + name.upper().replace(".", "_"))
    for name, value in settings.items():
        monkeypatch.setenv("LOGFLUME_" + name.upper().replace(".", "_"), value)
    return [(step.name, step.is_ok) for step in probe(address)]


def test_which_step_of_a_connection_fails(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    address, good = split(secured.client("SASL_SSL"))
    other = secured.write("another-ca.pem", make_authority("Other", now=NOW).certificate_pem)
    reached: list[tuple[str, bool]] = [("name", True), ("port", True)]
    assert steps(address, good, monkeypatch) == [*reached, ("tls", True), ("login", True), ("rights", True)]
    assert steps("no.such.host.invalid:9092", good, monkeypatch) == [("name", False)]
    assert steps("127.0.0.1:1", good, monkeypatch) == [("name", True), ("port", False)]
    assert steps(address, good | {"ssl.ca.location": other}, monkeypatch) == [*reached, ("tls", False)]
    assert steps(address, good | {"sasl.password": "hunter2"}, monkeypatch) == [*reached, ("tls", True), ("login", False)]
    assert steps(f"127.0.0.1:{secured.ports['PLAINTEXT']}", good, monkeypatch) == [*reached, ("tls", False)]
