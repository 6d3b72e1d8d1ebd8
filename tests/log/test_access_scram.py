"""SCRAM credentials: what is kept of a password, what is refused, that they last, and confluent-kafka's admin client."""

import base64
import hashlib
import hmac
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from logflume.log.broker.security.credentials import Mechanism, load_credentials, make_credential
from logflume.log.protocol import ErrorCode, messages

from ._server_process import ServerProcess
from ._simulated_broker import SimulatedBroker

Alter = messages.AlterUserScramCredentialsRequest
SALT = b"0123456789abcdef"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[SimulatedBroker]:
    made = SimulatedBroker(tmp_path)
    yield made
    made.close()


def salted(password: bytes, mechanism: Mechanism, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password, SALT, iterations)


def upsertion(name: str = "alice", *, mechanism: int = 1, iterations: int = 4096, **fields: Any) -> Any:
    known = Mechanism(mechanism) if mechanism in (1, 2) else Mechanism.SHA_256
    password = salted(b"secret", known, iterations)
    values = {"salt": SALT, "salted_password": password} | fields
    return Alter.ScramCredentialUpsertion(name=name, mechanism=mechanism, iterations=iterations, **values)


def deletion(name: str = "alice", *, mechanism: int = 1) -> Any:
    return Alter.ScramCredentialDeletion(name=name, mechanism=mechanism)


def alter(broker: SimulatedBroker, *changes: Any) -> dict[str, int]:
    request = Alter(
        deletions=[each for each in changes if isinstance(each, Alter.ScramCredentialDeletion)],
        upsertions=[each for each in changes if isinstance(each, Alter.ScramCredentialUpsertion)],
    )
    return {result.user: result.error_code for result in broker.call(request, 0).results}


def describe(broker: SimulatedBroker, *names: str) -> dict[str, Any]:
    request = messages.DescribeUserScramCredentialsRequest
    users = [request.UserName(name=name) for name in names] if names else None
    return {
        result.user: result.error_code or [(info.mechanism, info.iterations) for info in result.credential_infos]
        for result in broker.call(request(users=users), 0).results
    }


def test_the_keys_fit_the_exchange_in_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    message = f"n=user,r=rOprNGfwEbeRWgbNEkqO,r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,c=biws,r={nonce}".encode()
    kept = make_credential(Mechanism.SHA_256, 4096, salt, hashlib.pbkdf2_hmac("sha256", b"pencil", salt, 4096))
    signature = base64.b64encode(hmac.digest(kept.server_key, message, "sha256"))
    assert signature == b"6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    proof = base64.b64decode("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    client_key = bytes(a ^ b for a, b in zip(proof, hmac.digest(kept.stored_key, message, "sha256"), strict=True))
    assert hashlib.sha256(client_key).digest() == kept.stored_key


def test_credentials_are_set_listed_replaced_and_deleted_and_last(broker: SimulatedBroker) -> None:
    assert alter(broker, upsertion("alice"), upsertion("bob", mechanism=2, iterations=8192)) == {"alice": 0, "bob": 0}
    assert alter(broker, upsertion("alice", mechanism=2, iterations=16384)) == {"alice": 0}
    expected = {"alice": [(1, 4096), (2, 16384)], "bob": [(2, 8192)]}
    assert describe(broker) == expected
    broker.power_cut(random.Random(3))
    assert describe(broker) == expected
    assert describe(broker, "bob", "carol") == {"bob": [(2, 8192)], "carol": ErrorCode.RESOURCE_NOT_FOUND}
    assert describe(broker, "bob", "bob") == {"bob": ErrorCode.DUPLICATE_RESOURCE}
    assert alter(broker, deletion("alice"), deletion("bob")) == {"alice": 0, "bob": ErrorCode.RESOURCE_NOT_FOUND}
    assert describe(broker) == {"alice": [(2, 16384)], "bob": [(2, 8192)]}
    assert alter(broker, deletion("alice", mechanism=2)) == {"alice": 0}
    assert describe(broker, "alice") == {"alice": ErrorCode.RESOURCE_NOT_FOUND}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (upsertion(""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("x" * 5000), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion(mechanism=0), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (upsertion(mechanism=3), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (upsertion(iterations=4095), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion(iterations=16385), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion(salt=b""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion(salt=b"s" * 2000), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion(salted_password=b"secret"), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (deletion(""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (deletion(mechanism=0), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (deletion(), ErrorCode.RESOURCE_NOT_FOUND),
    ],
)
def test_what_is_no_credential_is_refused_and_others_go_on(broker: SimulatedBroker, change: Any, error: ErrorCode) -> None:
    assert alter(broker, change, upsertion("good")) == {change.name: error, "good": 0}
    assert describe(broker) == {"good": [(1, 4096)]}


def test_a_user_may_be_changed_once_in_a_request(broker: SimulatedBroker) -> None:
    assert alter(broker, upsertion(mechanism=1), upsertion(mechanism=2)) == {"alice": ErrorCode.DUPLICATE_RESOURCE}
    assert alter(broker, upsertion(), deletion()) == {"alice": ErrorCode.DUPLICATE_RESOURCE}
    assert describe(broker) == {}


def test_nothing_secret_is_shown(broker: SimulatedBroker) -> None:
    alter(broker, upsertion())
    kept = load_credentials(broker.core.cluster)["alice"][Mechanism.SHA_256]
    assert kept.stored_key.hex() not in repr(kept)
    assert SALT.hex() not in repr(kept)


def test_confluent_kafka_manages_credentials(server: ServerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": server.address})
    name = "confluent-user"
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 10_000)
    for future in admin.alter_user_scram_credentials([UserScramCredentialUpsertion(name, info, b"password", b"salt")]).values():
        future.result(30)
    described = admin.describe_user_scram_credentials([name])[name].result(30)
    assert [(each.mechanism, each.iterations) for each in described.scram_credential_infos] == [
        (ScramMechanism.SCRAM_SHA_512, 10_000)
    ]
    gone = UserScramCredentialDeletion(name, ScramMechanism.SCRAM_SHA_512)
    admin.alter_user_scram_credentials([gone])[name].result(30)
    with pytest.raises(KafkaException, match="does not exist"):
        admin.describe_user_scram_credentials([name])[name].result(30)
