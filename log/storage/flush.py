"""Group commit: one scheduler fsyncs what many partitions appended, in worker threads, and calls back on the loop (D8)."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from logflume.log.errors import LogflumeError
from logflume.log.histogram import Histogram

from .partition import PartitionLog
from .slices import FlushTicket

FlushCallback = Callable[[Exception | None], None]

LOGS_AT_A_TIME = 500
"""Flushed together at most, for the loop begins and finishes all of them in one go each."""

_Work = tuple[PartitionLog, FlushTicket, list[FlushCallback]]


class FlushScheduler:
    """Flushes partitions in groups. Lives on one asyncio loop; only the syncing happens in worker threads.

    Invariant: at most one flush is under way; whatever is appended meanwhile goes into the next one, which begins when it ends
    (at least `interval_ms` after the last one began; at once when idle, or when the last one served a single request, for then
    there is nobody to wait for).
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, interval_ms: float = 2.0, threads: int = 4) -> None:
        self._loop = loop
        self._interval_s = interval_ms / 1000
        self._threads = threads
        self._executor = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="logflume-fsync")
        self.durations = Histogram()
        """Of the flushes so far, from their begin until all of it is on disk."""
        self._waiting: dict[PartitionLog, list[FlushCallback]] = {}
        self._is_flushing = False
        self._lock = threading.Lock()
        """Of what the worker threads have done, and how many are at work."""
        self._synced: list[tuple[PartitionLog, FlushTicket, list[FlushCallback], Exception | None]] = []
        self._jobs_left = 0
        self._timer: asyncio.Handle | None = None
        self._last_start_s = -1.0
        self._last_requests = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_closed = False

    def request(self, log: PartitionLog, callback: FlushCallback) -> None:
        """Call back on the loop with None once everything appended to `log` so far is durable, or with the error.

        With flush "os", or when nothing is dirty, the callback runs at once, inside this call.
        """
        assert not self._is_closed, "the flush scheduler is closed"
        if log.durable_offset >= log.log_end_offset:
            callback(None)
            return
        waiters = self._waiting.get(log)
        if waiters is not None:
            waiters.append(callback)
            return
        self._waiting[log] = [callback]
        self._idle.clear()
        if not self._is_flushing and self._timer is None:
            self._schedule()

    def _schedule(self) -> None:
        pause_s = self._last_start_s + self._interval_s - self._loop.time()
        if pause_s > 0 and self._last_requests > 1:
            self._timer = self._loop.call_later(pause_s, self._start)
        else:
            self._timer = self._loop.call_soon(self._start_next_turn)

    def _start_next_turn(self) -> None:
        """Let what has already arrived be appended first: it would wait for this flush, and then for one of its own."""
        self._timer = self._loop.call_soon(self._start)

    def _start(self) -> None:
        """Begin a flush. It is under way before anybody is called back: who then requests one gets into the next."""
        self._timer = None
        self._is_flushing = True
        self._last_start_s = self._loop.time()
        waiting, self._waiting = self._waiting, {}
        if len(waiting) > LOGS_AT_A_TIME:
            self._waiting = dict(itertools.islice(waiting.items(), LOGS_AT_A_TIME, None))
            waiting = dict(itertools.islice(waiting.items(), LOGS_AT_A_TIME))
        self._last_requests = sum(map(len, waiting.values()))
        work: list[_Work] = []
        for log, callbacks in waiting.items():
            try:
                ticket = log.begin_flush()
            except LogflumeError as error:
                _call(callbacks, error)
                continue
            if ticket is None:
                _call(callbacks, None)
            else:
                work.append((log, ticket, callbacks))
        if not work:
            self._is_flushing = False
            self._after()
            return
        shares = [work[i :: self._threads] for i in range(min(self._threads, len(work)))]
        self._jobs_left = len(shares)
        for share in shares:
            self._executor.submit(self._sync, share)

    def _sync(self, share: list[_Work]) -> None:
        """Sync in a worker thread; the last one tells the loop: without the futures of `run_in_executor`, which cost more."""
        synced = [(*each, _synced(each[1])) for each in share]
        with self._lock:
            self._synced += synced
            self._jobs_left -= 1
            is_last = not self._jobs_left
        if is_last:
            self._loop.call_soon_threadsafe(self._finish)

    def _finish(self) -> None:
        """Take all of it in, then call back: who reads several partitions is woken once, when there is something in each."""
        synced, self._synced = self._synced, []
        for log, ticket, _, error in synced:
            log.finish_flush(ticket, error)
        for _, _, callbacks, error in synced:
            _call(callbacks, error)
        self._is_flushing = False
        self.durations.observe(self._loop.time() - self._last_start_s)
        self._after()

    def _after(self) -> None:
        if self._waiting and self._timer is None:
            self._schedule()
        elif not self._waiting:
            self._idle.set()

    async def close(self) -> None:
        """Flush what is pending, call the waiters back, stop the threads. Idempotent."""
        self._is_closed = True
        await self._idle.wait()
        self._executor.shutdown(wait=True)


def _synced(ticket: FlushTicket) -> Exception | None:
    """Sync, in a worker thread; return what it raised: nobody above would hear of it, and the flush would never end."""
    try:
        ticket.sync()
    except Exception as error:  # noqa: BLE001
        return error
    return None


def _call(callbacks: list[FlushCallback], error: Exception | None) -> None:
    for callback in callbacks:
        callback(error)
