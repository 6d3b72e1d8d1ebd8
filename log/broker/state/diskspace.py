"""Free space where the data is: records are refused before the disk is full, and taken again when there is room.

What is kept free (`logflume.disk.min.free.bytes`) is for the broker itself: offset commits, transaction markers, checkpoints and
the deletions that make room. Pure: the free bytes are an argument.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from logflume.log.protocol import ErrorCode, KafkaError

CHECK_PART = 4
"""Free space is asked for again when a part of what was left has been written, so that a fast producer finds no gap."""
_log = logging.getLogger("logflume.broker")


def default_min_free_bytes(total_bytes: int) -> int:
    """Return what is kept free where nothing is set: a twentieth of the disk, at most 256 MiB.

    >>> default_min_free_bytes(64 << 20)
    3355443
    """
    return min(256 << 20, total_bytes // 20)


class DiskSpace:
    """Says whether there is room for records.

    Invariant: between two checks no more is let in than a part of the room that the last one found.
    """

    __slots__ = ("_free_bytes", "_min_free_bytes", "_unchecked_bytes", "free_bytes", "is_low")

    def __init__(self, free_bytes: Callable[[], int], min_free_bytes: Callable[[], int]) -> None:
        self._free_bytes, self._min_free_bytes = free_bytes, min_free_bytes
        self.is_low = False
        self.free_bytes = 0
        """As the last check found it."""
        self._unchecked_bytes = 0
        self.check()

    def check(self) -> None:
        """Look at the disk; called at intervals, as others write to it too."""
        self.free_bytes, least = self._free_bytes(), self._min_free_bytes()
        was_low, self.is_low = self.is_low, self.free_bytes < least
        self._unchecked_bytes = (self.free_bytes - least) // CHECK_PART
        if self.is_low and not was_low:
            _log.error(
                "records are refused: %d bytes of disk are free, logflume.disk.min.free.bytes keeps %d",
                self.free_bytes,
                least,
            )
        elif was_low and not self.is_low:
            _log.warning("records are taken again: %d bytes of disk are free", self.free_bytes)

    def require_room(self, size_bytes: int) -> None:
        """Count bytes about to be written. Raises KafkaError KAFKA_STORAGE_ERROR, which clients retry, if there is no room."""
        self._unchecked_bytes -= size_bytes
        if self._unchecked_bytes < 0:
            self.check()
        if self.is_low:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"the disk is almost full: {self.free_bytes} bytes are free, {self._min_free_bytes()} are kept free "
                "(logflume.disk.min.free.bytes); make room, shorten the retention or lower that setting",
            )
