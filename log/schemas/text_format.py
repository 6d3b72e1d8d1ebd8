"""The TEXT serde: one value of any type as a person would type it; text as it is, everything else as JSON.

It is for keys of which no type is known: a text key is what Kafka's string serializer writes. Reading gives what JSON says
(`5` is a number, whether it was written as one or as text) and text for the rest; who needs the type says it, and reads KAFKA.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from logflume.log.errors import DecodeError

from . import json_format
from .serdes import FormatSpec, Row
from .types import Column


def make_decode(spec: FormatSpec, columns: tuple[Column, ...]) -> Callable[[bytes | None], Row | None]:
    """Return the decoder of the one column."""
    decode_json = json_format.make_decode(_BARE, columns)

    def decode(data: bytes | None) -> Row | None:
        if data is None:
            return None
        if data[:1] != b'"':
            try:
                return decode_json(data)
            except DecodeError:
                pass
        try:
            return (str(data, "utf-8"),)
        except UnicodeDecodeError as error:
            raise DecodeError(f"{columns[0].name}: expected UTF-8 text: {error}") from None

    return decode


def make_encode(spec: FormatSpec, columns: tuple[Column, ...]) -> Callable[[Row | None], bytes | None]:
    """Return the encoder of the one column; a null column is written as null."""
    encode_json: Callable[[Any], bytes | None] = json_format.make_encode(_BARE, columns)

    def encode(row: Row | None) -> bytes | None:
        if row is None or row[0] is None:
            return None
        value = row[0]
        if isinstance(value, str):
            return value.encode()
        return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else encode_json(row)

    return encode


_BARE = FormatSpec("JSON", is_wrapped=False)
