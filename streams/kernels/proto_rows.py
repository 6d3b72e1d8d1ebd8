"""Protobuf messages <-> columns: the kernels, which go by the steps of a layout (`logflume.log.schemas`, proto_layout).

As in `json_rows`: what a record has that is not held exactly makes it uncertain, never wrong, and the serde takes it. So fields
that nobody wants are checked as far as Protobuf's own parser checks them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

from logflume.log.memory import load_byte, load_double, load_half, load_single, load_word, store_byte, store_word

from .binary import BROKEN, PLAIN, from_zigzag, put_varint, read_varint, starts_with, text_state, varint_size
from .signatures import B1, B2, F2, I2, IN_I2, IN_I32, IN_I64, IN_U8, WRITE
from .spans import put_span

(
    HEAD, UNKNOWN, INT32, INT64, UINT32, UINT64, SINT32, SINT64, BOOL, ENUM, FIXED32, SFIXED32, FLOAT, FIXED64, SFIXED64, DOUBLE,
    STRING, BYTES, MESSAGE, TIMESTAMP,
) = range(20)  # fmt: skip
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_NULL, _EMPTY = -1, -2
_COLUMN_DOUBLE, _COLUMN_STRING, _COLUMN_PART = 3, 4, 5
_ALWAYS, _WRAPPED = 1, 2
_MAX_NESTING = 32
_MAX_SECONDS = np.int64(9_000_000_000_000_000)
_LOW_HALF = np.int64(0xFFFFFFFF)


@njit
def _wire_type(operation: Any) -> int:
    if operation <= ENUM:
        return _VARINT
    if operation <= FLOAT:
        return _FIXED32
    return _FIXED64 if operation <= DOUBLE else _LENGTH


@njit
def _signed(value: int) -> int:
    """Return the lowest 32 bits as a signed number."""
    return ((value & _LOW_HALF) ^ np.int64(0x80000000)) - np.int64(0x80000000)


@njit
def _is_packed(operation: Any, at: int, end: int) -> bool:
    """Return whether bytes are numbers one behind the other."""
    wire = _wire_type(operation)
    if wire == _FIXED32:
        return (end - at) % 4 == 0
    if wire == _FIXED64:
        return (end - at) % 8 == 0
    while at < end:
        _, at = read_varint(at, end)
        if at < 0:
            return False
    return True


@njit
def _timestamp(at: int, end: int) -> Any:
    """Return (milliseconds, whether that is certain) of a google.protobuf.Timestamp with each field at most once."""
    seconds, nanos, seen = np.int64(0), np.int64(0), 0
    while at < end:
        tag: Any = load_byte(at, 0)
        value, at = read_varint(at + 1, end)
        if at < 0:
            return np.int64(0), False
        if tag == 8 and seen & 1 == 0:
            seen |= 1
            seconds = value
        elif tag == 16 and seen & 2 == 0:
            seen |= 2
            nanos = _signed(value)
        else:
            return np.int64(0), False
    if not -_MAX_SECONDS < seconds < _MAX_SECONDS:
        return np.int64(0), False
    return seconds * 1000 + nanos // 1000000, True


@njit(
    types.int64(IN_U8, IN_I64, IN_I32, IN_U8, IN_I2, IN_I64, IN_I64, IN_I64, IN_I64, IN_I64, B1, B1, B2, I2, F2, I2),
    cache=True,
    nogil=True,
    error_model="numpy",
)
def extract(
    buffer: Any,
    starts: Any,
    sizes: Any,
    head: Any,
    steps: Any,
    symbols: Any,
    symbol_sizes: Any,
    numbers: Any,
    kinds: Any,
    absent: Any,
    taken: Any,
    certain: Any,
    nulls: Any,
    ints: Any,
    floats: Any,
    lengths: Any,
) -> int:
    """Decode those of N records that begin with `head` and are not `taken` yet; return how many, and say of which it is certain.

    As `avro_rows.extract`; numbers: those of the symbols. absent: of each column, what it is where a record does not have it.
    """
    base = np.int64(buffer.ctypes.data)
    limit = base + len(buffer)
    before, before_size = np.int64(head.ctypes.data), np.int64(len(head))
    count = np.int64(0)
    ends, runs = np.zeros(_MAX_NESTING, np.int64), np.zeros(_MAX_NESTING, np.int64)
    for i in range(len(starts)):
        if taken[i] or sizes[i] < 0:
            continue
        at = base + starts[i]
        end = at + sizes[i]
        if not starts_with(at, end, before, before_size):
            continue
        at += before_size
        taken[i] = True
        count += 1
        for f in range(len(kinds)):
            what = absent[f]
            nulls[f, i] = what == _NULL
            ints[f, i] = symbols[what] if what >= 0 else np.int64(0)
            if kinds[f] >= _COLUMN_STRING:
                lengths[f, i] = symbol_sizes[what] if what >= 0 else np.int64(0)
        depth = 0
        run = np.int64(0)
        oneofs = np.int64(0)
        is_sure = True
        while True:
            if at >= end:
                if at > end:
                    is_sure = False
                    break
                if depth == 0:
                    break
                depth -= 1
                end, run = ends[depth], runs[depth]
                continue
            is_sure = False
            tagged: Any = at
            began: Any = at
            tag, at = read_varint(at, end)
            if at < 0 or tag < 8 or tag > 0xFFFFFFFF or at - began > 5:
                break
            number, wire = tag >> 3, tag & 7
            step: Any = run + number if number <= steps[run, 2] else np.int64(-1)
            operation: Any = steps[step, 0] if step >= 0 else np.int64(UNKNOWN)
            f = steps[step, 1] if step >= 0 else np.int64(-1)
            bits, size = np.int64(0), np.int64(0)
            if wire == _VARINT:
                bits, at = read_varint(at, end)
                if at < 0:
                    break
            elif wire == _LENGTH:
                began = at
                size, at = read_varint(at, end)
                if at < 0 or size < 0 or size > end - at or at - began > 5:
                    break
            elif wire == _FIXED64:
                if end - at < 8:
                    break
                bits = load_word(at, 0)
                at += 8
            elif wire == _FIXED32:
                if end - at < 4:
                    break
                bits = load_half(at, 0)
                at += 4
            else:
                break
            is_sure = True
            if f >= 0 and kinds[f] == _COLUMN_PART:
                if lengths[f, i] == 0:
                    ints[f, i] = tagged
                elif ints[f, i] + lengths[f, i] != tagged:
                    is_sure = False
                    break
                lengths[f, i] = at + size - ints[f, i]
                f = np.int64(-1)
            if operation == UNKNOWN:
                at += size
                continue
            if wire != _wire_type(operation):
                if wire == _LENGTH and steps[step, 3] != 0 and not _is_packed(operation, at, at + size):
                    is_sure = False
                    break
                at += size
                continue
            oneof = steps[step, 4]
            if oneof > 0:
                if (oneofs >> oneof) & 1:
                    is_sure = False
                    break
                oneofs |= np.int64(1) << oneof
            if wire == _LENGTH:
                if operation == MESSAGE:
                    if depth == _MAX_NESTING:
                        is_sure = False
                        break
                    if f >= 0:
                        nulls[f, i] = False
                    ends[depth], runs[depth] = end, run
                    depth += 1
                    end, run = at + size, steps[step, 2]
                    continue
                if operation == STRING:
                    state = text_state(at, at + size, limit)
                    if state == BROKEN:
                        is_sure = False
                        break
                    if f >= 0:
                        nulls[f, i] = False
                        ints[f, i] = at
                        lengths[f, i] = size if state == PLAIN else -1 - size
                elif operation == BYTES and f >= 0:
                    nulls[f, i] = False
                    ints[f, i] = at
                    lengths[f, i] = size
                elif operation == TIMESTAMP:
                    value, is_time = _timestamp(at, at + size)
                    if not is_time or not nulls[f, i]:
                        is_sure = False
                        break
                    nulls[f, i] = False
                    ints[f, i] = value
                at += size
                continue
            if f < 0:
                continue
            nulls[f, i] = False
            if operation == FLOAT:
                floats[f, i] = load_single(at - 4, 0)
                continue
            if operation == DOUBLE:
                floats[f, i] = load_double(at - 8, 0)
                continue
            if operation == ENUM:
                is_sure = False
                bits = _signed(bits)
                for symbol in range(steps[step, 2], steps[step, 2] + steps[step, 3]):
                    if numbers[symbol] == bits:
                        ints[f, i] = symbols[symbol]
                        lengths[f, i] = symbol_sizes[symbol]
                        is_sure = True
                        break
                if not is_sure:
                    break
                continue
            if operation in (INT32, SFIXED32):
                bits = _signed(bits)
            elif operation == UINT32:
                bits &= _LOW_HALF
            elif operation == SINT32:
                bits = from_zigzag(bits & _LOW_HALF)
            elif operation == SINT64:
                bits = from_zigzag(bits)
            elif operation == BOOL:
                bits = np.int64(1) if bits != 0 else np.int64(0)
            elif operation in (UINT64, FIXED64) and bits < 0:
                is_sure = False
                break
            if kinds[f] == _COLUMN_DOUBLE:
                floats[f, i] = float(bits)
            else:
                ints[f, i] = bits
        certain[i] = is_sure
    return count


@njit
def _put_tag(out: int, at: int, tag: int, size: int) -> int:
    for k in range(size):
        store_byte(out, at + k, tag >> (k << 3))
    return at + size


@njit
def _put_value(operation: int, out: int, at: int, value: int, size: int) -> int:
    """Write a value without its tag; of a text `value` is the address."""
    if operation == STRING:
        return put_span(value, size, out, put_varint(out, at, size))
    if operation == DOUBLE:
        store_word(out, at, value)
        return at + 8
    return put_varint(out, at, value)


@njit
def _put_timestamp(out: int, at: int, value: int) -> int:
    """Write a google.protobuf.Timestamp with its size."""
    seconds = value // 1000
    nanos = (value - seconds * 1000) * 1000000
    size = (1 + varint_size(seconds) if seconds != 0 else 0) + (1 + varint_size(nanos) if nanos != 0 else 0)
    store_byte(out, at, size)
    at += 1
    if seconds != 0:
        store_byte(out, at, 8)
        at = put_varint(out, at + 1, seconds)
    if nanos != 0:
        store_byte(out, at, 16)
        at = put_varint(out, at + 1, nanos)
    return at


@njit(
    WRITE,
    cache=True,
    nogil=True,
    error_model="numpy",
)
def write(
    rows: Any,
    key_starts: Any,
    key_sizes: Any,
    head: Any,
    steps: Any,
    columns: Any,
    out: Any,
    out_keys: Any,
    out_values: Any,
    out_sizes: Any,
) -> int:
    """Encode R of N rows as key, head and message, one after the other; return the bytes written. As `avro_rows.write`."""
    target = np.int64(out.ctypes.data)
    before, before_size = np.int64(head.ctypes.data), np.int64(len(head))
    position = np.int64(0)
    for r in range(len(rows)):
        i = rows[r]
        out_keys[r] = position
        begin = position
        if key_sizes[i] > 0:
            begin = put_span(key_starts[i], np.int64(key_sizes[i]), target, position)
        at = put_span(before, before_size, target, begin)
        for step in range(len(steps)):
            operation, f, tag, tag_size, manner = steps[step, 0], steps[step, 1], steps[step, 2], steps[step, 3], steps[step, 4]
            if columns[f, 0] != 0 and load_byte(columns[f, 0], i) != 0:
                continue
            data, size = columns[f, 1], np.int64(0)
            value: Any = np.int64(0)
            if operation == BOOL:
                value = np.int64(1) if load_byte(data, i) != 0 else np.int64(0)
            else:
                value = load_word(data, i << 3)
            if operation in (STRING, MESSAGE):
                size = load_word(columns[f, 2], i << 3)
                if size < 0:
                    at = np.int64(-1)
                    break
            if operation == INT32 and not -2147483648 <= value <= 2147483647:
                at = np.int64(-1)
                break
            is_default = size == 0 if operation == STRING else value == 0
            if operation == MESSAGE:
                at = put_span(value, size, target, at)
            elif operation == TIMESTAMP:
                at = _put_timestamp(target, _put_tag(target, at, tag, tag_size), value)
            elif manner == _WRAPPED:
                at = _put_tag(target, at, tag, tag_size)
                inner = np.int64(0)
                if not is_default:
                    inner = 1 + (
                        varint_size(size) + size if operation == STRING else (8 if operation == DOUBLE else varint_size(value))
                    )
                at = put_varint(target, at, inner)
                if not is_default:
                    store_byte(target, at, 8 | _wire_type(operation))
                    at = _put_value(operation, target, at + 1, value, size)
            elif manner == _ALWAYS or not is_default:
                at = _put_value(operation, target, _put_tag(target, at, tag, tag_size), value, size)
        if at < 0:
            out_sizes[r] = -1
            out_values[r] = position
            continue
        out_values[r] = begin
        out_sizes[r] = at - begin
        position = at
    return position
