"""Closes state off the engine's thread: RocksDB may take a while, and the group must be polled meanwhile."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from logflume.log import LogflumeError, StorageError
from logflume.streams.state import TaskState

_log = logging.getLogger("logflume.streams")
_WAIT_S = 60.0


class Closer:
    """One background thread. `wait` before opening the same directory again."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="state-closer")
        self._closing: dict[Path, Future[None]] = {}

    def close(self, state: TaskState) -> None:
        """Close soon."""
        self._closing[state.db.path] = self._pool.submit(state.close)

    def wait(self, path: Path) -> None:
        """Wait until the state in `path` is closed, if it is being closed. Raises StorageError after 60 s."""
        closing = self._closing.pop(path, None)
        if closing is None:
            return
        try:
            closing.result(timeout=_WAIT_S)
        except TimeoutError:
            raise StorageError(f"the state in {path} could not be closed within {_WAIT_S:.0f} s: a reader holds it") from None

    def finish(self) -> None:
        """Wait for everything and end the thread; what cannot be closed in time is said, and left."""
        for path in list(self._closing):
            try:
                self.wait(path)
            except StorageError as error:
                _log.warning("while closing: %s", error)
        self._pool.shutdown(wait=False)


def within(timeout_s: float, *steps: Callable[[], object]) -> bool:
    """Take steps of letting go in order, none of which may hold up the end: in a thread that is left alone after `timeout_s`.

    A step that fails is logged and the next one taken. Returns whether all were taken in time.
    """

    def take() -> None:
        for step in steps:
            try:
                step()
            except LogflumeError as error:
                _log.info("while closing: %s", error)

    thread = threading.Thread(target=take, name="letting-go", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if thread.is_alive():
        _log.warning("the log does not answer; left after %.0f s without a farewell", timeout_s)
    return not thread.is_alive()
