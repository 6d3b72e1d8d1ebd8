"""Protobuf messages as steps.

Reading: each message type has a run of steps, looked up by field number. The first of a run is (HEAD, -1, highest number, 0, 0),
step n behind it is of field n: (operation, column or -1, a, whether it is repeated, 1 + number of its oneof or 0). A field that
the schema does not know, or that has another wire type, is stepped over, as Protobuf has it.

| operation | wire | a |
|---|---|---|
| UNKNOWN | any | |
| INT32, INT64, UINT32, UINT64, SINT32, SINT64, BOOL | varint | |
| ENUM | varint | first symbol; b of the step is how many, where a column wants its name |
| FIXED32, SFIXED32, FLOAT | 4 bytes | |
| FIXED64, SFIXED64, DOUBLE | 8 bytes | |
| STRING, BYTES | length | |
| MESSAGE | length | the HEAD of its type; with a column, a wrapper, whose value is the column's |
| TIMESTAMP | length | |

Writing has one step a column, by field number: (BOOL, INT32, INT64, DOUBLE, STRING or TIMESTAMP, column, tag as its varint's
bytes read as a little-endian number, size of that, 0 leave the default out, 1 write it, 2 inside a wrapper).
"""

from __future__ import annotations

from typing import Any

from .layouts import MAX_STEPS, PLAIN_KINDS, Layout, Unheld, Wire
from .proto_schema import TIMESTAMP_MESSAGE, WRAPPERS_FILE, fields_of, is_repeated
from .types import Column, DataType, Kind

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
}
_WRITTEN_AS = {
    Kind.BOOLEAN: {BOOL},
    Kind.INTEGER: {INT32, INT64},
    Kind.BIGINT: {INT64},
    Kind.DOUBLE: {DOUBLE},
    Kind.STRING: {STRING},
    Kind.TIMESTAMP: {TIMESTAMP},
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


class _Reading:
    """The runs of steps of a message and of all that it contains. Invariant: a run's place is known before it is filled."""

    def __init__(self, message: Any, columns: tuple[Column, ...]) -> None:
        self._operations = _operations()
        self._steps: list[tuple[int, int, int, int, int]] = []
        self._runs: dict[str, int] = {}
        self._symbols: list[bytes] = []
        self._numbers: list[int] = []
        self._absent = [-1] * len(columns)
        wanted: dict[int, int] = {}
        for place, field in enumerate(fields_of(message, columns)):
            if field is None:
                continue
            if field.number in wanted:
                raise Unheld(f"two columns of the field {field.name}")
            wanted[field.number] = place
        self._fill(self._run(message), message, wanted, columns)

    def layout(self, before: bytes) -> Layout:
        return Layout(Wire.PROTOBUF, before, tuple(self._steps), tuple(self._symbols), tuple(self._numbers), tuple(self._absent))

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
            self._fill(found, message, {}, ())
        return found

    def _fill(self, run: int, message: Any, wanted: dict[int, int], columns: tuple[Column, ...]) -> None:
        oneofs = {oneof.full_name: place + 1 for place, oneof in enumerate(message.oneofs)}
        if len(oneofs) > _MAX_ONEOFS:
            raise Unheld(f"more than {_MAX_ONEOFS} oneofs")
        for number, field in message.fields_by_number.items():
            if field.is_required:
                raise Unheld("a required field")
            operation = self._operations.get(field.type)
            place = wanted.get(number, -1)
            oneof = oneofs[field.containing_oneof.full_name] if columns and field.containing_oneof is not None else 0
            is_closed = operation == ENUM and field.enum_type.is_closed and (place >= 0 or oneof > 0)
            if operation is None or is_closed:
                raise Unheld(f"a field of Protobuf's type number {field.type}")
            if place < 0:
                a = self._nested(field.message_type) if operation == MESSAGE else 0
                self._steps[run + number] = (operation, -1, a, int(is_repeated(field)), oneof)
            else:
                self._steps[run + number] = self._wanted(field, operation, place, columns[place].type, oneof)

    def _wanted(self, field: Any, operation: int, place: int, type: DataType, oneof: int) -> tuple[int, int, int, int, int]:
        if is_repeated(field) or type.kind not in PLAIN_KINDS:
            raise Unheld(f"{field.name} as {type}")
        if operation == MESSAGE:
            return self._wanted_message(field, place, type, oneof)
        if operation not in _READ_AS.get(type.kind, ()):
            raise Unheld(f"{field.name} as {type}")
        if not field.has_presence:
            self._absent[place] = -2
        if operation != ENUM:
            return operation, place, 0, 0, oneof
        first = len(self._symbols)
        for number, value in field.enum_type.values_by_number.items():
            if number == 0 and not field.has_presence:
                self._absent[place] = len(self._symbols)
            self._symbols.append(value.name.encode())
            self._numbers.append(number)
        return ENUM, place, first, len(self._symbols) - first, oneof

    def _wanted_message(self, field: Any, place: int, type: DataType, oneof: int) -> tuple[int, int, int, int, int]:
        message = field.message_type
        if message.full_name == TIMESTAMP_MESSAGE and type.kind is Kind.TIMESTAMP:
            return TIMESTAMP, place, 0, 0, oneof
        if message.file.name != WRAPPERS_FILE:
            raise Unheld(f"{field.name} as {type}")
        value = message.fields_by_name["value"]
        operation = self._operations[value.type]
        if operation not in _READ_AS.get(type.kind, ()):
            raise Unheld(f"{field.name} as {type}")
        run = self._run(message)
        self._steps[run + value.number] = (operation, place, 0, 0, 0)
        return MESSAGE, place, run, 0, oneof


def write_layout(before: bytes, message: Any, columns: tuple[Column, ...]) -> Layout:
    """Return how rows of columns are written as messages.

    Raises:
        Unheld.
    """
    operations, steps = _operations(), []
    if any(field.is_required for field in message.fields):
        raise Unheld("a required field")
    for place, (column, field) in enumerate(zip(columns, fields_of(message, columns), strict=True)):
        if field is None:
            continue
        if is_repeated(field) or (field.containing_oneof is not None and len(field.containing_oneof.fields) > 1):
            raise Unheld(f"{column.type} as {field.name}")
        operation, manner = operations.get(field.type, UNKNOWN), int(field.has_presence)
        if operation == MESSAGE and field.message_type.full_name == TIMESTAMP_MESSAGE:
            operation = TIMESTAMP
        elif operation == MESSAGE and field.message_type.file.name == WRAPPERS_FILE:
            operation, manner = operations[field.message_type.fields_by_name["value"].type], 2
        if operation not in _WRITTEN_AS.get(column.type.kind, ()):
            raise Unheld(f"{column.type} as {field.name}")
        tag = _tag(field.number, _WIRE_TYPES[operation] if manner != 2 else 2)
        steps.append((field.number, (operation, place, int.from_bytes(tag, "little"), len(tag), manner)))
    if len({number for number, _ in steps}) < len(steps):
        raise Unheld("two columns of one field")
    return Layout(Wire.PROTOBUF, before, tuple(step for _, step in sorted(steps)))


_WIRE_TYPES = {BOOL: 0, INT32: 0, INT64: 0, DOUBLE: 1, STRING: 2, TIMESTAMP: 2}


def _tag(number: int, wire_type: int) -> bytes:
    value, out = number << 3 | wire_type, bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
