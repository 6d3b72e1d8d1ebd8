"""The KAFKA serde: one bare primitive as Kafka's own serializers write it (big-endian numbers, UTF-8 text); and NONE.

A single column of type ANY is opaque: bytes as they are (text is written as UTF-8), for topics without a schema.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from logflume.log.errors import DecodeError, InvalidInput

from .serdes import FormatSpec, Row
from .types import Column, Kind

_PACKERS = {Kind.INTEGER: struct.Struct(">i"), Kind.BIGINT: struct.Struct(">q"), Kind.DOUBLE: struct.Struct(">d")}


def make_decode(spec: FormatSpec, columns: tuple[Column, ...]) -> Callable[[bytes | None], Row | None]:
    """Return the decoder of the one column."""
    column = columns[0]
    if column.type.kind in _PACKERS:
        packer = _PACKERS[column.type.kind]

        def decode_number(data: bytes | None) -> Row | None:
            if data is None:
                return None
            if len(data) != packer.size:
                raise DecodeError(f"{column.name}: expected {column.type} as {packer.size} bytes, found {len(data)}")
            return packer.unpack(data)

        return decode_number
    if column.type.kind is Kind.STRING:

        def decode_text(data: bytes | None) -> Row | None:
            if data is None:
                return None
            try:
                return (str(data, "utf-8"),)
            except UnicodeDecodeError as error:
                raise DecodeError(f"{column.name}: expected UTF-8 text: {error}") from None

        return decode_text
    return lambda data: None if data is None else (bytes(data),)


def encode_text(value: str) -> bytes:
    """Return text as UTF-8. Raises TypeError: it is none; UnicodeEncodeError: a surrogate is in it."""
    try:
        return str.encode(value)
    except TypeError:
        raise TypeError(f"expected text, found {type(value).__name__}") from None


def make_encode(spec: FormatSpec, columns: tuple[Column, ...]) -> Callable[[Row | None], bytes | None]:
    """Return the encoder of the one column; a null column is written as null."""
    column = columns[0]
    write: Callable[[Any], bytes]
    if column.type.kind in _PACKERS:
        write = _PACKERS[column.type.kind].pack
    elif column.type.kind is Kind.STRING:
        write = encode_text
    else:
        write = _opaque

    def encode(row: Row | None) -> bytes | None:
        if row is None or row[0] is None:
            return None
        try:
            return write(row[0])
        except (struct.error, TypeError, ValueError) as error:
            raise InvalidInput(f"{column.name}: {row[0]!r} cannot be written as {column.type}: {error}") from None

    return encode


def decode_nothing(data: bytes | None) -> Row | None:
    """NONE: that side has no columns."""
    return None if data is None else ()


def encode_nothing(row: Row | None) -> bytes | None:
    """NONE: always null."""
    return None


def _opaque(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"expected bytes or str, found {type(value).__name__}")
