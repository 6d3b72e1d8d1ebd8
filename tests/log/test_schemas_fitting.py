"""Writing with a schema that is there: what is accepted before the first row can be written, and what cannot is said at once."""

from __future__ import annotations

import io
import itertools
import json
from decimal import Decimal
from typing import Any

import fastavro
import jsonschema
import pytest

from logflume.log import InvalidInput
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
    MemoryRegistry,
    array,
    decimal,
    map_of,
    register_schema,
    serde,
    struct,
)

SAMPLES: dict[DataType, list[Any]] = {
    BOOLEAN: [True, False],
    INTEGER: [0, -(2**31), 2**31 - 1],
    BIGINT: [0, -(2**63), 2**63 - 1],
    DOUBLE: [0.5, -1e300],
    STRING: ["", "é"],
    BYTES: [b"", b"\xff\x00"],
    decimal(9, 2): [Decimal("1.25"), Decimal("-9999999.99")],
    DATE: [0, 20_000],
    TIME: [0, 86_399_999],
    TIMESTAMP: [0, 1_700_000_000_123],
}


def registered(name: str, type: DataType, registry: MemoryRegistry) -> FormatSpec:
    """Register the schema of one column; return how to write with it."""
    spec = FormatSpec(name, registry=registry.location, subject="t-value")
    register_schema(spec, (Column("A", type),))
    return FormatSpec(name, registry=registry.location, subject="t-value", uses_latest=True)


def accepted(spec: FormatSpec, columns: tuple[Column, ...], row: tuple[Any, ...]) -> bytes | None:
    """Return the bytes of a row, None where the schema is refused; a row that is refused afterwards fails the test."""
    try:
        return serde(spec, columns).encode(row)
    except InvalidInput as error:
        if "does not fit what is written" not in str(error):
            raise
        return None


@pytest.mark.parametrize("name", ["AVRO", "PROTOBUF", "JSON_SR"])
@pytest.mark.parametrize(
    "wrap", [lambda type: type, array, lambda type: map_of(STRING, type), lambda type: struct(Column("B", type))]
)
def test_what_is_accepted_can_be_written_whatever_its_value(name: str, wrap: Any) -> None:
    taken = []
    for (column, samples), field in itertools.product(SAMPLES.items(), SAMPLES):
        registry = MemoryRegistry()
        spec = registered(name, wrap(field), registry)
        for sample in samples:
            value = {"ARRAY": [sample], "MAP": {"k": sample}, "STRUCT": {"B": sample}}.get(wrap(column).kind.name, sample)
            data = accepted(spec, (Column("A", wrap(column)),), (value,))
            if data is None:
                break
            _check(name, registry, data)
        else:
            taken.append((column, field))
    assert {(each, each) for each in SAMPLES} <= set(taken)
    assert {(INTEGER, BIGINT), (INTEGER, DOUBLE), (BIGINT, DOUBLE)} <= set(taken)
    assert not {(BIGINT, INTEGER), (STRING, BIGINT), (BIGINT, STRING), (DOUBLE, BIGINT), (BOOLEAN, INTEGER)} & set(taken)


def _check(name: str, registry: MemoryRegistry, data: bytes) -> None:
    """Let somebody else say that a record is one of its schema."""
    schema = json.loads(registry.by_id(1).text) if name != "PROTOBUF" else None
    if name == "AVRO":
        source = io.BytesIO(data[5:])
        fastavro.schemaless_reader(source, schema, None)
        assert source.read() == b""
    elif name == "JSON_SR":
        jsonschema.validate(json.loads(data[5:]), schema)


AVRO_SCHEMA = (
    '{"type":"record","name":"R","fields":[{"name":"a","type":"long"},{"name":"b","type":"string"},'
    '{"name":"c","type":"int","default":1},{"name":"n","type":["null","string"]},{"name":"in","type":["null",'
    '{"type":"record","name":"I","fields":[{"name":"x","type":"long"},{"name":"y","type":"long"}]}],"default":null}]}'
)
JSON_SCHEMA = (
    '{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"},"c":{"type":"integer"},"n":{"type":"string"},'
    '"in":{"type":"object","properties":{"x":{"type":"integer"},"y":{"type":"integer"}},"required":["x","y"]}},'
    '"required":["a","b"]}'
)
PROTO_SCHEMA = """syntax = "proto2";
message R {
  required int64 a = 1;
  required string b = 2;
  optional int32 c = 3;
  optional string n = 4;
  optional I in = 5;
  message I { required int64 x = 1; required int64 y = 2; }
}
"""
SCHEMAS = {"AVRO": ("AVRO", AVRO_SCHEMA), "JSON_SR": ("JSON", JSON_SCHEMA), "PROTOBUF": ("PROTOBUF", PROTO_SCHEMA)}


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("by_id", [True, False])
def test_a_field_that_must_be_written_and_has_no_column_is_missed_at_once(name: str, by_id: bool) -> None:
    registry = MemoryRegistry()
    schema_id = registry.register("t-value", *SCHEMAS[name])
    spec = FormatSpec(name, registry=registry.location, subject="t-value", schema_id=schema_id * by_id, uses_latest=not by_id)
    a, b = Column("A", BIGINT), Column("B", STRING)
    assert serde(spec, (a, b)).encode((1, "x")) is not None
    with pytest.raises(InvalidInput, match="its field b has no default and no column"):
        serde(spec, (a,)).encode((1,))
    inner = Column("IN", struct(Column("X", BIGINT)))
    with pytest.raises(InvalidInput, match=r"its field in\.y has no default and no column"):
        serde(spec, (a, b, inner)).encode((1, "x", {"X": 1}))
    with pytest.raises(InvalidInput, match=r"the column in\.x is STRING, and the schema's field is BIGINT"):
        serde(spec, (a, b, Column("IN", struct(Column("X", STRING), Column("Y", BIGINT))))).encode((1, "x", None))


@pytest.mark.parametrize("name", SCHEMAS)
def test_rows_are_judged_one_by_one_where_that_was_said(name: str) -> None:
    registry = MemoryRegistry()
    schema_id = registry.register("t-value", *SCHEMAS[name])
    spec = FormatSpec(name, registry=registry.location, subject="t-value", schema_id=schema_id, is_strict=False)
    columns = (Column("A", BIGINT), Column("B", STRING), Column("C", BIGINT), Column("OTHER", STRING))
    writer = serde(spec, columns)
    assert writer.decode(writer.encode((1, "x", 7, "more"))) == (1, "x", 7, "more" if name == "JSON_SR" else None)
    if name != "JSON_SR":
        with pytest.raises(InvalidInput):
            writer.encode((1, "x", 2**40, None))
