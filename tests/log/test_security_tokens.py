"""Logins by tokens: OAUTHBEARER against published keys, and delegation tokens over SCRAM."""

import base64
import hashlib
import hmac
import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from joserfc import jws, jwt
from joserfc.jwk import ECKey, RSAKey
from kafka import KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider as KafkaPythonProvider

from logflume.log import LoginRefused, Security, connect
from logflume.log.broker.ports import do_at_once
from logflume.log.broker.security import Identity, LoginFailed, Step
from logflume.log.broker.security.bearer import BearerExchange, TokenRules, judge, parse_first
from logflume.log.broker.security.listener_settings import ListenerSettings
from logflume.log.broker.security.mechanisms import check_mechanisms
from logflume.log.broker.settings.lookup import BrokerConfig
from logflume.log.client.logins import scram
from logflume.log.errors import InvalidInput, LogflumeError
from logflume.log.protocol import ErrorCode, messages
from logflume.log.server.jwks import Jwks, check_url, read_keys

from ._secured import PASSWORDS, Secured
from ._wire import Wire
from .test_security_logins import AUTHENTICATE, HANDSHAKE, ask_for, log_in, mangled, whoami

EC, RSA = ECKey.generate_key("P-256", parameters={"kid": "ec"}), RSAKey.generate_key(2048, parameters={"kid": "rsa"})
STRANGER = ECKey.generate_key("P-256", parameters={"kid": "ec"})
ISSUER, AUDIENCE = "https://idp.example", "kafka"
RULES = TokenRules(ISSUER, {AUDIENCE}, ("kafka.use",))
NOW_S = time.time()


def published() -> bytes:
    return json.dumps({"keys": [EC.as_dict(private=False), RSA.as_dict(private=False)]}).encode()


def claims(**changes: Any) -> dict[str, Any]:
    made = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": int(NOW_S) + 600, "scope": "kafka.use other"} | changes
    return {name: value for name, value in made.items() if value is not None}


def token(*, key: Any = EC, header: dict[str, Any] | None = None, **changes: Any) -> str:
    return jwt.encode(header or {"alg": "ES256", "kid": "ec"}, claims(**changes), key, algorithms=["ES256", "RS256", "HS256"])


class Published:
    """The keys, without a source."""

    def __init__(self) -> None:
        self.keys = read_keys(published())

    def find(self, key_id: str) -> Any | None:
        return self.keys.get(key_id)


def test_a_good_token_says_who_it_is_and_until_when() -> None:
    for good in (token(), token(key=RSA, header={"alg": "RS256", "kid": "rsa"}), token(aud=["x", AUDIENCE], scope=["kafka.use"])):
        identity = judge(good, RULES, Published(), NOW_S)
        assert identity == Identity("User:alice", expires_ms=(int(NOW_S) + 630) * 1000)


def by_hand(header: dict[str, Any], sign: Callable[[bytes], bytes]) -> str:
    """Return a token as no library makes it."""
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (header, claims())]
    signature = base64.urlsafe_b64encode(sign(b".".join(parts))).rstrip(b"=")
    return b".".join([*parts, signature]).decode()


def unsigned() -> str:
    return by_hand({"alg": "none", "kid": "ec"}, lambda _: b"")


def signed_by_the_public_key() -> str:
    """The trick of old libraries: the published key as the shared secret of HS256."""
    return by_hand({"alg": "HS256", "kid": "rsa"}, lambda signed: hmac.digest(RSA.as_pem(private=False), signed, "sha256"))


WRONG: dict[str, Callable[[], str]] = {
    "empty": lambda: "",
    "no JWT": lambda: "a.b",
    "not base64": lambda: "a.b.c",
    "unsigned": unsigned,
    "unsigned with rubbish": lambda: unsigned() + "AAAA",
    "shared secret": signed_by_the_public_key,
    "stranger's key": lambda: token(key=STRANGER),
    "no key id": lambda: token(header={"alg": "ES256"}),
    "unknown key id": lambda: token(header={"alg": "ES256", "kid": "x"}),
    "key of another kind": lambda: token(header={"alg": "ES256", "kid": "rsa"}),
    "key inside": lambda: token(key=STRANGER, header={"alg": "ES256", "kid": "ec", "jwk": STRANGER.as_dict(private=False)}),
    "critical header": lambda: by_hand({"alg": "ES256", "kid": "ec", "crit": ["x"], "x": 1}, lambda _: bytes(64)),
    "other issuer": lambda: token(iss="https://idp.example.evil"),
    "no issuer": lambda: token(iss=None),
    "other audience": lambda: token(aud="web"),
    "no audience": lambda: token(aud=None),
    "audience is a number": lambda: token(aud=[5]),
    "ended": lambda: token(exp=int(NOW_S) - 31),
    "no end": lambda: token(exp=None),
    "end is text": lambda: token(exp="tomorrow"),
    "end is true": lambda: token(exp=True),
    "begins later": lambda: token(nbf=int(NOW_S) + 31),
    "issued later": lambda: token(iat=int(NOW_S) + 31),
    "no scope": lambda: token(scope=None),
    "another scope": lambda: token(scope="kafka.user"),
    "scope is a number": lambda: token(scope=[5]),
    "no subject": lambda: token(sub=None),
    "subject is empty": lambda: token(sub=""),
    "subject is a number": lambda: token(sub=5),
    "subject with a line break": lambda: token(sub="alice\nUser:admin"),
    "claims are a list": lambda: jws.serialize_compact({"alg": "ES256", "kid": "ec"}, b"[]", EC),
    "claims are rubbish": lambda: jws.serialize_compact({"alg": "ES256", "kid": "ec"}, b"\xff", EC),
    "changed": lambda: token()[:-4] + "AAAA",
}


@pytest.mark.parametrize("name", WRONG)
def test_tokens_that_are_refused_and_never_shown(name: str) -> None:
    text = WRONG[name]()
    with pytest.raises(LoginFailed) as caught:
        judge(text, RULES, Published(), NOW_S)
    assert not text or text not in str(caught.value)
    exchange = BearerExchange(RULES, Published(), lambda: NOW_S)
    if text:
        assert exchange.respond(f"n,,\x01auth=Bearer {text}\x01\x01".encode()) == Step(b'{"status": "invalid_token"}')
        with pytest.raises(LoginFailed):  # RFC 7628, 3.2.3: the client says that it has understood
            exchange.respond(b"\x01")


@pytest.mark.parametrize(
    "message",
    [
        b"", b"n,,", b"n,,\x01\x01", b"n,,\x01auth=Bearer x\x01", b"y,,auth=Bearer x\x01\x01", b"p=x,,\x01auth=Bearer x\x01\x01",
        b"n,,\x01auth=Basic x\x01\x01", b"n,,\x01auth=Bearer \x01\x01", b"n,,\x01user=x\x01\x01", b"n,b=x,\x01auth=Bearer x\x01\x01",  # noqa: E501
        b"n,,\x01auth=Bearer x\x01auth=Bearer y\x01\x01", b"n,,\x01auth=Bearer \xff\x01\x01", b"n,,\x01au th=Bearer x\x01\x01",
        b"n,,\x01auth=Bearer " + b"x" * 20_000 + b"\x01\x01", b"n,,\x01auth=Bearer x\x01\x01more", b"\x01",
    ],
)  # fmt: skip
def test_first_messages_that_are_refused(message: bytes) -> None:
    with pytest.raises(LoginFailed):
        parse_first(message)
    assert parse_first(b"n,a=x,\x01host=h\x01port=1\x01auth=bearer t\x01\x01") == ("x", "t")


def test_a_token_stands_for_its_subject_only() -> None:
    exchange = BearerExchange(RULES, Published(), lambda: NOW_S)
    assert exchange.respond(f"n,a=admin,\x01auth=Bearer {token()}\x01\x01".encode()).identity is None


@pytest.mark.slow
def test_no_changed_token_lets_anybody_in() -> None:
    rng, keys, good = random.Random(22), Published(), f"n,,\x01auth=Bearer {token()}\x01\x01".encode()
    for _ in range(10_000):
        message = mangled(rng, good)
        try:
            step = BearerExchange(RULES, keys, lambda: NOW_S).respond(message)
        except LoginFailed:
            continue
        assert step.identity is None or parse_first(message)[1] == token_in(good)


def token_in(message: bytes) -> str:
    return parse_first(message)[1]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("tokens")
    (directory / "jwks.json").write_bytes(published())
    configs = {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": str(directory / "jwks.json"),
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.scope": "kafka.use",
        "delegation.token.secret.key": "the cluster's own secret",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin;User:service",
    }
    started = Secured(directory, **configs)
    yield started
    started.close()


def bearer_client(secured: Secured) -> dict[str, str]:
    settings = secured.client("SASL_SSL")
    return {name: value for name, value in settings.items() if not name.startswith("sasl.")} | {"sasl.mechanism": "OAUTHBEARER"}


def test_clients_log_in_by_a_token(secured: Secured, topic: str) -> None:
    settings = bearer_client(secured)
    producer = Producer(settings | {"oauth_cb": lambda _: (token(sub="service"), time.time() + 600)})
    producer.produce(topic, b"v")
    assert producer.flush(30) == 0

    class Provider(KafkaPythonProvider):
        def token(self) -> str:
            return token(sub="service")

    other = KafkaProducer(
        bootstrap_servers=settings["bootstrap.servers"],
        security_protocol="SASL_SSL",
        ssl_cafile=settings["ssl.ca.location"],
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=Provider(),
    )
    assert other.send(topic, b"v").get(30).offset == 1
    other.close()
    own = {name: value for name, value in settings.items() if name != "bootstrap.servers"}
    with connect(settings["bootstrap.servers"], security=Security.from_settings(own, token=lambda: token(sub="service"))) as log:
        assert topic in log.admin().list_topics()
    with pytest.raises(LoginRefused, match="refused the login"):
        connect(settings["bootstrap.servers"], security=Security.from_settings(own, token=lambda: token(key=STRANGER)))


def test_a_session_ends_with_its_token(secured: Secured) -> None:
    with Wire(secured.ports["SASL_PLAINTEXT"]) as wire:
        wire.call(HANDSHAKE(mechanism="OAUTHBEARER"), 1)
        answer = wire.call(AUTHENTICATE(auth_bytes=f"n,,\x01auth=Bearer {token(exp=int(time.time()) - 29)}\x01\x01".encode()), 2)
        assert answer.error_code == 0
        assert 0 < answer.session_lifetime_ms <= 2000
        with pytest.raises(ConnectionError):
            ask_for(wire, 15)


def bearer_settings(**changes: str | None) -> ListenerSettings:
    configs = {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": "/keys.json",
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
    } | {f"sasl.oauthbearer.{name.replace('_', '.')}": value for name, value in changes.items()}
    return ListenerSettings(BrokerConfig({name: value for name, value in configs.items() if value is not None}), "X", "SASL_SSL")


@pytest.mark.parametrize("name", ["jwks_endpoint_url", "expected_issuer", "expected_audience"])
def test_a_listener_that_would_take_tokens_unchecked_is_refused(name: str) -> None:
    check_mechanisms(bearer_settings())
    with pytest.raises(InvalidInput, match="no token is taken unchecked"):
        check_mechanisms(bearer_settings(**{name: None}))


@pytest.mark.parametrize(
    ("url", "allowed", "says"),
    [
        ("https://idp.example/keys", [], "is not an allowed URL"),
        ("https://idp.example/keys", ["https://idp.example/"], "is not an allowed URL"),
        ("http://idp.example/keys", ["http://idp.example/keys"], "expects https://"),
        ("ftp://idp.example/keys", ["ftp://idp.example/keys"], "expects https://"),
    ],
)
def test_keys_come_from_where_the_settings_allow(url: str, allowed: list[str], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        check_url(url, allowed)


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"{}", b'{"keys": 5}', b'{"keys": []}', b'{"keys": [{"kty": "oct", "kid": "a", "k": "AA"}]}']
)
def test_files_that_hold_no_keys_are_refused(raw: bytes, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(raw)
    with pytest.raises(InvalidInput):
        Jwks(str(path), allowed=[], refresh_ms=1000, retry_ms=0, offload=do_at_once)


def test_new_keys_are_read_and_broken_ones_are_not(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(published())
    keys = Jwks(f"file://{path}", allowed=[], refresh_ms=10**9, retry_ms=0, offload=do_at_once)
    assert keys.find("new") is None
    path.write_bytes(b"broken")
    keys.refresh()
    assert keys.find("ec") is not None
    new = ECKey.generate_key("P-256", parameters={"kid": "new"})
    path.write_bytes(json.dumps({"keys": [new.as_dict(private=False)]}).encode())
    keys.refresh()
    assert (keys.find("ec"), keys.find("new") is not None) == (None, True)


def logged_in(secured: Secured, user: str) -> Wire:
    wire = Wire(secured.ports["SASL_PLAINTEXT"])
    assert log_in(wire, user, PASSWORDS[user]).error_code == 0
    return wire


def by_token(secured: Secured, token_id: str, secret: bytes) -> Wire:
    """Log in by a delegation token, as Kafka's clients do; raises LoginFailed."""
    wire = Wire(secured.ports["SASL_PLAINTEXT"])
    wire.call(HANDSHAKE(mechanism="SCRAM-SHA-256"), 1)
    exchange: Any = scram(token_id, base64.b64encode(secret).decode(), "sha256", "nonce", is_token=True)
    sent = next(exchange)
    while True:
        answer = wire.call(AUTHENTICATE(auth_bytes=sent), 2)
        if answer.error_code:
            wire.sock.close()
            raise LoginFailed(answer.error_message)
        try:
            sent = exchange.send(answer.auth_bytes)
        except StopIteration:
            return wire


def make_token(wire: Wire, **fields: Any) -> Any:
    return wire.call(messages.CreateDelegationTokenRequest(**{"max_lifetime_ms": -1} | fields), 3)


def test_a_delegation_token_from_its_beginning_to_its_end(secured: Secured) -> None:
    renewer = messages.CreateDelegationTokenRequest.CreatableRenewers(principal_type="User", principal_name="bob")
    with logged_in(secured, "admin") as admin, logged_in(secured, "bob") as bob, logged_in(secured, "alice") as alice:
        made = make_token(admin, renewers=[renewer])
        assert (made.error_code, made.principal_name, made.token_requester_principal_name) == (0, "admin", "admin")
        assert made.hmac == hmac_of("the cluster's own secret", made.token_id)
        with by_token(secured, made.token_id, made.hmac) as worker:
            assert whoami(worker)
            assert make_token(worker).error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
            (seen,) = bob.call(messages.DescribeDelegationTokenRequest(owners=None), 3).tokens
            assert (seen.token_id, seen.renewers[0].principal_name) == (made.token_id, "bob")
            renewed = bob.call(messages.RenewDelegationTokenRequest(hmac=made.hmac, renew_period_ms=1000), 2)
            assert renewed.error_code == 0
            refused = alice.call(messages.ExpireDelegationTokenRequest(hmac=made.hmac, expiry_time_period_ms=-1), 2)
            assert refused.error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
            assert bob.call(messages.ExpireDelegationTokenRequest(hmac=made.hmac, expiry_time_period_ms=-1), 2).error_code == 0
            worker.send(messages.MetadataRequest(topics=[]), 12)
            assert worker.is_closed_by_broker()
        with pytest.raises(LoginFailed):
            by_token(secured, made.token_id, made.hmac)
        gone = bob.call(messages.RenewDelegationTokenRequest(hmac=made.hmac, renew_period_ms=1000), 2)
        assert gone.error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def hmac_of(key: str, token_id: str) -> bytes:
    return hmac.digest(key.encode(), token_id.encode(), "sha512")


def test_tokens_of_others_need_a_right_and_wrong_secrets_are_refused(secured: Secured) -> None:
    with logged_in(secured, "admin") as admin, logged_in(secured, "alice") as alice:
        made = make_token(admin, owner_principal_type="User", owner_principal_name="carol")
        assert (made.error_code, made.principal_name, made.token_requester_principal_name) == (0, "carol", "admin")
        group = make_token(admin, owner_principal_type="Group", owner_principal_name="x")
        assert group.error_code == ErrorCode.INVALID_PRINCIPAL_TYPE
        for wrong in (b"", b"x" * 64, hashlib.sha512(made.hmac).digest()):
            with pytest.raises(LoginFailed):
                by_token(secured, made.token_id, wrong)
        with by_token(secured, made.token_id, made.hmac) as carol:
            assert not whoami(carol)
        assert alice.call(messages.DescribeDelegationTokenRequest(owners=[]), 3).tokens == []
    with Wire(secured.ports["PLAINTEXT"]) as stranger:
        assert make_token(stranger).error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


def test_secrets_of_tokens_are_not_kept(secured: Secured) -> None:
    with logged_in(secured, "admin") as admin:
        made = make_token(admin)
    kept = (secured.directory / "data" / "cluster.json").read_bytes()
    assert made.token_id.encode() in kept
    assert not any(form in kept for form in (made.hmac, made.hmac.hex().encode(), base64.b64encode(made.hmac), b"own secret"))


def test_without_a_secret_key_there_are_no_tokens(tmp_path: Path) -> None:
    other = Secured(tmp_path)
    try:
        with logged_in(other, "alice") as alice:
            assert make_token(alice).error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
            with pytest.raises((LoginFailed, LogflumeError)):
                by_token(other, "x", b"")
    finally:
        other.close()
