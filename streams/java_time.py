"""Dates and times as text by patterns of Java's DateTimeFormatter, which the dialect uses. Parsing ignores case.

Covered letters: G y u Y M L D d Q q w W F E e c a H h k K m s S n N A V z O X x Z, quotes, and [optional] sections; those of
weeks (Y w W e c) count as in the United States, as Java does by default: from Sunday, week 1 has January 1.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

DAY_MS = 86_400_000
UNITS_MS = {
    "MILLISECOND": 1,
    "MILLISECONDS": 1,
    "SECOND": 1_000,
    "SECONDS": 1_000,
    "MINUTE": 60_000,
    "MINUTES": 60_000,
    "HOUR": 3_600_000,
    "HOURS": 3_600_000,
    "DAY": 86_400_000,
    "DAYS": 86_400_000,
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EPOCH_DAY = date(1970, 1, 1).toordinal()

MONTH_NAMES = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
DAY_NAMES = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
# Names that people write for zones, as Java reads them.
_ZONE_NAMES = {
    "PST": "America/Los_Angeles",
    "PDT": "America/Los_Angeles",
    "MST": "America/Denver",
    "MDT": "America/Denver",
    "CST": "America/Chicago",
    "CDT": "America/Chicago",
    "EST": "America/New_York",
    "EDT": "America/New_York",
    "GMT": "GMT",
    "UTC": "UTC",
    "Z": "UTC",
    "CET": "Europe/Paris",
    "CEST": "Europe/Paris",
    "BST": "Europe/London",
    "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo",
}
DATE_LETTERS, TIME_LETTERS, ZONE_LETTERS = "GyuYMLDdQqwWFEec", "aHhkKmsSnNA", "VzOXxZ"
_TOKEN = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|\[|\]|.", re.DOTALL)


@dataclass(frozen=True, slots=True)
class PatternPart:
    """A part of a pattern. kind: 'literal' (text), 'field' (letter, count), 'open' or 'close' of an optional section."""

    kind: str
    text: str = ""
    letter: str = ""
    count: int = 0


@lru_cache(maxsize=256)
def pattern_parts(pattern: str) -> tuple[PatternPart, ...]:
    """Return the parts of a pattern. Raises ValueError: it is not one."""
    parts: list[PatternPart] = []
    for match in _TOKEN.finditer(pattern):
        token = match.group()
        if token[0] == "'" and len(token) > 1:
            parts.append(PatternPart("literal", match.group(1).replace("''", "'") or "'"))
        elif token in "[]":
            parts.append(PatternPart("open" if token == "[" else "close"))
        elif token[0].isascii() and token[0].isalpha():
            if token[0] not in DATE_LETTERS + TIME_LETTERS + ZONE_LETTERS:
                raise ValueError(f"Unknown pattern letter: {token[0]} in {pattern!r}")
            parts.append(PatternPart("field", letter=token[0], count=len(token)))
        elif token == "'":
            raise ValueError(f"the pattern {pattern!r} has a quote that is never closed")
        else:
            parts.append(PatternPart("literal", token))
    return tuple(parts)


@lru_cache(maxsize=256)
def check_letters(pattern: str, letters: str, what: str) -> None:
    """Refuse a pattern with fields that a date (a time) has not. Raises ValueError."""
    for part in pattern_parts(pattern):
        if part.kind == "field" and part.letter not in letters:
            raise ValueError(f"Unsupported field: {part.letter} in {pattern!r}; {what} has none")


_OFFSET_MINUTES_MAX = 18 * 60
"""Java's limit."""


@lru_cache(maxsize=256)
def zone_of(name: str) -> tzinfo:
    """Return the zone of a name such as Europe/Berlin, PST, Z or +02:00. Raises ValueError."""
    upper = name.upper()
    if upper in _ZONE_NAMES:
        return ZoneInfo(_ZONE_NAMES[upper])
    match = re.fullmatch(r"(?:GMT|UTC)?([+-])(\d{1,2}):?(\d{2})?", upper)
    if match:
        from datetime import timezone

        minutes = int(match.group(2)) * 60 + int(match.group(3) or 0)
        if minutes > _OFFSET_MINUTES_MAX:
            raise ValueError(f"Zone offset not in valid range: {name} is more than 18 hours")
        return timezone(timedelta(minutes=-minutes if match.group(1) == "-" else minutes))
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"Unknown time-zone ID: {name}") from None


# ------------------------------------------------------------------------------------------------ formatting


def _offset_text(offset: timedelta, letter: str, count: int) -> str:
    seconds = int(offset.total_seconds())
    if seconds == 0 and letter == "X":
        return "Z"
    sign = "-" if seconds < 0 else "+"
    hours, rest = divmod(abs(seconds), 3600)
    minutes = rest // 60
    if letter == "O" and count < 4:
        return "GMT" if seconds == 0 else f"GMT{sign}{hours}" + (f":{minutes:02}" if minutes else "")
    if letter == "O" or (letter == "Z" and count == 4):
        return "GMT" if seconds == 0 else f"GMT{sign}{hours:02}:{minutes:02}"
    if letter == "Z" and count < 4:
        return f"{sign}{hours:02}{minutes:02}"
    if letter == "Z" and seconds == 0:
        return "Z"
    if letter in "Xx" and count == 1:
        return f"{sign}{hours:02}" + (f"{minutes:02}" if minutes else "")
    return f"{sign}{hours:02}{minutes:02}" if count in (2, 4) and letter in "Xx" else f"{sign}{hours:02}:{minutes:02}"


def _zone_text(when: datetime, name: str) -> str:
    """Return the name of a zone, or the offset of one that has none."""
    return name if isinstance(when.tzinfo, ZoneInfo) else _offset_text(when.utcoffset() or timedelta(0), "X", 3)


def _number(value: int, count: int) -> str:
    return str(value).zfill(count)


def _year_text(year: int, count: int) -> str:
    return f"{year % 100:02}" if count == 2 else _number(year, count)


def _day_name(when: datetime, count: int) -> str:
    name = DAY_NAMES[when.weekday()]
    return name if count == 4 else name[:1] if count == 5 else name[:3]


def _day_of_week(when: datetime, count: int) -> str:
    return _number(when.isoweekday() % 7 + 1, count) if count <= 2 else _day_name(when, count)


def _quarter(when: datetime, count: int) -> str:
    number = (when.month + 2) // 3
    if count <= 2:
        return _number(number, count)
    return f"Q{number}" if count == 3 else f"{('1st', '2nd', '3rd', '4th')[number - 1]} quarter"


def _week(when: datetime) -> tuple[int, int]:
    """Return year and week: a week begins on Sunday and belongs to the year of its Saturday."""
    saturday = when + timedelta(days=6 - when.isoweekday() % 7)
    return saturday.year, (saturday.timetuple().tm_yday + 6) // 7


def _week_of_month(when: datetime) -> int:
    return (when.day + when.replace(day=1).isoweekday() % 7 + 6) // 7


_Write = Callable[[datetime, int], str]
_WRITERS: dict[str, _Write] = {
    "G": lambda when, count: "AD",
    "y": lambda when, count: _year_text(when.year, count),
    "u": lambda when, count: _year_text(when.year, count),
    "Y": lambda when, count: _year_text(_week(when)[0], count),
    "w": lambda when, count: _number(_week(when)[1], count),
    "W": lambda when, count: _number(_week_of_month(when), count),
    "F": lambda when, count: _number((when.day - 1) % 7 + 1, count),
    "Q": _quarter,
    "q": _quarter,
    "M": lambda when, count: _month_text(when.month, count),
    "L": lambda when, count: _month_text(when.month, count),
    "D": lambda when, count: _number(when.timetuple().tm_yday, count),
    "d": lambda when, count: _number(when.day, count),
    "E": _day_name,
    "e": _day_of_week,
    "c": _day_of_week,
    "a": lambda when, count: "AM" if when.hour < 12 else "PM",
    "H": lambda when, count: _number(when.hour, count),
    "k": lambda when, count: _number(when.hour or 24, count),
    "K": lambda when, count: _number(when.hour % 12, count),
    "h": lambda when, count: _number(when.hour % 12 or 12, count),
    "m": lambda when, count: _number(when.minute, count),
    "s": lambda when, count: _number(when.second, count),
    "S": lambda when, count: f"{when.microsecond:06}000"[:count].ljust(count, "0"),
    "n": lambda when, count: _number(when.microsecond * 1000, count),
    "N": lambda when, count: _number(_ms_of_day(when) * 1_000_000, count),
    "A": lambda when, count: _number(_ms_of_day(when), count),
    "V": lambda when, count: _zone_text(when, str(when.tzinfo)),
    "z": lambda when, count: _zone_text(when, when.tzname() or "UTC"),
    **{letter: lambda when, count, at=letter: _offset_text(when.utcoffset() or timedelta(0), at, count) for letter in "OXxZ"},  # type: ignore[misc]
}


def _month_text(month: int, count: int) -> str:
    name = MONTH_NAMES[month - 1]
    return _number(month, count) if count <= 2 else name[:3] if count == 3 else name[:1] if count == 5 else name


def _ms_of_day(when: datetime) -> int:
    return ((when.hour * 60 + when.minute) * 60 + when.second) * 1000 + when.microsecond // 1000


def _format(when: datetime, pattern: str) -> str:
    return "".join([text if write is None else write(when, count) for write, count, text in _writers(pattern)])


@lru_cache(maxsize=256)
def _writers(pattern: str) -> tuple[tuple[_Write | None, int, str], ...]:
    """Return what writes each part of a pattern: (function of a moment, width, ""), or (None, 0, text)."""
    parts = [part for part in pattern_parts(pattern) if part.kind in ("literal", "field")]
    return tuple((_WRITERS[p.letter], p.count, "") if p.kind == "field" else (None, 0, p.text) for p in parts)


def format_timestamp(ms: int, pattern: str, zone: str = "UTC") -> str:
    """Write milliseconds since the epoch."""
    return _format((_EPOCH + timedelta(milliseconds=ms)).astimezone(zone_of(zone)), pattern)


def format_timestamp_gmt(ms: int, pattern: str) -> str:
    """Write milliseconds since the epoch in the zone GMT, by that name."""
    return format_timestamp(ms, pattern, "GMT")


def format_date(days: int, pattern: str) -> str:
    """Write days since the epoch. Raises ValueError: the pattern has a time of day or a zone."""
    check_letters(pattern, DATE_LETTERS, "a date")
    return _format(datetime.combine(date.fromordinal(EPOCH_DAY + days), datetime.min.time(), UTC), pattern)


def format_time(ms: int, pattern: str) -> str:
    """Write milliseconds of the day. Raises ValueError: the pattern has a date or a zone."""
    check_letters(pattern, TIME_LETTERS, "a time of day")
    return _format(_EPOCH + timedelta(milliseconds=ms), pattern)


def format_iso_timestamp(ms: int) -> str:
    """Write yyyy-MM-ddTHH:mm:ss.SSS."""
    return format_timestamp(ms, "yyyy-MM-dd'T'HH:mm:ss.SSS")


def format_time_ms(ms: int) -> str:
    """Write the time of day as short as ISO allows: no seconds or fraction when they are zero."""
    rest = ms % 60_000
    pattern = "HH:mm" if rest == 0 else "HH:mm:ss" if rest % 1000 == 0 else "HH:mm:ss.SSS"
    return format_time(ms, pattern)


# ------------------------------------------------------------------------------------------------ parsing


@dataclass(slots=True)
class _Fields:
    """What a text said; None where it said nothing."""

    year: int | None = None
    month: int | None = None
    day: int | None = None
    day_of_year: int | None = None
    hour: int | None = None
    half_hour: int | None = None
    is_pm: bool | None = None
    minute: int = 0
    second: int = 0
    micros: int = 0
    ms_of_day: int | None = None
    zone: tzinfo | None = None


_DIGITS = re.compile(r"\d+")
_OFFSET = re.compile(r"[zZ]|[+-]\d{2}(?::?\d{2})?(?::?\d{2})?")
_GMT_OFFSET = re.compile(r"GMT(?:[+-]\d{1,2}(?::\d{2})?)?", re.IGNORECASE)
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_/+:-]*|[+-]\d{1,2}:?\d{0,2}")


class _Reader:
    """Reads a text by the parts of a pattern; `position` never goes beyond the text."""

    def __init__(self, text: str, pattern: str) -> None:
        self.text, self.pattern = text, pattern
        self.position = 0
        self.fields = _Fields()

    def fail(self) -> ValueError:
        return ValueError(f"Text '{self.text}' could not be parsed at index {self.position} with pattern '{self.pattern}'")

    def read(self) -> _Fields:
        parts = pattern_parts(self.pattern)
        self._run(parts, 0, len(parts))
        if self.position != len(self.text):
            raise self.fail()
        return self.fields

    def _run(self, parts: tuple[PatternPart, ...], start: int, stop: int) -> None:
        index = start
        while index < stop:
            part = parts[index]
            if part.kind == "open":
                close = _closing(parts, index)
                mark = self.position
                try:
                    self._run(parts, index + 1, close)
                except ValueError:
                    self.position = mark
                index = close
            elif part.kind == "literal":
                end = self.position + len(part.text)
                if self.text[self.position : end].lower() != part.text.lower():
                    raise self.fail()
                self.position = end
            elif part.kind == "field":
                follows = parts[index + 1] if index + 1 < stop else None
                self._field(part, is_packed=follows is not None and follows.kind == "field" and follows.letter not in "aEVzOXxZG")
            index += 1

    def _digits(self, low: int, high: int) -> str:
        match = _DIGITS.match(self.text, self.position, self.position + high)
        if match is None or len(match.group()) < low:
            raise self.fail()
        self.position = match.end()
        return match.group()

    def _name(self, names: list[str]) -> int:
        for length in (None, 3):
            for index, name in enumerate(names):
                shown = name[:length]
                if self.text[self.position : self.position + len(shown)].lower() == shown.lower():
                    self.position += len(shown)
                    return index
        raise self.fail()

    def _match(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.position)
        if match is None:
            raise self.fail()
        self.position = match.end()
        return match.group()

    def _field(self, part: PatternPart, *, is_packed: bool) -> None:
        fields, letter, count = self.fields, part.letter, part.count
        widest = count if is_packed else (19 if count == 1 else count)
        match letter:
            case "y" | "u" | "Y":
                text = self._digits(2 if count == 2 else count, 2 if count == 2 else (4 if is_packed else 9 if count != 4 else 4))
                fields.year = int(text) + (2000 if count == 2 else 0)
            case "M" | "L":
                fields.month = (
                    self._name(MONTH_NAMES) + 1 if count > 2 else int(self._digits(count, max(widest, 2) if count == 1 else 2))
                )
            case "d":
                fields.day = int(self._digits(count, 2))
            case "D":
                fields.day_of_year = int(self._digits(count, 3))
            case "E":
                self._name(DAY_NAMES)
            case "e" | "c" if count > 2:
                self._name(DAY_NAMES)
            case "w" | "W" | "F" | "Q" | "q" | "e" | "c":
                raise ValueError(f"no text can be read by the pattern letter {letter} in {self.pattern!r}")
            case "a":
                fields.is_pm = self._name(["AM", "PM"]) == 1
            case "G":
                self._name(["AD", "BC"])
            case "H" | "k":
                fields.hour = int(self._digits(count, 2)) % 24 if letter == "k" else int(self._digits(count, 2))
            case "h" | "K":
                fields.half_hour = int(self._digits(count, 2)) % 12
            case "m":
                fields.minute = int(self._digits(count, 2))
            case "s":
                fields.second = int(self._digits(count, 2))
            case "S":
                fields.micros = int(self._digits(count, count).ljust(9, "0")[:6])
            case "n":
                fields.micros = int(self._digits(1, 9)) // 1000
            case "A":
                fields.ms_of_day = int(self._digits(1, 8))
            case "N":
                fields.ms_of_day = int(self._digits(1, 14)) // 1_000_000
            case "O":
                fields.zone = zone_of(self._match(_GMT_OFFSET))
            case "X" | "x" | "Z":
                fields.zone = zone_of(self._match(_GMT_OFFSET if (letter, count) == ("Z", 4) else _OFFSET))
            case _:
                fields.zone = zone_of(self._match(_ZONE))


def _closing(parts: tuple[PatternPart, ...], start: int) -> int:
    depth = 0
    for index in range(start, len(parts)):
        depth += (parts[index].kind == "open") - (parts[index].kind == "close")
        if depth == 0:
            return index
    raise ValueError("an optional section '[' is never closed")


def _date_of(fields: _Fields, text: str) -> date:
    try:
        year = 1970 if fields.year is None else fields.year
        if fields.day_of_year is not None:
            return date(year, 1, 1) + timedelta(days=fields.day_of_year - 1)
        month, day = _month_and_day(fields)
        # Java reads the 30th of February and the 31st of April as the last of the month.
        return date(year, month, min(day, monthrange(year, month)[1]) if day <= 31 else day)
    except (ValueError, OverflowError):
        raise ValueError(f"Text '{text}' could not be parsed: there is no such date") from None


def _month_and_day(fields: _Fields) -> tuple[int, int]:
    return (1 if fields.month is None else fields.month), (1 if fields.day is None else fields.day)


def _micros_of(fields: _Fields, text: str) -> int:
    if fields.ms_of_day is not None:
        return fields.ms_of_day * 1000
    hour = fields.hour
    if hour is None:
        hour = (fields.half_hour or 0) + (12 if fields.is_pm else 0)
    if hour > 23 or fields.minute > 59 or fields.second > 59:
        raise ValueError(f"Text '{text}' could not be parsed: there is no such time of day")
    return ((hour * 60 + fields.minute) * 60 + fields.second) * 1_000_000 + fields.micros


def parse_timestamp(text: str, pattern: str, zone: str = "UTC") -> int:
    """Return milliseconds since the epoch; a zone in the text wins over `zone`. Raises ValueError."""
    fields = _Reader(text, pattern).read()
    day = _date_of(fields, text)
    local = datetime(day.year, day.month, day.day, tzinfo=fields.zone or zone_of(zone)) + timedelta(
        microseconds=_micros_of(fields, text)
    )
    return (local - _EPOCH) // timedelta(milliseconds=1)


def parse_date(text: str, pattern: str) -> int:
    """Return days since the epoch. Raises ValueError, also when the text has a time of day, or no whole date."""
    return _date_of(_date_fields(text, pattern), text).toordinal() - EPOCH_DAY


def parse_exact_date(text: str, pattern: str) -> int:
    """Return days since the epoch, as `parse_date`, which takes 30 February for the last of the month: refused here."""
    fields = _date_fields(text, pattern)
    found = _date_of(fields, text)
    if fields.day_of_year is None and (found.month, found.day) != _month_and_day(fields):
        raise ValueError(f"Text '{text}' could not be parsed: there is no such date")
    return found.toordinal() - EPOCH_DAY


def _date_fields(text: str, pattern: str) -> _Fields:
    fields = _Reader(text, pattern).read()
    if fields.year is None or ((fields.month is None or fields.day is None) and fields.day_of_year is None):
        raise ValueError(f"Text '{text}' could not be parsed: '{pattern}' is not of a whole date")
    if fields.hour is not None or fields.half_hour is not None or fields.minute or fields.second or fields.zone is not None:
        raise ValueError(f"Date format contains time field: '{pattern}'")
    return fields


def parse_time(text: str, pattern: str) -> int:
    """Return milliseconds of the day. Raises ValueError, also when the text has a date."""
    fields = _Reader(text, pattern).read()
    if fields.year is not None or fields.month is not None or fields.day is not None or fields.day_of_year is not None:
        raise ValueError(f"Time format contains date field: '{pattern}'")
    if fields.hour is None and (fields.half_hour is None or fields.is_pm is None) and fields.ms_of_day is None:
        raise ValueError(f"Text '{text}' could not be parsed: '{pattern}' does not say the hour of the day")
    return _micros_of(fields, text) // 1000


_ISO = re.compile(
    r"(\d{4})(?:-(\d{1,2})(?:-(\d{1,2}))?)?"
    r"(?:[T ](\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:[.,](\d{1,9}))?)?)?)?"
    r"\s*(Z|[+-]\d{2}:?\d{0,2}|[A-Za-z_/]+)?",
    re.IGNORECASE,
)
_ISO_WANTED = (
    "Required format is: \"yyyy-MM-dd'T'HH:mm:ss.SSS\", with an optional numeric 4-digit timezone, for example: "
    "'2020-05-26T23:59:58.000' or with tz: '2020-05-26T23:59:58.000+0200'. A trailing 'Z' instead of tz indicates the zero UTC "
    'offset. Partials are also supported, for example "2020-05-26"'
)


def parse_iso(text: str) -> int:
    """Return milliseconds since the epoch of an ISO date-time, whole or partial (2020, 2020-02-26T10:15Z). Raises ValueError."""
    trimmed = text.strip()
    match = _ISO.fullmatch(trimmed[:-1] if trimmed.endswith("T") else trimmed)
    if match is None:
        raise ValueError(f"Failed to parse timestamp '{text}': it is no ISO date-time\n{_ISO_WANTED}")
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    try:
        when = datetime(int(year), int(month or 1), int(day or 1), int(hour or 0), int(minute or 0), int(second or 0))
        aware = when.replace(tzinfo=zone_of(zone) if zone else UTC)
    except ValueError as e:
        raise ValueError(f"Failed to parse timestamp '{text}': {e}\n{_ISO_WANTED}") from None
    return (aware - _EPOCH) // timedelta(milliseconds=1) + int((fraction or "0").ljust(3, "0")[:3])
