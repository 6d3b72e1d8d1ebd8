"""Plain functions that raise, or return something else than their operator takes: the record is left out and counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import logflume.streams as lf
from logflume.log import InvalidInput
from logflume.log.interfaces import Log
from logflume.streams import col
from logflume.streams.runtime import PoisonRecord, StreamsError
from logflume.streams.testing import TopologyTestDriver
from tests.streams.running import embedded, read, running, send_json, until

GOOD, BAD = 1, 0


class Quotient(msgspec.Struct):
    n: int


Build = Callable[[lf.App], None]


def inverse(value: Any) -> float:
    """Return 1 / n: fails for 0."""
    return 1 / value["n"]


def rows(app: lf.App) -> lf.Stream:
    return app.stream("in")


def a_table(app: lf.App) -> lf.Table:
    return app.table("in", store="rows")


RAISING: dict[str, Build] = {
    "map_values": lambda app: rows(app).map_values(inverse).to("out"),
    "map": lambda app: rows(app).map(lambda value: (str(inverse(value)), value), key=str).to("out"),
    "flat_map": lambda app: rows(app).flat_map(lambda value: [("k", inverse(value))], key=str).to("out"),
    "flat_map_values": lambda app: rows(app).flat_map_values(lambda value: [inverse(value)]).to("out"),
    "filter": lambda app: rows(app).filter(lambda value: inverse(value) > 0).to("out"),
    "filter_not": lambda app: rows(app).filter_not(lambda value: inverse(value) < 0).to("out"),
    "select_key": lambda app: rows(app).select_key(lambda value: str(inverse(value)), key=str).to("out"),
    "peek": lambda app: rows(app).peek(inverse).to("out"),
    "group_by": lambda app: rows(app).group_by(lambda value: str(inverse(value)), key=str).count(emit="update").to("out"),
    "reduce": lambda app: rows(app).map_values(lambda v: v["n"]).group_by_key().reduce(
        lambda old, new: 1 // new, emit="update").to("out"),
    "aggregate": lambda app: rows(app).group_by_key().aggregate(
        int, lambda total, v: total + inverse(v), emit="update").to("out"),
    "aggregate by window": lambda app: rows(app).group_by_key().window(lf.hopping(seconds=10, advance=5000)).aggregate(
        int, lambda total, v: total + inverse(v)).to("out"),
    "join": lambda app: rows(app).join(app.table("names"), lambda value, row: inverse(value)).to("out"),
    "left join": lambda app: rows(app).left_join(app.table("names"), lambda value, row: inverse(value)).to("out"),
    "table map_values": lambda app: a_table(app).map_values(inverse).to("out"),
    "table filter": lambda app: a_table(app).filter(lambda row: inverse(row) > 0).to("out"),
    "stored map_values": lambda app: app.table("in").map_values(inverse, store="mapped").to("out"),
    "stored filter": lambda app: app.table("in").filter(lambda row: inverse(row) > 0, store="passing").to("out"),
}  # fmt: skip


def driven(build: Build, **settings: Any) -> TopologyTestDriver:
    app = lf.App("callables")
    build(app)
    return TopologyTestDriver(app, **settings)


def feed(driver: TopologyTestDriver, *values: Any) -> None:
    for value in values:
        driver.input("in").send(value, key="k", timestamp_ms=1000)


@pytest.mark.parametrize("name", RAISING)
def test_a_record_whose_callable_raises_puts_out_nothing_and_is_counted(name: str) -> None:
    driver = driven(RAISING[name], on_problem="skip")
    if "join" in name:
        driver.input("names").send({"name": "x"}, key="k", timestamp_ms=0)
    feed(driver, {"n": GOOD})
    before = driver.output("out").read()
    feed(driver, {"n": BAD}, {"n": BAD})
    assert before
    assert driver.output("out").read() == []
    assert driver.problems == {"callable": 2}
    feed(driver, {"n": GOOD})
    after = driver.output("out").read()
    assert len(after) == len(before), "the row, or the aggregate, is as it was"
    if "aggregate" in name:
        assert [record.value for record in after] == [2 * record.value for record in before]


def branches_to_topics(*branches: lf.Stream) -> None:
    for place, branch in enumerate(branches):
        branch.to(f"out{place}")


def test_a_record_that_fails_in_a_split_is_counted_once_and_is_in_no_branch() -> None:
    def build(app: lf.App) -> None:
        branches_to_topics(*rows(app).split(lambda v: inverse(v) > 1, lambda v: v["m"] > 0, lambda v: v["o"] > 0))

    driver = driven(build, on_problem="skip")
    feed(
        driver,
        {"n": BAD},
        {"n": 1},
        {"n": 1, "m": 0},
        {"n": 0.5},
        {"n": 1, "m": 1},
        {"n": 1, "m": 0, "o": 1},
        {"n": 1, "m": 0, "o": 0},
    )
    assert driver.problems == {"callable": 3}
    assert [len(driver.output(f"out{place}")) for place in range(4)] == [1, 1, 1, 1]


def test_a_split_asks_each_function_once_and_only_about_records_that_are_left() -> None:
    asked: list[tuple[str, int]] = []

    def over(name: str, least: int) -> Callable[[Any], bool]:
        return lambda value: asked.append((name, value["n"])) or value["n"] > least

    def build(app: lf.App) -> None:
        branches_to_topics(*rows(app).split(over("a", 2), col.n == 2, over("b", 0)))

    feed(driven(build), {"n": 3}, {"n": 2}, {"n": 1}, {"n": 0})
    assert asked == [("a", 3), ("a", 2), ("a", 1), ("b", 1), ("a", 0), ("b", 0)]


def test_an_expression_that_fails_in_a_split_is_counted_once_and_only_of_records_that_are_left() -> None:
    """A record without a value meets no expression: it is one of the rest."""

    def build(app: lf.App) -> None:
        branches_to_topics(*app.stream("in", Quotient).split(col.n > 8, 10 % col.n == 0))

    driver = driven(build, on_problem="skip")
    feed(driver, {"n": 9}, {"n": 5}, {"n": 0}, {"n": 3}, None)
    assert driver.problems == {"expression": 1}
    found = [[record.value for record in driver.output(f"out{place}").read()] for place in range(3)]
    assert found == [[Quotient(9)], [Quotient(5)], [Quotient(3), None]]


@pytest.mark.parametrize("name", ["reduce", "aggregate"])
def test_the_first_record_of_a_key_that_fails_leaves_no_aggregate(name: str) -> None:
    driver = driven(RAISING[name], on_problem="skip")
    feed(driver, {"n": BAD})
    if name == "aggregate":
        assert driver.output("out").read() == []
        assert [row for store in driver._stores for row in driver.store(store).rows()] == []


@pytest.mark.parametrize("name", RAISING)
def test_the_driver_raises_with_the_line_of_the_callable(name: str) -> None:
    driver = driven(RAISING[name])
    if "join" in name:
        driver.input("names").send({"name": "x"}, key="k", timestamp_ms=0)
    feed(driver, {"n": GOOD})
    with pytest.raises(StreamsError, match="ZeroDivisionError") as caught:
        feed(driver, {"n": BAD})
    cause = caught.value.__cause__
    assert cause is not None
    frames = []
    trace = cause.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    assert frames[-1] == __file__


@pytest.mark.parametrize(
    ("build", "returned"),
    [
        (lambda app: rows(app).flat_map(lambda value: ["ab", "cd"]).to("out"), "'ab'"),
        (lambda app: rows(app).flat_map(lambda value: "ab").to("out"), "'ab'"),
        (lambda app: rows(app).flat_map(lambda value: None).to("out"), "None"),
        (lambda app: rows(app).flat_map(lambda value: [("a", 1, 2)]).to("out"), "('a', 1, 2)"),
        (lambda app: rows(app).map(lambda value: "ab").to("out"), "'ab'"),
        (lambda app: rows(app).map(lambda value: None).to("out"), "None"),
        (lambda app: rows(app).map(lambda value: ("text", value), key=int).to("out"), "whose key is BIGINT, found 'text'"),
        (lambda app: rows(app).flat_map(lambda value: [(1, value), (True, 2)], key=int).to("out"), "found True"),
        (lambda app: rows(app).flat_map_values(lambda value: 7).to("out"), "7"),
        (lambda app: rows(app).flat_map_values(lambda value: "abc").to("out"), "'abc'"),
        (lambda app: rows(app).group_by_key().aggregate(list, lambda kept, value: kept.append(value)).to("out"), "in place"),
    ],
)
def test_a_broken_contract_is_reported_as_that(build: Build, returned: str) -> None:
    with pytest.raises(StreamsError) as caught:
        feed(driven(build), {"n": 1})
    assert returned in str(caught.value)
    skipping = driven(build, on_problem="skip")
    feed(skipping, {"n": 1}, {"n": 2})
    assert skipping.output("out").read() == []
    assert skipping.problems == {"callable": 2}


@pytest.mark.parametrize("name", ["table map_values", "table filter", "stored map_values", "stored filter"])
def test_no_callable_is_asked_about_a_deleted_row(name: str) -> None:
    driver = driven(RAISING[name])
    feed(driver, {"n": GOOD}, None)
    assert [record.value is None for record in driver.output("out").read()] == [False, True]


class Answering:
    """Has a value for every name, but no length."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__len__":
            raise AttributeError(name)
        return lambda: 3


@pytest.mark.parametrize("window", [None, lf.tumbling(seconds=10), lf.session(lf.seconds(10))])
def test_an_aggregate_is_whatever_its_function_takes(window: Any) -> None:
    """One that is changed in place and returned, and is nobody else's; one without a length."""
    begun: dict[str, Any] = {"seen": 0}
    kinds = []

    def add(total: dict[str, Any], value: Any) -> Any:
        total["seen"] += value["n"]
        return total

    def noted(total: Any, value: Any) -> int:
        kinds.append(type(total))
        return 1

    def build(app: lf.App) -> None:
        grouped: Any = rows(app).group_by_key()
        grouped = grouped if window is None else grouped.window(window)
        summed = lf.aggregate(begun, add, merge=lambda a, b: {"seen": a["seen"] + b["seen"]})
        grouped.aggregate(summed, name="sums", emit="update").to("out")
        grouped.aggregate(lf.aggregate(Answering, noted, merge=lambda a, b: b), name="others", emit="update").to("others")

    driver = driven(build)
    for key, n in (("a", 1), ("b", 2), ("a", 3)):
        driver.input("in").send({"n": n}, key=key, timestamp_ms=1000)
    assert [record.value for record in driver.output("out").read() if record.value] == [{"seen": n} for n in (1, 2, 4)]
    assert begun == {"seen": 0}
    assert kinds[:2] == [Answering, Answering]


@pytest.mark.parametrize("mutator", [list.append, list.extend, set.add, dict.update])
def test_an_aggregator_that_returns_nothing_is_refused(mutator: Any) -> None:
    grouped = lf.App("x").stream("in").group_by_key()
    with pytest.raises(InvalidInput, match="returns nothing"):
        grouped.aggregate(mutator.__objclass__, mutator)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with embedded(tmp_path / "data") as opened:
        opened.admin().ensure_topic("in")
        yield opened


def test_the_engine_leaves_such_records_out_and_keeps_them(log: Log, tmp_path: Path) -> None:
    app = lf.App("callables")
    a_table(app).map_values(inverse).to("out")
    send_json(log, "in", [("k", {"n": n % 4}, 1000 + n) for n in range(40)])
    with running(app, log, tmp_path / "state", dead_letter_topic="dead") as engine:
        until(lambda: len(read(log, "out")) == 30, engine)
        until(lambda: engine.status().dropped == {"callable": 10}, engine)
        until(lambda: len(read(log, "dead")) == 10, engine)
    assert all(record.value is not None for record in read(log, "out"))
    assert [msgspec.json.decode(record.value or b"") for record in read(log, "dead")] == [{"n": 0}] * 10


def test_the_engine_keeps_a_record_that_fails_in_a_split_once(log: Log, tmp_path: Path) -> None:
    app = lf.App("callables")
    branches_to_topics(*rows(app).split(lambda value: inverse(value) > 1, lambda value: inverse(value) > 0.4))
    send_json(log, "in", [("k", {"n": n % 4}, 1000 + n) for n in range(400)])
    with running(app, log, tmp_path / "state", dead_letter_topic="dead") as engine:
        until(lambda: len(read(log, "out2")) == 100, engine)
        until(lambda: engine.status().dropped == {"callable": 100}, engine)
    assert len(read(log, "dead")) == 100
    assert (len(read(log, "out0")), len(read(log, "out1"))) == (0, 200)


def test_the_engine_tells_the_type_and_the_line_of_what_a_callable_raises(
    log: Log, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen = []

    def price(value: Any) -> Any:
        try:
            return value["price"]
        finally:
            seen.append(value)

    app = lf.App("callables")
    rows(app).map_values(price).to("out")
    send_json(log, "in", [("k", {"n": 1}, 1000)])
    with running(app, log, tmp_path / "state") as engine:
        until(lambda: engine.status().dropped == {"callable": 1}, engine)
        (left_out,) = engine.status().left_out
    line = price.__code__.co_firstlineno + 2
    for told in (left_out.first, caplog.text):
        assert "KeyError: 'price' in " in told
        assert f"({__file__}:{line})" in told


def test_what_no_single_record_caused_is_told_as_that(log: Log, tmp_path: Path) -> None:
    app = lf.App("callables")
    rows(app).group_by_key().count().to_stream().map_values(lambda value: 1 // 0).to("out")
    send_json(log, "in", [("k", {"n": 1}, 1000)])
    with running(app, log, tmp_path / "state") as engine:
        until(lambda: engine.status().dropped == {"callable": 1}, engine)
        (left_out,) = engine.status().left_out
    assert left_out.first.startswith("a result that no single record caused: ZeroDivisionError")


def test_no_record_is_left_out_for_a_want_of_memory(log: Log, tmp_path: Path) -> None:
    def hungry(value: dict[str, int]) -> dict[str, int]:
        if value["n"] == BAD:
            raise MemoryError
        return value

    app = lf.App("callables")
    rows(app).map_values(hungry).to("out")
    send_json(log, "in", [("k", {"n": n}, 1000) for n in (GOOD, BAD)])
    with running(app, log, tmp_path / "state", on_problem="skip") as engine:
        with pytest.raises(StreamsError, match="MemoryError while processing in-0 offsets 0 to 1"):
            until(lambda: False, engine)
        assert engine.status().dropped == {}


def test_the_engine_stops_with_the_cause_when_told_so(log: Log, tmp_path: Path) -> None:
    app = lf.App("callables")
    rows(app).map_values(inverse).to("out")
    send_json(log, "in", [("k", {"n": 0}, 1000)])
    with running(app, log, tmp_path / "state", on_problem="stop") as engine, pytest.raises(PoisonRecord, match="division"):
        engine.wait(timeout_s=60)
