"""What a leader requires of a batch from a client, by its header. Pure.

That records of a compacted topic have keys is checked where a request is handled, for the answer names each record.
"""

from __future__ import annotations

from logflume.log.batch.errors import CorruptBatch
from logflume.log.batch.header import BatchHeader, Buffer, iter_batches

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


def check_client_batch(header: BatchHeader, config: LogConfig, now_ms: int) -> None:
    """Check the rules for a batch that a client sent.

    Raises:
        AppendRefused: with the error code of the rule that is broken.
    """
    if header.size_bytes > config.max_message_bytes:
        raise AppendRefused(
            MESSAGE_TOO_LARGE,
            f"expected a batch of at most {config.max_message_bytes} bytes (max.message.bytes), found {header.size_bytes}",
        )
    if header.size_bytes > config.segment_bytes:
        raise AppendRefused(
            RECORD_LIST_TOO_LARGE,
            f"expected a batch of at most {config.segment_bytes} bytes (segment.bytes), found {header.size_bytes}",
        )
    if header.record_count < 1 or header.last_offset_delta + 1 != header.record_count:
        raise AppendRefused(
            INVALID_RECORD,
            f"expected offsets without gaps, found {header.record_count} records over {header.last_offset_delta + 1} offsets",
        )
    if header.is_control:
        raise AppendRefused(INVALID_RECORD, "control batches are written by the broker only")
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise AppendRefused(
            INVALID_RECORD,
            f"producer {header.producer_id}: expected an epoch and a sequence, found {header.producer_epoch} "
            f"and {header.base_sequence}",
        )
    if header.producer_id < 0 and header.is_transactional:
        raise AppendRefused(INVALID_RECORD, "a transactional batch needs a producer id")
    if config.message_timestamp_type == "CreateTime":
        _check_timestamps(header, config, now_ms)


def _check_timestamps(header: BatchHeader, config: LogConfig, now_ms: int) -> None:
    oldest_ms = now_ms - config.message_timestamp_before_max_ms
    newest_ms = now_ms + config.message_timestamp_after_max_ms
    if header.base_timestamp >= 0 and header.base_timestamp < oldest_ms:
        raise AppendRefused(INVALID_TIMESTAMP, f"timestamp {header.base_timestamp} is older than {oldest_ms} allows")
    if header.max_timestamp > newest_ms:
        raise AppendRefused(INVALID_TIMESTAMP, f"timestamp {header.max_timestamp} is later than {newest_ms} allows")
