"""Partitions that cannot be used because of their disk or their files: why, and when that is tried again. Pure.

An offline partition could not be opened: it answers KAFKA_STORAGE_ERROR, which clients retry, while all others are served. A
failed one takes no appends since a write or fsync failed. Both are opened anew with growing pauses, for a disk may be mended, a
limit lifted or a directory restored while the broker runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

FIRST_PAUSE_MS, MAX_PAUSE_MS = 5_000, 600_000

Key = tuple[str, int]


@dataclass(slots=True)
class Trouble:
    """What is wrong with a partition, when it is tried again, and the pause before that."""

    cause: str
    next_try_ms: int
    pause_ms: int = FIRST_PAUSE_MS


@dataclass(slots=True)
class Troubles:
    """All partitions in trouble, by (topic, partition)."""

    by_partition: dict[Key, Trouble] = field(default_factory=dict)

    def note(self, key: Key, cause: str, now_ms: int) -> bool:
        """Take in that a partition cannot be used, or still cannot; return whether this cause is news."""
        known = self.by_partition.get(key)
        if known is None:
            self.by_partition[key] = Trouble(cause, now_ms + FIRST_PAUSE_MS)
            return True
        is_news, known.cause = known.cause != cause, cause
        known.pause_ms = min(known.pause_ms * 2, MAX_PAUSE_MS)
        known.next_try_ms = now_ms + known.pause_ms
        return is_news

    def due(self, now_ms: int) -> list[Key]:
        """Return the partitions to be tried again now."""
        return [key for key, trouble in self.by_partition.items() if trouble.next_try_ms <= now_ms]

    def forget(self, key: Key) -> None:
        """The partition can be used again, or is gone."""
        self.by_partition.pop(key, None)
