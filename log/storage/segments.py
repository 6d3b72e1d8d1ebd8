"""The segments of one log, in order: which one holds an offset, which is written to, which give place to others."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import overload

from .segment import Segment


class Segments(Sequence[Segment]):
    """The segments of a log, at least one.

    Invariant: `_bases` are the base offsets of `_all`, ascending; only the last segment is written to.
    """

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._all: list[Segment] = []
        self.put(segments)

    def put(self, segments: Sequence[Segment]) -> None:
        """Let these be all segments."""
        self._all = list(segments)
        self._bases = [segment.base_offset for segment in self._all]
        self.active = self._all[-1]

    def add(self, segment: Segment) -> None:
        """Let a new segment be the one that is written to."""
        self._all.append(segment)
        self._bases.append(segment.base_offset)
        self.active = segment

    @overload
    def __getitem__(self, key: int) -> Segment: ...
    @overload
    def __getitem__(self, key: slice) -> list[Segment]: ...
    def __getitem__(self, key: int | slice) -> Segment | list[Segment]:
        return self._all[key]

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._all)

    @property
    def sealed(self) -> list[Segment]:
        """Those that are not written to any more."""
        return self._all[:-1]

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments, without indexes."""
        return sum(segment.size_bytes for segment in self._all)

    def index_at(self, offset: int) -> int:
        """Return the index of the segment that holds `offset`, or would."""
        return max(bisect_right(self._bases, offset) - 1, 0)

    def from_offset(self, offset: int) -> list[Segment]:
        """Return the segment that holds `offset`, or would, and those after it."""
        return self._all[self.index_at(offset) :]

    def unload_sealed(self) -> None:
        """Give up memory and descriptors of the sealed segments; what is read again is loaded again."""
        for segment in self.sealed:
            segment.unload()
