"""Where an entry lies on disk.

A plain store's entry lies at its key. A window store is cut into segments of time, as in Kafka Streams: the segment's start comes
before the key, so that what has expired goes in one range delete, and a key of known window still needs no search. (pure)
"""

from __future__ import annotations

from dataclasses import dataclass

from logflume.streams.graph import TimeWindow

WINDOW_START_BYTES = 8
_MIN_SEGMENT_MS = 60_000


@dataclass(frozen=True, slots=True)
class SegmentLayout:
    """The disk layout of a window store. Keys end in the window start: 8 bytes, big-endian, never negative."""

    window: TimeWindow

    @property
    def retention_ms(self) -> int:
        return max(self.window.retention_ms, self.window.size_ms + self.window.grace_ms)

    @property
    def segment_ms(self) -> int:
        return max(self.retention_ms // 2, _MIN_SEGMENT_MS)

    def segment(self, key: bytes) -> int:
        """Return the start of the segment of an entry's key, in ms."""
        start = window_start(key)
        return start - start % self.segment_ms

    def oldest_alive(self, stream_time_ms: int) -> int:
        """Return the smallest window start that has not expired.

        A window lives while its start > the newest window's start - retention. That is at least as long as records for it are
        accepted (start + size > stream time - grace), because the newest window starts at or before stream time.
        """
        newest = stream_time_ms - stream_time_ms % self.window.advance_ms
        return max(0, newest - self.retention_ms + 1)

    def oldest_segment(self, stream_time_ms: int) -> int:
        """Return the start of the oldest segment with a living window."""
        alive = self.oldest_alive(stream_time_ms)
        return alive - alive % self.segment_ms


def window_start(key: bytes) -> int:
    """Return the window start in ms at the end of an entry's key.

    >>> window_start(b"user" + (5000).to_bytes(8, "big"))
    5000
    """
    return int.from_bytes(key[-WINDOW_START_BYTES:], "big")
