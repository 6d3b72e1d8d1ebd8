"""Reading and writing the fields of records in internal topics: Kafka's primitive types, big-endian.

In a flexible version lengths are unsigned varints of n + 1 and a structure ends in tagged fields. Reading is bounds-checked:
bytes that do not fit raise DecodeError.
"""

from __future__ import annotations

import struct
from typing import Any

from logflume.log.errors import DecodeError


def write_varint(value: int) -> bytes:
    """Return an unsigned varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_string(text: str | None, *, is_flexible: bool = False) -> bytes:
    """Return a string or null."""
    return _write_sized(None if text is None else text.encode(), ">h", is_flexible)


def write_bytes(data: bytes | None, *, is_flexible: bool = False) -> bytes:
    """Return bytes or null."""
    return _write_sized(data, ">i", is_flexible)


def write_count(count: int, *, is_flexible: bool = False) -> bytes:
    """Return the length in front of an array; -1 for null."""
    return write_varint(count + 1) if is_flexible else struct.pack(">i", count)


def _write_sized(data: bytes | None, size_format: str, is_flexible: bool) -> bytes:
    size = -1 if data is None else len(data)
    head = write_varint(size + 1) if is_flexible else struct.pack(size_format, size)
    return head + (data or b"")


class FieldReader:
    """A position in one key or value. Invariant: never reads past the end."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes) -> None:
        self._data, self._position = data, 0

    def take(self, fmt: str) -> Any:
        """Read one number: a struct format without byte order."""
        return struct.unpack(">" + fmt, self._bytes(struct.calcsize(">" + fmt)))[0]

    def varint(self) -> int:
        """Read an unsigned varint of at most five bytes."""
        value = 0
        for shift in range(0, 35, 7):
            byte = self._bytes(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise DecodeError("a varint of more than five bytes in a record of an internal topic")

    def count(self, *, is_flexible: bool = False) -> int:
        """Read the length of an array, -1 for null; at most as many as bytes are left."""
        count: int = self.varint() - 1 if is_flexible else self.take("i")
        if count > len(self._data) - self._position:
            raise DecodeError(f"an array of {count} elements in {len(self._data) - self._position} bytes")
        return count

    def string(self, *, is_flexible: bool = False) -> str | None:
        size = self.varint() - 1 if is_flexible else self.take("h")
        if size < 0:
            return None
        try:
            return self._bytes(size).decode()
        except UnicodeDecodeError as error:
            raise DecodeError(f"a string that is not UTF-8 in a record of an internal topic: {error}") from error

    def text(self, *, is_flexible: bool = False) -> str:
        """Read a string that may not be null."""
        text = self.string(is_flexible=is_flexible)
        if text is None:
            raise DecodeError("null where a string is required in a record of an internal topic")
        return text

    def blob(self, *, is_flexible: bool = False) -> bytes:
        """Read bytes; null reads as empty."""
        size = self.varint() - 1 if is_flexible else self.take("i")
        return self._bytes(size) if size > 0 else b""

    def raw(self, size: int) -> bytes:
        """Read bytes of a fixed number, as a UUID."""
        return self._bytes(size)

    def tagged(self) -> dict[int, bytes]:
        """Read the tagged fields at the end of a flexible structure: tag -> raw value."""
        return {self.varint(): self._bytes(self.varint()) for _ in range(self.varint())}

    def _bytes(self, size: int) -> bytes:
        end = self._position + size
        if end > len(self._data):
            raise DecodeError(f"{len(self._data)} bytes end where {end} are needed in a record of an internal topic")
        data = self._data[self._position : end]
        self._position = end
        return data
