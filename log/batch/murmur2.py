"""Kafka's murmur2 hash, which places a keyed record on a partition. Pure Python; the columnar twin is in `kernels.py`."""

from __future__ import annotations

_M = 0x5BD1E995
_SEED = 0x9747B28C


def murmur2(data: bytes) -> int:
    """Return the unsigned 32-bit murmur2 of `data` with Kafka's seed.

    >>> murmur2(b"21") == (-973932308) & 0xFFFFFFFF
    True
    """
    size = len(data)
    h = _SEED ^ size
    tail = size & ~3
    for i in range(0, tail, 4):
        k = (int.from_bytes(data[i : i + 4], "little") * _M) & 0xFFFFFFFF
        k ^= k >> 24
        h = ((h * _M) & 0xFFFFFFFF) ^ ((k * _M) & 0xFFFFFFFF)
    if size & 3:
        h = ((h ^ int.from_bytes(data[tail:], "little")) * _M) & 0xFFFFFFFF
    h = ((h ^ (h >> 13)) * _M) & 0xFFFFFFFF
    return h ^ (h >> 15)


def key_partition(key: bytes, partition_count: int) -> int:
    """Return the partition Kafka's default partitioner gives this key: murmur2, sign bit cleared, modulo the partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count
