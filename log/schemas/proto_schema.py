"""Protobuf schemas <-> column types, as Kafka Connect's Protobuf data and ksqlDB have them.

Our own schemas are one message `ConnectDefault1` whose nested messages stand for structs and entries of maps. Of somebody
else's, a `oneof` is one struct, named after it and its place among the message's: `oneof paid` is the column `paid_0`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from logflume.log.errors import DecodeError, InvalidInput

from .extent import Extent
from .types import (
    BIGINT,
    BOOLEAN,
    BYTES,
    DATE,
    DOUBLE,
    INTEGER,
    STRING,
    TIME,
    TIMESTAMP,
    Column,
    DataType,
    Kind,
    decimal,
    map_of,
    struct,
)
from .types import array as array_of

DEFAULT_MESSAGE = "ConnectDefault"
DECIMAL, TIMESTAMP_MESSAGE = "confluent.type.Decimal", "google.protobuf.Timestamp"
DATE_MESSAGE, TIME_MESSAGE = "google.type.Date", "google.type.TimeOfDay"
WRAPPERS_FILE = "google/protobuf/wrappers.proto"
_META = "confluent.field_meta"
_MESSAGES: Mapping[str, DataType] = {TIMESTAMP_MESSAGE: TIMESTAMP, DATE_MESSAGE: DATE, TIME_MESSAGE: TIME}
_WRAPPED: Mapping[str, DataType] = {
    "google.protobuf.BoolValue": BOOLEAN,
    "google.protobuf.Int32Value": INTEGER,
    "google.protobuf.UInt32Value": BIGINT,
    "google.protobuf.Int64Value": BIGINT,
    "google.protobuf.UInt64Value": BIGINT,
    "google.protobuf.FloatValue": DOUBLE,
    "google.protobuf.DoubleValue": DOUBLE,
    "google.protobuf.StringValue": STRING,
    "google.protobuf.BytesValue": BYTES,
}
_IMPORTS: Mapping[str, str] = {
    DECIMAL: "confluent/type/decimal.proto",
    TIMESTAMP_MESSAGE: "google/protobuf/timestamp.proto",
    DATE_MESSAGE: "google/type/date.proto",
    TIME_MESSAGE: "google/type/timeofday.proto",
}
_SCALARS: Mapping[Kind, tuple[str, str]] = {
    Kind.BOOLEAN: ("bool", "google.protobuf.BoolValue"),
    Kind.INTEGER: ("int32", "google.protobuf.Int32Value"),
    Kind.BIGINT: ("int64", "google.protobuf.Int64Value"),
    Kind.DOUBLE: ("double", "google.protobuf.DoubleValue"),
    Kind.STRING: ("string", "google.protobuf.StringValue"),
    Kind.BYTES: ("bytes", "google.protobuf.BytesValue"),
}
_MESSAGE_KINDS: Mapping[Kind, str] = {
    Kind.DECIMAL: DECIMAL,
    Kind.TIMESTAMP: TIMESTAMP_MESSAGE,
    Kind.DATE: DATE_MESSAGE,
    Kind.TIME: TIME_MESSAGE,
}


# ------------------------------------------------------------------------------------------------ descriptors -> columns


def messages_of(files: Any) -> tuple[Any, Any]:
    """Return (the schema's own file, all of its descriptors as a pool) of a FileDescriptorSet."""
    from google.protobuf.descriptor_pool import DescriptorPool

    pool = DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return pool.FindFileByName(files.file[-1].name), pool


def message_at(file: Any, path: Sequence[int]) -> Any:
    """Return a message by its place: of the file's messages, then of those nested in it. Raises DecodeError."""
    messages: Sequence[Any] = list(file.message_types_by_name.values())
    found = None
    for step in path:
        if not 0 <= step < len(messages):
            raise DecodeError(f"message indexes {list(path)}: the Protobuf schema has {len(messages)} messages at that place")
        found = messages[step]
        messages = found.nested_types
    if found is None:
        raise DecodeError("the Protobuf schema has no message")
    return found


def message_path(message: Any) -> tuple[int, ...]:
    """Return a message's place in its file."""
    outer = message.containing_type
    siblings = list(message.file.message_types_by_name.values()) if outer is None else list(outer.nested_types)
    place = next(i for i, each in enumerate(siblings) if each.full_name == message.full_name)
    return (place,) if outer is None else (*message_path(outer), place)


def message_named(file: Any, name: str) -> Any:
    """Return a message of a file by its name, with or without the package; the first without a name. Raises InvalidInput."""
    messages = list(file.message_types_by_name.values())
    if not name and messages:
        return messages[0]
    for each in messages:
        if name in (each.name, each.full_name):
            return each
    raise InvalidInput(
        f"the Protobuf schema has no message {name!r}; it has {', '.join(m.full_name for m in messages) or 'none'}"
    )


def column_type(message: Any) -> DataType:
    """Return the struct that a message's descriptor stands for. Raises DecodeError where columns cannot hold it."""
    return _message_type(message, 0, Extent())


def _message_type(message: Any, depth: int, extent: Extent) -> DataType:
    extent.enter(depth, f"the message {message.full_name}")

    def columns(fields: Iterable[Any]) -> tuple[Column, ...]:
        return tuple(Column(field.name, _field_type(field, depth, extent)) for field in fields)

    oneofs = oneofs_of(message)
    members = {member.name for oneof in oneofs.values() for member in oneof.fields}
    return struct(
        *(Column(name, struct(*columns(oneof.fields))) for name, oneof in oneofs.items()),
        *columns(field for field in message.fields if field.name not in members),
    )


def oneofs_of(message: Any) -> Mapping[str, Any]:
    """Return a message's oneofs by the names of their columns, without those that only stand for `optional`."""
    from google.protobuf.descriptor_pb2 import DescriptorProto

    written = DescriptorProto()
    message.CopyToProto(written)
    optional = {field.oneof_index for field in written.field if field.proto3_optional}
    return {f"{oneof.name}_{oneof.index}": oneof for oneof in message.oneofs if oneof.index not in optional}


def is_oneof(field: Any) -> bool:
    """Return whether what `fields_of` found is a oneof."""
    from google.protobuf.descriptor import OneofDescriptor

    return isinstance(field, OneofDescriptor)


def _field_type(field: Any, depth: int, extent: Extent) -> DataType:
    entry = entry_of(field)
    if entry is not None:
        extent.enter(depth + 1, f"the message {field.message_type.full_name}")
        return map_of(_single_type(entry["key"], depth, extent), _field_type(entry["value"], depth + 1, extent))
    single = _single_type(field, depth, extent)
    return array_of(single) if is_repeated(field) else single


def is_repeated(field: Any) -> bool:
    """Return whether a field is repeated, in any version of the library."""
    return bool(field.is_repeated)


def entry_of(field: Any) -> Mapping[str, Any] | None:
    """Return key and value of a field that is a map, protobuf's own or a repeated message `...Entry` of key and value."""
    message = field.message_type
    if message is None or not is_repeated(field):
        return None
    is_map = message.GetOptions().map_entry or (
        message.name.endswith("Entry") and [f.name for f in message.fields] == ["key", "value"]
    )
    return message.fields_by_name if is_map else None


def _single_type(field: Any, depth: int, extent: Extent) -> DataType:
    if field.message_type is not None:
        name = field.message_type.full_name
        if name == DECIMAL:
            parameters = _meta(field)
            return decimal(int(parameters.get("precision", 64)), int(parameters.get("scale", 0)))
        return _MESSAGES.get(name) or _WRAPPED.get(name) or _message_type(field.message_type, depth + 1, extent)
    if field.enum_type is not None:
        return STRING
    kinds = {
        field.CPPTYPE_BOOL: BOOLEAN,
        field.CPPTYPE_INT32: INTEGER,
        field.CPPTYPE_INT64: BIGINT,
        field.CPPTYPE_UINT32: BIGINT,
        field.CPPTYPE_UINT64: BIGINT,
        field.CPPTYPE_FLOAT: DOUBLE,
        field.CPPTYPE_DOUBLE: DOUBLE,
    }
    return kinds.get(field.cpp_type) or (BYTES if field.type == field.TYPE_BYTES else STRING)


def _meta(field: Any) -> Mapping[str, str]:
    """Return the parameters that Confluent's field metadata holds."""
    for option, value in field.GetOptions().ListFields():
        if option.full_name == _META:
            return dict(value.params)
    # The options of a pool of its own keep extensions as unknown bytes; they are read with the pool that knows them.
    from google.protobuf.message_factory import GetMessageClass

    pool = field.file.pool
    try:
        extension = pool.FindExtensionByName(_META)
        options = GetMessageClass(pool.FindMessageTypeByName("google.protobuf.FieldOptions"))
    except KeyError:
        return {}
    found = options.FromString(field.GetOptions().SerializeToString())
    return dict(found.Extensions[extension].params)


def fields_of(message: Any, columns: Sequence[Column]) -> list[Any]:
    """Return the field or the oneof of each column: of the very name, else of that name in upper case, else None."""
    return _by_name({**oneofs_of(message), **message.fields_by_name}, columns)


def members_of(oneof: Any, columns: Sequence[Column]) -> list[Any]:
    """Return the field of a oneof for each column, by name as in `fields_of`."""
    return _by_name({member.name: member for member in oneof.fields}, columns)


def _by_name(by_name: Mapping[str, Any], columns: Sequence[Column]) -> list[Any]:
    by_upper = {name.upper(): field for name, field in by_name.items()}
    return [by_name.get(column.name) or by_upper.get(column.name.upper()) for column in columns]


def required_fields(message: Any, *, path: str = "") -> Iterator[str]:
    """Give the paths of fields that proto2 calls required, of a message that `column_type` has a type for."""
    outer = {member.name: f"{name}." for name, oneof in oneofs_of(message).items() for member in oneof.fields}
    for field in message.fields:
        name = outer.get(field.name, "") + field.name
        place = f"{path}.{name}" if path else name
        if field.is_required:
            yield place
        entry = entry_of(field)
        inner = field.message_type if entry is None else entry["value"].message_type
        if inner is not None:
            yield from required_fields(inner, path=place)


# ------------------------------------------------------------------------------------------------ columns -> text


def derived_text(columns: tuple[Column, ...], full_name: str, nullables: str) -> str:
    """Return the text of the schema that rows of these columns are written with."""
    package, _, name = full_name.rpartition(".")
    writer = _Writer(nullables)
    body = writer.message(name or f"{DEFAULT_MESSAGE}{writer.next_number()}", columns, "")
    lines = ['syntax = "proto3";']
    if package:
        lines.append(f"package {package};")
    lines.append("")
    if writer.imports:
        lines += [*(f'import "{each}";' for each in sorted(writer.imports)), ""]
    return "\n".join([*lines, *body, ""])


class _Writer:
    """Writes messages; numbers the names of nested ones and collects what is to be imported."""

    def __init__(self, nullables: str) -> None:
        self.nullables = nullables
        self.imports: set[str] = set()
        self._number = 0

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def message(self, name: str, columns: Sequence[Column], indent: str) -> list[str]:
        inner = indent + "  "
        fields: list[str] = []
        nested: list[list[str]] = []
        for number, column in enumerate(columns, start=1):
            type_name, options, definition = self._field(column.type, inner)
            fields.append(f"{inner}{type_name} {column.name} = {number}{options};")
            if definition:
                nested.append(definition)
        body = [*fields]
        for each in nested:
            body += ["", *each]
        return [f"{indent}message {name} {{", *body, f"{indent}}}"]

    def _field(self, type: DataType, indent: str) -> tuple[str, str, list[str]]:
        """Return (type with its label, options, definition of a nested message) of a field."""
        match type.kind:
            case Kind.ARRAY:
                assert type.element is not None
                name, options, nested = self._single(type.element, indent, is_item=True)
                return f"repeated {name}", options, nested
            case Kind.MAP:
                assert type.key is not None
                assert type.element is not None
                name = f"{DEFAULT_MESSAGE}{self.next_number()}Entry"
                return (
                    f"repeated {name}",
                    "",
                    self.message(name, (Column("key", type.key), Column("value", type.element)), indent),
                )
            case _:
                return self._single(type, indent)

    def _single(self, type: DataType, indent: str, *, is_item: bool = False) -> tuple[str, str, list[str]]:
        if type.kind is Kind.STRUCT:
            name = f"{DEFAULT_MESSAGE}{self.next_number()}"
            return name, "", self.message(name, type.fields, indent)
        if type.kind in _MESSAGE_KINDS:
            name = _MESSAGE_KINDS[type.kind]
            self.imports.add(_IMPORTS[name])
            return name, self._decimal_options(type) if name == DECIMAL else "", []
        scalar, wrapper = _SCALARS[type.kind]
        if self.nullables == "WRAPPER" and not is_item:
            self.imports.add("google/protobuf/wrappers.proto")
            return wrapper, "", []
        return (f"optional {scalar}" if self.nullables == "OPTIONAL" and not is_item else scalar), "", []

    def _decimal_options(self, type: DataType) -> str:
        self.imports.add("confluent/meta.proto")
        pairs = (("precision", type.precision), ("scale", type.scale))
        params = ", ".join(f'{{ key: "{key}", value: "{value}" }}' for key, value in pairs)
        return f" [(confluent.field_meta) = {{ params: [{params}] }}]"
