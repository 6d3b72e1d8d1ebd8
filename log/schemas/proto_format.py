"""The PROTOBUF and PROTOBUF_NOSR serdes: rows as Protobuf messages, behind the frame of a registered schema or bare.

A message is read with the schema that it was written with (NOSR: with the one made from the columns), and its fields go to the
columns of the same name, in any case. Without `nullables` a scalar cannot be null: what was not set reads as its default, as
Protobuf 3 has it. Fields that are messages are null when they are absent.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from logflume.log.errors import DecodeError, InvalidInput

from . import proto_layout
from .coerce import fit_decimal, json_to_text
from .frames import FRAME_SIZE_BYTES, frame, message_indexes, read_frame, read_message_indexes
from .layouts import Layout
from .proto_compiler import compile_proto
from .proto_schema import (
    DATE_MESSAGE,
    DECIMAL,
    TIME_MESSAGE,
    TIMESTAMP_MESSAGE,
    WRAPPERS_FILE,
    column_type,
    derived_text,
    entry_of,
    fields_of,
    is_repeated,
    message_at,
    message_named,
    message_path,
    messages_of,
)
from .registries import RegisteredSchema, registry_at
from .serdes import FormatSpec, Row
from .types import Column, DataType, Kind
from .writing import schema_to_write_with

Convert = Callable[[Any], Any]
Set = Callable[[Any, Any], None]
_EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()
_INTEGER_KINDS = frozenset({Kind.INTEGER, Kind.BIGINT})


# ------------------------------------------------------------------------------------------------ reading


def write_schema(spec: FormatSpec, columns: tuple[Column, ...]) -> str:
    """Return the text of the schema that columns are written with."""
    return derived_text(columns, spec.full_name, spec.nullables)


def read_schema(registered: RegisteredSchema, full_name: str) -> DataType:
    """Return the type of a registered schema's message of that name, the first one without a name."""
    file, _ = messages_of(compile_proto(registered.text, registered.texts))
    return column_type(message_named(file, full_name))


def check_schema(registered: RegisteredSchema, spec: FormatSpec, columns: tuple[Column, ...]) -> None:
    """Raise DecodeError where fields of a schema's message cannot be columns."""
    file, _ = messages_of(compile_proto(registered.text, registered.texts))
    _getters(message_named(file, spec.full_name), columns, "$")


def make_decode(spec: FormatSpec, columns: tuple[Column, ...]) -> Callable[[bytes | None], Row | None]:
    """Return the decoder of PROTOBUF; it asks the registry for each schema id once."""
    registry = registry_at(spec.registry)
    readers: dict[tuple[int, tuple[int, ...]], Callable[[bytes], Row]] = {}

    def decode(data: bytes | None) -> Row | None:
        if data is None:
            return None
        schema_id = read_frame(data)
        path, at = read_message_indexes(data, FRAME_SIZE_BYTES)
        read = readers.get((schema_id, path))
        if read is None:
            read = readers[schema_id, path] = _reader(_message(registry.by_id(schema_id), path), columns)
        return read(data[at:])

    return decode


def make_bare_decode(spec: FormatSpec, columns: tuple[Column, ...]) -> Callable[[bytes | None], Row | None]:
    """Return the decoder of PROTOBUF_NOSR."""
    read = _reader(_derived(spec, columns), columns)
    return lambda data: None if data is None else read(data)


def read_layout(spec: FormatSpec, columns: tuple[Column, ...], wanted: tuple[Column, ...], record: bytes) -> Layout:
    """Return how records of this one's message are read into columns. Raises Unheld, DecodeError."""
    schema_id = read_frame(record)
    path, at = read_message_indexes(record, FRAME_SIZE_BYTES)
    message = _message(registry_at(spec.registry).by_id(schema_id), path)
    return proto_layout.read_layout(record[:at], message, wanted)


def read_bare_layout(spec: FormatSpec, columns: tuple[Column, ...], wanted: tuple[Column, ...], record: bytes) -> Layout:
    """Return how records of PROTOBUF_NOSR are read into columns. Raises Unheld."""
    return proto_layout.read_layout(b"", _derived(spec, columns), wanted)


def write_layout(spec: FormatSpec, columns: tuple[Column, ...]) -> Layout:
    """Return how rows of columns are written. Raises Unheld."""
    schema_id, message = _to_write_with(spec, columns, derived_text(columns, spec.full_name, spec.nullables))
    return proto_layout.write_layout(frame(schema_id) + message_indexes(message_path(message)), message, columns)


def write_bare_layout(spec: FormatSpec, columns: tuple[Column, ...]) -> Layout:
    """Return how rows of columns are written as PROTOBUF_NOSR. Raises Unheld."""
    return proto_layout.write_layout(b"", _derived(spec, columns), columns)


def _message(registered: RegisteredSchema, path: tuple[int, ...]) -> Any:
    if registered.kind != "PROTOBUF":
        raise DecodeError(f"schema {registered.id} is {registered.kind}, expected PROTOBUF")
    file, _ = messages_of(compile_proto(registered.text, registered.texts))
    return message_at(file, path)


def _derived(spec: FormatSpec, columns: tuple[Column, ...]) -> Any:
    file, _ = messages_of(compile_proto(derived_text(columns, spec.full_name, spec.nullables)))
    return message_at(file, (0,))


def _reader(message: Any, columns: tuple[Column, ...]) -> Callable[[bytes], Row]:
    from google.protobuf.message import DecodeError as ProtobufError
    from google.protobuf.message_factory import GetMessageClass

    parse = GetMessageClass(message).FromString
    getters = _getters(message, columns, "$")

    def read(data: bytes) -> Row:
        try:
            found = parse(bytes(data))
        except (ProtobufError, ValueError) as error:
            raise DecodeError(f"not a Protobuf message {message.full_name}: {error}") from None
        return tuple([get(found) for get in getters])

    return read


def _getters(message: Any, columns: tuple[Column, ...], path: str) -> list[Convert]:
    """Return what reads each column of a message."""
    found = zip(columns, fields_of(message, columns), strict=True)
    return [_nothing if field is None else _getter(field, column.type, f"{path}.{column.name}") for column, field in found]


def _nothing(message: Any) -> None:
    return None


def _getter(field: Any, type: DataType, path: str) -> Convert:
    name, entry = field.name, entry_of(field)
    if entry is not None and type.kind is Kind.MAP:
        assert type.key is not None
        assert type.element is not None
        key, value = _getter(entry["key"], type.key, path), _getter(entry["value"], type.element, path)
        if field.message_type.GetOptions().map_entry:
            to_value = _from_value(entry["value"], type.element, path)
            return lambda message: {str(k): to_value(v) for k, v in getattr(message, name).items()}
        return lambda message: {key(each): value(each) for each in getattr(message, name)}
    if is_repeated(field):
        if type.kind is not Kind.ARRAY or type.element is None:
            raise _mismatch(field, type, path)
        to_item = _from_value(field, type.element, path)
        return lambda message: [to_item(item) for item in getattr(message, name)]
    convert = _from_value(field, type, path)
    if field.has_presence:
        return lambda message: convert(getattr(message, name)) if message.HasField(name) else None
    return lambda message: convert(getattr(message, name))


def _from_value(field: Any, type: DataType, path: str) -> Convert:
    """Return what makes a column's value of a field's value that is there."""
    if field.message_type is not None:
        return _from_message(field, type, path)
    if field.enum_type is not None and type.kind is Kind.STRING:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number, str(number))
    is_integer = field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_INT64, field.CPPTYPE_UINT32, field.CPPTYPE_UINT64)
    is_float = field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE)
    is_bytes = field.type == field.TYPE_BYTES
    fits = {
        Kind.BOOLEAN: field.cpp_type == field.CPPTYPE_BOOL,
        Kind.INTEGER: field.cpp_type == field.CPPTYPE_INT32,
        Kind.BIGINT: is_integer,
        Kind.DOUBLE: is_float or is_integer,
        Kind.BYTES: is_bytes,
        Kind.STRING: not is_bytes,
    }
    if not fits.get(type.kind, False):
        raise _mismatch(field, type, path)
    if type.kind is Kind.DOUBLE and is_integer:
        return float
    if type.kind is Kind.STRING and field.type != field.TYPE_STRING:
        return (lambda value: json_to_text(Decimal(repr(value)))) if is_float else json_to_text
    return _same


def _from_message(field: Any, type: DataType, path: str) -> Convert:
    message = field.message_type
    match message.full_name:
        case full if full == DECIMAL and type.kind is Kind.DECIMAL:
            return lambda value: fit_decimal(
                Decimal(int.from_bytes(value.value, "big", signed=True)).scaleb(-(value.scale or type.scale)), type, path
            )
        case full if full == TIMESTAMP_MESSAGE and type.kind is Kind.TIMESTAMP:
            return lambda value: value.seconds * 1000 + value.nanos // 1_000_000
        case full if full == DATE_MESSAGE and type.kind is Kind.DATE:
            return lambda value: _days(value, path)
        case full if full == TIME_MESSAGE and type.kind is Kind.TIME:
            return lambda value: ((value.hours * 60 + value.minutes) * 60 + value.seconds) * 1000 + value.nanos // 1_000_000
    if message.file.name == WRAPPERS_FILE and type.kind is not Kind.STRUCT:
        convert = _from_value(message.fields_by_name["value"], type, path)
        return lambda value: convert(value.value)
    if type.kind is not Kind.STRUCT:
        raise _mismatch(field, type, path)
    names = [column.name for column in type.fields]
    getters = _getters(message, type.fields, path)
    return lambda value: {name: get(value) for name, get in zip(names, getters, strict=True)}


def _days(value: Any, path: str) -> int:
    try:
        return datetime.date(value.year, value.month, value.day).toordinal() - _EPOCH_DAY
    except ValueError as error:
        raise DecodeError(f"{path}: not a date: {error}") from None


def _same(value: Any) -> Any:
    return value


def _mismatch(field: Any, type: DataType, path: str) -> DecodeError:
    what = field.message_type.full_name if field.message_type is not None else "another type"
    return DecodeError(f"{path}: the column is {type}, but the Protobuf field {field.full_name} is {what}")


# ------------------------------------------------------------------------------------------------ writing


def make_encode(spec: FormatSpec, columns: tuple[Column, ...]) -> Callable[[Row | None], bytes | None]:
    """Return the encoder of PROTOBUF. The schema is registered, or looked up by its id, with the first row that is written."""
    text = derived_text(columns, spec.full_name, spec.nullables)
    write: Callable[[Row], bytes] | None = None
    head = b""

    def encode(row: Row | None) -> bytes | None:
        nonlocal write, head
        if row is None:
            return None
        if write is None:
            schema_id, message = _to_write_with(spec, columns, text)
            head = frame(schema_id) + message_indexes(message_path(message))
            write = _message_writer(message, columns)
        return head + write(row)

    return encode


def make_bare_encode(spec: FormatSpec, columns: tuple[Column, ...]) -> Callable[[Row | None], bytes | None]:
    """Return the encoder of PROTOBUF_NOSR."""
    write = _message_writer(_derived(spec, columns), columns)
    return lambda row: None if row is None else write(row)


def _to_write_with(spec: FormatSpec, columns: tuple[Column, ...], text: str) -> tuple[int, Any]:
    registered = schema_to_write_with(spec, "PROTOBUF", columns, lambda: text, lambda found: read_schema(found, spec.full_name))
    if registered.text == text:
        return registered.id, _message(registered, (0,))
    file, _ = messages_of(compile_proto(registered.text, registered.texts))
    return registered.id, message_named(file, spec.full_name)


def _message_writer(message: Any, columns: tuple[Column, ...]) -> Callable[[Row], bytes]:
    from google.protobuf.message import EncodeError
    from google.protobuf.message_factory import GetMessageClass

    make = GetMessageClass(message)
    setters = _setters(message, columns, "$")

    def write(row: Row) -> bytes:
        target = make()
        try:
            for set_field, value in zip(setters, row, strict=True):
                if value is not None:
                    set_field(target, value)
            return bytes(target.SerializeToString(deterministic=True))
        except (ValueError, TypeError, EncodeError, AttributeError) as error:
            raise InvalidInput(f"a row cannot be written as Protobuf message {message.full_name}: {error}") from None

    return write


def _setters(message: Any, columns: tuple[Column, ...], path: str) -> list[Set]:
    """Return what writes each column into a message."""
    found = zip(columns, fields_of(message, columns), strict=True)
    return [_ignored if field is None else _setter(field, column.type, f"{path}.{column.name}") for column, field in found]


def _ignored(message: Any, value: Any) -> None:
    """The schema that was asked for has no field for this column."""


def _setter(field: Any, type: DataType, path: str) -> Set:
    """Return what writes a value that is not null into a field of a message."""
    name, entry = field.name, entry_of(field)
    if entry is not None and type.kind is Kind.MAP:
        return _map_setter(field, entry, type, path)
    if is_repeated(field):
        if type.kind is not Kind.ARRAY or type.element is None:
            raise _mismatch(field, type, path)
        if field.message_type is None:
            scalar = _scalar(field, type.element)
            default = field.default_value if not isinstance(field.default_value, list) else type_default(type.element)

            def set_items(message: Any, value: Any) -> None:
                getattr(message, name).extend(default if item is None else scalar(item) for item in value)

            return set_items
        fill = _filler(field, type.element, path)

        def add_items(message: Any, value: Any) -> None:
            target = getattr(message, name)
            for item in value:
                each = target.add()
                if item is not None:
                    fill(each, item)

        return add_items
    if field.message_type is not None:
        fill = _filler(field, type, path)

        def set_message(message: Any, value: Any) -> None:
            target = getattr(message, name)
            target.SetInParent()
            fill(target, value)

        return set_message
    scalar = _scalar(field, type)
    return lambda message, value: setattr(message, name, scalar(value))


def type_default(type: DataType) -> Any:
    """Return Protobuf's default of a scalar type, which stands for a null in a list."""
    return {Kind.BOOLEAN: False, Kind.DOUBLE: 0.0, Kind.STRING: "", Kind.BYTES: b""}.get(type.kind, 0)


def _scalar(field: Any, type: DataType) -> Convert:
    if field.enum_type is not None:
        numbers = {name: value.number for name, value in field.enum_type.values_by_name.items()}
        return lambda name: numbers[name] if name in numbers else int(name)
    return _same


def _map_setter(field: Any, entry: Any, type: DataType, path: str) -> Set:
    assert type.key is not None
    assert type.element is not None
    name, element = field.name, type.element
    if field.message_type.GetOptions().map_entry:
        value_field = entry["value"]
        if value_field.message_type is None:
            scalar = _scalar(value_field, element)

            def set_scalars(message: Any, value: Any) -> None:
                target = getattr(message, name)
                for key, item in value.items():
                    target[key] = type_default(element) if item is None else scalar(item)

            return set_scalars
        fill = _filler(value_field, element, path)

        def set_messages(message: Any, value: Any) -> None:
            target = getattr(message, name)
            for key, item in value.items():
                target[key].SetInParent()
                if item is not None:
                    fill(target[key], item)

        return set_messages
    set_key, set_value = _setter(entry["key"], type.key, path), _setter(entry["value"], element, path)

    def add_entries(message: Any, value: Any) -> None:
        target = getattr(message, name)
        for key, item in value.items():
            each = target.add()
            if key is not None:
                set_key(each, key)
            if item is not None:
                set_value(each, item)

    return add_entries


def _filler(field: Any, type: DataType, path: str) -> Set:
    """Return what writes a value that is not null into a message."""
    message = field.message_type
    match message.full_name:
        case full if full == DECIMAL:
            return _fill_decimal
        case full if full == TIMESTAMP_MESSAGE:
            return _fill_timestamp
        case full if full == DATE_MESSAGE:
            return _fill_date
        case full if full == TIME_MESSAGE:
            return _fill_time
    if message.file.name == WRAPPERS_FILE and type.kind is not Kind.STRUCT:
        return lambda target, value: setattr(target, "value", value)
    if type.kind is not Kind.STRUCT:
        raise _mismatch(field, type, path)
    names = [column.name for column in type.fields]
    setters = _setters(message, type.fields, path)

    def fill(target: Any, value: Any) -> None:
        for name, set_field in zip(names, setters, strict=True):
            if (item := value.get(name)) is not None:
                set_field(target, item)

    return fill


def _fill_decimal(target: Any, value: Decimal) -> None:
    scale = -int(value.as_tuple().exponent)
    unscaled = int(value.scaleb(scale))
    target.value = unscaled.to_bytes((unscaled.bit_length() + 8) // 8 or 1, "big", signed=True)
    target.scale = scale
    target.precision = len(value.as_tuple().digits)


def _fill_timestamp(target: Any, value: int) -> None:
    target.seconds, target.nanos = value // 1000, value % 1000 * 1_000_000


def _fill_date(target: Any, value: int) -> None:
    day = datetime.date.fromordinal(value + _EPOCH_DAY)
    target.year, target.month, target.day = day.year, day.month, day.day


def _fill_time(target: Any, value: int) -> None:
    seconds, millis = divmod(value, 1000)
    target.hours, target.minutes, target.seconds = seconds // 3600, seconds // 60 % 60, seconds % 60
    target.nanos = millis * 1_000_000
