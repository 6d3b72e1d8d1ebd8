"""The clock and the timers of a running broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from logflume.log.broker.seams import Timer


class SystemClock:
    """The time of the machine."""

    __slots__ = ()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


class LoopTimers:
    """Timers of an asyncio loop."""

    __slots__ = ("_loop",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        return self._loop.call_later(delay_ms / 1000, callback)
