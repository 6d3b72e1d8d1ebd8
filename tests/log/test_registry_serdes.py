"""confluent-kafka's own registry client and serdes (Avro, JSON Schema, Protobuf) against our registry, both directions."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pool, message_factory

from logflume.log.registry import RegistryServer
from logflume.log.registry.schemas import parse

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "total", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    ],
}
PERSON = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Person",
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
}
PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Order {
  message Line { string sku = 1; int32 count = 2; }
  int64 id = 1;
  repeated Line lines = 2;
  map<string, string> labels = 3;
  oneof paid { string card = 4; bool cash = 5; }
  google.protobuf.Timestamp at = 6;
}
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchemaRegistryClient]:
    with RegistryServer(str(tmp_path_factory.mktemp("registry") / "data"), port=0) as server:
        yield SchemaRegistryClient({"url": server.address})


@pytest.fixture
def context() -> SerializationContext:
    return SerializationContext(f"t{uuid.uuid4().hex[:8]}", MessageField.VALUE)


def test_avro_values_go_there_and_back(client: SchemaRegistryClient, context: SerializationContext) -> None:
    from decimal import Decimal

    value = {"id": 7, "note": "ü", "total": Decimal("12.30")}
    data = AvroSerializer(client, json.dumps(ORDER))(value, context)
    assert data is not None
    assert AvroDeserializer(client)(data, context) == value
    latest = client.get_latest_version(f"{context.topic}-value")
    assert latest.schema_id == int.from_bytes(data[1:5], "big")
    assert json.loads(latest.schema.schema_str) == ORDER


def test_json_values_go_there_and_back(client: SchemaRegistryClient, context: SerializationContext) -> None:
    value = {"name": "Ada", "age": 36}
    data = JSONSerializer(json.dumps(PERSON), client)(value, context)
    assert JSONDeserializer(None, schema_registry_client=client)(data, context) == value
    assert client.get_latest_version(f"{context.topic}-value").schema.schema_type == "JSON"


def _order_class() -> Any:
    schema = parse("PROTOBUF", PROTO).tree
    pool = descriptor_pool.DescriptorPool()
    for file in (*schema.imports, schema.file):
        file.name = "shop/order.proto" if file is schema.file else file.name
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


def test_protobuf_values_go_there_and_back(client: SchemaRegistryClient, context: SerializationContext) -> None:
    order = _order_class()
    value = order(id=7, lines=[order.Line(sku="a", count=2)], labels={"k": "v"}, card="visa")
    data = ProtobufSerializer(order, client, {"use.deprecated.format": False})(value, context)
    assert ProtobufDeserializer(order, {"use.deprecated.format": False}, client)(data, context) == value
    found = client.get_latest_version(f"{context.topic}-value").schema
    assert found.schema_type == "PROTOBUF"
    assert "map<string, string> labels = 3;" in found.schema_str
    assert parse("PROTOBUF", PROTO).text == found.schema_str, "the same text from a descriptor as from the source"


def test_the_client_manages_subjects_versions_and_settings(client: SchemaRegistryClient) -> None:
    subject = f"s{uuid.uuid4().hex[:8]}"
    id_ = client.register_schema(subject, Schema(json.dumps(ORDER), "AVRO"))
    assert client.lookup_schema(subject, Schema(json.dumps(ORDER), "AVRO")).schema_id == id_
    wider = {**ORDER, "fields": [*ORDER["fields"], {"name": "x", "type": "int", "default": 0}]}  # type: ignore[misc]
    assert client.test_compatibility(subject, Schema(json.dumps(wider), "AVRO"))
    assert not client.test_compatibility(subject, Schema('"string"', "AVRO"))
    client.register_schema(subject, Schema(json.dumps(wider), "AVRO"))
    assert client.get_versions(subject) == [1, 2]
    assert client.set_compatibility(subject, "FULL_TRANSITIVE")
    assert client.get_compatibility(subject) == "FULL_TRANSITIVE"
    assert client.delete_version(subject, 1) == 1
    assert client.delete_subject(subject) == [2]
    with pytest.raises(SchemaRegistryError) as refused:
        client.get_version(subject, 1)
    assert (refused.value.http_status_code, refused.value.error_code) == (404, 40401)


@pytest.mark.parametrize(
    ("type_", "base", "user", "name"),
    [
        ("AVRO", '{"type":"enum","name":"Color","symbols":["RED"]}', '{"type":"array","items":"Color"}', "Color"),
        ("JSON", '{"type":"string","maxLength":3}', '{"type":"object","properties":{"c":{"$ref":"code.json"}}}', "code.json"),
        (
            "PROTOBUF",
            'syntax="proto3"; message C { int32 a = 1; }',
            'syntax="proto3"; import "c.proto"; message U { C c = 1; }',
            "c.proto",
        ),
    ],
)
def test_references_of_each_language(client: SchemaRegistryClient, type_: str, base: str, user: str, name: str) -> None:
    subject = f"s{uuid.uuid4().hex[:8]}"
    client.register_schema(f"{subject}-base", Schema(base, type_))
    with pytest.raises(SchemaRegistryError) as refused:
        client.register_schema(subject, Schema(user, type_))
    assert refused.value.error_code == 42201
    id_ = client.register_schema(subject, Schema(user, type_, [SchemaReference(name, f"{subject}-base", 1)]))
    assert client.get_schema(id_).references[0].name == name
