"""The formats with a schema registry, against fastavro and protobuf: what they write we read, and the other way round."""

from __future__ import annotations

import io
import json
import random
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logflume.log import DecodeError, InvalidInput
from logflume.log.schemas import (
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
    FormatSpec,
    Kind,
    MemoryRegistry,
    RegisteredSchema,
    RegistryUnavailable,
    SchemaNotFound,
    array,
    decimal,
    map_of,
    registry_at,
    schema_type,
    serde,
    struct,
)
from logflume.log.schemas.registries import Reference

FRAMED = ("AVRO", "JSON_SR", "PROTOBUF")
SCALARS: dict[DataType, st.SearchStrategy[Any]] = {
    BOOLEAN: st.booleans(),
    INTEGER: st.integers(-(2**31), 2**31 - 1),
    BIGINT: st.integers(-(2**63), 2**63 - 1),
    DOUBLE: st.floats(allow_nan=False, allow_infinity=False),
    STRING: st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    BYTES: st.binary(max_size=12),
    decimal(9, 3): st.decimals(-999999, 999999, places=3),
    DATE: st.integers(-200_000, 2_000_000),
    TIME: st.integers(0, 86_399_999),
    TIMESTAMP: st.integers(-60_000_000_000_000, 250_000_000_000_000),
}


def values(type: DataType) -> st.SearchStrategy[Any]:
    """Return values of a type that are not null."""
    match type.kind:
        case Kind.ARRAY:
            assert type.element is not None
            return st.lists(values(type.element), max_size=4)
        case Kind.MAP:
            assert type.element is not None
            return st.dictionaries(SCALARS[STRING], values(type.element), max_size=4)
        case Kind.STRUCT:
            return st.fixed_dictionaries({field.name: values(field.type) for field in type.fields})
    return SCALARS[type]


def types(depth: int = 2) -> st.SearchStrategy[DataType]:
    scalars = st.sampled_from(list(SCALARS))
    if depth == 0:
        return scalars
    inner = types(depth - 1)
    structs = st.lists(inner, min_size=1, max_size=3).map(
        lambda found: struct(*(Column(f"F{i}", t) for i, t in enumerate(found)))
    )
    # Protobuf has no lists of lists.
    items = st.one_of(scalars, structs)
    return st.one_of(scalars, structs, items.map(array), items.map(lambda t: map_of(STRING, t)))


@st.composite
def rows(draw: st.DrawFn) -> tuple[tuple[Column, ...], tuple[Any, ...]]:
    columns = tuple(Column(f"C{i}", type) for i, type in enumerate(draw(st.lists(types(), min_size=1, max_size=4))))
    return columns, tuple(draw(values(column.type)) for column in columns)


@given(rows())
@settings(max_examples=60, deadline=None)
def test_rows_come_back_as_they_were_and_the_registry_knows_their_type(case: tuple[tuple[Column, ...], tuple[Any, ...]]) -> None:
    columns, row = case
    registry = MemoryRegistry()
    for name in ("AVRO", "JSON_SR"):
        spec = FormatSpec(name, registry=registry.location, subject=f"{name}-value")
        format = serde(spec, columns)
        encoded = format.encode(row)
        assert format.decode(encoded) == row
        assert schema_type(spec) == struct(*columns)
        assert encoded is not None
        assert encoded[:1] == b"\x00"


@given(rows())
@settings(max_examples=12, deadline=None)  # each schema is compiled by protoc
def test_protobuf_rows_come_back_as_they_were(case: tuple[tuple[Column, ...], tuple[Any, ...]]) -> None:
    columns, row = case
    registry = MemoryRegistry()
    spec = FormatSpec("PROTOBUF", registry=registry.location, subject="t-value", nullables="OPTIONAL")
    format = serde(spec, columns)
    assert format.decode(format.encode(row)) == row
    assert schema_type(spec) == struct(*columns)


@given(rows())
@settings(max_examples=60, deadline=None)
def test_fastavro_reads_what_is_written(case: tuple[tuple[Column, ...], tuple[Any, ...]]) -> None:
    columns, row = case
    registry = MemoryRegistry()
    encoded = serde(FormatSpec("AVRO", registry=registry.location, subject="t-value"), columns).encode(row)
    assert encoded is not None
    schema = fastavro.parse_schema(json.loads(registry.latest("t-value").text))
    source = io.BytesIO(encoded[5:])
    found = fastavro.schemaless_reader(source, schema, None)
    assert source.read() == b""
    for column, value in zip(columns, row, strict=True):
        if column.type in (BOOLEAN, INTEGER, BIGINT, DOUBLE, STRING, BYTES) or column.type.kind is Kind.DECIMAL:
            assert found[column.name] == value


FOREIGN_AVRO = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "small", "type": "int"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}},
        {"name": "fixed_price", "type": {
            "type": "fixed", "name": "F4", "size": 4, "logicalType": "decimal", "precision": 8, "scale": 1}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "micros", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "tags", "type": {"type": "map", "values": ["null", "string"]}, "default": {}},
        {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "Line", "fields": [
            {"name": "sku", "type": "string"}, {"name": "of", "type": ["null", "State"], "default": None}]}}},
        {"name": "first", "type": ["null", "Line"]},
        {"name": "either", "type": ["null", "string", "long"]},
    ],
}  # fmt: skip


def avro_bytes(schema: Any, value: Any, schema_id: int) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return b"\x00" + schema_id.to_bytes(4, "big") + out.getvalue()


def test_a_foreign_avro_record_becomes_columns() -> None:
    registry = MemoryRegistry()
    schema_id = registry.register("orders-value", "AVRO", json.dumps(FOREIGN_AVRO))
    spec = FormatSpec("AVRO", registry=registry.location, subject="orders-value")
    type = schema_type(spec)
    assert str(type) == (
        "STRUCT<id BIGINT, small INTEGER, price DECIMAL(8, 2), fixed_price DECIMAL(8, 1), state STRING, at TIMESTAMP, "
        "micros BIGINT, tags MAP<STRING, STRING>, lines ARRAY<STRUCT<sku STRING, of STRING>>, "
        "first STRUCT<sku STRING, of STRING>, either STRUCT<string STRING, long BIGINT>>"
    )
    value = {
        "id": 7, "small": 1, "price": Decimal("12.30"), "fixed_price": Decimal("-0.5"), "state": "PAID", "at": 1_700_000_000_123,
        "micros": 5, "tags": {"a": None, "b": "x"}, "lines": [{"sku": "s", "of": "NEW"}, {"sku": "t", "of": None}], "first": None,
        "either": 12,
    }  # fmt: skip
    data = avro_bytes(FOREIGN_AVRO, value, schema_id)
    row = serde(spec, type.fields).decode(data)
    assert row is not None
    assert dict(zip([f.name for f in type.fields], row, strict=True)) == value | {"either": {"string": None, "long": 12}}
    some = serde(spec, [Column("STATE", STRING), Column("ID", STRING), Column("MISSING", BIGINT)])
    assert some.decode(data) == ("PAID", "7", None)


@pytest.mark.parametrize(
    ("written", "value", "type", "read"),
    [
        ("double", 1e7, STRING, "1.0E7"),
        ("double", 0.1, STRING, "0.1"),
        ("float", 0.1, STRING, "0.1"),
        ("float", 3.4028234663852886e38, STRING, "3.4028235E38"),
        ("float", 1.401298464324817e-45, STRING, "1.4E-45"),
        ("float", 0.1, DOUBLE, 0.10000000149011612),
        ("int", 5, TIMESTAMP, 5),
        ("int", 5, TIME, 5),
        ({"type": "int", "logicalType": "date"}, 5, STRING, "5"),
        ({"type": "long", "logicalType": "timestamp-millis"}, 5, BIGINT, 5),
    ],
)
def test_avro_is_read_as_the_column_says(written: Any, value: Any, type: DataType, read: Any) -> None:
    registry = MemoryRegistry()
    schema = {"type": "record", "name": "R", "fields": [{"name": "V", "type": written}]}
    schema_id = registry.register("t-value", "AVRO", json.dumps(schema))
    reader = serde(FormatSpec("AVRO", registry=registry.location, subject="t-value"), [Column("V", type)])
    assert reader.decode(avro_bytes(schema, {"V": value}, schema_id)) == (read,)


def test_a_map_is_an_array_of_entries_named_as_connect_names_them() -> None:
    registry = MemoryRegistry()
    spec = FormatSpec("AVRO", registry=registry.location, subject="t-value")
    serde(spec, [Column("M", map_of(STRING, struct(Column("X", BIGINT))))]).encode(({"k": {"X": 1}},))
    union = json.loads(registry_at(registry.location).latest("t-value").text)["fields"][0]["type"]
    assert union[1]["connect.name"] == "io.confluent.ksql.avro_schemas.KsqlDataSourceSchema_M"
    entry = union[1]["items"]
    assert (entry["name"], entry["connect.internal.type"]) == ("KsqlDataSourceSchema_M", "MapEntry")
    assert entry["fields"][1]["type"][1]["name"] == "KsqlDataSourceSchema_M_MapValue"


@pytest.mark.parametrize(
    "sign", [{"name": "E", "connect.internal.type": "MapEntry"}, {"name": "MapEntry", "namespace": "io.confluent.connect.avro"}]
)
def test_the_keys_of_a_map_are_read_as_text(sign: dict[str, Any]) -> None:
    registry = MemoryRegistry()
    fields = [{"name": "key", "type": "int"}, {"name": "value", "type": "string"}]
    entry = {"type": "record", "fields": fields, **sign}
    schema = {"type": "record", "name": "R", "fields": [{"name": "V", "type": {"type": "array", "items": entry}}]}
    schema_id = registry.register("t-value", "AVRO", json.dumps(schema))
    spec = FormatSpec("AVRO", registry=registry.location, subject="t-value")
    assert str(schema_type(spec)) == "STRUCT<V MAP<INTEGER, STRING>>"
    reader = serde(spec, [Column("V", map_of(STRING, STRING))])
    assert reader.decode(avro_bytes(schema, {"V": [{"key": 7, "value": "x"}]}, schema_id)) == ({"7": "x"},)


MOMENTS_PROTO = """syntax = "proto3";
import "google/protobuf/timestamp.proto";
import "google/type/date.proto";
import "google/type/timeofday.proto";
message Moments {
  google.protobuf.Timestamp at = 1;
  google.type.Date day = 2;
  google.type.TimeOfDay time = 3;
  int32 days = 4;
  int64 ms = 5;
  map<bool, int32> flags = 6;
  double far = 7;
  float near = 8;
}
"""


@pytest.mark.parametrize("kind", [STRING, BIGINT])
def test_protobuf_is_read_as_the_column_says(kind: DataType) -> None:
    from google.protobuf import message_factory

    from logflume.log.schemas.proto_compiler import compile_proto
    from logflume.log.schemas.proto_schema import messages_of

    registry = MemoryRegistry()
    schema_id = registry.register("t-value", "PROTOBUF", MOMENTS_PROTO)
    file, _ = messages_of(compile_proto(MOMENTS_PROTO))
    message: Any = message_factory.GetMessageClass(file.message_types_by_name["Moments"])()
    message.at.FromMilliseconds(1_700_000_000_123)
    message.day.year, message.day.month, message.day.day = 1970, 1, 8
    message.time.seconds, message.days, message.ms, message.far, message.near = 3, 7, 9, 1e7, 0.1
    message.flags[True] = 1
    columns = [
        *(Column(name, kind) for name in ("at", "day", "time")),
        Column("days", DATE), Column("ms", TIMESTAMP), Column("flags", map_of(STRING, INTEGER)), Column("far", STRING),
        Column("near", STRING),
    ]  # fmt: skip
    reader = serde(FormatSpec("PROTOBUF", registry=registry.location, subject="t-value"), columns)
    row = reader.decode(b"\x00" + schema_id.to_bytes(4, "big") + b"\x00" + message.SerializeToString())
    moments = (1_700_000_000_123, 7, 3000)
    expected = tuple(map(str, moments)) if kind is STRING else moments
    assert row == (*expected, 7, 9, {"true": 1}, "1.0E7", "0.1")


def test_each_record_is_read_with_the_schema_it_was_written_with() -> None:
    registry = MemoryRegistry()
    old = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    new = {"type": "record", "name": "R", "fields": [{"name": "b", "type": "string"}, {"name": "A", "type": "long"}]}
    ids = [registry.register("t-value", "AVRO", json.dumps(each)) for each in (old, new)]
    reader = serde(FormatSpec("AVRO", registry=registry.location, subject="t-value"), [Column("A", BIGINT), Column("B", STRING)])
    assert reader.decode(avro_bytes(old, {"a": 3}, ids[0])) == (3, None)
    assert reader.decode(avro_bytes(new, {"b": "x", "A": 4}, ids[1])) == (4, "x")


def test_a_null_is_written_as_the_default_where_the_schema_takes_no_null() -> None:
    registry = MemoryRegistry()
    inner = {
        "type": "record",
        "name": "I",
        "fields": [{"name": "N", "type": "long", "default": 10}, {"name": "S", "type": "string"}],
    }
    either = {"name": "E", "type": ["string", "null"], "default": "some"}
    fields = [{"name": "V", "type": "int", "default": 3}, either, {"name": "D", "type": inner}]
    schema = {"type": "record", "name": "R", "fields": fields}
    schema_id = registry.register("t-value", "AVRO", json.dumps(schema))
    spec = FormatSpec("AVRO", registry=registry.location, subject="t-value", schema_id=schema_id)
    columns = [Column("V", INTEGER), Column("E", STRING), Column("D", struct(Column("N", BIGINT), Column("S", STRING)))]
    writer = serde(spec, columns)
    assert writer.decode(writer.encode((None, None, {"N": None, "S": "x"}))) == (3, None, {"N": 10, "S": "x"})
    with pytest.raises(InvalidInput, match="S"):
        writer.encode((1, "e", {"N": 1, "S": None}))


FOREIGN_PROTO = """syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message Other { int32 x = 1; }
message Order {
  enum State { NEW = 0; PAID = 4; }
  message Line { string sku = 1; uint32 count = 2; }
  fixed64 id = 1;
  State state = 2;
  map<string, Line> lines = 3;
  map<int32, double> rates = 4;
  oneof who { string name = 5; int64 number = 6; }
  google.protobuf.Timestamp at = 7;
  google.protobuf.StringValue note = 8;
  repeated Line more = 9;
  float ratio = 10;
}
"""


def test_a_foreign_protobuf_message_becomes_columns() -> None:
    from google.protobuf import message_factory

    from logflume.log.schemas.proto_compiler import compile_proto
    from logflume.log.schemas.proto_schema import messages_of

    registry = MemoryRegistry()
    schema_id = registry.register("orders-value", "PROTOBUF", FOREIGN_PROTO)
    spec = FormatSpec("PROTOBUF", registry=registry.location, subject="orders-value", full_name="shop.Order")
    type = schema_type(spec)
    assert str(type) == (
        "STRUCT<who_0 STRUCT<name STRING, number BIGINT>, id BIGINT, state STRING, "
        "lines MAP<STRING, STRUCT<sku STRING, count BIGINT>>, rates MAP<INTEGER, DOUBLE>, "
        "at TIMESTAMP, note STRING, more ARRAY<STRUCT<sku STRING, count BIGINT>>, ratio DOUBLE>"
    )
    file, _ = messages_of(compile_proto(FOREIGN_PROTO))
    message: Any = message_factory.GetMessageClass(file.message_types_by_name["Order"])()
    message.id, message.state, message.name, message.ratio = 7, 4, "ann", 1.5
    message.lines["a"].sku = "s"
    message.rates[3] = 0.25
    message.at.FromMilliseconds(1_700_000_000_123)
    message.more.add(sku="t", count=2**32 - 1)
    data = b"\x00" + schema_id.to_bytes(4, "big") + b"\x02\x02" + message.SerializeToString()
    columns = [c for c in type.fields if c.name != "rates"]
    row = serde(spec, columns).decode(data)
    assert row == (
        {"name": "ann", "number": None}, 7, "PAID", {"a": {"sku": "s", "count": 0}}, 1_700_000_000_123, None,
        [{"sku": "t", "count": 2**32 - 1}], 1.5,
    )  # fmt: skip
    written = serde(FormatSpec("PROTOBUF", registry=registry.location, schema_id=schema_id, full_name="Order"), columns).encode(
        row
    )
    assert written is not None
    assert written.startswith(data[:7])
    message.ClearField("rates")
    assert type_of(message).FromString(written[7:]) == message


def type_of(message: Any) -> Any:
    return type(message)


@pytest.mark.parametrize(
    ("key", "written", "read"),
    [
        ({"type": "string"}, [{"key": "a", "value": [{"key": "b", "value": 1}]}], {"a": {"b": 1}}),
        ({"type": "integer"}, [{"key": 7, "value": []}, {"key": None, "value": None}], {"7": {}, "null": None}),
        ({"type": "string"}, {"a": {"b": 1}}, {"a": {"b": 1}}),
    ],
)
def test_a_map_in_json_may_be_a_list_of_entries(key: Any, written: Any, read: Any) -> None:
    def entries(of: Any) -> Any:
        return {"type": "array", "connect.type": "map", "items": {"type": "object", "properties": {"key": key, "value": of}}}

    registry = MemoryRegistry()
    schema = {"type": "object", "properties": {"m": {"oneOf": [{"type": "null"}, entries(entries({"type": "integer"}))]}}}
    registry.register("t-value", "JSON", json.dumps(schema))
    columns = [Column("m", map_of(STRING, map_of(STRING, BIGINT)))]
    both = serde(FormatSpec("JSON_SR", registry=registry.location, subject="t-value", uses_latest=True), columns)
    assert both.decode(b"\0\0\0\0\1" + json.dumps({"m": written}).encode()) == (read,)
    if key["type"] == "string":
        data = both.encode((read,))
        assert data is not None
        assert json.loads(data[5:])["m"][0]["key"] == "a"
        assert both.decode(data) == (read,)


@pytest.mark.parametrize(
    ("reference", "name", "definition"),
    [
        ("place.json", "place.json", {}),
        ("place.json#/$defs/p", "place.json", {}),
        ("place.json#p", "place.json", {"$anchor": "p"}),
        ("http://shop/place.json", "place.json", {}),
        ("place.json", "http://shop/place.json", {}),
        ("http://other/p.json", "place.json", {"$id": "http://other/p.json"}),
        ("p.json", "place.json", {"$id": "p.json"}),
    ],
)
def test_what_a_json_schema_refers_to_is_found_as_uris_are(reference: str, name: str, definition: dict[str, str]) -> None:
    registry = MemoryRegistry()
    place = {"$ref": "#/$defs/p", "$defs": {"p": {"oneOf": [{"type": "null"}, {"$ref": "#/$defs/q/anyOf/0"}], **definition},
        "q": {"anyOf": [{"properties": {"street": {"type": "string"}}}]}}}  # fmt: skip
    registry.register("place", "JSON", json.dumps(place))
    order = {"$id": "http://shop/order.json", "type": "object", "properties": {"to": {"$ref": reference}}}
    registry.register("t-value", "JSON", json.dumps(order), references=[Reference(name, "place", 1)])
    spec = FormatSpec("JSON_SR", registry=registry.location, subject="t-value")
    assert str(schema_type(spec)) == "STRUCT<to STRUCT<street STRING>>"


@pytest.mark.parametrize(
    "schema",
    [
        '{"$id": "http://shop/s", "$ref": "http://["}',
        '{"not": ' * 3000 + "{}" + "}" * 3000,
        '{"$ref": 7}',
        '{"properties": []}',
        '{"properties": {"a": {"allOf": 5}}}',
        '{"items": {"oneOf": {}}}',
        '{"$defs": {"d": {"anyOf": "x"}}}',
        '{"type": "array", "connect.type": "map"}',
        '{"type": "array", "connect.type": "map", "items": {"properties": {"key": {}}}}',
    ],
)
def test_a_json_schema_that_cannot_be_followed_is_refused(schema: str) -> None:
    registry = MemoryRegistry()
    registry.register("t-value", "JSON", schema)
    with pytest.raises(DecodeError, match="not a JSON Schema"):
        schema_type(FormatSpec("JSON_SR", registry=registry.location, subject="t-value"))


def test_a_json_schema_may_refer_to_others() -> None:
    registry = MemoryRegistry()
    registry.register("zip", "JSON", '{"$defs": {"code": {"type": "integer"}}}')
    fields = {"zip": {"$ref": "a/zip.json#/$defs/code"}, "street": {"$ref": "#/$defs/s"}}
    place = {"properties": fields, "$defs": {"s": {"type": "string"}}}
    registry.register("place", "JSON", json.dumps(place), references=[Reference("a/zip.json", "zip", 1)])
    fields = {"to": {"$ref": "place.json"}, "n": {"$ref": "#/$defs/s"}}
    order = {"type": "object", "required": ["to"], "properties": fields, "$defs": {"s": {"type": "number"}}}
    registry.register("t-value", "JSON", json.dumps(order), references=[Reference("place.json", "place", 1)])
    spec = FormatSpec("JSON_SR", registry=registry.location, subject="t-value", uses_latest=True)
    type = schema_type(spec)
    assert str(type) == "STRUCT<to STRUCT<zip BIGINT, street STRING>, n DOUBLE>"
    data = serde(spec, type.fields).encode(({"zip": 7, "street": "s"}, 1.5))
    assert data is not None
    assert serde(spec, type.fields).decode(data) == ({"zip": 7, "street": "s"}, 1.5)
    with pytest.raises(InvalidInput, match="its field to has no default and no column"):
        serde(spec, type.fields[1:]).encode((1.5,))


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        ('{"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "number"}}}', "STRUCT<b BIGINT, a DOUBLE>"),
        (
            '{"type": "object", "properties": {"b": {"type": "string", "connect.index": 1}, "a": {"$ref": "#/$defs/x", '
            '"connect.index": 0}}, "$defs": {"x": {"type": ["null", "boolean"]}}}',
            "STRUCT<a BOOLEAN, b STRING>",
        ),
        (
            '{"type": "array", "items": {"type": "object", "additionalProperties": {"type": "string"}}}',
            "ARRAY<MAP<STRING, STRING>>",
        ),
        ('{"enum": ["a", "b"]}', "STRING"),
        ('{"enum": [1, 2], "type": "integer"}', "BIGINT"),
        (
            '{"allOf": [{"$ref": "#/$defs/x"}, {"properties": {"b": {"const": "k", "type": "string"}}}], "anyOf": [{"required": '
            '["a"]}, {"required": ["b"]}], "$defs": {"x": {"properties": {"a": {"type": "number"}}}}}',
            "STRUCT<a DOUBLE, b STRING>",
        ),
        ('{"oneOf": [{"type": "null"}, {"type": "string", "connect.type": "bytes"}]}', "BYTES"),
    ],
)
def test_a_json_schema_becomes_columns(schema: str, shown: str) -> None:
    registry = MemoryRegistry()
    registry.register("t-value", "JSON", schema)
    assert str(schema_type(FormatSpec("JSON_SR", registry=registry.location, subject="t-value"))) == shown


@pytest.mark.parametrize(
    ("name", "schema"),
    [
        ("AVRO", '{"type": "record", "name": "R", "fields": [{"name": "next", "type": ["null", "R"]}]}'),
        ("AVRO", '{"type": "array", "items": "null"}'),
        ("AVRO", '{"type": "array", "items": {"type": "record", "name": "Empty", "fields": []}}'),
        ("AVRO", '{"type": "nothing"}'),
        ("AVRO", "[" * 5000),
        ("JSON_SR", '{"$ref": "#"}'),
        ("JSON_SR", '{"$ref": "#/nowhere"}'),
        ("JSON_SR", "true"),
        ("JSON_SR", "[" * 100_000),
        ("PROTOBUF", 'syntax = "proto3"; message R { R next = 1; }'),
        ("PROTOBUF", "message"),
        ("PROTOBUF", 'syntax = "proto3"; import "../../etc/passwd"; message R { int32 x = 1; }'),
    ],
)
def test_schemas_that_columns_cannot_hold_are_refused(name: str, schema: str) -> None:
    registry = MemoryRegistry()
    registry.register("t-value", {"JSON_SR": "JSON"}.get(name, name), schema)
    with pytest.raises(InvalidInput):
        schema_type(FormatSpec(name, registry=registry.location, subject="t-value"))


COLUMNS = (Column("A", BIGINT), Column("B", array(STRING)), Column("C", struct(Column("D", map_of(STRING, DOUBLE)))))


@pytest.mark.parametrize("name", [*FRAMED, "PROTOBUF_NOSR"])
def test_broken_payloads_give_an_error_or_a_row(name: str) -> None:
    registry = MemoryRegistry()
    format = serde(FormatSpec(name, registry=registry.location, subject="t-value"), COLUMNS)
    good = format.encode((5, ["x", "yy"], {"D": {"k": 1.5}}))
    assert good is not None
    dice = random.Random(7)
    refused = 0
    for _ in range(34_000):
        broken = bytearray(good)
        for _ in range(dice.randint(1, 3)):
            broken[dice.randrange(len(broken))] = dice.randrange(256)
        data = bytes(broken[: dice.randint(0, len(broken))]) if dice.random() < 0.5 else bytes(broken)
        try:
            row = format.decode(data)
        except DecodeError:
            refused += 1
        else:
            assert row is None or len(row) == len(COLUMNS)
    assert refused > 3_400


@pytest.mark.parametrize("name", [*FRAMED, "PROTOBUF_NOSR"])
def test_a_list_of_dates_may_hold_nulls(name: str) -> None:
    registry = MemoryRegistry()
    format = serde(FormatSpec(name, registry=registry.location, subject="t-value"), (Column("A", array(DATE)),))
    assert format.decode(format.encode(([None, 20_000, None],))) == ([None, 20_000, None],)


@pytest.mark.parametrize("name", FRAMED)
def test_what_is_not_framed_or_not_registered_says_so(name: str) -> None:
    registry = MemoryRegistry()
    format = serde(FormatSpec(name, registry=registry.location, subject="t-value"), COLUMNS)
    with pytest.raises(DecodeError, match="without a schema registry"):
        format.decode(b'{"A":1}')
    with pytest.raises(SchemaNotFound, match="9"):
        format.decode(b"\x00\x00\x00\x00\x09\x00\x00")
    other = registry.put("other", RegisteredSchema(0, "JSON" if name != "JSON_SR" else "AVRO", '"string"'))
    with pytest.raises(DecodeError, match=f"expected {'JSON' if name == 'JSON_SR' else name}"):
        format.decode(b"\x00" + other.to_bytes(4, "big") + b"\x00\x00")
    with pytest.raises(InvalidInput, match="needs a schema registry"):
        serde(FormatSpec(name), COLUMNS)


def test_a_registry_that_does_not_answer_is_no_broken_record() -> None:
    format = serde(FormatSpec("AVRO", registry="http://127.0.0.1:9", subject="t-value"), COLUMNS)
    with pytest.raises(RegistryUnavailable) as caught:
        format.decode(b"\x00\x00\x00\x00\x01\x00")
    assert caught.value.is_retriable
    assert not isinstance(caught.value, DecodeError)


def test_a_mock_registry_is_shared_by_its_name_while_somebody_holds_it() -> None:
    first = registry_at("mock://shared")
    first.register("s", "AVRO", '"string"')
    assert registry_at("mock://shared").latest("s").text == '"string"'
    del first
    with pytest.raises(SchemaNotFound):
        registry_at("mock://shared").latest("s")


def _avro_doubling(levels: int) -> str:
    schema: object = "string"
    for level in range(levels):
        name = f"L{level}"
        schema = {
            "type": "record",
            "name": name,
            "fields": [{"name": "a", "type": schema}, {"name": "b", "type": _again(schema)}],
        }
    return json.dumps(schema)


def _again(schema: object) -> object:
    return schema["name"] if isinstance(schema, dict) else schema


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("AVRO", "AVRO", _avro_doubling(40)),
        ("AVRO", "AVRO", '{"type":"array","items":{"type":"fixed","name":"F","size":0}}'),
        (
            "JSON_SR",
            "JSON",
            json.dumps(
                {
                    "$ref": "#/d/L40",
                    "d": {"L0": {"type": "string"}}
                    | {
                        f"L{n}": {"type": "object", "properties": {side: {"$ref": f"#/d/L{n - 1}"} for side in "ab"}}
                        for n in range(1, 41)
                    },
                }
            ),
        ),
        (
            "PROTOBUF",
            "PROTOBUF",
            'syntax = "proto3";'
            + "".join(f"message L{n} {{ L{n + 1} a = 1; L{n + 1} b = 2; }}" for n in range(40))
            + "message L40 { string a = 1; }",
        ),
    ],
)
def test_a_schema_that_stands_for_endless_types_is_refused(name: str, kind: str, text: str) -> None:
    registry = MemoryRegistry()
    registry.put("s", RegisteredSchema(0, kind, text))
    with pytest.raises(DecodeError, match="columns cannot hold that"):
        schema_type(FormatSpec(name, registry=registry.location, subject="s"))


def test_a_schema_may_name_types_of_its_references_in_any_namespace() -> None:
    fields = [{"name": "CENTS", "type": "long"}, {"name": "IN", "type": "Unit"}]
    money = json.dumps({"type": "record", "name": "Money", "namespace": "shop", "fields": fields})
    unit = '{"type":"enum","name":"Unit","namespace":"shop","symbols":["EUR","USD"]}'
    text = json.dumps(
        {
            "type": "record",
            "name": "Order",
            "namespace": "web",
            "fields": [{"name": "PRICE", "type": "shop.Money"}, {"name": "FEE", "type": ["null", "shop.Money"]}],
        }
    )
    registry = MemoryRegistry()
    registry.put("orders", RegisteredSchema(0, "AVRO", text, texts=(("unit", unit), ("money", money))))
    price = struct(Column("CENTS", BIGINT), Column("IN", STRING))
    columns = (Column("PRICE", price), Column("FEE", price))
    spec = FormatSpec("AVRO", registry=registry.location, subject="orders", uses_latest=True)
    row = ({"CENTS": 1200, "IN": "EUR"}, {"CENTS": 7, "IN": "USD"})
    assert schema_type(spec).fields == columns
    assert serde(spec, columns).decode(serde(spec, columns).encode(row)) == row


@pytest.mark.parametrize("name", FRAMED)
def test_decimals_keep_all_of_their_digits(name: str) -> None:
    registry = MemoryRegistry()
    columns = (Column("A", decimal(38, 2)), Column("B", array(decimal(38, 0))))
    row = (Decimal(f"-1{'0' * 33}12.34"), [Decimal("9" * 38)])
    format = serde(FormatSpec(name, registry=registry.location, subject="s"), columns)
    assert format.decode(format.encode(row)) == row


def test_a_decimal_is_not_cut_to_the_scale_of_a_schema() -> None:
    registry = MemoryRegistry()
    type = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 1}
    text = json.dumps({"type": "record", "name": "R", "fields": [{"name": "A", "type": type}]})
    schema_id = registry.put("s", RegisteredSchema(0, "AVRO", text))
    format = serde(
        FormatSpec("AVRO", registry=registry.location, subject="s", schema_id=schema_id), (Column("A", decimal(9, 3)),)
    )
    assert format.decode(format.encode((Decimal("1.200"),))) == (Decimal("1.200"),)
    with pytest.raises(InvalidInput, match="more than 1 digits behind the point"):
        format.encode((Decimal("1.239"),))
