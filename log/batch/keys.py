"""Finds records without a key in a batch, as a compacted topic must (KIP-467), at a tenth of the cost of decoding the records."""

from __future__ import annotations

from .compression import MAX_DECOMPRESSED_BYTES
from .header import Buffer, parse_header
from .records import decode_records, records_section

_NULL_LENGTH = 1
"""The varint of -1."""


def null_keys(buffer: Buffer, *, max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES) -> list[int]:
    """Return the indexes of the records with a null key of the batch at the start of `buffer`; its checksum is not checked.

    Raises:
        CorruptBatch, BatchTooLarge: as `decode_records`.
    """
    header = parse_header(buffer, 0)
    data = bytes(records_section(buffer, 0, header, max_decompressed_bytes=max_decompressed_bytes))
    try:
        found, end = _walk(data, header.record_count)
    except IndexError:
        found, end = [], -1
    if end == len(data):
        return found
    records = decode_records(buffer, 0, has_crc_check=False, max_decompressed_bytes=max_decompressed_bytes)
    return [index for index, record in enumerate(records) if record.key is None]


def _walk(data: bytes, count: int) -> tuple[list[int], int]:
    """Return the indexes and where the walk ended; the end of `data` if its lengths hold together."""
    found: list[int] = []
    position = 0
    for index in range(count):
        byte = data[position]
        position += 1
        size, shift = byte & 0x7F, 7
        while byte > 0x7F:
            byte = data[position]
            position += 1
            size |= (byte & 0x7F) << shift
            shift += 7
        start = position
        position += 1  # attributes
        while data[position] > 0x7F:  # timestamp delta
            position += 1
        position += 1
        while data[position] > 0x7F:  # offset delta
            position += 1
        if data[position + 1] == _NULL_LENGTH:
            found.append(index)
        position = start + (size >> 1)
        if size & 1 or position <= start:
            return found, -1
    return found, position
