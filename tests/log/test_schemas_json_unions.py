"""Unions of several types in JSON Schema: a struct with a field for each, of which the one that is set is written."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from logflume.log import DecodeError, InvalidInput
from logflume.log.schemas import (
    BIGINT,
    BOOLEAN,
    DOUBLE,
    INTEGER,
    STRING,
    Column,
    DataType,
    FormatSpec,
    Kind,
    MemoryRegistry,
    array,
    map_of,
    registry_at,
    schema_type,
    serde,
    struct,
)

FIELD = "io.confluent.connect.json.OneOf.field."


def union(*types: DataType) -> DataType:
    return struct(*(Column(f"{FIELD}{i}", type) for i, type in enumerate(types)))


def of(count: int, place: int | None = None, value: Any = None) -> dict[str, Any]:
    return {f"{FIELD}{i}": value if i == place else None for i in range(count)}


def upper(type: DataType) -> DataType:
    """As columns are named that SQL has of a registry."""
    return DataType(
        type.kind,
        key=type.key,
        element=None if type.element is None else upper(type.element),
        fields=tuple(Column(field.name.upper(), upper(field.type)) for field in type.fields),
    )


SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"oneOf": [{"type": "string"}, {"type": "null"}, {"type": "integer"}, {"type": "number"}, {"type": "boolean"}]},
        "b": {"type": "array", "items": {"anyOf": [
            {"type": "object", "properties": {"x": {"type": "integer"}}},
            {"type": "object", "properties": {"y": {"type": "integer"}, "z": {"type": ["string", "integer"]}}},
        ]}},
        "c": {"type": ["boolean", "array"], "items": {"type": "string"}},
    },
}  # fmt: skip
A = union(STRING, BIGINT, DOUBLE, BOOLEAN)
B = union(
    struct(Column("x", BIGINT)),
    struct(Column("y", BIGINT), Column("z", union(STRING, BIGINT))),
)
C = union(BOOLEAN, array(STRING))
COLUMNS = (Column("a", A), Column("b", array(B)), Column("c", C))


def registered() -> tuple[MemoryRegistry, FormatSpec]:
    registry = MemoryRegistry()
    registry.register("t-value", "JSON", json.dumps(SCHEMA))
    return registry, FormatSpec("JSON_SR", registry=registry.location, subject="t-value", uses_latest=True)


def framed(value: Any) -> bytes:
    return b"\0\0\0\0\1" + json.dumps(value).encode()


def test_a_union_is_a_struct_with_a_field_for_each_type() -> None:
    _registry, spec = registered()
    assert schema_type(spec) == struct(*COLUMNS)


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ({"a": "s"}, (of(4, 0, "s"), None, None)),
        ({"a": 5}, (of(4, 1, 5), None, None)),
        ({"a": 5.5}, (of(4, 2, 5.5), None, None)),
        ({"a": True}, (of(4, 3, True), None, None)),
        ({"a": None}, (None, None, None)),
        (
            {"b": [{"x": 1}, None, {"y": 2, "x": 3, "z": "t"}]},
            (
                None,
                [of(2, 0, {"x": 1}), None, of(2, 1, {"y": 2, "z": of(2, 0, "t")})],
                None,
            ),
        ),
        ({"c": ["k"]}, (None, None, of(2, 1, ["k"]))),
    ],
)
def test_a_value_goes_to_the_first_type_that_takes_it(text: Any, row: Any) -> None:
    _registry, spec = registered()
    assert serde(spec, COLUMNS).decode(framed(text)) == row
    named = (Column("A", upper(A)), Column("B", array(upper(B))), Column("C", upper(C)))
    found = serde(spec, named).decode(framed(text))
    assert json.dumps(found).upper() == json.dumps(row).upper()


@pytest.mark.parametrize(
    "text",
    [
        {"a": "s", "b": [{"x": 1}, None, {"y": 2, "z": 7}], "c": False},
        {"a": 5.5, "b": [{"x": 1}], "c": ["k"]},
        {"a": None, "b": None, "c": None},
    ],
)
@pytest.mark.parametrize("is_upper", [False, True], ids=["its names", "names in upper case"])
def test_the_field_that_is_set_is_written_with_a_schema_that_is_there(text: Any, is_upper: bool) -> None:
    _registry, spec = registered()
    columns = tuple(Column(c.name, upper(c.type) if is_upper and c.name != "b" else c.type) for c in COLUMNS)
    both = serde(spec, columns)
    written = both.encode(both.decode(framed(text)))
    assert written is not None
    assert json.loads(written[5:]) == text


def test_a_schema_of_columns_has_the_union() -> None:
    registry = MemoryRegistry()
    spec = FormatSpec("JSON_SR", registry=registry.location, subject="t-value")
    decimal = DataType(Kind.DECIMAL, precision=4, scale=2)
    columns = (Column("u", union(INTEGER, map_of(STRING, decimal))), Column("m", map_of(STRING, union(STRING, BOOLEAN))))
    data = serde(spec, columns).encode((of(2, 1, {"k": Decimal("1.50")}), {"n": of(2, 0, "s"), "none": None}))
    assert data is not None
    assert data[5:] == b'{"u":{"k":1.50},"m":{"n":"s","none":null}}'
    properties = json.loads(registry_at(registry.location).latest("t-value").text)["properties"]
    branches = properties["u"]["oneOf"]
    assert [each["type"] for each in branches] == ["null", "integer", "object"]
    assert [each.get("connect.index") for each in branches] == [None, 0, 1]
    assert schema_type(spec) == struct(*columns)
    assert serde(spec, columns).decode(data) == (of(2, 1, {"k": Decimal("1.50")}), {"n": of(2, 0, "s"), "none": None})


@pytest.mark.parametrize("is_wrapped", [True, False])
def test_a_payload_may_be_a_union_as_a_whole(is_wrapped: bool) -> None:
    registry = MemoryRegistry()
    registry.register("t-value", "JSON", '{"oneOf": [{"type": "string"}, {"type": "integer"}]}')
    spec = FormatSpec("JSON_SR", registry=registry.location, subject="t-value", uses_latest=True, is_wrapped=is_wrapped)
    type = schema_type(spec)
    both = serde(spec, type.fields if is_wrapped else (Column("ROWVAL", type),))
    for text, row in ((b'"s"', ("s", None)), (b"7", (None, 7))):
        found = both.decode(b"\0\0\0\0\1" + text)
        assert found == (row if is_wrapped else (of(2) | {f"{FIELD}{i}": each for i, each in enumerate(row)},))
        assert both.encode(found) == b"\0\0\0\0\1" + text


def test_names_in_upper_case_are_a_struct_in_a_schema_of_columns() -> None:
    registry = MemoryRegistry()
    spec = FormatSpec("JSON_SR", registry=registry.location, subject="t-value")
    both = serde(spec, (Column("U", upper(union(INTEGER, STRING))),))
    row = ({f"{FIELD}0".upper(): 1, f"{FIELD}1".upper(): None},)
    data = both.encode(row)
    assert data is not None
    assert json.loads(data[5:]) == {"U": row[0]}
    assert both.decode(data) == row


def test_a_value_that_no_type_takes_and_two_that_are_set_are_refused() -> None:
    _registry, spec = registered()
    both = serde(spec, COLUMNS)
    with pytest.raises(DecodeError, match="no type of the union"):
        both.decode(framed({"c": 5}))
    with pytest.raises(InvalidInput, match="a union has one value"):
        both.encode((of(4, 0, "s") | {f"{FIELD}1": 5}, None, None))
