"""Delegation tokens (KIP-48): a user's login handed on to workers, for a while. Kept in the metadata, without their secret.

The secret of a token is the HMAC-SHA-512 of its id under `delegation.token.secret.key`; it is made anew when it is needed.
Who logs in with a token sends its id as the user and its secret, as base64, as the password of SCRAM.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from logflume.log.broker.replies import Reply
from logflume.log.broker.state.cluster import ClusterState
from logflume.log.broker.state.metadata import DocumentSet
from logflume.log.broker.turns.slices import Steps
from logflume.log.errors import StorageError
from logflume.log.protocol import ErrorCode, KafkaError

from .credentials import MIN_ITERATIONS, Mechanism, ScramCredential, make_credential

DOCUMENT = "delegation_tokens"
MAX_TOKENS, MAX_RENEWERS = 10_000, 100
AT_A_TIME = 1_000
"""Tokens in one slice of the loop's time."""


@dataclass(frozen=True, slots=True)
class DelegationToken:
    """A token; principals as User:alice, times in wall milliseconds."""

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_ms: int
    expires_ms: int
    max_ms: int


_FIELDS = tuple(each.name for each in fields(DelegationToken))


class DelegationTokens:
    """The tokens of a cluster. Without a secret key there are none, and none can be made.

    Who changes them, which is done in steps, has them `in_turn`.

    Invariant: `_tokens` is what the cluster's metadata hold, by id.
    """

    def __init__(self, cluster: ClusterState, secret_key: str, *, random_bytes: Callable[[int], bytes]) -> None:
        """Raises StorageError: what is kept cannot be read."""
        self._cluster, self._secret_key, self._random_bytes = cluster, secret_key.encode(), random_bytes
        try:
            kept = [DelegationToken(**each | {"renewers": tuple(each["renewers"])}) for each in cluster.document(DOCUMENT) or ()]
        except (KeyError, TypeError, AttributeError) as error:
            text = f"the delegation tokens in cluster.json cannot be read ({type(error).__name__}); restore it from a backup"
            raise StorageError(text) from None
        self._tokens = {token.token_id: token for token in kept}

    @property
    def is_enabled(self) -> bool:
        return bool(self._secret_key)

    def make(
        self, owner: str, requester: str, renewers: Iterable[str], *, now_ms: int, lifetime_ms: int, renew_ms: int
    ) -> Generator[Reply | None, None, DelegationToken]:
        """Make a token that ends after `lifetime_ms`, and after `renew_ms` unless it is renewed. Raises KafkaError."""
        yield from self.forget_ended(now_ms)
        renewers = tuple(renewers)
        if len(self._tokens) >= MAX_TOKENS or len(renewers) > MAX_RENEWERS:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, f"at most {MAX_TOKENS} tokens, of at most {MAX_RENEWERS} renewers each")
        token_id = base64.urlsafe_b64encode(self._random_bytes(16)).decode().rstrip("=")
        most_ms = now_ms + lifetime_ms
        token = DelegationToken(token_id, owner, requester, renewers, now_ms, min(most_ms, now_ms + renew_ms), most_ms)
        yield from self._store({**self._tokens, token_id: token})
        return token

    def renew(self, token: DelegationToken, *, now_ms: int, period_ms: int) -> Generator[Reply | None, None, DelegationToken]:
        """Let a token live on, up to its most."""
        changed = replace(token, expires_ms=min(token.max_ms, now_ms + period_ms))
        yield from self._store({**self._tokens, token.token_id: changed})
        return changed

    def end(self, token: DelegationToken, *, at_ms: int | None) -> Generator[Reply | None, None, int]:
        """Let a token end at a time, or now (None); returns when it ends."""
        if at_ms is None:
            yield from self._store({key: each for key, each in self._tokens.items() if key != token.token_id})
            return token.issued_ms
        changed = replace(token, expires_ms=min(token.max_ms, at_ms))
        yield from self._store({**self._tokens, token.token_id: changed})
        return changed.expires_ms

    def forget_ended(self, now_ms: int) -> Steps:
        """Drop the tokens that have ended."""
        alive = {key: token for key, token in self._tokens.items() if token.expires_ms > now_ms}
        if len(alive) < len(self._tokens):
            yield from self._store(alive)

    def by_id(self, token_id: str) -> DelegationToken | None:
        return self._tokens.get(token_id)

    def by_secret(self, secret: bytes) -> DelegationToken | None:
        """Return the token of a secret; each is compared, so that the time it takes tells nothing."""
        found = None
        for token in self._tokens.values():
            if hmac.compare_digest(self.secret_of(token), secret):
                found = token
        return found

    def all(self) -> list[DelegationToken]:
        return list(self._tokens.values())

    def secret_of(self, token: DelegationToken) -> bytes:
        return hmac.digest(self._secret_key, token.token_id.encode(), "sha512")

    def credential(self, token: DelegationToken, mechanism: Mechanism) -> ScramCredential:
        """Return what SCRAM compares a login by a token with."""
        salt = hmac.digest(self._secret_key, b"salt" + token.token_id.encode(), "sha256")[:16]
        password = base64.b64encode(self.secret_of(token))
        salted = hashlib.pbkdf2_hmac(mechanism.hash_name, password, salt, MIN_ITERATIONS)
        return make_credential(mechanism, MIN_ITERATIONS, salt, salted)

    def _store(self, tokens: dict[str, DelegationToken]) -> Steps:
        """Raises StorageError."""
        content: list[dict[str, Any]] = []
        for token in tokens.values():
            content.append({name: getattr(token, name) for name in _FIELDS})
            if len(content) % AT_A_TIME == 0:
                yield None
        yield from self._cluster.later(DocumentSet(DOCUMENT, content))
        self._tokens = tokens
