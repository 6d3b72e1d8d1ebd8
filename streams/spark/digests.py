"""What tells a row of an archive from one that others have changed: 32 bits of its place and its content, beside it.

A digest goes with its row wherever a keeper of the table moves it, so that whoever reads some of the rows sees which of these
were changed, and nothing else has to be read for it. It is no signature: who means to deceive computes another.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

import msgspec
import numpy as np

from logflume.log import Chunk, content_hashes

_ODD = np.uint64(0x9E3779B97F4A7C15)


def row_digests(chunk: Chunk) -> Any:
    """Return the digests of a chunk's rows, int32[N]: of partition, offset, time, key, value and headers.

    >>> one, other = (Chunk.from_columns("t", [None, None], [b"a", value], [0, 0]) for value in (b"b", b"c"))
    >>> (row_digests(one) == row_digests(other)).tolist()
    [True, False]
    """
    mixed = np.full(len(chunk), chunk.partition, np.int64).astype(np.uint64)
    keys, values = content_hashes(chunk)
    for column in (chunk.offsets, chunk.timestamps_ms, keys, values, _header_hashes(chunk)):
        mixed ^= column.astype(np.uint64)
        mixed *= _ODD
        mixed ^= mixed >> np.uint64(32)
    return mixed.astype(np.uint32).view(np.int32)


def _header_hashes(chunk: Chunk) -> Any:
    if not chunk.header_counts.any():
        return np.zeros(len(chunk), np.int64)
    return np.array([1 + crc32(msgspec.msgpack.encode(each)) if each else 0 for each in chunk.headers()], np.int64)
