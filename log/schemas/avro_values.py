"""Values of Avro as fastavro reads and writes them <-> values of columns: converters made once per (schema, column type)."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from logflume.log.errors import DecodeError

from .avro_schema import Named, branch_name, full_name, is_map, is_primitive, without_null
from .coerce import fit_decimal, from_unscaled, java_double_text, java_float_text, json_to_text, unscaled
from .types import Column, DataType, Kind

Convert = Callable[[Any], Any]
_INTEGERS = ("int", "long")
_NUMBERS = ("int", "long", "float", "double")
_FITS: Mapping[Kind, tuple[str, ...]] = {
    Kind.BOOLEAN: ("boolean",),
    Kind.INTEGER: ("int",),
    Kind.BIGINT: _INTEGERS,
    Kind.DOUBLE: _NUMBERS,
    Kind.BYTES: ("bytes", "fixed"),
    Kind.DATE: ("int",),
    Kind.TIME: ("int",),
    Kind.TIMESTAMP: _INTEGERS,
}


def without_logical_types(schema: Any) -> Any:
    """Return a schema without logical types, so that values come as numbers and bytes."""
    if isinstance(schema, list):
        return [without_logical_types(each) for each in schema]
    if isinstance(schema, dict):
        return {
            key: without_logical_types(value) if key in ("type", "items", "values", "fields") else value
            for key, value in schema.items()
            if key != "logicalType"
        }
    return schema


def from_avro(schema: Any, type: DataType, path: str, named: Named, namespace: str) -> Convert:
    """Return what makes a column's value of a value as it was read.

    Raises:
        DecodeError: values of the schema cannot be values of the column.
    """
    if isinstance(schema, list):
        return _of_union(schema, type, path, named, namespace)
    if isinstance(schema, str) and not is_primitive(schema):
        return from_avro(named.get(schema, namespace), type, path, named, namespace)
    kind = schema if isinstance(schema, str) else schema["type"]
    if not isinstance(kind, str):
        return from_avro(kind, type, path, named, namespace)
    if kind in ("record", "error"):
        _, inside = named.add(schema, namespace)
        if type.kind is Kind.STRUCT:
            return _of_record(schema, type, path, named, inside)
    elif kind in ("enum", "fixed"):
        named.add(schema, namespace)
    return _of_container(kind, schema, type, path, named, namespace) or _of_scalar(kind, schema, type, path)


def _of_container(kind: str, schema: Any, type: DataType, path: str, named: Named, namespace: str) -> Convert | None:
    if kind == "map" and type.kind is Kind.MAP:
        assert type.element is not None
        each = from_avro(schema["values"], type.element, path, named, namespace)
        return lambda value: {key: each(item) for key, item in value.items()}
    if kind == "array" and type.kind is Kind.MAP and is_map(schema, named, namespace):
        assert type.key is not None
        assert type.element is not None
        entry = struct_of_entry(type.key, type.element)
        each = from_avro(schema["items"], entry, path, named, namespace)
        return lambda value: {(pair := each(item))["key"]: pair["value"] for item in value}
    if kind == "array" and type.kind is Kind.ARRAY:
        assert type.element is not None
        each = from_avro(schema["items"], type.element, path, named, namespace)
        return lambda value: [each(item) for item in value]
    return None


def struct_of_entry(key: DataType, value: DataType) -> DataType:
    """Return the type of an entry of a map that is written as an array of entries."""
    return DataType(Kind.STRUCT, fields=(Column("key", key), Column("value", value)))


def _of_record(schema: Any, type: DataType, path: str, named: Named, namespace: str) -> Convert:
    """Fields by name: the very name, else the same in upper case."""
    fields = {field["name"]: field for field in schema["fields"]}
    upper = {name.upper(): field for name, field in fields.items()}
    wanted: list[tuple[str, str | None, Convert]] = []
    for column in type.fields:
        field = fields.get(column.name) or upper.get(column.name.upper())
        if field is None:
            wanted.append((column.name, None, _nothing))
        else:
            convert = from_avro(field["type"], column.type, f"{path}.{column.name}", named, namespace)
            wanted.append((column.name, field["name"], convert))

    def convert_record(value: Any) -> Any:
        return {name: None if source is None else convert(value[source]) for name, source, convert in wanted}

    return convert_record


def _nothing(value: Any) -> None:
    return None


def _of_union(schema: list[Any], type: DataType, path: str, named: Named, namespace: str) -> Convert:
    branches = without_null(schema)
    if not branches:
        return _nothing
    if len(branches) == 1:
        convert = from_avro(branches[0], type, path, named, namespace)
        return lambda value: None if value is None else convert(value)
    shapes = [_shape(each, named, namespace) for each in branches]
    if type.kind is not Kind.STRUCT or len(set(shapes)) < len(shapes):
        raise DecodeError(
            f"{path}: a union of {', '.join(branch_name(each, namespace) for each in branches)} cannot be a column of type {type}"
        )
    columns = {column.name: column.type for column in type.fields}
    by_shape: dict[builtins.type, tuple[str, Convert]] = {}
    for each, shape in zip(branches, shapes, strict=True):
        name = branch_name(each, namespace)
        if name in columns:
            by_shape[shape] = (name, from_avro(each, columns[name], f"{path}.{name}", named, namespace))
    empty = dict.fromkeys(columns)

    def convert_branch(value: Any) -> Any:
        if value is None:
            return None
        found = by_shape.get(builtins.type(value))
        return dict(empty) if found is None else empty | {found[0]: found[1](value)}

    return convert_branch


_SHAPES: Mapping[str, builtins.type] = {
    "boolean": bool, "int": int, "long": int, "float": float, "double": float, "string": str, "enum": str, "bytes": bytes,
    "fixed": bytes, "array": list, "map": dict, "record": dict, "error": dict,
}  # fmt: skip


def _shape(schema: Any, named: Named, namespace: str) -> builtins.type:
    """Return the Python type that values of a branch of a union come as."""
    kind = schema if isinstance(schema, str) else schema["type"]
    if isinstance(kind, str) and kind in _SHAPES:
        return _SHAPES[kind]
    return _shape(named.get(kind, namespace) if isinstance(kind, str) else kind, named, namespace)


def _of_scalar(kind: str, schema: Any, type: DataType, path: str) -> Convert:
    if type.kind is Kind.STRING and kind in ("string", "enum"):
        return _same
    if type.kind is Kind.STRING and kind in ("boolean", *_NUMBERS):
        return {"float": java_float_text, "double": java_double_text}.get(kind, json_to_text)
    if type.kind is Kind.DECIMAL and kind in ("bytes", "fixed") and isinstance(schema, dict):
        scale = int(schema.get("scale", schema.get("connect.parameters", {}).get("scale", 0)))
        return lambda value: fit_decimal(from_unscaled(value, scale), type, path)
    if kind in _FITS.get(type.kind, ()):
        return float if type.kind is Kind.DOUBLE and kind in _INTEGERS else _same
    raise DecodeError(f"{path}: the column is {type}, but it was written as Avro {kind}")


def _same(value: Any) -> Any:
    return value


def to_avro(type: DataType, schema: Any, named: Named, namespace: str) -> Convert:
    """Return what makes a value to be written of a column's value; null stays null. The writer checks the rest."""
    if isinstance(schema, list):
        branches = without_null(schema)
        if _has_field_for_each(type, branches, namespace):
            return _to_union(type, branches, named, namespace)
        convert = to_avro(type, branches[0] if branches else "null", named, namespace)
        return lambda value: None if value is None else convert(value)
    if isinstance(schema, str):
        if schema == "int" and type.kind in (Kind.BIGINT, Kind.TIMESTAMP):
            return _of_32_bits
        return _same if is_primitive(schema) else to_avro(type, named.get(schema, namespace), named, namespace)
    kind = schema["type"]
    if not isinstance(kind, str):
        return to_avro(type, kind, named, namespace)
    inside = namespace
    if kind in ("record", "enum", "fixed", "error"):
        _, inside = named.add(schema, namespace)
    match type.kind:
        case Kind.STRUCT if kind == "record":
            return _to_record(type, schema, named, inside)
        case Kind.ARRAY if kind == "array":
            assert type.element is not None
            each = to_avro(type.element, schema["items"], named, namespace)
            return lambda value: [each(item) for item in value]
        case Kind.MAP if kind == "map":
            assert type.element is not None
            each = to_avro(type.element, schema["values"], named, namespace)
            return lambda value: {key: each(item) for key, item in value.items()}
        case Kind.MAP if kind == "array":
            assert type.key is not None
            assert type.element is not None
            entry = to_avro(struct_of_entry(type.key, type.element), schema["items"], named, namespace)
            return lambda value: [entry({"key": key, "value": item}) for key, item in value.items()]
        case Kind.DECIMAL:
            scale, size = int(schema.get("scale", type.scale)), schema.get("size")
            return lambda value: _decimal_bytes(value, scale, size)
    return to_avro(type, kind, named, namespace) if kind == "int" else _same


def _has_field_for_each(type: DataType, branches: list[Any], namespace: str) -> bool:
    """Whether a union of several types is read as such a struct; of other columns the library finds the branch."""
    names = {branch_name(each, namespace) for each in branches}
    return len(branches) > 1 and type.kind is Kind.STRUCT and names.issuperset(column.name for column in type.fields)


def _to_union(type: DataType, branches: list[Any], named: Named, namespace: str) -> Convert:
    """The one field of a struct that is set says which branch is written; none: null."""
    columns = {column.name: column.type for column in type.fields}
    by_field: dict[str, tuple[str, Convert]] = {}
    for each in branches:
        field = branch_name(each, namespace)
        if field in columns:
            by_field[field] = full_name(each, namespace), to_avro(columns[field], each, named, namespace)

    def convert_struct(value: Any) -> Any:
        if value is None:
            return None
        given = [field for field, inner in value.items() if inner is not None]
        if len(given) > 1:
            raise ValueError(f"a union has one value, but {' and '.join(given)} are set")
        for field in given:
            name, convert = by_field[field]
            return name, convert(value[field])
        return None

    return convert_struct


def _of_32_bits(value: int) -> int:
    """What is written would be an Avro int of more bits than readers take; the library does not look."""
    if not -(2**31) <= value < 2**31:
        raise OverflowError(f"{value} is no Avro int, which has 32 bits")
    return value


def _to_record(type: DataType, schema: Any, named: Named, namespace: str) -> Convert:
    """Fields by name, in any case; those that the columns lack, and nulls where none may be, are left to their defaults."""
    by_upper = {column.name.upper(): column for column in type.fields}
    by_name = {column.name: column for column in type.fields}
    pairs: list[tuple[str, str, Convert]] = []
    for field in schema["fields"]:
        column = by_name.get(field["name"]) or by_upper.get(field["name"].upper())
        if column is not None:
            pairs.append((field["name"], column.name, to_avro(column.type, field["type"], named, namespace)))
    defaults = {f["name"] for f in schema["fields"] if "default" in f and "null" not in _branches(f["type"])}
    if not defaults:
        return lambda value: {target: convert(value.get(source)) for target, source, convert in pairs}
    return lambda value: {
        target: convert(value.get(source))
        for target, source, convert in pairs
        if value.get(source) is not None or target not in defaults
    }


def _branches(schema: Any) -> list[Any]:
    return schema if isinstance(schema, list) else [schema]


def _decimal_bytes(value: Decimal, scale: int, size_bytes: int | None) -> bytes:
    digits = unscaled(value, scale)
    needed = (digits.bit_length() + 8) // 8
    return digits.to_bytes(size_bytes or max(needed, 1), "big", signed=True)
