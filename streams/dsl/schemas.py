"""Python types -> the schema and format of a side of a topic."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any

from logflume.log import InvalidInput
from logflume.log.schemas import (
    ANY,
    BIGINT,
    BOOLEAN,
    BYTES,
    DOUBLE,
    STRING,
    Column,
    DataType,
    FormatSpec,
    Kind,
    check_readable,
    columns_of,
    format_of,
    is_object_class,
    of_topic,
    register_schema,
    required_fields,
    schema_type,
)

from ..graph import Schema, Sink, Source, Topology, is_bare

PRIMITIVES: Mapping[Any, DataType] = {str: STRING, int: BIGINT, float: DOUBLE, bool: BOOLEAN, bytes: BYTES}


def key_columns(key: Any) -> tuple[Column, ...]:
    """Return the key columns that a user named: a type, several by name ({"user": str}), a class, or None for no key."""
    if key is None:
        return ()
    if isinstance(key, Mapping):
        return tuple(Column(name, column_type(type)) for name, type in key.items())
    if is_object_class(key):
        return columns_of(key)
    return (Column("key", column_type(key)),)


def column_type(type: Any) -> DataType:
    """Return the column type of a Python type or column type."""
    if isinstance(type, DataType):
        return type
    if isinstance(type, Hashable) and type in PRIMITIVES:
        return PRIMITIVES[type]
    if type in (Any, object, dict, list):
        return ANY
    raise InvalidInput(f"expected str, int, float, bool, bytes, Any or a column type (logflume.log.schemas), found {type!r}")


def value_schema(value: Any) -> tuple[tuple[Column, ...], type[Any] | None]:
    """Return the value columns and the class of a topic's values: a class, a primitive, or None for any JSON."""
    if value is None or value in (dict, Any, object):
        return (Column("value", ANY),), None
    if is_object_class(value):
        return columns_of(value), value
    if isinstance(value, type) and value in PRIMITIVES:
        return (Column("value", PRIMITIVES[value]),), value
    hint = ": write its fields as a class, such as class Order(TypedDict)" if isinstance(value, Mapping) else ""
    raise InvalidInput(
        "values are a class with typed fields (msgspec.Struct, dataclass, TypedDict, Pydantic model, generated Protobuf class), "
        f"str, int, float, bool, bytes, or nothing (any JSON, or what the registry says); found {value!r}{hint}"
    )


def is_single(schema: Schema) -> bool:
    """Return whether a value is written bare: one object, or one primitive."""
    return is_bare(schema) or (len(schema.value) == 1 and schema.value_class in PRIMITIVES)


def value_format(schema: Schema, name: str | FormatSpec | None, topic: str = "", registry: str = "") -> FormatSpec:
    """Return the format of a topic's values: as named, else JSON, and text and bytes as they are."""
    if isinstance(name, FormatSpec):
        return of_topic(replace(name, is_wrapped=not is_single(schema)), topic, "value", registry)
    if name is None:
        name = "KAFKA" if is_single(schema) and schema.value[0].type in (STRING, BYTES) else "JSON"
    spec = FormatSpec(name.upper(), is_wrapped=not is_single(schema), is_plain=name.upper() == "JSON")
    return of_topic(spec, topic, "value", registry)


def registered_value(topic: str, name: str | FormatSpec | None, registry: str) -> tuple[Column, ...] | None:
    """Return the value columns that the registry has for a topic; None where the format has no schemas."""
    if name is None:
        return None
    spec = FormatSpec(name.upper()) if isinstance(name, str) else name
    if format_of(spec.name).schemas is None:
        return None
    type = schema_type(of_topic(spec, topic, "value", registry))
    if type.kind is not Kind.STRUCT:
        raise InvalidInput(f"the values of {topic!r} are {type}, not records: say which, for example value=str")
    return type.fields


def check_registered(topology: Topology) -> None:
    """Raise InvalidInput where a source's columns or class do not fit the schema that the registry has for its topic, or a schema
    that is to be written with is not there.

    Raises:
        InvalidInput; RegistryUnavailable.
    """
    for node in topology.nodes.values():
        if isinstance(node, Source):
            cls = node.schema.value_class
            required = required_fields(cls) if cls is not None and is_object_class(cls) else ()
            check_readable(node.value_format, node.schema.value, required)
        elif isinstance(node, Sink):
            for spec, columns in ((node.key_format, node.schema.key), (node.value_format, node.schema.value)):
                if spec.schema_id or spec.uses_latest or not spec.registers:
                    register_schema(spec, columns)


def key_format(key: tuple[Column, ...], name: str | FormatSpec | None, topic: str = "", registry: str = "") -> FormatSpec:
    """Return the format of a topic's keys: as named, else as Kafka's serializers write a primitive, else JSON."""
    from ..planner import default_key_format

    if name is None:
        return default_key_format(key)
    if isinstance(name, FormatSpec):
        return of_topic(replace(name, is_wrapped=len(key) > 1), topic, "key", registry)
    return of_topic(FormatSpec(name.upper(), is_wrapped=len(key) > 1), topic, "key", registry)
