"""Whom a quota concerns, what it may limit, and which of several quotas counts (KIP-13, KIP-546)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import NamedTuple

from logflume.log.errors import near_matches
from logflume.log.protocol import ErrorCode, KafkaError

USER, CLIENT_ID, IP = "user", "client-id", "ip"
ENTITY_TYPES = (USER, CLIENT_ID, IP)
DEFAULT = None
"""The name of the entity that stands for all those which have no quota of their own."""
MAX_ENTITIES = 10_000
MAX_NAME_CHARS = 4096

PRODUCE, FETCH, REQUEST, MUTATION = "producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate"
CONNECTIONS = "connection_creation_rate"
CLIENT_KEYS = (PRODUCE, FETCH, REQUEST, MUTATION)
IP_KEYS = (CONNECTIONS,)
_WHOLE = {PRODUCE: 2**63 - 1, FETCH: 2**63 - 1, CONNECTIONS: 2**31 - 1}

Entity = frozenset[tuple[str, str | None]]
"""Entity type -> name (None: the default), as pairs: `{("user", "alice"), ("client-id", None)}`."""


def check_entity(parts: Iterable[tuple[str, str | None]]) -> Entity:
    """Return the entity. Raises KafkaError INVALID_REQUEST: no, unknown, repeated or contradicting parts."""
    given = list(parts)
    types = [kind for kind, _ in given]
    if not given:
        raise _refuse("a quota needs a user, a client-id or an ip that it concerns")
    for kind, name in given:
        if kind not in ENTITY_TYPES:
            raise _refuse(f"entity type {kind[:100]!r}: expected user, client-id or ip")
        if types.count(kind) > 1:
            raise _refuse(f"{kind} is named twice in one entity")
        if name == "":
            raise _refuse(f"the name of a {kind} is empty; leave it out (null) for the default")
        if name is not None and len(name) > MAX_NAME_CHARS:
            raise _refuse(f"the name of a {kind} has {len(name)} characters; expected at most {MAX_NAME_CHARS}")
    if IP in types:
        if len(types) > 1:
            raise _refuse("an ip has quotas of its own: it cannot be combined with user or client-id")
        _check_address(given[0][1])
    return frozenset(given)


def _check_address(name: str | None) -> None:
    if name is not None:
        try:
            ip_address(name)
        except ValueError:
            raise _refuse(f"{name[:100]!r} is not an IP address") from None


def check_quota(entity: Entity, key: str, value: float) -> None:
    """Raise KafkaError INVALID_REQUEST unless the key is one of this entity and the value is legal."""
    keys = IP_KEYS if any(kind == IP for kind, _ in entity) else CLIENT_KEYS
    if key not in keys:
        near = near_matches(key, keys)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise _refuse(f"quota {key[:100]!r}: expected {' or '.join(keys)}{hint}")
    if not math.isfinite(value) or value <= 0:
        raise _refuse(f"quota {key} must be greater than 0, found {value}")
    most = _WHOLE.get(key)
    if most is not None and (value > most or value % 1 > 1e-6):
        raise _refuse(f"quota {key} must be a whole number up to {most}, found {value}")


def _refuse(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


class Limit(NamedTuple):
    """The quota that counts for a client, and `bucket`: with whom the use is measured together, (user, client id), "" for any."""

    value: float
    bucket: tuple[str, str]


@dataclass(frozen=True, slots=True)
class QuotaTable:
    """All quotas: entity -> key -> limit. Values were checked."""

    entries: Mapping[Entity, Mapping[str, float]]

    def client_limit(self, key: str, user: str, client_id: str) -> Limit | None:
        """Return the limit of a client: the most specific entity that has this key counts, users before client ids."""
        both, of_user, of_client = (user, client_id), (user, ""), ("", client_id)
        order: tuple[tuple[Entity, tuple[str, str]], ...] = (
            (frozenset({(USER, user), (CLIENT_ID, client_id)}), both),
            (frozenset({(USER, user), (CLIENT_ID, DEFAULT)}), both),
            (frozenset({(USER, user)}), of_user),
            (frozenset({(USER, DEFAULT), (CLIENT_ID, client_id)}), both),
            (frozenset({(USER, DEFAULT), (CLIENT_ID, DEFAULT)}), both),
            (frozenset({(USER, DEFAULT)}), of_user),
            (frozenset({(CLIENT_ID, client_id)}), of_client),
            (frozenset({(CLIENT_ID, DEFAULT)}), of_client),
        )
        for entity, bucket in order:
            value = self.entries.get(entity, {}).get(key)
            if value is not None:
                return Limit(value, bucket)
        return None

    def ip_limit(self, address: str) -> float | None:
        """Return how many connections per second an address may make."""
        for name in (address, DEFAULT):
            value = self.entries.get(frozenset({(IP, name)}), {}).get(CONNECTIONS)
            if value is not None:
                return value
        return None
