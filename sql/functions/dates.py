"""Functions of dates and times. DATE is days, TIME milliseconds of the day, TIMESTAMP milliseconds since the epoch."""

from __future__ import annotations

import time

from logflume.sql.words import UNITS_MS

from .java_time import (
    DAY_MS,
    format_date,
    format_time,
    format_timestamp,
    parse_date,
    parse_time,
    parse_timestamp,
    zone_of,
)
from .signature import Overload, overload


def unix_timestamp() -> int:
    """Now, in milliseconds."""
    return time.time_ns() // 1_000_000


def unix_date() -> int:
    return unix_timestamp() // DAY_MS


def same(value: int) -> int:
    return value


def timestamp_add(unit: str, amount: int, ms: int) -> int:
    return ms + amount * _unit_ms(unit)


def timestamp_subtract(unit: str, amount: int, ms: int) -> int:
    return ms - amount * _unit_ms(unit)


def time_add(unit: str, amount: int, ms: int) -> int:
    """Wraps around midnight."""
    return (ms + amount * _unit_ms(unit)) % DAY_MS


def time_subtract(unit: str, amount: int, ms: int) -> int:
    return (ms - amount * _unit_ms(unit)) % DAY_MS


def date_add(unit: str, amount: int, days: int) -> int:
    """Whole days only: a smaller unit counts as far as it fills days."""
    total = amount * _unit_ms(unit)
    return days + (total // DAY_MS if total >= 0 else -(-total // DAY_MS))


def date_subtract(unit: str, amount: int, days: int) -> int:
    return date_add(unit, -amount, days)


def _unit_ms(unit: str) -> int:
    size = UNITS_MS.get(unit)
    if size is None:
        raise ValueError(f"the time unit {unit} has no fixed length")
    return size


def convert_tz(ms: int, source: str, target: str) -> int:
    """The same wall clock reading shifted from one zone to another."""
    from datetime import UTC, datetime, timedelta

    wall = datetime(1970, 1, 1) + timedelta(milliseconds=ms)
    instant = wall.replace(tzinfo=zone_of(source))
    shown = instant.astimezone(zone_of(target)).replace(tzinfo=None)
    return (shown.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


OVERLOADS: tuple[Overload, ...] = (
    overload("UNIX_TIMESTAMP", "() -> BIGINT", unix_timestamp, doc="Now, or a TIMESTAMP, in milliseconds since the epoch."),
    overload("UNIX_TIMESTAMP", "(TIMESTAMP) -> BIGINT", same),
    overload("UNIX_DATE", "() -> INTEGER", unix_date, doc="Today, or a DATE, in days since the epoch."),
    overload("UNIX_DATE", "(DATE) -> INTEGER", same),
    overload("FROM_UNIXTIME", "(BIGINT) -> TIMESTAMP", same, doc="Milliseconds since the epoch as TIMESTAMP."),
    overload("FROM_DAYS", "(INTEGER) -> DATE", same, doc="Days since the epoch as DATE."),
    overload("CONVERT_TZ", "(TIMESTAMP, STRING, STRING) -> TIMESTAMP", convert_tz, doc="From one time zone to another."),
    overload("DATEADD", "(UNIT, INTEGER, DATE) -> DATE", date_add, doc="A DATE later by an amount of a unit."),
    overload("DATESUB", "(UNIT, INTEGER, DATE) -> DATE", date_subtract, doc="A DATE earlier by an amount of a unit."),
    overload("TIMEADD", "(UNIT, INTEGER, TIME) -> TIME", time_add, doc="A TIME later by an amount of a unit, around midnight."),
    overload("TIMESUB", "(UNIT, INTEGER, TIME) -> TIME", time_subtract, doc="A TIME earlier by an amount of a unit."),
    overload(
        "TIMESTAMPADD", "(UNIT, INTEGER, TIMESTAMP) -> TIMESTAMP", timestamp_add, doc="A TIMESTAMP later by an amount of a unit."
    ),
    overload(
        "TIMESTAMPSUB", "(UNIT, INTEGER, TIMESTAMP) -> TIMESTAMP", timestamp_subtract, doc="A TIMESTAMP earlier by an amount."
    ),
    overload("FORMAT_DATE", "(DATE, STRING) -> STRING", format_date, doc="A DATE as text by a pattern."),
    overload("FORMAT_TIME", "(TIME, STRING) -> STRING", format_time, doc="A TIME as text by a pattern."),
    overload("FORMAT_TIMESTAMP", "(TIMESTAMP, STRING) -> STRING", format_timestamp, doc="A TIMESTAMP as text by a pattern."),
    overload("FORMAT_TIMESTAMP", "(TIMESTAMP, STRING, STRING) -> STRING", format_timestamp),
    overload("PARSE_DATE", "(STRING, STRING) -> DATE", parse_date, doc="Text as DATE by a pattern."),
    overload("PARSE_TIME", "(STRING, STRING) -> TIME", parse_time, doc="Text as TIME by a pattern."),
    overload("PARSE_TIMESTAMP", "(STRING, STRING) -> TIMESTAMP", parse_timestamp, doc="Text as TIMESTAMP by a pattern."),
    overload("PARSE_TIMESTAMP", "(STRING, STRING, STRING) -> TIMESTAMP", parse_timestamp),
    overload("DATETOSTRING", "(INTEGER, STRING) -> STRING", format_date, doc="Days since the epoch as text."),
    overload("STRINGTODATE", "(STRING, STRING) -> INTEGER", parse_date, doc="Text as days since the epoch."),
    overload("TIMESTAMPTOSTRING", "(BIGINT, STRING) -> STRING", format_timestamp, doc="Milliseconds since the epoch as text."),
    overload("TIMESTAMPTOSTRING", "(BIGINT, STRING, STRING) -> STRING", format_timestamp),
    overload("STRINGTOTIMESTAMP", "(STRING, STRING) -> BIGINT", parse_timestamp, doc="Text as milliseconds since the epoch."),
    overload("STRINGTOTIMESTAMP", "(STRING, STRING, STRING) -> BIGINT", parse_timestamp),
)
