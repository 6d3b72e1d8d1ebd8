"""Counts what a task has done, its rate over the last seconds, and the time left. One writer; reads may be a little old."""

from __future__ import annotations

from collections import deque

WINDOW_S = 5.0


class Meter:
    """Records and progress of one task. Invariant: samples are in order of time and no older than the window, bar one."""

    def __init__(self, *, now_s: float) -> None:
        self.records = 0
        self.broken = 0
        self.done = 0
        self.total: int | None = None
        self._samples: deque[tuple[float, int, int]] = deque([(now_s, 0, 0)])

    def add(self, records: int, *, broken: int = 0, now_s: float) -> None:
        """Count records and broken rows that are now safe."""
        self.records += records
        self.broken += broken
        self._samples.append((now_s, self.records, self.done))
        while len(self._samples) > 2 and self._samples[1][0] < now_s - WINDOW_S:
            self._samples.popleft()

    def rate(self, *, now_s: float) -> float:
        """Return records per second over the window; 0 when nothing came in it."""
        return self._speed(now_s, 1)

    def eta_s(self, *, now_s: float) -> float | None:
        """Return the seconds left at the present speed; None when the total is not known or nothing moves."""
        speed = self._speed(now_s, 2)
        if self.total is None or speed <= 0:
            return None
        return max(self.total - self.done, 0) / speed

    def _speed(self, now_s: float, column: int) -> float:
        samples = [sample for sample in list(self._samples) if sample[0] >= now_s - 2 * WINDOW_S]
        if not samples:
            return 0.0
        first, last = samples[0], (now_s, self.records, self.done)
        elapsed_s = last[0] - first[0]
        return float(last[column] - first[column]) / elapsed_s if elapsed_s > 0 else 0.0
