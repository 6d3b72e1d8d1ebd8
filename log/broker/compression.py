"""A topic's forced `compression.type`: the one case in which the broker rewrites a batch."""

from __future__ import annotations

from logflume.log.batch import Codec, codec_of, decode_records, encode_batch, parse_header
from logflume.log.batch.header import Buffer


def recompress(batch: Buffer, compression_type: str) -> Buffer:
    """Return the batch with the given compression (a Kafka name; `uncompressed` for none); the same object if it has it.

    Raises CorruptBatch, BatchTooLarge.
    """
    codec = Codec.NONE if compression_type == "uncompressed" else codec_of(compression_type)
    header = parse_header(batch)
    if header.codec == codec or header.is_control:
        return batch
    records = decode_records(batch)
    return encode_batch(
        [record.key for record in records],
        [record.value for record in records],
        [record.timestamp_ms for record in records],
        headers=[record.headers for record in records],
        codec=codec,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        is_transactional=header.is_transactional,
    )
