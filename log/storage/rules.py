"""What a leader requires of a batch from a client, by its header. Pure.

The records are checked where a request is handled (`broker/incoming.py`): that may take a while, and the answer names them.
"""

from __future__ import annotations

from logflume.log.batch.errors import CorruptBatch
from logflume.log.batch.header import CLIENT_BITS, BatchHeader, Buffer, iter_batches

from .config import LogConfig
from .errors import INVALID_RECORD, INVALID_TIMESTAMP, MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, AppendRefused


def check_size(data: Buffer, *, is_client: bool) -> None:
    """Check that `data`, longer than its first batch, is whole batches and comes from inside.

    Raises:
        AppendRefused: more than one batch from a client.
        CorruptBatch: bytes that are not a whole batch.
    """
    size = sum(header.size_bytes for _, header in iter_batches(data))
    if size != len(data):
        raise CorruptBatch(f"expected whole batches, found {len(data) - size} bytes behind the last one")
    if is_client:
        raise AppendRefused(INVALID_RECORD, "expected exactly one batch per partition in a produce request, found more")


def check_client_batch(header: BatchHeader, config: LogConfig) -> None:
    """Check the rules for the header of a batch that a client sent; what its records must be is not looked at here.

    Raises:
        AppendRefused: with the error code of the rule that is broken.
    """
    size_bytes = header.size_bytes
    if size_bytes > config.max_message_bytes:
        raise AppendRefused(
            MESSAGE_TOO_LARGE,
            f"expected a batch of at most {config.max_message_bytes} bytes (max.message.bytes), found {size_bytes}",
        )
    if size_bytes > config.segment_bytes:
        raise AppendRefused(
            RECORD_LIST_TOO_LARGE,
            f"expected a batch of at most {config.segment_bytes} bytes (segment.bytes), found {size_bytes}",
        )
    if header.record_count < 1 or header.last_offset_delta + 1 != header.record_count:
        raise AppendRefused(
            INVALID_RECORD,
            f"expected offsets without gaps, found {header.record_count} records over {header.last_offset_delta + 1} offsets",
        )
    if header.attributes & ~CLIENT_BITS:
        if header.is_control:
            raise AppendRefused(INVALID_RECORD, "control batches are written by the broker only")
        if header.is_append_time:
            raise AppendRefused(INVALID_TIMESTAMP, "expected timestamps of type CreateTime, found LogAppendTime")
        raise AppendRefused(
            INVALID_RECORD, f"expected attributes of {CLIENT_BITS:#06x} only, found {header.attributes & 0xFFFF:#06x}"
        )
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise AppendRefused(
            INVALID_RECORD,
            f"producer {header.producer_id}: expected an epoch and a sequence, found {header.producer_epoch} "
            f"and {header.base_sequence}",
        )
    if header.producer_id < 0 and header.is_transactional:
        raise AppendRefused(INVALID_RECORD, "a transactional batch needs a producer id")


def check_timestamps(oldest_ms: int, newest_ms: int, config: LogConfig, now_ms: int) -> None:
    """Check the timestamps of a batch whose records keep them; negative ones are none. Raises AppendRefused."""
    least_ms = now_ms - config.message_timestamp_before_max_ms
    most_ms = now_ms + config.message_timestamp_after_max_ms
    if 0 <= oldest_ms < least_ms:
        raise AppendRefused(INVALID_TIMESTAMP, f"timestamp {oldest_ms} is older than {least_ms} allows")
    if newest_ms > most_ms:
        raise AppendRefused(INVALID_TIMESTAMP, f"timestamp {newest_ms} is later than {most_ms} allows")
