"""Records of a changelog that wait to be written together: one large sorted file costs half of what many small batches do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from logflume.log.records import Chunk

_COLUMNS_BYTES = 32
"""What is kept of a record beside its bytes: its offset, and where key and value lie."""


def held_bytes(chunk: Chunk) -> int:
    """Return what keys and values of a chunk take in memory."""
    return len(chunk.buffer) + len(chunk) * _COLUMNS_BYTES


class Gathered:
    """Chunks that follow each other in one partition, from `next_offset` on; without times, headers and null keys."""

    __slots__ = ("_chunks", "next_offset", "size_bytes")

    def __init__(self, next_offset: int) -> None:
        self._chunks: list[Chunk] = []
        self.next_offset = next_offset
        self.size_bytes = 0

    def add(self, chunk: Chunk) -> None:
        """Add what of a chunk is not there yet."""
        start = int(chunk.offsets.searchsorted(self.next_offset))
        self.next_offset = max(self.next_offset, chunk.next_offset)
        part = with_keys(chunk.slice(start, len(chunk)))
        if len(part):
            self._chunks.append(_narrowed(part))
            self.size_bytes += held_bytes(self._chunks[-1])

    def take(self) -> Chunk | None:
        """Return all there is as one chunk, None without any, and begin anew after it."""
        chunks, self._chunks, self.size_bytes = self._chunks, [], 0
        if not chunks:
            return None
        chunk = Chunk.joined(chunks)
        chunk.next_offset = self.next_offset
        return chunk


def gather(chunks: Iterable[Chunk], size_bytes: int) -> Iterator[Chunk]:
    """Yield the records of chunks that follow each other, of that size together."""
    waiting = Gathered(0)
    for chunk in chunks:
        waiting.add(chunk)
        if waiting.size_bytes >= size_bytes and (whole := waiting.take()) is not None:
            yield whole
    if (rest := waiting.take()) is not None:
        yield rest


def with_keys(chunk: Chunk) -> Chunk:
    """Return the records whose keys are not null."""
    has_key = chunk.key_sizes >= 0
    return chunk if has_key.all() else chunk.take(has_key.nonzero()[0])


def _narrowed(chunk: Chunk) -> Chunk:
    """Return the same records over that part of the buffer only in which their keys and values are."""
    low = int(min(chunk.key_starts.min(), chunk.value_starts.min()))
    high = int(max((chunk.key_starts + chunk.key_sizes).max(), (chunk.value_starts + chunk.value_sizes).max()))
    narrowed = chunk.slice(0, len(chunk))
    narrowed.buffer = chunk.buffer[low:high]
    narrowed.key_starts, narrowed.value_starts = chunk.key_starts - low, chunk.value_starts - low
    for name in ("timestamps_ms", "header_starts", "header_counts"):
        setattr(narrowed, name, np.broadcast_to(np.zeros(1, getattr(chunk, name).dtype), len(chunk)))  # takes no memory
    return narrowed
