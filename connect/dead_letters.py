"""What cannot be processed, as dead-letter records: data as found, place and reason in headers (Kafka Connect's names)."""

from __future__ import annotations

from dataclasses import dataclass

from logflume.log import Headers, Record

from .api import Broken

PREFIX = "__connect.errors."


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One record for the dead-letter topic."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int | None
    headers: Headers


def from_broken(row: Broken, *, connector: str, task: int) -> DeadLetter:
    """Return a row of a source: value is its text, headers name file, line, column and reason."""
    headers = _headers(
        ("connector.name", connector),
        ("task.id", str(task)),
        ("stage", "VALUE_CONVERTER"),
        ("file", row.file),
        ("line", str(row.line)),
        *((("column", row.column),) if row.column else ()),
        ("exception.message", row.reason),
    )
    return DeadLetter(row.file.encode(), row.data, None, headers)


def from_record(record: Record, *, stage: str, error: Exception, connector: str, task: int) -> DeadLetter:
    """Return a record that a sink could not take: key and value as they were, its headers kept before the reason."""
    headers = _headers(
        ("topic", record.topic),
        ("partition", str(record.partition)),
        ("offset", str(record.offset)),
        ("connector.name", connector),
        ("task.id", str(task)),
        ("stage", stage),
        ("exception.class.name", type(error).__name__),
        ("exception.message", str(error)),
    )
    return DeadLetter(record.key, record.value, record.timestamp_ms, record.headers + headers)


def _headers(*pairs: tuple[str, str]) -> Headers:
    return tuple((PREFIX + name, text.encode()) for name, text in pairs)
