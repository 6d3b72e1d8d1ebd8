"""Kerberos: real tickets of a real KDC (skipped without one), with three clients; rules and messages everywhere."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from kafka import KafkaConsumer, KafkaProducer

from logflume.log import LoginRefused, Security, connect
from logflume.log.broker.security import LoginFailed
from logflume.log.broker.security.kerberos import LocalRules, check_choice
from logflume.log.broker.security.listener_settings import ListenerSettings
from logflume.log.broker.security.mechanisms import check_mechanisms
from logflume.log.broker.settings.lookup import BrokerConfig
from logflume.log.errors import InvalidInput
from logflume.log.protocol import ErrorCode, messages

from ._kerberos import REALM, Realm, missing, realm
from ._secured import Secured
from ._wire import Wire

WITH_KDC = pytest.mark.skipif(bool(missing()), reason=missing() or "-")
HANDSHAKE, AUTHENTICATE = messages.SaslHandshakeRequest, messages.SaslAuthenticateRequest
RULES = "RULE:[2:$1@$0](admin@.*)s/@.*//,DEFAULT"


@pytest.mark.parametrize(
    ("rules", "principal", "user"),
    [
        ("DEFAULT", "alice@R", "alice"),
        ("DEFAULT", "alice/host.example@R", "alice"),
        ("", "alice@R", "alice"),
        ("RULE:[1:$1]", "Alice@OTHER", "Alice"),
        ("RULE:[1:$1]/L", "Alice@OTHER", "alice"),
        ("RULE:[1:$1]/U", "Alice@OTHER", "ALICE"),
        ("RULE:[2:$1.$2]", "alice/ops@OTHER", "alice.ops"),
        ("RULE:[1:$1@$0](.*@EVIL)s/.*/nobody/,RULE:[1:$1]", "alice@OTHER", "alice"),
        ("RULE:[1:$1@$0](.*@OTHER)s/@.*/-other/", "alice@OTHER", "alice-other"),
        ("RULE:[1:$1](a.*)s/a/b/", "aaa@R", "baa"),
        ("RULE:[1:$1](a.*)s/a/b/g", "aaa@R", "bbb"),
        ("RULE:[1:$1]s/(a)(.*)/$2$1/", "abc@R", "bca"),
        ("RULE:[2:$1](x), RULE:[2:$2]", "alice/ops@R", "ops"),
    ],
)
def test_a_principal_becomes_a_user(rules: str, principal: str, user: str) -> None:
    assert LocalRules(rules, realm="R").user(principal) == user


@pytest.mark.parametrize(
    ("rules", "principal", "says"),
    [
        ("DEFAULT", "alice@OTHER", "no rule"),
        ("DEFAULT", "alice", "NAME@REALM"),
        ("DEFAULT", "alice@", "NAME@REALM"),
        ("DEFAULT", "@R", "NAME@REALM"),
        ("DEFAULT", "a/b/c@R", "NAME@REALM"),
        ("DEFAULT", "alice@R@R", "NAME@REALM"),
        ("DEFAULT", "admin\\@R@R", "NAME@REALM"),
        ("DEFAULT", "a" * 5000 + "@R", "NAME@REALM"),
        ("DEFAULT", "a b@R", "no simple name"),
        ("RULE:[1:$1@$0]", "alice@R", "no simple name"),
        ("RULE:[1:$1](b.*)", "alice@R", "no rule"),
        ("RULE:[2:$1]", "alice@R", "no rule"),
        ("RULE:[1:$1]s/.*//g", "alice@R", "no simple name"),
    ],
)
def test_principals_that_stand_for_nobody(rules: str, principal: str, says: str) -> None:
    with pytest.raises(LoginFailed, match=says):
        LocalRules(rules, realm="R").user(principal)


@pytest.mark.parametrize(
    "rules",
    [
        "default", "RULE", "RULE:", "RULE:[]", "RULE:[1]", "RULE:[x:$1]", "RULE:[0:$0]", "RULE:[3:$1]", "RULE:[1:$2]",
        "RULE:[1:$1](", "RULE:[1:$1](()", "RULE:[1:$1](*)", "RULE:[1:$1]s/a", "RULE:[1:$1]s/a/b", "RULE:[1:$1]s/a/b/x",
        "RULE:[1:$1]s/a/$1/", "RULE:[1:$1]s/(?=a)/b/", "RULE:[1:$1]/X", "DEFAULT;DEFAULT", ",".join(["DEFAULT"] * 101),
    ],
)  # fmt: skip
def test_rules_that_do_not_parse(rules: str) -> None:
    with pytest.raises(InvalidInput, match=r"sasl\.kerberos\.principal\.to\.local\.rules"):
        LocalRules(rules, realm="R")


def test_the_choice_of_a_layer() -> None:
    check_choice(b"\x01\0\0\0")
    check_choice(b"\x01\0\0\0alice@R")
    for wrong in (b"", b"\x01\0\0", b"\x02\0\0\0", b"\x04\xff\xff\xff", b"\0\0\0\0", b"\x01\0\0\0" + b"a" * 2000):
        with pytest.raises(LoginFailed, match="layer"):
            check_choice(wrong)


def listener(**configs: str) -> ListenerSettings:
    named = {name.replace("__", "."): value for name, value in configs.items()}
    return ListenerSettings(BrokerConfig({"sasl.enabled.mechanisms": "GSSAPI", **named}), "X", "SASL_PLAINTEXT")


def test_without_the_library_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logflume.log.broker.security.mechanisms.find_spec", lambda name: None)
    monkeypatch.setattr("logflume.log.client.security.find_spec", lambda name: None)
    with pytest.raises(InvalidInput, match=r"pip install 'logflume\[gssapi\]'; or set sasl\.enabled\.mechanisms"):
        check_mechanisms(listener(sasl__kerberos__service__name="kafka"))
    with pytest.raises(InvalidInput, match=r"pip install 'logflume\[gssapi\]'"):
        Security.from_settings({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"})


def test_settings_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logflume.log.broker.security.mechanisms.find_spec", lambda name: name)
    module = 'com.sun.security.auth.module.Krb5LoginModule required keyTab="x" serviceName="other";'
    assert check_mechanisms(listener(sasl__kerberos__service__name="kafka")) == ["GSSAPI"]
    assert check_mechanisms(listener(sasl__jaas__config=module)) == ["GSSAPI"]
    with pytest.raises(InvalidInput, match="found none"):
        check_mechanisms(listener())
    with pytest.raises(InvalidInput, match="found kafka and other"):
        check_mechanisms(listener(sasl__kerberos__service__name="kafka", sasl__jaas__config=module))
    with pytest.raises(InvalidInput, match="expected DEFAULT or RULE"):
        check_mechanisms(
            listener(sasl__kerberos__service__name="kafka", sasl__kerberos__principal__to__local__rules="ROLE:[1:$1]")
        )


@pytest.fixture(scope="module")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    with realm(tmp_path_factory.mktemp("realm")) as running, pytest.MonkeyPatch.context() as patch:
        for name, value in running.environment.items():
            patch.setenv(name, value)
        keytab = running.keytab("alice", "alice.keytab")
        patch.setenv("KRB5CCNAME", running.ticket("alice", keytab))
        yield running


@pytest.fixture(scope="module")
def secured(kdc: Realm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    keytab = kdc.keytab("kafka/127.0.0.1", "kafka.keytab")
    module = "com.sun.security.auth.module.Krb5LoginModule"
    started = Secured(
        tmp_path_factory.mktemp("broker"),
        **{
            "sasl.enabled.mechanisms": "GSSAPI,SCRAM-SHA-512",
            "sasl.kerberos.service.name": "kafka",
            "sasl.kerberos.principal.to.local.rules": RULES,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:admin;User:alice",
            "logflume.audit.log": str(kdc.directory / "audit.log"),
        }
        | {
            f"listener.name.{name}.gssapi.sasl.jaas.config": (
                f'{module} required useKeyTab=true keyTab="{keytab}" principal="kafka/127.0.0.1@{REALM}";'
            )
            for name in ("sasl_plaintext", "sasl_ssl")
        },
    )
    yield started
    started.close()


def settings(secured: Secured, protocol: str, **more: str) -> tuple[str, dict[str, str]]:
    given = {"security.protocol": protocol, "sasl.mechanism": "GSSAPI", **more}
    if "SSL" in protocol:
        given["ssl.ca.location"] = secured.authority_path
    return f"127.0.0.1:{secured.ports[protocol]}", given


def last_login(kdc: Realm) -> str:
    return [line for line in (kdc.directory / "audit.log").read_text().splitlines() if '"api":"login"' in line][-1]


@WITH_KDC
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_our_client_by_ticket_and_by_keytab(kdc: Realm, secured: Secured, topic: str, protocol: str) -> None:
    address, by_ticket = settings(secured, protocol)
    with connect(address, security=Security.from_settings(by_ticket)) as log:
        log.admin().create_topic(topic)
        log.producer().send(topic, b"by ticket").result(20)
    assert '"principal":"User:alice"' in last_login(kdc)
    keytab = kdc.keytab("admin/ops", "admin.keytab")
    _, by_keytab = settings(
        secured, protocol, **{"sasl.kerberos.keytab": keytab, "sasl.kerberos.principal": f"admin/ops@{REALM}"}
    )
    with connect(address, security=Security.from_settings(by_keytab)) as log:
        assert topic in log.admin().list_topics()
    assert '"principal":"User:admin"' in last_login(kdc)


@WITH_KDC
def test_kafka_python_and_aiokafka(kdc: Realm, secured: Secured, topic: str) -> None:
    address = f"127.0.0.1:{secured.ports['SASL_PLAINTEXT']}"
    given: dict[str, Any] = {"bootstrap_servers": address, "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "GSSAPI"}
    producer = KafkaProducer(**given)
    producer.send(topic, b"of kafka-python").get(30)
    producer.close()
    consumer = KafkaConsumer(topic, **given, auto_offset_reset="earliest", consumer_timeout_ms=30_000)
    assert next(iter(consumer)).value == b"of kafka-python"
    consumer.close()

    async def run() -> list[bytes]:
        async with AIOKafkaProducer(**given) as producer:
            await producer.send_and_wait(topic, b"of aiokafka")
        async with AIOKafkaConsumer(topic, **given, auto_offset_reset="earliest") as consumer:
            return [(await asyncio.wait_for(consumer.getone(), 30)).value for _ in range(2)]

    assert asyncio.run(run()) == [b"of kafka-python", b"of aiokafka"]


@WITH_KDC
def test_what_is_wrong_with_a_login_is_said(
    kdc: Realm, secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, good = settings(secured, "SASL_PLAINTEXT")

    def refusal(error: type[Exception] = LoginRefused, **more: str) -> str:
        with pytest.raises(error) as caught:
            connect(address, security=Security.from_settings(good | {f"sasl.kerberos.{key}": more[key] for key in more}))
        return str(caught.value)

    assert "Server nobody/127.0.0.1@LOGFLUME.TEST not found" in refusal(**{"service.name": "nobody"})
    assert "refused the login by GSSAPI" in refusal(**{"service.name": "http"})  # another service's ticket
    assert "the ticket was refused" in last_login(kdc)
    assert "no ticket for" in refusal(InvalidInput, keytab=str(tmp_path / "none"), principal=f"bob@{REALM}")
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path}/empty")
    assert "Kerberos, kafka@127.0.0.1: " in refusal()


@WITH_KDC
def test_a_user_of_the_realm_has_the_rights_that_he_has(kdc: Realm, secured: Secured) -> None:
    address, good = settings(secured, "SASL_PLAINTEXT")
    kdc.run("kadmin.local", text="addprinc -randkey other/ops\n")
    keytab = kdc.keytab("other/ops", "other.keytab")
    by_keytab = good | {"sasl.kerberos.keytab": keytab, "sasl.kerberos.principal": f"other/ops@{REALM}"}
    with connect(address, security=Security.from_settings(by_keytab)) as log, pytest.raises(Exception, match="AUTHORIZATION"):
        log.admin().create_topic("not-his")


def tokens_of(kdc: Realm) -> Any:
    import gssapi

    target = gssapi.Name("kafka@127.0.0.1", gssapi.NameType.hostbased_service)
    return gssapi.SecurityContext(name=target, usage="initiate")


@WITH_KDC
def test_a_token_counts_once_and_unchanged(kdc: Realm, secured: Secured) -> None:
    port = secured.ports["SASL_PLAINTEXT"]
    first = bytes(tokens_of(kdc).step())

    def answer(token: bytes) -> int:
        with Wire(port) as wire:
            assert wire.call(HANDSHAKE(mechanism="GSSAPI"), 1).error_code == 0
            return int(wire.call(AUTHENTICATE(auth_bytes=token), 2).error_code)

    changed = bytearray(tokens_of(kdc).step())
    changed[len(changed) // 2] ^= 1
    refused = ErrorCode.SASL_AUTHENTICATION_FAILED
    assert answer(bytes(changed)) == refused
    assert answer(b"") == answer(b"rubbish") == answer(os.urandom(60_000)) == refused
    assert answer(first) == 0
    assert answer(first) == refused, "replayed"


@WITH_KDC
@pytest.mark.parametrize(
    "choice",
    [b"", b"\x02\0\0\0", b"\x04\0\xff\xff", b"\x01\0", b"\x01\0\0\0" + b"x" * 2000],
    ids=["empty", "sign", "seal", "short", "long"],
)
def test_a_layer_cannot_be_chosen(kdc: Realm, secured: Secured, choice: bytes) -> None:
    with Wire(secured.ports["SASL_PLAINTEXT"]) as wire:
        context = offered(kdc, wire)
        answer = wire.call(AUTHENTICATE(auth_bytes=bytes(context.wrap(choice, False).message)), 2)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert wire.is_closed_by_broker()


@WITH_KDC
def test_a_choice_that_is_not_signed_is_refused(kdc: Realm, secured: Secured) -> None:
    with Wire(secured.ports["SASL_PLAINTEXT"]) as wire:
        offered(kdc, wire)
        assert wire.call(AUTHENTICATE(auth_bytes=b"\x01\0\0\0"), 2).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


@WITH_KDC
def test_nobody_acts_as_somebody_else(kdc: Realm, secured: Secured) -> None:
    with Wire(secured.ports["SASL_PLAINTEXT"]) as wire:
        context = offered(kdc, wire)
        choice = context.wrap(b"\x01\0\0\0admin@" + REALM.encode(), False).message
        assert wire.call(AUTHENTICATE(auth_bytes=bytes(choice)), 2).error_code == 0
    assert '"principal":"User:alice"' in last_login(kdc)


def offered(kdc: Realm, wire: Wire) -> Any:
    """Bring a login as far as the broker's offer of layers."""
    context = tokens_of(kdc)
    assert wire.call(HANDSHAKE(mechanism="GSSAPI"), 1).error_code == 0
    answer = wire.call(AUTHENTICATE(auth_bytes=bytes(context.step())), 2)
    context.step(answer.auth_bytes)
    assert context.complete
    answer = wire.call(AUTHENTICATE(auth_bytes=b""), 2)
    assert context.unwrap(answer.auth_bytes).message == b"\x01\0\0\0"
    return context


@WITH_KDC
@pytest.mark.parametrize(
    ("keytab", "principal", "says"),
    [("missing.keytab", "", "cannot read the keytab"), ("kafka.keytab", f"kafka/elsewhere@{REALM}", "no key of kafka/elsewhere")],
)
def test_a_key_that_is_not_there_stops_the_start(
    kdc: Realm, secured: Secured, tmp_path: Path, keytab: str, principal: str, says: str
) -> None:
    named = f' principal="{principal}"' if principal else ""
    jaas = f'com.sun.security.auth.module.Krb5LoginModule required keyTab="{kdc.directory / keytab}"{named};'
    with pytest.raises(InvalidInput, match=says):
        Secured(tmp_path, **{
            "sasl.enabled.mechanisms": "GSSAPI",
            "sasl.kerberos.service.name": "kafka",
            "sasl.jaas.config": jaas,
        })  # fmt: skip
