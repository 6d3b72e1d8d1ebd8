"""Checks sealed segments in the background, so that damage is known before somebody needs the records.

At most `logflume.scrub.max.bytes.per.second`, each segment once within `logflume.scrub.interval.ms`. Reading and checking happen
in a worker thread; what was found is taken in on the loop's thread.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable

from logflume.log.errors import CorruptLog, StorageError

from .checking import checked_batches
from .compact_orders import Budget
from .epochs import LeaderEpochs
from .partition import PartitionLog
from .segment import Segment

LOGS_AT_A_TIME = 500
"""That are looked through for segments that are due in one turn of the loop."""
_LEAST_COST_BYTES = 4096
"""What a small batch counts as: its bytes cost little, the interpreter's steps for it do."""


class _Stopped(Exception):
    """The broker stops."""


class Scrubber:
    """Scrubs the logs of a broker. Invariant: one segment is being checked at a time."""

    def __init__(self, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._stopping = threading.Event()
        self._checked_ms: dict[str, int] = {}
        """Path of each segment -> when it was checked."""

    def stop(self) -> None:
        """End what is under way soon. May come from any thread."""
        self._stopping.set()

    async def scrub(self, logs: Iterable[PartitionLog], *, now_ms: int, interval_ms: int, max_bytes_per_s: float) -> None:
        """Check every sealed segment that was not within the interval; damage is noted in its log."""
        loop = asyncio.get_running_loop()
        budget = Budget(max_bytes_per_s, monotonic_s=self._monotonic_s, sleep=self._pause)
        checked_ms: dict[str, int] = {}
        due: list[tuple[PartitionLog, Segment]] = []
        for number, log in enumerate(list(logs), start=1):
            for segment in log.sealed_segments():
                at_ms = self._checked_ms.get(segment.path, -interval_ms)
                if now_ms - at_ms >= interval_ms:
                    due.append((log, segment))
                else:
                    checked_ms[segment.path] = at_ms
            if number % LOGS_AT_A_TIME == 0:
                await asyncio.sleep(0)
        self._checked_ms = checked_ms
        for log, segment in due:
            copy, epochs = segment.copy(), log.leader_epochs()
            error: StorageError | None = None
            try:
                await loop.run_in_executor(None, _check, copy, epochs, budget.spend)
            except _Stopped:
                return
            except StorageError as found:
                error = found
            if not log.holds(segment):
                continue  # deleted, compacted or closed meanwhile
            self._checked_ms[segment.path] = now_ms
            if isinstance(error, CorruptLog):
                log.note_damage(error)
            elif error is None:
                segment.mark_checked(0, copy.size_bytes)

    def _pause(self, seconds: float) -> None:
        if self._stopping.wait(seconds):
            raise _Stopped


def _check(segment: Segment, epochs: LeaderEpochs, pace: Callable[[int], None]) -> None:
    for _, header, _ in checked_batches(segment, 0, segment.size_bytes, epochs=epochs):
        pace(max(header.size_bytes, _LEAST_COST_BYTES))
