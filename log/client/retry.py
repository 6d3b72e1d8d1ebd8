"""Repeats an operation that failed in a way a retry can mend, with a growing, jittered pause; and work that several wait for."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from logflume.log.errors import LogflumeError

T = TypeVar("T")

FIRST_BACKOFF_S = 0.02
MAX_BACKOFF_S = 1.0


def backoff_s(attempt: int, *, first_s: float = FIRST_BACKOFF_S, max_s: float = MAX_BACKOFF_S) -> float:
    """Return the pause before the next attempt, having made `attempt` (from 1): doubled each time, +-20 %."""
    return float(min(first_s * 2 ** min(attempt - 1, 16), max_s) * random.uniform(0.8, 1.2))


async def with_retries(
    operation: Callable[[], Awaitable[T]],
    *,
    timeout_s: float,
    on_failure: Callable[[LogflumeError], None] | None = None,
) -> T:
    """Await `operation()` until it succeeds, fails for good, or `timeout_s` is over; then the last error is raised."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    attempt = 0
    while True:
        attempt += 1
        try:
            return await operation()
        except LogflumeError as error:
            pause = backoff_s(attempt)
            if not error.is_retriable or loop.time() + pause > deadline:
                raise
            if on_failure is not None:
                on_failure(error)
        await asyncio.sleep(pause)


def shielded(work: asyncio.Future[T]) -> asyncio.Future[T]:
    """Return what to await of work that goes on when who awaits it leaves. If all have left before it fails, that is nobody's.

    `asyncio.shield` alone has the loop print such a failure, with a traceback, when the work is collected.
    """
    work.add_done_callback(lambda done: done.cancelled() or done.exception())
    return asyncio.shield(work)
