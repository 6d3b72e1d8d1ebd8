"""Avro schemas <-> column types, as Kafka Connect's Avro data and ksqlDB have them.

A column of our own schemas is a union with null whose default is null. Times and decimals are Avro's logical types; other
logical types are what they annotate. A map is an array of records `key`, `value` marked as a map entry, as Connect writes maps
whose keys may be null; Avro's own maps are read too. A union of several types but null is a struct with a field for each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from logflume.log.errors import DecodeError, InvalidInput

from .extent import Extent
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

AVRO_NAMESPACE = "io.confluent.ksql.avro_schemas"
DEFAULT_FULL_NAME = f"{AVRO_NAMESPACE}.KsqlDataSourceSchema"
CONNECT_DECIMAL = "org.apache.kafka.connect.data.Decimal"
ENTRY_MARK = "connect.internal.type"
MAP_ENTRY = "MapEntry"
CONNECT_MAP_ENTRY = f"io.confluent.connect.avro.{MAP_ENTRY}"
_NAMED = ("record", "error", "enum", "fixed")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_PRIMITIVES: Mapping[str, DataType] = {
    "boolean": BOOLEAN,
    "int": INTEGER,
    "long": BIGINT,
    "float": DOUBLE,
    "double": DOUBLE,
    "string": STRING,
    "bytes": BYTES,
    "fixed": BYTES,
    "enum": STRING,
}
_LOGICAL: Mapping[tuple[str, str], DataType] = {
    ("int", "date"): DATE,
    ("int", "time-millis"): TIME,
    ("long", "timestamp-millis"): TIMESTAMP,
}
_CONNECT_NAMES: Mapping[str, DataType] = {
    "org.apache.kafka.connect.data.Date": DATE,
    "org.apache.kafka.connect.data.Time": TIME,
    "org.apache.kafka.connect.data.Timestamp": TIMESTAMP,
}
_WRITTEN: Mapping[Kind, Any] = {
    Kind.BOOLEAN: "boolean",
    Kind.INTEGER: "int",
    Kind.BIGINT: "long",
    Kind.DOUBLE: "double",
    Kind.STRING: "string",
    Kind.BYTES: "bytes",
    **{
        kind: {
            "type": base,
            "connect.version": 1,
            "connect.name": f"org.apache.kafka.connect.data.{name}",
            "logicalType": logical,
        }
        for kind, base, name, logical in (
            (Kind.DATE, "int", "Date", "date"),
            (Kind.TIME, "int", "Time", "time-millis"),
            (Kind.TIMESTAMP, "long", "Timestamp", "timestamp-millis"),
        )
    },
}


def parse_avro(text: str, references: Sequence[tuple[str, str]] = ()) -> Any:
    """Return a schema as JSON data in which every named type is written out where it is first used, with its full name.

    Raises:
        DecodeError: not an Avro schema; the message says why.
    """
    import fastavro

    named: dict[str, Any] = {}
    try:
        for _, referred in references:
            fastavro.parse_schema(_from_text(referred), named_schemas=named)
        schema = _from_text(text)
        fastavro.parse_schema(schema, named_schemas=dict(named))
        known: dict[str, tuple[Any, str]] = {}
        for _, referred in references:
            _define(_from_text(referred), "", known)
        return _written_out(schema, "", known, set())
    except (
        fastavro.schema.SchemaParseException,
        fastavro.schema.UnknownType,
        ValueError,
        KeyError,
        TypeError,
        RecursionError,
    ) as e:
        raise DecodeError(f"not an Avro schema: {type(e).__name__}: {e} ({text[:80]!r})") from None


def _from_text(text: str) -> Any:
    """Read a schema; the name of a primitive may stand without quotes, as registries give it at times."""
    text = text.strip()
    return text if text in _PRIMITIVES else json.loads(text)


def _full_name(schema: Mapping[str, Any], namespace: str) -> str:
    name = str(schema["name"])
    outer = schema.get("namespace", namespace)
    return name if "." in name or not outer else f"{outer}.{name}"


def _define(schema: Any, namespace: str, known: dict[str, tuple[Any, str]]) -> None:
    """Take in every type that a schema defines, with the namespace that its definition stands in."""
    if isinstance(schema, list):
        for each in schema:
            _define(each, namespace, known)
    elif isinstance(schema, dict):
        kind = schema["type"]
        if kind in _NAMED:
            name = _full_name(schema, namespace)
            known[name], namespace = (schema, namespace), name.rpartition(".")[0]
        for field in schema.get("fields", ()):
            _define(field["type"], namespace, known)
        for part in ("items", "values"):
            if part in schema:
                _define(schema[part], namespace, known)
        if not isinstance(kind, str):
            _define(kind, namespace, known)


def _written_out(schema: Any, namespace: str, known: Mapping[str, tuple[Any, str]], done: set[str]) -> Any:
    """Return a schema with full names, and with the definitions of what it names and does not define itself."""
    if isinstance(schema, list):
        return [_written_out(each, namespace, known, done) for each in schema]
    if isinstance(schema, str):
        if is_primitive(schema):
            return schema
        name = schema if "." in schema or not namespace else f"{namespace}.{schema}"
        if name not in done and name not in known and schema in (done | known.keys()):
            name = schema
        return name if name in done or name not in known else _written_out(*known[name], known, done)
    out = dict(schema)
    kind = schema["type"]
    if kind in _NAMED:
        out.pop("namespace", None)
        out["name"] = name = _full_name(schema, namespace)
        namespace = name.rpartition(".")[0]
        done.add(name)
    elif kind not in ("array", "map"):
        out["type"] = _written_out(kind, namespace, known, done)
    if "fields" in schema:
        out["fields"] = [{**field, "type": _written_out(field["type"], namespace, known, done)} for field in schema["fields"]]
    for part in ("items", "values"):
        if part in schema:
            out[part] = _written_out(schema[part], namespace, known, done)
    return out


class Named:
    """The named types met so far, to find them again by full name.

    Invariant: a name is added when its definition is entered, so a type may refer to itself.
    """

    def __init__(self) -> None:
        self._found: dict[str, Any] = {}
        self.extent = Extent()

    def add(self, schema: Mapping[str, Any], namespace: str) -> tuple[str, str]:
        """Take in a definition; return its full name and the namespace inside of it."""
        name = full_name(schema, namespace)
        self._found[name] = schema
        return name, name.rpartition(".")[0]

    def get(self, name: str, namespace: str) -> Any:
        """Return the definition that a name stands for. Raises DecodeError."""
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        found = self._found.get(full, self._found.get(name))
        if found is None:
            raise DecodeError(f"the Avro schema names a type {name!r} that it does not define")
        return found


def column_type(schema: Any, *, named: Named | None = None, namespace: str = "", depth: int = 0) -> DataType:
    """Return the column type of an Avro schema.

    Raises:
        DecodeError: a type that no column can hold, such as one that contains itself.
    """
    named = Named() if named is None else named
    named.extent.enter(depth, "the Avro schema")

    def inner(each: Any, inside: str = namespace) -> DataType:
        return column_type(each, named=named, namespace=inside, depth=depth + 1)

    if isinstance(schema, list):
        branches = without_null(schema)
        if len(branches) == 1:
            return inner(branches[0])
        if not branches:
            return inner("null")
        return struct(*(Column(branch_name(each, namespace), inner(each)) for each in branches))
    if isinstance(schema, str):
        if schema == "null":
            raise DecodeError("the Avro schema holds nothing but null; columns cannot hold that")
        return _PRIMITIVES[schema] if schema in _PRIMITIVES else inner(named.get(schema, namespace))
    kind = schema["type"]
    if not isinstance(kind, str):
        return inner(kind)
    if kind in ("record", "error"):
        _, inside = named.add(schema, namespace)
        if not schema["fields"]:
            raise DecodeError(f"the Avro record {schema['name']} has no fields; columns cannot hold that")
        return struct(*(Column(field["name"], inner(field["type"], inside)) for field in schema["fields"]))
    if kind in ("enum", "fixed"):
        named.add(schema, namespace)
        if kind == "fixed" and schema["size"] < 1:
            raise DecodeError(f"the Avro type {schema['name']} has no bytes; columns cannot hold that")
    if kind == "array":
        item = inner(schema["items"])
        if not is_map(schema, named, namespace):
            return array_of(item)
        types = {column.name: column.type for column in item.fields}
        return map_of(types["key"], types["value"])
    if kind == "map":
        return map_of(STRING, inner(schema["values"]))
    return _annotated(kind, schema) or _PRIMITIVES.get(kind) or inner(named.get(kind, namespace))


def is_map(array: Mapping[str, Any], named: Named, namespace: str) -> bool:
    """Whether an array is of the entries of a map: by their mark, or by their name, as Connect's first versions wrote them."""
    entry = array["items"]
    if isinstance(entry, str) and not is_primitive(entry):
        entry = named.get(entry, namespace)
    if not isinstance(entry, dict):
        return False
    return entry.get(ENTRY_MARK, array.get(ENTRY_MARK)) == MAP_ENTRY or full_name(entry, namespace) == CONNECT_MAP_ENTRY


def _annotated(kind: str, schema: Mapping[str, Any]) -> DataType | None:
    """Return the type that a logical type or a Connect name gives to what is annotated."""
    logical = schema.get("logicalType")
    if kind in ("bytes", "fixed") and (logical == "decimal" or schema.get("connect.name") == CONNECT_DECIMAL):
        parameters = schema.get("connect.parameters", {})
        scale = int(schema.get("scale", parameters.get("scale", 0)))
        precision = int(schema.get("precision", parameters.get("connect.decimal.precision", 64)))
        return decimal(precision, scale)
    return _LOGICAL.get((kind, logical)) if logical else _CONNECT_NAMES.get(schema.get("connect.name", ""))


def required_fields(schema: Any, *, named: Named | None = None, namespace: str = "", path: str = "") -> Iterator[str]:
    """Give the paths of fields without a default, of a schema that `column_type` has a type for."""
    named = Named() if named is None else named
    if isinstance(schema, list):
        branches = without_null(schema)
        if len(branches) == 1:
            yield from required_fields(branches[0], named=named, namespace=namespace, path=path)
        return
    if isinstance(schema, str):
        if schema not in _PRIMITIVES:
            yield from required_fields(named.get(schema, namespace), named=named, namespace=namespace, path=path)
        return
    kind = schema["type"]
    if not isinstance(kind, str):
        yield from required_fields(kind, named=named, namespace=namespace, path=path)
    elif kind in ("record", "error"):
        _, inside = named.add(schema, namespace)
        for field in schema["fields"]:
            place = f"{path}.{field['name']}" if path else field["name"]
            if "default" not in field and not (isinstance(field["type"], list) and "null" in field["type"]):
                yield place
            yield from required_fields(field["type"], named=named, namespace=inside, path=place)
    elif kind in ("enum", "fixed"):
        named.add(schema, namespace)
    elif kind in ("array", "map"):
        items = schema["items" if kind == "array" else "values"]
        yield from required_fields(items, named=named, namespace=namespace, path=path)


def is_primitive(name: str) -> bool:
    """Whether a name is that of a type that nobody defines."""
    return name == "null" or (name in _PRIMITIVES and name not in _NAMED)


def without_null(branches: Sequence[Any]) -> list[Any]:
    """Return the branches of a union that are values."""
    return [each for each in branches if each != "null"]


def full_name(schema: Any, namespace: str) -> str:
    """Return the name of a type, with its namespace where it has a name of its own."""
    if isinstance(schema, str):
        return schema if is_primitive(schema) or "." in schema or not namespace else f"{namespace}.{schema}"
    if schema["type"] not in _NAMED:
        return str(schema["type"])
    name, outer = str(schema["name"]), schema.get("namespace", namespace)
    return f"{outer}.{name}" if outer and "." not in name else name


def branch_name(schema: Any, namespace: str) -> str:
    """Return the field that stands for a branch of a union: the simple name of its type."""
    return full_name(schema, namespace).rpartition(".")[2]


def avro_schema(columns: Sequence[Column], *, is_wrapped: bool, full_name: str) -> Any:
    """Return the schema that rows of these columns are written with: a record, or the one column's type.

    Raises:
        InvalidInput: names that Avro does not allow.
    """
    name = full_name or DEFAULT_FULL_NAME
    _check_name(*name.split("."))
    if not is_wrapped and len(columns) == 1:
        return _written(columns[0].type, name)
    return _record(name, columns)


def _record(name: str, columns: Sequence[Column], *, is_inner: bool = False) -> Any:
    """Return a record's schema. `is_inner`: it stands in another one, whose namespace is its own without a word."""
    namespace, _, simple = name.rpartition(".")
    fields = []
    for column in columns:
        _check_name(column.name)
        fields.append(
            {
                "name": column.name,
                "type": ["null", _written(column.type, f"{name}_{column.name}", is_inner=True)],
                "default": None,
            }
        )
    # The order of members is that of Connect's Avro data, and so is what is compared as text.
    record: dict[str, Any] = {"type": "record", "name": simple}
    if namespace and not is_inner:
        record["namespace"] = namespace
    return {**record, "fields": fields, "connect.name": name}


def _check_name(*names: str) -> None:
    for name in names:
        if not _NAME.match(name):
            what = "Illegal initial character" if not _NAME.match(name[:1]) else "Illegal character in"
            raise InvalidInput(f"Schema is not compatible with Avro: {what}: {name}")


def _written(type: DataType, name: str, *, is_inner: bool = False) -> Any:
    match type.kind:
        case Kind.STRUCT:
            return _record(name, type.fields, is_inner=is_inner)
        case Kind.DECIMAL:
            return {
                "type": "bytes",
                "scale": type.scale,
                "precision": type.precision,
                "connect.version": 1,
                "connect.parameters": {"scale": str(type.scale), "connect.decimal.precision": str(type.precision)},
                "connect.name": CONNECT_DECIMAL,
                "logicalType": "decimal",
            }
        case Kind.ARRAY:
            assert type.element is not None
            return {"type": "array", "items": ["null", _written(type.element, name, is_inner=is_inner)]}
        case Kind.MAP:
            assert type.key is not None
            assert type.element is not None
            namespace, _, simple = name.rpartition(".")
            fields = [
                {"name": "key", "type": ["null", _written(type.key, f"{name}_MapKey", is_inner=True)], "default": None},
                {"name": "value", "type": ["null", _written(type.element, f"{name}_MapValue", is_inner=True)], "default": None},
            ]
            outer = {"namespace": namespace} if namespace and not is_inner else {}
            entry = {"type": "record", "name": simple, **outer, "fields": fields, ENTRY_MARK: MAP_ENTRY}
            return {"type": "array", "items": entry, "connect.name": name}
        case _:
            return _WRITTEN[type.kind]
