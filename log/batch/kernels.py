"""The compiled loops over records: decode, encode, gather, hash. Importing this module compiles them or loads them from cache.

Reading is bounded by the section, never by what the bytes say; a malformed record ends the loop with an error number
(`ERRORS`). Positions are into one uint8 buffer. Needs numba, imports nothing else of ours; `columns.py` decides when to use it.
"""

# numba's decorator has no types that survive it.
# mypy: disable-error-code="untyped-decorator,no-any-return,no-untyped-call"

from __future__ import annotations

from typing import Any

from numba import njit, types

ERRORS = (
    "",
    "the records end early or a varint is too long",
    "a record's length does not fit",
    "an offset delta does not fit",
    "a timestamp exceeds 64 bits",
    "a key's or value's length does not fit",
    "the headers do not fit",
    "there are bytes beyond the last record",
)
"""Texts of the error numbers that `decode_sections` returns."""

_EARLY, _LENGTH, _DELTA, _TIMESTAMP, _SIZE, _HEADERS, _TRAILING = range(1, 8)

_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_OUT_BYTES = types.Array(types.uint8, 1, "C")
_I64S = types.Array(types.int64, 1, "C", readonly=True)
_I32S = types.Array(types.int32, 1, "C", readonly=True)
_OUT_I64S = types.Array(types.int64, 1, "C")
_OUT_I32S = types.Array(types.int32, 1, "C")
_TABLE = types.Array(types.int64, 2, "C", readonly=True)
_I64: Any = types.int64
_I32: Any = types.int32
_U64: Any = types.uint64
_U32: Any = types.uint32
_U8: Any = types.uint8
_PAIR = types.UniTuple(types.int64, 2)


@njit(_PAIR(_BYTES, _I64, _I64), cache=True, nogil=True)
def _varlong(data: Any, at: int, end: int) -> tuple[int, int]:
    """Return (value, position after it); position -1 if it does not end before `end` or has more than 64 bits."""
    if at >= end:
        return 0, -1
    byte = _U64(data[at])
    at += 1
    raw = byte & _U64(0x7F)
    shift = _U64(7)
    while byte >= _U64(0x80):
        if at >= end or shift > _U64(63):
            return 0, -1
        byte = _U64(data[at])
        at += 1
        if shift == _U64(63) and byte > _U64(1):
            return 0, -1
        raw |= (byte & _U64(0x7F)) << shift
        shift += _U64(7)
    return _I64(raw >> _U64(1)) ^ -_I64(raw & _U64(1)), at


@njit(_PAIR(_BYTES, _I64, _I64), cache=True, nogil=True)
def _varint(data: Any, at: int, end: int) -> tuple[int, int]:
    """As `_varlong`, and position -1 for more than 32 bits."""
    value, at = _varlong(data, at, end)
    if value < -0x80000000 or value > 0x7FFFFFFF:
        return 0, -1
    return value, at


@njit(_PAIR(_BYTES, _I64, _I64), cache=True, nogil=True)
def _sized(data: Any, at: int, end: int) -> tuple[int, int]:
    """Return (size or -1, where the bytes begin); position -1 if they do not end before `end`."""
    size, at = _varint(data, at, end)
    if at < 0 or size < -1 or size > end - at:
        return 0, -1
    return size, at


@njit(_I64(_BYTES, _I64, _I64, _I64), cache=True, nogil=True)
def _skip_headers(data: Any, at: int, count: int, end: int) -> int:
    """Return the position behind `count` headers, -1 if they do not end before `end`."""
    if count < 0 or count * 2 > end - at:
        return -1
    for _ in range(count):
        name_size, at = _sized(data, at, end)
        if at < 0 or name_size < 0:
            return -1
        value_size, at = _sized(data, at + name_size, end)
        if at < 0:
            return -1
        at += max(value_size, 0)
    return at


@njit(
    types.UniTuple(_I64, 4)(
        _BYTES, _TABLE, _I64, _OUT_I64S, _OUT_I64S, _OUT_I64S, _OUT_I32S, _OUT_I64S, _OUT_I32S, _OUT_I64S, _OUT_I32S
    ),
    cache=True,
    nogil=True,
)
def decode_sections(
    data: Any,
    sections: Any,
    from_offset: int,
    offsets: Any,
    timestamps: Any,
    key_starts: Any,
    key_sizes: Any,
    value_starts: Any,
    value_sizes: Any,
    header_starts: Any,
    header_counts: Any,
) -> tuple[int, int, int, int]:
    """Decode the records with offset >= `from_offset` of all sections into the columns.

    sections: int64[B, 8]: start and end in `data`, record count, base offset, last offset delta, base timestamp, whether
    it is LogAppendTime (1 or 0), append time. The columns hold at least as many rows as the counts sum up to.
    Returns (rows written, error number or 0, section and record of the error).
    """
    row = 0
    for section in range(sections.shape[0]):
        at = sections[section, 0]
        section_end = sections[section, 1]
        count = sections[section, 2]
        base_offset = sections[section, 3]
        last_delta = sections[section, 4]
        base_timestamp = sections[section, 5]
        is_append_time = sections[section, 6] != 0
        append_time = sections[section, 7]
        previous_delta = _I64(-1)
        for record in range(count):
            size, at = _varint(data, at, section_end)
            if at < 0:
                return row, _EARLY, section, record
            if size < 6 or size > section_end - at:
                return row, _LENGTH, section, record
            end = at + size
            delta_ms, at = _varlong(data, at + 1, end)
            if at < 0:
                return row, _EARLY, section, record
            timestamp = base_timestamp + delta_ms
            if ((base_timestamp ^ timestamp) & (delta_ms ^ timestamp)) < 0:
                return row, _TIMESTAMP, section, record
            delta, at = _varint(data, at, end)
            if at < 0:
                return row, _EARLY, section, record
            if delta <= previous_delta or delta > last_delta:
                return row, _DELTA, section, record
            previous_delta = delta
            key_size, key_start = _sized(data, at, end)
            if key_start < 0:
                return row, _SIZE, section, record
            value_size, value_start = _sized(data, key_start + max(key_size, 0), end)
            if value_start < 0:
                return row, _SIZE, section, record
            header_count, header_start = _varint(data, value_start + max(value_size, 0), end)
            if header_start < 0:
                return row, _EARLY, section, record
            at = header_start
            if header_count != 0:
                at = _skip_headers(data, at, header_count, end)
            if at != end:
                return row, _HEADERS, section, record
            if base_offset + delta < from_offset:
                continue
            offsets[row] = base_offset + delta
            timestamps[row] = append_time if is_append_time else timestamp
            key_starts[row] = key_start
            key_sizes[row] = key_size
            value_starts[row] = value_start
            value_sizes[row] = value_size
            header_starts[row] = header_start
            header_counts[row] = header_count
            row += 1
        if at != section_end:
            return row, _TRAILING, section, count
    return row, 0, 0, 0


@njit(_I64(_OUT_BYTES, _I64, _I64), cache=True, nogil=True)
def _put_varlong(out: Any, at: int, value: int) -> int:
    raw = (_U64(value) << _U64(1)) ^ _U64(value >> 63)
    while raw > _U64(0x7F):
        out[at] = _U8((raw & _U64(0x7F)) | _U64(0x80))
        at += 1
        raw >>= _U64(7)
    out[at] = _U8(raw)
    return at + 1


@njit(_I64(_I64), cache=True, nogil=True)
def _varlong_size(value: int) -> int:
    raw = (_U64(value) << _U64(1)) ^ _U64(value >> 63)
    size = 1
    while raw > _U64(0x7F):
        size += 1
        raw >>= _U64(7)
    return size


@njit(_I64(_BYTES, _I64, _I64, _OUT_BYTES, _I64), cache=True, nogil=True)
def _copy(data: Any, start: int, size: int, out: Any, at: int) -> int:
    for i in range(size):
        out[at + i] = data[start + i]
    return at + max(size, 0)


@njit(_I64(_BYTES, _I64S, _I32S, _OUT_I64S), cache=True, nogil=True)
def measure_headers(data: Any, header_starts: Any, header_counts: Any, sizes: Any) -> int:
    """Write the bytes of each row's headers, without the count, into `sizes`; return their sum, -1 if one is malformed."""
    total = 0
    for row in range(header_counts.shape[0]):
        size = _I64(0)
        if header_counts[row] != 0:
            end = _skip_headers(data, header_starts[row], header_counts[row], data.shape[0])
            if end < 0:
                return -1
            size = end - header_starts[row]
        sizes[row] = size
        total += size
    return total


@njit(_I64(_BYTES, _I64S, _I64S, _I64S, _I32S, _I64S, _I32S, _I64S, _I32S, _I64S, _OUT_BYTES, _I64), cache=True, nogil=True)
def encode_section(
    data: Any,
    rows: Any,
    timestamps: Any,
    key_starts: Any,
    key_sizes: Any,
    value_starts: Any,
    value_sizes: Any,
    header_starts: Any,
    header_counts: Any,
    header_sizes: Any,
    out: Any,
    at: int,
) -> int:
    """Write the records of `rows` (indices into the columns) at `at` of `out`, which is big enough; return the end position."""
    base_timestamp = timestamps[rows[0]]
    for i in range(rows.shape[0]):
        row = rows[i]
        delta_ms = timestamps[row] - base_timestamp
        key_size = _I64(key_sizes[row])
        value_size = _I64(value_sizes[row])
        header_count = _I64(header_counts[row])
        size = 1 + _varlong_size(delta_ms) + _varlong_size(i) + _varlong_size(key_size) + max(key_size, 0)
        size += _varlong_size(value_size) + max(value_size, 0) + _varlong_size(header_count) + header_sizes[row]
        at = _put_varlong(out, at, size)
        out[at] = 0
        at = _put_varlong(out, at + 1, delta_ms)
        at = _put_varlong(out, at, i)
        at = _put_varlong(out, at, key_size)
        at = _copy(data, key_starts[row], key_size, out, at)
        at = _put_varlong(out, at, value_size)
        at = _copy(data, value_starts[row], value_size, out, at)
        at = _put_varlong(out, at, header_count)
        at = _copy(data, header_starts[row], header_sizes[row], out, at)
    return at


@njit(_I64(_BYTES, _I64S, _I32S, _OUT_I32S, _OUT_BYTES), cache=True, nogil=True)
def gather(data: Any, starts: Any, sizes: Any, bounds: Any, out: Any) -> int:
    """Copy N spans one after the other into `out`; bounds: int32[N+1] gets where each begins and ends. Returns the bytes."""
    at = _I64(0)
    bounds[0] = 0
    for row in range(starts.shape[0]):
        size = max(_I64(sizes[row]), 0)
        at = _copy(data, starts[row], size, out, at)
        bounds[row + 1] = _I32(at)
    return at


@njit(types.void(_BYTES, _I64S, _I32S, _I32, _OUT_I32S), cache=True, nogil=True)
def murmur2_partitions(data: Any, starts: Any, sizes: Any, partition_count: int, partitions: Any) -> None:
    """Write Kafka's partition of each key into `partitions`, -1 for a null key (see `murmur2.py`)."""
    m = _U32(0x5BD1E995)
    for row in range(starts.shape[0]):
        size = _I64(sizes[row])
        if size < 0:
            partitions[row] = -1
            continue
        at = starts[row]
        h = _U32(_U32(0x9747B28C) ^ _U32(size))
        for _ in range(size // 4):
            k = _U32(
                _U32(data[at])
                | (_U32(data[at + 1]) << _U32(8))
                | (_U32(data[at + 2]) << _U32(16))
                | (_U32(data[at + 3]) << _U32(24))
            )
            k = _U32(k * m)
            k = _U32((k ^ (k >> _U32(24))) * m)
            h = _U32(_U32(h * m) ^ k)
            at += 4
        if size & 3:
            for i in range(size & 3):
                h = _U32(h ^ (_U32(data[at + i]) << _U32(8 * i)))
            h = _U32(h * m)
        h = _U32((h ^ (h >> _U32(13))) * m)
        h = _U32(h ^ (h >> _U32(15)))
        partitions[row] = _I32(_I64(h & _U32(0x7FFFFFFF)) % _I64(partition_count))
