"""The 61-byte header of a RecordBatch v2: parse, validate, stamp. Never looks at the records, never imports numpy.

Layout (big-endian; "Record Batch" of the Kafka protocol guide): base_offset i64@0, batch_length i32@8 (bytes after this
field), partition_leader_epoch i32@12, magic i8@16, crc u32@17, attributes i16@21, last_offset_delta i32@23,
base_timestamp i64@27, max_timestamp i64@35, producer_id i64@43, producer_epoch i16@51, base_sequence i32@53, count i32@57.
The CRC-32C covers byte 21 to the end, so that the broker stamps offset and leader epoch without touching it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias, cast

from crc32c import crc32c

from .errors import CorruptBatch, UnsupportedMagic

Buffer: TypeAlias = bytes | bytearray | memoryview

HEADER_BYTES = 61
LENGTH_OVERHEAD_BYTES = 12
MAGIC = 2
MIN_RECORD_BYTES = 7
"""A record without key, value and headers: length, attributes, two deltas, two null lengths, header count, one byte each."""

CODEC_MASK = 0x07
APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40
CLIENT_BITS = CODEC_MASK | TRANSACTIONAL_BIT
"""The attributes that a client may set: the rest is the broker's, or means nothing yet."""

NO_TIMESTAMP_MS = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1

_HEADER = struct.Struct(">qiibIhiqqqhii")
_LENGTH_AND_MAGIC = struct.Struct(">8xi4xb")
_OFFSET, _LENGTH = struct.Struct(">q"), struct.Struct(">i")
_PLACE_AND_EPOCH = struct.Struct(">qii")
_PLACE_AND_CRC = struct.Struct(">qi5xI")
_PRODUCER = struct.Struct(">qhi")
_LENGTH_AT, _EPOCH_AT, MAGIC_AT, _CRC_AT = 8, 12, 16, 17
_ATTRIBUTES_AT, _DELTA_AT, _MAX_TIMESTAMP_AT, _PRODUCER_AT = 21, 23, 35, 43
_CRC_START = _ATTRIBUTES_AT


class BatchHeader(NamedTuple):
    """The header of one batch; field names are the protocol guide's."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole batch, header included."""
        return self.batch_length + LENGTH_OVERHEAD_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def codec(self) -> int:
        """Compression: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & CODEC_MASK

    @property
    def is_append_time(self) -> bool:
        """True when the timestamps of all records are `max_timestamp` (LogAppendTime)."""
        return bool(self.attributes & APPEND_TIME_BIT)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def has_delete_horizon(self) -> bool:
        """True when `base_timestamp` is the time from which compaction drops this batch's tombstones."""
        return bool(self.attributes & DELETE_HORIZON_BIT)

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record (wraps to 0 after 2^31-1), -1 without a producer sequence."""
        if self.base_sequence < 0:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    def at(self, base_offset: int, leader_epoch: int) -> BatchHeader:
        """Return the header as `stamp` makes it."""
        return tuple.__new__(BatchHeader, (base_offset, self[1], leader_epoch, *self[3:]))


def parse_header(buffer: Buffer, position: int = 0, *, end: int | None = None) -> BatchHeader:
    """Parse and bound-check the header at `position`; the whole batch must lie before `end` (default: the buffer's end).

    The CRC is not checked (see `check_crc`).

    Raises:
        UnsupportedMagic: the magic byte is not 2.
        CorruptBatch: fewer bytes than a batch, or a length, count, delta or codec that cannot be.
    """
    available = (len(buffer) if end is None else end) - position
    if available < HEADER_BYTES:
        raise CorruptBatch(f"expected a batch header of {HEADER_BYTES} bytes at position {position}, found {available} bytes")
    header = tuple.__new__(BatchHeader, _HEADER.unpack_from(buffer, position))
    if header[3] != MAGIC:
        raise UnsupportedMagic(f"expected a batch of magic {MAGIC} at position {position}, found magic {header.magic}")
    size_bytes = header[1] + LENGTH_OVERHEAD_BYTES
    if size_bytes < HEADER_BYTES or size_bytes > available:
        raise CorruptBatch(
            f"expected a batch of {HEADER_BYTES} to {available} bytes at position {position}, its header says {size_bytes}"
        )
    if header[12] < 0 or header[6] < 0 or header[12] > header[6] + 1:
        raise CorruptBatch(
            f"batch at position {position}: {header.record_count} records do not fit offset delta {header.last_offset_delta}"
        )
    if header[5] & CODEC_MASK > 4:
        raise CorruptBatch(f"batch at position {position}: expected a compression codec of 0 to 4, found {header.codec}")
    if header[0] < 0:
        raise CorruptBatch(f"batch at position {position}: base offset {header.base_offset} is negative")
    return header


def size_at(buffer: Buffer, position: int = 0) -> int | None:
    """Return how many bytes the batch at `position` says that it has, unchecked; None if it is cut off before it says so."""
    if len(buffer) - position < LENGTH_OVERHEAD_BYTES:
        return None
    length: int = _LENGTH.unpack_from(buffer, position + _LENGTH_AT)[0]
    return length + LENGTH_OVERHEAD_BYTES


def place_and_crc_at(buffer: Buffer, position: int) -> tuple[int, int, int]:
    """Return base offset, bytes of the whole batch and CRC, as what may be a header at `position` says; unchecked."""
    base_offset, length, crc = _PLACE_AND_CRC.unpack_from(buffer, position)
    return base_offset, length + LENGTH_OVERHEAD_BYTES, crc


def attributes_of(batch: Buffer) -> int:
    """Return the attributes of what may be a batch, unchecked; 0 if it is cut off before them."""
    return batch[_ATTRIBUTES_AT + 1] if len(batch) > _ATTRIBUTES_AT + 1 else 0


def end_of_batches(buffer: Buffer) -> tuple[int, int] | None:
    """Return the offset after the last whole batch and its leader epoch, unchecked; None when no batch is whole."""
    position, end, after = 0, len(buffer), None
    while end - position >= HEADER_BYTES:
        base_offset, length, epoch = _PLACE_AND_EPOCH.unpack_from(buffer, position)
        size_bytes = length + LENGTH_OVERHEAD_BYTES
        if size_bytes < HEADER_BYTES or position + size_bytes > end:
            break
        after = base_offset + _LENGTH.unpack_from(buffer, position + _DELTA_AT)[0] + 1, epoch
        position += size_bytes
    return after


def compute_crc(buffer: Buffer, position: int, size_bytes: int, *, body: Buffer = b"") -> int:
    """Return the CRC-32C of the batch of `size_bytes` bytes at `position`, and of `body` behind it."""
    crc = crc32c(memoryview(buffer)[position + _CRC_START : position + size_bytes])
    return crc32c(body, crc) if body else crc


def check_crc(buffer: Buffer, header: BatchHeader, position: int = 0) -> None:
    """Check the checksum of the batch at `position` whose header was parsed.

    Raises:
        CorruptBatch: it does not match.
    """
    found = compute_crc(buffer, position, header[1] + LENGTH_OVERHEAD_BYTES)
    if found != header[4]:
        raise CorruptBatch(
            f"batch at position {position} (offset {header.base_offset}): expected CRC {header.crc:#010x}, found {found:#010x}"
        )


def iter_batches(buffer: Buffer, position: int = 0, *, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of each whole batch; a batch cut short at the end of the buffer ends the iteration.

    Raises:
        CorruptBatch: bytes that are not the beginning of a batch.
    """
    end = len(buffer) if end is None else end
    while end - position >= LENGTH_OVERHEAD_BYTES + 5:
        length, magic = _LENGTH_AND_MAGIC.unpack_from(buffer, position)
        if magic == MAGIC and end - position < max(length + LENGTH_OVERHEAD_BYTES, HEADER_BYTES):
            return
        header = parse_header(buffer, position, end=end)
        yield position, header
        position += length + LENGTH_OVERHEAD_BYTES


def stamp(buffer: bytearray | memoryview, base_offset: int, leader_epoch: int, *, position: int = 0) -> None:
    """Write base offset and leader epoch into the batch at `position`, in place; the CRC does not cover them."""
    _OFFSET.pack_into(buffer, position, base_offset)
    _LENGTH.pack_into(buffer, position + _EPOCH_AT, leader_epoch)


def stamp_append_time(head: bytearray, body: Buffer, append_time_ms: int) -> None:
    """Make a batch LogAppendTime with this time, in its header `head`, with its new CRC; `body` are the records behind it."""
    (attributes,) = struct.unpack_from(">h", head, _ATTRIBUTES_AT)
    struct.pack_into(">h", head, _ATTRIBUTES_AT, attributes | APPEND_TIME_BIT)
    struct.pack_into(">q", head, _MAX_TIMESTAMP_AT, append_time_ms)
    struct.pack_into(">I", head, _CRC_AT, compute_crc(head, 0, HEADER_BYTES, body=body))


def stamp_newest(batch: bytearray, max_timestamp_ms: int) -> None:
    """Write the newest timestamp of its records into a batch, in place, and give it its new CRC."""
    struct.pack_into(">q", batch, _MAX_TIMESTAMP_AT, max_timestamp_ms)
    seal(batch, position=0, size_bytes=len(batch))


def producer_of(batch: Buffer) -> tuple[int, int, int]:
    """Return producer id, epoch and base sequence of a batch."""
    return cast(tuple[int, int, int], _PRODUCER.unpack_from(batch, _PRODUCER_AT))


def stamp_producer(batch: bytearray, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
    """Write these into a batch, in place; `seal` must follow."""
    _PRODUCER.pack_into(batch, _PRODUCER_AT, producer_id, producer_epoch, base_sequence)


def with_section(batch: Buffer, section: Buffer, codec: int) -> bytearray:
    """Return the batch at the start of `batch` with these records in place of its own, compressed by `codec`, not sealed."""
    changed = bytearray(memoryview(batch)[:HEADER_BYTES])
    changed += section
    (attributes,) = struct.unpack_from(">h", changed, _ATTRIBUTES_AT)
    struct.pack_into(">i", changed, _LENGTH_AT, len(changed) - LENGTH_OVERHEAD_BYTES)
    struct.pack_into(">h", changed, _ATTRIBUTES_AT, attributes & ~CODEC_MASK | codec)
    return changed


def seal(buffer: bytearray | memoryview, *, position: int, size_bytes: int) -> None:
    """Compute and write the CRC of the batch at `position`, in place."""
    struct.pack_into(">I", buffer, position + _CRC_AT, compute_crc(buffer, position, size_bytes))


def pack_header(
    buffer: bytearray | memoryview,
    *,
    size_bytes: int,
    count: int,
    last_offset_delta: int,
    base_timestamp_ms: int,
    max_timestamp_ms: int,
    position: int = 0,
    base_offset: int = 0,
    leader_epoch: int = -1,
    attributes: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_sealed: bool = True,
) -> None:
    """Write the header of a batch whose records are in place, `size_bytes` in all, and its CRC (else `seal` must follow)."""
    _HEADER.pack_into(
        buffer,
        position,
        base_offset,
        size_bytes - LENGTH_OVERHEAD_BYTES,
        leader_epoch,
        MAGIC,
        0,
        attributes,
        last_offset_delta,
        base_timestamp_ms,
        max_timestamp_ms,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    if is_sealed:
        seal(buffer, position=position, size_bytes=size_bytes)
