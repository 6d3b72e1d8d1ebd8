"""Functions over many records at once, and coroutines."""

from __future__ import annotations

import asyncio
import datetime
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import logflume.streams as lf
from logflume.log import InvalidInput, UnknownName
from logflume.streams import col
from logflume.streams.testing import TopologyTestDriver


@dataclass
class Shot:
    player: str
    distance: float | None
    at: datetime.datetime
    price: Decimal
    tags: list[str]
    sizes: dict[str, int]


def shot(player: str, distance: float | None) -> Shot:
    at = datetime.datetime(2024, 5, 17, 9, 30, tzinfo=datetime.UTC)
    return Shot(player, distance, at, Decimal("1.5"), ["a", "b"], {"x": 1})


def numbers(function: Any, returns: Any = None, **options: Any) -> TopologyTestDriver:
    app = lf.App("batches")
    app.stream("in").select(n=col.n.cast(int)).map_batches(function, returns, **options).to("out")
    return TopologyTestDriver(app, on_problem="skip")


def values(driver: TopologyTestDriver, *records: Any) -> list[Any]:
    driver.input("in").send_together([(f"k{i}", None if n is None else {"n": n}, i) for i, n in enumerate(records)])
    return [(r.key, r.value) for r in driver.output("out").read()]


def test_all_types_go_to_arrow_and_come_back() -> None:
    app, seen = lf.App("shots"), []

    def same(table: Any) -> Any:
        seen.append(table.schema)
        return table

    app.stream("in", Shot).map_batches(same).map_values(lambda shot: shot).to("out")
    driver = TopologyTestDriver(app)
    shots = [shot("ann", 3.5), shot("bob", None)]
    driver.input("in").send_together([(None, each, 0) for each in shots])
    rows = [r.value for r in driver.output("out").read()]
    assert [(row["player"], row["distance"], row["tags"], row["sizes"]) for row in rows] == [
        ("ann", 3.5, ["a", "b"], {"x": 1}), ("bob", None, ["a", "b"], {"x": 1}),
    ]  # fmt: skip
    assert len(seen) == 1
    assert seen[0].field("at").type == pa.timestamp("ms", "UTC")


@pytest.mark.parametrize(
    ("form", "function"),
    [
        ("arrow", lambda t: t.set_column(0, "n", pc.multiply(t.column("n"), 2))),
        ("arrow", lambda t: {"n": pc.multiply(t.column("n"), 2)}),
        ("pandas", lambda t: t * 2),
        ("numpy", lambda t: {"n": t["n"] * 2}),
        ("polars", lambda t: t * 2),
    ],
)
def test_each_form_is_given_and_taken(form: str, function: Any) -> None:
    pytest.importorskip(form) if form == "polars" else None
    assert values(numbers(function, form=form), 1, None, 3) == [("k0", {"n": 2}), ("k1", None), ("k2", {"n": 6})]


def test_a_row_that_fails_is_found_and_left_out_alone() -> None:
    def inverse(table: Any) -> Any:
        if 0 in table["n"]:
            raise ZeroDivisionError("division by zero")
        return {"inverse": 1.0 / table["n"]}

    driver = numbers(inverse, {"inverse": float}, form="numpy")
    assert [key for key, _ in values(driver, *range(-3, 4))] == ["k0", "k1", "k2", "k4", "k5", "k6"]
    assert driver.problems == {"callable": 1}


def test_rows_are_given_in_bounded_numbers() -> None:
    sizes = []

    def measure(table: Any) -> Any:
        sizes.append(table.num_rows)
        return table

    assert len(values(numbers(measure, rows_max=4), *range(10))) == 10
    assert sizes == [4, 4, 2]


@pytest.mark.parametrize(
    "function",
    [
        lambda table: table.slice(1), lambda table: None, lambda table: 5, lambda table: {"m": table.column("n")},
        lambda table: {"n": pa.array(["x"] * table.num_rows)},
    ],
)  # fmt: skip
def test_another_number_or_kind_of_rows_is_a_broken_contract(function: Any) -> None:
    driver = numbers(function)
    assert values(driver, 1, 2) == []
    assert driver.problems == {"callable": 2}


@pytest.mark.parametrize(
    ("use", "error", "text"),
    [
        (lambda s: s.map_batches(len), InvalidInput, "needs columns of known types"),
        (lambda s: s.select(n=col.n.cast(int)).map_batches(len, form="arow"), UnknownName, "did you mean 'arrow'"),
        (lambda s: s.select(n=col.n.cast(int)).map_batches(len, int), InvalidInput, "a class with typed fields"),
        (lambda s: s.select(n=col.n.cast(int)).map_batches(len, {"n": dict}), InvalidInput, "columns of known types"),
        (lambda s: s.select(n=col.n.cast(int)).map_batches(len, rows_max=0), InvalidInput, "at least 1, found 0"),
        (lambda s: s.map_async(asked, limit=0), InvalidInput, "at least 1, found 0"),
        (lambda s: s.map_async(asked, retries=-1), InvalidInput, "at least 0, found -1"),
        (lambda s: s.map_async(asked, timeout="1s"), InvalidInput, "or a timedelta"),
        (lambda s: s.map_async(5), InvalidInput, "found 5"),
    ],
)
def test_what_cannot_be_meant_is_refused(use: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        use(lf.App("x").stream("in"))


class Service:
    """Counts how many calls are under way; later values are answered first."""

    def __init__(self, *, failures: int = 0) -> None:
        self.running = self.most = self.calls = 0
        self.failures = failures

    async def ask(self, value: Any) -> Any:
        self.calls += 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            for _ in range(20 - value["n"]):
                await asyncio.sleep(0)
            if self.failures:
                self.failures -= 1
                raise ConnectionError("busy")
            return value["n"] * 10
        finally:
            self.running -= 1


async def asked(value: Any) -> Any:
    return value


def calling(function: Any, **options: Any) -> TopologyTestDriver:
    app = lf.App("calls")
    app.stream("in").map_async(function, **options).to("out")
    return TopologyTestDriver(app, on_problem="skip")


def test_calls_are_under_way_together_and_leave_in_order() -> None:
    service = Service()
    driver = calling(service.ask, limit=4)
    assert values(driver, *range(10)) == [(f"k{n}", n * 10) for n in range(10)]
    assert service.most == 4


def test_unordered_results_leave_as_they_come_and_none_is_lost() -> None:
    service = Service()
    found = values(calling(service.ask, limit=4, ordered=False), *range(10))
    assert sorted(found) == [(f"k{n}", n * 10) for n in range(10)]
    assert found != sorted(found)
    assert service.most == 4


def test_other_records_of_a_topic_keep_their_order_beside_results_that_come_in_any() -> None:
    app = lf.App("calls")
    numbers = app.stream("in")
    odd, even = numbers.split(lambda value: value["n"] % 2 == 1)
    for each in (odd, even, numbers.map_async(Service().ask, limit=4, ordered=False)):
        each.to("out")
    found = values(TopologyTestDriver(app, on_problem="skip"), *range(10))
    assert [value["n"] for _, value in found if isinstance(value, dict)] == list(range(10))
    assert sorted(value for _, value in found if isinstance(value, int)) == list(range(0, 100, 10))


@pytest.mark.parametrize("ordered", [True, False])
def test_what_fails_is_tried_again_and_in_the_end_counted(ordered: bool) -> None:
    patient = Service(failures=2)
    driver = calling(patient.ask, retries=2, pause=0, ordered=ordered, limit=1)
    assert values(driver, 1, 2) == [("k0", 10), ("k1", 20)]
    assert patient.calls == 4
    tired = Service(failures=2)
    driver = calling(tired.ask, retries=1, pause=0, ordered=ordered, limit=1)
    assert values(driver, 1, 2) == [("k1", 20)]
    assert driver.problems == {"callable": 1}


def test_a_call_that_never_ends_is_given_up() -> None:
    async def never(value: Any) -> Any:
        await asyncio.Event().wait()

    driver = calling(never, timeout=1)
    assert values(driver, 1) == []
    assert driver.problems == {"callable": 1}


def test_lists_are_asked_about_at_once_with_their_keys() -> None:
    calls: list[Any] = []

    async def together(keys: list[Any], rows: list[Any]) -> list[Any]:
        calls.append(keys)
        return [row["n"] for row in rows]

    assert values(calling(together, rows_max=2), 5, 6, 7) == [("k0", 5), ("k1", 6), ("k2", 7)]
    assert calls == [["k0", "k1"], ["k2"]]

    async def short(rows: list[Any]) -> list[Any]:
        return rows[1:]

    driver = calling(short, rows_max=2)
    assert values(driver, 5, 6) == []
    assert driver.problems == {"callable": 2}


def test_what_is_no_coroutine_is_counted() -> None:
    driver = calling(lambda value: value)
    assert values(driver, 1) == []
    assert driver.problems == {"callable": 1}
