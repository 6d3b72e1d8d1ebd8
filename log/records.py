"""Records as the client sees them: single objects, and chunks of columns. Data only.

A chunk is a run of records of one partition as columns over one byte buffer; it is what a poll returns and what the
stream runtime works on (architecture, D3 and D5). numpy is loaded when the first chunk is made, so that clients that see no
records stay light.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from logflume.log.batch.records import Headers as Headers
from logflume.log.batch.records import header_list_bytes, read_header_list, skip_headers
from logflume.log.errors import DecodeError, InvalidInput
from logflume.log.extras import require

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    I64 = npt.NDArray[np.int64]
    I32 = npt.NDArray[np.int32]
else:
    I64 = I32 = Any


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class Record(msgspec.Struct, frozen=True, gc=False):
    """One record. `timestamp_ms` is milliseconds since the epoch; key and value None are null.

    A msgspec struct, for making one costs a sixth of a frozen dataclass.
    """

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
        Numpy arrays; memoryviews of the same types in what a consumer reads where numpy is not installed.
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
        return self.objects(self.key_starts, self.key_sizes)

    def values(self) -> list[bytes | None]:
        """Return the values: N bytes objects, None for null."""
        return self.objects(self.value_starts, self.value_sizes)

    def objects(self, starts: I64, sizes: I32) -> list[bytes | None]:
        """Return spans of the buffer: N bytes objects, None where the size is negative."""
        from logflume.log.batch.spans import span_objects

        return span_objects(self.buffer, starts, sizes)

    def headers(self) -> list[Headers]:
        """Return the headers of each record: N tuples, empty for most.

        Raises:
            DecodeError: the bytes are not headers.
        """
        counts = self.header_counts.tolist()
        if not any(counts):
            return [()] * len(counts)
        data = self.buffer.tobytes()
        return [
            decode_headers(data, start, count) if count else ()
            for start, count in zip(self.header_starts.tolist(), counts, strict=True)
        ]

    def header_bytes(self, row: int) -> int:
        """Return how many bytes the headers of a record take, without their count."""
        start, count = int(self.header_starts[row]), int(self.header_counts[row])
        return skip_headers(self.buffer.data, start, count, len(self.buffer)) - start

    def records(self) -> Iterator[Record]:
        """Yield the records as objects, in offset order."""
        return map(
            Record,
            repeat(self.topic),
            repeat(self.partition),
            self.offsets.tolist(),
            self.timestamps_ms.tolist(),
            self.keys(),
            self.values(),
            self.headers(),
        )

    def slice(self, start: int, stop: int) -> Chunk:
        """Return records start..stop as a chunk over the same buffer; `next_offset` is that of the next record left out."""
        start, stop, _ = slice(start, stop).indices(len(self))
        return Chunk(
            self.topic,
            self.partition,
            self.buffer,
            self.offsets[start:stop],
            self.timestamps_ms[start:stop],
            self.key_starts[start:stop],
            self.key_sizes[start:stop],
            self.value_starts[start:stop],
            self.value_sizes[start:stop],
            self.header_starts[start:stop],
            self.header_counts[start:stop],
            int(self.offsets[stop]) if stop < len(self) else self.next_offset,
        )

    def take(self, rows: I64) -> Chunk:
        """Return the given rows, in that order, as a chunk over the same buffer with the same `next_offset`."""
        return Chunk(
            self.topic,
            self.partition,
            self.buffer,
            self.offsets[rows],
            self.timestamps_ms[rows],
            self.key_starts[rows],
            self.key_sizes[rows],
            self.value_starts[rows],
            self.value_sizes[rows],
            self.header_starts[rows],
            self.header_counts[rows],
            self.next_offset,
        )

    @classmethod
    def concat(cls, chunks: Sequence[Chunk]) -> Chunk:
        """Return the records of at least one chunk in order, over one new buffer, to be produced: offsets are 0..N-1.

        Buffers are copied whole, so what lies between the spans is copied too.
        """
        import numpy as np

        if len(chunks) == 1:
            return chunks[0]
        one = cls.joined(chunks)
        one.offsets, one.next_offset = np.arange(len(one), dtype=np.int64), len(one)
        return one

    @classmethod
    def joined(cls, chunks: Sequence[Chunk]) -> Chunk:
        """Return at least one chunk of a partition, each going on where the one before ended, as one; copies as `concat`."""
        require("numpy", extra="arrow", what="a chunk to be written")
        import numpy as np

        first = chunks[0]
        if len(chunks) == 1:
            return first
        shifts = np.cumsum([0] + [len(each.buffer) for each in chunks[:-1]])

        def joined(name: str, *, shifted: bool = False) -> Any:
            parts = [getattr(each, name) for each in chunks]
            return np.concatenate([part + shift for part, shift in zip(parts, shifts, strict=True)] if shifted else parts)

        return cls(
            first.topic,
            first.partition,
            joined("buffer"),
            joined("offsets"),
            joined("timestamps_ms"),
            joined("key_starts", shifted=True),
            joined("key_sizes"),
            joined("value_starts", shifted=True),
            joined("value_sizes"),
            joined("header_starts", shifted=True),
            joined("header_counts"),
            chunks[-1].next_offset,
        )

    def to_arrow(self) -> Any:
        """Return a pyarrow.RecordBatch: offset, timestamp_ms, key (binary), value (binary). Needs the `arrow` extra."""
        import pyarrow as pa

        key = _to_arrow_binary(self.buffer, self.key_starts, self.key_sizes)
        value = _to_arrow_binary(self.buffer, self.value_starts, self.value_sizes)
        columns = [pa.array(self.offsets), pa.array(self.timestamps_ms), key, value]
        return pa.RecordBatch.from_arrays(columns, names=["offset", "timestamp_ms", "key", "value"])

    @classmethod
    def from_arrow(cls, topic: str, batch: Any, *, partition: int = -1) -> Chunk:
        """Make a chunk to be produced from a pyarrow.RecordBatch (or Table) with the columns of `to_arrow`.

        `value` is needed; `key` may be missing (null keys), `timestamp_ms` too (the current time); other columns are ignored.
        Keys and values are binary or string columns.

        Raises:
            InvalidInput: no `value` column, or a column of another type.
        """
        require("numpy", extra="arrow", what="a chunk to be written")
        import time

        import numpy as np
        import pyarrow as pa

        count, names = batch.num_rows, batch.schema.names
        if "value" not in names:
            raise InvalidInput(f"expected a column 'value' of binary or string, found the columns {names}")
        keys = _from_arrow_binary("key", batch.column("key")) if "key" in names else None
        value_data, value_starts, value_sizes = _from_arrow_binary("value", batch.column("value"))
        key_data, key_starts, key_sizes = keys or (value_data[:0], np.zeros(count, np.int64), np.full(count, -1, np.int32))
        if "timestamp_ms" in names:
            if batch.column("timestamp_ms").null_count:
                raise InvalidInput("column 'timestamp_ms' has nulls; leave the column out for the current time")
            timestamps_ms = np.asarray(batch.column("timestamp_ms").cast(pa.int64()).to_numpy(zero_copy_only=False), np.int64)
        else:
            timestamps_ms = np.full(count, time.time_ns() // 1_000_000, np.int64)
        return cls(
            topic,
            partition,
            np.concatenate([key_data, value_data]),
            np.arange(count, dtype=np.int64),
            timestamps_ms,
            key_starts,
            key_sizes,
            value_starts + len(key_data),
            value_sizes,
            np.zeros(count, np.int64),
            np.zeros(count, np.int32),
            count,
        )

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
        """Make a chunk to be produced (offsets 0..N-1) from N keys, values and timestamps.

        Raises:
            InvalidInput: the columns differ in length.
        """
        require("numpy", extra="arrow", what="a chunk to be written")
        import numpy as np

        count = len(values)
        if not (len(keys) == len(timestamps_ms) == count) or (headers is not None and len(headers) != count):
            raise InvalidInput(f"expected {count} keys, timestamps and headers for {count} values, found other numbers")
        key_starts, key_sizes, key_end = _layout(keys, 0)
        value_starts, value_sizes, value_end = _layout(values, key_end)
        blocks = [encode_headers(each) for each in headers] if headers is not None else []
        header_counts = np.fromiter(map(len, headers), np.int32, count) if headers is not None else np.zeros(count, np.int32)
        header_starts = np.full(count, value_end, np.int64)
        if blocks:
            sizes = np.fromiter(map(len, blocks), np.int64, count)
            header_starts[1:] += np.cumsum(sizes)[:-1]
        data = b"".join([*filter(None, keys), *filter(None, values), *blocks])
        return cls(
            topic,
            partition,
            np.frombuffer(data, np.uint8),
            np.arange(count, dtype=np.int64),
            np.asarray(timestamps_ms, np.int64),
            key_starts,
            key_sizes,
            value_starts,
            value_sizes,
            header_starts,
            header_counts,
            count,
        )


def encode_headers(headers: Headers) -> bytes:
    """Return headers in Kafka's record encoding, without their count."""
    return bytes(header_list_bytes(headers)) if headers else b""


def decode_headers(data: bytes, position: int, count: int) -> Headers:
    """Return `count` headers from `position` on; names that are not UTF-8 are kept by surrogate escapes.

    Raises:
        DecodeError: a length that cannot be.
    """
    try:
        return read_header_list(data, position, count, len(data))[0]
    except IndexError:
        raise DecodeError(f"malformed record headers at byte {position}: they end early") from None


def _layout(items: Sequence[bytes | None], start: int) -> tuple[I64, I32, int]:
    """Return the starts and sizes (-1 = null) of items laid out one after the other from `start`, and their end."""
    import numpy as np

    try:
        sizes = np.fromiter(map(len, items), np.int32, len(items))  # type: ignore[arg-type]
    except TypeError:  # of None
        sizes = np.fromiter([-1 if item is None else len(item) for item in items], np.int32, len(items))
    lengths = np.maximum(sizes, 0).astype(np.int64)
    ends = np.cumsum(lengths) + start
    return ends - lengths, sizes, int(ends[-1]) if len(items) else start


def _from_arrow_binary(name: str, column: Any) -> tuple[npt.NDArray[np.uint8], I64, I32]:
    """Return the bytes of a binary or string column, and the start and size (-1 = null) of each item."""
    import numpy as np
    import pyarrow as pa

    try:
        array = column.cast(pa.large_binary())
    except pa.ArrowInvalid as error:
        raise InvalidInput(f"column {name!r}: expected binary or string, found {column.type}: {error}") from None
    except pa.ArrowNotImplementedError:
        raise InvalidInput(f"column {name!r}: expected binary or string, found {column.type}") from None
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    _, offsets, data = array.buffers()
    count = len(array)
    if count == 0:
        return np.zeros(0, np.uint8), np.zeros(0, np.int64), np.zeros(0, np.int32)
    bounds = np.frombuffer(offsets, np.int64)[array.offset : array.offset + count + 1]
    sizes = np.diff(bounds).astype(np.int32)
    if array.null_count:
        sizes[array.is_null().to_numpy(zero_copy_only=False)] = -1
    content = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return content[bounds[0] : bounds[-1]], bounds[:-1] - bounds[0], sizes


def _to_arrow_binary(buffer: npt.NDArray[np.uint8], starts: I64, sizes: I32) -> Any:
    """Return spans as a pyarrow binary array, copied once in C++.

    The buffer is read as one binary array of 2N+1 pieces, in turn a gap and a span, of which every second one is taken.
    """
    import numpy as np
    import pyarrow as pa

    from logflume.log.batch.spans import span_objects

    count = len(starts)
    is_null = sizes < 0
    stops = starts + np.maximum(sizes, 0)
    bounds = np.zeros(2 * count + 1, np.int64)
    bounds[1::2], bounds[2::2] = starts, stops
    if is_null.any():
        last = np.maximum.accumulate(np.where(is_null, 0, stops))
        bounds[1::2][is_null] = bounds[2::2][is_null] = last[is_null]
    if count == 0 or bounds[-1] > 2**31 - 1 or np.any(bounds[1:] < bounds[:-1]):
        return pa.array(span_objects(buffer, starts, sizes), pa.binary())
    pieces = pa.Array.from_buffers(
        pa.binary(), 2 * count, [None, pa.py_buffer(bounds.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(buffer))]
    )
    wanted = np.arange(1, 2 * count, 2, dtype=np.int32)
    return pieces.take(pa.array(wanted, mask=is_null if is_null.any() else None))
