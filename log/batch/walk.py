"""Whether the records of a batch are what the record format says ("Record" of the protocol guide), without an object for any.

What a leader looks at before it appends what a client sent: each record's length, deltas, sizes and headers, as `LogValidator` of
Apache Kafka does, and what Kafka lets through though some client stumbles over it. `_walk.c` is the same compiled, when the
package is installed where a C compiler is: 15 ns a record in place of 3 us. Which of both runs makes no difference but time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from .errors import CorruptBatch
from .header import Buffer
from .varint import read_varint, read_varlong

SOUND, EARLY, LENGTH, DELTA, TIMESTAMP, SIZE, HEADERS, TRAILING, ATTRIBUTES, NAME = range(10)

PROBLEMS = (
    "",
    "it ends early or a number in it is too long",
    "its length does not fit",
    "its offset delta is not its place in the batch",
    "its timestamp exceeds 64 bits",
    "the length of its key or value does not fit",
    "its headers do not fit",
    "there are bytes beyond the last record",
    "its attributes are not 0; no bit of them has a meaning yet, and clients differ in how they read others",
    "the name of a header is not UTF-8",
)
"""What is wrong with the record at which a walk ended, by problem."""

Walked: TypeAlias = tuple[int, int, int, int, int]
"""(problem, row at which the walk ended, oldest timestamp, newest, number of null keys); times are 0 without a record."""

_MIN_I64, _MAX_I64 = -(2**63), 2**63 - 1
_MAX_INT_BYTES = 5


def walk_in_python(section: Buffer, count: int, base_timestamp: int) -> Walked:
    """Walk the `count` records of an uncompressed section; beyond the first problem nothing is looked at."""
    data = bytes(section)
    position = row = null_keys = oldest = newest = 0
    for row in range(count):
        try:
            size, position = _read_int(data, position, len(data))
        except (CorruptBatch, IndexError):
            return EARLY, row, oldest, newest, null_keys
        if not 0 <= size <= len(data) - position:
            return LENGTH, row, oldest, newest, null_keys
        problem, timestamp, key_size = _walk_record(data, position, position + size, row, base_timestamp)
        null_keys += key_size < 0
        if problem:
            return problem, row, oldest, newest, null_keys
        oldest = timestamp if row == 0 else min(oldest, timestamp)
        newest = timestamp if row == 0 else max(newest, timestamp)
        position += size
    return (SOUND if position == len(data) else TRAILING), max(count, 0), oldest, newest, null_keys


def _walk_record(data: bytes, position: int, end: int, row: int, base_timestamp: int) -> tuple[int, int, int]:
    """Return (problem, timestamp, size of the key) of the record whose body lies between both positions."""
    step, timestamp, key_size = EARLY, 0, 0
    try:
        if position == end:
            return EARLY, 0, 0
        if data[position]:
            return ATTRIBUTES, 0, 0
        delta, position = read_varlong(data, position + 1)
        if position > end:
            return EARLY, 0, 0
        timestamp = base_timestamp + delta
        if not _MIN_I64 <= timestamp <= _MAX_I64:
            return TIMESTAMP, 0, 0
        step = DELTA
        delta, position = _read_int(data, position, end)
        if delta != row:
            return DELTA, 0, 0
        step = SIZE
        size, position = _skip_bytes(data, position, end, least=-1)
        key_size = size
        _, position = _skip_bytes(data, position, end, least=-1)
        step = HEADERS
        headers, position = _read_int(data, position, end)
        if not 0 <= headers <= (end - position) // 2:
            return HEADERS, 0, key_size
        for _ in range(headers):
            size, position = _skip_bytes(data, position, end, least=0)
            data[position - size : position].decode()
            _, position = _skip_bytes(data, position, end, least=-1)
    except (CorruptBatch, IndexError):
        return step, 0, key_size
    except UnicodeDecodeError:
        return NAME, 0, key_size
    return (SOUND if position == end else LENGTH), timestamp, key_size


def _read_int(data: bytes, position: int, end: int) -> tuple[int, int]:
    if position < end and (byte := data[position]) < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    value, after = read_varint(data, position)
    if after > end or after - position > _MAX_INT_BYTES:
        raise CorruptBatch("a number ends behind its record or is too long")
    return value, after


def _skip_bytes(data: bytes, position: int, end: int, *, least: int) -> tuple[int, int]:
    size, position = _read_int(data, position, end)
    if not least <= size <= end - position:
        raise CorruptBatch("bytes end behind their record")
    return size, position + max(size, 0)


def _load_locate() -> Callable[..., int] | None:
    try:
        from ._walk import locate
    except ImportError:
        return None
    return locate


def _load() -> Callable[[Buffer, int, int], Walked]:
    try:
        from ._walk import walk
    except ImportError:  # installed without a compiler
        return walk_in_python
    return walk


walk = _load()

locate = _load_locate()
"""Write where the parts of records lie into the columns of a chunk: (data, sections, from offset, eight columns) -> rows, -1 for
bytes that are no records. The kernels do the same; this is there at once. None without a compiler."""
