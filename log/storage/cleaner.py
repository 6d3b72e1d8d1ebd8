"""Compacts the logs of a broker, one after the other, in one process of its own for all that are due at a time.

That process never works beside another broker's: it dies with this one, holds the lock of the data directory while it lives, and
writes files under names that nobody else uses.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from logflume.log.children import Lifeline
from logflume.log.errors import StorageError

from .compact_orders import LENGTH, Order, Reply
from .compaction import CompactionResult
from .partition import PartitionLog

_decode_reply = msgspec.json.Decoder(Reply).decode

LOGS_AT_A_TIME = 500
"""That are asked for what is to be compacted in one turn of the loop."""


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What a round did: bytes freed per directory, and the logs that are damaged or that the disk refused, left as they are."""

    freed_bytes: dict[str, int] = field(default_factory=dict)
    errors: list[StorageError] = field(default_factory=list)


class Cleaner:
    """Runs compactions for an asyncio loop. Invariant: at most one process at a time."""

    def __init__(self, *, lock_fd: int = -1) -> None:
        """`lock_fd`: a lock file that the process inherits, and so holds as long as it lives; -1 for none."""
        self._lock_fds = (lock_fd,) if lock_fd >= 0 else ()
        self._process: asyncio.subprocess.Process | None = None
        self._lifeline: Lifeline | None = None
        self._is_closed = False
        self._lock = asyncio.Lock()

    async def clean(self, logs: Iterable[PartitionLog], *, now_ms: int, max_bytes_per_s: float = float(sys.maxsize)) -> Cleaned:
        """Compact each log that is due, reading and writing so many bytes a second at most. A second call does nothing."""
        cleaned = Cleaned()
        if self._lock.locked():
            return cleaned
        async with self._lock:
            for number, log in enumerate(list(logs), start=1):
                if number % LOGS_AT_A_TIME == 0:
                    await asyncio.sleep(0)
                plan = None if self._is_closed else log.compaction_plan(now_ms, name=secrets.token_hex(8))
                if plan is not None:
                    try:
                        result = await self._run(Order(plan, max_bytes_per_s))
                        if result is not None:
                            cleaned.freed_bytes[log.directory] = log.finish_compaction(result)
                    except StorageError as error:
                        cleaned.errors.append(error)
            await self._end()
        return cleaned

    async def _run(self, order: Order) -> CompactionResult | None:
        """Have the process carry it out; None if the cleaner was closed meanwhile. Raises StorageError."""
        process = self._process
        if process is None:
            process = await self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            if self._is_closed:
                return None
            message = msgspec.json.encode(order)
            process.stdin.write(LENGTH.pack(len(message)) + message)
            await process.stdin.drain()
            (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
            reply = _decode_reply(await process.stdout.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            if self._is_closed:
                return None
            cause = (await process.stderr.read()).decode(errors="replace").strip()[-2000:]
            await self._end()
            raise StorageError(f"cannot compact {order.plan.directory}: the process that does it ended: {cause}") from error
        if reply.result is None:
            raise StorageError(f"cannot compact {order.plan.directory}: {reply.error}")
        return None if self._is_closed else reply.result

    async def _start(self) -> asyncio.subprocess.Process:
        lifeline = self._lifeline = Lifeline()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            f"{__package__}.compact",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=lifeline.environment(os.environ),
            pass_fds=(*lifeline.fds, *self._lock_fds),
        )
        return self._process

    async def _end(self) -> None:
        """Let the process end, which it does when nothing more comes."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            await process.wait()
        if self._lifeline is not None:
            self._lifeline.close()
            self._lifeline = None

    async def close(self) -> None:
        """Stop a compaction that is under way; what it has written is removed when the log is opened next. Idempotent."""
        self._is_closed = True
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
        async with self._lock:
            return
