"""Kinds of windows, and how a key says which window it is of.

Behind the encoded key stand 8 bytes of the window's start, for sessions its end and its start, as Kafka's windowed serializers
write them; windows without a size of their own (sessions) say their end themselves.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from math import gcd
from typing import TypeVar

from .calendars import LONGEST_MS, CalendarUnit, calendar_end

WINDOW_START = struct.Struct(">q")
"""The window start behind the key bytes of a windowed edge or store, as Kafka's windowed serializers write it."""

SESSION_BOUNDS = struct.Struct(">qq")
"""End and start of a session behind the key bytes of an edge."""

FOREVER_MS = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """Tumbling (advance = size) or hopping windows [start, start + size), aligned to the epoch, in milliseconds.

    A record counts for a window iff window end > stream time - grace, stream time including the record itself.
    Retention of the store is max(retention, size + grace).
    """

    size_ms: int
    advance_ms: int
    grace_ms: int = 0
    retention_ms: int = 0


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """Windows [t - size, t], both ends inclusive, that end at a record or begin right after one (KIP-450).

    Two records of a key are in a window together iff their times differ by at most `size`. A record counts for a window iff
    window end >= stream time - grace. Retention of the store is max(retention, 2 * size + grace, 1 ms).
    """

    size_ms: int
    grace_ms: int = 0
    retention_ms: int = 0


@dataclass(frozen=True, slots=True)
class SessionWindow:
    """Records of a key that follow each other within `gap`: [first, last], both inclusive.

    A record is late iff the session that it would be in ends before stream time - grace - gap. Retention of the store is
    max(retention, gap + grace, 1 ms) behind a session's end.
    """

    gap_ms: int
    grace_ms: int = 0
    retention_ms: int = 0


@dataclass(frozen=True, slots=True)
class UnlimitedWindow:
    """One window per key, [start, for ever); records before the start do not count, none is ever late."""

    start_ms: int = 0


@dataclass(frozen=True, slots=True)
class CalendarWindow:
    """Days, weeks, months ... of a time zone. A record counts iff its window's end > stream time - grace.

    Retention of the store is max(retention, length + grace).
    """

    unit: CalendarUnit
    zone: str
    grace_ms: int = 0
    retention_ms: int = 0

    def end_of(self, start_ms: int) -> int:
        """Return the end, exclusive, of the window that begins at an instant."""
        return calendar_end(self.unit, self.zone, start_ms)


Window = TimeWindow | SlidingWindow | SessionWindow | UnlimitedWindow | CalendarWindow
_Sized = TypeVar("_Sized", TimeWindow, SlidingWindow, CalendarWindow)


def key_suffix_bytes(window: Window | None) -> int:
    """Return how many bytes behind an encoded key say which window it is of."""
    if window is None:
        return 0
    return SESSION_BOUNDS.size if isinstance(window, SessionWindow) else WINDOW_START.size


def bounds_of_key(window: Window, key: bytes) -> tuple[int, int]:
    """Return start and end of the window that an encoded key is of, as Kafka gives them.

    >>> bounds_of_key(TimeWindow(60_000, 60_000), b"user" + WINDOW_START.pack(120_000))
    (120000, 180000)
    >>> bounds_of_key(SessionWindow(60_000), b"user" + SESSION_BOUNDS.pack(90_000, 30_000))
    (30000, 90000)
    """
    if isinstance(window, SessionWindow):
        end, start = SESSION_BOUNDS.unpack_from(key, len(key) - SESSION_BOUNDS.size)
        return start, end
    (start,) = WINDOW_START.unpack_from(key, len(key) - WINDOW_START.size)
    if isinstance(window, CalendarWindow):
        return start, window.end_of(start)
    return start, FOREVER_MS if isinstance(window, UnlimitedWindow) else start + window.size_ms


def key_of_bounds(window: Window, key: bytes, start_ms: int, end_ms: int) -> bytes:
    """Return an encoded key with the window it is of."""
    if isinstance(window, SessionWindow):
        return key + SESSION_BOUNDS.pack(end_ms, start_ms)
    return key + WINDOW_START.pack(start_ms)


def store_window(window: Window | None) -> TimeWindow | None:
    """Return by what the entries of a table with windowed keys expire: their windows' starts; None: they stay.

    Rows of sessions stay: their keys end in a start, which an open session may have long behind it.
    """
    match window:
        case TimeWindow():
            return window
        case SlidingWindow():
            return TimeWindow(3 * window.size_ms + 1, 1, window.grace_ms, window.retention_ms)
        case CalendarWindow():
            return TimeWindow(LONGEST_MS[window.unit], 1, window.grace_ms, window.retention_ms)
    return None


def joined_window(left: Window | None, right: Window | None) -> Window | None:
    """Return the windows of a join of two tables by key; they close when neither side takes records for them any more.

    Raises:
        ValueError: no key of one side can be a key of the other.

    >>> joined_window(TimeWindow(10, 10, grace_ms=5), TimeWindow(10, 10, grace_ms=30))
    TimeWindow(size_ms=10, advance_ms=10, grace_ms=30, retention_ms=0)
    """
    if left == right:
        return left
    match left, right:
        case SessionWindow(), SessionWindow():
            gap_ms = max(left.gap_ms, right.gap_ms)
            grace_ms = max(close_wait_ms(left), close_wait_ms(right)) - gap_ms
            return SessionWindow(gap_ms, grace_ms, max(left.retention_ms, right.retention_ms))
        case TimeWindow(), TimeWindow() if left.size_ms == right.size_ms:
            return replace(_kept_longest(left, right), advance_ms=gcd(left.advance_ms, right.advance_ms))
        case SlidingWindow(), SlidingWindow() if left.size_ms == right.size_ms:
            return _kept_longest(left, right)
        case CalendarWindow(), CalendarWindow() if (left.unit, left.zone) == (right.unit, right.zone):
            return _kept_longest(left, right)
    raise ValueError("their keys are never equal")


def _kept_longest(left: _Sized, right: _Sized) -> _Sized:
    """Return the left windows, open and kept for as long as those of the side where that is longer."""
    grace_ms, retention_ms = max(left.grace_ms, right.grace_ms), max(left.retention_ms, right.retention_ms)
    return replace(left, grace_ms=grace_ms, retention_ms=retention_ms)


def close_wait_ms(window: Window) -> int:
    """Return how far stream time has to be past the end of a window until no record counts for it any more."""
    if isinstance(window, UnlimitedWindow):
        return FOREVER_MS
    return window.grace_ms + (window.gap_ms if isinstance(window, SessionWindow) else 0)
