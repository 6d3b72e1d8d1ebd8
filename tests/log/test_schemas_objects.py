"""Typed classes as columns and back."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Required, TypedDict

import msgspec
import pytest

from logflume.log import InvalidInput
from logflume.log.schemas import (
    ANY,
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
    FormatSpec,
    array,
    class_source,
    columns_of,
    decimal,
    map_of,
    object_codec,
    required_fields,
    serde,
    struct,
)


class Place(msgspec.Struct):
    city: str
    lat: float | None = None


@dataclass
class Flight:
    carrier: str
    number: Annotated[int, INTEGER]
    at: datetime.datetime
    day: datetime.date
    clock: datetime.time
    fare: Annotated[Decimal, decimal(8, 2)]
    origin: Place
    stops: list[Place] = field(default_factory=list)
    tags: dict[str, int] = field(default_factory=dict)
    status: Literal["on time", "late"] | None = None
    extra: Any = None


class Pair(NamedTuple):
    a: int
    b: bytes = b"x"


class Loose(TypedDict, total=False):
    a: int
    b: str


FLIGHT = Flight(
    "AA",
    11,
    datetime.datetime(2013, 1, 1, 5, 15, 0, 250_000, tzinfo=datetime.UTC),
    datetime.date(2013, 1, 1),
    datetime.time(5, 15, 0, 1000),
    Decimal("120.50"),
    Place("NYC", 40.7),
    [Place("ORD")],
    {"x": 1},
    "late",
    {"any": [1]},
)


def test_columns_follow_the_fields() -> None:
    assert [f"{c.name} {c.type}" for c in columns_of(Flight)] == [
        "carrier STRING",
        "number INTEGER",
        "at TIMESTAMP",
        "day DATE",
        "clock TIME",
        "fare DECIMAL(8, 2)",
        "origin STRUCT<city STRING, lat DOUBLE>",
        "stops ARRAY<STRUCT<city STRING, lat DOUBLE>>",
        "tags MAP<STRING, BIGINT>",
        "status STRING",
        "extra ANY",
    ]


def test_objects_go_through_rows_and_json_unchanged() -> None:
    codec = object_codec(Flight)
    row = codec.to_row(FLIGHT)
    assert row is not None
    assert row[2:6] == (1357017300250, 15706, 18_900_001, Decimal("120.50"))
    assert codec.from_row(row) == FLIGHT
    s = serde(FormatSpec("JSON"), codec.columns)
    assert codec.from_row(s.decode(s.encode(row))) == FLIGHT


def test_a_null_takes_the_default_where_none_is_not_allowed() -> None:
    codec = object_codec(Pair)
    assert codec.from_row((1, None)) == Pair(1, b"x")
    assert codec.to_row(Pair(1)) == (1, b"x")
    assert object_codec(Place).from_row((None, None)) == Place(None, None)  # type: ignore[arg-type]
    assert codec.from_row(None) is None
    assert codec.to_row(None) is None


def test_whole_columns_make_the_objects_that_rows_make() -> None:
    class Named(msgspec.Struct, kw_only=True):
        a: int
        b: str = "x"

    flight = object_codec(Flight)
    cases: list[tuple[type[Any], list[Any]]] = [
        (Place, [("Rome", 1.5), (None, None)]),
        (Pair, [(1, b"y"), (2, None)]),
        (Pair, [(1, b"y"), (None, b"z")]),
        (Loose, [(1, "x"), (2, None)]),
        (Named, [(1, "y"), (2, None)]),
        (Flight, [flight.to_row(FLIGHT), (*(flight.to_row(FLIGHT) or ())[:9], None, None)]),
    ]
    for cls, rows in cases:
        codec = object_codec(cls)
        assert codec.from_columns([list(column) for column in zip(*rows, strict=True)]) == [codec.from_row(row) for row in rows]
        assert codec.from_columns([[] for _ in codec.columns]) == []


def test_typed_dicts() -> None:
    codec = object_codec(Loose)
    assert codec.to_row({"a": 1}) == (1, None)
    assert codec.from_row((1, "x")) == {"a": 1, "b": "x"}


def test_refusals_name_the_field() -> None:
    @dataclass
    class Bad:
        when: complex

    with pytest.raises(InvalidInput, match=r"Bad\.when: no column type for"):
        columns_of(Bad)
    with pytest.raises(InvalidInput, match="expected a msgspec"):
        columns_of(int)


SOME = struct(
    Column("id", BIGINT), Column("small", INTEGER), Column("price", decimal(8, 2)), Column("day", DATE), Column("at", TIMESTAMP),
    Column("time", TIME), Column("raw", BYTES), Column("ok", BOOLEAN), Column("ratio", DOUBLE),
    Column("lines", array(struct(Column("sku", STRING), Column("class", STRING)))),
    Column("by_name", map_of(STRING, struct(Column("x", array(BIGINT))))), Column("odd", map_of(INTEGER, STRING)),
)  # fmt: skip


def test_written_classes_have_the_columns_of_their_type() -> None:
    scope: dict[str, Any] = {"__name__": "orders"}
    source = class_source("my-order", SOME, about='Records of "x"\\""" + boom')
    exec(compile(source, "orders.py", "exec", dont_inherit=True), scope)
    assert columns_of(scope["MyOrder"]) == (*SOME.fields[:-1], Column("odd", ANY))
    row = (1, 2, Decimal("1.50"), 3, 4, 5, b"x", True, 0.5, [{"sku": "s", "class": "c"}], {"a": {"x": [1]}}, None)
    codec = object_codec(scope["MyOrder"])
    assert codec.to_row(codec.from_row(row)) == row
    assert scope["__doc__"] == "Records of ?x????? ? boom"


def test_names_of_classes_are_python_names_that_none_has_twice() -> None:
    inner = struct(Column("b", STRING))
    twice = struct(Column("a", inner), Column("A", inner), Column("int", STRING), Column("1", array(inner)), Column("n", BIGINT))
    scope: dict[str, Any] = {"__name__": "orders"}
    exec(compile(class_source("class", twice, about=""), "orders.py", "exec", dont_inherit=True), scope)
    assert columns_of(scope["Class"]) == twice.fields
    with pytest.raises(InvalidInput, match="not a record"):
        class_source("x", STRING, about="")


class Partly(TypedDict, total=False):
    id: Required[int]
    name: "NotRequired[str]"  # noqa: UP037  # as a module with `from __future__ import annotations` has it
    note: "Required[Annotated[str | None, STRING]]"  # noqa: UP037
    tag: str


def test_a_typed_dict_may_lack_what_it_says_it_may() -> None:
    assert required_fields(Partly) == {"id"}
    codec = object_codec(Partly)
    assert codec.from_row((1, None, None, None)) == {"id": 1, "note": None}
    assert codec.from_columns([[1, 2], [None, "x"], [None, "y"], [None, "z"]]) == [
        {"id": 1, "note": None},
        {"id": 2, "name": "x", "note": "y", "tag": "z"},
    ]
    assert codec.to_row({"id": 1, "note": None}) == (1, None, None, None)
