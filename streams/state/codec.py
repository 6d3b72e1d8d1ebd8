"""How an entry is written, the same on disk and in the changelog: one version byte, then MessagePack [timestamp ms, *state].

A changelog can be read by a later version: the version byte names the encoding, and unknown ones are refused.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable
from types import GenericAlias
from typing import Any

import msgspec

from logflume.log import CorruptLog, InvalidInput
from logflume.log.schemas import Column, DataType, Kind
from logflume.streams.seams import Entry

from .values import from_wire, to_wire

ENTRY_VERSION = 1
_PREFIX = bytes([ENTRY_VERSION])
_PYTHON_TYPES: dict[Kind, Any] = {
    Kind.BOOLEAN: bool,
    Kind.INTEGER: int,
    Kind.BIGINT: int,
    Kind.DOUBLE: float,
    Kind.DECIMAL: decimal.Decimal,
    Kind.STRING: str,
    Kind.BYTES: bytes,
    Kind.DATE: int,
    Kind.TIME: int,
    Kind.TIMESTAMP: int,
}


class EntryCodec:
    """Encodes and decodes the entries of one store. Stateless after construction, thread-safe."""

    __slots__ = ("_any_positions", "_decoder", "_encode", "columns", "decode", "encode")

    def __init__(self, columns: tuple[Column, ...]) -> None:
        self.columns = columns
        fields = (int, *(_python_type(column.type) | None for column in columns))
        self._decoder: Any = msgspec.msgpack.Decoder(GenericAlias(tuple, fields), ext_hook=from_wire)
        self._encode = msgspec.msgpack.Encoder().encode
        self._any_positions = tuple(i for i, column in enumerate(columns, 1) if _holds_any(column.type))
        self.encode: Callable[[Entry], bytes | None] = self._encode_any if self._any_positions else self._encode_plain
        self.decode: Callable[[bytes], Entry] = self._decode

    def _encode_plain(self, entry: Entry) -> bytes | None:
        """Return the bytes of an entry, None for a deleted one (a tombstone in the changelog)."""
        state = entry.state
        return None if state is None else _PREFIX + self._encode((entry.timestamp_ms, *state))

    def _encode_any(self, entry: Entry) -> bytes | None:
        if entry.state is None:
            return None
        fields: list[Any] = [entry.timestamp_ms, *entry.state]
        for position in self._any_positions:
            fields[position] = to_wire(fields[position])
        return _PREFIX + self._encode(fields)

    def _decode(self, data: bytes) -> Entry:
        """Return the entry. Raises CorruptLog when the bytes do not fit the store's columns, InvalidInput for a newer version."""
        if data[:1] != _PREFIX:
            found = data[0] if data else "nothing"
            raise InvalidInput(
                f"a store entry has format {found}, this logflume reads {ENTRY_VERSION}: use the version that wrote it"
            )
        try:
            timestamp_ms, *state = self._decoder.decode(data[1:])
        except (msgspec.MsgspecError, ValueError) as error:
            raise CorruptLog(f"a store entry does not fit its columns {[str(c.type) for c in self.columns]}: {error}") from error
        return Entry(tuple(state), timestamp_ms)


def _python_type(data_type: DataType) -> Any:
    match data_type.kind:
        case Kind.ARRAY:
            assert data_type.element is not None
            return list[_python_type(data_type.element) | None]  # type: ignore[misc]
        case Kind.MAP:
            assert data_type.key is not None
            assert data_type.element is not None
            return dict[_python_type(data_type.key), _python_type(data_type.element) | None]  # type: ignore[misc]
        case Kind.STRUCT:
            return dict[str, Any] if not _holds_decimal(data_type) else _struct_type(data_type)
        case Kind.ANY:
            return Any
    return _PYTHON_TYPES[data_type.kind]


def _struct_type(data_type: DataType) -> Any:
    """A TypedDict, so that decimals inside come back as decimals."""
    from typing import TypedDict

    fields = {field.name: _python_type(field.type) | None for field in data_type.fields}
    return TypedDict("Struct", fields)  # type: ignore[operator]


def _holds_decimal(data_type: DataType) -> bool:
    return _holds(data_type, Kind.DECIMAL)


def _holds_any(data_type: DataType) -> bool:
    return _holds(data_type, Kind.ANY)


def _holds(data_type: DataType, kind: Kind) -> bool:
    inner = [field.type for field in data_type.fields]
    inner += [part for part in (data_type.key, data_type.element) if part is not None]
    return data_type.kind == kind or any(_holds(part, kind) for part in inner)
