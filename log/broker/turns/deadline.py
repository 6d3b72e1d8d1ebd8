"""A moment at which something must happen, cheap to put off.

Every heartbeat of every group member moves a deadline; so moving one later only writes a number, and the timer that is
already armed looks at the number when it fires and goes back to sleep.
"""

from __future__ import annotations

from collections.abc import Callable

from logflume.log.broker.ports import Clock, Timer, Timers


class Deadline:
    """Calls back once when the set moment has come, unless it was moved or cancelled. Invariant: an armed timer never fires
    later than the moment that is set."""

    __slots__ = ("_armed_ms", "_at_ms", "_callback", "_clock", "_timer", "_timers")

    def __init__(self, clock: Clock, timers: Timers, callback: Callable[[], None]) -> None:
        self._clock, self._timers, self._callback = clock, timers, callback
        self._at_ms: int | None = None
        self._armed_ms = 0
        self._timer: Timer | None = None

    @property
    def is_set(self) -> bool:
        return self._at_ms is not None

    def set_after(self, delay_ms: int) -> None:
        """Set or move the moment to `delay_ms` from now (monotonic time)."""
        self._at_ms = self._clock.monotonic_ms() + delay_ms
        if self._timer is None or self._at_ms < self._armed_ms:
            self._arm(delay_ms)

    def cancel(self) -> None:
        """Forget the moment; nothing will be called."""
        self._at_ms = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, delay_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed_ms = self._clock.monotonic_ms() + delay_ms
        self._timer = self._timers.call_later(delay_ms, self._fire)

    def _fire(self) -> None:
        self._timer = None
        if self._at_ms is None:
            return
        remaining_ms = self._at_ms - self._clock.monotonic_ms()
        if remaining_ms > 0:
            self._arm(remaining_ms)
            return
        self._at_ms = None
        self._callback()
