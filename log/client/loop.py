"""The background thread that does all I/O of all clients of a process: one asyncio loop.

Nothing that runs on it may block. Callers of other threads hand it coroutines and wait for their results.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, TimeoutError
from functools import lru_cache
from typing import Any, TypeVar

from logflume.log.errors import TransportError

T = TypeVar("T")


class IoLoop:
    """An asyncio loop on a daemon thread of its own, running until the process ends."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="logflume-client-io", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop; the future is that of its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine: Coroutine[Any, Any, T], *, timeout_s: float | None = None) -> T:
        """Run a coroutine on the loop and wait for its result; must not be called on the loop's own thread.

        Raises:
            TransportError: no result within `timeout_s`; the coroutine is cancelled.
        """
        assert threading.current_thread() is not self._thread, "a blocking call on the I/O thread would wait for itself"
        future = self.submit(coroutine)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            if future.done():
                raise
            future.cancel()
            raise TransportError(f"no result within {timeout_s} s") from None
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Call a function on the loop, soon."""
        self.loop.call_soon_threadsafe(function, *args)


def io_loop() -> IoLoop:
    """Return the process's loop, started at first use (and anew in a forked child, which has no threads)."""
    return _io_loop_of(os.getpid())


@lru_cache(maxsize=1)
def _io_loop_of(pid: int) -> IoLoop:
    return IoLoop()
