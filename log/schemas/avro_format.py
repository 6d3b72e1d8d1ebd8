"""The AVRO serde: rows as Avro binary behind the frame of a registered schema (Avro specification 1.12).

A record is read with the schema that it was written with, and its fields go to the columns of the same name, in any case; a
column that the writer did not have is null. fastavro reads and writes; what differs between its values and those of columns is
put right by converters made once per (writer's schema, column type).
"""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Callable
from typing import Any

from logflume.log.errors import DecodeError, InvalidInput

from . import avro_layout
from .avro_schema import Named, avro_schema, column_type, parse_avro, required_fields
from .avro_values import from_avro, to_avro, without_logical_types
from .fitting import Target
from .frames import FRAME_SIZE_BYTES, frame, read_frame
from .layouts import Layout
from .registries import RegisteredSchema, registry_at
from .serdes import FormatSpec, Row
from .types import Column, DataType, Kind
from .writing import schema_to_write_with


def write_schema(spec: FormatSpec, columns: tuple[Column, ...]) -> str:
    """Return the text of the schema that columns are written with."""
    return json.dumps(avro_schema(columns, is_wrapped=spec.is_wrapped, full_name=spec.full_name), separators=(",", ":"))


def read_schema(registered: RegisteredSchema, full_name: str) -> DataType:
    """Return the type of a registered schema."""
    return column_type(parse_avro(registered.text, registered.texts))


def check_schema(registered: RegisteredSchema, spec: FormatSpec, columns: tuple[Column, ...]) -> None:
    """Raise DecodeError where values of a schema cannot be values of columns."""
    _reader(registered, spec, columns)


def make_decode(spec: FormatSpec, columns: tuple[Column, ...]) -> Callable[[bytes | None], Row | None]:
    """Return the decoder; it asks the registry for each schema id once."""
    registry = registry_at(spec.registry)
    readers: dict[int, Callable[[bytes], Row | None]] = {}

    def decode(data: bytes | None) -> Row | None:
        if data is None:
            return None
        schema_id = read_frame(data)
        read = readers.get(schema_id)
        if read is None:
            read = readers[schema_id] = _reader(registry.by_id(schema_id), spec, columns)
        return read(data)

    return decode


def read_layout(spec: FormatSpec, columns: tuple[Column, ...], wanted: tuple[Column, ...], record: bytes) -> Layout:
    """Return how records of this one's schema are read into columns. Raises Unheld, DecodeError."""
    registered = registry_at(spec.registry).by_id(read_frame(record))
    _check_readable(registered)
    return avro_layout.read_layout(registered, wanted)


def write_layout(spec: FormatSpec, columns: tuple[Column, ...]) -> Layout:
    """Return how rows of columns are written. Raises Unheld."""
    derived = avro_schema(columns, is_wrapped=spec.is_wrapped, full_name=spec.full_name)
    return avro_layout.write_layout(*_to_write_with(spec, columns, derived), columns)


def _check_readable(registered: RegisteredSchema) -> None:
    """Raise DecodeError unless a schema is a type of finite depth: so a payload cannot make the reader nest or loop at will."""
    if registered.kind != "AVRO":
        raise DecodeError(f"schema {registered.id} is {registered.kind}, expected AVRO")
    read_schema(registered, "")


def _reader(registered: RegisteredSchema, spec: FormatSpec, columns: tuple[Column, ...]) -> Callable[[bytes], Row | None]:
    import fastavro

    _check_readable(registered)
    schema = parse_avro(registered.text, registered.texts)
    parsed = fastavro.parse_schema(without_logical_types(schema))
    is_bare = not spec.is_wrapped and len(columns) == 1
    to_row = from_avro(schema, columns[0].type if is_bare else DataType(Kind.STRUCT, fields=columns), "$", Named(), "")

    def read(data: bytes) -> Row | None:
        source = io.BytesIO(data)
        source.seek(FRAME_SIZE_BYTES)
        try:
            value = fastavro.schemaless_reader(source, parsed, None)
        except (EOFError, ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError, AssertionError) as error:
            raise DecodeError(f"not a value of Avro schema {registered.id}: {type(error).__name__}: {error}") from None
        if is_bare:
            found = to_row(value)
            return None if found is None else (found,)
        return None if value is None else tuple(to_row(value).values())

    return read


def make_encode(spec: FormatSpec, columns: tuple[Column, ...]) -> Callable[[Row | None], bytes | None]:
    """Return the encoder. The schema is registered, or looked up by its id, with the first row that is written."""
    is_bare = not spec.is_wrapped and len(columns) == 1
    derived = avro_schema(columns, is_wrapped=spec.is_wrapped, full_name=spec.full_name)
    write: Callable[[Row], bytes] | None = None

    def encode(row: Row | None) -> bytes | None:
        nonlocal write
        if row is None or (is_bare and row[0] is None):
            return None
        if write is None:
            write = _writer(spec, columns, derived)
        return write(row)

    return encode


def _to_write_with(spec: FormatSpec, columns: tuple[Column, ...], derived: Any) -> tuple[int, Any]:
    """Return the id and the schema that rows are written with, registered if needed."""
    derive = functools.partial(json.dumps, derived, separators=(",", ":"))
    registered = schema_to_write_with(spec, "AVRO", columns, derive, lambda found: target(found, ""))
    return registered.id, parse_avro(registered.text, registered.texts)


def target(registered: RegisteredSchema, full_name: str) -> Target:
    """Return what a registered schema takes from who writes with it."""
    schema = parse_avro(registered.text, registered.texts)
    return Target("AVRO", column_type(schema), frozenset(required_fields(schema)))


def _writer(spec: FormatSpec, columns: tuple[Column, ...], derived: Any) -> Callable[[Row], bytes]:
    import fastavro

    schema_id, schema = _to_write_with(spec, columns, derived)
    parsed = fastavro.parse_schema(without_logical_types(schema))
    is_bare = not spec.is_wrapped and len(columns) == 1
    convert = to_avro(columns[0].type if is_bare else DataType(Kind.STRUCT, fields=columns), schema, Named(), "")
    names = tuple(column.name for column in columns)
    head = frame(schema_id)

    def write(row: Row) -> bytes:
        out = io.BytesIO()
        out.write(head)
        value = row[0] if is_bare else dict(zip(names, row, strict=True))
        try:
            fastavro.schemaless_writer(out, parsed, convert(value))
        except (ValueError, TypeError, OverflowError, AttributeError, KeyError) as error:
            raise InvalidInput(f"a row cannot be written with Avro schema {schema_id}: {type(error).__name__}: {error}") from None
        return out.getvalue()

    return write
