"""What a case says must be true afterwards: sources, topics, formats, schemas. Every field that is given is compared."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from logflume.log.schemas import Column, FormatSpec, MemoryRegistry, SchemaNotFound, format_of
from logflume.sql import ast
from logflume.sql.binding.context import WRAP_SINGLE_VALUES
from logflume.sql.catalog import Catalog, SourceInfo
from logflume.sql.parser import parse_statement
from logflume.sql.types import resolve_type, show_type

from .cases import IGNORED_KEYS, CaseFault
from .outcome import Skip

_SOURCE_KEYS = {"name", "type", "schema", "keyFormat", "valueFormat", "keyFeatures", "valueFeatures", "isSource"}
_TOPIC_KEYS = {"name", "keyFormat", "valueFormat", "partitions", "keySchema", "valueSchema", "replicas"}
_FORMAT_KEYS = {"format", "features", "properties", "windowInfo", "windowType", "windowSize"}


@dataclass(frozen=True, slots=True)
class After:
    """What there is after a case: sources, topics with their partitions, registered schemas, the session's properties."""

    catalog: Catalog
    topics: tuple[str, ...]
    partitions: Mapping[str, int]
    replicas: Mapping[str, int]
    registry: MemoryRegistry
    properties: Mapping[str, str]


def broken_condition(post: Mapping[str, Any], after: After, case_id: str) -> str | None:
    """Return the first condition that does not hold, None if all do.

    Raises:
        CaseFault: a condition that this does not know. Skip: one that no other program can meet.
    """
    _check_keys(post, {"sources", "topics"}, f"{case_id}: post")
    for wanted in post.get("sources", ()):
        _check_keys(wanted, _SOURCE_KEYS, f"{case_id}: post.sources")
        problem = _source(wanted, after)
        if problem:
            return f"post: {wanted['name']} {problem}"
    topics = post.get("topics", {})
    _check_keys(topics, {"blacklist", "topics"}, f"{case_id}: post.topics")
    pattern = topics.get("blacklist")
    for topic in after.topics if pattern is not None else ():
        if re.search(pattern, topic):
            return f"post: a topic {topic} exists, which matches {pattern}"
    for wanted in topics.get("topics", ()):
        _check_keys(wanted, _TOPIC_KEYS, f"{case_id}: post.topics.topics")
        problem = _topic(wanted, after)
        if problem:
            return f"post: topic {wanted['name']} {problem}"
    return None


def _check_keys(found: Mapping[str, Any], known: set[str], where: str) -> None:
    for key in found:
        if key not in known and key not in IGNORED_KEYS:
            raise CaseFault(f"{where}: unknown key {key!r}")


# ------------------------------------------------------------------------------------------------ sources


def _source(wanted: Mapping[str, Any], after: After) -> str | None:
    source = after.catalog.sources.get(wanted["name"])
    if source is None:
        return "does not exist"
    found: dict[str, Any] = {
        "type": source.kind.lower(),
        "schema": _schema_text(source),
        "isSource": source.is_read_only,
        "keyFeatures": key_features(source),
        "valueFeatures": value_features(source, after.properties),
    }
    for key, value in found.items():
        expected = wanted.get(key)
        if expected is None:
            continue
        if key == "schema":
            expected = _normal_schema(expected)
        elif key == "type":
            expected = str(expected).lower()
        elif key.endswith("Features"):
            expected, value = sorted(expected), sorted(value)
        if expected != value:
            return f"has {key} {value!r}, expected {expected!r}"
    return _formats(wanted, source, after, is_exact=False)


def _formats(wanted: Mapping[str, Any], source: SourceInfo, after: After, *, is_exact: bool) -> str | None:
    for side, found in (("keyFormat", key_format(source)), ("valueFormat", value_format(source, after.properties))):
        expected = wanted.get(side)
        if expected is None:
            continue
        if not isinstance(expected, Mapping):
            expected = {"format": expected}
        _check_keys(expected, _FORMAT_KEYS, f"{source.name}: {side}")
        problem = _format_difference(expected, found, is_key=side == "keyFormat", is_exact=is_exact)
        if problem:
            return f"has {side} {problem}"
    return None


def _format_difference(expected: Mapping[str, Any], found: Mapping[str, Any], *, is_key: bool, is_exact: bool) -> str | None:
    """Compare a format: name and window always, features and properties where they are given, or (`is_exact`) all."""
    window = expected.get("windowInfo") or {}
    wanted = {
        "format": str(expected["format"]).upper(),
        "windowType": expected.get("windowType", window.get("type")),
        "windowSize": _milliseconds(expected.get("windowSize", window.get("size"))),
    }
    for key, value in wanted.items():
        if value != found[key] and (is_key or key == "format"):
            return f"{key} {found[key]!r}, expected {value!r}"
    for key, empty in (("features", []), ("properties", {})):
        if key not in expected and not is_exact:
            continue
        value = expected.get(key, empty)
        given, there = (sorted(value), sorted(found[key])) if key == "features" else (dict(value), dict(found[key]))
        if given != there:
            return f"{key} {there!r}, expected {given!r}"
    return None


def _milliseconds(value: Any) -> int | None:
    """Return a window's size: a number of ms, or seconds as Java writes durations."""
    if value is None:
        return None
    return int(value) if not isinstance(value, str) or value.isdigit() else int(float(value.strip("PTS")) * 1000)


def key_format(source: SourceInfo) -> dict[str, Any]:
    """Return how keys are written, in the words of the cases."""
    window = source.window
    return {
        "format": source.key_format.name,
        "features": key_features(source),
        "properties": _properties(source.key_format),
        "windowType": None if window is None else window.kind,
        "windowSize": None if window is None else window.size_ms,
    }


def value_format(source: SourceInfo, properties: Mapping[str, str]) -> dict[str, Any]:
    return {
        "format": source.value_format.name,
        "features": value_features(source, properties),
        "properties": _properties(source.value_format),
        "windowType": None,
        "windowSize": None,
    }


def key_features(source: SourceInfo) -> list[str]:
    """A single key column is written bare, which is worth a word where the format could also wrap it."""
    return ["UNWRAP_SINGLES"] if len(source.key) == 1 and _can_both(source.key_format) else []


def value_features(source: SourceInfo, properties: Mapping[str, str]) -> list[str]:
    """A single value column is written bare or wrapped, where the statement or the session says so."""
    is_said = "WRAP_SINGLE_VALUE" in source.statement.upper() or WRAP_SINGLE_VALUES in properties
    if not is_said or len(source.value) != 1 or not _can_both(source.value_format):
        return []
    return ["WRAP_SINGLES" if source.value_format.is_wrapped else "UNWRAP_SINGLES"]


def _can_both(spec: FormatSpec) -> bool:
    format = format_of(spec.name)
    return format.can_wrap and format.can_unwrap


def _properties(spec: FormatSpec) -> dict[str, str]:
    found: dict[str, str] = {}
    if spec.full_name:
        found["fullSchemaName"] = spec.full_name
    if spec.schema_id:
        found["schemaId"] = str(spec.schema_id)
    if spec.name == "PROTOBUF":
        found["unwrapPrimitives"] = "true"
    if spec.nullables:
        found["nullableRepresentation"] = spec.nullables.lower()
    if spec.delimiter != ",":
        found["delimiter"] = spec.delimiter
    return found


def _schema_text(source: SourceInfo) -> str:
    parts = [f"`{c.name}` {show_type(c.type)} KEY" for c in source.key]
    parts += [f"`{c.name}` {show_type(c.type)}" for c in source.value]
    for header in source.headers:
        if header.key is None:
            parts.append(f"`{header.name}` ARRAY<STRUCT<`KEY` STRING, `VALUE` BYTES>> HEADERS")
        else:
            parts.append(f"`{header.name}` BYTES HEADER('{header.key}')")
    return _normal_schema(", ".join(parts))


def _normal_schema(text: str) -> str:
    """Bring a column list to one form, by reading it as the columns of a CREATE statement."""
    statement = parse_statement(f"CREATE STREAM X ({text.replace('PRIMARY KEY', 'KEY')}) WITH (A='b')")
    assert isinstance(statement, ast.CreateSource)
    shown = []
    for e in statement.elements:
        key = f"('{e.header_key}')" if e.constraint == "HEADER" else ""
        shown.append(f"`{e.name}` {show_type(resolve_type(e.type, {}))}{f' {e.constraint}{key}' if e.constraint else ''}")
    return ", ".join(shown)


# ------------------------------------------------------------------------------------------------ topics


def _topic(wanted: Mapping[str, Any], after: After) -> str | None:
    name = wanted["name"]
    if name.startswith("_confluent"):
        raise Skip("checks internal topic names of Kafka Streams")
    source = next((s for s in after.catalog.sources.values() if s.topic == name), None)
    if source is None:
        return "has no source over it"
    for key, found in (("partitions", after.partitions.get(name)), ("replicas", after.replicas.get(name, 1))):
        if wanted.get(key) is not None and found != int(wanted[key]):
            return f"has {found} {key}, expected {wanted[key]}"
    problem = _formats(wanted, source, after, is_exact=True)
    for side, spec, columns in (("key", source.key_format, source.key), ("value", source.value_format, source.value)):
        expected = wanted.get(f"{side}Schema")
        if expected is not None and problem is None:
            problem = _schema_difference(side, spec, columns, expected, after.registry, name)
    return problem


def _schema_difference(
    side: str, spec: FormatSpec, columns: Iterable[Column], expected: Any, registry: MemoryRegistry, topic: str
) -> str | None:
    try:
        schema = registry.by_id(spec.schema_id) if spec.schema_id else registry.latest(f"{topic}-{side}")
    except SchemaNotFound:
        return f"has no {side} schema, expected {expected}"
    found = _normal_text(schema.text)
    wanted = _normal_text(expected if isinstance(expected, str) else json.dumps(expected, default=str))
    return None if found == wanted else f"has the {side} schema {found}, expected {wanted}"


def _normal_text(schema: str) -> Any:
    """Return a schema so that only what it says is compared: JSON as such, Protobuf without blanks and comments."""
    try:
        return json.loads(schema)
    except ValueError:
        return " ".join(re.sub(r"//[^\n]*", "", schema).split())
