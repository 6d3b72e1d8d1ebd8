"""Topics that records name themselves: asked for when first met, and remembered within bounds."""

from __future__ import annotations

from collections.abc import Callable

from logflume.log import LogflumeError
from logflume.log.interfaces import Admin

_TOPICS_MAX = 1000
"""How many a process writes: each has batches of its own under way."""
_MISSING_MAX = 10_000
_ASK_AGAIN_S = 1.0


class ComputedTopics:
    """The partitions of topics that exist. One that does not is asked for again after a second, for it may be made."""

    def __init__(self, admin: Admin, *, monotonic_s: Callable[[], float]) -> None:
        self._admin, self._monotonic_s = admin, monotonic_s
        self._partitions: dict[str, int] = {}
        self._missing: dict[str, tuple[str, float]] = {}

    def find(self, topic: str) -> int | str:
        """Return the number of partitions of a topic, or why it cannot be written."""
        found = self._partitions.get(topic)
        if found is not None:
            return found
        trouble, asked_s = self._missing.get(topic, ("", 0.0))
        if trouble and self._monotonic_s() - asked_s < _ASK_AGAIN_S:
            return trouble
        if len(self._partitions) >= _TOPICS_MAX:
            return f"records have named {_TOPICS_MAX} topics already, more than one process writes: topic {topic!r}"
        try:
            partitions = self._admin.describe_topics([topic])[topic].partitions
        except LogflumeError as error:
            if error.is_retriable:
                raise
            if len(self._missing) >= _MISSING_MAX:
                self._missing.clear()
            trouble = f"{error}; create it, or list it in to(..., topics=[...])"
            self._missing[topic] = trouble, self._monotonic_s()
            return trouble
        self._missing.pop(topic, None)
        self._partitions[topic] = partitions
        return partitions
