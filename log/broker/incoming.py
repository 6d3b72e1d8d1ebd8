"""What is checked of a batch that a client sent before any of it is appended, and what it is made of before that. Pure.

As Apache Kafka's `LogValidator`: an acknowledged batch can be read to its end by every client. The header costs nothing and goes
first; then the checksum, decompression (always, bounded) and a walk over the records (`batch/walk.py`). Limits of size count for
what was sent and, under a forced `compression.type`, for what is made of it.
"""

from __future__ import annotations

from typing import NamedTuple

from logflume.log.batch import (
    HEADER_BYTES,
    BatchHeader,
    BatchTooLarge,
    Codec,
    CorruptBatch,
    check_crc,
    codec_of,
    compress,
    decompress,
    parse_header,
)
from logflume.log.batch.header import Buffer, stamp_newest, with_section
from logflume.log.batch.keys import null_keys
from logflume.log.batch.walk import PROBLEMS, SOUND, walk, walk_in_python
from logflume.log.protocol import ErrorCode
from logflume.log.storage import AppendRefused, LogConfig
from logflume.log.storage.rules import check_client_batch, check_size, check_timestamps

MAX_UNPACKED_BYTES = 64 * 1024 * 1024
"""A batch may unpack to so many bytes, or to `max.message.bytes` if that is more. librdkafka reads up to 100 MB."""
QUICK_BYTES = 256 * 1024
"""Plain records up to this size are checked at once; what is more takes milliseconds and is done off the loop."""
QUICK_COMPRESSED_BYTES = 32 * 1024
"""The same for compressed records, which unpack to eight times as much and no more to be done at once."""
QUICK_RECORDS = 1_000
"""So many are checked at once where the check is not compiled: each takes some microseconds, however small it is."""


class RowsRefused(AppendRefused):
    """Records that a topic does not take, by their places in the batch (KIP-467); `each`: what is said of each of them."""

    def __init__(self, rows: list[int], why: str, each: str) -> None:
        super().__init__(ErrorCode.INVALID_RECORD, f"One or more records have been rejected: {why}")
        self.rows, self.each = rows, each


class Rules(NamedTuple):
    """What a partition asks of a batch. A named tuple, as one is made for every batch."""

    config: LogConfig
    forced_codec: Codec | None
    now_ms: int


def forced_codec(compression_type: str) -> Codec | None:
    """Return the codec that a topic's `compression.type` forces on what is written to it, None for whatever comes."""
    match compression_type:
        case "producer":
            return None
        case "uncompressed":
            return Codec.NONE
        case name:
            return codec_of(name)


def check_header(batch: Buffer, rules: Rules) -> BatchHeader:
    """Check what costs nothing, sizes above all.

    Raises:
        CorruptBatch: it is not one whole batch (UnsupportedMagic: another format).
        AppendRefused: a rule is broken.
    """
    header = parse_header(batch)
    if header.size_bytes != len(batch):
        check_size(batch, is_client=True)
    check_client_batch(header, rules.config)
    return header


def is_quick(header: BatchHeader, rules: Rules) -> bool:
    """Whether `check_records` may be tried at once, with `QUICK_BYTES` as its bound."""
    if walk is walk_in_python and header.record_count > QUICK_RECORDS:
        return False
    is_plain = not header.codec and not rules.forced_codec
    return header.size_bytes <= (QUICK_BYTES if is_plain else QUICK_COMPRESSED_BYTES)


def max_unpacked_bytes(rules: Rules) -> int:
    """Return to how many bytes the records of a batch may unpack."""
    return max(MAX_UNPACKED_BYTES, rules.config.max_message_bytes)


def check_records(batch: Buffer, header: BatchHeader, rules: Rules, *, max_bytes: int) -> Buffer:
    """Check everything behind the header; return the batch to append: the same object unless something had to be changed.

    Raises:
        CorruptBatch: the checksum does not match.
        BatchTooLarge: the records unpack to more than `max_bytes`.
        AppendRefused: they do not hold together, or a rule is broken.
    """
    check_crc(batch, header)
    section: Buffer = memoryview(batch)[HEADER_BYTES:]
    if header.codec:
        section = _unpack(section, header.codec, max_bytes)
    problem, row, oldest_ms, newest_ms, null_key_count = walk(section, header.record_count, header.base_timestamp)
    if problem != SOUND:
        raise AppendRefused(ErrorCode.INVALID_RECORD, f"record {row} of {header.record_count}: {PROBLEMS[problem]}")
    if null_key_count and rules.config.is_compacted:
        rows = null_keys(section, header)
        raise RowsRefused(rows, "a compacted topic needs keys", "a record of a compacted topic must have a key")
    has_create_time = rules.config.message_timestamp_type == "CreateTime"
    if has_create_time:
        check_timestamps(oldest_ms, newest_ms, rules.config, rules.now_ms)
    codec = rules.forced_codec
    changed: bytearray | None = None
    if codec is not None and codec != header.codec:
        changed = with_section(batch, compress(codec, section), codec)
    elif has_create_time and newest_ms != header.max_timestamp:
        changed = bytearray(batch)
    if changed is None:
        return batch
    # Kafka does not believe the client's newest timestamp either: reads by time rest on it.
    stamp_newest(changed, newest_ms)
    check_client_batch(parse_header(changed), rules.config)
    return changed


def _unpack(section: Buffer, codec: int, max_bytes: int) -> Buffer:
    """Decompress one stream with nothing behind it: clients differ in what they make of a second one."""
    try:
        return decompress(codec, section, max_bytes=max_bytes, is_single=True)
    except BatchTooLarge:
        raise
    except CorruptBatch as error:  # with a good checksum it is what the client made: sending it again helps nobody
        raise AppendRefused(ErrorCode.INVALID_RECORD, str(error)) from error
