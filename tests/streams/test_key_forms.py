"""Keys of one value that were written with several registered schemas are one key."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import msgspec
import pytest

import logflume as lf
from logflume.log.schemas import BIGINT, STRING, Column, FormatSpec, MemoryRegistry, RegisteredSchema, serde
from logflume.streams.columns.column import Bytes
from logflume.streams.columns.key_forms import KeyForms

COLUMNS = (Column("SHOP", STRING), Column("NUMBER", BIGINT))
OLD = {"type": "record", "name": "Key", "fields": [{"name": "SHOP", "type": "string"}, {"name": "NUMBER", "type": "long"}]}
RENAMED = OLD | {"name": "OtherKey", "doc": "the same fields"}
NULLABLE = OLD | {"fields": [{"name": "SHOP", "type": ["null", "string"]}, {"name": "NUMBER", "type": "long"}]}
WIDER = OLD | {"fields": [*OLD["fields"], {"name": "EXTRA", "type": "string", "default": ""}]}  # type: ignore[misc]


class Order(msgspec.Struct):
    amount: int


class Customer(msgspec.Struct):
    name: str


def registry_of(*schemas: Any) -> tuple[MemoryRegistry, FormatSpec, list[int]]:
    registry = MemoryRegistry()
    ids = [registry.put("t-key", RegisteredSchema(0, "AVRO", json.dumps(schema))) for schema in schemas]
    return registry, FormatSpec("AVRO", registry=registry.location, subject="t-key"), ids


def key(schema: Any, schema_id: int, **fields: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), fields)
    return b"\0" + schema_id.to_bytes(4, "big") + out.getvalue()


def unified(spec: FormatSpec, keys: list[bytes | None]) -> list[bytes | None]:
    forms = KeyForms.of(spec, COLUMNS)
    assert forms is not None
    found = forms.unified(Bytes.of_objects(keys)).objects()
    assert forms.unified(Bytes.of_objects(keys)).objects() == found
    return found


def test_one_value_has_the_form_of_the_oldest_schema_that_holds_it() -> None:
    registry, spec, ids = registry_of(OLD, RENAMED, NULLABLE)
    forms = [key(schema, n, SHOP="a", NUMBER=7) for schema, n in zip((OLD, RENAMED, NULLABLE), ids, strict=True)]
    assert len(set(forms)) == 3
    assert unified(spec, [*forms, None]) == [forms[0]] * 3 + [None]
    assert unified(spec, [forms[2], forms[1]]) == [forms[0]] * 2
    assert registry.versions("t-key") == [1, 2, 3]


def test_a_key_that_the_oldest_schema_cannot_hold_stays_apart() -> None:
    _, spec, ids = registry_of(OLD, NULLABLE, NULLABLE | {"name": "Third"})
    second, third = (key(NULLABLE, n, SHOP=None, NUMBER=7) for n in ids[1:])
    assert unified(spec, [second, third]) == [second, second]


def test_fields_that_have_no_column_keep_keys_apart() -> None:
    _, spec, ids = registry_of(OLD, WIDER)
    keys = [key(WIDER, ids[1], SHOP="a", NUMBER=7, EXTRA=extra) for extra in ("x", "y")]
    assert unified(spec, list(keys)) == keys


def test_what_is_no_key_of_the_subject_stays_as_it_is() -> None:
    _, spec, ids = registry_of(OLD, RENAMED)
    keys = [b"", b"text that is long", b"\0\0\0\0\x63abc", key(RENAMED, ids[1], SHOP="a", NUMBER=7)[:-2]]
    assert unified(spec, list(keys)) == keys
    assert unified(FormatSpec("AVRO", registry=spec.registry, subject="unknown"), list(keys)) == keys


def test_keys_that_meet_a_new_version_are_brought_to_the_form_of_those_before() -> None:
    registry, spec, ids = registry_of(OLD)
    forms = KeyForms.of(spec, COLUMNS)
    assert forms is not None
    first = key(OLD, ids[0], SHOP="a", NUMBER=7)
    assert forms.unified(Bytes.of_objects([first])).objects() == [first]
    later = registry.put("t-key", RegisteredSchema(0, "AVRO", json.dumps(RENAMED)))
    assert forms.unified(Bytes.of_objects([key(RENAMED, later, SHOP="a", NUMBER=7)])).objects() == [first]


@pytest.mark.parametrize("name", ["PROTOBUF", "JSON_SR"])
def test_other_formats_are_alike(name: str) -> None:
    registry = MemoryRegistry()
    spec = FormatSpec(name, registry=registry.location, subject="t-key")
    both = serde(spec, COLUMNS).encode(("a", 7))
    named = serde(FormatSpec(name, registry=registry.location, subject="t-key", full_name="shop.Key"), COLUMNS).encode(("a", 7))
    assert both != named
    assert unified(spec, [named, both]) == [both, both]


def test_counts_and_joins_see_one_key() -> None:
    registry = MemoryRegistry()
    forms = []
    for schema in (OLD, RENAMED):
        schema_id = registry.put("orders-key", RegisteredSchema(0, "AVRO", json.dumps(schema)))
        forms.append(key(schema, schema_id, SHOP="a", NUMBER=7))
    assert registry.put("customers-key", RegisteredSchema(0, "AVRO", json.dumps(OLD))) == 1
    app = lf.App("shops")
    options: Any = {
        "key": {"SHOP": str, "NUMBER": int}, "key_format": FormatSpec("AVRO", registry=registry.location), "format": "JSON",
    }  # fmt: skip
    orders = app.stream("orders", Order, **options)
    customers = app.table("customers", Customer, **options)
    orders.group_by_key().count(name="counts").to("counted")
    orders.join(customers).to("joined")
    driver = lf.TopologyTestDriver(app)
    for form, name in zip(forms, ("Ann", "Bea"), strict=True):
        driver.process("customers", form, json.dumps({"name": name}).encode(), 0)
    for n, form in enumerate(forms * 2):
        driver.process("orders", form, json.dumps({"amount": n}).encode(), n)
    assert len(driver.store("counts").rows()) == 1
    assert [record.value["name"] for record in driver.output("joined").read()] == ["Bea"] * 4


class Placed(msgspec.Struct):
    shop: str
    number: int
    amount: int


@pytest.mark.parametrize("is_left", [False, True])
def test_a_foreign_key_finds_rows_whose_keys_have_several_schemas(is_left: bool) -> None:
    registry = MemoryRegistry()
    forms = []
    for schema in (OLD, RENAMED):
        for subject in ("placed-key", "customers-key"):
            schema_id = registry.put(subject, RegisteredSchema(0, "AVRO", json.dumps(schema)))
        forms.append(key(schema, schema_id, SHOP="a", NUMBER=7))
    app = lf.App("shops")
    options: Any = {
        "key": {"SHOP": str, "NUMBER": int}, "key_format": FormatSpec("AVRO", registry=registry.location), "format": "JSON",
    }  # fmt: skip
    placed, customers = app.table("placed", Placed, **options), app.table("customers", Customer, **options)
    join = placed.left_join if is_left else placed.join
    join(customers, on=(lf.col.shop, lf.col.number)).to("joined")
    driver = lf.TopologyTestDriver(app)
    order = {"shop": "a", "number": 7, "amount": 1}
    for n, form in enumerate(forms):
        driver.process("placed", form, json.dumps(order | {"amount": n}).encode(), n)
        driver.process("customers", form, json.dumps({"name": f"name {n}"}).encode(), n)
    found = [record.value for record in driver.output("joined").read()]
    assert (found[-1]["name"], found[-1]["amount"]) == ("name 1", 1)
    driver.process("customers", forms[0], None, 9)
    last = driver.output("joined").read()[-1].value
    assert last is None if not is_left else last["name"] is None
    assert len({record.key for record in driver.output("joined").read()}) <= 1, "one order, one key"
