"""Keeps child processes running (architecture, D14): starts them, restarts what dies with a growing pause and shows the cause.

A child that ends before `stop` is started again. The supervisor's own end takes the children with it: all at once, and
only then a child that the others work with (`ends_last`: the broker), by SIGTERM, then, after `stop_timeout_s` or when `stop`
is called a second time, by SIGKILL; a supervisor that is killed leaves no orphans either: each child holds its lifeline
(`log/children.py`). A terminal's Ctrl-C reaches the supervisor alone, because the children are not in its process group.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from logflume.log.children import Lifeline

FIRST_PAUSE_S = 0.2
MAX_PAUSE_S = 30.0
QUIET_S = 60.0
"""A child that ran this long starts again with the first pause."""
KEPT_LINES = 20
_POLL_S = 0.02


@dataclass(slots=True)
class Child:
    """One process to keep running."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] | None = None
    stdout: int | None = None
    ends_last: bool = False
    """The others work with it: it is stopped once they have ended."""
    process: subprocess.Popen[bytes] | None = None
    started_at_s: float = 0.0
    next_start_at_s: float = 0.0
    pause_s: float = FIRST_PAUSE_S
    restarts: int = 0
    relay: threading.Thread | None = None
    """Passes on what it writes, until it ends."""
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))


class Supervisor:
    """Starts children in order and keeps them running. One thread calls `run`; `stop` may come from a signal handler."""

    def __init__(self, say: Callable[[str, str], None], *, stop_timeout_s: float = 20.0) -> None:
        """`say` is given lines: the name of the child that wrote it on stderr, "" for the supervisor's own; and the line."""
        self._say = say
        self._stop_timeout_s = stop_timeout_s
        self._children: list[Child] = []
        self._stops = 0  # not an Event: its lock may be held by the very thread that a signal handler interrupts
        self._lifeline = Lifeline()

    def add(self, child: Child) -> None:
        """Start a child now and keep it running."""
        self._children.append(child)
        self._start(child)

    def stop(self) -> None:
        """Ask `run` to stop everything and return; the second time, to kill what has not ended yet."""
        self._stops += 1

    @property
    def is_stopping(self) -> bool:
        return self._stops > 0

    def run(self, *, poll_s: float = 0.2) -> None:
        """Watch the children until `stop`; restarts what dies."""
        try:
            while not self.is_stopping:
                time.sleep(poll_s)
                for child in [] if self.is_stopping else self._children:
                    self._watch(child, time.monotonic())
        finally:
            self._stop_all()

    def status(self) -> list[dict[str, object]]:
        """Return name, pid, state and number of restarts of each child."""
        return [
            {
                "name": child.name,
                "pid": child.process.pid if child.process else None,
                "state": "running" if child.process and child.process.poll() is None else "waiting",
                "restarts": child.restarts,
            }
            for child in self._children
        ]

    def _start(self, child: Child) -> None:
        child.started_at_s = time.monotonic()
        child.process = subprocess.Popen(
            child.argv,
            env=self._lifeline.environment(child.env if child.env is not None else os.environ),
            pass_fds=self._lifeline.fds,
            stdin=subprocess.DEVNULL,
            stdout=child.stdout,
            stderr=subprocess.PIPE,
            process_group=0,
        )
        child.relay = threading.Thread(target=self._relay, args=(child, child.process), name=f"stderr-{child.name}", daemon=True)
        child.relay.start()

    def _relay(self, child: Child, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        for raw in process.stderr:
            line = raw.decode(errors="replace").rstrip()
            child.last_lines.append(line)
            self._say(child.name, line)

    def _watch(self, child: Child, now_s: float) -> None:
        if child.process is None:
            if now_s >= child.next_start_at_s:
                child.restarts += 1
                self._start(child)
            return
        code = child.process.poll()
        if code is None:
            return
        if now_s - child.started_at_s > QUIET_S:
            child.pause_s = FIRST_PAUSE_S
        cause = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        last = f": {child.last_lines[-1]}" if child.last_lines else ""
        self._say("", f"{child.name} ended with {cause}{last}; starting it again in {child.pause_s:g} s")
        child.process = None
        child.next_start_at_s = now_s + child.pause_s
        child.pause_s = min(child.pause_s * 2, MAX_PAUSE_S)

    def _stop_all(self) -> None:
        for is_last in (False, True):
            self._stop_together([child for child in self._children if child.ends_last is is_last])
        self._lifeline.close()

    def _stop_together(self, children: Sequence[Child]) -> None:
        running = [(child, child.process) for child in children if child.process is not None]
        for _, process in running:
            process.send_signal(signal.SIGTERM)
        deadline_s = time.monotonic() + self._stop_timeout_s
        for child, process in running:
            while process.poll() is None and time.monotonic() < deadline_s and self._stops < 2:
                time.sleep(_POLL_S)
            if process.poll() is None:
                why = "is killed at once" if self._stops > 1 else f"did not stop within {self._stop_timeout_s:g} s; killing it"
                self._say("", f"{child.name} {why}")
                process.kill()
                process.wait()
