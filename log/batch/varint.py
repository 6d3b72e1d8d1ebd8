"""Zigzag varints of the record format ("Record" of the Kafka protocol guide), in plain Python."""

from __future__ import annotations

from .errors import CorruptBatch

_MAX_64_BITS_SHIFT = 63


def write_varint(out: bytearray, value: int) -> None:
    """Append a signed value (32 or 64 bits) in zigzag form."""
    value = (value << 1) ^ (value >> 63)
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


def read_varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Return (value, position after it) of a varint of up to 32 bits.

    Raises:
        CorruptBatch: it has more than 32 bits.
        IndexError: the data ends inside it.
    """
    value, position = read_varlong(data, position)
    if not -0x80000000 <= value <= 0x7FFFFFFF:
        raise CorruptBatch(f"varint before byte {position} of the records exceeds 32 bits")
    return value, position


def read_varlong(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Return (value, position after it) of a varint of up to 64 bits; raises as `read_varint`."""
    raw = shift = 0
    while True:
        byte = data[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > _MAX_64_BITS_SHIFT:
            raise CorruptBatch(f"varint before byte {position} of the records exceeds 64 bits")
    if raw > 0xFFFFFFFFFFFFFFFF:
        raise CorruptBatch(f"varint before byte {position} of the records exceeds 64 bits")
    return (raw >> 1) ^ -(raw & 1), position
