"""What stands before a payload that is written with a registered schema: a zero byte and the schema's id (4 bytes,
big-endian), as Confluent's serializers write it. Protobuf has the message's place in its schema behind that."""

from __future__ import annotations

import struct

from logflume.log.errors import DecodeError

_FRAME = struct.Struct(">bI")
FRAME_SIZE_BYTES = _FRAME.size
_MAX_MESSAGE_INDEXES = 64


def frame(schema_id: int) -> bytes:
    """Return the bytes before a payload.

    >>> frame(7)
    b'\\x00\\x00\\x00\\x00\\x07'
    """
    return _FRAME.pack(0, schema_id)


def read_frame(data: bytes) -> int:
    """Return the schema id before a payload.

    Raises:
        DecodeError: the bytes do not begin as a registered schema's do.
    """
    if len(data) < FRAME_SIZE_BYTES or data[0] != 0:
        raise DecodeError(
            f"expected a zero byte and a schema id of 4 bytes, found {bytes(data[:FRAME_SIZE_BYTES])!r}: "
            "was this written without a schema registry?"
        )
    schema_id: int = _FRAME.unpack_from(data)[1]
    return schema_id


def message_indexes(path: tuple[int, ...]) -> bytes:
    """Return a message's place in its schema: how many steps, then each, as zigzag varints; the first message is one zero.

    >>> message_indexes((0,)), message_indexes((1, 0))
    (b'\\x00', b'\\x04\\x02\\x00')
    """
    if path == (0,):
        return b"\x00"
    return b"".join(map(_zigzag, (len(path), *path)))


def read_message_indexes(data: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """Return a message's place in its schema and where the payload begins.

    Raises:
        DecodeError: truncated, or a place that cannot be.
    """
    count, at = _read_zigzag(data, at)
    if count == 0:
        return (0,), at
    if not 0 < count <= _MAX_MESSAGE_INDEXES:
        raise DecodeError(f"expected 1 to {_MAX_MESSAGE_INDEXES} message indexes, found {count}")
    path = []
    for _ in range(count):
        step, at = _read_zigzag(data, at)
        path.append(step)
    return tuple(path), at


def _zigzag(value: int) -> bytes:
    rest = value << 1 if value >= 0 else ((-value) << 1) - 1
    out = bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _read_zigzag(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 28:
            raise DecodeError("the message indexes before a Protobuf payload are cut off or too large")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
