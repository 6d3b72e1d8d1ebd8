"""The records section in plain Python: decode to objects, encode from objects. No numpy, so that the broker may use it.

The faster twins for many records are in `columns.py`; both give the same bytes and the same objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .compression import MAX_DECOMPRESSED_BYTES, Codec, compress, decompress
from .errors import CorruptBatch
from .header import (
    CONTROL_BIT,
    HEADER_BYTES,
    MIN_RECORD_BYTES,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    check_crc,
    pack_header,
    parse_header,
)
from .varint import read_varint, read_varlong, write_varint

Headers = tuple[tuple[str, bytes | None], ...]

_NULL = 1
"""The varint of length -1."""
_MIN_I64, _MAX_I64 = -(2**63), 2**63 - 1


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
    header = parse_header(buffer, position)
    if has_crc_check:
        check_crc(buffer, header, position)
    section = records_section(buffer, position, header, max_decompressed_bytes=max_decompressed_bytes)
    return decode_section(bytes(section), header)


def records_section(
    buffer: Buffer, position: int, header: BatchHeader, *, max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES
) -> Buffer:
    """Return the uncompressed records of a batch whose header was parsed, and check that its count can be true."""
    section: Buffer = memoryview(buffer)[position + HEADER_BYTES : position + header.size_bytes]
    if header.codec:
        section = decompress(header.codec, section, max_bytes=max_decompressed_bytes)
    if header.record_count * MIN_RECORD_BYTES > len(section):
        raise CorruptBatch(
            f"batch at offset {header.base_offset}: {header.record_count} records cannot fit into {len(section)} bytes"
        )
    return section


def decode_section(data: bytes, header: BatchHeader) -> list[RecordData]:
    """Decode all of an uncompressed records section.

    Raises:
        CorruptBatch: lengths, deltas or the count do not hold together.
    """
    return [
        RecordData(
            span.offset,
            span.timestamp_ms,
            data[span.key_start : span.key_start + span.key_size] if span.key_size >= 0 else None,
            data[span.value_start : span.value_start + span.value_size] if span.value_size >= 0 else None,
            read_header_list(data, span.header_start, span.header_count, len(data))[0] if span.header_count else (),
        )
        for span in decode_spans(data, header)
    ]


class RecordSpan(NamedTuple):
    """Where one record's parts are in its section. Sizes are -1 for null; `header_start` is behind the header count."""

    offset: int
    timestamp_ms: int
    key_start: int
    key_size: int
    value_start: int
    value_size: int
    header_start: int
    header_count: int


def decode_spans(data: bytes, header: BatchHeader) -> list[RecordSpan]:
    """Find all records of an uncompressed records section, without taking their bytes out. Raises as `decode_section`."""
    return list(iter_spans(data, header))


def iter_spans(data: bytes, header: BatchHeader) -> Iterator[RecordSpan]:
    """Yield the records of an uncompressed records section one by one. Raises as `decode_section`."""
    row = position = 0
    previous_delta = -1
    append_time_ms = header.max_timestamp if header.is_append_time else None
    try:
        for row in range(header.record_count):  # noqa: B007 - it names the record in errors
            size, position = read_varint(data, position)
            end = position + size
            if size < MIN_RECORD_BYTES - 1 or end > len(data):
                raise CorruptBatch(f"record says {size} bytes where {len(data) - position} are left")
            timestamp_delta, position = read_varlong(data, position + 1)
            timestamp_ms = header.base_timestamp + timestamp_delta
            if not _MIN_I64 <= timestamp_ms <= _MAX_I64:
                raise CorruptBatch("timestamp exceeds 64 bits")
            delta, position = read_varint(data, position)
            if not previous_delta < delta <= header.last_offset_delta:
                raise CorruptBatch(f"offset delta {delta} after {previous_delta}, last is {header.last_offset_delta}")
            previous_delta = delta
            key_size, key_start = _read_size(data, position, end)
            value_size, value_start = _read_size(data, key_start + max(key_size, 0), end)
            header_count, header_start = read_varint(data, value_start + max(value_size, 0))
            position = skip_headers(data, header_start, header_count, end)
            if position != end:
                raise CorruptBatch(f"record has {end - position} bytes beyond its headers")
            yield RecordSpan(
                header.base_offset + delta,
                timestamp_ms if append_time_ms is None else append_time_ms,
                key_start,
                key_size,
                value_start,
                value_size,
                header_start,
                header_count,
            )
    except CorruptBatch as error:
        raise CorruptBatch(f"batch at offset {header.base_offset}, record {row}: {error}") from error
    except IndexError:
        raise CorruptBatch(f"batch at offset {header.base_offset}, record {row}: the records end early") from None
    if position != len(data):
        raise CorruptBatch(f"batch at offset {header.base_offset}: {len(data) - position} bytes beyond the last record")


def _read_size(data: bytes | memoryview, position: int, end: int) -> tuple[int, int]:
    """Return (size or -1 for null, where the bytes begin) of the length-prefixed bytes at `position`."""
    size, position = read_varint(data, position)
    if size < -1:
        raise CorruptBatch(f"length {size} is negative")
    if position + size > end:
        raise CorruptBatch(f"length {size} exceeds the {end - position} bytes left in the record")
    return size, position


def skip_headers(data: bytes | memoryview, position: int, count: int, end: int) -> int:
    """Return the position after `count` headers that begin at `position`."""
    if count < 0 or count * 2 > end - position:
        raise CorruptBatch(f"{count} headers cannot fit into the {end - position} bytes left in the record")
    for _ in range(count):
        name_size, position = _read_size(data, position, end)
        if name_size < 0:
            raise CorruptBatch("a header has no name")
        value_size, position = _read_size(data, position + name_size, end)
        position += max(value_size, 0)
    return position


def read_header_list(data: bytes, position: int, count: int, end: int) -> tuple[Headers, int]:
    """Read `count` headers at `position`, all before `end`; return them and the position after.

    Names that are not UTF-8 are kept by surrogate escapes.
    """
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        size, start = _read_size(data, position, end)
        if size < 0:
            raise CorruptBatch("a header has no name")
        name = data[start : start + size].decode("utf-8", "surrogateescape")
        size, position = _read_size(data, start + size, end)
        headers.append((name, data[position : position + size] if size >= 0 else None))
        position += max(size, 0)
    return tuple(headers), position


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
    count = len(values)
    assert count, "a batch wants at least one record"
    assert len(keys) == len(timestamps_ms) == count, "a batch wants as many keys as values and timestamps"
    base_timestamp_ms = timestamps_ms[0]
    section = bytearray()
    for i in range(count):
        write_record(section, timestamps_ms[i] - base_timestamp_ms, i, keys[i], values[i], () if headers is None else headers[i])
    batch = bytearray(HEADER_BYTES)
    batch += compress(codec, section)
    attributes = codec | (TRANSACTIONAL_BIT if is_transactional else 0) | (CONTROL_BIT if is_control else 0)
    pack_header(
        batch,
        size_bytes=len(batch),
        count=count,
        last_offset_delta=count - 1,
        base_timestamp_ms=base_timestamp_ms,
        max_timestamp_ms=max(timestamps_ms),
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=attributes,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )
    return batch


def write_record(
    section: bytearray, timestamp_delta_ms: int, offset_delta: int, key: bytes | None, value: bytes | None, headers: Headers
) -> None:
    """Append one record, with its length, to a records section."""
    body = bytearray(1)
    write_varint(body, timestamp_delta_ms)
    write_varint(body, offset_delta)
    _write_bytes(body, key)
    _write_bytes(body, value)
    write_varint(body, len(headers))
    body += header_list_bytes(headers)
    write_varint(section, len(body))
    section += body


def header_list_bytes(headers: Headers) -> bytearray:
    """Encode headers as they follow their count in a record."""
    out = bytearray()
    for name, value in headers:
        _write_bytes(out, name.encode("utf-8", "surrogateescape"))
        _write_bytes(out, value)
    return out


def _write_bytes(out: bytearray, data: bytes | None) -> None:
    if data is None:
        out.append(_NULL)
        return
    write_varint(out, len(data))
    out += data
