"""The records section in plain Python: decode to objects, encode from objects. No numpy, so that the broker may use it.

The faster twins for many records are in `columns.py`; both give the same bytes and the same objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .compression import MAX_DECOMPRESSED_BYTES, Codec
from .header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, Buffer

Headers = tuple[tuple[str, bytes | None], ...]


class RecordData(NamedTuple):
    """One record of a batch. `timestamp_ms` is milliseconds since the epoch; key and value None are null."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def decode_records(
    buffer: Buffer,
    position: int = 0,
    *,
    has_crc_check: bool = True,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> list[RecordData]:
    """Decode the records of the batch at `position`, in offset order (control batches too: see `control.py` for markers).

    Raises:
        CorruptBatch: header, checksum, compression or records do not hold together.
        BatchTooLarge: the records unpack to more than `max_decompressed_bytes`.
    """
    raise NotImplementedError


def encode_batch(
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    timestamps_ms: Sequence[int],
    *,
    headers: Sequence[Headers] | None = None,
    codec: int = Codec.NONE,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
) -> bytearray:
    """Encode N keys, values and timestamps (N >= 1) as one batch with offsets base_offset..base_offset+N-1."""
    raise NotImplementedError
