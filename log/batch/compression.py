"""The four compressions of the records section, each library imported when first used. Output is bounded, always.

Specification: KIP-110 (zstd), KIP-57 (lz4 frames), and the xerial block framing that Java's snappy uses (`snappy.py`).
"""

from __future__ import annotations

from enum import IntEnum

from logflume.log.errors import UnknownName

from .header import Buffer

MAX_DECOMPRESSED_BYTES = 256 * 1024 * 1024
"""Default bound on what one batch may unpack to."""


class Codec(IntEnum):
    """Compression of a batch: bits 0-2 of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def codec_of(name: str) -> Codec:
    """Return the codec of a Kafka name: none, gzip, snappy, lz4, zstd.

    Raises:
        UnknownName: no such codec.

    >>> codec_of("lz4")
    <Codec.LZ4: 3>
    """
    try:
        return Codec[name.upper()]
    except KeyError:
        raise UnknownName("compression", name, [c.name.lower() for c in Codec]) from None


def compress(codec: int, data: Buffer) -> Buffer:
    """Compress a records section."""
    raise NotImplementedError


def decompress(codec: int, data: Buffer, *, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> Buffer:
    """Decompress a records section.

    Raises:
        BatchTooLarge: the output would exceed `max_bytes` (found out without allocating it).
        CorruptBatch: the data is not of that compression.
    """
    raise NotImplementedError
