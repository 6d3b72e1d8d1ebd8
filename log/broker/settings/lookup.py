"""What a setting is right now: topic, dynamic broker, dynamic default, static broker or default value, and which."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from logflume.log.protocol import ErrorCode, KafkaError

from .groups import bounds_of, check_bounds, check_broker_bounds
from .spec import WHOLE_NUMBERS, ConfigSpec, ConfigType
from .table import BROKER_CONFIGS, CLIENT_METRICS_CONFIGS, TOPIC_CONFIGS, broker_spec, group_spec, topic_spec

if TYPE_CHECKING:
    from logflume.log.storage import LogConfig

UNIT_MS = {".hours": 3_600_000, ".minutes": 60_000}
OLDER_NAMES = {"node.id": "broker.id", "log.dirs": "log.dir"}
"""Broker settings that count where the first name is not set."""


class ConfigSource(IntEnum):
    """Where a value comes from, as DescribeConfigs reports it."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


Synonym = tuple[str, str, ConfigSource]


class ConfigValue(NamedTuple):
    """A setting's value (None: not set) and source; `synonyms`: (name, value, source) of all found, winner first."""

    spec: ConfigSpec
    value: str | None
    source: ConfigSource
    synonyms: tuple[Synonym, ...]


def parse_overrides(text: str) -> dict[str, int]:
    """Return `max.connections.per.ip.overrides`, which was checked, as address -> number.

    >>> parse_overrides("10.0.0.1:5, ::1:100")
    {'10.0.0.1': 5, '::1': 100}
    """
    pairs = [part.strip().rpartition(":") for part in text.split(",") if part.strip()]
    return {host.strip("[]"): int(number) for host, _, number in pairs}


class BrokerConfig:
    """The broker's settings: the static ones it was started with, under dynamic ones that an admin client changed.

    Invariant: every value in it passed its spec's check.
    """

    __slots__ = ("_cluster", "_dynamic", "_ints", "static")

    def __init__(self, static: Mapping[str, str] | None = None) -> None:
        """Raises KafkaError INVALID_CONFIG: a name or value is not valid."""
        self.static = dict(static or {})
        self._dynamic: dict[str, str] = {}
        self._cluster: dict[str, str] = {}
        self._ints: dict[str, int] = {}
        for name, value in self.static.items():
            broker_spec(name).check(value)
        for name, older in OLDER_NAMES.items():
            if older in self.static and self.static[older] not in ("", "-1"):
                self.static.setdefault(name, self.static[older])
        self._check_together()

    def set_dynamic(self, values: Mapping[str, str], *, cluster: Mapping[str, str]) -> None:
        """Replace the dynamic values of this broker and those of the cluster, which were checked."""
        self._dynamic, self._cluster = dict(values), dict(cluster)
        self._ints.clear()

    def number(self, name: str) -> int:
        """Return a setting that is a whole number."""
        value = self._ints.get(name)
        if value is None:
            value = self._ints[name] = int(self.text(name))
        return value

    def given(self, name: str) -> str | None:
        """Return what was set under exactly this name, which may be a listener's own (`listener.name.NAME.SETTING`)."""
        for layer in (self._dynamic, self._cluster, self.static):
            if name in layer:
                return layer[name]
        return None

    def is_on(self, name: str) -> bool:
        return self.text(name) == "true"

    def text(self, name: str) -> str:
        """Return a setting as text, "" where it is not set."""
        return self.lookup(BROKER_CONFIGS[name]).value or ""

    def parts(self, name: str) -> list[str]:
        """Return the parts of a setting that is a list."""
        return [part.strip() for part in self.text(name).split(",") if part.strip()]

    def lookup(self, spec: ConfigSpec) -> ConfigValue:
        """Return a broker setting."""
        return _first(spec, self._synonyms((spec.name,)))

    def lookup_topic(self, name: str, overrides: Mapping[str, str]) -> ConfigValue:
        """Return a topic setting, given the topic's own values. Raises KafkaError INVALID_CONFIG."""
        return self._lookup_own(topic_spec(name), overrides, ConfigSource.TOPIC)

    def lookup_group(self, name: str, overrides: Mapping[str, str]) -> ConfigValue:
        """Return a group's setting as it was set, given the group's own values. Raises KafkaError INVALID_CONFIG."""
        return self._lookup_own(group_spec(name), overrides, ConfigSource.GROUP)

    def lookup_client_metrics(self, name: str, overrides: Mapping[str, str]) -> ConfigValue:
        """Return a setting of a client metrics subscription, given its own values."""
        return self._lookup_own(CLIENT_METRICS_CONFIGS[name], overrides, ConfigSource.CLIENT_METRICS)

    def group_number(self, name: str, overrides: Mapping[str, str]) -> int:
        """Return a group's setting that is a whole number as it applies: within the broker's present bounds."""
        value = int(self.lookup_group(name, overrides).value or 0)
        least, most = bounds_of(name)
        value = value if most is None else min(value, self.number(most))
        return value if least is None else max(value, self.number(least))

    def check_group(self, overrides: Mapping[str, str]) -> None:
        """Check a group's own values. Raises KafkaError INVALID_CONFIG."""
        for name, value in overrides.items():
            group_spec(name).check(value)
        check_bounds(lambda name: int(self.lookup_group(name, overrides).value or 0), self.number)

    def check_dynamic(self, values: Mapping[str, str], *, cluster: Mapping[str, str]) -> None:
        """Check dynamic values of this broker and of the cluster, also against each other. Raises KafkaError INVALID_CONFIG."""
        for name, value in [*values.items(), *cluster.items()]:
            broker_spec(name).check(value)
        changed = BrokerConfig(self.static)
        changed.set_dynamic(values, cluster=cluster)
        changed._check_together()

    def _check_together(self) -> None:
        """Raise KafkaError INVALID_CONFIG if settings do not fit together."""
        check_broker_bounds(self.number)
        overrides = parse_overrides(self.text("max.connections.per.ip.overrides"))
        if self.number("max.connections.per.ip") == 0 and not any(overrides.values()):
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                "max.connections.per.ip=0 would let nobody connect: expected 1 or more, or addresses that may in "
                "max.connections.per.ip.overrides",
            )

    def log_config(self, overrides: Mapping[str, str]) -> LogConfig:
        """Return the storage's settings for a topic with these own values."""
        from logflume.log.storage import LogConfig  # all of it, which those who only ask for a setting do without

        values = {}
        for name in LogConfig.__slots__:
            key = "logflume.flush" if name == "flush" else name.replace("_", ".")
            if key in TOPIC_CONFIGS:
                found = self.lookup_topic(key, overrides)
                values[name] = _typed(found.spec, found.value or "")
        return LogConfig(**values, producer_id_expiration_ms=self.number("producer.id.expiration.ms"))  # type: ignore[arg-type]

    def _lookup_own(self, spec: ConfigSpec, overrides: Mapping[str, str], source: ConfigSource) -> ConfigValue:
        """Return a setting of a topic or group: its own value, else what the broker has under the setting's names there."""
        synonyms = [(spec.name, overrides[spec.name], source)] if spec.name in overrides else []
        synonyms += self._synonyms(spec.broker_names)
        if spec.default is not None and not (synonyms and synonyms[-1][2] is ConfigSource.DEFAULT):
            synonyms.append((spec.name, spec.default, ConfigSource.DEFAULT))
        return _first(spec, synonyms)

    def _synonyms(self, names: Iterable[str]) -> list[Synonym]:
        """Return what is set under these names, the sources one after the other; then the first default there is."""
        layers = (
            (self._dynamic, ConfigSource.DYNAMIC_BROKER),
            (self._cluster, ConfigSource.DYNAMIC_DEFAULT_BROKER),
            (self.static, ConfigSource.STATIC_BROKER),
        )
        found = [(name, layer[name], source) for layer, source in layers for name in names if name in layer]
        for name in names:
            default = BROKER_CONFIGS[name].default
            if default is not None:
                found.append((name, default, ConfigSource.DEFAULT))
                break
        return found


def check_changeable(spec: ConfigSpec, *, is_default: bool) -> None:
    """Raise KafkaError INVALID_REQUEST if a setting cannot be changed at run time, for a broker or as the cluster's default."""
    if spec.is_read_only:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"{spec.name} cannot be changed while the broker runs; set it at the next start"
        )
    if is_default and spec.is_per_broker:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"{spec.name} is set for a broker, not for the whole cluster; name the broker"
        )


def _first(spec: ConfigSpec, synonyms: list[Synonym]) -> ConfigValue:
    if not synonyms:
        return ConfigValue(spec, None, ConfigSource.DEFAULT, ())
    name, value, source = synonyms[0]
    return ConfigValue(spec, _in_ms(name, value) if name != spec.name else value, source, tuple(synonyms))


def _in_ms(name: str, value: str) -> str:
    """Return the value of a setting in hours or minutes in milliseconds; -1 stays."""
    for unit, factor in UNIT_MS.items():
        if name.endswith(unit) and value != "-1":
            return str(int(value) * factor)
    return value


def _typed(spec: ConfigSpec, value: str) -> object:
    if spec.type in WHOLE_NUMBERS:
        return int(value)
    return float(value) if spec.type is ConfigType.DOUBLE else value
