"""Calendar windows: days, weeks, months of a time zone, as long as its clocks make them. (pure)

A day begins with the first instant that has its date on the local clock, so that a day is 23, 24 or 25 hours long where clocks
change. Weeks begin on Monday (ISO 8601).
"""

from __future__ import annotations

import datetime
from enum import StrEnum
from functools import lru_cache
from zoneinfo import ZoneInfo

_MILLISECOND = datetime.timedelta(milliseconds=1)
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_DAY_MS = 86_400_000
LAST_CALENDAR_MS = 253_370_764_800_000
"""The beginning of the year 9999: there is no calendar from there on."""


class CalendarUnit(StrEnum):
    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    QUARTER = "quarter"
    YEAR = "year"


LONGEST_MS = {
    CalendarUnit.DAY: 2 * _DAY_MS, CalendarUnit.WEEK: 8 * _DAY_MS, CalendarUnit.MONTH: 32 * _DAY_MS,
    CalendarUnit.QUARTER: 93 * _DAY_MS, CalendarUnit.YEAR: 367 * _DAY_MS,
}  # fmt: skip
"""No window of a unit is longer, whatever a zone does."""


@lru_cache(maxsize=65_536)
def calendar_end(unit: CalendarUnit, zone: str, start_ms: int) -> int:
    """Return the end, exclusive, of the window that begins at an instant."""
    return _instant(_next(unit, _first(unit, _local(zone, start_ms).date())), zone)


def calendar_span(unit: CalendarUnit, zone: str, time_ms: int) -> tuple[int, int]:
    """Return start and end of the window of an instant before `LAST_CALENDAR_MS`; none begins before 1970.

    >>> [start, end] = calendar_span(CalendarUnit.DAY, "Europe/Berlin", 1711846800000)
    >>> (end - start) // 3_600_000
    23
    """
    first = _first(unit, _local(zone, time_ms).date())
    start_ms = max(_instant(first, zone), 0)
    return start_ms, calendar_end(unit, zone, start_ms)


def _local(zone: str, time_ms: int) -> datetime.datetime:
    return (_EPOCH + time_ms * _MILLISECOND).astimezone(ZoneInfo(zone))


def _instant(day: datetime.date, zone: str) -> int:
    midnight = datetime.datetime.combine(day, datetime.time(), ZoneInfo(zone))
    return (midnight - _EPOCH) // _MILLISECOND


def _first(unit: CalendarUnit, day: datetime.date) -> datetime.date:
    match unit:
        case CalendarUnit.DAY:
            return day
        case CalendarUnit.WEEK:
            return day - datetime.timedelta(days=day.weekday())
        case CalendarUnit.MONTH:
            return day.replace(day=1)
        case CalendarUnit.QUARTER:
            return day.replace(month=(day.month - 1) // 3 * 3 + 1, day=1)
    return day.replace(month=1, day=1)


def _next(unit: CalendarUnit, first: datetime.date) -> datetime.date:
    days = {CalendarUnit.DAY: 1, CalendarUnit.WEEK: 7, CalendarUnit.MONTH: 31, CalendarUnit.QUARTER: 92, CalendarUnit.YEAR: 366}
    return _first(unit, first + datetime.timedelta(days=days[unit]))
