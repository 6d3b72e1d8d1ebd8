"""Snappy as Kafka's clients write it: raw blocks inside the xerial framing of snappy-java; bare raw blocks are read too.

Framing: magic `82 SNAPPY 00`, version i32, lowest compatible version i32, then per block i32 size and a raw snappy block.
"""

from __future__ import annotations

import struct

from .errors import BatchTooLarge, CorruptBatch
from .header import Buffer

_MAGIC = b"\x82SNAPPY\x00"
_PREAMBLE = _MAGIC + struct.pack(">ii", 1, 1)
_BLOCK_BYTES = 32 * 1024
_MAX_RATIO = 22
"""A raw block grows at most 64 bytes per copy of 3 bytes."""


def compress(data: Buffer) -> bytes:
    """Compress into the xerial framing, blocks of 32 KiB like snappy-java."""
    import cramjam

    view = memoryview(data)
    parts = [_PREAMBLE]
    for start in range(0, len(view), _BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _BLOCK_BYTES]))
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def decompress(data: Buffer, *, max_bytes: int, is_single: bool = False) -> bytes:
    """Decompress framed or raw snappy; with `is_single` the framing must be of version 1, the only one that all clients know.

    Raises:
        BatchTooLarge, CorruptBatch: see `compression.decompress`.
    """
    view = memoryview(data)
    if view[: len(_MAGIC)] != _MAGIC:
        return _decompress_block(view, max_bytes)
    if is_single and view[: len(_PREAMBLE)] != _PREAMBLE:
        raise CorruptBatch("snappy framing: expected version 1")
    parts: list[bytes] = []
    position, left_bytes = len(_PREAMBLE), max_bytes
    while position < len(view):
        size = int.from_bytes(view[position : position + 4], "big")
        position += 4
        if size == 0 or size > len(view) - position:
            raise CorruptBatch(f"snappy block says {size} bytes where {max(len(view) - position, 0)} are left")
        block = _decompress_block(view[position : position + size], left_bytes)
        parts.append(block)
        left_bytes -= len(block)
        position += size
    return b"".join(parts)


def _decompress_block(block: memoryview, max_bytes: int) -> bytes:
    import cramjam

    size = _block_size(block)
    if size > max_bytes:
        raise BatchTooLarge(f"snappy block unpacks to {size} bytes, more than the {max_bytes} allowed")
    if size > _MAX_RATIO * len(block):
        raise CorruptBatch(f"snappy block of {len(block)} bytes cannot unpack to the {size} bytes it says")
    try:
        out = bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"snappy block is damaged: {error}") from error
    return out


def _block_size(block: memoryview) -> int:
    size = shift = 0
    for byte in block[:5]:
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return size
        shift += 7
    raise CorruptBatch("snappy block does not begin with its size")
