"""Compacts the logs of a broker, one after the other, each in a process of its own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable

import msgspec

from logflume.log.errors import StorageError

from .compaction import CompactionPlan, CompactionResult
from .partition import PartitionLog


class Cleaner:
    """Runs compactions for an asyncio loop. Invariant: at most one process at a time."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._is_closed = False
        self._lock = asyncio.Lock()

    async def clean(self, logs: Iterable[PartitionLog], *, now_ms: int, min_bytes: int = 0) -> dict[str, int]:
        """Compact each log that is due; return the bytes freed per directory. A second call meanwhile does nothing.

        Logs with less than `min_bytes` that were never compacted are left for another time: a process is not worth it.

        Raises:
            StorageError: a log is damaged or the disk refused; that log is left as it is.
        """
        freed: dict[str, int] = {}
        if self._lock.locked():
            return freed
        async with self._lock:
            for log in list(logs):
                plan = None if self._is_closed else log.compaction_plan(now_ms)
                if plan is not None and dirty_bytes(plan) >= min_bytes:
                    result = await self._run(plan)
                    if result is not None:
                        freed[log.directory] = log.finish_compaction(result)
        return freed

    async def _run(self, plan: CompactionPlan) -> CompactionResult | None:
        """Run the plan in a process; None if the cleaner was closed meanwhile."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            f"{__package__}.compact",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        output, errors = await self._process.communicate(msgspec.json.encode(plan))
        status, self._process = self._process.returncode, None
        if self._is_closed:
            return None
        if status:
            raise StorageError(f"cannot compact {plan.directory}: {errors.decode(errors='replace').strip()[-2000:]}")
        return msgspec.json.decode(output, type=CompactionResult)

    async def close(self) -> None:
        """Stop a compaction that is under way; what it has written is removed when the log is opened next. Idempotent."""
        self._is_closed = True
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
        async with self._lock:
            return


def dirty_bytes(plan: CompactionPlan) -> int:
    """Return how much of what a plan covers was never compacted."""
    return sum(segment.size_bytes for segment in plan.segments if segment.base_offset >= plan.dirty_offset)
