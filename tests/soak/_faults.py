"""What befalls the broker during a soak: killed, stopped for a while, or its compacting child alone killed."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil

from ..log._server_process import ServerProcess

PAUSE_S = (0.1, 1.5)
"""Shorter than the sessions of groups, so that what is tested is the broker and not the groups' patience."""
CHILD_WAIT_S = 3.0
COMPACTING = "logflume.log.storage.compact"


@dataclass(slots=True)
class Faults:
    """Does one of them at a time, in an order of chance.

    Attributes:
        counts: how often each was done.
        recovery_s: how long each start after a kill took.
    """

    server: ServerProcess
    rng: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    recovery_s: list[float] = field(default_factory=list)
    _bag: list[Callable[[], None]] = field(default_factory=list)

    def strike(self) -> None:
        """Do one; a kill of the broker where there is no child to be harmed."""
        if not self._bag:
            self._bag = [self._kill, self._kill, self._pause, self._kill_child, self._kill_beside_child]
            self.rng.shuffle(self._bag)
        self._bag.pop()()

    def _kill_child(self) -> None:
        child = self._compacting_child()
        if child is None:
            self._kill()
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
        self.counts["compacting children killed"] += 1

    def _kill_beside_child(self) -> None:
        """Kill the broker while its child is stopped: it must not go on beside the next broker when it wakes up."""
        child = self._compacting_child()
        with contextlib.suppress(psutil.NoSuchProcess):
            if child is not None:
                child.suspend()
                self.counts["brokers killed beside a stopped child"] += 1
        self._kill()

    def _kill(self) -> None:
        self.server.kill()
        began_s = time.monotonic()
        self.server.start()
        self.recovery_s.append(time.monotonic() - began_s)
        self.counts["kills"] += 1

    def _pause(self) -> None:
        process = self.server.process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        time.sleep(self.rng.uniform(*PAUSE_S))
        process.send_signal(signal.SIGCONT)
        self.counts["pauses"] += 1

    def _compacting_child(self) -> psutil.Process | None:
        """Return the broker's child; one may have to be waited for. None if none comes."""
        assert self.server.process is not None
        end_s = time.monotonic() + CHILD_WAIT_S
        while time.monotonic() < end_s:
            with contextlib.suppress(psutil.Error):
                for child in psutil.Process(self.server.process.pid).children():
                    if COMPACTING in " ".join(child.cmdline()):
                        return child
            time.sleep(0.01)
        return None
