"""The ROW serde: rows as MessagePack arrays, [mark, *values], for what an application writes for itself alone.

Values are found by their place: who reads knows the columns. The mark is four bytes of the version of this form and of the
names and types of the columns, so that an application which was changed does not take one column for another. It is not for
topics that others read, and has no name in SQL.
Where kernels read and write it they make the same bytes and the same rows. MessagePack: github.com/msgpack/msgpack, spec.md.
"""

from __future__ import annotations

import decimal
import zlib
from collections.abc import Callable, Sequence
from types import GenericAlias
from typing import Annotated, Any

import msgspec

from logflume.log.errors import DecodeError, InvalidInput

from . import coerce
from .json_format import any_object
from .layouts import PLAIN_KINDS, Found, Layout, Leaf, Read, Unheld, Wire, Write, as_they_lie
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
_loads_parts = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
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
    readers = tuple(msgspec.msgpack.Decoder(each).decode for each in types)
    loads = msgspec.msgpack.Decoder(GenericAlias(tuple, (int, *types))).decode
    places = [columns.index(column) + 1 for column in wanted]
    is_whole, mark = wanted == columns, _mark(columns)

    def decode(data: bytes | None) -> Row | None:
        if data is None:
            return None
        try:
            row: Any = loads(data)
        except _UNREADABLE:
            row = _coerced(data, columns, readers)
        if row[0] != mark:
            raise _other_version(columns)
        return row[1:] if is_whole else tuple([row[place] for place in places])

    return decode


def _coerced(data: bytes, columns: tuple[Column, ...], readers: tuple[Callable[[msgspec.Raw], Any], ...]) -> Row:
    """Read values of other types than their columns', as a callable may have made them, like JSON's."""
    try:
        mark, *parts = _loads_parts(data)
        found = msgspec.msgpack.decode(mark)
    except _UNREADABLE as error:
        raise DecodeError(f"not a row of {_names(columns)}: {error}") from None
    if found != _mark(columns):
        raise _other_version(columns)
    if len(parts) != len(columns):
        raise DecodeError(f"expected a row of {_names(columns)}, found {len(parts)} values")
    return (found, *map(_value, parts, columns, readers))


def _value(part: msgspec.Raw, column: Column, read: Callable[[msgspec.Raw], Any]) -> Any:
    """Return a value as its column's type, or as JSON's values are made that."""
    try:
        return read(part)
    except _UNREADABLE:
        pass
    try:
        return coerce.from_json(_as_of_json(msgspec.msgpack.decode(part)), column.type, column.name)
    except DecodeError:
        raise
    except (*_UNREADABLE, TypeError, AttributeError, OverflowError) as error:  # as of a number that is infinite
        raise DecodeError(f"{column.name}: expected {column.type}, found another value ({error})") from None


def _as_of_json(value: Any) -> Any:
    """Return a value with its floats as decimals, which is what `coerce` takes."""
    if isinstance(value, float):
        return decimal.Decimal(repr(value))
    if isinstance(value, list):
        return [_as_of_json(item) for item in value]
    if isinstance(value, dict):
        return {key: _as_of_json(item) for key, item in value.items()}
    return value


def _mark(columns: tuple[Column, ...]) -> int:
    """Return the mark of rows of these columns. The highest bit is set, so that it is always written in full."""
    told = repr((ROW_VERSION, [(column.name, str(column.type)) for column in columns]))
    return zlib.crc32(told.encode()) | 1 << 31


def _other_version(columns: tuple[Column, ...]) -> DecodeError:
    return DecodeError(
        f"expected a row of {_names(columns)}, found one of other columns: another version of this application wrote it to its "
        "internal topic. Let that version process what it has written before you upgrade, or `logflume streams reset` it"
    )


def _names(columns: Sequence[Column]) -> str:
    return f"({', '.join(column.name for column in columns)})"


def make_encode(spec: FormatSpec, columns: tuple[Column, ...]) -> Callable[[Row | None], bytes | None]:
    """Return the encoder of rows of these columns."""
    mark = _mark(columns)

    def encode(row: Row | None) -> bytes | None:
        if row is None:
            return None
        try:
            return _encode((mark, *row))
        except _UNWRITABLE as error:
            raise InvalidInput(f"the row cannot be written with columns {[c.name for c in columns]}: {error}") from None

    return encode


# ------------------------------------------------------------------------------------------------ layouts


def _head(columns: tuple[Column, ...]) -> bytes:
    """Return what stands before the values of a row: the array's head and the mark."""
    count = len(columns)
    return msgspec.msgpack.encode([_mark(columns), *[None] * count])[: -count or None]


def read_layout(spec: FormatSpec, columns: tuple[Column, ...], wanted: tuple[Column, ...], record: bytes) -> Layout:
    """Return how rows are read. Raises Unheld: the record is none of these columns, which the serde says in words."""
    head = _head(columns)
    if not record.startswith(head):
        raise Unheld(f"not a row of {_names(columns)}")
    steps = tuple((_operation(c), wanted.index(c) if c in wanted else -1, 0, 0, 0) for c in columns)
    return Layout(Wire.ROW, head, steps, leaves=tuple(map(_leaf, wanted)))


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
    return Layout(Wire.ROW, _head(columns), steps, writers=tuple(map(_writer, columns)))


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
