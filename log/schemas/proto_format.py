"""The PROTOBUF and PROTOBUF_NOSR serdes: rows as Protobuf messages, behind the frame of a registered schema or bare.

A message is read with the schema that it was written with (NOSR: with the one made from the columns), and its fields go to the
columns of the same name, in any case. Without `nullables` a scalar cannot be null: what was not set reads as its default, as
Protobuf 3 has it. Fields that are messages are null when they are absent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from logflume.log.errors import DecodeError, InvalidInput

from . import proto_layout
from .fitting import Target
from .frames import FRAME_SIZE_BYTES, frame, message_indexes, read_frame, read_message_indexes
from .layouts import Layout
from .proto_compiler import compile_proto
from .proto_schema import (
    column_type,
    derived_text,
    message_at,
    message_named,
    message_path,
    messages_of,
    required_fields,
)
from .proto_values import getters_of, setters_of
from .registries import RegisteredSchema, registry_at
from .serdes import FormatSpec, Row
from .types import Column, DataType, Kind
from .writing import schema_to_write_with

# ------------------------------------------------------------------------------------------------ reading


def write_schema(spec: FormatSpec, columns: tuple[Column, ...]) -> str:
    """Return the text of the schema that columns are written with."""
    return derived_text(columns, spec.full_name, spec.nullables)


def read_schema(registered: RegisteredSchema, full_name: str) -> DataType:
    """Return the type of a registered schema's message of that name, the first one without a name."""
    file, _ = messages_of(compile_proto(registered.text, registered.texts))
    return column_type(message_named(file, full_name))


def message_names(registered: RegisteredSchema) -> tuple[str, ...]:
    """Return the full names of a registered schema's messages."""
    file, _ = messages_of(compile_proto(registered.text, registered.texts))
    return tuple(message.full_name for message in file.message_types_by_name.values())


def check_schema(registered: RegisteredSchema, spec: FormatSpec, columns: tuple[Column, ...]) -> None:
    """Raise DecodeError where fields of a schema's message cannot be columns."""
    file, _ = messages_of(compile_proto(registered.text, registered.texts))
    getters_of(message_named(file, spec.full_name), columns, "$")


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


def make_bare_decode(
    spec: FormatSpec, columns: tuple[Column, ...], wanted: tuple[Column, ...] | None = None
) -> Callable[[bytes | None], Row | None]:
    """Return the decoder of PROTOBUF_NOSR, of all columns or of some."""
    struct = _bare_struct(spec, columns)
    if struct is None:
        read = _reader(_derived(spec, columns), columns if wanted is None else wanted)
        return lambda data: None if data is None else read(data)
    names, read = [field.name for field in struct], _reader(_derived(spec, struct), struct)
    return lambda data: None if data is None else (dict(zip(names, read(data), strict=True)),)


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
    getters = getters_of(message, columns, "$")

    def read(data: bytes) -> Row:
        try:
            found = parse(bytes(data))
        except (ProtobufError, ValueError) as error:
            raise DecodeError(f"not a Protobuf message {message.full_name}: {error}") from None
        return tuple([get(found) for get in getters])

    return read


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
    is_bare, struct = not spec.is_wrapped and len(columns) == 1, _bare_struct(spec, columns)
    fields = columns if struct is None else struct
    write = _message_writer(_derived(spec, fields), fields)

    def encode(row: Row | None) -> bytes | None:
        if row is None or (is_bare and row[0] is None):
            return None
        return write(row if struct is None else tuple([row[0].get(field.name) for field in struct]))

    return encode


def _bare_struct(spec: FormatSpec, columns: tuple[Column, ...]) -> tuple[Column, ...] | None:
    """Return the fields of a single struct that is the message itself; any other single column is the message's only field,
    as in Protobuf's own messages for a value of each type."""
    is_struct = not spec.is_wrapped and len(columns) == 1 and columns[0].type.kind is Kind.STRUCT
    return columns[0].type.fields if is_struct else None


def _to_write_with(spec: FormatSpec, columns: tuple[Column, ...], text: str) -> tuple[int, Any]:
    registered = schema_to_write_with(spec, "PROTOBUF", columns, lambda: text, lambda found: target(found, spec.full_name))
    if registered.text == text:
        return registered.id, _message(registered, (0,))
    file, _ = messages_of(compile_proto(registered.text, registered.texts))
    return registered.id, message_named(file, spec.full_name)


def target(registered: RegisteredSchema, full_name: str) -> Target:
    """Return what the message of that name takes from who writes with it, of the first one without a name."""
    file, _ = messages_of(compile_proto(registered.text, registered.texts))
    message = message_named(file, full_name)
    return Target("PROTOBUF", column_type(message), frozenset(required_fields(message)))


def _message_writer(message: Any, columns: tuple[Column, ...]) -> Callable[[Row], bytes]:
    from google.protobuf.message import EncodeError
    from google.protobuf.message_factory import GetMessageClass

    make = GetMessageClass(message)
    setters = setters_of(message, columns, "$")

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
