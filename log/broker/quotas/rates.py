"""Measures of use over time: a rate over samples, and a bucket of tokens (KIP-13, KIP-599). Times are milliseconds of one clock.

Both say how long to wait so that the use is within the limit again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(slots=True)
class _Sample:
    start_ms: int
    last_ms: int
    amount: float


class Rate:
    """An amount per second over the last `samples` windows of `window_ms`.

    The time it is divided by is never less than samples - 1 windows, so that a first burst is not taken for a rate.
    Invariants: samples are in the order of their start; `_total` is the sum of their amounts.
    """

    __slots__ = ("_samples", "_total", "samples", "window_ms")

    def __init__(self, samples: int, window_ms: int) -> None:
        self.samples, self.window_ms = samples, window_ms
        self._samples: deque[_Sample] = deque()
        self._total = 0.0

    def record(self, amount: float, now_ms: int) -> None:
        """Add to what was used; a negative amount takes back."""
        newest = self._samples[-1] if self._samples else None
        if newest is None or now_ms - newest.start_ms >= self.window_ms:
            newest = _Sample(now_ms, now_ms, 0.0)
            self._samples.append(newest)
        newest.amount += amount
        newest.last_ms = now_ms
        self._total += amount
        self._forget(now_ms)

    def per_second(self, now_ms: int) -> float:
        """Return the rate."""
        self._forget(now_ms)
        return self._total * 1000 / self._span_ms(now_ms)

    def wait_ms(self, limit: float, now_ms: int) -> int:
        """Return how long nothing may be used until the rate is at the limit; 0 if it is not above it."""
        rate = self.per_second(now_ms)
        if rate <= limit:
            return 0
        return round((rate - limit) / limit * self._span_ms(now_ms))

    def is_spent(self, now_ms: int) -> bool:
        """Whether nothing that was recorded counts any more."""
        self._forget(now_ms)
        return not self._samples

    def _forget(self, now_ms: int) -> None:
        """Drop samples in which nothing happened within the windows that count."""
        while self._samples and now_ms - self._samples[0].last_ms >= self.samples * self.window_ms:
            self._total -= self._samples.popleft().amount
        if not self._samples:
            self._total = 0.0

    def _span_ms(self, now_ms: int) -> int:
        """Return the time the samples cover: since the oldest began, but at least samples - 1 windows and what is begun."""
        elapsed_ms = now_ms - self._samples[0].start_ms if self._samples else 0
        missing = self.samples - 1 - elapsed_ms // self.window_ms
        return max(elapsed_ms + max(missing, 0) * self.window_ms, 1)


class TokenBucket:
    """Tokens that come back at `limit` per second, up to `burst_s` seconds of them; it starts full and may be overdrawn once."""

    __slots__ = ("_burst_s", "_tokens", "_updated_ms")

    def __init__(self, burst_s: float) -> None:
        self._burst_s = burst_s
        self._tokens: float | None = None
        self._updated_ms = 0

    def wait_ms(self, limit: float, now_ms: int) -> int:
        """Return how long it takes until the bucket is not overdrawn; 0 if it is not."""
        tokens = self._refill(limit, now_ms)
        return round(-tokens / limit * 1000) if tokens < 0 else 0

    def take(self, amount: float, limit: float, now_ms: int) -> None:
        self._tokens = self._refill(limit, now_ms) - amount

    def is_full(self, limit: float, now_ms: int) -> bool:
        return self._refill(limit, now_ms) >= limit * self._burst_s

    def _refill(self, limit: float, now_ms: int) -> float:
        most = limit * self._burst_s
        if self._tokens is None:
            self._tokens = most
        else:
            self._tokens = min(most, self._tokens + limit * (now_ms - self._updated_ms) / 1000)
        self._updated_ms = now_ms
        return self._tokens
