"""What does not fit the class of a topic's values is left out and counted; an object of another class is refused."""

from __future__ import annotations

import datetime
import decimal
import enum
import itertools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, make_dataclass, replace
from typing import Annotated, Any, Dict, List, NamedTuple  # noqa: UP035  # as users write them

import msgspec
import pydantic
import pytest

import logflume as lf
from logflume.log import InvalidInput
from logflume.log.schemas import DOUBLE, STRING, Column, FormatSpec, serde
from logflume.log.schemas import decimal as decimal_type
from logflume.streams import col
from logflume.streams.testing import TopologyTestDriver
from tests.streams.running import kernels

__all__ = ["kernels"]


class Colour(enum.Enum):
    RED = "red"


class Item(msgspec.Struct):
    name: str
    price: float
    note: str | None = None


@dataclass
class Order:
    user: str
    cents: int


def fed(app: lf.App, values: list[dict[str, Any] | None]) -> lf.TopologyTestDriver:
    driver = lf.TopologyTestDriver(app, on_problem="skip")
    for value in values:
        driver.input("items").send(value, key="k")
    return driver


@pytest.mark.parametrize("kind", ["columns", "objects"])
def test_a_value_that_the_class_must_have_and_the_record_lacks_leaves_it_out(kind: str) -> None:
    app = lf.App("shop")
    items = app.stream("items", Item, key=str)
    (items.filter(col.price > -1) if kind == "columns" else items.filter(lambda item: item.price > -1)).to("out")
    values: list[dict[str, Any] | None] = [
        {"name": "pen", "price": 2.0},
        {"name": "ink"},
        {"name": "cup", "price": None},
        {"name": "nib", "price": 1.0},
    ]
    driver = fed(app, values)
    assert [
        record.value["name"] if isinstance(record.value, dict) else record.value.name for record in driver.output("out").read()
    ] == ["pen", "nib"]
    assert driver.problems["decode"] == 2


def numbered() -> Callable[[], int]:
    return itertools.count(1).__next__


def with_defaults() -> list[type[Any]]:
    """The same fields as each kind of class that may have defaults."""
    numbers = [numbered() for _ in range(3)]

    class Record(msgspec.Struct):
        id: int
        price: float = 5.0
        rate: float | None = 0.5
        colour: Colour = Colour.RED
        tags: list[str] = msgspec.field(default_factory=lambda: ["new"])
        number: int = msgspec.field(default_factory=numbers[0])
        note: str | None = None

    @dataclass
    class Data:
        id: int
        price: float = 5.0
        rate: float | None = 0.5
        colour: Colour = Colour.RED
        tags: list[str] = field(default_factory=lambda: ["new"])
        number: int = field(default_factory=numbers[1])
        note: str | None = None

    class Model(pydantic.BaseModel):
        id: int
        price: float = 5.0
        rate: float | None = 0.5
        colour: Colour = Colour.RED
        tags: list[str] = ["new"]
        number: int = pydantic.Field(default_factory=numbers[2])
        note: str | None = None

    for cls in (Record, Data, Model):
        cls.__annotations__ = {name: eval(hint, globals()) for name, hint in cls.__annotations__.items()}
    return [Record, Data, Model]


@pytest.mark.parametrize("kernels", ["without kernels", "with kernels"], indirect=True)
@pytest.mark.parametrize("cls", with_defaults(), ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("kind", ["columns", "objects"])
def test_an_absent_field_has_its_default_in_columns_as_in_objects(cls: type[Any], kind: str, kernels: str) -> None:
    """One that is null is null, or, where that is none of its values, cannot be decoded."""
    app = lf.App("shop")
    items = app.stream("items", cls, key=str)
    names = ("id", "price", "rate", "colour", "tags", "number", "note")
    if kind == "columns":
        items.select(*(getattr(col, name) for name in names)).to("out")
    else:
        items.map_values(lambda item: {name: getattr(item, name) for name in names}).to("out")
    full = {"id": 0, "price": 1.5, "rate": 2.5, "colour": "red", "tags": [], "number": 70, "note": "n"}
    driver = lf.TopologyTestDriver(app, on_problem="skip")
    sent = [{"id": 1}, {"id": 2, "rate": None, "note": "price"}, {"id": 3, "price": None}, {**full, "note": '\\"price"'}]
    values = [json.dumps(value).encode() for value in (*sent, *[full] * 60)]
    driver.input("items").send_together([("k", value, 0) for value in values])
    first, second, *rest = [record.value for record in driver.output("out").read()]
    first_number = first["number"]
    assert first == {**full, "id": 1, "price": 5.0, "rate": 0.5, "tags": ["new"], "number": first_number, "note": None}
    assert second == {**full, "id": 2, "price": 5.0, "rate": None, "tags": ["new"], "number": first_number + 1, "note": "price"}
    assert rest == [{**full, "note": '\\"price"'}, *[full] * 60]
    assert driver.problems == {"decode": 1}


class Ship(msgspec.Struct):
    city: str = "Oslo"
    zone: int | None = 7


class Shipped(msgspec.Struct):
    to: Ship
    by: list[Ship] = []
    named: dict[str, Ship] = {}


def test_absent_fields_of_nested_objects_have_their_defaults_too() -> None:
    app = lf.App("shop")
    items = app.stream("items", Shipped, key=str)
    items.select(city=col.to.city, zone=col.to.zone, by=col.by, named=col.named).to("out")
    items.map_values(lambda item: item).to("objects")
    driver = lf.TopologyTestDriver(app)
    driver.input("items").send({"to": {}, "by": [{"city": "Rome"}, {"zone": None}], "named": {"a": {"zone": 1}}}, key="k")
    driver.input("items").send({"to": {"city": "Bonn", "zone": None}}, key="k")
    found = {"by": [{"city": "Rome", "zone": 7}, {"city": "Oslo", "zone": None}], "named": {"a": {"city": "Oslo", "zone": 1}}}
    assert [record.value for record in driver.output("out").read()] == [
        {"city": "Oslo", "zone": 7, **found},
        {"city": "Bonn", "zone": None, "by": [], "named": {}},
    ]
    assert [msgspec.to_builtins(record.value) for record in driver.output("objects").read()] == [
        {"to": {"city": "Oslo", "zone": 7}, **found},
        {"to": {"city": "Bonn", "zone": None}, "by": [], "named": {}},
    ]


def test_a_table_keeps_the_defaults_of_what_its_records_lack() -> None:
    app = lf.App("shop")
    app.table("items", Item2, key=str, store="kept").filter(col.price > 1).to("out")
    driver = fed(app, [{"name": "pen"}, {"name": "pen", "price": 0.5}])
    assert [record.value for record in driver.output("out").read()] == [Item2("pen", 5.0), None]
    assert driver.store("kept").get("k") == Item2("pen", 0.5)


class Item2(msgspec.Struct):
    name: str
    price: float = 5.0


@pytest.mark.parametrize("kernels", ["without kernels", "with kernels"], indirect=True)
@pytest.mark.parametrize("format", ["AVRO", "JSON_SR", "PROTOBUF"])
def test_what_a_registered_schema_lacks_has_its_default(format: str, kernels: str) -> None:
    """Protobuf does not tell what is absent from what is null."""
    spec = FormatSpec(format, registry="mock://defaults", nullables="OPTIONAL" if format == "PROTOBUF" else "")
    names = (Column("name", STRING), Column("rate", DOUBLE))
    written = serde(replace(spec, subject=f"{format}-short"), names[:1])
    nulls = serde(replace(spec, subject=f"{format}-null"), names)
    app = lf.App("shop")
    app.stream("items", Rated, key=str, format=spec).select(col.name, col.rate).to("out")
    driver = lf.TopologyTestDriver(app)
    rows = [written.encode(("pen",)), nulls.encode(("ink", None)), *[nulls.encode(("cup", 1.5))] * 60]
    driver.input("items").send_together([("k", row, 0) for row in rows])
    null = 0.5 if format == "PROTOBUF" else None
    assert [record.value["rate"] for record in driver.output("out").read()] == [0.5, null, *[1.5] * 60]


class Rated(msgspec.Struct):
    name: str
    rate: float | None = 0.5


def test_a_default_that_is_not_of_the_type_is_refused_with_its_field() -> None:
    app = lf.App("shop")
    app.stream("items", make_dataclass("Cart", [("cents", int, field(default="many"))])).filter(col.cents > 1).to("out")
    with pytest.raises(InvalidInput, match=r"Cart\.cents: its default 'many' is no BIGINT"):
        lf.TopologyTestDriver(app)


def test_a_default_that_cannot_be_made_leaves_the_record_out() -> None:
    app = lf.App("shop")
    failing = [field(default_factory=lambda: 1 // 0) for _ in range(2)]
    cls = make_dataclass("Cart", [("id", int), ("cents", int, failing[0]), ("more", int | None, failing[1])])
    app.stream("items", cls, key=str).select(col.id, col.cents, col.more).to("out")
    driver = lf.TopologyTestDriver(app, on_problem="skip")
    driver.input("items").send(b'{"id":1}', key="k")
    driver.input("items").send(b'{"id":2,"cents":3,"more":null}', key="k")
    assert [record.value for record in driver.output("out").read()] == [{"id": 2, "cents": 3, "more": None}]
    assert driver.problems == {"decode": 1}


def test_a_null_still_deletes_a_row_and_what_may_be_absent_may_be() -> None:
    app = lf.App("shop")
    app.table("items", Item, key=str).to("out")
    driver = fed(app, [{"name": "pen", "price": 2.0}, None])
    assert [record.value for record in driver.output("out").read()] == [Item("pen", 2.0), None]


def test_an_object_of_another_class_is_refused_with_what_was_expected() -> None:
    app = lf.App("shop")
    app.stream("items", Item).to("out")
    driver = lf.TopologyTestDriver(app)
    with pytest.raises(
        InvalidInput, match=r"expected Item or a dict with \['name', 'price', 'note'\], found Order\(user='ann', cents=1\)"
    ):
        driver.input("items").send(Order("ann", 1))
    with pytest.raises(InvalidInput, match="expected Item"):
        driver.input("items").send(("pen",))
    driver.input("items").send(("pen", 1.0, None))
    assert driver.output("out").read()[0].value == Item("pen", 1.0)


class Everything(msgspec.Struct):
    day: datetime.date
    at: datetime.datetime
    price: decimal.Decimal
    rounded: Annotated[decimal.Decimal, decimal_type(10, 2)]
    many: list[decimal.Decimal]
    blob: bytes
    colour: Colour


@pytest.mark.parametrize("kind", ["columns", "objects", "table"])
def test_what_json_has_no_type_for_leaves_as_it_came(kind: str) -> None:
    app = lf.App("shop")
    items = app.stream("items", Everything, key=str)
    built = {
        "columns": lambda: items.filter(col.price > 0),
        "objects": lambda: items.map_values(lambda item: item),
        "table": lambda: items.to_table(store="t").to_stream(),
    }
    built[kind]().to("out")
    driver = lf.TopologyTestDriver(app)
    value = b'{"day":"2024-02-29","at":"2024-02-29T12:30:00Z","price":1.1,"rounded":1.1,"many":[100,0.5],"blob":"aGk=","colour":'
    value += b'"red"}'
    driver.input("items").send(value, key="k")
    driver.input("items").send(value.replace(b"1.1", b"1.10"), key="k")
    assert [raw[1] for raw in driver.output("out").raw] == [value, value]


def test_objects_have_the_types_of_their_class() -> None:
    seen: list[Everything] = []
    app = lf.App("shop")
    app.stream("items", Everything, key=str).filter(lambda item: seen.append(item) is None).to("out")
    digits = "12345678901234567890123456789.123456789"
    value = {"day": "2024-02-29", "at": "2024-02-29T12:30:00Z", "many": [0.5], "blob": "aGk=", "colour": "red"}
    text = json.dumps({**value, "price": 0, "rounded": 0}).replace('"price": 0, "rounded": 0', f'"price":{digits},"rounded":1.10')
    driver = lf.TopologyTestDriver(app)
    driver.input("items").send(text.encode(), key="k")
    at = datetime.datetime(2024, 2, 29, 12, 30, tzinfo=datetime.UTC)
    price, half = decimal.Decimal(digits), decimal.Decimal("0.5")
    assert seen == [Everything(datetime.date(2024, 2, 29), at, price, decimal.Decimal("1.1"), [half], b"hi", Colour.RED)]
    assert [str(seen[0].price), str(seen[0].rounded), str(seen[0].many[0])] == [digits, "1.1", "0.5"]


@pytest.mark.parametrize(("alone", "plain"), [(List, list), (Dict, dict)], ids=["list", "dict"])  # noqa: UP006
def test_containers_of_typing_without_items_are_those_of_python(alone: Any, plain: Any) -> None:
    shown = []
    for hint in (alone, plain):
        app = lf.App("shop")
        app.stream("items", make_dataclass("Cart", [("cents", int), ("goods", hint)])).filter(col.cents > 1).to("out")
        driver = lf.TopologyTestDriver(app)
        driver.input("items").send({"cents": 5, "goods": plain([("pen", 1)])})
        shown.append([record.value.goods for record in driver.output("out").read()])
    assert shown[0] == shown[1] != []


@pytest.mark.parametrize(
    ("hint", "told"),
    [
        (tuple, "Cart.goods: no column type for <class 'tuple'>; use Any, or Annotated"),
        (dict[int, str], "Cart.goods: keys of a map must be str, found <class 'int'>"),
        ("Nope", "Cart: a field's type cannot be resolved: name 'Nope' is not defined"),
        (object.__class__, "Cart.goods: no column type for <class 'type'>"),
    ],
)
def test_a_class_that_no_columns_fit_is_refused_with_its_field(hint: Any, told: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        lf.App("shop").stream("items", make_dataclass("Cart", [("goods", hint)]))
    assert told in str(refused.value)


def test_a_class_without_typed_fields_is_refused_with_what_is_one() -> None:
    class Cart:  # somebody forgot @dataclass
        goods: int

    with pytest.raises(InvalidInput, match=r"values are a class with typed fields .*dataclass"):
        lf.App("shop").stream("items", Cart)


class Place(NamedTuple):
    city: str
    zone: int = 7


@dataclass
class Trip:
    to: Place
    by: list[Place]


def to_place(value: Any) -> Place:
    return Place(value["city"])


def to_trip(value: Any) -> Trip:
    return Trip(Place(value["city"]), [Place("Rome", 1)])


OSLO = b'{"city":"Oslo","zone":7}'


@pytest.mark.parametrize(
    ("build", "written"),
    [
        (lambda stream: stream.map_values(to_place), OSLO),
        (lambda stream: stream.map_values(lambda value: Place(value["city"])), OSLO),
        (lambda stream: stream.map_values(to_trip), b'{"to":' + OSLO + b',"by":[{"city":"Rome","zone":1}]}'),
        (lambda stream: stream.map_values(lambda value: [1, {"at": (Place(value["city"]),)}]), b'[1,{"at":[' + OSLO + b"]}]"),
        (lambda stream: stream.select(at=col.city).map_values(lambda row: row), b'{"at":"Oslo"}'),
        (lambda stream: stream.group_by_key().aggregate(lambda: Place(""), lambda _, value: Place(value["city"])), OSLO),
        (lambda stream: stream.map_values(to_place).repartition("again").map_values(lambda place: [place.zone]), b"[7]"),
        (lambda stream: stream.map_values(to_trip).repartition("again").map_values(lambda trip: [trip.by[0].zone]), b"[1]"),
        (lambda stream: stream.map_values(to_place).group_by_key().reduce(lambda one, _: one), OSLO),
    ],
)  # fmt: skip
def test_named_tuples_are_written_as_objects_and_read_back(build: Callable[[lf.Stream], Any], written: bytes) -> None:
    app = lf.App("trips")
    build(app.stream("in", key=str)).to("out")
    driver = lf.TopologyTestDriver(app)
    driver.input("in").send({"city": "Oslo"}, key="k")
    assert [value for _, value, _, _ in driver.output("out").raw] == [written]


def test_a_named_tuple_that_one_application_writes_is_what_another_reads() -> None:
    first, second = lf.App("writes"), lf.App("reads")
    first.stream("in", key=str).select_key(to_place).map_values(to_trip).to("trips")
    trips = second.stream("trips", Trip, key=Place)
    trips.filter(col.to.zone == 7).map_values(lambda key, trip: [key.city, trip.to.zone, trip.by == [Place("Rome", 1)]]).to("out")
    writing, reading = lf.TopologyTestDriver(first), lf.TopologyTestDriver(second)
    writing.input("in").send({"city": "Oslo"}, key="k")
    ((key, value, _, _),) = writing.output("trips").raw
    reading.input("trips").send(value, key=key)
    assert [record.value for record in reading.output("out").read()] == [["Oslo", 7, True]]


class Ratio(msgspec.Struct):
    d: float


@dataclass
class Ratios:
    all: list[float]
    none: None = None


def as_ratio(value: Ratio) -> Ratio:
    return Ratio(-value.d * math.inf)


@pytest.mark.parametrize(
    ("build", "written"),
    [
        (lambda s: s.select(d=col.d * 1e308 * 10), b'{"d":"Infinity"}'),
        (lambda s: s.map_values(lambda value: math.inf), b'"Infinity"'),
        (lambda s: s.map_values(lambda value: {"d": math.nan, "n": None, "of": [{"d": -math.inf}]}),
         b'{"d":"NaN","n":null,"of":[{"d":"-Infinity"}]}'),
        (lambda s: s.map_values(as_ratio), b'{"d":"-Infinity"}'),
        (lambda s: s.map_values(lambda value: Ratios([value.d, math.inf])), b'{"all":[5.0,"Infinity"],"none":null}'),
        (lambda s: s.map_values(lambda value: (decimal.Decimal("1.10"), 1 << 64, math.inf)),
         b'[1.10,18446744073709551616,"Infinity"]'),
        (lambda s: s.group_by_key().aggregate(0.0, lambda total, value: math.inf), b'"Infinity"'),
        (lambda s: s.map_values(lambda value: [math.inf]).select(text=col.value.cast(str)), b'{"text":null}'),
    ],
)  # fmt: skip
def test_no_number_becomes_null_in_json_whatever_makes_it(build: Callable[[lf.Stream], Any], written: bytes) -> None:
    app = lf.App("ratios")
    build(app.stream("in", Ratio)).to("out")
    driver = TopologyTestDriver(app)
    driver.input("in").send({"d": 5.0}, key="k")
    assert [value for _, value, _, _ in driver.output("out").raw] == [written]


def without_b(value: str) -> str | None:
    return None if value == "b" else value


def test_what_an_annotated_function_gives_is_null_where_it_gives_none_though_nothing_else_is_read_of_it() -> None:
    app = lf.App("counted")
    app.stream("in", str).map_values(without_b).group_by_key().count().to("out")
    driver = TopologyTestDriver(app)
    for value in ("a", "b", "c"):
        driver.input("in").send(value, key="k")
    assert [record.value["count"] for record in driver.output("out").read()] == [1, 2]
    assert driver.problems == {"null_value": 1}
