"""Logins by SASL: what is said when, what is refused, and that nothing is served before one."""

import base64
import contextlib
import hashlib
import random
import socket
import struct
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from logflume.log.broker.access import Operation, Pattern, Permission, Resource
from logflume.log.broker.security import Identity, Login, LoginCounts, LoginFailed, LoginPolicy, Step
from logflume.log.broker.security.credentials import Mechanism, ScramCredential, make_credential
from logflume.log.broker.security.jaas import parse_jaas, plain_passwords
from logflume.log.broker.security.listener_settings import ListenerSettings
from logflume.log.broker.security.mechanisms import check_mechanisms
from logflume.log.broker.security.plain import parse_plain
from logflume.log.broker.security.scram import ScramExchange
from logflume.log.broker.settings.lookup import BrokerConfig
from logflume.log.broker.testing.simulated import SimulatedTime
from logflume.log.errors import InvalidInput
from logflume.log.protocol import ErrorCode, frames, messages, tables

from ._secured import PASSWORDS, Secured
from ._wire import Wire

HANDSHAKE, AUTHENTICATE = messages.SaslHandshakeRequest, messages.SaslAuthenticateRequest
RFC_7677: dict[str, Any] = {  # the example of RFC 7677, section 3
    "first": b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
    "nonce": "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
    "salt": base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="),
    "challenge": b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
    "final": b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    "end": b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
}


class OneAccount:
    """One user: `user` with password `pencil`."""

    def find(self, user: str, mechanism: Mechanism, *, is_token: bool) -> tuple[ScramCredential, Identity | None]:
        return pencil(mechanism), Identity(f"User:{user}") if user == "user" and not is_token else None


def rfc_exchange() -> ScramExchange:
    """Return an exchange whose half of the nonce is the example's."""
    return ScramExchange(Mechanism.SHA_256, OneAccount(), lambda: RFC_7677["nonce"])


@lru_cache
def pencil(mechanism: Mechanism) -> ScramCredential:
    salted = hashlib.pbkdf2_hmac(mechanism.hash_name, b"pencil", RFC_7677["salt"], 4096)
    return make_credential(mechanism, 4096, RFC_7677["salt"], salted)


def test_the_example_of_the_rfc() -> None:
    exchange = rfc_exchange()
    assert exchange.respond(RFC_7677["first"]) == Step(RFC_7677["challenge"])
    assert exchange.respond(RFC_7677["final"]) == Step(RFC_7677["end"], Identity("User:user"))


@pytest.mark.parametrize(
    "token",
    [
        b"", b"n", b"n,,", b"n,,n=user", b"n,,r=abc", b"n,,r=abc,n=user", b"n,,n=,r=abc", b"n,,n=user,r=", b"n,,n=us=er,r=abc",
        b"n,,n=us=2cer,r=abc", b"n,,n=user,r=a\x7fc", b"n,,n=user,r=a c", b"n,,m=x,n=user,r=abc", b"p=tls-unique,,n=user,r=abc",
        b"x,,n=user,r=abc", b"n,a=other,n=user,r=abc", b"n,b=user,n=user,r=abc", b"n,,n=user,r=abc,junk", b"n,,n=u\x00ser,r=abc",
        b"\xff\xfe", b"n,,n=user,r=" + b"a" * 2000, b"n,,n=" + b"u" * 9000 + b",r=abc",
    ],
)  # fmt: skip
def test_first_messages_that_are_refused(token: bytes) -> None:
    with pytest.raises(LoginFailed):
        rfc_exchange().respond(token)


def changed(old: bytes, new: bytes) -> bytes:
    assert old in RFC_7677["final"]
    return bytes(RFC_7677["final"].replace(old, new))


@pytest.mark.parametrize(
    "token",
    [
        b"", b"c=biws", b"p=AAAA", changed(b"c=biws", b"c=eSws"), changed(b"c=biws", b"c=!!"), changed(b"c=biws,", b""),
        changed(b"hNlF$k0", b"hNlF$k1"), changed(b"hNlF$k0", b"hNlF$k"), changed(b"hNlF$k0", b"hNlF$k0x"),
        changed(b"%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", b""), changed(b",p=d", b",m=1,p=d"), changed(b",p=d", b",x=1,p=d"),
        changed(b"dHzb", b"eHzb"), changed(b"dHzb", b""), changed(b"dVQ=", b"dVQ"), changed(b"dVQ=", b"===="), b"\xff",
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=" + base64.b64encode(bytes(32)),
    ],
)  # fmt: skip
def test_last_messages_that_are_refused(token: bytes) -> None:
    exchange = rfc_exchange()
    exchange.respond(RFC_7677["first"])
    with pytest.raises(LoginFailed):
        exchange.respond(token)


def test_extensions_that_need_not_be_known_are_let_through() -> None:
    assert rfc_exchange().respond(b"y,a=user,n=user,r=abc,ext=1")


@pytest.mark.parametrize(
    "token", [b"", b"\0\0", b"a", b"\0a\0", b"\0\0p", b"b\0a\0p", b"\0a\0p\0x", b"\0\xff\0p", b"\0a\0" + b"p" * 2000]
)
def test_plain_tokens_that_are_refused(token: bytes) -> None:
    with pytest.raises(LoginFailed):
        parse_plain(token)
    assert parse_plain(b"a\0a\0p") == ("a", b"p")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    configs = {
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{module} required user_kept="in; \\"settings\\"";',
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin",
        "logflume.login.timeout.ms": "1000",
    }
    started = Secured(tmp_path_factory.mktemp("logins"), **configs)
    yield started
    started.close()


@pytest.fixture
def wire(secured: Secured) -> Iterator[Wire]:
    with Wire(secured.ports["SASL_PLAINTEXT"]) as opened:
        yield opened


def plain(user: str, password: str) -> bytes:
    return f"\0{user}\0{password}".encode()


def log_in(wire: Wire, user: str, password: str, *, mechanism: str = "PLAIN") -> Any:
    assert wire.call(HANDSHAKE(mechanism=mechanism), 1).error_code == 0
    return wire.call(AUTHENTICATE(auth_bytes=plain(user, password)), 2)


def whoami(wire: Wire) -> bool:
    """Whether this connection may do what only User:admin may."""
    answer = wire.call(
        messages.DescribeAclsRequest(resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1), 3
    )
    assert answer.error_code in (0, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return bool(answer.error_code == 0)


def test_the_principal_is_who_logged_in(secured: Secured) -> None:
    for user, password, is_admin in ((*("admin", PASSWORDS["admin"]), True), (*("alice", PASSWORDS["alice"]), False)):
        with Wire(secured.ports["SASL_PLAINTEXT"]) as wire:
            assert log_in(wire, user, password).error_code == 0
            assert whoami(wire) is is_admin


def test_users_in_the_settings(secured: Secured, wire: Wire) -> None:
    assert log_in(wire, "kept", 'in; "settings"').error_code == 0
    with Wire(secured.ports["SASL_PLAINTEXT"]) as other:
        assert log_in(other, "kept", "wrong").error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert other.is_closed_by_broker()


def first_versions() -> list[tuple[str, int]]:
    return [(name, key) for name, key in sorted(tables.api_names().items()) if key not in (17, 18, 36)]


def test_nothing_else_is_served_before_a_login(secured: Secured) -> None:
    answer = None
    for _, key in first_versions():
        with Wire(secured.ports["SASL_PLAINTEXT"]) as wire:
            answer = wire.call(messages.ApiVersionsRequest(), 0)
            last = tables.api(key).versions.last
            wire.sock.sendall(struct.pack(">ihhih", 12, key, last, 7, -1) + b"\0\0")
            assert wire.is_closed_by_broker(), key
    assert answer.error_code == 0
    assert {17, 36} <= {api.api_key for api in answer.api_keys}


def test_a_request_right_behind_the_token_waits_for_the_login(secured: Secured, wire: Wire) -> None:
    wire.send(HANDSHAKE(mechanism="PLAIN"), 1, correlation_id=1)
    wire.send(AUTHENTICATE(auth_bytes=plain("alice", PASSWORDS["alice"])), 2, correlation_id=2)
    wire.send(messages.MetadataRequest(topics=[]), 12, correlation_id=3)
    asked = (HANDSHAKE, 1), (AUTHENTICATE, 2), (messages.MetadataRequest, 12)
    assert [wire.receive(message, version)[0] for message, version in asked] == [1, 2, 3]
    with Wire(secured.ports["SASL_PLAINTEXT"]) as other:
        other.send(HANDSHAKE(mechanism="PLAIN"), 1, correlation_id=1)
        other.send(AUTHENTICATE(auth_bytes=plain("alice", "wrong")), 2, correlation_id=2)
        other.send(messages.MetadataRequest(topics=[]), 12, correlation_id=3)
        assert other.receive(HANDSHAKE, 1)[1].error_code == 0
        assert other.receive(AUTHENTICATE, 2)[1].error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert other.is_closed_by_broker()


def test_states_that_are_not_legal(secured: Secured) -> None:
    port = secured.ports["SASL_PLAINTEXT"]
    with Wire(port) as wire:
        assert wire.call(AUTHENTICATE(auth_bytes=b"x"), 2).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert wire.is_closed_by_broker()
    with Wire(port) as wire:
        answer = wire.call(HANDSHAKE(mechanism="SCRAM-SHA-1"), 1)
        assert (answer.error_code, answer.mechanisms) == (
            ErrorCode.UNSUPPORTED_SASL_MECHANISM, ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"],
        )  # fmt: skip
        assert wire.is_closed_by_broker()
    with Wire(port) as wire:
        log_in(wire, "alice", PASSWORDS["alice"])
        assert wire.call(HANDSHAKE(mechanism="PLAIN"), 1).error_code == ErrorCode.ILLEGAL_SASL_STATE
    with Wire(secured.ports["PLAINTEXT"]) as wire:
        assert wire.call(HANDSHAKE(mechanism="PLAIN"), 1).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert wire.call(AUTHENTICATE(auth_bytes=b"x"), 2).error_code == ErrorCode.ILLEGAL_SASL_STATE


def test_bare_tokens_after_a_handshake_of_version_0(wire: Wire) -> None:
    assert wire.call(HANDSHAKE(mechanism="PLAIN"), 0).error_code == 0
    token = plain("alice", PASSWORDS["alice"])
    wire.sock.sendall(struct.pack(">i", len(token)) + token)
    assert wire.receive_frame() == b""
    assert wire.call(messages.MetadataRequest(topics=[]), 12).brokers


def test_a_frame_before_the_login_is_small(wire: Wire) -> None:
    wire.sock.sendall(struct.pack(">i", 65_537))
    assert wire.is_closed_by_broker()


def test_who_does_not_log_in_is_disconnected(secured: Secured, wire: Wire) -> None:
    began_s = time.monotonic()
    assert wire.is_closed_by_broker()
    assert time.monotonic() - began_s < 19


def test_a_user_who_is_changed_or_deleted_is_refused_from_then_on(secured: Secured) -> None:
    for new in ("other", None):
        secured.set_user("leaver", "leaver-secret")
        with Wire(secured.ports["SASL_PLAINTEXT"]) as wire:
            assert log_in(wire, "leaver", "leaver-secret").error_code == 0
            secured.set_user("alice", PASSWORDS["alice"])  # somebody else's change is nothing to him
            assert wire.call(messages.MetadataRequest(topics=[]), 12).brokers
            secured.set_user("leaver", new)
            wire.send(messages.MetadataRequest(topics=[]), 12)
            assert wire.is_closed_by_broker()


def test_a_process_of_the_owner_logs_in_as_a_user_by_his_socket(secured: Secured) -> None:
    path = secured.broker.addresses[-1].unix_path
    wire = Wire.__new__(Wire)
    wire.sock = socket.socket(socket.AF_UNIX)
    wire.sock.settimeout(20)
    assert path is not None
    wire.sock.connect(path)
    with wire:
        assert whoami(wire)
        assert log_in(wire, "alice", PASSWORDS["alice"]).error_code == 0
        assert not whoami(wire)


def ask_for(wire: Wire, seconds: float) -> None:
    """Ask again and again for so long."""
    deadline_s = time.monotonic() + seconds
    while time.monotonic() < deadline_s:
        wire.call(messages.MetadataRequest(topics=[]), 12)


def test_a_refusal_is_told_after_a_pause_and_counted() -> None:
    class Refusing:
        def respond(self, token: bytes) -> Step:
            raise LoginFailed("no")

    clock, counts, told = SimulatedTime(), LoginCounts(), list[tuple[str, ...]]()
    policy = LoginPolicy(
        {"PLAIN": Refusing}, clock, clock, counts, failed_delay_ms=100, told=lambda *what: told.append(tuple(map(str, what)))
    )
    for number in range(1, 3):
        login = Login(policy, principal="User:ANONYMOUS", host="1.2.3.4")
        assert login.handshake("PLAIN", version=1).error_code == 0
        answer = login.authenticate(b"wrong")
        assert counts.by_outcome == {("PLAIN", "failed"): number}
        assert told == [("1.2.3.4", "PLAIN", "", "no")] * number
        clock.advance(99)
        assert not answer.is_done
        clock.advance(1)
        assert answer.value.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert login.is_failed


@pytest.mark.parametrize("name", ["Zoë", 'a "b" \\c', "a,b=c", "x y", "User:x", "-", "o'n", "%s {0}", "日本"])
def test_a_user_of_odd_characters_has_the_rights_that_name_him(secured: Secured, name: str) -> None:
    secured.set_user(name, "päss, word=1")
    creation = messages.CreateAclsRequest.AclCreation(
        resource_type=Resource.CLUSTER,
        resource_name="kafka-cluster",
        resource_pattern_type=Pattern.LITERAL,
        principal=f"User:{name}",
        host="*",
        operation=Operation.DESCRIBE,
        permission_type=Permission.ALLOW,
    )
    made = secured.broker.submit("CreateAcls", 2, messages.CreateAclsRequest(creations=[creation])).result(10)
    assert made.results[0].error_code == 0
    with Wire(secured.ports["SASL_PLAINTEXT"]) as wire:
        assert log_in(wire, name, "päss, word=1").error_code == 0
        assert whoami(wire)


def test_nobody_is_called_as_everybody_is(secured: Secured) -> None:
    request = messages.AlterUserScramCredentialsRequest
    upsertion = request.ScramCredentialUpsertion(name="*", mechanism=1, iterations=4096, salt=b"salt", salted_password=b"p" * 32)
    (result,) = secured.broker.submit("AlterUserScramCredentials", 0, request(upsertions=[upsertion])).result(10).results
    assert result.error_code == ErrorCode.UNACCEPTABLE_CREDENTIAL
    assert "User:* is everybody" in result.error_message


def test_sessions_end_and_are_renewed(tmp_path: Path) -> None:
    secured = Secured(tmp_path, **{"connections.max.reauth.ms": "1500"})
    try:
        with Wire(secured.ports["SASL_PLAINTEXT"]) as wire:
            assert log_in(wire, "alice", PASSWORDS["alice"]).session_lifetime_ms == 1500
            for _ in range(3):
                assert log_in(wire, "alice", PASSWORDS["alice"]).error_code == 0
                assert wire.call(messages.MetadataRequest(topics=[]), 12).brokers
            answer = log_in(wire, "bob", PASSWORDS["bob"])
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED  # nobody becomes somebody else
            assert wire.is_closed_by_broker()
        with Wire(secured.ports["SASL_PLAINTEXT"]) as wire:
            log_in(wire, "alice", PASSWORDS["alice"])
            with pytest.raises(ConnectionError):
                ask_for(wire, 15)
    finally:
        secured.close()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_no_secret_is_shown(secured: Secured, mechanism: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    secret = b"hunter2-shown-nowhere"
    token = b"\0alice\0" + secret if mechanism == "PLAIN" else b"n,,n=alice,r=" + secret
    with Wire(secured.ports["SASL_PLAINTEXT"]) as wire:
        wire.call(HANDSHAKE(mechanism=mechanism), 1)
        wire.call(AUTHENTICATE(auth_bytes=token), 2)
    assert not [line for line in caplog.messages if secret.decode() in line or any(p in line for p in PASSWORDS.values())]


MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


def test_jaas_text_is_read_and_never_shown() -> None:
    text = f'{MODULE} required username="admin" password="a;b" user_admin="x\\"y" user_b=plain ;'
    assert plain_passwords(parse_jaas(text, setting="s")) == {"admin": 'x"y', "b": "plain"}
    for wrong in (
        "",
        "com.evil.Module required;",
        f"{MODULE} needed;",
        f'{MODULE} required user_a="hunter2"',
        f"{MODULE} required a;b",
    ):
        with pytest.raises(InvalidInput) as caught:
            parse_jaas(wrong, setting="s")
        assert "hunter2" not in str(caught.value)


def test_listeners_whose_mechanisms_do_not_fit() -> None:
    with pytest.raises(InvalidInput, match=r"GSSAPI needs .*; or set sasl\.enabled\.mechanisms to others"):
        check_mechanisms(ListenerSettings(BrokerConfig({}), "X", "SASL_SSL"))  # Kafka's default
    for configs in ({"sasl.enabled.mechanisms": "PLAIN,DIGEST"}, {"listener.name.x.sasl.enabled.mechanisms": "CRAM-MD5"}):
        with pytest.raises(InvalidInput, match=r"listener X: sasl\.enabled\.mechanisms expects some of"):
            check_mechanisms(ListenerSettings(BrokerConfig(configs), "X", "SASL_SSL"))
    own = BrokerConfig({"listener.name.x.sasl.enabled.mechanisms": "PLAIN", "listener.name.x.plain.sasl.jaas.config": "rubbish"})
    with pytest.raises(InvalidInput, match=r"sasl\.jaas\.config: expected MODULE"):
        check_mechanisms(ListenerSettings(own, "X", "SASL_SSL"))


def mangled(rng: random.Random, seed: bytes) -> bytes:
    """Return bytes with some changed, cut or put in."""
    data = bytearray(seed)
    for _ in range(rng.randint(0, 4)):
        position = rng.randrange(len(data) + 1)
        match rng.randrange(4):
            case 0 if position < len(data):
                data[position] = rng.randrange(256)
            case 1:
                data[position:position] = rng.randbytes(rng.randint(1, 8))
            case 2:
                del data[position : position + rng.randint(1, 8)]
            case _:
                data[position : position + 4] = struct.pack(">i", rng.choice((-1, 0, 2**31 - 1, 65_536, 65_537)))
    return bytes(data)


@pytest.mark.slow
def test_no_changed_token_lets_anybody_in() -> None:
    rng = random.Random(20)
    for _ in range(10_000):
        exchange, token, last = rfc_exchange(), mangled(rng, RFC_7677["first"]), mangled(rng, RFC_7677["final"])
        try:
            exchange.respond(token)
            exchange.respond(last)
        except LoginFailed:
            continue
        assert (token, last) == (RFC_7677["first"], RFC_7677["final"]), "a login without the password"
    for _ in range(10_000):
        token = mangled(rng, b"\0alice\0secret")
        try:
            user, password = parse_plain(token)
        except LoginFailed:
            continue
        assert token.split(b"\0")[1:] == [user.encode(), password]


def framed(message: Any, version: int) -> bytes:
    return b"".join(bytes(part) for part in frames.request_frame(message, version, 1, "fuzz"))


@pytest.mark.slow
def test_rubbish_before_the_login_ends_its_connection_and_nothing_else(secured: Secured) -> None:
    rng, port = random.Random(21), secured.ports["SASL_PLAINTEXT"]
    login = framed(HANDSHAKE(mechanism="PLAIN"), 1) + framed(AUTHENTICATE(auth_bytes=b"\0a\0b"), 2)
    scram = framed(HANDSHAKE(mechanism="SCRAM-SHA-256"), 0) + struct.pack(">i", 30) + RFC_7677["first"][:30]
    seeds = [login, scram, framed(messages.ApiVersionsRequest(), 3), framed(messages.MetadataRequest(topics=[]), 12)]
    with Wire(port) as healthy:
        log_in(healthy, "alice", PASSWORDS["alice"])
        for _ in range(400):
            with Wire(port) as wire, contextlib.suppress(ConnectionError):
                wire.sock.sendall(mangled(rng, b"".join(rng.choices(seeds, k=rng.randint(1, 3)))))
                wire.sock.shutdown(socket.SHUT_WR)
                while wire.sock.recv(4096):
                    pass
        assert healthy.call(messages.MetadataRequest(topics=[]), 12).brokers
