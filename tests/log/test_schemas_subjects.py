"""Under which subject the schema of what is written stands, which schema is written with, and what can be read into a class."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from logflume.log import InvalidInput, UnknownName
from logflume.log.registry import RegistryServer
from logflume.log.schemas import (
    BIGINT,
    DOUBLE,
    STRING,
    Column,
    FormatSpec,
    FrameSplitter,
    MemoryRegistry,
    SchemaNotFound,
    array,
    check_readable,
    default_registry,
    frame_schema_id,
    framed_by_headers,
    of_topic,
    register_schema,
    registry_at,
    schema_type,
    serde,
)

COLUMNS = (Column("ID", BIGINT), Column("NAME", STRING))
FRAMED = ("AVRO", "JSON_SR", "PROTOBUF")
WIDER = {
    "AVRO": json.dumps(
        {
            "type": "record",
            "name": "Order",
            "fields": [
                {"name": "ID", "type": "long"},
                {"name": "NAME", "type": "string"},
                {"name": "NOTE", "type": ["null", "string"], "default": None},
            ],
        }
    ),
    "JSON": '{"type":"object","properties":{"ID":{"type":"integer"},"NAME":{"type":"string"},"NOTE":{"type":"string"}}}',
    "PROTOBUF": 'syntax = "proto3"; message Order { int64 ID = 3; string NAME = 7; string NOTE = 9; }',
}
KINDS = {"AVRO": "AVRO", "JSON_SR": "JSON", "PROTOBUF": "PROTOBUF"}


@pytest.mark.parametrize("name", FRAMED)
@pytest.mark.parametrize(
    ("naming", "subject"), [("TOPIC", "orders-value"), ("RECORD", "shop.Order"), ("TOPIC_RECORD", "orders-shop.Order")]
)
def test_a_subject_is_named_by_topic_by_record_or_by_both(name: str, naming: str, subject: str) -> None:
    registry = MemoryRegistry()
    spec = of_topic(FormatSpec(name, full_name="shop.Order", naming=naming), "orders", "value", registry.location)
    made = serde(spec, COLUMNS)
    data = made.encode((7, "ann"))
    assert made.decode(data) == (7, "ann")
    assert data is not None
    registered = registry.latest(subject)
    assert registered.id == frame_schema_id(data)
    assert "Order" in registered.text
    assert schema_type(spec).fields == COLUMNS


def test_what_cannot_name_a_subject_is_refused() -> None:
    with pytest.raises(InvalidInput, match="needs the record's full_name"):
        of_topic(FormatSpec("AVRO", naming="RECORD"), "orders", "value", "mock://x")
    with pytest.raises(UnknownName, match="TOPIC_RECORD"):
        of_topic(FormatSpec("AVRO", naming="TOPIC_RECORDS"), "orders", "value", "mock://x")
    assert of_topic(FormatSpec("AVRO", subject="own"), "orders", "value", "mock://x").subject == "own"


@pytest.mark.parametrize("name", FRAMED)
def test_the_newest_schema_is_written_with_and_nothing_registered(name: str) -> None:
    registry = MemoryRegistry()
    spec = of_topic(FormatSpec(name, uses_latest=True), "orders", "value", registry.location)
    with pytest.raises(SchemaNotFound, match="orders-value"):
        serde(spec, COLUMNS).encode((7, "ann"))
    newest = registry.register("orders-value", KINDS[name], WIDER[KINDS[name]])
    data = serde(spec, COLUMNS).encode((7, "ann"))
    assert data is not None
    assert frame_schema_id(data) == newest == registry.latest("orders-value").id == register_schema(spec, COLUMNS)
    read = serde(spec, (*COLUMNS, Column("NOTE", STRING))).decode(data)
    assert read is not None
    assert read[:2] == (7, "ann")


@pytest.mark.parametrize("name", FRAMED)
def test_with_registering_off_the_schema_must_be_there(name: str) -> None:
    registry = MemoryRegistry()
    registering = of_topic(FormatSpec(name), "orders", "value", registry.location)
    spec = replace(registering, registers=False)
    with pytest.raises(InvalidInput, match="orders-value does not have the schema of these columns, and registering is off"):
        serde(spec, COLUMNS).encode((7, "ann"))
    with pytest.raises(SchemaNotFound):
        registry.latest("orders-value")
    data = serde(registering, COLUMNS).encode((7, "ann"))
    assert serde(spec, COLUMNS).encode((7, "ann")) == data


@pytest.mark.parametrize("name", FRAMED)
def test_a_schema_that_would_leave_a_column_out_is_refused_unless_that_was_said(name: str) -> None:
    registry = MemoryRegistry()
    registry.register("orders-value", KINDS[name], WIDER[KINDS[name]])
    spec = of_topic(FormatSpec(name, uses_latest=True), "orders", "value", registry.location)
    more = (*COLUMNS, Column("TOTAL", DOUBLE))
    for each in (spec, replace(spec, uses_latest=False, schema_id=1)):
        with pytest.raises(
            InvalidInput, match="schema 1 of orders-value does not fit what is written: it has no field for the column TOTAL"
        ):
            register_schema(each, more)
        data = serde(replace(each, is_strict=False), more).encode((7, "ann", 2.5))
        read = serde(each, COLUMNS).decode(data)
        assert read == (7, "ann")


def test_ids_of_keys_stay_before_them() -> None:
    with pytest.raises(InvalidInput, match="a key's id stands before it"):
        of_topic(FormatSpec("AVRO", has_ids_in_headers=True), "orders", "key", "mock://x")


@pytest.mark.parametrize("name", FRAMED)
def test_columns_are_checked_against_the_newest_schema(name: str) -> None:
    registry = MemoryRegistry()
    spec = of_topic(FormatSpec(name), "orders", "value", registry.location)
    check_readable(spec, COLUMNS, {"ID"})
    registry.register("orders-value", KINDS[name], WIDER[KINDS[name]])
    check_readable(spec, COLUMNS, {"ID"})
    check_readable(spec, (*COLUMNS, Column("TOTAL", DOUBLE)))
    with pytest.raises(UnknownName, match=r"'NAMES' of orders-value, schema 1 .*did you mean 'NAME'"):
        check_readable(spec, (Column("NAMES", STRING),), {"NAMES"})
    with pytest.raises(InvalidInput, match="NAME"):
        check_readable(spec, (Column("NAME", array(BIGINT)),))
    check_readable(replace(spec, name="JSON"), (Column("NAMES", STRING),), {"NAMES"})


def test_a_real_registry_names_by_record_too(tmp_path: object) -> None:
    with RegistryServer(str(tmp_path) + "/data", port=0) as server:
        for name in FRAMED:
            spec = FormatSpec(name, full_name=f"shop.{name.title().replace('_', '')}", naming="RECORD")
            made = serde(of_topic(spec, "orders", "value", server.address), COLUMNS)
            assert made.decode(made.encode((7, "ann"))) == (7, "ann")
            again = of_topic(replace(spec, uses_latest=True), "returns", "value", server.address)
            assert serde(again, COLUMNS).encode((7, "ann")) == made.encode((7, "ann"))
            normal = of_topic(replace(spec, normalizes=True), "orders", "value", server.address)
            assert serde(normal, COLUMNS).decode(serde(normal, COLUMNS).encode((7, "ann"))) == (7, "ann")
            given = replace(normal, registers=False)
            with pytest.raises(InvalidInput, match="registering is off"):
                serde(given, (*COLUMNS, Column("MORE", DOUBLE))).encode((7, "ann", 0.5))
            assert serde(given, COLUMNS).decode(serde(given, COLUMNS).encode((7, "ann"))) == (7, "ann")
            payload, (header, guid) = FrameSplitter("value", server.address).split(made.encode((7, "ann")) or b"")
            assert header == "__value_schema_id"
            assert framed_by_headers(payload, [(header, guid)], "value", server.address) == made.encode((7, "ann"))


def test_every_part_has_the_registry_of_the_environment_with_or_without_its_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGFLUME_REGISTRY", "127.0.0.1:9")
    assert default_registry() == "127.0.0.1:9"
    assert registry_at(default_registry()) is registry_at("http://127.0.0.1:9")
    monkeypatch.setenv("LOGFLUME_REGISTRY", "")
    assert default_registry() == "http://127.0.0.1:8081"
