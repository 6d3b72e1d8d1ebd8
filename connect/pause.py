"""Holds tasks between two batches while their connector is paused."""

from __future__ import annotations

import threading


class PauseGate:
    """A gate that tasks pass between two batches; open at first. Thread-safe."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()

    @property
    def is_closed(self) -> bool:
        return not self._open.is_set()

    def close(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def wait(self, stop: threading.Event) -> None:
        """Return when the gate is open or `stop` is set."""
        while not stop.is_set() and not self._open.wait(0.2):
            pass
