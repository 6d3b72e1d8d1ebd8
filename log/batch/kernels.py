"""The compiled loops over records: decode, encode, pack, hash. Importing this module compiles them or loads them from cache.

Reading is bounded by the section, never by what the bytes say; a malformed record ends the loop with an error number
(`ERRORS`). Positions are into one uint8 buffer. Needs numba; `columns.py` decides when to use it.
"""

# numba's decorators have no types that survive them; an intrinsic's first parameter is not its callers'.
# mypy: disable-error-code="untyped-decorator,no-any-return,no-untyped-call,call-arg,arg-type"

from __future__ import annotations

from typing import Any

from numba import njit, types

from logflume.log.memory import copy_bytes, load_byte, load_half, load_word, store_byte, store_half, store_word

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

MIN_RECORD_BYTES = 7
"""Length, attributes, time, offset, key length, value length and header count, of one byte each."""

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


@njit(_PAIR(_I64, _I64, _I64), cache=True, nogil=True)
def _long_varint(data: int, at: int, end: int) -> tuple[int, int]:
    """Return (value, position after it) of a varint of any length; -1 if it does not end before `end` or exceeds 64 bits."""
    raw = _U64(0)
    shift = _U64(0)
    while at < end and shift <= _U64(63):
        byte = _U64(load_byte(data, at))
        at += 1
        if shift == _U64(63) and byte > _U64(1):
            return 0, -1
        raw |= (byte & _U64(0x7F)) << shift
        shift += _U64(7)
        if byte < _U64(0x80):
            return _I64(raw >> _U64(1)) ^ -_I64(raw & _U64(1)), at
    return 0, -1


@njit(inline="always")
def _varlong(data: int, at: int, end: int) -> tuple[int, int]:
    """As `_long_varint`; one and two bytes, the usual lengths, are done in place."""
    if at + 1 < end:
        low: Any = load_byte(data, at)
        if low < 0x80:
            return (low >> 1) ^ -(low & 1), at + 1
        high = load_byte(data, at + 1)
        if high < 0x80:
            raw = (low & 0x7F) | (high << 7)
            return (raw >> 1) ^ -(raw & 1), at + 2
    return _long_varint(data, at, end)


@njit(inline="always")
def _varint(data: int, at: int, end: int) -> tuple[int, int]:
    """As `_varlong`, and position -1 for more than 32 bits."""
    value, after = _varlong(data, at, end)
    if value < -0x80000000 or value > 0x7FFFFFFF:
        return 0, -1
    return value, after


@njit(inline="always")
def _sized(data: int, at: int, end: int) -> tuple[int, int]:
    """Return (size or -1, where the bytes begin); position -1 if they do not end before `end`."""
    size, start = _varint(data, at, end)
    if start < 0 or size < -1 or size > end - start:
        return 0, -1
    return size, start


@njit(_I64(_I64, _I64, _I64, _I64), cache=True, nogil=True)
def _skip_headers(data: int, at: int, count: int, end: int) -> int:
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
    address = _I64(data.ctypes.data)
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
            size, at = _varint(address, at, section_end)
            if at < 0:
                return row, _EARLY, section, record
            if size < 6 or size > section_end - at:
                return row, _LENGTH, section, record
            end = at + size
            delta_ms, at = _varlong(address, at + 1, end)
            if at < 0:
                return row, _EARLY, section, record
            timestamp = base_timestamp + delta_ms
            if ((base_timestamp ^ timestamp) & (delta_ms ^ timestamp)) < 0:
                return row, _TIMESTAMP, section, record
            delta, at = _varint(address, at, end)
            if at < 0:
                return row, _EARLY, section, record
            if delta <= previous_delta or delta > last_delta:
                return row, _DELTA, section, record
            previous_delta = delta
            key_size, key_start = _sized(address, at, end)
            if key_start < 0:
                return row, _SIZE, section, record
            value_size, value_start = _sized(address, key_start + max(key_size, 0), end)
            if value_start < 0:
                return row, _SIZE, section, record
            header_count, header_start = _varint(address, value_start + max(value_size, 0), end)
            if header_start < 0:
                return row, _EARLY, section, record
            at = header_start
            if header_count != 0:
                at = _skip_headers(address, at, header_count, end)
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


@njit(
    types.UniTuple(_I64, 2)(_BYTES, _OUT_I64S, _OUT_I64S, _OUT_I64S, _OUT_I64S, _OUT_I32S, types.Array(types.boolean, 1, "C")),
    cache=True,
    nogil=True,
)
def scan_keys(
    data: Any, deltas: Any, starts: Any, ends: Any, key_starts: Any, key_sizes: Any, is_tombstone: Any
) -> tuple[int, int]:
    """Find the key of each record and where the record lies; the columns hold one row a record, `data` exactly those records.

    Returns (error number or 0, record of the error).
    """
    at = _I64(0)
    address = _I64(data.ctypes.data)
    data_end = _I64(data.shape[0])
    for row in range(deltas.shape[0]):
        starts[row] = at
        size, at = _varint(address, at, data_end)
        if at < 0:
            return _EARLY, row
        if size < 6 or size > data_end - at:
            return _LENGTH, row
        end = at + size
        _, at = _varlong(address, at + 1, end)
        if at < 0:
            return _EARLY, row
        deltas[row], at = _varint(address, at, end)
        if at < 0:
            return _EARLY, row
        key_sizes[row], key_starts[row] = _sized(address, at, end)
        at = key_starts[row] + max(key_sizes[row], 0)
        if key_starts[row] < 0 or at >= end:
            return _SIZE, row
        is_tombstone[row] = load_byte(address, at) == 1
        ends[row] = end
        at = end
    return (0, 0) if at == data_end else (_TRAILING, deltas.shape[0])


@njit(inline="always")
def _put_varlong(out: int, at: int, value: int) -> int:
    raw = _U64((value << 1) ^ (value >> 63))
    while raw > _U64(0x7F):
        store_byte(out, at, _I64(raw | _U64(0x80)))
        at += 1
        raw >>= _U64(7)
    store_byte(out, at, _I64(raw))
    return at + 1


@njit(inline="always")
def _varlong_size(value: int) -> int:
    raw = _U64((value << 1) ^ (value >> 63))
    size = 1
    while raw > _U64(0x7F):
        size += 1
        raw >>= _U64(7)
    return size


@njit(inline="always")
def _copy(data: int, start: int, size: int, out: int, at: int) -> int:
    """Copy bytes; a call of memcpy costs more than the few words of a short key."""
    if size <= 0:
        return at
    if size >= 16 or size < 4:
        copy_bytes(data + start, out + at, size)
    elif size >= 8:
        store_word(out, at, load_word(data, start))
        store_word(out, at + size - 8, load_word(data, start + size - 8))
    else:
        store_half(out, at, load_half(data, start))
        store_half(out, at + size - 4, load_half(data, start + size - 4))
    return at + size


@njit(_I64(_BYTES, _I64S, _I32S, _OUT_I64S), cache=True, nogil=True)
def measure_headers(data: Any, header_starts: Any, header_counts: Any, sizes: Any) -> int:
    """Write the bytes of each row's headers, without the count, into `sizes`; return their sum, -1 if one is malformed."""
    total = 0
    address = _I64(data.ctypes.data)
    for row in range(header_counts.shape[0]):
        size = _I64(0)
        if header_counts[row] != 0:
            end = _skip_headers(address, header_starts[row], header_counts[row], data.shape[0])
            if end < 0:
                return -1
            size = end - header_starts[row]
        sizes[row] = size
        total += size
    return total


@njit(_I64(_I64S, _I64S, _I32S, _I64S, _I32S, _I64, _I64), cache=True, nogil=True)
def measure_rows(
    rows: Any, key_starts: Any, key_sizes: Any, value_starts: Any, value_sizes: Any, size_bytes: int, overhead_bytes: int
) -> int:
    """Return the bytes of the keys and values of `rows`, with `overhead_bytes` for each; -1 if one lies outside of the buffer."""
    total = _I64(0)
    for i in range(rows.shape[0]):
        row = rows[i]
        key_size = max(_I64(key_sizes[row]), _I64(0))
        value_size = max(_I64(value_sizes[row]), _I64(0))
        if key_sizes[row] >= 0 and (key_starts[row] < 0 or key_starts[row] > size_bytes - key_size):
            return _I64(-1)
        if value_sizes[row] >= 0 and (value_starts[row] < 0 or value_starts[row] > size_bytes - value_size):
            return _I64(-1)
        total += key_size + value_size + overhead_bytes
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
    source = _I64(data.ctypes.data)
    target = _I64(out.ctypes.data)
    for i in range(rows.shape[0]):
        row = rows[i]
        delta_ms = timestamps[row] - base_timestamp
        key_size = _I64(key_sizes[row])
        value_size = _I64(value_sizes[row])
        header_count = _I64(header_counts[row])
        size = 1 + _varlong_size(delta_ms) + _varlong_size(i) + _varlong_size(key_size) + max(key_size, 0)
        size += _varlong_size(value_size) + max(value_size, 0) + _varlong_size(header_count) + header_sizes[row]
        at = _put_varlong(target, at, size)
        store_byte(target, at, 0)
        at = _put_varlong(target, at + 1, delta_ms)
        at = _put_varlong(target, at, i)
        at = _put_varlong(target, at, key_size)
        at = _copy(source, key_starts[row], key_size, target, at)
        at = _put_varlong(target, at, value_size)
        at = _copy(source, value_starts[row], value_size, target, at)
        at = _put_varlong(target, at, header_count)
        at = _copy(source, header_starts[row], header_sizes[row], target, at)
    return at


@njit(inline="always")
def _put_big_endian(out: int, at: int, value: int) -> int:
    store_byte(out, at, value >> 24)
    store_byte(out, at + 1, value >> 16)
    store_byte(out, at + 2, value >> 8)
    store_byte(out, at + 3, value)
    return at + 4


@njit(_I64(_BYTES, _I64S, _I32S, _OUT_BYTES), cache=True, nogil=True)
def pack_spans(data: Any, starts: Any, sizes: Any, out: Any) -> int:
    """Write N spans as a MessagePack array of bin and nil into `out`, which is big enough; return its size."""
    source = _I64(data.ctypes.data)
    target = _I64(out.ctypes.data)
    store_byte(target, 0, 0xDD)
    at = _put_big_endian(target, 1, starts.shape[0])
    for row in range(starts.shape[0]):
        size = _I64(sizes[row])
        if size < 0:
            store_byte(target, at, 0xC0)
            at += 1
        elif size < 0x100:
            store_byte(target, at, 0xC4)
            store_byte(target, at + 1, size)
            at = _copy(source, starts[row], size, target, at + 2)
        else:
            store_byte(target, at, 0xC6)
            at = _copy(source, starts[row], size, target, _put_big_endian(target, at + 1, size))
    return at


@njit(types.void(_BYTES, _I64S, _I32S, _I32, _OUT_I32S), cache=True, nogil=True)
def murmur2_partitions(data: Any, starts: Any, sizes: Any, partition_count: int, partitions: Any) -> None:
    """Write Kafka's partition of each key into `partitions`, -1 for a null key (see `murmur2.py`)."""
    m = _U32(0x5BD1E995)
    source = _I64(data.ctypes.data)
    for row in range(starts.shape[0]):
        size = _I64(sizes[row])
        if size < 0:
            partitions[row] = -1
            continue
        at = starts[row]
        h = _U32(_U32(0x9747B28C) ^ _U32(size))
        for _ in range(size // 4):
            k = _U32(load_half(source, at))
            k = _U32(k * m)
            k = _U32((k ^ (k >> _U32(24))) * m)
            h = _U32(_U32(h * m) ^ k)
            at += 4
        if size & 3:
            for i in range(size & 3):
                h = _U32(h ^ (_U32(load_byte(source, at + i)) << _U32(8 * i)))
            h = _U32(h * m)
        h = _U32((h ^ (h >> _U32(13))) * m)
        h = _U32(h ^ (h >> _U32(15)))
        partitions[row] = _I32(_I64(h & _U32(0x7FFFFFFF)) % _I64(partition_count))
