"""Dates and times over columns, by numpy: patterns of fields of fixed width are written and read as matrices of digits."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..java_time import DATE_LETTERS, DAY_MS, TIME_LETTERS, UNITS_MS, pattern_parts
from .columns import NotHeld, constant, is_column, text_buffers, texts_of_matrix

# Years 0001 to 9999: what has four digits, and what the exact form's calendar holds.
_MIN_MS = -62_135_596_800_000
_MAX_MS = 253_402_300_799_999
_WIDTHS = {("y", 4): 4, ("u", 4): 4, ("M", 2): 2, ("d", 2): 2, ("H", 2): 2, ("m", 2): 2, ("s", 2): 2, ("S", 3): 3}
_ZERO = np.uint8(ord("0"))
_UTC = ("UTC", "Z", "GMT")


def timestamp_add_columns(unit: Any, amount: Any, time: Any) -> tuple[Any, ...]:
    return _shifted(unit, amount, time, 1)


def timestamp_subtract_columns(unit: Any, amount: Any, time: Any) -> tuple[Any, ...]:
    return _shifted(unit, amount, time, -1)


def date_add_columns(unit: Any, amount: Any, day: Any) -> tuple[Any, ...]:
    return _shifted_days(unit, amount, day, 1)


def date_subtract_columns(unit: Any, amount: Any, day: Any) -> tuple[Any, ...]:
    return _shifted_days(unit, amount, day, -1)


def _shifted_days(unit: Any, amount: Any, day: Any, sign: int) -> tuple[Any, ...]:
    """What is not a number of whole days is counted towards 1970."""
    if not is_column(day) or constant(unit) not in UNITS_MS:
        raise NotHeld("a constant day, or an unknown unit")
    total = sign * constant(amount) * UNITS_MS[unit]
    days, rest = divmod(total, DAY_MS)
    if abs(days) >= 2**61:
        raise NotHeld("an amount beyond 64 bits")
    values = day[0]
    moved = values + days
    return np.where((moved < 0) & (rest != 0), moved + 1, moved), None, np.abs(values) >= 2**61


def _shifted(unit: Any, amount: Any, time: Any, sign: int) -> tuple[Any, ...]:
    """What comes near the ends of 64 bits is unsure."""
    if not is_column(time) or constant(unit) not in UNITS_MS:
        raise NotHeld("a constant time, or an unknown unit")
    steps = sign * constant(amount) * UNITS_MS[unit]
    if abs(steps) >= 2**61:
        raise NotHeld("an amount beyond 64 bits")
    values = time[0]
    return values + steps, None, np.abs(values) >= 2**61


# ------------------------------------------------------------------------------------------------ patterns


def _layout(pattern: Any) -> tuple[list[tuple[str, str, int, int]], int]:
    """Return (letter or '', text, start, width) of each part, and the width of all. Raises NotHeld."""
    try:
        parts = pattern_parts(constant(pattern))
    except ValueError:
        raise NotHeld("a pattern that is none") from None
    layout: list[tuple[str, str, int, int]] = []
    position = 0
    for part in parts:
        if part.kind == "literal":
            if not part.text.isascii():
                raise NotHeld("text beyond ASCII")
            layout.append(("", part.text, position, len(part.text)))
            position += len(part.text)
        elif part.kind == "field" and (part.letter, part.count) in _WIDTHS:
            layout.append((part.letter, "", position, part.count))
            position += part.count
        else:
            raise NotHeld("a field without a fixed width")
    return layout, position


def _require(pattern: Any, letters: str) -> None:
    if any(letter and letter not in letters for letter, *_ in _layout(pattern)[0]):
        raise NotHeld("a field that is not of this type")


def format_timestamp_columns(time: Any, pattern: Any, zone: Any = "UTC") -> tuple[Any, ...]:
    if not is_column(time) or constant(zone) not in _UTC:
        raise NotHeld("another zone")
    values = time[0]
    unsure = (values < _MIN_MS) | (values > _MAX_MS)
    return _written(np.where(unsure, 0, values), pattern), None, unsure


def format_time_columns(time: Any, pattern: Any) -> tuple[Any, ...]:
    _require(pattern, TIME_LETTERS)
    return format_timestamp_columns(time, pattern)


def format_date_columns(day: Any, pattern: Any) -> tuple[Any, ...]:
    if not is_column(day):
        raise NotHeld("a constant")
    _require(pattern, DATE_LETTERS)
    days = day[0]
    unsure = (days < _MIN_MS // DAY_MS) | (days > _MAX_MS // DAY_MS)
    return _written(np.where(unsure, 0, days) * DAY_MS, pattern), None, unsure


def _written(ms: Any, pattern: Any) -> Any:
    layout, width = _layout(pattern)
    matrix = np.empty((len(ms), width), np.uint8)
    fields = _fields(ms)
    for letter, text, start, size in layout:
        if not letter:
            matrix[:, start : start + size] = np.frombuffer(text.encode(), np.uint8)
            continue
        rest = fields(letter)
        for column in range(start + size - 1, start - 1, -1):
            rest, digit = np.divmod(rest, 10)
            matrix[:, column] = digit + _ZERO
    return texts_of_matrix(matrix)


def _fields(ms: Any) -> Any:
    days = ms // DAY_MS
    rest = ms - days * DAY_MS
    date = days.astype("datetime64[D]")
    month = date.astype("datetime64[M]")

    def field(letter: str) -> Any:
        match letter:
            case "y" | "u":
                return date.astype("datetime64[Y]").astype(np.int64) + 1970
            case "M":
                return month.astype(np.int64) % 12 + 1
            case "d":
                return (date - month.astype("datetime64[D]")).astype(np.int64) + 1
            case "H":
                return rest // 3_600_000
            case "m":
                return rest // 60_000 % 60
            case "s":
                return rest // 1000 % 60
        return rest % 1000

    return field


def parse_timestamp_columns(text: Any, pattern: Any) -> tuple[Any, ...]:
    return _read(text, pattern)


def parse_date_columns(text: Any, pattern: Any) -> tuple[Any, ...]:
    letters = {letter for letter, *_ in _layout(pattern)[0]}
    if not {"M", "d"} <= letters or not letters & {"y", "u"}:
        raise NotHeld("a part of a date")
    values, valid, unsure = _read(text, pattern, is_date=True)
    return values // DAY_MS, valid, unsure


def parse_calendar_date_columns(text: Any, pattern: Any) -> tuple[Any, ...]:
    if any(letter not in ("", "y", "M", "d") or (letter == "y" and size != 4) for letter, _, _, size in _layout(pattern)[0]):
        raise NotHeld("another field, or a year of two digits")
    values, valid, unsure = _read(text, pattern, is_date=True)
    return values // DAY_MS, valid, unsure


def _read(text: Any, pattern: Any, *, is_date: bool = False) -> tuple[Any, Any, Any]:
    """Rows of another length, other characters or a date that there is not are unsure."""
    layout, width = _layout(pattern)
    letters = [letter for letter, *_ in layout if letter]
    if not is_column(text) or len(set(letters)) != len(letters) or {"y", "u"} <= set(letters):
        raise NotHeld("a constant, or a field twice")
    if "H" not in letters and {"m", "s", "S"} & set(letters):
        raise NotHeld("a time without its hour")
    if is_date and {"H", "m", "s", "S"} & set(letters):
        raise NotHeld("a date with a time")
    offsets, data = text_buffers(text[0])
    starts, sizes = offsets[:-1], np.diff(offsets)
    unsure = sizes != width
    if len(data) == 0 or width == 0:
        return np.zeros(len(sizes), np.int64), None, np.ones(len(sizes), np.bool_)
    matrix = data[np.minimum(starts[:, None] + np.arange(width), len(data) - 1)]
    found = {"y": 1970, "M": 1, "d": 1, "H": 0, "m": 0, "s": 0, "S": 0}
    numbers: dict[str, Any] = {key: np.full(len(starts), value, np.int64) for key, value in found.items()}
    for letter, literal, start, size in layout:
        part = matrix[:, start : start + size]
        if not letter:
            unsure |= (part != np.frombuffer(literal.encode(), np.uint8)).any(axis=1)
            continue
        digits = part - _ZERO
        unsure |= (digits > 9).any(axis=1)
        numbers["y" if letter == "u" else letter] = digits.astype(np.int64) @ 10 ** np.arange(size - 1, -1, -1)
    return _assembled(numbers, unsure)


def _assembled(numbers: dict[str, Any], unsure: Any) -> tuple[Any, Any, Any]:
    month, day, hour = numbers["M"], numbers["d"], numbers["H"]
    unsure = unsure | (month < 1) | (month > 12) | (day < 1) | (day > 31) | (numbers["y"] < 1)
    unsure |= (hour > 23) | (numbers["m"] > 59) | (numbers["s"] > 59)
    months = ((numbers["y"] - 1970) * 12 + np.where(unsure, 1, month) - 1).astype("datetime64[M]")
    date = months.astype("datetime64[D]") + (np.where(unsure, 1, day) - 1)
    unsure |= date.astype("datetime64[M]") != months
    seconds = (hour * 60 + numbers["m"]) * 60 + numbers["s"]
    return date.astype(np.int64) * DAY_MS + seconds * 1000 + numbers["S"], None, unsure
