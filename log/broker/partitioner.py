"""Which partition of an internal topic keeps an id: Java's string hash, as in Kafka."""

from __future__ import annotations


def partition_of(name: str, partition_count: int) -> int:
    """Return the partition for a group or transactional id.

    >>> partition_of("my-group", 50)
    12
    """
    value = 0
    units = name.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    signed = value - (1 << 32) if value >= 1 << 31 else value
    return 0 if signed == -(1 << 31) else abs(signed) % partition_count
