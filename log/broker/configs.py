"""What a setting is right now: looked up along topic, dynamic broker, static broker and default, with its source."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from logflume.log.storage import LogConfig

from .config_spec import ConfigSpec, ConfigType
from .config_specs import BROKER_CONFIGS, TOPIC_CONFIGS, broker_spec, group_spec, topic_spec
from .group_config_specs import bounds_of, check_bounds, check_broker_bounds


class ConfigSource(IntEnum):
    """Where a value comes from, as DescribeConfigs reports it."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    STATIC_BROKER = 4
    DEFAULT = 5
    GROUP = 8


class ConfigValue(NamedTuple):
    """A setting's value and source; `synonyms`: (name, value, source) of everything it was looked up in, winner first."""

    spec: ConfigSpec
    value: str
    source: ConfigSource
    synonyms: tuple[tuple[str, str, ConfigSource], ...]


class BrokerConfig:
    """The broker's settings: the static ones it was started with, under dynamic ones that an admin client changed.

    Invariant: every value in it passed its spec's check.
    """

    __slots__ = ("_dynamic", "_ints", "static")

    def __init__(self, static: Mapping[str, str] | None = None) -> None:
        """Raises KafkaError INVALID_CONFIG: a name or value is not valid."""
        self.static = dict(static or {})
        self._dynamic: dict[str, str] = {}
        self._ints: dict[str, int] = {}
        for name, value in self.static.items():
            broker_spec(name).check(value)
        check_broker_bounds(self.number)

    def set_dynamic(self, values: Mapping[str, str]) -> None:
        """Replace the dynamic values, which were checked."""
        self._dynamic = dict(values)
        self._ints.clear()

    def number(self, name: str) -> int:
        """Return a setting that is a whole number."""
        value = self._ints.get(name)
        if value is None:
            value = self._ints[name] = int(self.text(name))
        return value

    def is_on(self, name: str) -> bool:
        return self.text(name) == "true"

    def text(self, name: str) -> str:
        return self.lookup(BROKER_CONFIGS[name]).value

    def lookup(self, spec: ConfigSpec) -> ConfigValue:
        """Return a broker setting."""
        return _first(spec, self._synonyms(spec.name, spec.default))

    def lookup_topic(self, name: str, overrides: Mapping[str, str]) -> ConfigValue:
        """Return a topic setting, given the topic's own values. Raises KafkaError INVALID_CONFIG."""
        spec = topic_spec(name)
        synonyms = [(name, overrides[name], ConfigSource.TOPIC)] if name in overrides else []
        if spec.broker_name:
            synonyms += self._synonyms(spec.broker_name, spec.default)
        else:
            synonyms.append((name, spec.default, ConfigSource.DEFAULT))
        return _first(spec, synonyms)

    def lookup_group(self, name: str, overrides: Mapping[str, str]) -> ConfigValue:
        """Return a group's setting as it was set, given the group's own values. Raises KafkaError INVALID_CONFIG."""
        spec = group_spec(name)
        synonyms = [(name, overrides[name], ConfigSource.GROUP)] if name in overrides else []
        if spec.broker_name:
            synonyms += self._synonyms(spec.broker_name, spec.default)
        else:
            synonyms.append((name, spec.default, ConfigSource.DEFAULT))
        return _first(spec, synonyms)

    def group_number(self, name: str, overrides: Mapping[str, str]) -> int:
        """Return a group's setting that is a whole number as it applies: within the broker's present bounds."""
        value = int(self.lookup_group(name, overrides).value)
        least, most = bounds_of(name)
        value = value if most is None else min(value, self.number(most))
        return value if least is None else max(value, self.number(least))

    def check_group(self, overrides: Mapping[str, str]) -> None:
        """Check a group's own values. Raises KafkaError INVALID_CONFIG."""
        for name, value in overrides.items():
            group_spec(name).check(value)
        check_bounds(lambda name: int(self.lookup_group(name, overrides).value), self.number)

    def check_dynamic(self, values: Mapping[str, str]) -> None:
        """Check dynamic values, also against each other. Raises KafkaError INVALID_CONFIG."""
        for name, value in values.items():
            broker_spec(name).check(value)
        changed = BrokerConfig(self.static)
        changed.set_dynamic(values)
        check_broker_bounds(changed.number)

    def log_config(self, overrides: Mapping[str, str]) -> LogConfig:
        """Return the storage's settings for a topic with these own values."""
        values = {}
        for name in LogConfig.__slots__:
            key = "logflume.flush" if name == "flush" else name.replace("_", ".")
            if key in TOPIC_CONFIGS:
                found = self.lookup_topic(key, overrides)
                values[name] = _typed(found.spec, found.value)
        return LogConfig(**values, producer_id_expiration_ms=self.number("producer.id.expiration.ms"))  # type: ignore[arg-type]

    def _synonyms(self, name: str, default: str) -> list[tuple[str, str, ConfigSource]]:
        found = []
        if name in self._dynamic:
            found.append((name, self._dynamic[name], ConfigSource.DYNAMIC_BROKER))
        if name in self.static:
            found.append((name, self.static[name], ConfigSource.STATIC_BROKER))
        found.append((name, default, ConfigSource.DEFAULT))
        return found


def _first(spec: ConfigSpec, synonyms: list[tuple[str, str, ConfigSource]]) -> ConfigValue:
    return ConfigValue(spec, synonyms[0][1], synonyms[0][2], tuple(synonyms))


def _typed(spec: ConfigSpec, value: str) -> object:
    if spec.type in (ConfigType.INT, ConfigType.LONG):
        return int(value)
    return float(value) if spec.type is ConfigType.DOUBLE else value
