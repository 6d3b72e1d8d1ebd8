"""The four compressions of the records section, each library imported when first used. Output is bounded, always.

Specification: KIP-110 (zstd), KIP-57 (lz4 frames), and the xerial block framing that Java's snappy uses (`snappy.py`).
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from typing import TYPE_CHECKING

from logflume.log.errors import UnknownName

from . import snappy
from .errors import BatchTooLarge, CorruptBatch
from .header import Buffer

if TYPE_CHECKING:
    import zstandard

MAX_DECOMPRESSED_BYTES = 256 * 1024 * 1024
"""Default bound on what one batch may unpack to."""

_FREE_BYTES = 16 * 1024 * 1024
_MAX_RATIO = 1100
"""Above `_FREE_BYTES`, output may be at most this many times the input (deflate reaches 1,032)."""

_GZIP_WINDOW_BITS = 31
_ZSTD_LEVEL = 3
_ZSTD_MAX_WINDOW_BYTES = 1 << 27
_STEP_BYTES = 1 << 20


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
    match codec:
        case Codec.NONE:
            return data
        case Codec.GZIP:
            compressor = zlib.compressobj(6, zlib.DEFLATED, _GZIP_WINDOW_BITS)
            return compressor.compress(data) + compressor.flush()
        case Codec.SNAPPY:
            return snappy.compress(data)
        case Codec.LZ4:
            return _compress_lz4(data)
        case Codec.ZSTD:
            import zstandard

            return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(data)
        case _:
            raise AssertionError(f"unknown codec {codec}")


def decompress(codec: int, data: Buffer, *, max_bytes: int = MAX_DECOMPRESSED_BYTES, is_single: bool = False) -> Buffer:
    """Decompress a records section; with `is_single` it must be one stream to its last byte.

    Raises:
        BatchTooLarge: the output would exceed `max_bytes`, or 16 MiB and a ratio of 1,100; found out without allocating it.
        CorruptBatch: the data is not of that compression.
    """
    if codec == Codec.NONE:
        return data
    max_bytes = min(max_bytes, max(_FREE_BYTES, _MAX_RATIO * len(data)))
    match codec:
        case Codec.GZIP:
            return _decompress_gzip(data, max_bytes, is_single=is_single)
        case Codec.SNAPPY:
            return snappy.decompress(data, max_bytes=max_bytes, is_single=is_single)
        case Codec.LZ4:
            return _decompress_lz4(data, max_bytes, is_single=is_single)
        case Codec.ZSTD:
            return _decompress_zstd(data, max_bytes, is_single=is_single)
        case _:
            raise CorruptBatch(f"expected a compression codec of 0 to 4, found {codec}")


def _compress_lz4(data: Buffer) -> bytes:
    import lz4.frame

    # Independent blocks without a stored size are what every client reads.
    compressed: bytes = lz4.frame.compress(data, block_size=lz4.frame.BLOCKSIZE_MAX256KB, block_linked=False, store_size=False)
    return compressed


def _decompress_gzip(data: Buffer, max_bytes: int, *, is_single: bool) -> bytes:
    parts: list[bytes] = []
    left_bytes = max_bytes
    rest: Buffer = data
    while rest:
        decompressor = zlib.decompressobj(_GZIP_WINDOW_BITS)
        try:
            part = decompressor.decompress(rest, left_bytes + 1)
        except zlib.error as error:
            raise CorruptBatch(f"gzip data is damaged: {error}") from error
        parts.append(part)
        left_bytes -= len(part)
        if left_bytes < 0:
            raise _too_large("gzip", max_bytes)
        if not decompressor.eof:
            raise CorruptBatch("gzip data ends early")
        rest = decompressor.unused_data
        if rest and is_single:
            raise CorruptBatch(f"{len(rest)} bytes lie behind the gzip data")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _decompress_lz4(data: Buffer, max_bytes: int, *, is_single: bool) -> bytes:
    import lz4.frame

    parts: list[bytes] = []
    left_bytes = max_bytes
    rest: Buffer | None = data
    while rest:
        decompressor = lz4.frame.LZ4FrameDecompressor()
        try:
            part = decompressor.decompress(rest, left_bytes + 1)
        except (RuntimeError, ValueError) as error:
            raise CorruptBatch(f"lz4 data is damaged: {error}") from error
        parts.append(part)
        left_bytes -= len(part)
        if left_bytes < 0:
            raise _too_large("lz4", max_bytes)
        if not decompressor.eof:
            raise CorruptBatch("lz4 data ends early")
        rest = decompressor.unused_data
        if rest and is_single:
            raise CorruptBatch(f"{len(rest)} bytes lie behind the lz4 data")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _decompress_zstd(data: Buffer, max_bytes: int, *, is_single: bool) -> bytes:
    import zstandard

    try:
        content_bytes = zstandard.frame_content_size(data)
        if content_bytes > max_bytes:
            raise _too_large("zstd", max_bytes)
        decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW_BYTES)
        if is_single:
            return _decompress_one_zstd(decompressor, data, max_bytes)
        if 0 <= content_bytes <= _FREE_BYTES:
            return decompressor.decompress(data, read_across_frames=False, allow_extra_data=False)
        return _read_zstd_stream(decompressor.stream_reader(data, read_across_frames=True), max_bytes)
    except zstandard.ZstdError as error:
        raise CorruptBatch(f"zstd data is damaged: {error}") from error


def _decompress_one_zstd(decompressor: zstandard.ZstdDecompressor, data: Buffer, max_bytes: int) -> bytes:
    import zstandard

    try:
        return decompressor.decompress(data, max_output_size=max_bytes, read_across_frames=False, allow_extra_data=False)
    except zstandard.ZstdError:
        _read_zstd_stream(decompressor.stream_reader(data), max_bytes)  # was it too much?
        raise


def _read_zstd_stream(reader: object, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    left_bytes = max_bytes
    while part := reader.read(min(_STEP_BYTES, left_bytes + 1)):  # type: ignore[attr-defined]
        parts.append(part)
        left_bytes -= len(part)
        if left_bytes < 0:
            raise _too_large("zstd", max_bytes)
    return b"".join(parts)


def _too_large(name: str, max_bytes: int) -> BatchTooLarge:
    return BatchTooLarge(f"{name} records unpack to more than the {max_bytes} bytes allowed")
