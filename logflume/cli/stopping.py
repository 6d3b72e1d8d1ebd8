"""What Ctrl-C and SIGTERM set, and a long-running command waits for."""

from __future__ import annotations

import signal
import threading
import time

_TURN_S = 0.5


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
