"""A segment file (`.log`) batch by batch: header fields, the checksum, markers, and the records if asked for.

A batch is never held as a whole unless its records are asked for, and then only up to MAX_RECORDS_BYTES.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import BinaryIO

from crc32c import crc32c

from logflume.log.batch import HEADER_BYTES, BatchHeader, Codec, decode_records, parse_header, parse_marker
from logflume.log.batch.header import size_at
from logflume.log.errors import LogflumeError

Entry = dict[str, object]
Shown = Callable[[bytes | None, bytes | None], tuple[object, object]]
"""Turns key and value of a record into what is shown."""

CHUNK_BYTES = 1 << 20
MAX_RECORDS_BYTES = 64 << 20
"""A larger batch is told without its records."""
MAX_MARKER_BYTES = 4096
_CRC_START = 21
_LENGTH_AND_MAGIC_BYTES = 17


def dump_batches(path: str, *, shown: Shown | None = None) -> Iterator[Entry]:
    """Yield an entry per batch and, with `shown`, one per record behind it; the last entry is of kind damage if bytes are wrong.

    `shown`: how keys and values are told; None: records are not read.
    """
    size_bytes = os.path.getsize(path)
    with open(path, "rb", buffering=0) as file:
        position = 0
        while position < size_bytes:
            head = os.pread(file.fileno(), HEADER_BYTES, position)
            try:
                header = _header(head, position, size_bytes - position)
            except LogflumeError as error:
                yield _damage(path, position, size_bytes, str(error))
                return
            entry = _batch_entry(header, position)
            found = _crc(file, header, position)
            if found != header.crc:
                entry["problem"] = f"expected CRC {header.crc:#010x}, found {found:#010x}"
                yield entry
                yield _damage(path, position, size_bytes, str(entry["problem"]))
                return
            if header.is_control and header.size_bytes <= MAX_MARKER_BYTES:
                entry["marker"] = _marker(file, header, position)
            yield entry
            if shown is not None and not header.is_control:
                yield from _records(file, header, position, shown)
            position += header.size_bytes


def _header(head: bytes, position: int, available: int) -> BatchHeader:
    """Parse a header whose batch may be longer than what was read. Raises CorruptBatch."""
    if len(head) < HEADER_BYTES:
        return parse_header(head)
    size_bytes = size_at(head) or 0
    padded = memoryview(bytearray(head))
    header = parse_header(padded, end=max(HEADER_BYTES, min(available, size_bytes)))
    assert header.size_bytes <= available, position
    return header


def _batch_entry(header: BatchHeader, position: int) -> Entry:
    return {
        "kind": "batch",
        "position": position,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "size_bytes": header.size_bytes,
        "codec": Codec(header.codec).name.lower(),
        "timestamp_type": "LogAppendTime" if header.is_append_time else "CreateTime",
        "base_timestamp_ms": header.base_timestamp,
        "max_timestamp_ms": header.max_timestamp,
        "leader_epoch": header.partition_leader_epoch,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "last_sequence": header.last_sequence,
        "is_transactional": header.is_transactional,
        "is_control": header.is_control,
        "has_delete_horizon": header.has_delete_horizon,
        "crc": f"{header.crc:#010x}",
    }


def _crc(file: BinaryIO, header: BatchHeader, position: int) -> int:
    """Return the checksum of a batch, read in pieces."""
    crc, at, end = 0, position + _CRC_START, position + header.size_bytes
    while at < end:
        piece = os.pread(file.fileno(), min(CHUNK_BYTES, end - at), at)
        if not piece:
            break
        crc = crc32c(piece, crc)
        at += len(piece)
    return crc


def _marker(file: BinaryIO, header: BatchHeader, position: int) -> str:
    try:
        marker = parse_marker(os.pread(file.fileno(), header.size_bytes, position))
    except LogflumeError as error:
        return f"unreadable: {error}"
    if marker is None:
        return "of another kind"
    return f"{'commit' if marker.is_commit else 'abort'}, coordinator epoch {marker.coordinator_epoch}"


def _records(file: BinaryIO, header: BatchHeader, position: int, shown: Shown) -> Iterator[Entry]:
    if header.size_bytes > MAX_RECORDS_BYTES:
        yield {
            "kind": "note",
            "note": f"records left out: the batch has {header.size_bytes} bytes, more than {MAX_RECORDS_BYTES}",
        }
        return
    try:
        records = decode_records(os.pread(file.fileno(), header.size_bytes, position), has_crc_check=False)
    except LogflumeError as error:
        yield {"kind": "note", "note": f"records cannot be read: {error}"}
        return
    for record in records:
        key, value = shown(record.key, record.value)
        entry: Entry = {
            "kind": "record",
            "offset": record.offset,
            "timestamp_ms": record.timestamp_ms,
            "key": key,
            "value": value,
        }
        if record.headers:
            entry["headers"] = [
                [name, None if data is None else data.decode("utf-8", "backslashreplace")] for name, data in record.headers
            ]
        yield entry


def _damage(path: str, position: int, size_bytes: int, problem: str) -> Entry:
    return {"kind": "damage", "path": path, "position": position, "bytes_left": size_bytes - position, "problem": problem}
