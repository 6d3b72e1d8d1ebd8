"""The background thread that does all I/O of all clients of a process: one asyncio loop.

Nothing that runs on it may block. Callers of other threads hand it coroutines and wait for their results.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, TimeoutError
from functools import lru_cache
from typing import Any, TypeVar

from logflume.log.errors import TransportError

from .errors import ClientClosed

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
        return self.wait(self.submit(coroutine), timeout_s=timeout_s)

    def wait(self, future: Future[T], *, timeout_s: float | None = None) -> T:
        """Wait for what was submitted, as `run` does.

        Raises:
            TransportError: Python ends, and with it the loop's thread, so that nothing comes any more.
        """
        if sys.is_finalizing():
            future.cancel()
            raise TransportError("Python is ending: close logs before, or use them in a `with`")
        assert threading.current_thread() is not self._thread, "a blocking call on the I/O thread would wait for itself"
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


class Calls:
    """The calls of one client, that its callers' threads wait for: closing it ends them all."""

    def __init__(self, loop: IoLoop, of: str) -> None:
        self._loop, self._of = loop, of
        self._open: set[Future[Any]] = set()
        self._has_ended = False

    def run(self, coroutine: Coroutine[Any, Any, T], *, timeout_s: float | None = None) -> T:
        """Run a coroutine on the loop and wait for its result.

        Raises:
            ClientClosed: the client was closed meanwhile.
            TransportError: no result within `timeout_s`; the coroutine is cancelled.
        """
        future = self._loop.submit(coroutine)
        self._open.add(future)
        try:
            if self._has_ended:
                future.cancel()
            return self._loop.wait(future, timeout_s=timeout_s)
        except CancelledError:
            raise ClientClosed(f"the {self._of} was closed") from None
        finally:
            self._open.discard(future)

    def end(self) -> None:
        """End all calls, and those to come. Idempotent; any thread."""
        self._has_ended = True
        for future in tuple(self._open):
            future.cancel()


def io_loop() -> IoLoop:
    """Return the process's loop, started at first use (and anew in a forked child, which has no threads)."""
    return _io_loop_of(os.getpid())


@lru_cache(maxsize=1)
def _io_loop_of(pid: int) -> IoLoop:
    return IoLoop()
