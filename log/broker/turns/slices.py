"""Long requests in slices: everybody has the one loop, so nobody has it for long.

A handler that may have much to do is a generator: what it does between two `yield`s is a slice, and what it returns is its
answer. It may yield a `Reply` to be gone on with once that is set. Between two slices other requests are served, so what was
looked up before a `yield` is looked up again after it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from logflume.log.broker.replies import Reply
from logflume.log.broker.requests import CLOSE_CONNECTION
from logflume.log.errors import LogflumeError

Steps = Generator["Reply | None", None, Any]
_log = logging.getLogger("logflume.broker")


def at_once(steps: Steps) -> Any:
    """Do all slices of a small request, which waits for nothing, and return its answer."""
    try:
        while True:
            waits_for = next(steps)
            assert waits_for is None, "it waits for something"
    except StopIteration as end:
        return end.value


class Slices:
    """Runs generators by turns, one slice of one of them a turn of the loop. One thread.

    Invariants: a turn is due exactly while `_ready` is not empty, or runs. `_sliced` has the replies to come of generators that
    were not done in one slice: their answers are large, those of others, which only waited, are not.
    """

    def __init__(self, next_turn: Callable[[Callable[[], None]], Any] | None = None) -> None:
        """`next_turn` has its argument called in the next turn of the loop; without a loop everything is done at once."""
        self._next_turn = next_turn
        self._ready: deque[tuple[Steps, Reply]] = deque()
        self._sliced: set[Reply] = set()
        self.slices = 0
        """Slices begun so far, but for the first one of each generator."""

    def run(self, steps: Steps) -> Any:
        """Do the first slice; return the answer if it is there, else a reply that is set to it."""
        reply = Reply()
        reply.is_long = True
        self._step(steps, reply)
        return reply.value if reply.is_done else reply

    def _step(self, steps: Steps, reply: Reply) -> None:
        try:
            waits_for = next(steps)
        except StopIteration as end:
            self._finish(reply, end.value)
            return
        except LogflumeError as error:
            _log.error("a request failed: %s", error)
            self._finish(reply, CLOSE_CONNECTION)
            return
        except Exception:  # the boundary: one request must not take the broker down  # noqa: BLE001
            _log.exception("a request failed")
            self._finish(reply, CLOSE_CONNECTION)
            return
        if waits_for is None:
            self._sliced.add(reply)
            self._queue(steps, reply)
        else:
            waits_for.then(lambda _: self._queue(steps, reply))

    def _finish(self, reply: Reply, answer: Any) -> None:
        reply.is_long = reply in self._sliced
        self._sliced.discard(reply)
        reply.set(answer)

    def _queue(self, steps: Steps, reply: Reply) -> None:
        self._ready.append((steps, reply))
        if len(self._ready) > 1:
            return
        if self._next_turn is not None:
            self._next_turn(self._turn)
            return
        while self._ready:
            self._turn()

    def _turn(self) -> None:
        self.slices += 1
        self._step(*self._ready[0])  # it stays in the queue meanwhile, so that no second turn is asked for
        self._ready.popleft()
        if self._ready and self._next_turn is not None:
            self._next_turn(self._turn)
