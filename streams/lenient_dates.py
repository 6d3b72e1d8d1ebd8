"""Dates as PARSE_DATE reads them: by the patterns of `java_time`, and what does not fit one by those of a lenient calendar.

The lenient calendar is that of Java's SimpleDateFormat: a number may have fewer digits than its field, blanks may come before
it, a day beyond its month is of the next one, and what stands behind the last field is left alone. A field that is missing is
that of 1970-01-01. A year of two digits (`yy`) is always that calendar's, of 1950 to 2049.

Its letters: G y Y M L d D E a H K h k m s S, and quotes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from functools import lru_cache

from .java_time import DAY_MS, DAY_NAMES, EPOCH_DAY, MONTH_NAMES, parse_exact_date

_YEAR_100_DAYS = date(100, 1, 1).toordinal() - EPOCH_DAY

_LETTER = re.compile(r"([A-Za-z])\1*")
_NUMBERS = "dDHKhkmsS"
_ERAS = ("AD", "BC")
_HALVES = ("AM", "PM")


class _UnknownLetter(ValueError):
    """A pattern letter that the lenient calendar does not have."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A field (`letter`, `count`), or a literal (`text`)."""

    letter: str = ""
    count: int = 0
    text: str = ""

    @property
    def is_number(self) -> bool:
        return self.letter != "" and (self.letter in _NUMBERS + "yY" or (self.letter in "ML" and self.count < 3))


@lru_cache(maxsize=256)
def _parts(pattern: str) -> tuple[_Part, ...]:
    """Return the parts of a pattern. Raises ValueError: it is not one."""
    parts: list[_Part] = []
    position = 0
    while position < len(pattern):
        match = _LETTER.match(pattern, position)
        if match is None:
            text, position = _literal(pattern, position)
            parts.append(_Part(text=text))
            continue
        letter = match.group(1)
        if letter not in _NUMBERS + "GyYMLEa":
            raise _UnknownLetter(f"no date can be read by the pattern letter {letter} in {pattern!r}")
        parts.append(_Part(letter, len(match.group())))
        position = match.end()
    return tuple(parts)


def _literal(pattern: str, position: int) -> tuple[str, int]:
    """Return the text up to the next field, and where that is; two quotes are one."""
    is_quoted = False
    text = ""
    while position < len(pattern) and (is_quoted or not _LETTER.match(pattern, position)):
        ch = pattern[position]
        position += 1
        if ch == "'":
            if pattern[position : position + 1] != "'":
                is_quoted = not is_quoted
                continue
            position += 1
        text += ch
    if is_quoted:
        raise ValueError(f"the pattern {pattern!r} has a quote that is never closed")
    return text, position


class _Reader:
    """Reads one text; `position` never goes beyond it."""

    def __init__(self, text: str, pattern: str) -> None:
        self.text, self.pattern = text, pattern
        self.position = 0
        self.found: dict[str, int] = {}

    def fail(self) -> ValueError:
        place = f"Unparseable date at {self.position}"
        return ValueError(f"Failed to parse date '{self.text}' with formatter '{self.pattern}': {place}")

    def read(self) -> dict[str, int]:
        """Return what each letter said. Raises ValueError."""
        parts = _parts(self.pattern)
        for index, part in enumerate(parts):
            if not part.letter:
                if not self.text.startswith(part.text, self.position):
                    raise self.fail()
                self.position += len(part.text)
            elif part.is_number:
                is_packed = index + 1 < len(parts) and parts[index + 1].is_number
                self._keep(part, self._number(part.count if is_packed else None))
            else:
                self._keep(part, self._name(part.letter))
        return self.found

    def _number(self, width: int | None) -> int:
        if width is None:
            while self.text[self.position : self.position + 1].isspace():
                self.position += 1
        start, end = self.position, len(self.text) if width is None else min(len(self.text), self.position + width)
        while self.position < end and self.text[self.position].isdecimal():
            self.position += 1
        if start == self.position or self.position - start > 9:
            raise self.fail()
        return int(self.text[start : self.position])

    def _name(self, letter: str) -> int:
        names = {"E": DAY_NAMES, "a": _HALVES, "G": _ERAS}.get(letter, MONTH_NAMES)
        for length in (None, 3):
            for number, name in enumerate(names):
                shown = name[:length]
                if self.text[self.position : self.position + len(shown)].lower() == shown.lower():
                    self.position += len(shown)
                    return number if letter in "EaG" else number + 1
        raise self.fail()

    def _keep(self, part: _Part, number: int) -> None:
        letter = {"Y": "y", "L": "M"}.get(part.letter, part.letter)
        if letter == "y" and part.count <= 2 and number < 100:
            number += 1900 if number >= 50 else 2000  # a window that moves with today would change what a replay gives
        self.found[letter] = number


def parse_calendar_date(text: str, pattern: str) -> int:
    """Return days since the epoch. Raises ValueError, also when the text has a time of day that is not midnight."""
    try:
        counts = {part.letter: part.count for part in _parts(pattern)}
    except _UnknownLetter:
        return parse_exact_date(text, pattern)
    if counts.get("y") == 2 or counts.get("Y") == 2 or counts.keys() >= {"d", "D"}:
        return _lenient_date(text, pattern)
    try:
        days = parse_exact_date(text, pattern)
    except ValueError:
        return _lenient_date(text, pattern)
    return _lenient_date(text, pattern) if days < _YEAR_100_DAYS and min(counts.get("y", 4), counts.get("Y", 4)) == 1 else days


def _lenient_date(text: str, pattern: str) -> int:
    found = _Reader(text, pattern).read()
    year = found.get("y", 1970)
    if found.get("G") == 1:
        year = 1 - year
    year, month = year + (found.get("M", 1) - 1) // 12, (found.get("M", 1) - 1) % 12 + 1
    try:
        if "D" in found and "d" not in found:
            days = date(year, 1, 1).toordinal() + found["D"] - 1
        else:
            days = date(year, month, 1).toordinal() + found.get("d", 1) - 1
    except ValueError:
        raise ValueError(f"Failed to parse date '{text}' with formatter '{pattern}': there is no such date") from None
    whole, rest = divmod(_ms_of(found), DAY_MS)
    if rest:
        raise ValueError(f"Date format contains time field: '{pattern}'")
    if not date.min.toordinal() <= days + whole <= date.max.toordinal():
        raise ValueError(f"Failed to parse date '{text}' with formatter '{pattern}': its year is not 1 to 9999")
    return days - EPOCH_DAY + whole


def _ms_of(found: dict[str, int]) -> int:
    """Return the milliseconds of the day that the fields of time say."""
    hour = found["k"] % 24 if "k" in found else found.get("H")
    if hour is None:
        hour = (found["h"] % 12 if "h" in found else found.get("K", 0)) + 12 * found.get("a", 0)
    return ((hour * 60 + found.get("m", 0)) * 60 + found.get("s", 0)) * 1000 + found.get("S", 0)
