"""Notices that a task has been in one call for long, and says where: mostly a function of the user's that waits for something.

Heartbeats go on meanwhile (the client's own thread sends them), so the group does not notice; without a word the application
would only seem slow.
"""

from __future__ import annotations

import logging
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import dropwhile
from types import FrameType

from .status import BlockedStatus

_LOOK_EVERY_S = 0.5
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
_log = logging.getLogger("logflume.streams")


class Watch:
    """Of one engine: its thread says when it enters a task's program and leaves it, another one looks (`Watches`).

    Shared by single assignments: `_entered` is written by the engine's thread, `blocked` by the one that looks.
    """

    def __init__(self, application: str, *, blocked_after_ms: int, monotonic_s: Callable[[], float]) -> None:
        self._application = application
        self._blocked_after_s = blocked_after_ms / 1000
        self._monotonic_s = monotonic_s
        self._entered: tuple[float, str, int] | None = None
        self._said: tuple[float, str, int] | None = None
        self.blocked: BlockedStatus | None = None

    def enter(self, task: str) -> None:
        """A call of this task's program begins."""
        self._entered = self._monotonic_s(), task, threading.get_ident()

    def leave(self) -> None:
        """It is over."""
        self._entered = None

    @property
    def look_every_s(self) -> float:
        return min(_LOOK_EVERY_S, self._blocked_after_s)

    def look(self) -> None:
        """Set `blocked`; say each call that is long once."""
        entered = self._entered
        if entered is None or (lasted_s := self._monotonic_s() - entered[0]) < self._blocked_after_s:
            self.blocked = None
            return
        _, task, thread = entered
        where = place_of(_frames(sys._current_frames().get(thread)))
        if self._entered is not entered:
            return
        self.blocked = BlockedStatus(task, where, lasted_s)
        if self._said is not entered:
            self._said = entered
            _log.warning(
                "%s: task %s has been in %s for %.1f s; its partitions wait, and heartbeats go on meanwhile. What has to wait "
                "for something belongs into map_async",
                self._application, task, where, lasted_s,
            )  # fmt: skip


class Watches:
    """Looks through the watches of engines that share it, in one thread, which there is while there are any. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watches: frozenset[Watch] = frozenset()
        self._is_over = threading.Event()

    def add(self, watch: Watch) -> None:
        """Look through this one too from now on."""
        with self._lock:
            if not self._watches:
                self._is_over = threading.Event()
                threading.Thread(target=self._look_on, args=(self._is_over,), name="engine-watch", daemon=True).start()
            self._watches |= {watch}

    def remove(self, watch: Watch) -> None:
        """Look through it no longer."""
        with self._lock:
            self._watches -= {watch}
            if not self._watches:
                self._is_over.set()

    def _look_on(self, is_over: threading.Event) -> None:
        while not is_over.wait(min((watch.look_every_s for watch in self._watches), default=_LOOK_EVERY_S)):
            for watch in self._watches:
                watch.look()


def _frames(innermost: FrameType | None) -> list[FrameType]:
    """Return the frames of a thread, the outermost first."""
    found = []
    frame = innermost
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found[::-1]


def place_of(frames: Sequence[FrameType]) -> str:
    """Return the user's function that is under way, with its line; else the innermost one. `frames`: the outermost first."""
    frame = users_frame(dropwhile(lambda frame: not _is_ours(frame), frames)) or (frames[-1] if frames else None)
    return "an unknown place" if frame is None else named(frame)


def users_frame(frames: Iterable[FrameType]) -> FrameType | None:
    """Return the first function that belongs to no package. `frames`: from the engine's call inwards."""
    for frame in frames:
        if not _is_ours(frame) and not frame.f_code.co_filename.startswith(("<", *_LIBRARIES)):
            return frame
    return None


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith("logflume.")


def named(frame: FrameType, line: int | None = None) -> str:
    """Return a function with the line that it has come to, or another one."""
    return f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{line or frame.f_lineno})"
