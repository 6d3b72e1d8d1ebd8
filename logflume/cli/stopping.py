"""What Ctrl-C and SIGTERM set, and a long-running command waits for."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import NoReturn, Self

_TURN_S = 0.5
_JOIN_S = 10.0


class Stopping(threading.Event):
    """An event that the handler of a signal sets while the main thread waits for it.

    The system may let another thread take a signal, one that is just starting or ending others. Python runs the handler in the
    main thread, but does not wake it up for that: so it wakes by itself now and then.
    """

    def wait(self, timeout: float | None = None) -> bool:
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while True:
            rest_s = _TURN_S if deadline_s is None else min(_TURN_S, deadline_s - time.monotonic())
            if super().wait(max(0.0, rest_s)):
                return True
            if deadline_s is not None and time.monotonic() >= deadline_s:
                return False


def stop_on_signals() -> Stopping:
    """Return what the first SIGINT or SIGTERM sets. For the main thread."""
    stopping = Stopping()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    return stopping


class Interrupts:
    """SIGINT and SIGTERM as exceptions in the main thread, for work that takes back what it has done when it is interrupted.

    Nothing is raised inside a call to Java: its answer would be taken for that of the next call, and be told as a page of
    tracebacks. What runs there is cancelled instead, and the call returns. Nor is anything raised where an error is being handled
    already. A second signal kills.
    """

    def __init__(self, message: str) -> None:
        self._message = message
        self._number: int | None = None
        self._cancel: Callable[[], object] = lambda: None
        self._is_own = False
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._keep_on, name="interrupts", daemon=True)
        self._former = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        self.install()

    def install(self, cancel: Callable[[], object] | None = None) -> None:
        """Take the signals, from whoever has taken them meanwhile. `cancel`: ends what runs in Java; may be called again."""
        self._cancel = cancel or self._cancel
        for number in self._former:
            signal.signal(number, self._take)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self._number is not None and not self._is_own:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self._is_own = False
        if self._number is None:
            self._number = number
            print(f"\n{self._message}", file=sys.stderr, flush=True)
            self._thread.start()
        if not self._is_over.is_set() and not _is_in_java(frame) and sys.exc_info()[0] is None:
            self._raise()

    def _keep_on(self) -> None:
        """Cancel, and look again whether the main thread is where an exception does no harm."""
        while not self._is_over.is_set():
            with contextlib.suppress(Exception):
                self._cancel()
            if self._is_over.wait(_TURN_S):
                return
            self._is_own = True
            signal.pthread_kill(threading.main_thread().ident or 0, self._number or signal.SIGINT)

    def _raise(self) -> NoReturn:
        self._is_over.set()
        if self._number == signal.SIGTERM:
            raise SystemExit(128 + signal.SIGTERM)
        raise KeyboardInterrupt

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Give the signals back; an error that follows from being interrupted is not told."""
        self._is_over.set()
        if self._number is not None:
            self._thread.join(_JOIN_S)  # no signal of its own comes after this
        for number, former in self._former.items():
            signal.signal(number, former)
        if self._number is not None and isinstance(error, Exception):
            self._raise()


def _is_in_java(frame: FrameType | None) -> bool:
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith("py4j."):
            return True
        frame = frame.f_back
    return False
