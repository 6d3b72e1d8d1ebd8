"""What the broker and the process that compacts say to each other, and how fast the one may work."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

import msgspec

from .compaction import CompactionPlan, CompactionResult

LENGTH = struct.Struct(">I")
"""Before each message, which is JSON."""
_SHORTEST_PAUSE_S = 0.01


class Reply(msgspec.Struct, frozen=True):
    """What came of a plan: a result, or why there is none."""

    result: CompactionResult | None = None
    error: str = ""


class Order(msgspec.Struct, frozen=True):
    """What to do, and how many bytes may be read and written a second."""

    plan: CompactionPlan
    max_bytes_per_s: float


class Budget:
    """Waits so that no more than `max_bytes_per_s` are spent, over any time from its making on."""

    def __init__(
        self,
        max_bytes_per_s: float,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._max_bytes_per_s = max(max_bytes_per_s, 1.0)
        self._monotonic_s, self._sleep = monotonic_s, sleep
        self._began_s = monotonic_s()
        self._spent_bytes = 0

    def spend(self, size_bytes: int) -> None:
        """Note bytes that were read or written; wait if they are too many by now."""
        self._spent_bytes += size_bytes
        early_s = self._began_s + self._spent_bytes / self._max_bytes_per_s - self._monotonic_s()
        if early_s > _SHORTEST_PAUSE_S:
            self._sleep(early_s)
