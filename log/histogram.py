"""A histogram of durations that costs a fraction of a microsecond to add to; read by `/metrics`."""

from __future__ import annotations

from bisect import bisect_left

BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the buckets in seconds; one more bucket holds what is longer."""


class Histogram:
    """Counts of durations by bucket, and their sum.

    >>> histogram = Histogram()
    >>> histogram.observe(0.003)
    >>> histogram.count, histogram.total_s
    (1, 0.003)
    """

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.total_s = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.total_s += seconds

    def cumulative(self) -> list[tuple[str, int]]:
        """Return (upper bound as text, how many were at most that), as Prometheus has it; the last bound is +Inf."""
        found, total = [], 0
        for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), self.counts, strict=True):
            total += count
            found.append((bound, total))
        return found
