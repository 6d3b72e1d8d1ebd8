"""Rows of chunks to batches, and which partition they go to. Imports numpy (and numba once it pays), so neither the broker nor
the client that sends and reads single records imports it.

The loops run in numba kernels (`kernels.py`) when they are loaded, else in plain Python with the same result (a property test).
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
import numpy.typing as npt

from logflume.log.errors import InvalidInput
from logflume.log.records import I32, I64, Chunk

from .compression import Codec, compress
from .header import HEADER_BYTES, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, TRANSACTIONAL_BIT, pack_header
from .murmur2 import key_partition
from .records import encode_batch
from .tiers import kernel_tier

_RECORD_OVERHEAD_BYTES = 36
"""Most a record adds to its key, value and headers: seven varints (two of 10 bytes at most, others of 5) and one byte."""


_LARGEST = 2**31 - 1


def load_kernels() -> bool:
    """Load the compiled kernels now, blocking (0.5 to 1 s; compiling the first time takes longer); False without numba.

    Without this call they are loaded in the background once some ten thousand records have been coded.
    """
    return kernel_tier().load()


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
        _check_spans(chunk.buffer, *keys)
        _check_spans(chunk.buffer, *values)
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


def _check_spans(buffer: npt.NDArray[np.uint8], starts: I64, sizes: I32) -> None:
    is_outside = (sizes >= 0) & ((starts < 0) | (starts + sizes > len(buffer)))
    if is_outside.any():
        row = int(is_outside.argmax())
        raise InvalidInput(f"a column points at bytes {starts[row]}..{starts[row] + sizes[row]} of a buffer of {len(buffer)}")


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
    return _murmur2_modulo(chunk.buffer, chunk.key_starts, chunk.key_sizes, partition_count)


def content_hashes(chunk: Chunk) -> tuple[I32, I32]:
    """31 bits of murmur2 of each row's key, and of its value; -1 for null."""
    return (
        span_hashes(chunk.buffer, chunk.key_starts, chunk.key_sizes),
        span_hashes(chunk.buffer, chunk.value_starts, chunk.value_sizes),
    )


def span_hashes(buffer: npt.NDArray[np.uint8], starts: I64, sizes: I32) -> I32:
    """31 bits of murmur2 of each of N spans of a buffer, int32[N]; -1 where the size is: null."""
    return _murmur2_modulo(buffer, starts, sizes, _LARGEST)


def _murmur2_modulo(buffer: npt.NDArray[np.uint8], starts: I64, sizes: I32, modulus: int) -> I32:
    """Return the hashes of spans without their sign, modulo a number."""
    _check_spans(buffer, starts, sizes)
    kernels = kernel_tier().kernels(len(starts))
    if kernels is None:
        spans = zip(starts.tolist(), sizes.tolist(), strict=True)
        found = [-1 if size < 0 else key_partition(buffer[at : at + size].tobytes(), modulus) for at, size in spans]
        return np.array(found, np.int32)
    hashes = np.empty(len(starts), np.int32)
    kernels.murmur2_partitions(buffer, np.ascontiguousarray(starts), np.ascontiguousarray(sizes), modulus, hashes)
    return hashes
