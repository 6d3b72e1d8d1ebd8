"""Chooses partitions: murmur2 of the key as Kafka's Java client does, a sticky one for records without a key.

A sticky partition is kept for about one batch of bytes, so that batches fill; then another one is drawn.
"""

from __future__ import annotations

import random
from functools import lru_cache

from logflume.log.batch import key_partition


class StickyPartitioner:
    """The current partition of one topic for records without a key."""

    __slots__ = ("_batch_bytes", "_bytes_left", "_count", "_partition", "_random")

    def __init__(self, batch_bytes: int, rng: random.Random) -> None:
        self._batch_bytes = batch_bytes
        self._random = rng
        self._partition = -1
        self._count = 0
        self._bytes_left = 0

    def choose(self, size_bytes: int, partition_count: int) -> int:
        """Return the partition for a record (or run of records) of this size."""
        if self._bytes_left <= 0 or self._count != partition_count:
            others = [p for p in range(partition_count) if p != self._partition] or [0]
            self._partition = self._random.choice(others)
            self._count, self._bytes_left = partition_count, self._batch_bytes
        self._bytes_left -= size_bytes
        return self._partition


@lru_cache(maxsize=65_536)
def partition_of_key(key: bytes, partition_count: int) -> int:
    """Return the partition of a key; remembered, because keys repeat and murmur2 in Python costs microseconds."""
    return key_partition(key, partition_count)
