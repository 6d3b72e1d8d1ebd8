"""The CREATE STREAM that somebody needs who selects from a topic: its columns as its first records have them.

A suggestion, no definition: it looks at a few records, for no longer than `WAIT_S`, and gives up on what it does not understand.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from logflume.log import LogflumeError, TopicPartition, is_internal_topic, near_matches
from logflume.log.interfaces import Log

from .binding.scope import RESERVED_COLUMNS
from .errors import NoColumns, UnknownSource
from .format import name_text, string_text

RECORDS_MAX, VALUE_BYTES_MAX, DEPTH_MAX, WAIT_S = 50, 100_000, 4, 1.0
COLUMNS_CHARS_MAX = 4000
"""Columns that are longer, about a hundred, are nothing to read in an error."""
_BY_CLASS = {bool: "BOOLEAN", int: "BIGINT", float: "DOUBLE", str: "STRING"}


def columns_hint(log: Log, error: UnknownSource | NoColumns) -> str:
    """Return the statement that was meant, over the topic that it named; '' without one, or without an answer.

    The topic of an unknown source has its name, however its case; one whose name is only near is named.
    """
    source, what = error.name, error.what if isinstance(error, NoColumns) else "STREAM"
    topic = error.topic if isinstance(error, NoColumns) else ""
    try:
        topics = [each for each in log.admin().list_topics() if not is_internal_topic(each)]
        known = [each for each in topics if each == topic or (not topic and each.upper() == source.upper())]
        if len(known) != 1:
            near = [] if known or "Did you mean" in error.reason else near_matches(topic or source, topics)
            return f" There is a topic {near[0]}: did you mean that?" if near else ""
        keys, values = _first_records(log, known[0])
    except LogflumeError:
        return ""
    if not values:
        return ""
    columns = [f"k STRING {'KEY' if what == 'STREAM' else 'PRIMARY KEY'}"] if keys and all(map(_is_text, keys)) else []
    objects = [found for found in map(_json_object, values) if found is not None]
    if len(objects) * 2 < len(values):
        return ""
    named = _merged(objects)
    if not named or "K" in named:
        columns = []
    if what == "TABLE" and not columns:
        return ""
    columns += [f"{name_text(name)} {_type(each, 0)}" for name, each in named.items() if name not in RESERVED_COLUMNS]
    listed = ", ".join(columns)
    if not listed or len(listed) > COLUMNS_CHARS_MAX:
        return ""
    made = f"CREATE {what} {name_text(source)} ({listed}) WITH (KAFKA_TOPIC = {string_text(known[0])}"
    return f" There is a topic {known[0]}; by its first {len(values)} records: {made}, VALUE_FORMAT = 'JSON');"


def _first_records(log: Log, topic: str) -> tuple[list[bytes], list[bytes]]:
    """Return keys that are there and values of the first records of a topic."""
    admin = log.admin()
    partitions = [TopicPartition(topic, number) for number in range(admin.describe_topics([topic])[topic].partitions)]
    starts, ends = admin.start_offsets(partitions), admin.end_offsets(partitions)
    held = [each for each in partitions if ends[each] > starts[each]]
    if not held:
        return [], []
    consumer = log.consumer(client_id="sql-columns", offset_reset="earliest")
    try:
        consumer.assign(held)
        records = [record for chunk in consumer.poll(timeout_s=WAIT_S, max_records=RECORDS_MAX) for record in chunk.records()]
    finally:
        consumer.close()
    values = [record.value for record in records if record.value is not None and len(record.value) <= VALUE_BYTES_MAX]
    return [record.key for record in records if record.key is not None], values[:RECORDS_MAX]


def _is_text(data: bytes) -> bool:
    try:
        return data.decode().isprintable()
    except UnicodeDecodeError:
        return False


def _json_object(data: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _merged(objects: Iterable[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return the values of each field, nulls left out, in the order in which fields are first met.

    Fields are one whose names differ in case only, as for who reads them; what cannot be a name is left out.
    """
    found: dict[str, list[Any]] = {}
    for each in objects:
        for name, value in each.items():
            if name and name.isprintable():
                found.setdefault(name.upper(), []).extend([] if value is None else [value])
    return found


def _type(values: list[Any], depth: int) -> str:
    """Return the narrowest type that all values have; STRING, which takes any JSON, where they have none in common."""
    kinds = {type(value) for value in values}
    if kinds == {int, float}:
        return "DOUBLE"
    if len(kinds) != 1 or depth == DEPTH_MAX:
        return "STRING"
    (kind,) = kinds
    if kind is list:
        return f"ARRAY<{_type([item for items in values for item in items if item is not None], depth + 1)}>"
    if kind is dict:
        fields = _merged(values)
        inner = ", ".join(f"{name_text(name)} {_type(each, depth + 1)}" for name, each in fields.items())
        return f"STRUCT<{inner}>" if fields else "STRING"
    return _BY_CLASS[kind]
