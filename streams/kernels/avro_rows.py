"""Avro records <-> columns: the kernels, which go through the steps of a layout (`logflume.log.schemas`, avro_layout).

As in `json_rows`: what a record has that is not held exactly makes it uncertain, never wrong, and the serde takes it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

from logflume.log.memory import load_byte, load_double, load_single, load_word, store_byte, store_word

from .binary import BROKEN, PLAIN, from_zigzag, put_varint, read_varint, starts_with, text_state, to_zigzag
from .signatures import B1, B2, F2, I2, IN_I2, IN_I32, IN_I64, IN_U8, WRITE
from .spans import put_span

(
    END, NULL, BOOLEAN, INT, LONG, FLOAT, DOUBLE, STRING, BYTES, FIXED, ENUM, NULLABLE, UNION, JUMP, BLOCKS, NEXT, BEGIN, DONE,
) = range(18)  # fmt: skip
_COLUMN_DOUBLE, _COLUMN_STRING = 3, 4
_MAX_NESTING = 64


@njit(
    types.int64(IN_U8, IN_I64, IN_I32, IN_U8, IN_I2, IN_I64, IN_I64, IN_I64, IN_I64, B1, B1, B2, I2, F2, I2),
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
    taken: Any,
    certain: Any,
    nulls: Any,
    ints: Any,
    floats: Any,
    lengths: Any,
) -> int:
    """Decode those of N records that begin with `head` and are not `taken` yet; return how many, and say of which it is certain.

    steps: [S, 5]. symbols: addresses of the names of enums, with their sizes. kinds: of the F leaves, those of `vectors.KINDS`;
    STRING also of bytes, PART of what is only to be found. nulls, ints, floats, lengths: [F, N] as in `json_rows.extract`.
    """
    base = np.int64(buffer.ctypes.data)
    limit = base + len(buffer)
    before, before_size = np.int64(head.ctypes.data), np.int64(len(head))
    count = np.int64(0)
    left = np.zeros(_MAX_NESTING, np.int64)
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
            nulls[f, i] = True
            ints[f, i] = 0
            if kinds[f] >= _COLUMN_STRING:
                lengths[f, i] = 0
        depth = 0
        step = np.int64(0)
        is_sure = False
        while True:
            operation, f = steps[step, 0], steps[step, 1]
            step += 1
            if operation == NULLABLE:
                branch, at = read_varint(at, end)
                if at < 0 or (branch != 0 and branch != 2):
                    break
                if branch >> 1 == steps[step - 1, 2]:
                    step = steps[step - 1, 3]
            elif operation in (STRING, BYTES):
                size, at = read_varint(at, end)
                if at < 0:
                    break
                size = from_zigzag(size)
                if size < 0 or size > end - at:
                    break
                if operation == STRING:
                    state = text_state(at, at + size, limit)
                    if state == BROKEN:
                        break
                    if f >= 0:
                        nulls[f, i] = False
                        ints[f, i] = at
                        lengths[f, i] = size if state == PLAIN else -1 - size
                elif f >= 0:
                    nulls[f, i] = False
                    ints[f, i] = at
                    lengths[f, i] = size
                at += size
            elif operation in (INT, LONG):
                value, at = read_varint(at, end)
                if at < 0:
                    break
                value = from_zigzag(value)
                if f >= 0:
                    if operation == INT and not -2147483648 <= value <= 2147483647:
                        break
                    nulls[f, i] = False
                    if kinds[f] == _COLUMN_DOUBLE:
                        floats[f, i] = float(value)
                    else:
                        ints[f, i] = value
            elif operation == DOUBLE:
                if end - at < 8:
                    break
                if f >= 0:
                    nulls[f, i] = False
                    floats[f, i] = load_double(at, 0)
                at += 8
            elif operation == FLOAT:
                if end - at < 4:
                    break
                if f >= 0:
                    nulls[f, i] = False
                    floats[f, i] = load_single(at, 0)
                at += 4
            elif operation == BOOLEAN:
                if at >= end or load_byte(at, 0) > 1:
                    break
                if f >= 0:
                    nulls[f, i] = False
                    ints[f, i] = load_byte(at, 0)
                at += 1
            elif operation == END:
                is_sure = True
                break
            elif operation == ENUM:
                value, at = read_varint(at, end)
                if at < 0:
                    break
                value = from_zigzag(value)
                if value < 0 or value >= steps[step - 1, 3]:
                    break
                if f >= 0:
                    symbol = steps[step - 1, 2] + value
                    nulls[f, i] = False
                    ints[f, i] = symbols[symbol]
                    lengths[f, i] = symbol_sizes[symbol]
            elif operation == FIXED:
                if end - at < steps[step - 1, 2]:
                    break
                if f >= 0:
                    nulls[f, i] = False
                    ints[f, i] = at
                    lengths[f, i] = steps[step - 1, 2]
                at += steps[step - 1, 2]
            elif operation == BEGIN:
                nulls[f, i] = False
                ints[f, i] = at
            elif operation == DONE:
                lengths[f, i] = at - ints[f, i]
            elif operation == UNION:
                branch, at = read_varint(at, end)
                if at < 0:
                    break
                branch = from_zigzag(branch)
                if branch < 0 or branch >= steps[step - 1, 2]:
                    break
                step += branch
            elif operation == JUMP:
                step = steps[step - 1, 2]
            elif operation == BLOCKS:
                if depth == _MAX_NESTING:
                    break
                left[depth] = 0
                depth += 1
            elif operation == NEXT:
                if left[depth - 1] == 0:
                    value, at = read_varint(at, end)
                    if at < 0:
                        break
                    value = from_zigzag(value)
                    if value < 0:
                        value = -value
                        _, at = read_varint(at, end)
                        if at < 0:
                            break
                    if value < 0 or value > end - at:
                        break
                    if value == 0:
                        depth -= 1
                        step = steps[step - 1, 2]
                        continue
                    left[depth - 1] = value
                left[depth - 1] -= 1
        certain[i] = is_sure
    return count


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
    """Encode R of N rows as key, head and Avro record, one after the other; return the bytes written.

    As `json_rows.write`, with the steps of a layout [S, 5] in place of labels.
    """
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
            operation, f, branch, null = steps[step, 0], steps[step, 1], steps[step, 2], steps[step, 3]
            if columns[f, 0] != 0 and load_byte(columns[f, 0], i) != 0:
                if null < 0:
                    at = np.int64(-1)
                    break
                store_byte(target, at, null)
                at += 1
                continue
            if branch >= 0:
                store_byte(target, at, branch)
                at += 1
            data = columns[f, 1]
            if operation == STRING:
                size: Any = load_word(columns[f, 2], i << 3)
                if size < 0:
                    at = np.int64(-1)
                    break
                at = put_varint(target, at, size << 1)
                at = put_span(load_word(data, i << 3), size, target, at)
            elif operation == FIXED:
                length: Any = load_word(columns[f, 2], i << 3)
                if length < 0:
                    at = np.int64(-1)
                    break
                at = put_span(load_word(data, i << 3), length, target, at)
            elif operation == DOUBLE:
                store_word(target, at, load_word(data, i << 3))
                at += 8
            elif operation == BOOLEAN:
                store_byte(target, at, 1 if load_byte(data, i) != 0 else 0)
                at += 1
            else:
                value: Any = load_word(data, i << 3)
                if operation == INT and not -2147483648 <= value <= 2147483647:
                    at = np.int64(-1)
                    break
                at = put_varint(target, at, to_zigzag(value))
        if at < 0:
            out_sizes[r] = -1
            out_values[r] = position
            continue
        out_values[r] = begin
        out_sizes[r] = at - begin
        position = at
    return position
