"""Protobuf messages as steps.

Reading: each message type has a run of steps, looked up by field number. The first of a run is (HEAD, -1, highest number, 0, 0),
step n behind it is of field n: (operation, leaf or -1, a, whether it is repeated, 1 + number of its oneof or 0). A field that
the schema does not know, or that has another wire type, is stepped over, as Protobuf has it.

| operation | wire | a |
|---|---|---|
| UNKNOWN | any | |
| INT32, INT64, UINT32, UINT64, SINT32, SINT64, BOOL | varint | |
| ENUM | varint | first symbol; b of the step is how many, where a column wants its name |
| FIXED32, SFIXED32, FLOAT | 4 bytes | |
| FIXED64, SFIXED64, DOUBLE | 8 bytes | |
| STRING, BYTES | length | |
| MESSAGE | length | the HEAD of its type; with a leaf, a wrapper whose value it is, or a message whose fields are leaves |
| TIMESTAMP | length | |

A leaf of which all is wanted that was written of it (`Found.WHOLE`) may be of any operation, and of several steps: the fields of
a oneof that is a column. Its parts have to lie side by side.

Writing has one step a column, by field number: (BOOL, INT32, INT64, DOUBLE, STRING (also of bytes) or TIMESTAMP, column, tag as
its varint's bytes read as a little-endian number, size of that, 0 leave the default out, 1 write it, 2 inside a wrapper), or
MESSAGE, tag and all as the column's writer made it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from logflume.log.errors import DecodeError

from .layouts import MAX_STEPS, Found, Layout, Leaf, Read, Unheld, Wire, Write, as_they_lie
from .proto_schema import TIMESTAMP_MESSAGE, WRAPPERS_FILE, fields_of, is_oneof, is_repeated
from .proto_values import getters_of, setters_of
from .types import Column, Kind

(
    HEAD, UNKNOWN, INT32, INT64, UINT32, UINT64, SINT32, SINT64, BOOL, ENUM, FIXED32, SFIXED32, FLOAT, FIXED64, SFIXED64, DOUBLE,
    STRING, BYTES, MESSAGE, TIMESTAMP,
) = range(20)  # fmt: skip

_MAX_ONEOFS = 60
_INTEGERS = {INT32, INT64, UINT32, UINT64, SINT32, SINT64, FIXED32, SFIXED32, FIXED64, SFIXED64}
_READ_AS = {
    Kind.BOOLEAN: {BOOL},
    Kind.INTEGER: {INT32, SINT32, SFIXED32},
    Kind.BIGINT: _INTEGERS,
    Kind.DOUBLE: {FLOAT, DOUBLE, *_INTEGERS},
    Kind.STRING: {STRING, ENUM},
    Kind.TIMESTAMP: {TIMESTAMP},
    Kind.BYTES: {BYTES},
}
_WRITTEN_AS = {
    Kind.BOOLEAN: {BOOL},
    Kind.INTEGER: {INT32, INT64},
    Kind.BIGINT: {INT64},
    Kind.DOUBLE: {DOUBLE},
    Kind.STRING: {STRING},
    Kind.TIMESTAMP: {TIMESTAMP},
    Kind.BYTES: {BYTES},
}


def _operations() -> dict[int, int]:
    from google.protobuf.descriptor import FieldDescriptor as F

    return {
        F.TYPE_INT32: INT32, F.TYPE_INT64: INT64, F.TYPE_UINT32: UINT32, F.TYPE_UINT64: UINT64, F.TYPE_SINT32: SINT32,
        F.TYPE_SINT64: SINT64, F.TYPE_BOOL: BOOL, F.TYPE_ENUM: ENUM, F.TYPE_FIXED32: FIXED32, F.TYPE_SFIXED32: SFIXED32,
        F.TYPE_FLOAT: FLOAT, F.TYPE_FIXED64: FIXED64, F.TYPE_SFIXED64: SFIXED64, F.TYPE_DOUBLE: DOUBLE, F.TYPE_STRING: STRING,
        F.TYPE_BYTES: BYTES, F.TYPE_MESSAGE: MESSAGE,
    }  # fmt: skip


def read_layout(before: bytes, message: Any, columns: tuple[Column, ...]) -> Layout:
    """Return how messages are read into columns; `before`: the bytes before the payload.

    Raises:
        Unheld.
    """
    return _Reading(message, columns).layout(before)


class _Wanted(NamedTuple):
    """The leaf and the column of a field. `is_part`: the field is one of a oneof's, which is the column."""

    leaf: int
    column: Column
    is_part: bool


class _Reading:
    """The runs of steps of a message and of all that it contains. Invariant: a run's place is known before it is filled."""

    def __init__(self, message: Any, columns: tuple[Column, ...]) -> None:
        self._operations = _operations()
        self._steps: list[tuple[int, int, int, int, int]] = []
        self._runs: dict[str, int] = {}
        self._symbols: list[bytes] = []
        self._numbers: list[int] = []
        self._leaves: list[Leaf] = []
        self._absent: list[int] = []
        self._oneofs = 0
        self._fields(message, columns)

    def layout(self, before: bytes) -> Layout:
        return Layout(
            Wire.PROTOBUF,
            before,
            tuple(self._steps),
            tuple(self._symbols),
            tuple(self._numbers),
            tuple(self._leaves),
            tuple(self._absent),
        )

    def _fields(self, message: Any, columns: tuple[Column, ...]) -> tuple[int, tuple[int, ...]]:
        """Take columns out of a message; return the place of its steps, and their leaves, -1 where it has no such field."""
        places = tuple(range(len(self._leaves), len(self._leaves) + len(columns)))
        self._leaves += [Leaf(Found.VALUE, column.type.kind) for column in columns]
        self._absent += [-1] * len(columns)
        wanted: dict[int, _Wanted] = {}
        for place, column, field in zip(places, columns, fields_of(message, columns), strict=True):
            if field is None:
                continue
            for each in field.fields if is_oneof(field) else (field,):
                if each.number in wanted:
                    raise Unheld(f"two columns of the field {each.name}")
                wanted[each.number] = _Wanted(place, column, is_oneof(field))
        run = self._run(message)
        self._fill(run, message, wanted)
        return run, places

    def _run(self, message: Any) -> int:
        """Take the room of a message's steps."""
        highest = max(message.fields_by_number, default=0)
        place = len(self._steps)
        if place + highest >= MAX_STEPS:
            raise Unheld(f"more than {MAX_STEPS} steps")
        if message.GetOptions().message_set_wire_format:
            raise Unheld("a message set")
        self._steps += [(HEAD, -1, highest, 0, 0), *[(UNKNOWN, -1, 0, 0, 0)] * highest]
        return place

    def _nested(self, message: Any) -> int:
        """Return the place of the steps that check a message of which no field is wanted."""
        found = self._runs.get(message.full_name)
        if found is None:
            found = self._runs[message.full_name] = self._run(message)
            self._fill(found, message, {})
        return found

    def _fill(self, run: int, message: Any, wanted: Mapping[int, _Wanted]) -> None:
        oneofs: dict[str, int] = {}
        if wanted:
            oneofs = {oneof.full_name: place for place, oneof in enumerate(message.oneofs, self._oneofs + 1)}
            self._oneofs += len(oneofs)
        if self._oneofs > _MAX_ONEOFS:
            raise Unheld(f"more than {_MAX_ONEOFS} oneofs")
        for number, field in message.fields_by_number.items():
            if field.is_required:
                raise Unheld("a required field")
            operation = self._operations.get(field.type)
            oneof = oneofs[field.containing_oneof.full_name] if wanted and field.containing_oneof is not None else 0
            is_closed = operation == ENUM and field.enum_type.is_closed and (number in wanted or oneof > 0)
            if operation is None or is_closed:
                raise Unheld(f"a field of Protobuf's type number {field.type}")
            if number in wanted:
                self._steps[run + number] = self._wanted(message, field, operation, wanted[number], oneof)
            else:
                a = self._nested(field.message_type) if operation == MESSAGE else 0
                self._steps[run + number] = (operation, -1, a, int(is_repeated(field)), oneof)

    def _wanted(self, message: Any, field: Any, operation: int, wanted: _Wanted, oneof: int) -> tuple[int, int, int, int, int]:
        leaf, column, is_part = wanted
        kind, inner = column.type.kind, field.message_type
        if operation == MESSAGE and not is_repeated(field) and not is_part:
            if inner.full_name == TIMESTAMP_MESSAGE and kind is Kind.TIMESTAMP:
                return TIMESTAMP, leaf, 0, 0, oneof
            if kind is Kind.STRUCT:
                run, places = self._fields(inner, column.type.fields)
                self._leaves[leaf] = Leaf(Found.PRESENCE, kind, names=tuple(c.name for c in column.type.fields), fields=places)
                return MESSAGE, leaf, run, 0, oneof
            if inner.file.name == WRAPPERS_FILE and self._operations[inner.fields_by_name["value"].type] in _READ_AS.get(
                kind, ()
            ):
                run, value = self._run(inner), inner.fields_by_name["value"]
                self._steps[run + value.number] = (self._operations[value.type], leaf, 0, 0, 0)
                self._scalar(leaf, kind)
                return MESSAGE, leaf, run, 0, oneof
        if is_part or is_repeated(field) or operation not in _READ_AS.get(kind, ()):
            self._leaves[leaf] = Leaf(Found.WHOLE, kind, _reader(message, column))
            self._absent[leaf] = -2
            a = self._nested(inner) if operation == MESSAGE else 0
            return operation, leaf, a, int(is_repeated(field)), oneof
        self._scalar(leaf, kind)
        if not field.has_presence:
            self._absent[leaf] = -2
        if operation != ENUM:
            return operation, leaf, 0, 0, oneof
        first = len(self._symbols)
        for number, value in field.enum_type.values_by_number.items():
            if number == 0 and not field.has_presence:
                self._absent[leaf] = len(self._symbols)
            self._symbols.append(value.name.encode())
            self._numbers.append(number)
        return ENUM, leaf, first, len(self._symbols) - first, oneof

    def _scalar(self, leaf: int, kind: Kind) -> None:
        if kind is Kind.BYTES:
            self._leaves[leaf] = Leaf(Found.CONTENT, kind, as_they_lie)


def _reader(message: Any, column: Column) -> Read:
    """Return what reads a column of messages that hold nothing else. Raises DecodeError: it cannot be of that type."""
    from google.protobuf.message import DecodeError as ProtobufError
    from google.protobuf.message_factory import GetMessageClass

    made = GetMessageClass(message)
    parse, empty = made.FromString, made()
    (get,) = getters_of(message, (column,), "$")

    def read(parts: Sequence[bytes]) -> list[Any]:
        try:
            return [get(parse(part)) if part else get(empty) for part in parts]
        except (ProtobufError, ValueError) as error:
            raise DecodeError(f"not a Protobuf message {message.full_name}: {error}") from None

    return read


# ------------------------------------------------------------------------------------------------ writing


def write_layout(before: bytes, message: Any, columns: tuple[Column, ...]) -> Layout:
    """Return how rows of columns are written as messages.

    Raises:
        Unheld.
    """
    operations = _operations()
    steps: list[tuple[int, int, tuple[int, int, int, int, int]]] = []
    writers: list[Write | None] = [None] * len(columns)
    if any(field.is_required for field in message.fields):
        raise Unheld("a required field")
    for place, (column, field) in enumerate(zip(columns, fields_of(message, columns), strict=True)):
        if field is None:
            continue
        if is_oneof(field):
            numbers = [each.number for each in field.fields]
            writers[place] = _writer(message, column)
            steps.append((min(numbers), max(numbers), (MESSAGE, place, 0, 0, 0)))
            continue
        if field.containing_oneof is not None and len(field.containing_oneof.fields) > 1:
            raise Unheld(f"{column.type} as {field.name}")
        operation, manner = operations.get(field.type, UNKNOWN), int(field.has_presence)
        if operation == MESSAGE and field.message_type.full_name == TIMESTAMP_MESSAGE:
            operation = TIMESTAMP
        elif operation == MESSAGE and field.message_type.file.name == WRAPPERS_FILE:
            operation, manner = operations[field.message_type.fields_by_name["value"].type], 2
        if is_repeated(field) or operation not in _WRITTEN_AS.get(column.type.kind, ()):
            writers[place] = _writer(message, column)
            steps.append((field.number, field.number, (MESSAGE, place, 0, 0, 0)))
            continue
        if operation == BYTES:
            operation, writers[place] = STRING, as_they_lie
        tag = _tag(field.number, _WIRE_TYPES[operation] if manner != 2 else 2)
        steps.append((field.number, field.number, (operation, place, int.from_bytes(tag, "little"), len(tag), manner)))
    steps.sort()
    if any(first <= last for (_, last, _), (first, _, _) in pairwise(steps)):
        raise Unheld("two columns of one field, or one among the fields of a oneof")
    return Layout(Wire.PROTOBUF, before, tuple(step for _, _, step in steps), writers=tuple(writers))


def _writer(message: Any, column: Column) -> Write:
    """Return what writes a column as a message that holds nothing else. Raises DecodeError: the field is of another type."""
    from google.protobuf.message import EncodeError
    from google.protobuf.message_factory import GetMessageClass

    make = GetMessageClass(message)
    (set_field,) = setters_of(message, (column,), "$")

    def write_one(value: Any) -> bytes | None:
        target = make()
        try:
            set_field(target, value)
            return bytes(target.SerializeToString(deterministic=True))
        except (ValueError, TypeError, EncodeError, AttributeError):
            return None

    return lambda values: [write_one(value) for value in values]


_WIRE_TYPES = {BOOL: 0, INT32: 0, INT64: 0, DOUBLE: 1, STRING: 2, TIMESTAMP: 2}


def _tag(number: int, wire_type: int) -> bytes:
    value, out = number << 3 | wire_type, bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
