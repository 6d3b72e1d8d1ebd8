"""Which time windows rows count in: structure alone, from times and a store's stream time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from logflume.log.records import I64

from ..graph import TimeWindow
from ..vectors.expressions import Mask

LAST_TIME_MS = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Windowed:
    """P pairs of a row and a window, in order of rows, then of starts.

    rows: int64[P]; None: one window for each row. starts: int64[P]. late: where the window takes no more rows; None: nowhere.
    clocks: stream time with each row, int64[N].
    """

    rows: I64 | None
    starts: I64
    late: Mask | None
    clocks: I64


def windows_of(window: TimeWindow, times: I64, stream_time_ms: int) -> Windowed:
    """Return the windows of rows with these times (none below 0), the store's stream time being what it is."""
    size, advance = window.size_ms, window.advance_ms
    clocks = np.maximum.accumulate(times) if len(times) > 1 else times
    if len(times) and stream_time_ms > clocks[0]:
        clocks = np.maximum(clocks, stream_time_ms)
    rows: I64 | None = None
    if size == advance:
        starts = times - times % size
        closed = clocks - (size + window.grace_ms)
    else:
        newest = times - times % advance
        first = np.maximum((times - size) // advance * advance + advance, 0)
        counts = (newest - first) // advance + 1
        rows = np.repeat(np.arange(len(times)), counts)
        ends = np.cumsum(counts)
        starts = first[rows] + advance * (np.arange(len(rows)) - (ends - counts)[rows])
        closed = (clocks - (size + window.grace_ms))[rows]
    late = starts <= closed
    return Windowed(rows, starts, late if late.any() else None, clocks)


def window_end(starts: I64, window: TimeWindow) -> I64:
    """Return the ends of windows, exclusive, at most the last time there is."""
    ends = starts + window.size_ms
    return np.where(ends < starts, LAST_TIME_MS, ends)
