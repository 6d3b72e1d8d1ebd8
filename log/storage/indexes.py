"""The sparse indexes of one segment, in memory, and their file formats (Kafka's). Pure.

Both are complete in memory while the segment is active; the files are written when it is sealed or checkpointed, with their
checksum kept in the checkpoint, and rebuilt from the segment if that does not match.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right

OFFSET_ENTRY = struct.Struct(">ii")
TIME_ENTRY = struct.Struct(">qi")


class OffsetIndex:
    """Entries (last offset of a batch, relative to the segment's base; position of that batch), ascending in both."""

    __slots__ = ("offsets", "positions")

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.positions: list[int] = []

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, relative_offset: int, position: int) -> None:
        self.offsets.append(relative_offset)
        self.positions.append(position)

    def lookup(self, relative_offset: int) -> int:
        """Return a batch position from which a scan forward finds the batch that holds the offset; 0 without an entry."""
        i = bisect_right(self.offsets, relative_offset)
        return self.positions[i - 1] if i else 0

    def boundary(self, position: int) -> int:
        """Return the largest indexed batch position <= `position`; 0 without an entry."""
        i = bisect_right(self.positions, position)
        return self.positions[i - 1] if i else 0

    def cut(self, position: int) -> None:
        """Drop the entries of batches at or beyond `position`."""
        i = bisect_left(self.positions, position)
        del self.offsets[i:], self.positions[i:]

    def to_bytes(self) -> bytes:
        return b"".join(map(OFFSET_ENTRY.pack, self.offsets, self.positions))

    @classmethod
    def from_bytes(cls, data: bytes) -> OffsetIndex:
        index = cls()
        for relative_offset, position in OFFSET_ENTRY.iter_unpack(data):
            index.add(relative_offset, position)
        return index


class TimeIndex:
    """Entries (largest timestamp so far in ms, relative last offset of the batch that has it), ascending in both."""

    __slots__ = ("offsets", "timestamps_ms")

    def __init__(self) -> None:
        self.timestamps_ms: list[int] = []
        self.offsets: list[int] = []

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, timestamp_ms: int, relative_offset: int) -> None:
        """Add an entry, unless the timestamp is not larger than the last one's."""
        if not self.timestamps_ms or timestamp_ms > self.timestamps_ms[-1]:
            self.timestamps_ms.append(timestamp_ms)
            self.offsets.append(relative_offset)

    def lookup(self, timestamp_ms: int) -> int:
        """Return a relative offset before which every record is older than `timestamp_ms`; 0 without an entry."""
        i = bisect_left(self.timestamps_ms, timestamp_ms)
        return self.offsets[i - 1] if i else 0

    def cut(self, relative_offset: int) -> None:
        """Drop the entries of offsets at or beyond `relative_offset`."""
        i = bisect_left(self.offsets, relative_offset)
        del self.timestamps_ms[i:], self.offsets[i:]

    def to_bytes(self) -> bytes:
        return b"".join(map(TIME_ENTRY.pack, self.timestamps_ms, self.offsets))

    @classmethod
    def from_bytes(cls, data: bytes) -> TimeIndex:
        index = cls()
        for timestamp_ms, relative_offset in TIME_ENTRY.iter_unpack(data):
            index.timestamps_ms.append(timestamp_ms)
            index.offsets.append(relative_offset)
        return index
