"""Bodies of requests, checked when they are read: the wrong type, an unknown level or a rule that cannot be is refused here."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from .compatibility import LEVELS, POLICIES
from .errors import Fault, RegistryError
from .records import ConfigValue, Metadata, Reference, Rule, RuleSet
from .schemas import TYPES
from .state import MODES

T = TypeVar("T")
LATEST = -1
_RULE_NAME = re.compile(r"[^\W\d][\w-]{0,255}\Z")
_MIGRATION_MODES = ("UPGRADE", "DOWNGRADE", "UPDOWN")
_DOMAIN_MODES = ("WRITE", "READ", "WRITEREAD")
_KINDS = ("TRANSFORM", "CONDITION")


class SchemaRequest(msgspec.Struct, frozen=True, rename="camel"):
    """A schema to be registered, looked up or checked."""

    schema: str | None = None
    schema_type: str | None = None
    references: tuple[Reference, ...] | None = None
    metadata: Metadata | None = None
    rule_set: RuleSet | None = None
    version: int | None = None
    id: int | None = None

    @property
    def type(self) -> str:
        return self.schema_type or "AVRO"


class ModeRequest(msgspec.Struct, frozen=True):
    """A mode to be set; null takes it away."""

    mode: str | None = None


def decode(body: bytes, kind: type[T]) -> T:
    """Return a request body as its type.

    Raises:
        RegistryError: it is no JSON, or not of that form; says where.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise RegistryError(Fault.INVALID_VALUE, f"the body does not fit: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RegistryError(Fault.UNREADABLE, f"expected a JSON body: {error}") from error


def schema_request(body: bytes) -> SchemaRequest:
    """Return a schema request; its rules and its type are known."""
    made = decode(body, SchemaRequest)
    if made.type not in TYPES:
        raise RegistryError(Fault.INVALID_SCHEMA, f"Invalid schema type {made.type}; expected one of {', '.join(TYPES)}")
    if made.version is not None and made.version < LATEST:
        raise RegistryError(Fault.INVALID_VERSION, made.version)
    check_rules(made.rule_set)
    return made


def config_request(body: bytes) -> dict[str, object]:
    """Return the fields that are to be set (None: back to what lies behind), by their names in `ConfigValue`."""
    given = decode(body, dict[str, msgspec.Raw])
    names = {"compatibility" if name == "compatibilityLevel" else name: name for name in given}
    as_value = {("compatibilityLevel" if name == "compatibility" else name): given[names[name]] for name in names}
    value = decode(msgspec.json.encode(as_value), ConfigValue)
    level = value.compatibility_level
    if level is not None and level.upper() not in LEVELS:
        raise RegistryError(Fault.INVALID_LEVEL)
    if value.compatibility_policy is not None and value.compatibility_policy.upper() not in POLICIES:
        raise RegistryError(Fault.INVALID_VALUE, f"compatibilityPolicy is one of {', '.join(POLICIES)}")
    check_rules(value.default_rule_set)
    check_rules(value.override_rule_set)
    fields = {name: getattr(value, name) for name in ConfigValue.__struct_fields__ if _camel(name) in as_value}
    if level is not None:
        fields["compatibility_level"] = level.upper()
    if value.compatibility_policy is not None:
        fields["compatibility_policy"] = value.compatibility_policy.upper()
    fields.pop("subject", None)
    return fields


def mode_request(body: bytes) -> str | None:
    """Return the mode that is to be set, None to take it away."""
    mode = decode(body, ModeRequest).mode
    if mode is not None and mode.upper() not in MODES:
        raise RegistryError(Fault.INVALID_MODE, f"Invalid mode. Valid values are {', '.join(MODES)}.")
    return None if mode is None else mode.upper()


def parse_version(text: str) -> int:
    """Return a version of a path: a number, or LATEST.

    >>> parse_version("latest"), parse_version("3")
    (-1, 3)
    """
    wanted = text.strip().lower()
    if wanted in ("latest", "-1"):
        return LATEST
    if not wanted.isascii() or not wanted.isdigit() or len(wanted) > 10 or not 0 < int(wanted) < 2**31:
        raise RegistryError(Fault.INVALID_VERSION, text)
    return int(wanted)


def check_rules(rule_set: RuleSet | None) -> None:
    """Refuse rules that no client could carry out."""
    if rule_set is None:
        return
    for rules, modes in (
        (rule_set.migration_rules, _MIGRATION_MODES),
        (rule_set.domain_rules, _DOMAIN_MODES),
        (rule_set.encoding_rules, _DOMAIN_MODES),
    ):
        seen: set[str | None] = set()
        for rule in rules or ():
            if rule.name in seen:
                raise RegistryError(Fault.INVALID_RULE_SET, f"Found rule with duplicate name '{rule.name}'")
            seen.add(rule.name)
            _check_rule(rule, modes)


def _check_rule(rule: Rule, modes: tuple[str, ...]) -> None:
    if not rule.name or not _RULE_NAME.match(rule.name):
        raise RegistryError(
            Fault.INVALID_RULE_SET, f"a rule's name is a letter or _, then letters, digits, _ and -; found {rule.name!r}"
        )
    if rule.type is None:
        raise RegistryError(Fault.INVALID_RULE_SET, f"rule '{rule.name}': missing rule type")
    if rule.kind is not None and rule.kind not in _KINDS:
        raise RegistryError(Fault.INVALID_RULE_SET, f"rule '{rule.name}': a kind is {' or '.join(_KINDS)}, found {rule.kind!r}")
    if rule.mode not in modes:
        raise RegistryError(
            Fault.INVALID_RULE_SET, f"rule '{rule.name}': its mode is one of {', '.join(modes)}, found {rule.mode!r}"
        )
    for action in (rule.on_success, rule.on_failure):
        if action is not None and "," in action and rule.mode not in ("UPDOWN", "WRITEREAD"):
            raise RegistryError(Fault.INVALID_RULE_SET, f"rule '{rule.name}': two actions are for UPDOWN and WRITEREAD only")


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)
