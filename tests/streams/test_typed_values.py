"""What does not fit the class of a topic's values is left out and counted; an object of another class is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

import logflume as lf
from logflume.log import InvalidInput
from logflume.streams import col


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
