"""Batches to columns and back: the client's hot path. Imports numpy (and numba once it pays), so the broker must not import it.

`decode_fetch` makes one `Chunk` of a whole fetch response (many batches); `encode_rows` makes one batch of some rows of a
chunk; `encode_objects` is `records.encode_batch` for many records. The loops run in numba kernels (`kernels.py`) when they
are loaded, else in plain Python with the same result (a property test).
"""

from __future__ import annotations

from collections.abc import Sequence

from logflume.log.records import I32, I64, Chunk, Headers

from .compression import MAX_DECOMPRESSED_BYTES, Codec
from .header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, Buffer
from .isolation import AbortedTransactions


def load_kernels() -> bool:
    """Load the compiled kernels now, blocking (0.5 to 1 s; compiling the first time takes longer); False without numba.

    Without this call they are loaded in the background once some ten thousand records have been coded.
    """
    raise NotImplementedError


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
    raise NotImplementedError


def encode_rows(
    chunk: Chunk,
    *,
    rows: I64 | None = None,
    codec: int = Codec.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
) -> bytearray:
    """Encode rows of a chunk (all by default; else int64 indices in the order wanted, at least one) as one batch.

    Offsets are 0..N-1; keys, values, timestamps and headers are the chunk's.
    """
    raise NotImplementedError


def row_sizes(chunk: Chunk) -> I64:
    """Upper bound in bytes of each row's encoded record, int64[N]: to cut a chunk into batches below a size."""
    raise NotImplementedError


def key_partitions(chunk: Chunk, partition_count: int) -> I32:
    """Kafka's default partition of each keyed row (murmur2 of the key), int32[N]; -1 for rows with a null key."""
    raise NotImplementedError


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
    raise NotImplementedError
