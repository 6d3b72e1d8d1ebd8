"""Values of case files as bytes and back: by the format of the stream or table over the topic."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from logflume.log.schemas import Column, DataType, FormatSpec, Kind, java_double_text, serde
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
    raise CaseFault(f"cannot write the format {format.name}")


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
    raise CaseFault(f"cannot read the format {format.name}")


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
