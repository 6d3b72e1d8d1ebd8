"""The clock, the timers and the second thread of a running broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from logflume.log.broker.ports import Timer
from logflume.log.broker.replies import Reply


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


class LoopOffload:
    """One thread for what would hold an asyncio loop for long; its libraries let go of the interpreter while they work."""

    __slots__ = ("_loop", "_thread")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="logflume-offload")

    def __call__(self, work: Callable[[], Any]) -> Reply:
        reply = Reply()

        def tell(done: Future[Any]) -> None:
            if not done.cancelled():
                self._loop.call_soon_threadsafe(reply.set, done.exception() or done.result())

        self._thread.submit(work).add_done_callback(tell)
        return reply

    def close(self) -> None:
        """Finish what is under way and drop the rest."""
        self._thread.shutdown(wait=True, cancel_futures=True)
