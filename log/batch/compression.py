"""The four compressions of the records section, each library imported when first used. Output is bounded, always.

Specification: KIP-110 (zstd), KIP-57 (lz4 frames), and the xerial block framing that Java's snappy uses (`snappy.py`).
"""

from __future__ import annotations

import importlib
import sys
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from types import ModuleType
from typing import Protocol

from logflume.log.errors import UnknownName

from . import snappy
from .errors import BatchTooLarge, CorruptBatch
from .header import Buffer

MAX_DECOMPRESSED_BYTES = 256 * 1024 * 1024
"""Default bound on what one batch may unpack to."""

_FREE_BYTES = 16 * 1024 * 1024
_MAX_RATIO = 1100
"""Above `_FREE_BYTES`, output may be at most this many times the input (deflate reaches 1,032)."""

_GZIP_WINDOW_BITS = 31
_ZSTD_LEVEL = 3
_ZSTD_MAX_WINDOW_LOG = 27
_PIECE_BYTES = 4096
"""So much is given to a second or later stream at first: what it does not want is copied, for each of very many tiny ones."""


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
            packed: bytes = _zstd().compress(data, level=_ZSTD_LEVEL)
            return packed
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
        case Codec.SNAPPY:
            return snappy.decompress(data, max_bytes=max_bytes, is_single=is_single)
        case Codec.GZIP | Codec.LZ4 | Codec.ZSTD:
            return _decompress_streams(_decompression(codec, data, max_bytes), data, max_bytes, is_single=is_single)
        case _:
            raise CorruptBatch(f"expected a compression codec of 0 to 4, found {codec}")


def _compress_lz4(data: Buffer) -> bytes:
    import lz4.frame

    # Independent blocks without a stored size are what every client reads.
    compressed: bytes = lz4.frame.compress(data, block_size=lz4.frame.BLOCKSIZE_MAX256KB, block_linked=False, store_size=False)
    return compressed


class _Decompressor(Protocol):
    """One stream at a time: `eof` at its end, `unused_data` is what lies behind it."""

    def decompress(self, data: Buffer, max_length: int, /) -> bytes: ...

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes | None: ...


@dataclass(frozen=True, slots=True)
class _Decompression:
    name: str
    decompressor: Callable[[], _Decompressor]
    damage: tuple[type[Exception], ...]


def _decompression(codec: int, data: Buffer, max_bytes: int) -> _Decompression:
    """Return how a codec is undone. Raises BatchTooLarge for a zstd frame that says itself how much it is."""
    if codec == Codec.GZIP:
        return _Decompression("gzip", lambda: zlib.decompressobj(_GZIP_WINDOW_BITS), (zlib.error,))
    if codec == Codec.LZ4:
        import lz4.frame

        return _Decompression("lz4", lz4.frame.LZ4FrameDecompressor, (RuntimeError, ValueError))
    zstd = _zstd()
    with suppress(zstd.ZstdError):  # what is damaged is told of where it is undone
        if (zstd.get_frame_info(data).decompressed_size or 0) > max_bytes:
            raise _too_large("zstd", max_bytes)
    window = {zstd.DecompressionParameter.window_log_max: _ZSTD_MAX_WINDOW_LOG}
    return _Decompression("zstd", lambda: zstd.ZstdDecompressor(options=window), (zstd.ZstdError,))


def _decompress_streams(codec: _Decompression, data: Buffer, max_bytes: int, *, is_single: bool) -> bytes:
    """Undo one stream after the other to the end of the data. Raises as `decompress`."""
    view, parts, left_bytes = memoryview(data), list[bytes](), max_bytes
    at, piece_bytes = 0, len(view)
    while at < len(view):
        decompressor = codec.decompressor()
        while not decompressor.eof:
            piece = view[at : at + piece_bytes]
            if not piece:
                raise CorruptBatch(f"{codec.name} data ends early")
            try:
                part = decompressor.decompress(piece, left_bytes + 1)
            except codec.damage as error:
                raise CorruptBatch(f"{codec.name} data is damaged: {error}") from error
            parts.append(part)
            left_bytes -= len(part)
            if left_bytes < 0:
                raise _too_large(codec.name, max_bytes)
            at += len(piece)
            piece_bytes *= 2
        at -= len(decompressor.unused_data or b"")
        if at < len(view) and is_single:
            raise CorruptBatch(f"{len(view) - at} bytes lie behind the {codec.name} data")
        piece_bytes = _PIECE_BYTES
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _zstd() -> ModuleType:
    """Return Python's own module, which older ones have from elsewhere."""
    return importlib.import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")


def _too_large(name: str, max_bytes: int) -> BatchTooLarge:
    return BatchTooLarge(f"{name} records unpack to more than the {max_bytes} bytes allowed")
