"""How far the state in this directory had come when it was last noted: a hint for who deals out tasks, not for restoring.

Databases are not opened to be asked: a member of a group says what it has before it knows what it will run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

import msgspec

_WRITE_EVERY_S = 10.0


class Progress:
    """Task -> a sum of changelog offsets, kept in a file. `tell` in any thread, the rest in one."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._noted: dict[str, int] = {}
        self._is_changed = False
        self._written_s = 0.0
        with suppress(OSError, msgspec.MsgspecError):
            self._noted = msgspec.json.decode(file.read_bytes(), type=dict[str, int])

    def note(self, task: str, position: int) -> None:
        """Take a task's newest position."""
        if self._noted.get(task) != position:
            self._noted[task] = position
            self._is_changed = True

    def forget(self, task: str) -> None:
        """The task's state is gone."""
        self._is_changed = self._noted.pop(task, None) is not None or self._is_changed

    def tell(self, tasks: Collection[str]) -> dict[str, int]:
        """Return the position of each of these, 0 where none was noted."""
        noted = self._noted.copy()
        return {task: noted.get(task, 0) for task in tasks}

    def write(self, monotonic_s: Callable[[], float], *, is_due: bool = False) -> None:
        """Write what has changed, every 10 s or when it `is_due`. What cannot be written is told less well at the next start."""
        if not self._is_changed or (not is_due and monotonic_s() - self._written_s < _WRITE_EVERY_S):
            return
        self._is_changed, self._written_s = False, monotonic_s()
        partial = self._file.with_suffix(".partial")
        with suppress(OSError):
            partial.write_bytes(msgspec.json.encode(self._noted))
            partial.rename(self._file)
