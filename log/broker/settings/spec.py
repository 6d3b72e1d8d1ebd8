"""What a setting is: its name, type, default, bounds and meaning, and the check of a value. `settings.tsv` lists them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

from logflume.log.errors import near_matches
from logflume.log.protocol import ErrorCode, KafkaError

I16_MAX, I32_MAX, I64_MAX = 2**15 - 1, 2**31 - 1, 2**63 - 1


class ConfigType(IntEnum):
    """Types as DescribeConfigs reports them (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


DURATION_CHOICE = "by_duration:<PnDTnHnMn.nS>"
_DURATION = re.compile(r"by_duration:P(?=\d|T\d)(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+(\.\d{1,9})?S)?)?", re.IGNORECASE)
PAIR_CHOICE = "ADDRESS:NUMBER"
_PAIR = re.compile(r"\S+:\d{1,10}")
WHOLE_NUMBERS = {ConfigType.SHORT: I16_MAX, ConfigType.INT: I32_MAX, ConfigType.LONG: I64_MAX}


@dataclass(frozen=True, slots=True)
class ConfigSpec:
    """One setting.

    Attributes:
        default: its text, None for "not set".
        low, high: bounds of a number.
        choices: what a text or the parts of a list may be; empty for anything. DURATION_CHOICE stands for
            durations (ISO 8601), PAIR_CHOICE for ADDRESS:NUMBER,... (text, not a list, as Kafka has it).
        broker_names: broker settings that are the default of this one of topics or groups, in the order in which they count.
        is_read_only: it cannot be changed while the broker runs.
        is_per_broker: it can be changed for a broker, not for the cluster.
        has_effect: False for what is accepted so that clients and files that set it work, and changes nothing here.
        also: a value that is legal outside of the bounds.
    """

    name: str
    type: ConfigType
    default: str | None
    doc: str
    low: float = 0
    high: float = I64_MAX
    choices: tuple[str, ...] = ()
    broker_names: tuple[str, ...] = ()
    is_read_only: bool = False
    is_per_broker: bool = False
    has_effect: bool = True
    also: str | None = None

    @property
    def is_sensitive(self) -> bool:
        """Its value is never shown."""
        return self.type is ConfigType.PASSWORD

    @property
    def expected(self) -> str:
        """What a value may be, in words."""
        if self.type is ConfigType.BOOLEAN:
            return "true or false"
        if self.type in WHOLE_NUMBERS or self.type is ConfigType.DOUBLE:
            number = "a number" if self.type is ConfigType.DOUBLE else "a whole number"
            return f"{number} of {self.low} to {self.high}" + (f", or {self.also}" if self.also else "")
        if self.type is ConfigType.CLASS:
            return f"{self.default or 'nothing'}: no other class is loaded"
        return " or ".join(self.choices) or "text"

    def check(self, value: str) -> None:
        """Raise KafkaError INVALID_CONFIG if the value is not one of this setting."""
        problem = self._problem(value)
        if problem:
            shown = "" if self.is_sensitive else f" {value[:200]!r}"
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"invalid value{shown} for {self.name}: {problem}")

    def _problem(self, value: str) -> str | None:
        if self.type is ConfigType.BOOLEAN:
            return None if value in ("true", "false") else f"expected {self.expected}"
        if self.type in WHOLE_NUMBERS or self.type is ConfigType.DOUBLE:
            if self.also is not None and value == self.also:
                return None
            try:
                number = float(value) if self.type is ConfigType.DOUBLE else int(value)
            except ValueError:
                return f"expected {self.expected}"
            return None if self.low <= number <= self.high else f"expected {self.expected}"
        if self.type is ConfigType.CLASS:
            return None if value in ("", self.default) else f"expected {self.expected}"
        if not self.choices:
            return None
        is_list = self.type is ConfigType.LIST or PAIR_CHOICE in self.choices
        given = [part.strip() for part in value.split(",") if part] if is_list else [value]
        unknown = [part for part in given if not self._is_choice(part)]
        if not unknown:
            return None
        near = near_matches(unknown[0], self.choices)
        return f"expected {self.expected}" + (f"; did you mean {near[0]!r}?" if near else "")

    def _is_choice(self, part: str) -> bool:
        if PAIR_CHOICE in self.choices:
            return _PAIR.fullmatch(part) is not None
        return part in (*self.choices, self.default) or (
            DURATION_CHOICE in self.choices and _DURATION.fullmatch(part) is not None
        )


def find_spec(specs: dict[str, ConfigSpec], name: str, what: str) -> ConfigSpec:
    """Return a setting by name. Raises KafkaError INVALID_CONFIG with near matches. `what`: whose settings they are."""
    spec = specs.get(name)
    if spec is None:
        near = near_matches(name, specs)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"unknown {what} config {name[:200]!r}{hint}")
    return spec
