"""Every setting of topics, groups, client metrics and the broker under Kafka's names: read once from `settings.tsv`.

The table has one line per setting (Kafka 4.3's "Topic Configs", "Group Configs" and "Broker Configs", and logflume's own): scope,
name, type, default (`-`: not set), legal values, whether it can be changed at run time, the broker settings that are its
default, and its effect here: `yes`, or the reason why it is accepted without one. To give a setting an effect, write `yes` and
a sentence.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from .spec import I64_MAX, WHOLE_NUMBERS, ConfigSpec, ConfigType, find_spec

COLUMNS = ("scope", "name", "type", "default", "valid", "update", "broker", "effect", "doc")
NO_EFFECT = {
    "always-flushed": "what is acknowledged is on disk already; logflume.flush changes that",
    "codec-level": "each codec has one level",
    "immediate": "files are removed at once",
    "no-jitter": "segments are rolled without jitter",
    "no-preallocation": "files are not reserved",
    "not-used": "nothing here depends on it",
    "one-broker": "a single broker has no replicas",
    "other-design": "it tunes a mechanism that this broker does not have",
    "own-controller": "the broker is its own controller",
    "own-metrics": "metrics are read from /metrics (logflume.http.listener)",
    "quotas": "quotas are those of AlterClientQuotas; no class is loaded",
    "sasl": "the broker itself logs in nowhere",
    "tiered": "there is no tiered storage",
    "tls": "it names a class of Java, or is how a broker connects to others",
}
"""Why a setting has no effect, by the word in the table."""


_OF_LISTENER = re.compile(r"listener\.name\.[a-z0-9_-]+\.(?:(?:plain|scram-sha-256|scram-sha-512|oauthbearer|gssapi)\.)?(.+)")
"""A setting of one listener, and there of one mechanism (KIP-103, KIP-85)."""


def _read_table() -> dict[str, dict[str, ConfigSpec]]:
    by_scope: dict[str, dict[str, ConfigSpec]] = {"topic": {}, "group": {}, "client-metrics": {}, "broker": {}}
    lines = Path(__file__).with_name("settings.tsv").read_text(encoding="utf-8").splitlines()
    assert tuple(lines[0].split("\t")) == COLUMNS
    for line in lines[1:]:
        scope, *cells = line.split("\t")
        spec = _spec(*cells)
        by_scope[scope][spec.name] = spec
    return by_scope


def _spec(name: str, type_name: str, default: str, valid: str, update: str, broker: str, effect: str, doc: str) -> ConfigSpec:
    config_type = ConfigType[type_name.upper()]
    low, high, choices, also = _bounds(config_type, valid)
    return ConfigSpec(
        name,
        config_type,
        None if default == "-" else default,
        doc if effect == "yes" else f"Accepted without effect: {NO_EFFECT[effect]}.",
        low,
        high,
        choices,
        tuple(broker.split(",")) if broker else (),
        is_read_only=update == "read-only",
        is_per_broker=update == "per-broker",
        has_effect=effect == "yes",
        also=also,
    )


def _bounds(config_type: ConfigType, valid: str) -> tuple[float, float, tuple[str, ...], str | None]:
    """Return (low, high, choices, also) of `1..`, `0..1`, `1..9|-1` or `one,two`."""
    limit = WHOLE_NUMBERS.get(config_type, I64_MAX)
    most: float = float("inf") if config_type is ConfigType.DOUBLE else limit
    if ".." not in valid:
        return -most, most, tuple(valid.split(",")) if valid else (), None
    bounds, _, also = valid.partition("|")
    low, _, high = bounds.partition("..")
    number = float if config_type is ConfigType.DOUBLE else int
    return number(low), number(high) if high else most, (), also or None


_TABLE = _read_table()
TOPIC_CONFIGS = _TABLE["topic"]
GROUP_CONFIGS = _TABLE["group"]
CLIENT_METRICS_CONFIGS = _TABLE["client-metrics"]
BROKER_CONFIGS = _TABLE["broker"]


def topic_spec(name: str) -> ConfigSpec:
    """Return a topic setting. Raises KafkaError INVALID_CONFIG with near matches."""
    return find_spec(TOPIC_CONFIGS, name, "topic")


def topic_config_names() -> frozenset[str]:
    """Return the names of all topic settings."""
    return frozenset(TOPIC_CONFIGS)


def group_spec(name: str) -> ConfigSpec:
    """Return a setting of groups. Raises KafkaError INVALID_CONFIG with near matches."""
    return find_spec(GROUP_CONFIGS, name, "group")


def broker_spec(name: str) -> ConfigSpec:
    """Return a broker setting, or one of a listener (`listener.name.NAME.SETTING`). Raises KafkaError as `topic_spec`."""
    match = _OF_LISTENER.fullmatch(name)
    if match is None:
        return find_spec(BROKER_CONFIGS, name, "broker")
    return replace(find_spec(BROKER_CONFIGS, match[1], "broker"), name=name)
