"""SCRAM credentials as Kafka keeps them (RFC 5802, KIP-554): never the password, but salt, iterations, stored key and server key.

Who reads them cannot log in with them; a server can check a login against them and prove itself.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from logflume.log.broker.state.metadata import DocumentSet
from logflume.log.broker.turns.slices import Steps
from logflume.log.errors import StorageError
from logflume.log.protocol import ErrorCode, KafkaError

if TYPE_CHECKING:
    from logflume.log.broker.state.cluster import ClusterState

DOCUMENT = "scram_credentials"
MIN_ITERATIONS, MAX_ITERATIONS = 4096, 16384
MAX_USERS = 10_000
AT_A_TIME = 500
"""Users in one slice of the loop's time."""
MAX_NAME_CHARS, MAX_SALT_BYTES = 4096, 1024


class Mechanism(IntEnum):
    """SCRAM mechanisms with their codes on the wire."""

    SHA_256 = 1
    SHA_512 = 2

    @property
    def sasl_name(self) -> str:
        return f"SCRAM-SHA-{self.name[4:]}"

    @property
    def hash_name(self) -> str:
        return f"sha{self.name[4:]}"


@dataclass(frozen=True, slots=True, repr=False)
class ScramCredential:
    """What a server keeps of a password for one mechanism."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


Credentials = Mapping[str, Mapping[Mechanism, ScramCredential]]
"""User -> mechanism -> credential."""


def mechanism_of(code: int) -> Mechanism:
    """Return a mechanism by its code. Raises KafkaError UNSUPPORTED_SASL_MECHANISM."""
    if code not in Mechanism._value2member_map_:
        known = ", ".join(f"{each.value} ({each.sasl_name})" for each in Mechanism)
        raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"SCRAM mechanism {code}: expected {known}")
    return Mechanism(code)


def make_credential(mechanism: Mechanism, iterations: int, salt: bytes, salted_password: bytes) -> ScramCredential:
    """Return what is kept of a salted password. Raises KafkaError UNACCEPTABLE_CREDENTIAL."""
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        few_or_many = "few" if iterations < MIN_ITERATIONS else "many"
        raise _unacceptable(f"Too {few_or_many} iterations: expected {MIN_ITERATIONS} to {MAX_ITERATIONS}, found {iterations}")
    size_bytes = hashlib.new(mechanism.hash_name).digest_size
    if len(salted_password) != size_bytes:
        raise _unacceptable(f"a salted password of {mechanism.sasl_name} has {size_bytes} bytes, found {len(salted_password)}")
    if not 1 <= len(salt) <= MAX_SALT_BYTES:
        raise _unacceptable(f"expected a salt of 1 to {MAX_SALT_BYTES} bytes, found {len(salt)}")
    client_key = hmac.digest(salted_password, b"Client Key", mechanism.hash_name)
    return ScramCredential(
        salt=salt,
        iterations=iterations,
        stored_key=hashlib.new(mechanism.hash_name, client_key).digest(),
        server_key=hmac.digest(salted_password, b"Server Key", mechanism.hash_name),
    )


def check_user(name: str) -> None:
    """Raise KafkaError UNACCEPTABLE_CREDENTIAL unless the name can be a user's."""
    if not name:
        raise _unacceptable("Username must not be empty")
    if name == "*":
        raise _unacceptable("a user cannot be called *: in ACLs User:* is everybody")
    if len(name) > MAX_NAME_CHARS:
        raise _unacceptable(f"a user name has at most {MAX_NAME_CHARS} characters, found {len(name)}")


def _unacceptable(message: str) -> KafkaError:
    return KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, message)


def load_credentials(cluster: ClusterState) -> Credentials:
    """Return the credentials kept with the cluster's metadata. Raises StorageError."""
    try:
        return {
            user: {Mechanism[name]: _from_json(value) for name, value in own.items()}
            for user, own in (cluster.document(DOCUMENT) or {}).items()
        }
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        text = f"the SCRAM credentials in cluster.json cannot be read ({type(error).__name__}); restore the file from a backup"
        raise StorageError(text) from None


def store_credentials(cluster: ClusterState, changed: Mapping[str, Mapping[Mechanism, ScramCredential]]) -> Steps:
    """Keep the credentials of these users, none for those to forget, durably. For steps that have them `in_turn`.

    Raises StorageError.
    """
    content = dict(cluster.document(DOCUMENT) or {})
    for number, (user, own) in enumerate(changed.items(), start=1):
        if own:
            content[user] = {mechanism.name: _to_json(value) for mechanism, value in own.items()}
        else:
            content.pop(user, None)
        if number % AT_A_TIME == 0:
            yield None
    yield from cluster.later(DocumentSet(DOCUMENT, content))


def _to_json(credential: ScramCredential) -> dict[str, Any]:
    return {
        "salt": credential.salt.hex(),
        "iterations": credential.iterations,
        "stored_key": credential.stored_key.hex(),
        "server_key": credential.server_key.hex(),
    }


def _from_json(value: dict[str, Any]) -> ScramCredential:
    return ScramCredential(
        bytes.fromhex(value["salt"]),
        int(value["iterations"]),
        bytes.fromhex(value["stored_key"]),
        bytes.fromhex(value["server_key"]),
    )
