"""Group commit: one scheduler fsyncs what many partitions appended, in a worker thread, and calls back on the loop (D8)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .partition import PartitionLog

FlushCallback = Callable[[Exception | None], None]


class FlushScheduler:
    """Flushes partitions in groups. Lives on one asyncio loop; only the syncing happens in worker threads.

    Invariant: at most one flush is under way; whatever is appended meanwhile goes into the next one, which begins when it ends
    (at least `interval_ms` after the last one began).
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, interval_ms: float = 2.0, threads: int = 4) -> None:
        raise NotImplementedError

    def request(self, log: PartitionLog, callback: FlushCallback) -> None:
        """Call back on the loop with None once everything appended to `log` so far is durable, or with the error.

        With flush "os", or when nothing is dirty, the callback runs at once, inside this call.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Flush what is pending, call the waiters back, stop the threads. Idempotent."""
        raise NotImplementedError
