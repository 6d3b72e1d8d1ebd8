"""About the order of keys: RocksDB takes entries that come in it in a quarter of the time. Arrays in, arrays out. (pure)

The order is by a few bytes of each key only, so it is never relied on; the same key always has the same place, and records of one
key stay as they were.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from logflume.log.records import Chunk

from .windows import WINDOW_START_BYTES

if TYPE_CHECKING:
    import numpy.typing as npt

    I64 = npt.NDArray[np.int64]
    U64 = npt.NDArray[np.uint64]

_SAMPLE_KEYS = 64
_WORD_BYTES = 8
_MASKS = np.array([2**64 - 2 ** (64 - 8 * size) for size in range(_WORD_BYTES + 1)], np.uint64)
"""Keeps the first N bytes of a word."""


def near_key_order(chunk: Chunk, *, segment_ms: int) -> I64:
    """Return the rows of a chunk about in order of (segment, key), stable; `segment_ms` 0: without segments."""
    step = max(1, len(chunk) // _SAMPLE_KEYS)
    rows = np.arange(0, len(chunk), step, dtype=np.int64)
    sampled = chunk.take(rows).keys()
    skip = _common_bytes([key for key in sampled if key is not None])
    ranks = _words(chunk, chunk.key_starts + skip, chunk.key_sizes - skip)
    if not segment_ms:
        return np.argsort(ranks, kind="stable")
    starts = _words(chunk, chunk.key_starts + chunk.key_sizes - WINDOW_START_BYTES, np.full(len(chunk), _WORD_BYTES, np.int32))
    return np.lexsort((ranks, starts // np.uint64(segment_ms)))


def _common_bytes(keys: list[bytes]) -> int:
    """Return how many bytes all keys begin with."""
    first, last = min(keys, default=b""), max(keys, default=b"")
    return next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))


def _words(chunk: Chunk, starts: I64, sizes: npt.NDArray[np.int32]) -> U64:
    """Return the 8 bytes at each start as a big-endian number; what lies beyond a size counts as 0."""
    padded = np.concatenate((chunk.buffer, np.zeros(_WORD_BYTES, np.uint8)))
    at_each_byte = np.ndarray(len(chunk.buffer) + 1, ">u8", buffer=padded, strides=(1,))
    words = at_each_byte[np.clip(starts, 0, len(chunk.buffer))].astype(np.uint64)
    return words & _MASKS[np.clip(sizes, 0, _WORD_BYTES)]
