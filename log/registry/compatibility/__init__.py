"""May a new schema follow the earlier ones of its subject? Levels, and per language the rules of what can read what. Pure.

A level says who must be able to read whom: BACKWARD the new schema the old data, FORWARD the old schema the new data, FULL both;
each against the latest version, and with _TRANSITIVE against all that are not deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from logflume.log.registry.schemas import ParsedSchema

from .difference import Difference

LEVELS = (
    "NONE",
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
)
POLICIES = ("STRICT", "LENIENT")
DEFAULT_LEVEL = "BACKWARD"
MAX_OLD_SCHEMA_CHARS = 10_240
_RULES = {"AVRO": ".avro", "JSON": ".json_schema", "PROTOBUF": ".protobuf"}


@dataclass(frozen=True, slots=True)
class Earlier:
    """An earlier version; `load` parses it, when it is needed."""

    version: int
    load: Callable[[], ParsedSchema]


def check(level: str, new: ParsedSchema, earlier: Sequence[Earlier], *, policy: str = "STRICT") -> list[str]:
    """Return why `new` must not follow `earlier` (oldest first): messages that name the rule and the place; [] when it may."""
    if level == "NONE" or not earlier:
        return []
    among = reversed(earlier) if level.endswith("_TRANSITIVE") else earlier[-1:]
    for each in among:
        messages = _against(level.removesuffix("_TRANSITIVE"), new, each.load(), each.version, policy)
        if messages:
            return messages
    return []


def differences(reader: ParsedSchema, writer: ParsedSchema, *, policy: str = "STRICT") -> list[Difference]:
    """Return why data of `writer` cannot be read with `reader`; both of one language."""
    rules: Any = import_module(_RULES[reader.type], __name__)
    if reader.type == "JSON":
        found: list[Difference] = rules.differences(reader.tree, writer.tree, policy=policy)
        return found
    found = rules.differences(reader.tree, writer.tree)
    return found


def _against(level: str, new: ParsedSchema, old: ParsedSchema, version: int, policy: str) -> list[str]:
    if new.type != old.type:
        return ["Incompatible because of different schema type"]
    messages: list[str] = []
    if level in ("BACKWARD", "FULL"):
        messages += [each.told("new", "old") for each in differences(new, old, policy=policy)]
    if level in ("FORWARD", "FULL"):
        messages += [each.told("old", "new") for each in differences(old, new, policy=policy)]
    if not messages:
        return []
    text = old.text if len(old.text) <= MAX_OLD_SCHEMA_CHARS else f"{old.text[:MAX_OLD_SCHEMA_CHARS]}..."
    return [*messages, f"{{oldSchemaVersion: {version}}}", f"{{oldSchema: '{text}'}}"]


__all__ = ["DEFAULT_LEVEL", "Difference", "Earlier", "LEVELS", "POLICIES", "check", "differences"]
