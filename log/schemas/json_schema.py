"""JSON Schemas <-> column types, as Kafka Connect's JSON Schema data and ksqlDB have them.

A column of our own schemas is `oneOf` null and its type, with `connect.index` as its place and `connect.type` where JSON's types
are too few. A schema of somebody else is read by the same words where they are there, else integers are BIGINT and numbers
DOUBLE, and an object with properties is a struct, without them a map. One of several types is a union (`json_unions.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from logflume.log.errors import DecodeError

from .extent import Extent
from .json_format import TooDeep, check_nesting
from .json_references import as_one
from .json_unions import is_union, union_of
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

_CONNECT = "org.apache.kafka.connect.data."
_INTEGER_TYPES: Mapping[str, DataType] = {"int8": INTEGER, "int16": INTEGER, "int32": INTEGER, "int64": BIGINT}
_TITLES: Mapping[str, DataType] = {f"{_CONNECT}Date": DATE, f"{_CONNECT}Time": TIME, f"{_CONNECT}Timestamp": TIMESTAMP}
_WRITTEN: Mapping[Kind, Mapping[str, Any]] = {
    Kind.BOOLEAN: {"type": "boolean"},
    Kind.INTEGER: {"type": "integer", "connect.type": "int32"},
    Kind.BIGINT: {"type": "integer", "connect.type": "int64"},
    Kind.DOUBLE: {"type": "number", "connect.type": "float64"},
    Kind.STRING: {"type": "string"},
    Kind.BYTES: {"type": "string", "connect.type": "bytes"},
    Kind.DATE: {"type": "integer", "title": f"{_CONNECT}Date", "connect.version": 1, "connect.type": "int32"},
    Kind.TIME: {"type": "integer", "title": f"{_CONNECT}Time", "connect.version": 1, "connect.type": "int32"},
    Kind.TIMESTAMP: {"type": "integer", "title": f"{_CONNECT}Timestamp", "connect.version": 1, "connect.type": "int64"},
}


def parse_json_schema(text: str, references: Sequence[tuple[str, str]] = ()) -> Any:
    """Return a JSON Schema as data, with the schemas that it refers to in it.

    Raises:
        DecodeError: not JSON, neither an object nor a boolean, nested too deeply, or referring to what is no URI.
    """
    schema, others = _parsed(text), {name: _parsed(referred) for name, referred in references}
    try:
        return as_one(schema, others)
    except ValueError as error:
        raise DecodeError(f"not a JSON Schema: {error} ({text[:80]!r})") from None


def _parsed(text: str) -> Any:
    try:
        check_nesting(text.encode())
        found = json.loads(text)
    except (ValueError, TooDeep) as error:
        raise DecodeError(f"not a JSON Schema: {error} ({text[:80]!r})") from None
    if not isinstance(found, dict | bool):
        raise DecodeError(f"a JSON Schema is an object, found {text[:80]!r}")
    _check_words(found)
    return found


_WORDS: Mapping[str, type] = {"$ref": str, "properties": dict, "allOf": list, "anyOf": list, "oneOf": list}


def _check_words(schema: Any) -> None:
    """Raise DecodeError where a word that is read here has a value of another kind than JSON Schema gives it."""
    if not isinstance(schema, dict):
        return
    for word, kind in _WORDS.items():
        if not isinstance(schema.get(word, kind()), kind):
            raise DecodeError(f"not a JSON Schema: {word!r} is {json.dumps(schema[word])[:40]}")
    if schema.get("type") == "array" and schema.get("connect.type") == "map":
        items = schema.get("items")
        entry = items.get("properties") if isinstance(items, dict) else None
        if not isinstance(entry, dict) or not {"key", "value"} <= entry.keys():
            raise DecodeError("not a JSON Schema of Connect: the items of a map have no properties 'key' and 'value'")
    named = [schema[word] for word in ("properties", "definitions", "$defs") if isinstance(schema.get(word), dict)]
    inner = [each for part in named for each in part.values()]
    inner += [each for word in ("allOf", "anyOf", "oneOf") for each in schema.get(word, ())]
    for each in (*inner, schema.get("items"), schema.get("additionalProperties")):
        _check_words(each)


def column_type(schema: Any, *, root: Any = None, depth: int = 0, extent: Extent | None = None) -> DataType:
    """Return the column type of a JSON Schema; `root` is what `#/...` refers to.

    Raises:
        DecodeError: what no column can hold: any value, unions of several types, a schema that contains itself.
    """
    root = schema if root is None else root
    extent = extent or Extent()
    extent.enter(depth, "the JSON Schema")
    if not isinstance(schema, dict):
        raise DecodeError("the JSON Schema allows any value; columns need a type")

    def inner(each: Any) -> DataType:
        return column_type(each, root=root, depth=depth + 1, extent=extent)

    if "$ref" in schema:
        return inner(_referred(schema["$ref"], root))
    parts = list(_parts(schema, root, []))
    properties = {name: each for part in parts for name, each in part.get("properties", {}).items()}
    if properties and schema.get("connect.type") != "map":
        return struct(*(Column(name, inner(each)) for name, each in _in_order(properties)))
    for part in parts:
        branches = _branches(part)
        if branches:
            types = [inner(each) for each in branches]
            return types[0] if len(types) == 1 else union_of(types)
    return _by_type(next((part for part in parts if "type" in part), schema), inner)


def _parts(schema: Any, root: Any, seen: list[Any]) -> Iterator[Mapping[str, Any]]:
    """Give a schema and all that `allOf` adds to it."""
    if not isinstance(schema, dict) or any(schema is each for each in seen):
        return
    seen.append(schema)
    if "$ref" in schema:
        yield from _parts(_referred(schema["$ref"], root), root, seen)
        return
    yield schema
    for each in schema.get("allOf", ()):
        yield from _parts(each, root, seen)


def _branches(schema: Mapping[str, Any]) -> list[Any]:
    """Return the schemas of which a value has one, without null."""
    for word in ("oneOf", "anyOf"):
        if word in schema:
            return [each for each in schema[word] if not (isinstance(each, dict) and each.get("type") == "null")]
    kinds = schema.get("type")
    if not isinstance(kinds, list):
        return []
    return [{**schema, "type": kind} for kind in kinds if kind != "null"]


def _listed(words: Any) -> Sequence[Any]:
    """Return a list; nothing of what older drafts have in its place."""
    return words if isinstance(words, list) else ()


def required_properties(schema: Any, *, root: Any = None, path: str = "") -> Iterator[str]:
    """Give the paths of properties that must be there, of a schema that `column_type` has a type for."""
    root = schema if root is None else root
    for part in _parts(schema, root, []):
        branches = _branches(part) if {"oneOf", "anyOf"} & part.keys() else ()
        if len(branches) == 1:
            yield from required_properties(branches[0], root=root, path=path)
        for name, each in part.get("properties", {}).items():
            place = f"{path}.{name}" if path else name
            if name in _listed(part.get("required")):
                yield place
            yield from required_properties(each, root=root, path=place)
        for word in ("items", "additionalProperties"):
            if word in part:
                yield from required_properties(part[word], root=root, path=path)


def _by_type(schema: Mapping[str, Any], inner: Any) -> DataType:
    kind = schema.get("type", "string" if {"enum", "const"} & schema.keys() else None)
    connect, title = schema.get("connect.type"), schema.get("title", "")
    match kind:
        case "boolean":
            return BOOLEAN
        case "integer":
            return _TITLES.get(title) or _INTEGER_TYPES.get(connect or "", BIGINT)
        case "number":
            if title == f"{_CONNECT}Decimal":
                parameters = schema.get("connect.parameters", {})
                return decimal(int(parameters.get("connect.decimal.precision", 64)), int(parameters.get("scale", 0)))
            return DOUBLE
        case "string":
            return BYTES if connect == "bytes" else STRING
        case "array":
            entry = schema.get("items", {})
            if connect == "map":
                properties = entry["properties"]
                return map_of(inner(properties["key"]), inner(properties["value"]))
            return array_of(inner(entry))
        case "object":
            return map_of(STRING, inner(schema.get("additionalProperties", True)))
    raise DecodeError(f"a column cannot hold what this JSON Schema describes: {json.dumps(schema)[:120]}")


def _in_order(properties: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return properties by `connect.index`, those without one behind in the order of the text."""
    last = len(properties)
    return sorted(properties.items(), key=lambda item: item[1].get("connect.index", last) if isinstance(item[1], dict) else last)


def has_maps_of_entries(schema: Any) -> bool:
    """Return whether a map is a list of entries anywhere in a schema, as Connect writes those whose keys may be null."""
    if isinstance(schema, list):
        return any(map(has_maps_of_entries, schema))
    if not isinstance(schema, dict):
        return False
    is_one = schema.get("type") == "array" and schema.get("connect.type") == "map"
    return is_one or any(map(has_maps_of_entries, schema.values()))


def with_entries(value: Any, schema: Any, *, root: Any = None) -> Any:
    """Return JSON in which maps are lists of entries where a schema has them so; its values may be of any class."""
    root = schema if root is None else root
    for part in _parts(schema, root, []):
        branches = _branches(part) if {"oneOf", "anyOf"} & part.keys() else ()
        if len(branches) == 1:
            value = with_entries(value, branches[0], root=root)
        if isinstance(value, dict) and part.get("type") == "array" and part.get("connect.type") == "map":
            inner = part["items"]["properties"]["value"]
            return [{"key": name, "value": with_entries(item, inner, root=root)} for name, item in value.items()]
        if isinstance(value, dict):
            own, rest = part.get("properties", {}), part.get("additionalProperties")
            value = {name: with_entries(item, own.get(name, rest), root=root) for name, item in value.items()}
        elif isinstance(value, list):
            value = [with_entries(item, part.get("items"), root=root) for item in value]
    return value


def _referred(reference: str, root: Any) -> Any:
    if not reference.startswith("#"):
        raise DecodeError(f"the JSON Schema refers to {reference!r}, which is not in it")
    found = root
    for step in filter(None, reference[1:].split("/")):
        step = step.replace("~1", "/").replace("~0", "~")
        held = dict(enumerate(found)) if isinstance(found, list) else found
        key = int(step) if isinstance(found, list) and step.isdecimal() else step
        if not isinstance(held, dict) or key not in held:
            raise DecodeError(f"the JSON Schema refers to {reference!r}, which is not there")
        found = held[key]
    return found


def json_schema(columns: Sequence[Column], *, is_wrapped: bool) -> Any:
    """Return the schema that rows of these columns are written with."""
    if not is_wrapped and len(columns) == 1:
        return _nullable(columns[0].type)
    return _object(columns)


def _object(columns: Sequence[Column]) -> dict[str, Any]:
    properties = {column.name: {"connect.index": i, **_nullable(column.type)} for i, column in enumerate(columns)}
    return {"type": "object", "properties": properties}


def _nullable(type: DataType) -> dict[str, Any]:
    if not is_union(type, in_any_case=False):
        return {"oneOf": [{"type": "null"}, _written(type)]}
    branches = [{**_written(field.type), "connect.index": i} for i, field in enumerate(type.fields)]
    return {"oneOf": [{"type": "null"}, *branches]}


def _written(type: DataType) -> Any:
    match type.kind:
        case Kind.STRUCT:
            return _object(type.fields)
        case Kind.DECIMAL:
            parameters = {"scale": str(type.scale), "connect.decimal.precision": str(type.precision)}
            title = f"{_CONNECT}Decimal"
            return {
                "type": "number", "title": title, "connect.version": 1, "connect.type": "bytes", "connect.parameters": parameters,
            }  # fmt: skip
        case Kind.ARRAY:
            assert type.element is not None
            return {"type": "array", "items": _nullable(type.element)}
        case Kind.MAP:
            assert type.element is not None
            return {"type": "object", "connect.type": "map", "additionalProperties": _nullable(type.element)}
        case _:
            return dict(_WRITTEN[type.kind])
