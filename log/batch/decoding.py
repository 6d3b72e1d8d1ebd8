"""A whole fetch response (many batches) to one chunk of columns: the client's hot path.

The loops run in numba kernels (`kernels.py`) when they are loaded, else in C, else in plain Python, with the same result (a
property test). Columns are numpy arrays, and memoryviews of the same types where numpy is not installed: a chunk's keys, values,
headers and records are read without it.
"""

from __future__ import annotations

import functools
import importlib.util
from array import array
from types import ModuleType
from typing import Any, Literal, NamedTuple

from logflume.log.records import Chunk

from .compression import MAX_DECOMPRESSED_BYTES
from .errors import BatchTooLarge, CorruptBatch
from .header import HEADER_BYTES, BatchHeader, Buffer, check_crc, iter_batches
from .isolation import AbortedTransactions, visible_batches
from .records import decode_spans, records_section
from .tiers import kernel_tier
from .walk import locate

_COLUMN_TYPES: tuple[Literal["i", "q"], ...] = ("q", "q", "q", "i", "q", "i", "q", "i")
"""Of a chunk's columns from offsets to header counts: 64 and 32 bits."""
_NUMPY_TYPES = {"B": "u1", "i": "i4", "q": "i8"}


@functools.cache
def has_numpy() -> bool:
    return importlib.util.find_spec("numpy") is not None


class _Section(NamedTuple):
    """A run of uncompressed records inside a chunk's buffer, with the header of its batch."""

    start: int
    end: int
    header: BatchHeader


def decode_fetch(
    topic: str,
    partition: int,
    buffer: Buffer,
    *,
    from_offset: int,
    aborted: AbortedTransactions = (),
    has_crc_check: bool = True,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> Chunk:
    """Decode the batches of a fetch response into one chunk of the records with offset >= `from_offset`.

    A batch cut short at the end of the buffer is left out. Control batches and the transactions in `aborted`
    ((producer id, first offset) pairs) are left out but move `next_offset`. When all batches are uncompressed the chunk's
    columns point into `buffer` itself: it must not be written afterwards.

    Raises:
        CorruptBatch: header, checksum, compression or records do not hold together.
        BatchTooLarge: the records unpack to more than `max_decompressed_bytes`.
    """
    batches = list(iter_batches(buffer))
    if has_crc_check:
        for position, header in batches:
            check_crc(buffer, header, position)
    next_offset = max(batches[-1][1].last_offset + 1, from_offset) if batches else from_offset
    visible = [item for item in visible_batches(buffer, batches, aborted) if item[1].last_offset >= from_offset]
    data, sections = _unpack(buffer, visible, max_decompressed_bytes)
    total = sum(section.header.record_count for section in sections)
    kernels = kernel_tier().kernels(total)
    if kernels is None:
        columns = _decode_at_once(data, sections, from_offset, total)
    else:
        columns = _decode_compiled(kernels, data, sections, from_offset, total)
    fields = [topic, partition, _column("B", data), *columns, next_offset]
    return Chunk(*fields)


def _unpack(buffer: Buffer, batches: list[tuple[int, BatchHeader]], max_decompressed_bytes: int) -> tuple[Buffer, list[_Section]]:
    """Return one buffer with the uncompressed records of all batches, and where each batch's are."""
    if not any(header.codec for _, header in batches):
        sections = []
        for position, header in batches:
            records_section(buffer, position, header)
            sections.append(_Section(position + HEADER_BYTES, position + header.size_bytes, header))
        return buffer, sections
    parts: list[Buffer] = []
    sections = []
    at = 0
    for position, header in batches:
        if at >= max_decompressed_bytes:
            raise BatchTooLarge(f"the batches unpack to more than the {max_decompressed_bytes} bytes allowed")
        part = records_section(buffer, position, header, max_decompressed_bytes=max_decompressed_bytes - at)
        parts.append(part)
        sections.append(_Section(at, at + len(part), header))
        at += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts), sections


def _empty_columns(total: int) -> list[Any]:
    """Return the eight columns of a chunk, from offsets to header counts, with room for `total` rows."""
    return [_column(kind, bytearray(array(kind).itemsize * total)) for kind in _COLUMN_TYPES]


def _column(kind: Literal["B", "i", "q"], data: Buffer | array[int]) -> Any:
    """Return a buffer as a column of a type of `array`."""
    if not has_numpy():
        return memoryview(data).cast("B").cast(kind)
    import numpy as np

    return np.frombuffer(data, _NUMPY_TYPES[kind])


def _table(sections: list[_Section]) -> Any:
    """Return int64[8 B], of each batch: start, end, record count, base offset, last offset delta, base timestamp, whether it is
    the time of the append, that time."""
    table = array("q")
    for start, end, header in sections:
        table.extend((start, end, header.record_count, header.base_offset, header.last_offset_delta, header.base_timestamp))
        table.extend((header.is_append_time, header.max_timestamp))
    return table


def _decode_compiled(kernels: ModuleType, data: Buffer, sections: list[_Section], from_offset: int, total: int) -> list[Any]:
    columns = _empty_columns(total)
    table = _column("q", _table(sections)).reshape(len(sections), 8)
    rows, error, section, record = kernels.decode_sections(_column("B", data), table, from_offset, *columns)
    if error:
        offset = sections[section].header.base_offset
        raise CorruptBatch(f"batch at offset {offset}, record {record}: {kernels.ERRORS[error]}")
    return columns if rows == total else [column[:rows] for column in columns]


def _decode_at_once(data: Buffer, sections: list[_Section], from_offset: int, total: int) -> list[Any]:
    """Decode without the kernels. What is no record is looked at again in Python, which says what is wrong with it."""
    if locate is not None:
        columns = _empty_columns(total)
        rows = locate(data, _table(sections), from_offset, *columns)
        if rows >= 0:
            return columns if rows == total else [column[:rows] for column in columns]
    return _decode_plain(data, sections, from_offset)


def _decode_plain(data: Buffer, sections: list[_Section], from_offset: int) -> list[Any]:
    rows: list[tuple[int, ...]] = []
    for start, end, header in sections:
        for span in decode_spans(bytes(memoryview(data)[start:end]), header):
            if span.offset >= from_offset:
                rows.append(  # noqa: PERF401 - a nested comprehension would hide the shift
                    (
                        span.offset,
                        span.timestamp_ms,
                        span.key_start + start,
                        span.key_size,
                        span.value_start + start,
                        span.value_size,
                        span.header_start + start,
                        span.header_count,
                    )
                )
    values = zip(*rows, strict=True) if rows else [()] * len(_COLUMN_TYPES)
    return [_column(kind, array(kind, column)) for kind, column in zip(_COLUMN_TYPES, values, strict=True)]
