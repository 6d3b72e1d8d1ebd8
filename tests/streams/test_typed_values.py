"""Values of classes: times, decimals, enums and the like as JSON, and rows that a class refuses."""

from __future__ import annotations

import datetime
import enum
import uuid
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest

import logflume.streams as lf
from logflume.log import InvalidInput
from logflume.log.schemas import columns_of
from logflume.streams import col
from logflume.streams.testing import TopologyTestDriver


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Event:
    at: datetime.datetime
    day: datetime.date
    time: datetime.time
    price: Decimal
    color: Color
    level: Level
    id: uuid.UUID
    tags: tuple[str, ...]
    colors: frozenset[Color]


EVENT = Event(
    datetime.datetime(2024, 5, 17, 9, 30, 0, 500_000, tzinfo=datetime.UTC), datetime.date(2024, 5, 17), datetime.time(9, 30),
    Decimal("1.10"), Color.RED, Level.HIGH, uuid.UUID(int=5), ("a", "b"), frozenset({Color.BLUE}),
)  # fmt: skip
WRITTEN = {
    "at": "2024-05-17T09:30:00.500Z", "day": "2024-05-17", "time": "09:30:00", "price": 1.1, "color": "red", "level": 2,
    "id": str(uuid.UUID(int=5)), "tags": ["a", "b"], "colors": ["blue"],
}  # fmt: skip


def through(cls: Any, *values: Any) -> tuple[list[Any], TopologyTestDriver]:
    """Return the objects that a function was given, and the driver."""
    app, seen = lf.App("typed"), []
    app.stream("in", cls).peek(seen.append).to("out")
    driver = TopologyTestDriver(app, on_problem="skip")
    for value in values:
        driver.input("in").send(value if isinstance(value, bytes) or not isinstance(value, dict) else msgspec.json.encode(value))
    return seen, driver


def test_an_object_is_written_as_a_person_would_and_read_back_the_same() -> None:
    seen, driver = through(Event, EVENT)
    assert seen == [EVENT]
    written = driver.output("out").raw[0][1]
    assert msgspec.json.decode(written or b"") == WRITTEN
    again, _ = through(Event, written)
    assert again == [EVENT]


@pytest.mark.parametrize(
    "at", ["2024-05-17T09:30:00.5Z", "2024-05-17 09:30:00.500", "2024-05-17T11:30:00.500+02:00", 1715938200500, "1715938200500"]
)
def test_times_are_read_as_numbers_and_as_iso_text(at: Any) -> None:
    seen, _ = through(Event, {**WRITTEN, "at": at})
    assert seen == [EVENT]


@pytest.mark.parametrize(
    "wrong",
    [{"color": "green"}, {"at": "yesterday"}, {"at": 10**18}, {"at": -(10**18)}, {"day": 10**9}, {"id": "x"}, {"time": "09:30Z"}],
)
def test_a_row_that_the_class_refuses_is_counted_and_the_others_go_on(wrong: dict[str, Any]) -> None:
    seen, driver = through(Event, {**WRITTEN, **wrong}, EVENT)
    assert seen == [EVENT]
    assert driver.problems == {"decode": 1}


def test_members_of_an_enum_are_of_one_type() -> None:
    class Mixed(enum.Enum):
        A = "a"
        B = 1

    @dataclass
    class Wrong:
        mixed: Mixed

    Wrong.__annotations__["mixed"] = Mixed
    with pytest.raises(InvalidInput, match="must have text or whole numbers"):
        columns_of(Wrong)


class Model(pydantic.BaseModel):
    user: str
    amount: int = pydantic.Field(ge=0)
    note: str = "none"


class Struct(msgspec.Struct):
    user: str
    amount: int
    note: str = "none"


class Tuple(NamedTuple):
    user: str
    amount: int
    note: str = "none"


class Dict(TypedDict):
    user: str
    amount: int
    note: str


@pytest.mark.parametrize("cls", [Model, Struct, Tuple, Dict])
def test_a_typed_class_may_be_value_and_result(cls: Any) -> None:
    def doubled(value: Any) -> Any:
        made = value if isinstance(value, dict) else {n: getattr(value, n) for n in ("user", "amount", "note")}
        return cls(**{**made, "amount": made["amount"] * 2})

    doubled.__annotations__["return"] = cls
    app = lf.App("typed")
    values = app.stream("in", cls)
    values.filter(col.amount > 1).map_values(doubled).select(user=col.user, twice=col.amount).to("out")
    driver = TopologyTestDriver(app)
    for amount in (1, 2):
        driver.input("in").send(cls(user="ann", amount=amount, note="x"))
    assert [r.value for r in driver.output("out").read()] == [{"user": "ann", "twice": 4}]


def test_what_a_pydantic_model_refuses_is_counted() -> None:
    seen, driver = through(Model, {"user": "ann", "amount": -1}, {"user": "bob", "amount": 1})
    assert seen == [Model(user="bob", amount=1)]
    assert driver.problems == {"decode": 1}
