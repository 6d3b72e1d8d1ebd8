"""What a setting is: its name, type, default, bounds and meaning, and the check of a value. The tables are in `config_specs`
(topics, broker) and `group_config_specs`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from logflume.log.errors import near_matches
from logflume.log.protocol import ErrorCode, KafkaError

I32_MAX, I64_MAX = 2**31 - 1, 2**63 - 1


class ConfigType(IntEnum):
    """Types as DescribeConfigs reports them (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


@dataclass(frozen=True, slots=True)
class ConfigSpec:
    """One setting. `broker_name`: the broker's setting that is the default of this topic setting."""

    name: str
    type: ConfigType
    default: str
    doc: str
    low: float = 0
    high: float = I64_MAX
    choices: tuple[str, ...] = ()
    broker_name: str | None = None
    is_read_only: bool = False

    def check(self, value: str) -> None:
        """Raise KafkaError INVALID_CONFIG if the value is not one of this setting."""
        problem = self._problem(value)
        if problem:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"invalid value {value!r} for {self.name}: {problem}")

    def _problem(self, value: str) -> str | None:
        if self.type is ConfigType.BOOLEAN:
            return None if value in ("true", "false") else "expected true or false"
        if self.type in (ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE):
            try:
                number = float(value) if self.type is ConfigType.DOUBLE else int(value)
            except ValueError:
                return "expected a number"
            return None if self.low <= number <= self.high else f"expected {self.low} to {self.high}"
        if self.choices:
            given = [value] if self.type is not ConfigType.LIST else [part.strip() for part in value.split(",") if part]
            unknown = [part for part in given if part not in self.choices]
            if unknown:
                near = near_matches(unknown[0], self.choices)
                return f"expected {' or '.join(self.choices)}" + (f"; did you mean {near[0]!r}?" if near else "")
        return None


def long_spec(name: str, default: int, doc: str, *, low: int = 0, high: int = I64_MAX, broker: str | None = None) -> ConfigSpec:
    """Return a setting that is a whole number of up to 64 bits."""
    return ConfigSpec(name, ConfigType.LONG, str(default), doc, low, high, broker_name=broker)


def int_spec(
    name: str, default: int, doc: str, *, low: int = 0, high: int = I32_MAX, broker: str | None = None, fixed: bool = False
) -> ConfigSpec:
    """Return a setting that is a whole number of up to 32 bits."""
    return ConfigSpec(name, ConfigType.INT, str(default), doc, low, high, broker_name=broker, is_read_only=fixed)


def bool_spec(name: str, default: bool, doc: str, *, broker: str | None = None) -> ConfigSpec:
    """Return a setting that is true or false."""
    return ConfigSpec(name, ConfigType.BOOLEAN, str(default).lower(), doc, broker_name=broker)


def text_spec(
    name: str, default: str, doc: str, *, choices: tuple[str, ...] = (), broker: str | None = None, fixed: bool = False
) -> ConfigSpec:
    """Return a setting that is text; `choices`: all it may be."""
    return ConfigSpec(name, ConfigType.STRING, default, doc, choices=choices, broker_name=broker, is_read_only=fixed)
