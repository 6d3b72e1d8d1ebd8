"""Functions of dates and times. DATE is days, TIME milliseconds of the day, TIMESTAMP milliseconds since the epoch."""

from __future__ import annotations

import datetime
import time

from ..java_time import (
    DAY_MS,
    UNITS_MS,
    format_date,
    format_time,
    format_timestamp,
    format_timestamp_gmt,
    parse_date,
    parse_time,
    parse_timestamp,
    zone_of,
)
from ..lenient_dates import parse_calendar_date
from .numeric_columns import same_columns
from .scalar import Scalar, Unit, gives, over, scalar
from .time_columns import (
    date_add_columns,
    date_subtract_columns,
    format_date_columns,
    format_time_columns,
    format_timestamp_columns,
    parse_calendar_date_columns,
    parse_date_columns,
    parse_timestamp_columns,
    timestamp_add_columns,
    timestamp_subtract_columns,
)


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
    """The day that the moment is of, counted towards 1970: an hour before that day is that day too."""
    total = days * DAY_MS + amount * _unit_ms(unit)
    return total // DAY_MS if total >= 0 else -(-total // DAY_MS)


def date_subtract(unit: str, amount: int, days: int) -> int:
    return date_add(unit, -amount, days)


def _unit_ms(unit: str) -> int:
    size = UNITS_MS.get(unit)
    if size is None:
        raise ValueError(f"the time unit {unit} has no fixed length")
    return size


def convert_tz(ms: int, source: str, target: str) -> int:
    """Shifted by what the offsets of both zones from UTC differ at that moment (read as UTC)."""
    from datetime import UTC, datetime, timedelta

    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    ahead = moment.astimezone(zone_of(target)).utcoffset() or timedelta(0)
    behind = moment.astimezone(zone_of(source)).utcoffset() or timedelta(0)
    return ms + (ahead - behind) // timedelta(milliseconds=1)


_DAY = datetime.date(2024, 2, 29)
_NOON = datetime.time(12, 0)
_MOMENT = datetime.datetime(2024, 2, 29, 12, 0)
_DAYS = Unit("DAYS")

FUNCTIONS: tuple[Scalar, ...] = (
    scalar(
        "UNIX_TIMESTAMP",
        "Now, or a TIMESTAMP, in milliseconds since the epoch.",
        gives(1709208000000, _MOMENT),
        over("() -> BIGINT", unix_timestamp),
        over("(TIMESTAMP) -> BIGINT", same, columns=same_columns),
    ),
    scalar(
        "UNIX_DATE",
        "Today, or a DATE, in days since the epoch.",
        gives(19782, _DAY),
        over("() -> INTEGER", unix_date),
        over("(DATE) -> INTEGER", same, columns=same_columns),
    ),
    scalar(
        "FROM_UNIXTIME",
        "Milliseconds since the epoch as TIMESTAMP.",
        gives(1709208000000, 1709208000000),
        over("(BIGINT) -> TIMESTAMP", same, columns=same_columns),
    ),
    scalar(
        "FROM_DAYS", "Days since the epoch as DATE.", gives(19782, 19782), over("(INTEGER) -> DATE", same, columns=same_columns)
    ),
    scalar(
        "CONVERT_TZ",
        "From one time zone to another.",
        gives(1709211600000, _MOMENT, "UTC", "Europe/Berlin"),
        over("(TIMESTAMP, STRING, STRING) -> TIMESTAMP", convert_tz),
    ),
    scalar(
        "DATEADD",
        "A DATE later by an amount of a unit.",
        gives(19783, _DAYS, 1, _DAY),
        over("(UNIT, INTEGER, DATE) -> DATE", date_add, columns=date_add_columns),
        subject=-1,
    ),
    scalar(
        "DATESUB",
        "A DATE earlier by an amount of a unit.",
        gives(19781, _DAYS, 1, _DAY),
        over("(UNIT, INTEGER, DATE) -> DATE", date_subtract, columns=date_subtract_columns),
        subject=-1,
    ),
    scalar(
        "TIMEADD",
        "A TIME later by an amount of a unit, around midnight.",
        gives(3_600_000, Unit("HOURS"), 13, _NOON),
        over("(UNIT, INTEGER, TIME) -> TIME", time_add),
        subject=-1,
    ),
    scalar(
        "TIMESUB",
        "A TIME earlier by an amount of a unit, around midnight.",
        gives(39_600_000, Unit("HOURS"), 1, _NOON),
        over("(UNIT, INTEGER, TIME) -> TIME", time_subtract),
        subject=-1,
    ),
    scalar(
        "TIMESTAMPADD",
        "A TIMESTAMP later by an amount of a unit.",
        gives(1709294400000, _DAYS, 1, _MOMENT),
        over("(UNIT, INTEGER, TIMESTAMP) -> TIMESTAMP", timestamp_add, columns=timestamp_add_columns),
        subject=-1,
    ),
    scalar(
        "TIMESTAMPSUB",
        "A TIMESTAMP earlier by an amount of a unit.",
        gives(1709121600000, _DAYS, 1, _MOMENT),
        over("(UNIT, INTEGER, TIMESTAMP) -> TIMESTAMP", timestamp_subtract, columns=timestamp_subtract_columns),
        subject=-1,
    ),
    scalar(
        "FORMAT_DATE",
        "A DATE as text by a pattern.",
        gives("29.02.2024", _DAY, "dd.MM.yyyy"),
        over("(DATE, STRING) -> STRING", format_date, columns=format_date_columns),
    ),
    scalar(
        "FORMAT_TIME",
        "A TIME as text by a pattern.",
        gives("12:00", _NOON, "HH:mm"),
        over("(TIME, STRING) -> STRING", format_time, columns=format_time_columns),
    ),
    scalar(
        "FORMAT_TIMESTAMP",
        "A TIMESTAMP as text by a pattern, in a zone.",
        gives("13:00 CET", _MOMENT, "HH:mm z", "Europe/Berlin"),
        over("(TIMESTAMP, STRING) -> STRING", format_timestamp_gmt, columns=format_timestamp_columns),
        over("(TIMESTAMP, STRING, STRING) -> STRING", format_timestamp, columns=format_timestamp_columns),
    ),
    scalar(
        "PARSE_DATE",
        "Text as DATE by a pattern.",
        gives(19782, "29 Feb 2024", "d MMM yyyy"),
        over("(STRING, STRING) -> DATE", parse_calendar_date, columns=parse_calendar_date_columns),
    ),
    scalar(
        "PARSE_TIME",
        "Text as TIME by a pattern.",
        gives(43_200_000, "12:00", "HH:mm"),
        over("(STRING, STRING) -> TIME", parse_time),
    ),
    scalar(
        "PARSE_TIMESTAMP",
        "Text as TIMESTAMP by a pattern; a zone in the text wins over the one given.",
        gives(1709208000000, "2024-02-29 12:00", "yyyy-MM-dd HH:mm"),
        over("(STRING, STRING) -> TIMESTAMP", parse_timestamp, columns=parse_timestamp_columns),
        over("(STRING, STRING, STRING) -> TIMESTAMP", parse_timestamp),
    ),
    scalar(
        "DATETOSTRING",
        "Days since the epoch as text.",
        gives("2024-02-29", 19782, "yyyy-MM-dd"),
        over("(INTEGER, STRING) -> STRING", format_date, columns=format_date_columns),
    ),
    scalar(
        "STRINGTODATE",
        "Text as days since the epoch.",
        gives(19782, "2024-02-29", "yyyy-MM-dd"),
        over("(STRING, STRING) -> INTEGER", parse_date, columns=parse_date_columns),
    ),
    scalar(
        "TIMESTAMPTOSTRING",
        "Milliseconds since the epoch as text.",
        gives("1970-01-01 01:00 CET", 0, "yyyy-MM-dd HH:mm z", "Europe/Berlin"),
        over("(BIGINT, STRING) -> STRING", format_timestamp, columns=format_timestamp_columns),
        over("(BIGINT, STRING, STRING) -> STRING", format_timestamp, columns=format_timestamp_columns),
    ),
    scalar(
        "STRINGTOTIMESTAMP",
        "Text as milliseconds since the epoch.",
        gives(0, "1970-01-01 00:00", "yyyy-MM-dd HH:mm"),
        over("(STRING, STRING) -> BIGINT", parse_timestamp, columns=parse_timestamp_columns),
        over("(STRING, STRING, STRING) -> BIGINT", parse_timestamp),
    ),
)
