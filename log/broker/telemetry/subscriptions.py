"""Subscriptions to clients' metrics: resources of type CLIENT_METRICS, kept with the cluster's metadata.

Each has the prefixes of the metrics it wants (`*` or an empty prefix: all), an interval, and what clients it is for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from logflume.log.broker.patterns import Pattern, PatternError, compile_pattern
from logflume.log.broker.settings.spec import ConfigSpec, find_spec
from logflume.log.broker.settings.table import CLIENT_METRICS_CONFIGS
from logflume.log.broker.state.cluster import ClusterState
from logflume.log.broker.state.metadata import DocumentSet
from logflume.log.broker.turns.slices import Steps
from logflume.log.errors import StorageError, near_matches
from logflume.log.protocol import ErrorCode, KafkaError

DOCUMENT = "client_metrics"
MAX_SUBSCRIPTIONS = 1000
MAX_NAME_CHARS = 249
METRICS, INTERVAL, MATCH = "metrics", "interval.ms", "match"
ALL_METRICS = "*"


class Client(NamedTuple):
    """What a subscription can tell clients apart by; the names are those of its `match`."""

    client_instance_id: str
    client_id: str
    client_software_name: str
    client_software_version: str
    client_source_address: str
    client_source_port: str


@dataclass(frozen=True, slots=True)
class Subscription:
    """Metrics by prefix, wanted every so often from the clients that all patterns fit."""

    name: str
    metrics: tuple[str, ...]
    interval_ms: int
    match: Mapping[str, Pattern]

    def fits(self, client: Client) -> bool:
        return all(pattern.fullmatch(getattr(client, field)) for field, pattern in self.match.items())


def metrics_spec(name: str) -> ConfigSpec:
    """Return a setting of a subscription. Raises KafkaError INVALID_CONFIG with near matches."""
    return find_spec(CLIENT_METRICS_CONFIGS, name, "client metrics")


def parse_subscription(name: str, configs: Mapping[str, str]) -> Subscription:
    """Return the subscription that configs describe. Raises KafkaError INVALID_REQUEST, INVALID_CONFIG."""
    if not 1 <= len(name) <= MAX_NAME_CHARS:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"a client metrics subscription has a name of 1 to {MAX_NAME_CHARS} characters"
        )
    for key, value in configs.items():
        metrics_spec(key).check(value)
    interval = configs.get(INTERVAL, CLIENT_METRICS_CONFIGS[INTERVAL].default)
    assert interval is not None
    return Subscription(
        name,
        tuple(_parts(configs.get(METRICS, ""))),
        int(interval),
        dict(_parse_match(part) for part in _parts(configs.get(MATCH, ""))),
    )


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _parse_match(part: str) -> tuple[str, Pattern]:
    """Return selector and pattern of `client_id=app-.*`. Raises KafkaError."""
    field, equals, pattern = (text.strip() for text in part.partition("="))
    if field not in Client._fields or not equals or not pattern:
        near = near_matches(field, Client._fields)
        hint = f"; did you mean {near[0]!r}?" if near and near[0] != field else ""
        expected = f"one of {', '.join(Client._fields)}, '=' and an expression"
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Illegal client matching pattern {part[:200]!r}: expected {expected}{hint}")
    try:
        return field, compile_pattern(pattern)
    except PatternError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Illegal client matching pattern {part[:200]!r}: {error}") from None


class SubscriptionStore:
    """All subscriptions by name with their configs; `version` counts the changes."""

    def __init__(self, cluster: ClusterState) -> None:
        """Raises StorageError."""
        self._cluster, self.version = cluster, 0
        try:
            self.configs: dict[str, dict[str, str]] = {
                name: dict(own) for name, own in (cluster.document(DOCUMENT) or {}).items()
            }
            self.subscriptions = [parse_subscription(name, own) for name, own in self.configs.items()]
        except (ValueError, TypeError, AttributeError, KafkaError) as error:
            text = f"the client metrics subscriptions in cluster.json cannot be read ({error!r}); restore the file from a backup"
            raise StorageError(text) from error

    def check(self, name: str, configs: Mapping[str, str]) -> None:
        """Raise KafkaError unless the configs make a subscription, and there is room for it."""
        parse_subscription(name, configs)
        if configs and name not in self.configs and len(self.configs) >= MAX_SUBSCRIPTIONS:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, f"at most {MAX_SUBSCRIPTIONS} client metrics subscriptions are kept")

    def set_configs(self, name: str, configs: Mapping[str, str]) -> Steps:
        """Set a subscription, whose configs were checked, or remove it if there are none. Durable. Raises StorageError."""
        changed = {other: own for other, own in self.configs.items() if other != name}
        if configs:
            changed[name] = dict(configs)
        yield from self._cluster.later(DocumentSet(DOCUMENT, changed))
        self.configs = changed
        self.subscriptions = [parse_subscription(each, own) for each, own in changed.items()]
        self.version += 1
