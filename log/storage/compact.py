"""A process that compacts (`python -m logflume.log.storage.compact`): reads orders and answers each, until its input ends.

The broker leaves this work to a process of its own (`cleaner.py`), for Python's lock would let it slow down every request.
Both directions: a length of four bytes, then JSON. It dies with the broker (`log/children.py`).
"""

from __future__ import annotations

import os
import signal
import struct
import sys
import time
from collections.abc import Callable

import msgspec

from logflume.log.batch.tiers import kernel_tier
from logflume.log.children import end_with_parent
from logflume.log.errors import LogflumeError

from .compaction import CompactionPlan, CompactionResult, run_compaction
from .disk import OsDisk

LENGTH = struct.Struct(">I")
COMPILED_FROM_BYTES = 32 << 20
"""From this size on it pays to load the compiled kernels first (0.5 s)."""
_NICENESS = 10
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


def main() -> None:
    """Compact what the orders on standard input say, one after the other."""
    end_with_parent(signal.SIGKILL)
    os.nice(_NICENESS)
    disk = OsDisk()
    while prefix := sys.stdin.buffer.read(LENGTH.size):
        (length,) = LENGTH.unpack(prefix)
        order = msgspec.json.decode(sys.stdin.buffer.read(length), type=Order)
        plan = order.plan
        if sum(segment.size_bytes for segment in plan.segments) >= COMPILED_FROM_BYTES:
            kernel_tier().load()
        try:
            reply = Reply(run_compaction(plan, disk=disk, pace=Budget(order.max_bytes_per_s).spend))
        except LogflumeError as error:
            reply = Reply(error=str(error))
        message = msgspec.json.encode(reply)
        sys.stdout.buffer.write(LENGTH.pack(len(message)) + message)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
