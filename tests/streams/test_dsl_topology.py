"""The graph a user builds: names, repartition topics, sub-topologies, and that it can be shipped."""

from __future__ import annotations

import pickle
from operator import itemgetter

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
