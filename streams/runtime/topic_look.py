"""What the inputs of many engines are: asked for by one of them at a time, for all, so that a thousand cost what one does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping

from logflume.log.interfaces import Admin, TopicDescription

LOOK_EVERY_S = 0.5
"""Between two questions."""

FORGET_AFTER_S = 10.0
"""Topics that nobody has asked about for so long are not asked for any more."""


class TopicLook:
    """See the module. Thread-safe; nobody waits for an answer that another one is waiting for."""

    def __init__(self, admin: Admin, *, monotonic_s: Callable[[], float]) -> None:
        self._admin, self._monotonic_s = admin, monotonic_s
        self._asking = threading.Lock()
        self._wanted: dict[str, float] = {}
        self._known: tuple[float, Mapping[str, TopicDescription | None]] = (float("-inf"), {})

    def newer(self, topics: Collection[str], *, than_s: float) -> Mapping[str, TopicDescription] | None:
        """Return what these topics are, by an answer to a question later than `than_s`; None: another engine is asking now.

        A topic that is gone is not in it. Raises LogflumeError: the log does not answer.
        """
        now_s = self._monotonic_s()
        self._wanted.update(dict.fromkeys(topics, now_s))
        known = self._fitting(topics, max(than_s, now_s - LOOK_EVERY_S))
        if known is not None or not self._asking.acquire(blocking=False):
            return known
        try:
            asked_s = self._monotonic_s()
            wanted = {name: last_s for name, last_s in self._wanted.copy().items() if last_s >= asked_s - FORGET_AFTER_S}
            self._wanted = {**wanted, **dict.fromkeys(topics, now_s)}
            found = self._admin.find_topics(list(self._wanted))
            self._known = asked_s, {name: found.get(name) for name in self._wanted}
        finally:
            self._asking.release()
        return self._fitting(topics, than_s)

    def _fitting(self, topics: Collection[str], than_s: float) -> Mapping[str, TopicDescription] | None:
        asked_s, known = self._known
        if asked_s <= than_s or not known.keys() >= set(topics):
            return None
        return {name: found for name in topics if (found := known[name]) is not None}
