"""A broker on a loop that is turned by hand: what each turn does is counted, and what is done on the other thread is known."""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from logflume.log.broker.coordinators import Coordinators
from logflume.log.broker.core import Core
from logflume.log.broker.handlers import Handlers
from logflume.log.broker.ports import do_at_once
from logflume.log.broker.replies import Reply
from logflume.log.broker.requests import RequestContext
from logflume.log.broker.settings.lookup import BrokerConfig
from logflume.log.broker.testing.simulated import SimulatedTime, SimulatedTimer
from logflume.log.protocol import codec
from logflume.log.storage import DataDir, OsDisk

from ._simulated_broker import SyncFlusher

MOST_WORK = 200_000
"""Calls of functions, Python's and C's, in about 20 ms."""


class Turns:
    """A loop that is turned by hand, and counts the work of each turn."""

    def __init__(self) -> None:
        self._due: deque[Callable[[], None]] = deque()
        self.longest = self.turns = self._work = 0
        self.is_elsewhere = False

    def next_turn(self, callback: Callable[[], None]) -> None:
        self._due.append(callback)

    def offload(self, work: Callable[[], Any]) -> Reply:
        before, self.is_elsewhere = self._work, True
        value = do_at_once(work).value
        self._work, self.is_elsewhere = before, False
        reply = Reply()
        self.next_turn(lambda: reply.set(value))
        return reply

    def run(self, work: Callable[[], Any]) -> Any:
        """Do this as one turn."""
        self._work = 0

        def count(frame: object, event: str, argument: object) -> None:
            self._work += event in ("call", "c_call")

        gc.disable()  # what is left of other tests is not this turn's work
        sys.setprofile(count)
        try:
            return work()
        finally:
            sys.setprofile(None)
            gc.enable()
            self.turns += 1
            self.longest = max(self.longest, self._work)

    def run_one(self) -> bool:
        """Do one turn; say whether there was one."""
        if self._due:
            self.run(self._due.popleft())
            return True
        return False

    def run_due(self) -> None:
        while self.run_one():
            pass


class TurnedTime(SimulatedTime):
    """Time whose timers each have a turn of the loop."""

    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self._turns = turns

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> SimulatedTimer:
        return super().call_later(delay_ms, lambda: self._turns.run(callback))


class TurnedBroker:
    """A broker with all its coordinators on a loop that is turned by hand."""

    def __init__(self, path: Path, **settings: str) -> None:
        self.turns, disk = Turns(), OsDisk()
        self.time = time = TurnedTime(self.turns)
        self._data_dir = DataDir.open(str(path), disk=disk)
        self.core = Core(
            self._data_dir,
            disk=disk,
            config=BrokerConfig({name.replace("_", "."): value for name, value in settings.items()}),
            clock=time,
            timers=time,
            flusher=SyncFlusher(),
            addresses={},
            offload=self.turns.offload,
            next_turn=self.turns.next_turn,
        )
        self.coordinators = Coordinators(self.core)
        self.handlers = Handlers(
            self.core,
            coordinators=self.coordinators.handlers(),
            admission=self.coordinators.transactions,
            long_polls=[self.coordinators.share.fetch],
        )

    def call(self, message: Any, version: int) -> Any:
        wire = b"".join(codec.encode(message, version, bytearray()))
        request = codec.decode_request(message.api_key, version, memoryview(wire))
        outcome = self.begin(request, version)
        self.turns.run_due()
        if isinstance(outcome, Reply):
            for wait_ms in (1, 400_000):
                if not outcome.is_done:
                    self.time.advance(wait_ms)
                    self.turns.run_due()
            assert outcome.is_done
            outcome = outcome.value
        return outcome

    def begin(self, request: Any, version: int) -> Any:
        """Have a request handled for one turn; return the response, or the Reply that it will come by."""
        context = RequestContext(request.api_key, version, 1, "c", "127.0.0.1", 1)
        return self.turns.run(lambda: self.handlers.handle(context, request))

    def close(self) -> None:
        self.coordinators.close()
        self.core.close()
        self._data_dir.close()
