"""Lets a source give out rows no faster than a rate, or as fast as event time passed times a speed. Pure; the clock is given."""

from __future__ import annotations

import numpy as np

from .api import I64

_STEP_S = 0.1
"""A paced source gives out rows about this often."""


class Pacer:
    """Decides how many of the next rows are due.

    Invariant: with a rate, rows given out <= rate * (now - start) + one step; with a replay speed, a row is given out when
    (its event time - the first event time) / speed has passed since the first row.
    """

    def __init__(self, *, records_per_second: float, replay_speed: float, now_s: float) -> None:
        """0 switches a limit off."""
        self._rate = records_per_second
        self._speed = replay_speed
        self._start_s = now_s
        self._given = 0
        self._first_ms: int | None = None

    @property
    def is_paced(self) -> bool:
        return self._rate > 0 or self._speed > 0

    def due(self, timestamps_ms: I64, *, now_s: float) -> int:
        """Return how many of the rows, in order, may be given out now."""
        count = len(timestamps_ms)
        if self._speed > 0 and count:
            if self._first_ms is None:
                self._first_ms = int(timestamps_ms[0])
                self._start_s = now_s
            until_ms = self._first_ms + (now_s - self._start_s) * 1000.0 * self._speed
            late = np.flatnonzero(timestamps_ms > until_ms)
            count = int(late[0]) if len(late) else count
        if self._rate > 0:
            allowed = int((now_s - self._start_s) * self._rate) + max(1, int(self._rate * _STEP_S)) - self._given
            count = min(count, max(allowed, 0))
        return count

    def gave(self, rows: int) -> None:
        """Count rows as given out."""
        self._given += rows

    def wait_s(self, timestamps_ms: I64, *, now_s: float) -> float:
        """Return how long to wait until the first of the rows may be due, at most one second."""
        if self._speed > 0 and len(timestamps_ms) and self._first_ms is not None:
            due_s = self._start_s + (int(timestamps_ms[0]) - self._first_ms) / 1000.0 / self._speed
            return min(max(due_s - now_s, _STEP_S / 2), 1.0)
        return _STEP_S
