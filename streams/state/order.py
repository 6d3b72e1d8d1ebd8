"""The last record of each key, in the order in which RocksDB keeps keys: what a sorted file is made of. Arrays in and out. (pure)

Eight bytes of each key at a time are compared as numbers, and whole keys where many of those are equal.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, cast

import numpy as np

from logflume.log.records import Chunk

from .windows import WINDOW_START_BYTES

if TYPE_CHECKING:
    import numpy.typing as npt

    I64 = npt.NDArray[np.int64]
    I32 = npt.NDArray[np.int32]
    U64 = npt.NDArray[np.uint64]

_SAMPLE_KEYS = 64
_WORD_BYTES = 8
_MOST_WORDS = 4
_MASKS = np.array([2**64 - 2 ** (64 - 8 * size) for size in range(_WORD_BYTES + 1)], np.uint64)
"""Keeps the first N bytes of a word."""


def window_starts(chunk: Chunk) -> I64:
    """Return the window starts at the end of the keys, none of which is null."""
    ends = chunk.key_starts + chunk.key_sizes
    return _Words(chunk).at(ends - WINDOW_START_BYTES, np.full(len(chunk), WINDOW_START_BYTES, np.int32)).astype(np.int64)


def last_of_keys(chunk: Chunk, segments: I64) -> I64:
    """Return the row of the last record of each key, in order of (segment, key). No key is null.

    `segments`: one for each record, none negative; empty without segments.
    """
    words = _Words(chunk)
    skip = _common_bytes(chunk, words)
    ranks = words.at(chunk.key_starts + skip, chunk.key_sizes - skip)
    order = np.lexsort((ranks, segments)) if len(segments) else np.argsort(ranks, kind="stable")
    is_next = _goes_on(ranks[order])
    if len(segments):
        is_next &= _goes_on(segments[order])
    for at in range(skip + _WORD_BYTES, skip + _MOST_WORDS * _WORD_BYTES, _WORD_BYTES):
        places = _tied(is_next)
        rows, groups = order[places], np.cumsum(~is_next[places], dtype=np.int64)
        more = words.at(chunk.key_starts[rows] + at, chunk.key_sizes[rows] - at)
        if not more.any():
            break
        again = np.lexsort((more, groups))
        order[places], is_next[places] = rows[again], _goes_on(groups) & _goes_on(more[again])
    if is_next.any():
        places, is_last = _tied(is_next), np.ones(len(order), np.bool_)
        order[places], is_last[places] = _by_whole_keys(chunk, segments, order[places])
        order = order[is_last]
    return order


def _tied(is_next: npt.NDArray[np.bool_]) -> I64:
    """Return the places of all that are not alone."""
    return np.flatnonzero(is_next | np.append(is_next[1:], False))


def _goes_on(numbers: I64 | U64) -> npt.NDArray[np.bool_]:
    """Return of each number whether it is the one before it."""
    return np.concatenate((np.zeros(min(1, len(numbers)), np.bool_), numbers[1:] == numbers[:-1]))


def _by_whole_keys(chunk: Chunk, segments: I64, rows: I64) -> tuple[I64, npt.NDArray[np.bool_]]:
    """Return rows in order of (segment, key), those of one key as they were, and whether each is the last of its key."""
    keys = cast(list[bytes], chunk.take(rows).keys())
    if len(segments):
        keys = [start.to_bytes(WINDOW_START_BYTES, "big") + key for start, key in zip(segments[rows].tolist(), keys, strict=True)]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    is_last = [keys[a] != keys[b] for a, b in pairwise(order)]
    return rows[order], np.array([*is_last, True])


def _common_bytes(chunk: Chunk, words: _Words) -> int:
    """Return a number of bytes that all keys begin with, nulls standing for what a key lacks; few keys tell what to look for."""
    rows = np.arange(0, len(chunk), max(1, len(chunk) // _SAMPLE_KEYS), dtype=np.int64)
    sampled = cast(list[bytes], chunk.take(rows).keys())
    first, last = min(sampled, default=b""), max(sampled, default=b"")
    likely = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    for at in range(0, likely, _WORD_BYTES):
        size = min(likely - at, _WORD_BYTES)
        found = words.at(chunk.key_starts + at, np.minimum(chunk.key_sizes - at, size))
        if (found != found[0]).any():
            return at
    return likely


class Items:
    """Keys and values of a chunk by rows in any order: both are read together, as they lie side by side in memory."""

    def __init__(self, chunk: Chunk) -> None:
        self._chunk = chunk
        self._starts = np.stack((chunk.key_starts, chunk.value_starts), axis=1)
        self._sizes = np.stack((chunk.key_sizes, chunk.value_sizes), axis=1)

    def at(self, rows: I64) -> tuple[list[bytes], list[bytes | None]]:
        """Return keys, none of which is null, and values."""
        starts, sizes = self._starts.take(rows, axis=0), self._sizes.take(rows, axis=0)
        found = self._chunk.objects(starts.reshape(-1), sizes.reshape(-1))
        return cast(list[bytes], found[::2]), found[1::2]


class _Words:
    """The bytes of a chunk, eight at a time as a big-endian number."""

    def __init__(self, chunk: Chunk) -> None:
        padded = np.concatenate((chunk.buffer, np.zeros(_WORD_BYTES, np.uint8)))
        self._at_each_byte = np.ndarray(len(chunk.buffer) + 1, ">u8", buffer=padded, strides=(1,))

    def at(self, starts: I64, sizes: I32) -> U64:
        """Return the word at each start; what lies beyond a size counts as 0."""
        words = self._at_each_byte[np.clip(starts, 0, len(self._at_each_byte) - 1)].astype(np.uint64)
        return words & _MASKS[np.clip(sizes, 0, _WORD_BYTES)]
