"""Option specs: one object that is a connector's documentation, its validation and the form in a console (architecture, D13).

A spec is data. `Spec.validate` reports everything that is wrong at once, before anything starts. Values may be given as text
(as in Kafka Connect's properties) or as TOML/JSON values of the type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from logflume.log import InvalidInput, near_matches

from .columns import parse_columns
from .config import Config
from .errors import ConfigErrors, Problem
from .secrets import MASK, Secret


class OptionType(StrEnum):
    """The types of an option; names follow Kafka's ConfigDef where it has one."""

    STRING = "string"
    BOOLEAN = "boolean"
    INTEGER = "integer"
    DOUBLE = "double"
    LIST = "list"
    PASSWORD = "password"
    COLUMNS = "columns"
    TABLE = "table"


class _Required:
    def __repr__(self) -> str:
        return "required"


REQUIRED = _Required()
Check = Callable[[Any], str | None]
"""Takes the parsed value; returns what is wrong ("expected ..., found ..."), None when it is fine."""
ConfigCheck = Callable[[Config], Iterable[Problem]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option.

    Attributes:
        name: flat key; a name that ends in `.*` collects all keys under the prefix into a table (type TABLE).
        default: of the parsed type; REQUIRED when there is none.
        doc: one or two sentences.
        is_secret: its value is never shown. PASSWORD options always are.
        allowed: the values a STRING or the items of a LIST may take; empty = any.
        minimum: smallest value of an INTEGER or DOUBLE.
        check: a further check of the parsed value.
    """

    name: str
    type: OptionType
    doc: str
    default: Any = REQUIRED
    is_secret: bool = False
    allowed: tuple[str, ...] = ()
    minimum: float | None = None
    check: Check | None = None

    @property
    def is_required(self) -> bool:
        return self.default is REQUIRED

    def parse(self, raw: object) -> Any:
        """Return the typed value. Raises InvalidInput with expected and found."""
        value = _PARSERS[self.type](raw)
        if self.allowed:
            for item in value if self.type is OptionType.LIST else (value,):
                _require_allowed(item, self.allowed)
        if self.minimum is not None and value < self.minimum:
            raise InvalidInput(f"expected a value >= {self.minimum:g}, found {value:g}")
        if self.check is not None and (wrong := self.check(value)):
            raise InvalidInput(wrong)
        return value

    def shown_default(self) -> str | None:
        """Return the default as text for documentation; None when the option is required."""
        if self.is_required:
            return None
        if self.type is OptionType.PASSWORD or self.is_secret:
            return MASK if self.default else ""
        if isinstance(self.default, bool):
            return str(self.default).lower()
        if isinstance(self.default, tuple):
            return ",".join(str(item) for item in self.default)
        return "" if self.default is None or self.default == {} else str(self.default)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """All options of one connector, in the order they are shown, and the checks between them."""

    options: tuple[Option, ...]
    checks: tuple[ConfigCheck, ...] = ()

    def validate(self, raw: Mapping[str, object], *, where: str) -> Config:
        """Return the typed config with defaults filled in.

        Raises:
            ConfigErrors: every problem found, unknown keys with near matches.
        """
        problems: list[Problem] = []
        values: dict[str, Any] = {}
        exact = {option.name: option for option in self.options if not option.name.endswith(".*")}
        prefixed = {option.name[:-1]: option for option in self.options if option.name.endswith(".*")}
        for option in prefixed.values():
            values[option.name] = {}
        for key, given in raw.items():
            prefix = next((p for p in prefixed if key.startswith(p) and len(key) > len(p)), None)
            known = exact.get(key)
            if known is None and prefix is None:
                problems.append(Problem(key, _unknown(key, self.names())))
            elif known is not None:
                _parse_into(values, known, given, problems)
            elif prefix is not None:
                values[prefix + "*"][key[len(prefix) :]] = _text(given)
        for option in exact.values():
            if option.name in raw:
                continue
            if option.is_required:
                problems.append(Problem(option.name, f"required: {option.doc}"))
            values[option.name] = None if option.is_required else option.default
        config = Config(values, secret_names=frozenset(o.name for o in self.options if _is_secret(o)))
        if not problems:
            for check in self.checks:
                problems.extend(check(config))
        if problems:
            raise ConfigErrors(where, problems)
        return config

    def names(self) -> tuple[str, ...]:
        """Return the names of all options."""
        return tuple(option.name for option in self.options)

    def describe(self) -> list[dict[str, Any]]:
        """Return the options as JSON-ready data, for a form: name, type, default, required, doc, secret, allowed, minimum."""
        return [
            {
                "name": option.name,
                "type": option.type.value,
                "default": option.shown_default(),
                "required": option.is_required,
                "doc": option.doc,
                "secret": _is_secret(option),
                "allowed": list(option.allowed),
                "minimum": option.minimum,
            }
            for option in self.options
        ]

    def to_markdown(self) -> str:
        """Return the options as a Markdown table."""
        lines = ["| option | type | default | meaning |", "|---|---|---|---|"]
        for option in self.options:
            kind = " \\| ".join(option.allowed) if option.allowed else option.type.value
            default = option.shown_default()
            shown = "required" if default is None else f"`{default}`" if default else ""
            lines.append(f"| `{option.name}` | {kind} | {shown} | {option.doc} |")
        return "\n".join(lines) + "\n"

    def extended(self, *options: Option, checks: tuple[ConfigCheck, ...] = ()) -> Spec:
        """Return a spec with more options and checks behind these."""
        return Spec(options=self.options + options, checks=self.checks + checks)


def _is_secret(option: Option) -> bool:
    return option.is_secret or option.type is OptionType.PASSWORD


def _parse_into(values: dict[str, Any], option: Option, given: object, problems: list[Problem]) -> None:
    try:
        values[option.name] = option.parse(given)
    except InvalidInput as error:
        message = "not a valid value (not shown, it is a secret)" if _is_secret(option) else str(error)
        problems.append(Problem(option.name, message))


def _unknown(name: str, known: Iterable[str]) -> str:
    near = near_matches(name, known)
    return "unknown key" + (f"; did you mean {' or '.join(repr(n) for n in near)}?" if near else "")


def _require_allowed(value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        near = near_matches(value, allowed)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InvalidInput(f"expected one of {', '.join(allowed)}; found {value!r}{hint}")


def _text(raw: object) -> str:
    if isinstance(raw, bool):
        return str(raw).lower()
    if isinstance(raw, str | int | float):
        return str(raw)
    raise InvalidInput(f"expected text, found {_shown(raw)}")


def _non_empty_text(raw: object) -> str:
    if not isinstance(raw, str) or not raw:
        raise InvalidInput(f"expected text that is not empty, found {_shown(raw)}")
    return raw


def _boolean(raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    if isinstance(raw, str) and raw.strip().lower() in ("true", "false"):
        return raw.strip().lower() == "true"
    raise InvalidInput(f"expected true or false, found {_shown(raw)}")


def _integer(raw: object) -> int:
    try:
        if isinstance(raw, int) and not isinstance(raw, bool):
            return raw
        if isinstance(raw, str) and len(raw) <= 20:
            return int(raw)
    except ValueError:
        pass
    raise InvalidInput(f"expected an integer, found {_shown(raw)}")


def _double(raw: object) -> float:
    try:
        if isinstance(raw, int | float) and not isinstance(raw, bool):
            return float(raw)
        if isinstance(raw, str):
            return float(raw)
    except ValueError:
        pass
    raise InvalidInput(f"expected a number, found {_shown(raw)}")


def _list(raw: object) -> tuple[str, ...]:
    if isinstance(raw, str):
        return tuple(item.strip() for item in raw.split(",")) if raw.strip() else ()
    if isinstance(raw, list | tuple) and all(isinstance(item, str) for item in raw):
        return tuple(raw)
    raise InvalidInput(f"expected a list of texts, or one text with commas, found {_shown(raw)}")


def _columns(raw: object) -> Any:
    return parse_columns(_non_empty_text(raw))


def _table(raw: object) -> dict[str, str]:
    raise InvalidInput(f"expected keys below the prefix, found {_shown(raw)}")


def _shown(raw: object) -> str:
    return repr(raw) if len(repr(raw)) <= 60 else f"{type(raw).__name__} {repr(raw)[:60]}..."


_PARSERS: Mapping[OptionType, Callable[[object], Any]] = {
    OptionType.STRING: _non_empty_text,
    OptionType.BOOLEAN: _boolean,
    OptionType.INTEGER: _integer,
    OptionType.DOUBLE: _double,
    OptionType.LIST: _list,
    OptionType.PASSWORD: lambda raw: Secret(_text(raw)),
    OptionType.COLUMNS: _columns,
    OptionType.TABLE: _table,
}
