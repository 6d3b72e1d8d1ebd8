"""The graph a user builds: names, repartition topics, sub-topologies, and that it can be shipped."""

from __future__ import annotations

import pickle
from operator import itemgetter
from typing import Any

import msgspec
import pytest

import logflume as lf
from logflume import col
from logflume.log import InvalidInput
from logflume.streams.graph import Repartition
from logflume.streams.planner import rewrite
from logflume.streams.testing import TopologyTestDriver


class Flight(msgspec.Struct):
    carrier: str
    dep_delay: float | None
    tailnum: str | None = None
    origin: str = ""


class Airline(msgspec.Struct):
    carrier: str
    name: str


def delays() -> lf.App:
    app = lf.App("delays")
    flights, airlines = app.stream("flights", Flight), app.table("airlines", Airline)
    (
        flights.filter(col.dep_delay > 15)
        .join(airlines, on=col.carrier)
        .group_by(col.name)
        .window(lf.tumbling(hours=1, grace=lf.minutes(10)))
        .aggregate(flights=lf.count(), mean_delay=lf.mean(col.dep_delay))
        .to("delays")
    )
    return app


def test_the_example_becomes_three_subtopologies_with_stable_names() -> None:
    parts = delays().plan().subtopologies
    assert [part.name for part in parts] == ["flights", "airlines", "flights-airlines-by-name-repartition"]
    assert {output.topic for part in parts for output in part.outputs.values()} == {
        "delays-flights-by-carrier-repartition",
        "delays-flights-airlines-by-name-repartition",
        "delays",
    }
    assert [store.name for part in parts for store in part.program.stores] == [
        "airlines",
        "flights-airlines-by-name-1h-flights-mean_delay",
    ]
    assert parts[1].table_sources == {"airlines": "airlines"}
    assert parts[0].outputs["flights-by-carrier-repartition"].partitions is None, "the engine lets it follow airlines"
    assert parts[2].outputs["delays"].key_suffix_bytes == 8


def test_a_repartition_topic_holds_only_what_is_read_behind_it() -> None:
    nodes = rewrite(delays().topology()).nodes.values()
    written = {node.name: [c.name for c in node.schema.value] for node in nodes if isinstance(node, Repartition)}
    assert written == {
        "flights-by-carrier-repartition": ["dep_delay"],
        "flights-airlines-by-name-repartition": ["dep_delay"],
    }


def test_the_order_of_building_does_not_change_names() -> None:
    def names(*, swapped: bool) -> set[str]:
        app = lf.App("a")
        flights = app.stream("flights", Flight)
        steps = [lambda: flights.group_by(col.origin).count(), lambda: flights.group_by(col.carrier).count()]
        for step in reversed(steps) if swapped else steps:
            step().to(f"out-{len(app.topology().nodes)}", partitions=1)
        return {store.name for part in app.plan().subtopologies for store in part.program.stores}

    assert names(swapped=False) == names(swapped=True) == {"flights-by-origin-count", "flights-by-carrier-count"}


def test_consumers_of_one_grouping_share_its_repartition_topic() -> None:
    app = lf.App("a")
    grouped = app.stream("flights", Flight).group_by(col.origin)
    grouped.count().to("counts")
    grouped.mean(col.dep_delay).to("means")
    parts = app.plan().subtopologies
    assert [list(part.outputs) for part in parts] == [["flights-by-origin-repartition"], ["counts", "means"]]


def test_a_topology_with_importable_functions_can_be_pickled_and_compiled_again() -> None:
    app = lf.App("shipped")
    app.stream("flights", Flight).map_values(itemgetter_origin).group_by_key().aggregate(0, add_one, name="n").to("out")
    topology = pickle.loads(pickle.dumps(app.topology()))
    assert str(topology.describe()) == str(app.topology().describe())
    driver = TopologyTestDriver(topology)
    driver.input("flights").send(Flight(carrier="AA", origin="JFK", dep_delay=1.0), key="a")
    assert driver.output("out").read()[0].value == 1


def itemgetter_origin(flight: Flight) -> str:
    return flight.origin


def add_one(total: int, value: object) -> int:
    return total + 1


def times_ten(total: int, value: object) -> int:
    return 10 * total


def test_built_in_functions_stand_where_a_function_can() -> None:
    app = lf.App("a")
    app.stream("lines").map_values(itemgetter("a")).to("out")
    driver = TopologyTestDriver(app)
    driver.input("lines").send({"a": 5})
    assert driver.output("out").read()[0].value == 5


def test_a_join_on_a_table_that_is_a_stream_is_refused() -> None:
    app = lf.App("a")
    with pytest.raises(InvalidInput, match="has no source yet"):
        app.topology()


def test_a_rekeyed_stream_that_is_in_a_cogroup_more_than_once_is_written_once() -> None:
    app = lf.App("a")
    by_origin = app.stream("flights", Flight).group_by(col.origin)
    both = by_origin.cogroup(add_one).cogroup(by_origin, times_ten).cogroup(by_origin, add_one)
    both.aggregate(0, name="thrice", emit="update").to("out")
    parts = app.plan().subtopologies
    assert [list(part.outputs) for part in parts] == [["flights-by-origin-repartition"], ["out"]]
    driver = TopologyTestDriver(app)
    driver.input("flights").send(Flight(carrier="AA", origin="JFK", dep_delay=1.0))
    assert [record.value for record in driver.output("out").read()] == [1, 10, 11]


def followed(kind: str) -> lf.App:
    """Return a stream that is repartitioned and, behind something else, in a left join."""
    app = lf.App("a")
    names, others = app.table("names", str, key=str), app.stream("others", str, key=str)
    again = app.stream("in", str, key=str).repartition("again")
    join: dict[str, Any] = {"joiner": lambda one, other: f"{one}-{other}"}
    within: dict[str, Any] = {**join, "within": 10}
    made = {
        "nothing": lambda: again,
        "a filter": lambda: again.filter(lambda value: True),
        "a new key": lambda: again.select_key(lambda value: value, key=str),
        "an outer join": lambda: again.outer_join(others, **within),
        "the right of an outer join": lambda: others.outer_join(again, **within),
        "the left of a left join": lambda: again.left_join(others, **within),
        "the right of a left join": lambda: others.left_join(again, **within),
        "an inner join": lambda: again.join(others, **within),
        "an inner join with a table": lambda: again.join(names, **join),
        "a global table": lambda: again.join(app.global_table("all", str, key=str), on=lambda value: value, **join),
        "a table": lambda: again.to_table(store="kept").to_stream(),
        "an aggregate": lambda: again.group_by_key().reduce(lambda a, b: b, name="kept").to_stream(),
        "a deduplicate": lambda: again.deduplicate(),
    }[kind]()
    made.left_join(names, **join).to("out")
    return app


@pytest.mark.parametrize(
    ("kind", "keeps"),
    [
        ("nothing", True), ("a filter", True), ("a new key", True), ("an outer join", True),
        ("the right of an outer join", True), ("the left of a left join", True), ("the right of a left join", False),
        ("an inner join", False), ("an inner join with a table", False), ("a global table", True), ("a table", False),
        ("an aggregate", False), ("a deduplicate", False),
    ],
)  # fmt: skip
def test_records_without_a_key_are_repartitioned_only_for_joins_that_they_reach(kind: str, keeps: bool) -> None:
    again = rewrite(followed(kind).topology()).nodes["again-repartition"]
    assert isinstance(again, Repartition)
    assert again.keeps_null_keys is keeps
    driver = TopologyTestDriver(followed(kind))
    driver.input("in").send("k", timestamp_ms=1)
    assert driver.problems == ({} if keeps else {"null_key": 1}), "it is dropped where it is written, or goes on"
