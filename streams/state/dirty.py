"""Changed entries of one store, encoded as they go to disk and changelog."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np

from logflume.log.records import I64, Chunk


class Dirty(Protocol):
    """Changed entries in the order of their first change: aligned keys, values (None = deleted) and timestamps in ms."""

    @property
    def keys(self) -> list[bytes]: ...

    @property
    def values(self) -> list[bytes | None]: ...

    @property
    def timestamps_ms(self) -> list[int]: ...

    def __len__(self) -> int: ...

    def deleted(self) -> list[bytes]:
        """Return the keys of deleted entries."""
        ...

    def chunk(self, topic: str) -> Chunk:
        """Return the entries as records of a topic."""
        ...


@dataclass(frozen=True, slots=True)
class DirtyEntries:
    """Implements `Dirty` with objects."""

    keys: list[bytes]
    values: list[bytes | None]
    timestamps_ms: list[int]

    def __len__(self) -> int:
        return len(self.keys)

    def deleted(self) -> list[bytes]:
        if None not in self.values:
            return []
        return [key for key, value in zip(self.keys, self.values, strict=True) if value is None]

    def chunk(self, topic: str) -> Chunk:
        return Chunk.from_columns(topic, self.keys, self.values, self.timestamps_ms)


class DirtyColumns:
    """Implements `Dirty` with spans of one buffer."""

    __slots__ = ("_chunk", "_head", "_ranks")

    def __init__(self, chunk: Chunk, head: int, ranks: I64) -> None:
        """`head`: bytes in front of each key that make it the key on disk. `ranks`: first bytes of the keys as numbers."""
        self._chunk = chunk
        self._head = head
        self._ranks = ranks

    @property
    def has_deleted(self) -> bool:
        return bool((self._chunk.value_sizes < 0).any())

    def __len__(self) -> int:
        return len(self._chunk)

    @property
    def keys(self) -> list[bytes]:
        return cast(list[bytes], self._chunk.keys())

    @property
    def values(self) -> list[bytes | None]:
        return self._chunk.values()

    @property
    def timestamps_ms(self) -> list[int]:
        times: list[int] = self._chunk.timestamps_ms.tolist()
        return times

    def deleted(self) -> list[bytes]:
        if not self.has_deleted:
            return []
        return cast(list[bytes], self._chunk.take(np.flatnonzero(self._chunk.value_sizes < 0)).keys())

    def chunk(self, topic: str) -> Chunk:
        """Return the entries as records of a topic."""
        chunk = self._chunk.slice(0, len(self._chunk))
        chunk.topic = topic
        return chunk

    def on_disk(self) -> tuple[list[bytes], list[bytes | None]]:
        """Return aligned keys as they are on disk and values (None = deleted), about in order of keys.

        RocksDB takes those in half the time.
        """
        chunk = self._chunk.take(np.argsort(self._ranks))
        chunk.key_starts, chunk.key_sizes = chunk.key_starts - self._head, chunk.key_sizes + self._head
        return cast(list[bytes], chunk.keys()), chunk.values()
