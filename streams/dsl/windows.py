"""Durations and windows as a user writes them; milliseconds inside."""

from __future__ import annotations

from datetime import timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from logflume.log import InvalidInput, UnknownName

from ..calendars import CalendarUnit
from ..windows import CalendarWindow, SessionWindow, SlidingWindow, TimeWindow, UnlimitedWindow

Duration = float | timedelta
"""Milliseconds, or a timedelta."""


def milliseconds(value: Duration) -> int:
    """Return a duration in milliseconds."""
    return _whole(value, 1)


def signed_milliseconds(value: Duration) -> int:
    """Return a duration in milliseconds that may be negative."""
    if isinstance(value, timedelta):
        value = value / timedelta(milliseconds=1)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return -_whole(-value, 1) if is_number and value < 0 else _whole(value, 1)


def seconds(value: float) -> int:
    """Return a duration in milliseconds.

    >>> seconds(1.5)
    1500
    """
    return _whole(value, 1_000)


def minutes(value: float) -> int:
    """Return a duration in milliseconds."""
    return _whole(value, 60_000)


def hours(value: float) -> int:
    """Return a duration in milliseconds."""
    return _whole(value, 3_600_000)


def days(value: float) -> int:
    """Return a duration in milliseconds."""
    return _whole(value, 86_400_000)


def tumbling(
    size: Duration = 0,
    *,
    days: float = 0,
    hours: float = 0,
    minutes: float = 0,
    seconds: float = 0,
    grace: Duration = 0,
    retention: Duration = 0,
) -> TimeWindow:
    """Windows of one size that follow each other, aligned to the epoch.

    `size`, `grace` and `retention` are durations: ms (`lf.minutes(10)`) or a `timedelta`. A record counts as long as its window's
    end is after stream time - grace; `retention` keeps results readable for longer.

    >>> tumbling(timedelta(hours=1), grace=600_000)
    TimeWindow(size_ms=3600000, advance_ms=3600000, grace_ms=600000, retention_ms=0)
    """
    length = _length(size, days, hours, minutes, seconds)
    return TimeWindow(length, length, _whole(grace, 1), _whole(retention, 1))


def hopping(
    size: Duration = 0,
    *,
    advance: Duration,
    days: float = 0,
    hours: float = 0,
    minutes: float = 0,
    seconds: float = 0,
    grace: Duration = 0,
    retention: Duration = 0,
) -> TimeWindow:
    """Windows of one size that start every `advance` ms, so that a record counts in several.

    >>> hopping(minutes=10, advance=60_000).advance_ms
    60000
    """
    length = _length(size, days, hours, minutes, seconds)
    step = _whole(advance, 1)
    if not 0 < step <= length:
        raise InvalidInput(f"a hopping window of {length} ms needs 0 < advance <= size, found {step} ms")
    return TimeWindow(length, step, _whole(grace, 1), _whole(retention, 1))


def session(
    gap: Duration | None = None,
    *,
    days: float = 0,
    hours: float = 0,
    minutes: float = 0,
    seconds: float = 0,
    grace: Duration = 0,
    retention: Duration = 0,
) -> SessionWindow:
    """Windows of activity: records of a key that follow each other within a gap are in one, from the first to the last.

    A gap of 0 joins those of one time.

    >>> session(minutes=30)
    SessionWindow(gap_ms=1800000, grace_ms=0, retention_ms=0)
    """
    length = _length(gap or 0, days, hours, minutes, seconds, what="session(minutes=30)", is_given=gap is not None)
    return SessionWindow(length, _whole(grace, 1), _whole(retention, 1))


def sliding(
    size: Duration | None = None,
    *,
    days: float = 0,
    hours: float = 0,
    minutes: float = 0,
    seconds: float = 0,
    grace: Duration = 0,
    retention: Duration = 0,
) -> SlidingWindow:
    """Windows around the records themselves: two records of a key share one iff they are at most `size` apart (0: of one time).

    >>> sliding(minutes=5, grace=1000)
    SlidingWindow(size_ms=300000, grace_ms=1000, retention_ms=0)
    """
    length = _length(size or 0, days, hours, minutes, seconds, what="sliding(minutes=5)", is_given=size is not None)
    return SlidingWindow(length, _whole(grace, 1), _whole(retention, 1))


def calendar(unit: str, *, zone: str = "UTC", grace: Duration = 0, retention: Duration = 0) -> CalendarWindow:
    """Windows of the calendar: "day", "week" (from Monday), "month", "quarter" or "year", on the clocks of a time zone.

    A day on which clocks change is 23 or 25 hours long.

    >>> calendar("day", zone="Europe/Berlin")
    CalendarWindow(unit=<CalendarUnit.DAY: 'day'>, zone='Europe/Berlin', grace_ms=0, retention_ms=0)
    """
    units = [str(known) for known in CalendarUnit]
    if unit not in units:
        raise UnknownName("unit of a calendar", str(unit), units)
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):
        raise UnknownName("time zone", str(zone), available_timezones()) from None
    return CalendarWindow(CalendarUnit(unit), zone, _whole(grace, 1), _whole(retention, 1))


def unlimited(start: int = 0) -> UnlimitedWindow:
    """One window per key, from `start` (ms since the epoch) on for ever.

    >>> unlimited()
    UnlimitedWindow(start_ms=0)
    """
    return UnlimitedWindow(_whole(start, 1))


def _length(
    size: Duration, days: float, hours: float, minutes: float, seconds: float, *,
    what: str = "tumbling(hours=1)", is_given: bool = False,
) -> int:  # fmt: skip
    units = ((size, 1), (days, 86_400_000), (hours, 3_600_000), (minutes, 60_000), (seconds, 1_000))
    length = sum(_whole(value, unit_ms) for value, unit_ms in units)
    if length == 0 and not is_given:
        raise InvalidInput(f"a window needs a size: {what}, or milliseconds (lf.minutes(5))")
    return length


def _whole(value: Duration, unit_ms: int) -> int:
    if isinstance(value, timedelta):
        value, unit_ms = value / timedelta(milliseconds=1), 1
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(f"a duration is a number of milliseconds (lf.minutes(10)) or a timedelta, found {value!r}")
    total = value * unit_ms
    if total < 0 or total != int(total):
        raise InvalidInput(f"a duration is a whole, non-negative number of milliseconds, found {total}")
    return int(total)
