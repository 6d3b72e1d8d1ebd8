"""The sparse indexes of one segment: Kafka's files, kept in memory as the very bytes of the file. Pure.

Both are complete in memory while the segment is active; the files are written when it is sealed or checkpointed, with their
checksum kept in the checkpoint, and rebuilt from the segment if that does not match.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")


class OffsetIndex:
    """Entries (last offset of a batch, relative to the segment's base; position of that batch), ascending in both."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes = b"") -> None:
        """Take the content of a file whose checksum was compared."""
        self._data = bytearray(data)

    def __len__(self) -> int:
        return len(self._data) // _OFFSET_ENTRY.size

    def _offset(self, i: int) -> int:
        offset: int = _OFFSET_ENTRY.unpack_from(self._data, i * _OFFSET_ENTRY.size)[0]
        return offset

    def _position(self, i: int) -> int:
        position: int = _OFFSET_ENTRY.unpack_from(self._data, i * _OFFSET_ENTRY.size)[1]
        return position

    @property
    def last_position(self) -> int:
        """Position of the last batch that is indexed; 0 without an entry."""
        return self._position(len(self) - 1) if self._data else 0

    def add(self, relative_offset: int, position: int) -> None:
        self._data += _OFFSET_ENTRY.pack(relative_offset, position)

    def lookup(self, relative_offset: int) -> int:
        """Return a batch position from which a scan forward finds the batch that holds the offset; 0 without an entry."""
        i = bisect_right(range(len(self)), relative_offset, key=self._offset)
        return self._position(i - 1) if i else 0

    def boundary(self, position: int) -> int:
        """Return the largest indexed batch position <= `position`; 0 without an entry."""
        i = bisect_right(range(len(self)), position, key=self._position)
        return self._position(i - 1) if i else 0

    def entries_from(self, position: int) -> Iterator[tuple[int, int]]:
        """Yield (relative last offset, position) of each entry from `position` on."""
        for i in range(bisect_left(range(len(self)), position, key=self._position), len(self)):
            yield self._offset(i), self._position(i)

    def cut(self, position: int) -> None:
        """Drop the entries of batches at or beyond `position`."""
        i = bisect_left(range(len(self)), position, key=self._position)
        del self._data[i * _OFFSET_ENTRY.size :]

    def to_bytes(self) -> bytes:
        """Return the content of the file."""
        return bytes(self._data)


class TimeIndex:
    """Entries (largest timestamp so far in ms, relative last offset of the batch that has it), ascending in both."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes = b"") -> None:
        """Take the content of a file whose checksum was compared."""
        self._data = bytearray(data)

    def __len__(self) -> int:
        return len(self._data) // _TIME_ENTRY.size

    def _entry(self, i: int) -> tuple[int, int]:
        timestamp_ms, offset = _TIME_ENTRY.unpack_from(self._data, i * _TIME_ENTRY.size)
        return timestamp_ms, offset

    @property
    def last(self) -> tuple[int, int]:
        """The last entry, (-1, -1) without one."""
        return self._entry(len(self) - 1) if self._data else (-1, -1)

    def add(self, timestamp_ms: int, relative_offset: int) -> None:
        """Add an entry, unless the timestamp is not larger than the last one's."""
        if not self._data or timestamp_ms > self.last[0]:
            self._data += _TIME_ENTRY.pack(timestamp_ms, relative_offset)

    def lookup(self, timestamp_ms: int) -> int:
        """Return a relative offset before which every record is older than `timestamp_ms`; 0 without an entry."""
        i = bisect_left(range(len(self)), timestamp_ms, key=lambda i: self._entry(i)[0])
        return self._entry(i - 1)[1] if i else 0

    def cut(self, relative_offset: int) -> None:
        """Drop the entries of offsets at or beyond `relative_offset`."""
        i = bisect_left(range(len(self)), relative_offset, key=lambda i: self._entry(i)[1])
        del self._data[i * _TIME_ENTRY.size :]

    def to_bytes(self) -> bytes:
        """Return the content of the file."""
        return bytes(self._data)
