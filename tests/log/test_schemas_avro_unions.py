"""Unions of several types in Avro: a struct with a field for each, of which the one that is set is written."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import fastavro
import pytest

from logflume.log import InvalidInput
from logflume.log.schemas import (
    BIGINT,
    DOUBLE,
    INTEGER,
    STRING,
    Column,
    DataType,
    FormatSpec,
    MemoryRegistry,
    Serde,
    array,
    serde,
    struct,
)

UNION = """{"type": "record", "name": "R", "namespace": "ns", "fields": [
  {"name": "first", "type": {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}},
  {"name": "u", "type": ["null", "double", "int", "string",
    {"type": "record", "name": "Point", "fields": [{"name": "x", "type": "long"}]},
    {"type": "array", "items": "long"}]}]}"""
BRANCHES = struct(
    Column("double", DOUBLE), Column("int", INTEGER), Column("string", STRING),
    Column("Point", struct(Column("x", BIGINT))), Column("array", array(BIGINT)),
)  # fmt: skip
NO_BRANCH = dict.fromkeys(("double", "int", "string", "Point", "array"))


@pytest.fixture
def both() -> Iterator[Serde]:
    """Reads and writes with the schema."""
    registry = MemoryRegistry()
    registry.register("t-value", "AVRO", UNION)
    spec = FormatSpec("AVRO", registry=registry.location, subject="t-value", uses_latest=True)
    yield serde(spec, (Column("first", STRING), Column("u", BRANCHES)))
    del registry  # a location is known for as long as its registry is held


@pytest.mark.parametrize("branch", [{"double": 5.0}, {"int": 5}, {"string": "RED"}, {"Point": {"x": 7}}, {"array": [1, 2]}, {}])
def test_a_union_of_several_types_is_written_as_the_branch_that_is_set(both: Serde, branch: dict[str, Any]) -> None:
    data = both.encode(("BLUE", NO_BRANCH | branch))
    assert data is not None
    assert both.decode(data) == ("BLUE", NO_BRANCH | branch if branch else None)
    read = fastavro.schemaless_reader(io.BytesIO(data[5:]), fastavro.parse_schema(json.loads(UNION)))
    assert read == {"first": "BLUE", "u": next(iter(branch.values()), None)}


PLACE = """{"type": "record", "name": "R", "namespace": "ns", "fields": [
  {"name": "home", "type": {"type": "record", "name": "Point", "fields": [{"name": "x", "type": "long"}]}},
  {"name": "u", "type": ["null", "string", "Point"]}]}"""
POINT = struct(Column("x", BIGINT))


@pytest.mark.parametrize(
    ("type", "value", "expected"),
    [
        (struct(Column("string", STRING), Column("Point", POINT)), {"string": None, "Point": {"x": 3}}, {"x": 3}),
        (STRING, "a", "a"),
        (POINT, {"x": 3}, {"x": 3}),
    ],
)
def test_a_column_of_one_branch_is_written_where_rows_are_judged_one_by_one(type: DataType, value: Any, expected: Any) -> None:
    registry = MemoryRegistry()
    registry.register("t-value", "AVRO", PLACE)
    spec = FormatSpec("AVRO", registry=registry.location, subject="t-value", uses_latest=True, is_strict=False)
    data = serde(spec, (Column("home", POINT), Column("u", type))).encode(({"x": 1}, value))
    assert data is not None
    read = fastavro.schemaless_reader(io.BytesIO(data[5:]), fastavro.parse_schema(json.loads(PLACE)))
    assert read == {"home": {"x": 1}, "u": expected}


def test_a_union_with_two_branches_set_is_refused(both: Serde) -> None:
    with pytest.raises(InvalidInput, match="a union has one value, but double and int are set"):
        both.encode(("RED", NO_BRANCH | {"int": 5, "double": 1.0}))
