"""The JSON_SR serde: JSON behind the frame of a registered JSON Schema. The schema gives the types; the rest is read as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from logflume.log.errors import DecodeError

from . import json_format
from .fitting import Target
from .frames import FRAME_SIZE_BYTES, frame, read_frame
from .json_schema import column_type, has_maps_of_entries, json_schema, parse_json_schema, required_properties, with_entries
from .json_unions import as_objects, holds_union, values_of_unions
from .layouts import Layout, Unheld, Wire
from .registries import RegisteredSchema, registry_at
from .serdes import FormatSpec, Row
from .types import Column, DataType, Kind
from .writing import schema_to_write_with


def write_schema(spec: FormatSpec, columns: tuple[Column, ...]) -> str:
    """Return the text of the schema that columns are written with."""
    schema = json_schema(columns, is_wrapped=spec.is_wrapped)
    return json.dumps({"title": spec.full_name, **schema} if spec.full_name else schema, separators=(",", ":"))


def read_schema(registered: RegisteredSchema, full_name: str) -> DataType:
    """Return the type of a registered schema."""
    return column_type(parse_json_schema(registered.text, registered.texts))


def check_schema(registered: RegisteredSchema, spec: FormatSpec, columns: tuple[Column, ...]) -> None:
    """Raise DecodeError where values of a schema cannot be values of columns: containers and scalars are told apart, the rest is
    coerced as JSON is."""
    found = read_schema(registered, "")
    its = {field.name.upper(): field.type for field in found.fields} if spec.is_wrapped else {columns[0].name.upper(): found}
    for column in columns:
        type = its.get(column.name.upper())
        if type is not None and column.type.kind is not Kind.STRING and _container(type) != _container(column.type):
            raise DecodeError(f"{column.name}: the column is {column.type}, but it was written as {type}")


def _container(type: DataType) -> str:
    """Return what of JSON a type is: array, object or scalar."""
    return {Kind.ARRAY: "array", Kind.MAP: "object", Kind.STRUCT: "object"}.get(type.kind, "scalar")


def make_decode(spec: FormatSpec, columns: tuple[Column, ...]) -> Callable[[bytes | None], Row | None]:
    """Return the decoder; a schema id is asked for once, so that one that does not exist is noticed."""
    registry = registry_at(spec.registry)
    readers: dict[int, Callable[[bytes], Row | None]] = {}
    read_plain = json_format.make_decode(spec, columns)
    type = _written_type(spec, columns)

    def decode(data: bytes | None) -> Row | None:
        if data is None:
            return None
        schema_id = read_frame(data)
        read = readers.get(schema_id)
        if read is None:
            registered = registry.by_id(schema_id)
            _check_json(registered)
            convert = _conversion(registered, type)
            read = readers[schema_id] = read_plain if convert is None else _converting_reader(spec, columns, convert)
        return read(data[FRAME_SIZE_BYTES:])

    return decode


def _written_type(spec: FormatSpec, columns: tuple[Column, ...]) -> DataType:
    """Return the type of a payload as a whole."""
    return columns[0].type if not spec.is_wrapped and len(columns) == 1 else DataType(Kind.STRUCT, fields=columns)


def _converting_reader(
    spec: FormatSpec, columns: tuple[Column, ...], convert: Callable[[Any], Any]
) -> Callable[[bytes], Row | None]:
    read = json_format.make_read(spec, columns)
    return lambda data: read(convert(json_format.parse_exactly(data)))


def _conversion(registered: RegisteredSchema, type: DataType) -> Callable[[Any], Any] | None:
    """Return what brings JSON of a schema into the form that columns are read from; None: it is in that form."""
    schema = parse_json_schema(registered.text, registered.texts)
    has_unions = holds_union(type, in_any_case=True) and _tells_unions(schema)
    return as_objects(type, has_unions=has_unions) if has_unions or has_maps_of_entries(schema) else None


def _tells_unions(schema: Any) -> bool:
    """Whether values of a schema are of unions; else an object that looks like one is what was written of a union's struct."""
    try:
        return holds_union(column_type(schema), in_any_case=False)
    except DecodeError:
        return False


def _check_json(registered: RegisteredSchema) -> None:
    if registered.kind != "JSON":
        raise DecodeError(f"schema {registered.id} is {registered.kind}, expected JSON")


def read_layout(spec: FormatSpec, columns: tuple[Column, ...], wanted: tuple[Column, ...], record: bytes) -> Layout:
    """Return how records of this one's schema are read: as JSON, behind their frame. Raises Unheld, DecodeError."""
    schema_id = read_frame(record)
    registered = registry_at(spec.registry).by_id(schema_id)
    _check_json(registered)
    if _conversion(registered, _written_type(spec, wanted)) is not None:
        raise Unheld("a union of several types, or a map as a list of entries")
    return Layout(Wire.JSON, frame(schema_id))


def write_layout(spec: FormatSpec, columns: tuple[Column, ...]) -> Layout:
    """Return how rows are written: as JSON, behind the frame of their schema. Raises Unheld."""
    registered = _written_with(spec, columns)
    if _form(spec, columns, registered) is not None:
        raise Unheld("a union of several types, or a map as a list of entries")
    return Layout(Wire.JSON, frame(registered.id))


def make_encode(spec: FormatSpec, columns: tuple[Column, ...]) -> Callable[[Row | None], bytes | None]:
    """Return the encoder. The schema is registered, or looked up by its id, with the first row that is written."""
    write: Callable[[Row | None], bytes | None] | None = None
    head = b""

    def encode(row: Row | None) -> bytes | None:
        nonlocal head, write
        if row is None or (not spec.is_wrapped and len(columns) == 1 and row[0] is None):
            return None
        if write is None:
            registered = _written_with(spec, columns)
            head, write = frame(registered.id), _writer(spec, columns, registered)
        payload = write(row)
        return None if payload is None else head + payload

    return encode


def _writer(spec: FormatSpec, columns: tuple[Column, ...], registered: RegisteredSchema) -> Callable[[Row | None], bytes | None]:
    form = _form(spec, columns, registered)
    if form is None:
        return json_format.make_encode(spec, columns)
    names = None if not spec.is_wrapped and len(columns) == 1 else [column.name for column in columns]
    write = json_format.make_encode(replace(spec, is_wrapped=False), (Column("value", DataType(Kind.ANY)),))

    def write_row(row: Row | None) -> bytes | None:
        if row is None:
            return None
        value = row[0] if names is None else dict(zip(names, row, strict=True))
        return None if value is None else write((form(value),))

    return write_row


def _form(spec: FormatSpec, columns: tuple[Column, ...], registered: RegisteredSchema) -> Callable[[Any], Any] | None:
    """Return what makes JSON of a schema of a payload; None: it is in the form of its columns.

    In a schema that was there before the rows unions may have other names than in the columns.
    """
    is_foreign = bool(spec.schema_id) or spec.uses_latest
    type = _written_type(spec, columns)
    schema = parse_json_schema(registered.text, registered.texts) if is_foreign else None
    has_entries = has_maps_of_entries(schema)
    if not has_entries and not holds_union(type, in_any_case=is_foreign):
        return None

    def prepared(each: DataType) -> Callable[[Any], Any]:
        return json_format.preparer(each, is_plain=spec.is_plain) or (lambda value: value)

    convert = values_of_unions(type, prepared, in_any_case=is_foreign)
    return (lambda value: with_entries(convert(value), schema)) if has_entries else convert


def _written_with(spec: FormatSpec, columns: tuple[Column, ...]) -> RegisteredSchema:
    return schema_to_write_with(spec, "JSON", columns, lambda: write_schema(spec, columns), lambda found: target(found, ""))


def target(registered: RegisteredSchema, full_name: str) -> Target:
    """Return what a registered schema takes from who writes with it."""
    schema = parse_json_schema(registered.text, registered.texts)
    return Target("JSON", column_type(schema), frozenset(required_properties(schema)))
