"""One task in its thread: started again with a growing pause when it fails, its state and cause kept for the status."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from logflume.log import InvalidInput, LogflumeError

from .backoff import HEALTHY_AFTER_S, restart_pause_s
from .errors import TargetRefused, TaskFenced
from .meter import Meter
from .pause import PauseGate
from .secrets import redact
from .status import State, TaskStatus

_LOGGER = logging.getLogger("logflume.connect")
_MAX_CAUSE_CHARS = 4000


class Runnable(Protocol):
    """A source or sink task."""

    def run(self, stop: threading.Event, pause: PauseGate) -> bool:
        """Return True when the work is complete, False when told to stop."""
        ...


class SupervisedTask:
    """Runs `make().run()` until it completes, is stopped, or fails for good.

    An error that trying again cannot mend (bad input, a target that refuses, a newer task of the same name) leaves the task
    FAILED; anything else starts it again after a pause that grows from 0.5 to 30 s. `max_restarts` bounds that.
    """

    def __init__(
        self,
        name: str,
        task: int,
        make: Callable[[Meter], Runnable],
        *,
        secrets: frozenset[str],
        pause: PauseGate,
        max_restarts: int | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._task, self._make = name, task, make
        self._secrets, self._pause, self._max_restarts, self._clock_s = secrets, pause, max_restarts, clock_s
        self._stop = threading.Event()
        self._meter = Meter(now_s=clock_s())
        self._state = State.UNASSIGNED
        self._cause: str | None = None
        self._restarts = 0
        self._next_start_s = 0.0
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._supervise, name=f"connect-{name}-{task}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Ask the task to stop after the batch it is at; does not wait."""
        self._stop.set()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until the task has ended; returns whether it has."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def status(self) -> TaskStatus:
        now_s = self._clock_s()
        state = State.PAUSED if self._state is State.RUNNING and self._pause.is_closed else self._state
        return TaskStatus(
            task=self._task,
            state=state,
            records=self._meter.records,
            broken=self._meter.broken,
            rate=self._meter.rate(now_s=now_s) if state is State.RUNNING else 0.0,
            done=self._meter.done,
            total=self._meter.total,
            cause=self._cause,
            restarts=self._restarts,
            next_restart_s=max(self._next_start_s - now_s, 0.0) if state is State.RESTARTING else 0.0,
        )

    def eta_s(self) -> float | None:
        return self._meter.eta_s(now_s=self._clock_s()) if self._state is State.RUNNING else None

    def _supervise(self) -> None:
        failures = 0
        while not self._stop.is_set():
            started_s = self._clock_s()
            self._state = State.RUNNING
            try:
                is_complete = self._make(self._meter).run(self._stop, self._pause)
                self._state = State.COMPLETED if is_complete else State.STOPPED
                return
            except Exception as error:  # noqa: BLE001 a plug-in may raise anything; no task vanishes in silence
                failures = 1 if self._clock_s() - started_s > HEALTHY_AFTER_S else failures + 1
                if not self._try_again(error, failures):
                    return
        self._state = State.STOPPED

    def _try_again(self, error: Exception, failures: int) -> bool:
        """Note the cause and wait; False when the task has failed for good."""
        self.error = error
        self._cause = redact(_told(error), self._secrets)[:_MAX_CAUSE_CHARS]
        is_exhausted = self._max_restarts is not None and self._restarts >= self._max_restarts
        if is_final(error) or is_exhausted:
            self._state = State.FAILED
            _LOGGER.error("connector %s, task %d failed: %s", self._name, self._task, self._cause)
            return False
        pause_s = restart_pause_s(failures)
        self._next_start_s = self._clock_s() + pause_s
        self._state = State.RESTARTING
        _LOGGER.warning("connector %s, task %d starts again in %.1f s: %s", self._name, self._task, pause_s, self._cause)
        self._stop.wait(pause_s)
        self._restarts += 1
        return True


def is_final(error: BaseException) -> bool:
    """Return whether starting the task again cannot help."""
    return isinstance(error, InvalidInput | TargetRefused | TaskFenced)


def _told(error: BaseException) -> str:
    """Return the cause as text: a logflume error speaks for itself, any other with its type."""
    return str(error) if isinstance(error, LogflumeError) else f"{type(error).__name__}: {error}"
