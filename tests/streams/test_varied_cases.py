"""Recorded cases of Kafka Streams, varied: other records (null keys, deletes, out of order), graces and kinds of join; further
operators behind their streams and tables (`_recombined_cases.py`).

Kafka Streams has not run these. What is expected is what the oracle gives, which gives what it gave for each recorded case.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from ._cases import FAMILIES, cases
from ._recombined_cases import recombined
from .oracle.base import Rules
from .running import kernels
from .test_driver_cases import expected_by, is_comparable, needs_cases, outcome

__all__ = ["kernels"]

Json = Any
EVERY = 20
JOINS = {
    "table_join": ("inner", "left", "outer"),
    "fk_join": ("inner", "left"),
    "stream_join": ("inner", "left", "outer"),
    "stream_table_join": ("inner", "left"),
}


def varied(case: Json, numbers: Random) -> Json:
    """Return a case with other steps, made of its keys and values, and other settings of its operators."""
    nodes = [_varied_node(node, numbers) for node in case["nodes"]]
    by_topic: dict[str, list[Json]] = {}
    for step in case["steps"]:
        if "topic" in step:
            by_topic.setdefault(step["topic"], []).append(step)
    has_null_keys = not any(n["op"] == "stream_table_join" and "grace" in n for n in nodes)  # where Kafka Streams crashes
    first = 1_000 if any(n.get("processor") == "shift" for n in nodes) else 0  # times below 0 are not written
    steps, now = [], first
    for step in case["steps"]:
        if "topic" not in step:
            steps.append(step)
            continue
        topic = numbers.choice([*by_topic])
        keys = [found["key"] for found in by_topic[topic] if found["key"] is not None or has_null_keys]
        values = [found["value"] for found in by_topic[topic]]
        now += numbers.choice((0, 0, 1, 3, 5, 8, 20, 60))
        back = numbers.choice((0, 5, 15, 40, 120)) if numbers.random() < 0.35 else 0
        key = None if has_null_keys and numbers.random() < 0.04 else numbers.choice(keys or ["k"])
        value = None if numbers.random() < 0.1 else numbers.choice(values)
        steps.append({"topic": topic, "key": key, "value": value, "ts": max(first, now - back)})
    return {**case, "nodes": nodes, "steps": steps}


def _varied_node(node: Json, numbers: Random) -> Json:
    if "grace" in node.get("window", {}) and numbers.random() < 0.5:
        node = {**node, "window": {**node["window"], "grace": numbers.choice((0, 1, 5, 20, 100))}}
    if node["op"] in JOINS and numbers.random() < 0.5:
        node = {**node, "type": numbers.choice(JOINS[node["op"]])}
    return node


@needs_cases
@pytest.mark.parametrize("family", FAMILIES)
def test_varied_cases_give_what_the_oracle_gives(family: str) -> None:
    numbers, failures = Random(family), []
    for case in cases(family)[numbers.randrange(EVERY) :: EVERY]:
        failures += differing(varied(case, numbers), numbers)
    assert failures == []


@needs_cases
@pytest.mark.parametrize("seed", range(4))
def test_recombined_cases_give_what_the_oracle_gives(seed: int) -> None:
    numbers, failures = Random(seed), []
    for family in FAMILIES:
        failures += differing(recombined(varied(numbers.choice(cases(family)), numbers), numbers), numbers)
    assert failures == []


@needs_cases
@pytest.mark.parametrize("kernels", ["without kernels", "with kernels"], indirect=True)
@pytest.mark.parametrize("seed", range(2))
def test_cases_whose_sources_read_one_topic_give_what_the_oracle_gives(seed: int, kernels: str) -> None:
    numbers, failures = Random(f"{seed} {kernels}"), []
    for family in FAMILIES:
        found = [case for case in cases(family) if _has_several_inputs(case)]
        for case in numbers.sample(found, min(2, len(found))):
            failures += differing(of_one_topic(varied(case, numbers)), numbers)
    assert failures == []


def _has_several_inputs(case: Json) -> bool:
    """Return whether a case reads several topics, none of them as a global table: batches of it count from when they come."""
    return len(case["sources"]) > 1 and all(source["kind"] != "global_table" for source in case["sources"])


def of_one_topic(case: Json) -> Json:
    """Return a case whose sources all read the topic of the first, which all records go to."""
    topic = case["sources"][0]["topic"]
    sources = [{**source, "topic": topic} for source in case["sources"]]
    steps = [{**step, "topic": topic} if "topic" in step else step for step in case["steps"]]
    return {**case, "sources": sources, "steps": steps}


def differing(case: Json, numbers: Random) -> list[str]:
    """Return what differs from the oracle and from all that its rules give, of records taken one by one or in batches."""
    expected = expected_by(case, Rules())
    size = numbers.choice((1, 7, 64))
    sizes = [found for found in (size, 1) if is_comparable(expected, found)]
    if not sizes:
        return []
    kind, differences = outcome(expected, batch_size=sizes[0])
    return [f"{case['name']}, {kind}: {difference}" for difference in differences]
