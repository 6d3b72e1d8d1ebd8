"""Values of case files as bytes and back: by the format of the stream or table over the topic."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

from logflume.log.schemas import (
    Column,
    DataType,
    FormatSpec,
    Kind,
    format_of,
    frame_schema_id,
    java_double_text,
    json_value,
    registry_at,
    schema_type,
    serde,
)
from logflume.sql.catalog import SourceInfo

from .cases import CaseFault, CaseRecord


def json_text(value: Any) -> str:
    """Write a value as JSON, decimals as they were written."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{json_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(json_text, value)) + "]"
    return json.dumps(value)


def encode(value: Any, format: FormatSpec, columns: tuple[Column, ...]) -> bytes | None:
    """Return an input's key or value as bytes. JSON goes as it is written, so that wrong types reach the deserializer."""
    if value is None or format.name == "NONE":
        return None
    if format.name == "JSON":
        return json_text(value).encode()
    if format.name == "DELIMITED":
        return (value if isinstance(value, str) else json_text(value)).encode()
    if format.name == "KAFKA":
        return _encode_kafka(value, format, columns)
    return _encode_typed(value, format, columns)


def _encode_typed(value: Any, format: FormatSpec, columns: tuple[Column, ...]) -> bytes | None:
    """Write with the newest schema of the topic, which may differ from what was declared; names in any case."""
    if format_of(format.name).schemas is not None:
        format = replace(format, schema_id=registry_at(format.registry).latest(format.subject).id)
        columns, is_wrapped = _written_columns(format)
        format = replace(format, is_wrapped=is_wrapped)
    if not format.is_wrapped:
        return serde(format, columns).encode((_lenient(value, columns[0].type),))
    row = _lenient(value, DataType(Kind.STRUCT, fields=columns))
    return serde(format, columns).encode(tuple(row.values()))


def _written_columns(format: FormatSpec) -> tuple[tuple[Column, ...], bool]:
    """Return the columns of a registered schema, and whether they are the fields of a record."""
    type = schema_type(format)
    return (type.fields, True) if type.kind is Kind.STRUCT else ((Column("VALUE", type),), False)


def _lenient(value: Any, type: DataType) -> Any:
    """Return a JSON value as a column's, structs by the names of their fields in any case."""
    if value is None:
        return None
    match type.kind:
        case Kind.STRUCT:
            if not isinstance(value, dict):
                raise CaseFault(f"expected an object for {type}, found {value!r}")
            folded = {name.upper(): item for name, item in value.items()}
            return {f.name: _lenient(value.get(f.name, folded.get(f.name.upper())), f.type) for f in type.fields}
        case Kind.ARRAY:
            assert type.element is not None
            return [_lenient(item, type.element) for item in value]
        case Kind.MAP:
            assert type.element is not None
            return {key: _lenient(item, type.element) for key, item in value.items()}
    return json_value(value, type)


def _encode_kafka(value: Any, format: FormatSpec, columns: tuple[Column, ...]) -> bytes | None:
    if not columns:
        return None
    kind = columns[0].type.kind
    if isinstance(value, dict) and len(value) == 1:
        value = next(iter(value.values()))
    if kind is Kind.BYTES:
        return str(value).encode()
    typed = float(value) if kind is Kind.DOUBLE else value if kind is Kind.STRING else int(value)
    if kind is Kind.STRING and not isinstance(value, str):
        typed = json_text(value)
    return serde(format, columns).encode((typed,))


def encode_key(record: CaseRecord, source: SourceInfo) -> bytes | None:
    """Return an input's key, with its window start for a windowed source."""
    key = encode(record.key, source.key_format, source.key) if source.key else None
    if record.window is not None and key is not None:
        if source.window is None:
            raise CaseFault(f"a windowed key for {source.name}, which is not windowed")
        if source.window.kind == "SESSION":
            key += int(record.window["end"]).to_bytes(8, "big") + int(record.window["start"]).to_bytes(8, "big")
        else:
            key += int(record.window["start"]).to_bytes(8, "big")
    return key


def decode(data: bytes | None, format: FormatSpec, columns: tuple[Column, ...]) -> Any:
    """Return an actual key or value in the form that expectations are compared with."""
    if data is None or format.name == "NONE":
        return None
    if format.name == "JSON":
        value = json.loads(data, parse_float=Decimal)
        if format.is_wrapped or len(columns) > 1:
            types = {c.name: c.type for c in columns}
            return {k: _as_java(v, types.get(k)) for k, v in value.items()} if isinstance(value, dict) else value
        return _as_java(value, columns[0].type) if columns else value
    if format.name == "DELIMITED":
        return data.decode()
    if format.name == "KAFKA":
        if not columns:
            return None
        if columns[0].type.kind is Kind.BYTES:
            return data.decode("utf-8", "replace")
        row = serde(format, columns).decode(data)
        value = None if row is None else row[0]
        return Decimal(java_double_text(value)) if isinstance(value, float) else value
    return _decode_typed(data, format, columns)


def _decode_typed(data: bytes, format: FormatSpec, columns: tuple[Column, ...]) -> Any:
    """Read with the schema that a record was written with."""
    if format_of(format.name).schemas is not None:
        format = replace(format, schema_id=frame_schema_id(data))
        columns, is_wrapped = _written_columns(format)
        format = replace(format, is_wrapped=is_wrapped)
    row = serde(format, columns).decode(data)
    if row is None:
        return None
    if not format.is_wrapped:
        return _shown(row[0], columns[0].type)
    shown = {c.name: _shown(item, c.type) for c, item in zip(columns, row, strict=True)}
    return {name: None if item == "" and _is_bytes(name, columns) else item for name, item in shown.items()}


def _is_bytes(name: str, columns: tuple[Column, ...]) -> bool:
    return any(c.name == name and c.type.kind is Kind.BYTES for c in columns)


def _shown(value: Any, type: DataType) -> Any:
    """Return a column's value as a case writes it: bytes as base64."""
    if value is None:
        return None
    match type.kind:
        case Kind.BYTES:
            return base64.b64encode(value).decode()
        case Kind.STRUCT:
            return {f.name: _shown(value[f.name], f.type) for f in type.fields}
        case Kind.ARRAY:
            assert type.element is not None
            return [_shown(item, type.element) for item in value]
        case Kind.MAP:
            assert type.element is not None
            return {key: _shown(item, type.element) for key, item in value.items()}
    return value


def _as_java(value: Any, type: DataType | None) -> Any:
    """Return a JSON value with its DOUBLEs as the decimals that Java would have written (1.0E7), which is what cases expect."""
    if value is None or type is None:
        return value
    match type.kind:
        case Kind.DOUBLE if isinstance(value, int | Decimal):
            return Decimal(java_double_text(float(value)))
        case Kind.ARRAY if isinstance(value, list):
            return [_as_java(item, type.element) for item in value]
        case Kind.MAP if isinstance(value, dict):
            return {k: _as_java(v, type.element) for k, v in value.items()}
        case Kind.STRUCT if isinstance(value, dict):
            types = {f.name: f.type for f in type.fields}
            return {k: _as_java(v, types.get(k)) for k, v in value.items()}
    return value
