"""Places in a topic, as options of commands name them: a word, an offset, a number from the end, or a time."""

from __future__ import annotations

from datetime import UTC, datetime

from logflume.log import Admin, InvalidInput, TopicPartition

PLACES = "beginning (earliest), end (latest), an offset, -N for the last N of each partition, or a time (2026-01-31T12:00, UTC)"
Offsets = dict[TopicPartition, int]
_DIGITS_MAX = 18
"""Of a number: any such fits an offset of 64 bits."""


def offsets_at(place: str, starts: Offsets, ends: Offsets, admin: Admin, *, option: str) -> Offsets:
    """Return the offset of each partition that `place` means; one that is given as a number is not compared with the ends.

    A time means the first record of that time or later, and the end where there is none. Raises: InvalidInput naming `option`.
    """
    if place in ("beginning", "earliest"):
        return dict(starts)
    if place in ("end", "latest"):
        return dict(ends)
    if (digits := place.removeprefix("-")).isdecimal():
        if len(digits) > _DIGITS_MAX:
            raise InvalidInput(f"{option} expects a number of at most {_DIGITS_MAX} digits, found {place[:60]!r}")
        number = int(place)
        if place.startswith("-"):
            return {tp: max(starts[tp], ends[tp] + number) for tp in starts}
        return dict.fromkeys(starts, number)
    found = admin.offsets_for_time(dict.fromkeys(starts, time_ms(place, option)))
    return {tp: end if (offset := found[tp]) is None else min(offset, end) for tp, end in ends.items()}


def time_ms(text: str, option: str) -> int:
    """Return a time in ISO 8601, UTC unless it says otherwise, as ms since 1970.

    >>> time_ms("2026-01-31T13:00+01:00", "--from") == time_ms("2026-01-31T12:00", "--from") == 1769860800000
    True
    """
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"{option} expects {PLACES}; found {text!r}") from None
    ms = int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
    if ms < 0:
        raise InvalidInput(f"{option} expects a time since 1970, found {text!r}")
    return ms
