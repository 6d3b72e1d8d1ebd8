"""The ROW serde: rows as MessagePack arrays, [version, *values], for what an application writes for itself alone.

Values are found by their place: who reads knows the columns. It is not for topics that others read, and has no name in SQL.
Where kernels read and write it they make the same bytes and the same rows. MessagePack: github.com/msgpack/msgpack, spec.md.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Sequence
from types import GenericAlias
from typing import Annotated, Any

import msgspec

from logflume.log.errors import DecodeError, InvalidInput

from . import coerce
from .json_format import any_object
from .layouts import PLAIN_KINDS, Found, Layout, Leaf, Read, Wire, Write, as_they_lie
from .serdes import FormatSpec, Row
from .types import Column, DataType, Kind

ROW_VERSION = 1
BOOLEAN, INT, LONG, DOUBLE, STRING, WHOLE, BYTES = range(7)
"""Operations of the steps of a layout, one step a column: WHOLE is a value of any form."""

_OPERATIONS = {
    Kind.BOOLEAN: BOOLEAN, Kind.INTEGER: INT, Kind.DATE: INT, Kind.BIGINT: LONG, Kind.TIMESTAMP: LONG, Kind.DOUBLE: DOUBLE,
    Kind.STRING: STRING, Kind.BYTES: BYTES,
}  # fmt: skip
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
_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
_UNWRITABLE = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)
_encode = msgspec.msgpack.Encoder(enc_hook=any_object).encode


def python_type(data_type: DataType) -> Any:
    """Return what a MessagePack value of a column type is read as."""
    match data_type.kind:
        case Kind.ARRAY:
            assert data_type.element is not None
            return list[python_type(data_type.element) | None]  # type: ignore[misc]
        case Kind.MAP:
            assert data_type.key is not None
            assert data_type.element is not None
            return dict[python_type(data_type.key), python_type(data_type.element) | None]  # type: ignore[misc]
        case Kind.STRUCT:
            return dict[str, Any] if not holds(data_type, Kind.DECIMAL) else _struct_type(data_type)
        case Kind.ANY:
            return Any
    return _PYTHON_TYPES[data_type.kind]


def _struct_type(data_type: DataType) -> Any:
    """A TypedDict, so that decimals inside come back as decimals."""
    from typing import TypedDict

    fields = {field.name: python_type(field.type) | None for field in data_type.fields}
    return TypedDict("Struct", fields)  # type: ignore[operator]


def holds(data_type: DataType, kind: Kind) -> bool:
    """Return whether a type is of a kind, or has parts that are."""
    inner = [field.type for field in data_type.fields]
    inner += [part for part in (data_type.key, data_type.element) if part is not None]
    return data_type.kind == kind or any(holds(part, kind) for part in inner)


def _value_type(data_type: DataType) -> Any:
    """Return `python_type` of a value of its own: a number lies in its range."""
    bounds = coerce.INT_RANGES.get(data_type.kind)
    return python_type(data_type) if bounds is None else Annotated[int, msgspec.Meta(ge=bounds[0], le=bounds[1])]


def make_decode(spec: FormatSpec, columns: tuple[Column, ...]) -> Callable[[bytes | None], Row | None]:
    """Return the decoder of rows of these columns."""
    return make_part_decode(spec, columns, columns)


def make_part_decode(
    spec: FormatSpec, columns: tuple[Column, ...], wanted: tuple[Column, ...]
) -> Callable[[bytes | None], Row | None]:
    """Return the decoder of some columns of rows of these."""
    types = [_value_type(column.type) | None if column in wanted else msgspec.Raw for column in columns]
    loads = msgspec.msgpack.Decoder(GenericAlias(tuple, (int, *types))).decode
    places = [columns.index(column) + 1 for column in wanted]
    is_whole = wanted == columns

    def decode(data: bytes | None) -> Row | None:
        if data is None:
            return None
        try:
            row: Any = loads(data)
        except _UNREADABLE:
            row = _coerced(data, columns, wanted)
        if row[0] != ROW_VERSION:
            raise DecodeError(f"a row of form {row[0]!r}, this logflume reads {ROW_VERSION}: use the version that wrote it")
        return row[1:] if is_whole else tuple([row[place] for place in places])

    return decode


def _coerced(data: bytes, columns: tuple[Column, ...], wanted: tuple[Column, ...]) -> Row:
    """Read values of other types than their columns', as a callable may have made them, like JSON's."""
    try:
        row: Any = msgspec.msgpack.decode(data)
    except _UNREADABLE as error:
        raise DecodeError(f"not a row of {_names(columns)}: {error}") from None
    if not isinstance(row, list) or len(row) != len(columns) + 1:
        raise DecodeError(f"expected a row of {_names(columns)}, found {str(row)[:80]}")
    for place, column in enumerate(columns, 1):
        if column in wanted and not (column.type.kind is Kind.BYTES and isinstance(row[place], bytes)):
            value = decimal.Decimal(repr(row[place])) if isinstance(row[place], float) else row[place]
            row[place] = coerce.from_json(value, column.type, column.name)
    return tuple(row)


def _names(columns: Sequence[Column]) -> str:
    return f"({', '.join(column.name for column in columns)})"


def make_encode(spec: FormatSpec, columns: tuple[Column, ...]) -> Callable[[Row | None], bytes | None]:
    """Return the encoder of rows of these columns."""

    def encode(row: Row | None) -> bytes | None:
        if row is None:
            return None
        try:
            return _encode((ROW_VERSION, *row))
        except _UNWRITABLE as error:
            raise InvalidInput(f"the row cannot be written with columns {[c.name for c in columns]}: {error}") from None

    return encode


# ------------------------------------------------------------------------------------------------ layouts


def _head(count: int) -> bytes:
    """Return what stands before the values of a row: the array's head and the version."""
    return msgspec.msgpack.encode([ROW_VERSION, *[None] * count])[: -count or None]


def read_layout(spec: FormatSpec, columns: tuple[Column, ...], wanted: tuple[Column, ...], record: bytes) -> Layout:
    """Return how rows are read."""
    steps = tuple((_operation(c), wanted.index(c) if c in wanted else -1, 0, 0, 0) for c in columns)
    return Layout(Wire.ROW, _head(len(columns)), steps, leaves=tuple(map(_leaf, wanted)))


def _operation(column: Column) -> int:
    return _OPERATIONS.get(column.type.kind, WHOLE)


def _leaf(column: Column) -> Leaf:
    kind = column.type.kind
    if kind in PLAIN_KINDS:
        return Leaf(Found.VALUE, kind)
    return Leaf(Found.CONTENT, kind, as_they_lie) if kind is Kind.BYTES else Leaf(Found.WHOLE, kind, _reader(column.type))


def _reader(data_type: DataType) -> Read:
    loads = msgspec.msgpack.Decoder(python_type(data_type)).decode

    def read(parts: Sequence[bytes]) -> list[Any]:
        try:
            return list(map(loads, parts))
        except _UNREADABLE as error:
            raise DecodeError(f"not values of {data_type}: {error}") from None

    return read


def write_layout(spec: FormatSpec, columns: tuple[Column, ...]) -> Layout:
    """Return how rows are written."""
    steps = tuple((_operation(column), place, 0, 0, 0) for place, column in enumerate(columns))
    return Layout(Wire.ROW, _head(len(columns)), steps, writers=tuple(map(_writer, columns)))


def _writer(column: Column) -> Write | None:
    if column.type.kind in PLAIN_KINDS:
        return None
    return as_they_lie if column.type.kind is Kind.BYTES else _written


def _written(values: Sequence[Any]) -> list[bytes | None]:
    found: list[bytes | None] = []
    for value in values:
        try:
            found.append(_encode(value))
        except _UNWRITABLE:
            found.append(None)
    return found
