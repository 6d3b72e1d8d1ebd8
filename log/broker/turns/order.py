"""Keeps the order of what must wait: the steps of one key run one after the other, each when the one before it is over.

Produce needs it: while the coordinator adds a partition to a transaction (KIP-890), or a big batch is checked off the loop, later
batches of the partition arrive, and one of them may be ready at once. Appended before the others it would be out of sequence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

from logflume.log.broker.replies import Reply

Ask = Callable[[], Any]
"""Asks for what a step needs: a value, or a reply to which it is set later. It must not raise."""
Act = Callable[[Any], None]


class Turns:
    """Invariant: a key is in `_waiting` exactly while its oldest step waits for an answer; those behind it have not asked yet."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, deque[tuple[Ask, Act]]] = {}

    def is_waiting(self, key: Hashable) -> bool:
        """Whether a step of this key waits, so that the next one has to queue."""
        return key in self._waiting

    def wait(self, key: Hashable, answer: Reply, act: Act) -> None:
        """Run `act` with the answer when it comes, or now if it is there; until then the steps of the key queue."""
        self._waiting[key] = deque()
        answer.then(lambda value: self._answered(key, act, value))

    def queue(self, key: Hashable, ask: Ask, act: Act) -> None:
        """Ask and act once everything before it has acted."""
        self._waiting[key].append((ask, act))

    def _answered(self, key: Hashable, act: Act, value: Any) -> None:
        act(value)
        queue = self._waiting[key]
        while queue:
            ask, act = queue.popleft()
            answer = ask()
            if isinstance(answer, Reply) and not answer.is_done:
                answer.then(lambda value, act=act: self._answered(key, act, value))  # type: ignore[misc]
                return
            act(answer.value if isinstance(answer, Reply) else answer)
        del self._waiting[key]
