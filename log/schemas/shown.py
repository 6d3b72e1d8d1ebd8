"""Bytes that were written with a registered schema, as values to look at: what `logflume consume` prints.

Times are ISO 8601, decimals text, bytes base64; everything else is what JSON has.
"""

from __future__ import annotations

import base64
import datetime
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .formats import format_of_kind, schema_type, serde
from .frames import FRAME_SIZE_BYTES, read_frame, read_message_indexes
from .headers import Headers, framed_by_headers
from .proto_compiler import compile_proto
from .proto_schema import message_at, messages_of
from .registries import RegisteredSchema, registry_at
from .serdes import FormatSpec
from .types import Column, DataType, Kind

_EPOCH = datetime.datetime(1970, 1, 1)


class SchemaReader:
    """Reads framed bytes of any schema of one registry. Not thread-safe."""

    def __init__(self, registry: str) -> None:
        self._location = registry
        self._registry = registry_at(registry)
        self._readers: dict[tuple[int, tuple[int, ...]], Callable[[bytes], Any]] = {}

    def read(self, data: bytes, headers: Headers = (), side: str = "value") -> Any:
        """Return the value (`side`: or the key) of a record.

        Raises:
            DecodeError: not framed, an unknown schema, or bytes that do not fit it. RegistryUnavailable.
        """
        data = framed_by_headers(data, headers, side, self._location) or b""
        schema_id = read_frame(data)
        registered = self._registry.by_id(schema_id)
        path = read_message_indexes(data, FRAME_SIZE_BYTES)[0] if registered.kind == "PROTOBUF" else ()
        key = (schema_id, path)
        if key not in self._readers:
            self._readers[key] = self._reader(registered, path)
        return self._readers[key](data)

    def _reader(self, registered: RegisteredSchema, path: tuple[int, ...]) -> Callable[[bytes], Any]:
        spec = FormatSpec(format_of_kind(registered.kind), registry=self._location, schema_id=registered.id)
        if path:
            file, _ = messages_of(compile_proto(registered.text, registered.texts))
            spec = replace(spec, full_name=message_at(file, path[:1]).name)
        type = schema_type(spec)
        is_record = type.kind is Kind.STRUCT
        columns = type.fields if is_record else (Column("value", type),)
        decode = serde(replace(spec, is_wrapped=is_record), columns).decode

        def read(data: bytes) -> Any:
            row = decode(data)
            if row is None:
                return None
            shown = {column.name: shown_value(value, column.type) for column, value in zip(columns, row, strict=True)}
            return shown if is_record else shown["value"]

        return read


def shown_value(value: Any, type: DataType) -> Any:
    """Return a column's value as JSON has it.

    >>> from .types import TIMESTAMP
    >>> shown_value(1_700_000_000_123, TIMESTAMP)
    '2023-11-14T22:13:20.123Z'
    """
    if value is None:
        return None
    match type.kind:
        case Kind.STRUCT:
            return {field.name: shown_value(value.get(field.name), field.type) for field in type.fields}
        case Kind.ARRAY:
            assert type.element is not None
            return [shown_value(item, type.element) for item in value]
        case Kind.MAP:
            assert type.element is not None
            return {str(key): shown_value(item, type.element) for key, item in value.items()}
        case Kind.BYTES:
            return base64.b64encode(value).decode()
        case Kind.DECIMAL:
            return format(value, "f")
        case Kind.DATE | Kind.TIME | Kind.TIMESTAMP:
            return _time_text(value, type.kind)
    return value


def _time_text(value: int, kind: Kind) -> Any:
    """Return a time as ISO 8601; the number itself where the calendar ends before it."""
    try:
        if kind is Kind.DATE:
            return (_EPOCH + datetime.timedelta(days=value)).date().isoformat()
        moment = _EPOCH + datetime.timedelta(milliseconds=value)
    except OverflowError:
        return value
    if kind is Kind.TIME:
        return moment.time().isoformat(timespec="milliseconds")
    return moment.isoformat(timespec="milliseconds") + "Z"
