"""Typed classes as columns and back."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import pytest

from logflume.log import InvalidInput
from logflume.log.schemas import INTEGER, FormatSpec, columns_of, decimal, object_codec, serde


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
