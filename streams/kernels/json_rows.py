"""JSON rows <-> columns: the kernels. Needs numba; `columns/decode.py` and `encode.py` decide when they are used.

A row is a JSON object, its numbers of at most 15 digits without exponent, its texts valid UTF-8 without escaped surrogates.
Nested values are stepped over where nobody reads them. Whatever else it is (a duplicate field, a type that does not fit,
malformed bytes) it is not certain, never judged: the exact decoder takes it. Nothing here may give a value that the exact decoder
would not.

Shapes: N rows, F fields or columns. Kinds are those of `columns.KINDS`. Strings are spans: an address in memory and a size in
bytes. Who calls keeps the memory alive; every load lies inside of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

from logflume.log.memory import load_byte, load_double, load_word, store_byte, store_word

from .digits import POWERS, put_double, put_integer
from .json_scan import FALS, NULL, TRUE, any_string_end, literal, nested_end, number, skip_space, string_end, unescape
from .signatures import B1, B2, F2, I2, I32, I64, IN_I2, IN_I32, IN_I64, IN_U8, U8
from .spans import put_span

BOOLEAN, INTEGER, BIGINT, DOUBLE, STRING = 0, 1, 2, 3, 4
NUMBER_SIZE = 28
"""Bytes that a number, a boolean or null takes at most."""
WRITTEN_NULL = 2
"""What `extract` puts under a null that stands in the record; under one of a field that is absent it puts 0."""
SPARE_BYTES = 8
"""Bytes that `write` may touch behind what it has written."""

_MAX_PLACES = 64
_LOW_HALF = np.int64(0xFFFFFFFF)


@njit(inline="always")
def _field(start: int, stop: int, names: int, name_ends: Any, name_fields: Any) -> int:
    """Return the number of the field with this name, -1 for one that is not used."""
    for name in range(len(name_ends)):
        begin = name_ends[name - 1] if name > 0 else np.int64(0)
        size = name_ends[name] - begin
        if size != stop - start:
            continue
        same = True
        for k in range(size):
            if load_byte(names, begin + k) != load_byte(start, k):
                same = False
                break
        if same:
            return name_fields[name]
    return -1


@njit(inline="always")
def _may_mean(start: int, stop: int, names: int, name_ends: Any, name_fields: Any, folded: Any) -> bool:
    """Return whether a name is that of a field that is looked up in any spelling, but for upper and lower case."""
    for name in range(len(name_ends)):
        begin = name_ends[name - 1] if name > 0 else np.int64(0)
        if folded[name_fields[name]] == 0 or name_ends[name] - begin != stop - start:
            continue
        same = True
        for k in range(stop - start):
            byte: Any = load_byte(names, begin + k)
            other: Any = load_byte(start, k)
            if byte != other and ((byte ^ other) != 32 or not 97 <= (byte | 32) <= 122):
                same = False
                break
        if same:
            return True
    return False


@njit(inline="always")
def _is_at(pattern: int, size: int, at: int) -> bool:
    """Return whether the `size` > 0 bytes at both addresses are the same, if eight bytes from the last one on can be read."""
    k = np.int64(0)
    while k + 8 <= size:
        if load_word(pattern, k) != load_word(at, k):
            return False
        k += 8
    rest = size - k
    return rest == 0 or (load_word(pattern, k) ^ load_word(at, k)) << ((8 - rest) << 3) == 0


@njit(
    types.void(IN_U8, IN_I64, IN_I32, IN_I64, IN_U8, IN_I64, IN_I64, IN_I64, IN_I64, B1, B2, I2, F2, I2, U8),
    cache=True,
    nogil=True,
    error_model="numpy",
)
def extract(
    buffer: Any,
    starts: Any,
    sizes: Any,
    times: Any,
    names: Any,
    name_ends: Any,
    name_fields: Any,
    kinds: Any,
    folded: Any,
    certain: Any,
    nulls: Any,
    ints: Any,
    floats: Any,
    lengths: Any,
    scratch: Any,
) -> None:
    """Decode the used fields of N rows; `certain` says of which.

    names: the used names, joined, where each ends, and the field that each names (a field may have two). folded[F]: 1 for a
    field that is looked for in any spelling: a row with one that is not among the names is not certain.
    nulls, ints (numbers, booleans, addresses of strings), floats (may share memory with ints), lengths (of strings): [F, N];
    the length of a string that is not plain is -1 - length; under a null ints tell why (WRITTEN_NULL). scratch: room for all
    rows; strings with escapes are written there.

    Rows mostly have the same fields in the same places: the text of a name with its quotes and colon is kept per place and
    tried first.
    """
    count = len(kinds)
    base = np.int64(buffer.ctypes.data)
    limit = base + len(buffer)
    all_names = np.int64(names.ctypes.data)
    known_at = np.zeros(_MAX_PLACES, np.int64)
    known_sizes = np.zeros(_MAX_PLACES, np.int64)
    known_fields = np.zeros(_MAX_PLACES, np.int64)
    full = (np.int64(1) << count) - 1
    spare: Any = np.int64(scratch.ctypes.data)
    for i in range(len(starts)):
        seen = np.int64(0)
        is_sure = False
        place = 0
        at = base + starts[i]
        end = at + sizes[i]
        if sizes[i] >= 2 and times[i] >= 0 and load_byte(at, 0) == 123:
            at += 1
            is_sure = at + 1 == end and load_byte(at, 0) == 125
            while not is_sure:
                size = known_sizes[place] if place < _MAX_PLACES else np.int64(0)
                if size > 0 and at + size < end and at + size + 8 <= limit and _is_at(known_at[place], size, at):
                    f = known_fields[place]
                    at += size
                else:
                    at = skip_space(at, end)
                    if at >= end or load_byte(at, 0) != 34:
                        break
                    first = at
                    name_end = string_end(at + 1, end, limit)
                    if name_end < 0:
                        break
                    f = _field(at + 1, name_end, all_names, name_ends, name_fields)
                    if f < 0 and _may_mean(at + 1, name_end, all_names, name_ends, name_fields, folded):
                        break
                    at = skip_space(name_end + 1, end)
                    if at >= end or load_byte(at, 0) != 58:
                        break
                    at += 1
                    if place < _MAX_PLACES and at == name_end + 2 and at + 8 <= limit:
                        known_at[place] = first
                        known_sizes[place] = at - first
                        known_fields[place] = f
                place += 1
                byte = load_byte(at, 0) if at < end else np.int64(32)
                if byte <= 32:
                    at = skip_space(at, end)
                    if at >= end:
                        break
                    byte = load_byte(at, 0)
                kind = np.int64(-1)
                if f >= 0:
                    if (seen >> f) & 1:
                        break
                    seen |= np.int64(1) << f
                    kind = kinds[f]
                if byte == 34:
                    has_escapes, is_plain = False, True
                    close: Any = string_end(at + 1, end, limit)
                    if close < 0:
                        is_plain = False
                        close, has_escapes = any_string_end(at + 1, end, limit)
                        if close < 0:
                            break
                    if f >= 0:
                        if kind != STRING:
                            break
                        begin: Any = at + 1
                        length: Any = close - at - 1
                        if has_escapes:
                            length = unescape(begin, close, spare)
                            begin = spare
                            spare = spare + length
                        ints[f, i] = begin
                        lengths[f, i] = length if is_plain else -1 - length
                        nulls[f, i] = False
                    at = close + 1
                elif byte == 123 or byte == 91:
                    if f >= 0:
                        break
                    behind: Any = nested_end(at, end, limit)
                    if behind < 0:
                        break
                    at = behind
                elif byte == 45 or 48 <= byte <= 57:
                    value, scale, after = number(at, end)
                    if after < 0:
                        break
                    at = after
                    if f >= 0:
                        if kind == DOUBLE:
                            floats[f, i] = value / POWERS[scale] if scale > 0 else float(value)
                        elif kind == BIGINT or (kind == INTEGER and -2147483648 <= value <= 2147483647):
                            if scale >= 0:
                                break
                            ints[f, i] = value
                        else:
                            break
                        nulls[f, i] = False
                else:
                    word = literal(at, end)
                    if word == 0 or (f >= 0 and word != 3 and kind != BOOLEAN):
                        break
                    at += 5 if word == 2 else 4
                    if f >= 0:
                        nulls[f, i] = word == 3
                        ints[f, i] = 1 if word == 1 else 0 if word == 2 else WRITTEN_NULL
                        if kind == STRING:
                            lengths[f, i] = 0
                if at >= end:
                    break
                byte = load_byte(at, 0)
                if byte <= 32:
                    at = skip_space(at, end)
                    if at >= end:
                        break
                    byte = load_byte(at, 0)
                at += 1
                if byte == 44:
                    continue
                is_sure = byte == 125 and at == end
                break
        certain[i] = is_sure
        if is_sure and seen == full:
            continue
        for f in range(count):
            if not is_sure or not (seen >> f) & 1:
                nulls[f, i] = True
                ints[f, i] = 0
                if kinds[f] == STRING:
                    lengths[f, i] = 0


@njit
def _put_escaped(source: int, size: int, out: int, at: int) -> int:
    """Write a text as JSON writes it; return the position after it. It takes up to six times its size."""
    for k in range(size):
        byte: Any = load_byte(source, k)
        if byte == 34 or byte == 92:
            store_byte(out, at, 92)
            store_byte(out, at + 1, byte)
            at += 2
        elif byte >= 32:
            store_byte(out, at, byte)
            at += 1
        else:
            short = (
                98 if byte == 8 else 116 if byte == 9 else 110 if byte == 10 else 102 if byte == 12 else 114 if byte == 13 else 0
            )
            store_byte(out, at, 92)
            if short:
                store_byte(out, at + 1, short)
                at += 2
            else:
                store_word(out, at + 1, 0x303075)
                store_byte(out, at + 4, 48 + (byte >> 4))
                low = byte & 15
                store_byte(out, at + 5, 48 + low if low < 10 else 87 + low)
                at += 6
    return at


@njit(inline="always")
def _put_label(source: int, size: int, out: int, at: int) -> int:
    """Copy bytes in whole words, up to seven bytes too many; return the position after those meant."""
    k = np.int64(0)
    while k < size:
        store_word(out, at + k, load_word(source, k))
        k += 8
    return at + size


@njit(
    types.int64(IN_I64, IN_I64, IN_I32, IN_U8, IN_I64, IN_I64, IN_I2, U8, I64, I64, I32),
    cache=True,
    nogil=True,
    error_model="numpy",
)
def write(
    rows: Any,
    key_starts: Any,
    key_sizes: Any,
    labels: Any,
    label_ends: Any,
    kinds: Any,
    columns: Any,
    out: Any,
    out_keys: Any,
    out_values: Any,
    out_sizes: Any,
) -> int:
    """Encode R of N rows as key and JSON object, one after the other; return the bytes written.

    key_starts: addresses [N]; key_sizes: [N], -1 is null. labels: what stands before each value (`{"a":`, `,"b":`), joined;
    label_ends: int64[F]; SPARE_BYTES lie behind the last one. columns: int64[F, 4], addresses of the nulls (0: none is null),
    data and sizes of each column, and of which texts are not plain (0: none).
    out: room for all rows and SPARE_BYTES. out_keys, out_values: positions [R]; out_sizes: of the values [R], -1 where unsure.
    """
    target = np.int64(out.ctypes.data)
    texts = np.int64(labels.ctypes.data)
    count = len(kinds)
    position = np.int64(0)
    for r in range(len(rows)):
        i = rows[r]
        out_keys[r] = position
        begin = position
        if key_sizes[i] > 0:
            begin = put_span(key_starts[i], np.int64(key_sizes[i]), target, position)
        at = begin
        label = np.int64(0)
        for f in range(count):
            at = _put_label(texts + label, label_ends[f] - label, target, at)
            label = label_ends[f]
            kind = kinds[f]
            data = columns[f, 1]
            if columns[f, 0] != 0 and load_byte(columns[f, 0], i) != 0:
                store_word(target, at, NULL)
                at += 4
            elif kind == STRING:
                store_byte(target, at, 34)
                if columns[f, 3] != 0 and load_byte(columns[f, 3], i) != 0:
                    at = _put_escaped(load_word(data, i << 3), load_word(columns[f, 2], i << 3), target, at + 1)
                else:
                    at = put_span(load_word(data, i << 3), load_word(columns[f, 2], i << 3), target, at + 1)
                store_byte(target, at, 34)
                at += 1
            elif kind == DOUBLE:
                at = put_double(target, at, load_double(data, i << 3))
                if at < 0:
                    break
            elif kind == BOOLEAN:
                if load_byte(data, i) != 0:
                    store_word(target, at, TRUE)
                    at += 4
                else:
                    store_word(target, at, FALS | 101 << 32)
                    at += 5
            else:
                value: Any = load_word(data, i << 3)
                if value < 0:
                    store_byte(target, at, 45)
                    at += 1
                    value = -value
                    if value < 0:
                        at = np.int64(-1)
                        break
                at = put_integer(target, at, value)
        if at < 0:
            out_sizes[r] = -1
            out_values[r] = position
            continue
        store_byte(target, at, 125)
        at += 1
        out_values[r] = begin
        out_sizes[r] = at - begin
        position = at
    return position


@njit(types.void(IN_I64, IN_I64, IN_U8, B1), cache=True, nogil=True)
def equals_text(begins: Any, lengths: Any, text: Any, found: Any) -> None:
    """Set found[i] where the span is this text, byte for byte."""
    size = len(text)
    wanted = np.int64(text.ctypes.data)
    for i in range(len(begins)):
        same = lengths[i] == size
        if same:
            for k in range(size):
                if load_byte(begins[i], k) != load_byte(wanted, k):
                    same = False
                    break
        found[i] = same
