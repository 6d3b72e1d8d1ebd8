"""Control batches: the commit and abort markers that end a transaction on a partition (KIP-98)."""

from __future__ import annotations

import struct
from typing import NamedTuple

from .errors import CorruptBatch
from .header import Buffer, parse_header
from .records import decode_records, encode_batch

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_VERSION = 0
_ABORT, _COMMIT = 0, 1


class Marker(NamedTuple):
    """What a control batch says: the transaction of its producer id is committed or aborted."""

    is_commit: bool
    coordinator_epoch: int


def build_marker(
    *, producer_id: int, producer_epoch: int, coordinator_epoch: int, is_commit: bool, timestamp_ms: int
) -> bytearray:
    """Build the control batch of one marker, to be appended by the broker.

    >>> batch = build_marker(producer_id=7, producer_epoch=0, coordinator_epoch=3, is_commit=True, timestamp_ms=0)
    >>> parse_marker(batch)
    Marker(is_commit=True, coordinator_epoch=3)
    """
    return encode_batch(
        [_KEY.pack(_VERSION, _COMMIT if is_commit else _ABORT)],
        [_VALUE.pack(_VERSION, coordinator_epoch)],
        [timestamp_ms],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )


def parse_marker(buffer: Buffer, position: int = 0) -> Marker | None:
    """Return the marker in the control batch at `position`, None for a control record of another type.

    Raises:
        CorruptBatch: not a control batch, or its record is malformed.
    """
    header = parse_header(buffer, position)
    records = decode_records(buffer, position, has_crc_check=False, max_decompressed_bytes=4096) if header.is_control else []
    if len(records) != 1:
        raise CorruptBatch(f"expected a control batch of one record at offset {header.base_offset}")
    key, value = records[0].key, records[0].value
    if key is None or len(key) < _KEY.size:
        raise CorruptBatch(f"control record at offset {header.base_offset} has no type")
    kind = _KEY.unpack_from(key)[1]
    if kind not in (_ABORT, _COMMIT):
        return None
    if value is None or len(value) < _VALUE.size:
        raise CorruptBatch(f"transaction marker at offset {header.base_offset} has no coordinator epoch")
    return Marker(kind == _COMMIT, _VALUE.unpack_from(value)[1])
