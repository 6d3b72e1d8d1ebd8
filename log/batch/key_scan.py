"""What compaction has to know of each record: its key, whether it is a tombstone, and where it lies.

Compiled when the kernels are loaded (`tiers.py`), with the same result.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

from .errors import CorruptBatch
from .tiers import kernel_tier
from .varint import read_varint

_NULL = 1
"""The varint of -1."""


@dataclass(frozen=True, slots=True)
class KeyScan:
    """Columns of one entry a record: key (None: null), offset delta, whether the value is null, start and end in the section."""

    keys: list[bytes | None]
    deltas: list[int]
    is_tombstone: list[bool]
    starts: list[int]
    ends: list[int]


def scan_keys(section: bytes, count: int) -> KeyScan:
    """Scan the `count` records of an uncompressed section.

    Raises:
        CorruptBatch: the records do not hold together as far as this looks.
    """
    kernels = kernel_tier().kernels(0)
    return _scan(section, count) if kernels is None else _scan_compiled(kernels, section, count)


def _scan_compiled(kernels: ModuleType, section: bytes, count: int) -> KeyScan:
    import numpy as np

    from .spans import span_objects

    if count < 0 or count * kernels.MIN_RECORD_BYTES > len(section):
        raise CorruptBatch(f"{count} records cannot be in {len(section)} bytes")
    data = np.frombuffer(section, np.uint8)
    columns = np.empty((4, count), np.int64)
    key_sizes, is_tombstone = np.empty(count, np.int32), np.empty(count, np.bool_)
    deltas, starts, ends, key_starts = columns
    problem, row = kernels.scan_keys(data, deltas, starts, ends, key_starts, key_sizes, is_tombstone)
    if problem:
        raise CorruptBatch(f"record {row}: {kernels.ERRORS[problem]}")
    keys = span_objects(data, key_starts, key_sizes)
    return KeyScan(keys, deltas.tolist(), is_tombstone.tolist(), starts.tolist(), ends.tolist())


def _scan(data: bytes, count: int) -> KeyScan:
    """One flat loop, for it is run for every record."""
    scan = KeyScan([], [], [], [], [])
    position = 0
    try:
        for row in range(count):
            start = position
            size, position = read_varint(data, position)
            end = position + size
            position += 1
            while data[position] > 0x7F:
                position += 1
            delta, position = read_varint(data, position + 1)
            byte = data[position]
            if byte < 0x80:
                key_size, position = (byte >> 1) ^ -(byte & 1), position + 1
            else:
                key_size, position = read_varint(data, position)
            key_start = position
            position += max(key_size, 0)
            if size < 0 or position >= end or end > len(data):
                raise CorruptBatch(f"record {row}: its length or that of its key does not fit")
            scan.keys.append(data[key_start:position] if key_size >= 0 else None)
            scan.deltas.append(delta)
            scan.is_tombstone.append(data[position] == _NULL)
            scan.starts.append(start)
            scan.ends.append(end)
            position = end
    except IndexError:
        raise CorruptBatch("the records end early") from None
    if position != len(data):
        raise CorruptBatch(f"the records end at byte {position} of {len(data)}")
    return scan
