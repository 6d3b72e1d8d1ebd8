"""Records as the client sees them: single objects, and chunks of columns. Data only.

A chunk is a run of records of one partition as columns over one byte buffer; it is what a poll returns and what the
stream runtime works on (architecture, D3 and D5). numpy is imported here, so the broker must not import this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Headers = tuple[tuple[str, bytes | None], ...]
I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Record:
    """One record. `timestamp_ms` is milliseconds since the epoch; key and value None are null."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


@dataclass(slots=True, eq=False)
class Chunk:
    """N records of one partition as columns over one buffer, in offset order, control and aborted records left out.

    Attributes:
        buffer: uint8[M]; keys, values and headers are spans of it. Never written after the chunk is made.
        offsets, timestamps_ms: int64[N].
        key_starts, value_starts: int64[N], positions in `buffer`; key_sizes, value_sizes: int32[N], -1 = null.
        header_starts: int64[N], position of the first header (Kafka record encoding, after the count);
            header_counts: int32[N].
        next_offset: the position to go on from. May be beyond offsets[-1]+1 (markers, aborted or compacted records), and
            a chunk may hold no record at all but still move the position.
    """

    topic: str
    partition: int
    buffer: npt.NDArray[np.uint8]
    offsets: I64
    timestamps_ms: I64
    key_starts: I64
    key_sizes: I32
    value_starts: I64
    value_sizes: I32
    header_starts: I64
    header_counts: I32
    next_offset: int

    def __len__(self) -> int:
        return len(self.offsets)

    def keys(self) -> list[bytes | None]:
        """Return the keys: N bytes objects, None for null."""
        return _spans(self.buffer, self.key_starts, self.key_sizes)

    def values(self) -> list[bytes | None]:
        """Return the values: N bytes objects, None for null."""
        return _spans(self.buffer, self.value_starts, self.value_sizes)

    def headers(self) -> list[Headers]:
        """Return the headers of each record: N tuples, empty for most."""
        raise NotImplementedError

    def records(self) -> Iterator[Record]:
        """Yield the records as objects, in offset order."""
        for offset, timestamp_ms, key, value, headers in zip(
            self.offsets.tolist(), self.timestamps_ms.tolist(), self.keys(), self.values(), self.headers(), strict=True
        ):
            yield Record(self.topic, self.partition, offset, timestamp_ms, key, value, headers)

    def slice(self, start: int, stop: int) -> Chunk:
        """Return records start..stop as a chunk over the same buffer; `next_offset` is that of the next record left out."""
        raise NotImplementedError

    def to_arrow(self) -> Any:
        """Return a pyarrow.RecordBatch: offset, timestamp_ms, key (binary), value (binary). Needs the `arrow` extra."""
        raise NotImplementedError

    @classmethod
    def from_columns(
        cls,
        topic: str,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps_ms: Sequence[int] | I64,
        *,
        partition: int = -1,
        headers: Sequence[Headers] | None = None,
    ) -> Chunk:
        """Make a chunk to be produced (offsets 0..N-1) from N keys, values and timestamps."""
        raise NotImplementedError


def _spans(buffer: npt.NDArray[np.uint8], starts: I64, sizes: I32) -> list[bytes | None]:
    data = buffer.tobytes()
    return [
        data[start : start + size] if size >= 0 else None for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)
    ]
