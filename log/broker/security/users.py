"""The users of a cluster and their passwords, as the mechanisms ask for them.

A user is a name with SCRAM credentials in the cluster's metadata; PLAIN checks a password against those too, so that one
`logflume user add` is enough for every mechanism. Passwords may also stand in the settings of a listener (`static`).
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from logflume.log.broker.turns.slices import Steps

from .credentials import Credentials, Mechanism, ScramCredential, load_credentials, make_credential, store_credentials
from .login import Identity

if TYPE_CHECKING:
    from logflume.log.broker.state.cluster import ClusterState

DEFAULT_ITERATIONS = 8192
MAX_PASSWORD_BYTES = 1024
_SALT_BYTES = 16


class Users:
    """Invariant: `credentials` are those in the cluster's metadata; they are replaced, never changed."""

    def __init__(self, cluster: ClusterState, *, random_bytes: Callable[[int], bytes]) -> None:
        """Raises StorageError: what is kept cannot be read."""
        self._cluster = cluster
        self.credentials: Credentials = load_credentials(cluster)
        self._secret = random_bytes(32)

    def change(self, changed: Credentials) -> Steps:
        """Replace the credentials of these users, durably; who has none is forgotten. Raises StorageError: nothing has changed.

        For steps that have the credentials `in_turn`.
        """
        yield from store_credentials(self._cluster, changed)
        new = {**self.credentials, **changed}
        for user in [user for user, own in changed.items() if not own]:
            del new[user]
        self.credentials = new

    def credential(self, user: str, mechanism: Mechanism) -> ScramCredential | None:
        """Return what is kept of a user's password for a mechanism."""
        return self.credentials.get(user, {}).get(mechanism)

    def best_credential(self, user: str) -> tuple[Mechanism, ScramCredential] | None:
        """Return a user's strongest credential."""
        own = self.credentials.get(user)
        return max(own.items()) if own else None

    def identity(self, user: str, mechanism: Mechanism, credential: ScramCredential) -> Identity:
        """Return who logged in with a credential; valid until it is changed or deleted."""
        return Identity(f"User:{user}", is_valid=lambda: self.credential(user, mechanism) == credential)

    def decoy(self, user: str, mechanism: Mechanism) -> ScramCredential:
        """Return a credential for a user that does not exist: always the same, and no password fits it."""
        salt = hmac.digest(self._secret, b"salt" + user.encode(), "sha256")[:_SALT_BYTES]
        size_bytes = hashlib.new(mechanism.hash_name).digest_size
        never = hmac.digest(self._secret, b"password" + user.encode(), "sha512")[:size_bytes]
        return make_credential(mechanism, DEFAULT_ITERATIONS, salt, never)


def fits(password: bytes, mechanism: Mechanism, credential: ScramCredential) -> bool:
    """Whether a password is that of a credential; takes milliseconds, on purpose."""
    salted = hashlib.pbkdf2_hmac(mechanism.hash_name, password, credential.salt, credential.iterations)
    client_key = hmac.digest(salted, b"Client Key", mechanism.hash_name)
    return hmac.compare_digest(hashlib.new(mechanism.hash_name, client_key).digest(), credential.stored_key)


def static_fits(password: bytes, user: str, passwords: Mapping[str, str]) -> bool:
    """Whether a password is that of a user in the settings; the time it takes tells nothing."""
    known = passwords.get(user)
    is_equal = hmac.compare_digest(hashlib.sha256(password).digest(), hashlib.sha256((known or "").encode()).digest())
    return known is not None and is_equal
