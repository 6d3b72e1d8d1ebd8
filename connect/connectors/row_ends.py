"""Finds where rows of CSV end: at newlines outside quoted fields (RFC 4180; a quote counts at the start of a field). Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from logflume.connect.api import I64

_NEWLINE, _QUOTE = 10, 34


def newline_ends(data: bytes) -> I64:
    """Return the position behind each newline: int64[lines]."""
    return np.flatnonzero(np.frombuffer(data, np.uint8) == _NEWLINE).astype(np.int64) + 1


def quoted_row_ends(data: bytes, *, delimiter: bytes) -> I64:
    """Return the position behind each row that ends in `data`, which begins at the start of a row.

    >>> quoted_row_ends(b'1,"a\\nb"\\n2,c\\n3,"open\\n', delimiter=b",").tolist()
    [8, 12]
    """
    ends = newline_ends(data)
    if b'"' not in data:
        return ends
    quotes = np.flatnonzero(np.frombuffer(data, np.uint8) == _QUOTE)
    if _is_regular(data, quotes, delimiter):
        is_outside: npt.NDArray[np.bool_] = np.searchsorted(quotes, ends) % 2 == 0
        return ends[is_outside]
    return _walk(data, ends, quotes, delimiter)


def _is_regular(data: bytes, quotes: npt.NDArray[np.intp], delimiter: bytes) -> bool:
    """Whether each quote that opens a field, by counting, is where it may be: at a field's start, or doubling the one before.

    Then counting is enough: a newline is inside a field if an odd number of quotes is before it.
    """
    opening = quotes[::2]
    before = np.frombuffer(b"\n" + data, np.uint8)[opening]
    is_start = (before == _NEWLINE) | (before == delimiter[0])
    is_start[1:] |= opening[1:] == quotes[1::2][: len(opening) - 1] + 1
    return bool(is_start.all())


def _walk(data: bytes, ends: I64, quotes: npt.NDArray[np.intp], delimiter: bytes) -> I64:
    """Find the row ends when there are stray quotes: go through each line that has a quote."""
    starts = np.concatenate((np.zeros(1, np.int64), ends))
    lines_with_quotes = np.unique(np.searchsorted(starts, quotes, side="right") - 1).tolist()
    is_end: npt.NDArray[np.bool_] = np.ones(len(ends), np.bool_)
    is_open = False
    for number, line in enumerate(lines_with_quotes):
        stop = int(ends[line]) if line < len(ends) else len(data)
        is_open = _ends_open(data[int(starts[line]) : stop], is_open, delimiter)
        if is_open:
            following = lines_with_quotes[number + 1] if number + 1 < len(lines_with_quotes) else len(ends)
            is_end[line:following] = False
    return ends[is_end]


def _ends_open(line: bytes, is_open: bool, delimiter: bytes) -> bool:
    """Return whether a quoted field is open at the end of the line, given whether one was at its start."""
    at = 0
    while True:
        if not is_open:
            if not line.startswith(b'"', at):
                at = line.find(delimiter, at) + 1
                if at == 0:
                    return False
                continue
            is_open, at = True, at + 1
        closing = line.find(b'"', at)
        if closing < 0:
            return True
        at = closing + 1
        if line.startswith(b'"', at):
            at += 1
            continue
        is_open = False
        at = line.find(delimiter, at) + 1
        if at == 0:
            return False
