"""Batches to columns and back: the client's hot path. Imports numpy (and numba once it pays), so the broker must not import it.

`decode_fetch` makes one `Chunk` of a whole fetch response (many batches); `encode_rows` makes one batch of some rows of a
chunk; `encode_objects` is `records.encode_batch` for many records. The loops run in numba kernels (`kernels.py`) when they
are loaded, else in plain Python with the same result (a property test).
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from logflume.log.errors import InvalidInput
from logflume.log.records import I32, I64, Chunk, Headers

from .compression import MAX_DECOMPRESSED_BYTES, Codec, compress
from .errors import BatchTooLarge, CorruptBatch
from .header import (
    HEADER_BYTES,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    check_crc,
    iter_batches,
    pack_header,
)
from .isolation import AbortedTransactions, visible_batches
from .murmur2 import key_partition
from .records import decode_spans, encode_batch, records_section
from .tiers import kernel_tier
from .walk import locate

U8 = npt.NDArray[np.uint8]

_RECORD_OVERHEAD_BYTES = 36
"""Most a record adds to its key, value and headers: seven varints (two of 10 bytes at most, others of 5) and one byte."""


def load_kernels() -> bool:
    """Load the compiled kernels now, blocking (0.5 to 1 s; compiling the first time takes longer); False without numba.

    Without this call they are loaded in the background once some ten thousand records have been coded.
    """
    return kernel_tier().load()


class _Section(NamedTuple):
    """A run of uncompressed records inside a chunk's buffer, with the header of its batch."""

    start: int
    end: int
    header: BatchHeader


def decode_fetch(
    topic: str,
    partition: int,
    buffer: Buffer,
    *,
    from_offset: int,
    aborted: AbortedTransactions = (),
    has_crc_check: bool = True,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> Chunk:
    """Decode the batches of a fetch response into one chunk of the records with offset >= `from_offset`.

    A batch cut short at the end of the buffer is left out. Control batches and the transactions in `aborted`
    ((producer id, first offset) pairs) are left out but move `next_offset`. When all batches are uncompressed the chunk's
    columns point into `buffer` itself: it must not be written afterwards.

    Raises:
        CorruptBatch: header, checksum, compression or records do not hold together.
        BatchTooLarge: the records unpack to more than `max_decompressed_bytes`.
    """
    batches = list(iter_batches(buffer))
    if has_crc_check:
        for position, header in batches:
            check_crc(buffer, header, position)
    next_offset = max(batches[-1][1].last_offset + 1, from_offset) if batches else from_offset
    visible = [item for item in visible_batches(buffer, batches, aborted) if item[1].last_offset >= from_offset]
    data, sections = _unpack(buffer, visible, max_decompressed_bytes)
    total = sum(section.header.record_count for section in sections)
    kernels = kernel_tier().kernels(total)
    array: U8 = np.frombuffer(data, dtype=np.uint8)
    if kernels is None:
        columns = _decode_at_once(data, sections, from_offset, total)
    else:
        columns = _decode_compiled(kernels, array, sections, from_offset, total)
    fields = [topic, partition, array, *columns, next_offset]
    return Chunk(*fields)


def _unpack(buffer: Buffer, batches: list[tuple[int, BatchHeader]], max_decompressed_bytes: int) -> tuple[Buffer, list[_Section]]:
    """Return one buffer with the uncompressed records of all batches, and where each batch's are."""
    if not any(header.codec for _, header in batches):
        sections = []
        for position, header in batches:
            records_section(buffer, position, header)
            sections.append(_Section(position + HEADER_BYTES, position + header.size_bytes, header))
        return buffer, sections
    parts: list[Buffer] = []
    sections = []
    at = 0
    for position, header in batches:
        if at >= max_decompressed_bytes:
            raise BatchTooLarge(f"the batches unpack to more than the {max_decompressed_bytes} bytes allowed")
        part = records_section(buffer, position, header, max_decompressed_bytes=max_decompressed_bytes - at)
        parts.append(part)
        sections.append(_Section(at, at + len(part), header))
        at += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts), sections


def _empty_columns(total: int) -> list[Any]:
    """Return the eight columns of a chunk, from offsets to header counts, with room for `total` rows."""
    kinds = (np.int64, np.int64, np.int64, np.int32, np.int64, np.int32, np.int64, np.int32)
    return [np.empty(total, kind) for kind in kinds]


def _table(sections: list[_Section]) -> Any:
    """Return int64[B, 8]: start, end, record count, base offset, last offset delta, base timestamp, whether it is the time of
    the append, that time."""
    return np.array(
        [
            (
                s.start,
                s.end,
                h.record_count,
                h.base_offset,
                h.last_offset_delta,
                h.base_timestamp,
                h.is_append_time,
                h.max_timestamp,
            )
            for s in sections
            for h in (s.header,)
        ],
        np.int64,
    ).reshape(len(sections), 8)


def _decode_compiled(kernels: ModuleType, array: U8, sections: list[_Section], from_offset: int, total: int) -> list[Any]:
    columns = _empty_columns(total)
    rows, error, section, record = kernels.decode_sections(array, _table(sections), from_offset, *columns)
    if error:
        offset = sections[section].header.base_offset
        raise CorruptBatch(f"batch at offset {offset}, record {record}: {kernels.ERRORS[error]}")
    return columns if rows == total else [column[:rows] for column in columns]


def _decode_at_once(data: Buffer, sections: list[_Section], from_offset: int, total: int) -> list[Any]:
    """Decode without the kernels. What is no record is looked at again in Python, which says what is wrong with it."""
    if locate is not None:
        columns = _empty_columns(total)
        rows = locate(data, _table(sections), from_offset, *columns)
        if rows >= 0:
            return columns if rows == total else [column[:rows] for column in columns]
    return _decode_plain(data, sections, from_offset)


def _decode_plain(data: Buffer, sections: list[_Section], from_offset: int) -> list[Any]:
    rows: list[tuple[int, ...]] = []
    for start, end, header in sections:
        for span in decode_spans(bytes(memoryview(data)[start:end]), header):
            if span.offset >= from_offset:
                rows.append(  # noqa: PERF401 - a nested comprehension would hide the shift
                    (
                        span.offset,
                        span.timestamp_ms,
                        span.key_start + start,
                        span.key_size,
                        span.value_start + start,
                        span.value_size,
                        span.header_start + start,
                        span.header_count,
                    )
                )
    columns = _empty_columns(len(rows))
    for column, values in zip(columns, zip(*rows, strict=True), strict=False):
        column[:] = values
    return columns


def encode_rows(
    chunk: Chunk,
    *,
    rows: I64 | None = None,
    codec: int = Codec.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    is_sealed: bool = True,
) -> bytearray:
    """Encode rows of a chunk (all by default; else int64 indices in the order wanted, at least one) as one batch.

    Offsets are 0..N-1; keys, values, timestamps and headers are the chunk's. Not `is_sealed`: the CRC may be missing, because
    the caller writes more into the header.

    Raises:
        InvalidInput: the chunk's spans do not lie in its buffer, or its timestamps are more than 2^63 ms apart.
    """
    if rows is None:
        rows = np.arange(len(chunk), dtype=np.int64)
    count = len(rows)
    assert count, "a batch wants at least one record"
    timestamps = chunk.timestamps_ms[rows]
    min_timestamp_ms, max_timestamp_ms = int(timestamps.min()), int(timestamps.max())
    if max_timestamp_ms - min_timestamp_ms > np.iinfo(np.int64).max:
        raise InvalidInput(f"timestamps {min_timestamp_ms} and {max_timestamp_ms} are too far apart for one batch")
    kernels = kernel_tier().kernels(count)
    if kernels is None:
        picked = chunk.take(rows)
        return encode_batch(
            picked.keys(),
            picked.values(),
            picked.timestamps_ms.tolist(),
            headers=picked.headers(),
            codec=codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            is_transactional=is_transactional,
        )
    batch = _encode_compiled(kernels, chunk, np.ascontiguousarray(rows, np.int64))
    if codec:
        batch = bytearray(HEADER_BYTES) + compress(codec, memoryview(batch)[HEADER_BYTES:])
    pack_header(
        batch,
        size_bytes=len(batch),
        count=count,
        last_offset_delta=count - 1,
        base_timestamp_ms=int(timestamps[0]),
        max_timestamp_ms=max_timestamp_ms,
        attributes=codec | (TRANSACTIONAL_BIT if is_transactional else 0),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        is_sealed=is_sealed,
    )
    return batch


def _encode_compiled(kernels: ModuleType, chunk: Chunk, rows: I64) -> bytearray:
    """Return room for a header followed by the uncompressed records of `rows`."""
    keys = np.ascontiguousarray(chunk.key_starts), np.ascontiguousarray(chunk.key_sizes)
    values = np.ascontiguousarray(chunk.value_starts), np.ascontiguousarray(chunk.value_sizes)
    bound = kernels.measure_rows(rows, *keys, *values, len(chunk.buffer), _RECORD_OVERHEAD_BYTES)
    if bound < 0:
        _check_spans(chunk, *keys)
        _check_spans(chunk, *values)
    header_sizes, header_bytes = _header_sizes(kernels, chunk)
    if header_bytes:
        bound += int(header_sizes[rows].sum())
    out = bytearray(HEADER_BYTES + bound)
    end = kernels.encode_section(
        chunk.buffer,
        rows,
        np.ascontiguousarray(chunk.timestamps_ms),
        *keys,
        *values,
        np.ascontiguousarray(chunk.header_starts),
        np.ascontiguousarray(chunk.header_counts),
        header_sizes,
        np.frombuffer(out, np.uint8),
        HEADER_BYTES,
    )
    del out[end:]
    return out


def _check_spans(chunk: Chunk, starts: I64, sizes: I32) -> None:
    is_outside = (sizes >= 0) & ((starts < 0) | (starts + sizes > len(chunk.buffer)))
    if is_outside.any():
        row = int(is_outside.argmax())
        raise InvalidInput(
            f"a chunk's column points at bytes {starts[row]}..{starts[row] + sizes[row]} of a buffer of {len(chunk.buffer)}"
        )


def _header_sizes(kernels: ModuleType, chunk: Chunk) -> tuple[I64, int]:
    """Return the bytes of each row's headers (int64[N]) and their sum."""
    sizes = np.zeros(len(chunk), np.int64)
    if not chunk.header_counts.any():
        return sizes, 0
    starts = np.ascontiguousarray(chunk.header_starts)
    if len(starts) and (starts.min() < 0 or starts.max() > len(chunk.buffer)):
        raise InvalidInput(f"a chunk's header column points outside of its buffer of {len(chunk.buffer)} bytes")
    total = kernels.measure_headers(chunk.buffer, starts, np.ascontiguousarray(chunk.header_counts), sizes)
    if total < 0:
        raise InvalidInput("a chunk's header column does not point at headers")
    return sizes, int(total)


def row_sizes(chunk: Chunk) -> I64:
    """Upper bound in bytes of each row's encoded record, int64[N]: to cut a chunk into batches below a size."""
    sizes = np.maximum(chunk.key_sizes, 0).astype(np.int64)
    sizes += np.maximum(chunk.value_sizes, 0)
    sizes += _RECORD_OVERHEAD_BYTES
    if chunk.header_counts.any():
        kernels = kernel_tier().kernels(len(chunk))
        if kernels is not None:
            sizes += _header_sizes(kernels, chunk)[0]
        else:
            sizes += [sum(len(n) * 4 + len(v or b"") + 10 for n, v in headers) for headers in chunk.headers()]
    return sizes


def key_partitions(chunk: Chunk, partition_count: int) -> I32:
    """Kafka's default partition of each keyed row (murmur2 of the key), int32[N]; -1 for rows with a null key."""
    kernels = kernel_tier().kernels(len(chunk))
    if kernels is None:
        keys = chunk.keys()
        return np.array([-1 if key is None else key_partition(key, partition_count) for key in keys], np.int32)
    _check_spans(chunk, chunk.key_starts, chunk.key_sizes)
    partitions = np.empty(len(chunk), np.int32)
    kernels.murmur2_partitions(
        chunk.buffer, np.ascontiguousarray(chunk.key_starts), np.ascontiguousarray(chunk.key_sizes), partition_count, partitions
    )
    return partitions


def encode_objects(
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    timestamps_ms: Sequence[int],
    *,
    headers: Sequence[Headers] | None = None,
    codec: int = Codec.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
) -> bytearray:
    """Encode N keys, values and timestamps (N >= 1) as one batch with offsets 0..N-1."""
    if kernel_tier().kernels(len(values)) is None:
        return encode_batch(
            keys,
            values,
            timestamps_ms,
            headers=headers,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            is_transactional=is_transactional,
        )
    return encode_rows(
        Chunk.from_columns("", keys, values, timestamps_ms, headers=headers),
        codec=codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        is_transactional=is_transactional,
    )
