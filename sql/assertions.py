"""ASSERT TOPIC and ASSERT SCHEMA: wait until something is so, up to a time, and refuse if it is not."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import MappingProxyType

from logflume.log.interfaces import Log
from logflume.log.schemas import SchemaNotFound, registry_at

from . import ast
from .errors import StatementError
from .properties import ASSERT_SCHEMA_MS, ASSERT_TOPIC_MS, check_property
from .results import Message

TIMEOUT_MS = 1000
TIMEOUT_MAX_MS = 600_000
_PAUSE_S = 0.05
NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


class AssertionRefused(StatementError):
    """What was asserted is not so."""

    code = "SQL_ASSERTION"


def _default_timeout_ms(s: ast.AssertTopic | ast.AssertSchema, settings: Mapping[str, str]) -> int:
    name = ASSERT_TOPIC_MS if isinstance(s, ast.AssertTopic) else ASSERT_SCHEMA_MS
    value = settings.get(name, str(TIMEOUT_MS))
    check_property(name, value, s.span)
    return int(value)


def check_assertion(
    s: ast.AssertTopic | ast.AssertSchema,
    log: Log,
    registry: str,
    *,
    settings: Mapping[str, str] = NO_SETTINGS,
    sleep: Callable[[float], None] = time.sleep,
    monotonic_s: Callable[[], float] = time.monotonic,
) -> Message:
    """Return when what is asserted is so; `settings` say how long one waits that has no TIMEOUT.

    Raises:
        AssertionRefused: it is not, within the timeout. StatementError: the statement itself is wrong.
    """
    timeout_ms = _default_timeout_ms(s, settings) if s.timeout is None else s.timeout.ms
    if timeout_ms > TIMEOUT_MAX_MS:
        raise StatementError(f"TIMEOUT is at most {TIMEOUT_MAX_MS // 1000} SECONDS, found {timeout_ms // 1000}", s.span)
    fault = _topic_fault(s, log) if isinstance(s, ast.AssertTopic) else _schema_fault(s, registry)
    deadline_s = monotonic_s() + timeout_ms / 1000
    while (why := fault()) is not None:
        if monotonic_s() >= deadline_s:
            raise AssertionRefused(why, s.span)
        sleep(_PAUSE_S)
    what = f"Topic {s.topic}" if isinstance(s, ast.AssertTopic) else _schema_name(s)
    return Message(f"{what} {'does not exist' if s.is_absent else 'exists'}")


def _topic_fault(s: ast.AssertTopic, log: Log) -> Callable[[], str | None]:
    """Return what tells why a topic is not as asserted."""
    for p in s.properties:
        if p.name != "PARTITIONS" or not isinstance(p.value, int):
            raise StatementError(f"Cannot assert topic property {p.name} = {p.value!r}: expected PARTITIONS = a number", p.span)
    wanted = next((p.value for p in s.properties), None)

    def fault() -> str | None:
        admin = log.admin()
        names = [name for name in admin.list_topics(include_internal=True) if name.upper() == s.topic.upper()]
        topic = s.topic if s.topic in names or len(names) != 1 else names[0]
        if s.is_absent:
            return f"Topic {topic} exists" if topic in names else None
        if topic not in names:
            return f"Topic {topic} does not exist"
        found = admin.describe_topics([topic])[topic]
        if wanted is None or wanted == found.partitions:
            return None
        return f"Mismatched configuration for topic {topic}: for config partitions, expected {wanted} got {found.partitions}"

    return fault


def _schema_name(s: ast.AssertSchema) -> str:
    parts = [f"subject {s.subject}" if s.subject is not None else "", f"id {s.schema_id}" if s.schema_id is not None else ""]
    return f"Schema with {' and '.join(part for part in parts if part)}"


def _schema_fault(s: ast.AssertSchema, registry: str) -> Callable[[], str | None]:
    """Return what tells why a schema is not as asserted."""
    if s.subject is None and s.schema_id is None:
        raise StatementError("ASSERT SCHEMA takes SUBJECT, ID, or both", s.span)
    schemas = registry_at(registry)

    def is_there() -> bool:
        try:
            latest = None if s.subject is None else schemas.latest(s.subject)
            if s.schema_id is None:
                return True
            schemas.by_id(s.schema_id)
        except SchemaNotFound:
            return False
        return latest is None or latest.id == s.schema_id

    def fault() -> str | None:
        if is_there() is not s.is_absent:
            return None
        return f"{_schema_name(s)} {'exists' if s.is_absent else 'does not exist'}"

    return fault
