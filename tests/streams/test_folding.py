"""States changed row by row by generated code are what the aggregators' own functions make of them."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import logflume.streams as lf
from logflume import functions
from logflume.streams import col
from logflume.streams import graph as g
from logflume.streams.operators.folding import Folding

INTS = st.none() | st.integers(-(2**63), 2**63 - 1)
ROWS = st.lists(st.tuples(INTS, st.none() | st.floats(allow_nan=False)), max_size=12)


class Row(msgspec.Struct):
    i: int | None
    f: float | None


def aggregate_node() -> g.Aggregate:
    app = lf.App("folding")
    grouped = app.stream("in", Row).group_by_key()
    grouped.aggregate(
        n=lf.count(), total=lf.sum(col.i), sums=lf.sum(col.f), mean=lf.mean(col.f), whole=lf.mean(col.i),
        low=lf.min(col.i), high=lf.max(col.f), some=functions.collect_list(col.i),
    ).to_stream().to("out")  # fmt: skip
    return next(node for node in app.topology().nodes.values() if isinstance(node, g.Aggregate))


NODE = aggregate_node()


def plainly(what: str, state: Any, given: tuple[Any, ...]) -> Any:
    """Return a state with a row by the aggregators' own functions."""
    made: list[Any] = []
    for aggregation in NODE.aggregations:
        aggregator, start = aggregation.aggregator, len(made)
        part = state[start : start + len(aggregator.state_columns)]
        args, given = given[: len(aggregation.args)], given[len(aggregation.args) :]
        if not (aggregator.skips_null and None in args):
            part = getattr(aggregator, what)(part, *args)
        made += part
    return tuple(made)


def arguments(row: tuple[Any, Any]) -> tuple[Any, ...]:
    """Return what the aggregations are given of a row, in their order."""
    i, f = row
    return (i, f, f, i, i, f, i)


def is_same(state: Any, other: Any) -> bool:
    """Return whether two states are equal, a sum of inf and -inf to itself too. -0.0 is 0.0, and 1.0 is no 1."""
    if isinstance(state, tuple) and isinstance(other, tuple):
        return len(state) == len(other) and all(map(is_same, state, other))
    return type(state) is type(other) and bool(state == other or (state != state and other != other))


@given(ROWS, ROWS)
@example([(None, math.inf)], [(None, -math.inf)])
@example([(None, math.inf), (None, -math.inf)], [])
def test_rows_are_added_and_states_merged_as_the_aggregators_do(rows: list[Any], others: list[Any]) -> None:
    folding, states = Folding(NODE, NODE.aggregations), []
    for each in (rows, others):
        state, plain = None, folding.initial
        for row in each:
            state, plain = folding.add(state, arguments(row), 0, pytest.fail), plainly("add", plain, arguments(row))
        assert is_same(state, plain if each else None)
        states.append(state)
    left, right = states
    merged = folding.merge(left, right, 0, pytest.fail)
    if left is not None and right is not None:
        assert is_same(merged, parts_merged(left, right))
    else:
        assert is_same(merged, left if right is None else parts_merged(folding.initial, right))


@given(ROWS)
def test_a_state_merged_into_nothing_is_itself(rows: list[Any]) -> None:
    app = lf.App("folding")
    grouped = app.stream("in", Row).group_by_key()
    made = grouped.aggregate(n=lf.count(), total=lf.sum(col.i), mean=lf.mean(col.f), low=lf.min(col.i), high=lf.max(col.f))
    made.to_stream().to("out")
    node = next(node for node in app.topology().nodes.values() if isinstance(node, g.Aggregate))
    folding, state = Folding(node, node.aggregations), None
    for i, f in rows:
        state = folding.add(state, (i, f, i, f), 0, pytest.fail)
    assert is_same(folding.merge(None, state, 0, pytest.fail), state)


def parts_merged(left: Any, right: Any) -> Any:
    made: list[Any] = []
    for aggregator in (aggregation.aggregator for aggregation in NODE.aggregations):
        start, stop = len(made), len(made) + len(aggregator.state_columns)
        assert aggregator.merge is not None
        made += aggregator.merge(left[start:stop], right[start:stop])
    return tuple(made)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
def test_what_is_taken_out_wraps_as_what_is_added(total: int, value: int) -> None:
    app = lf.App("folding")
    app.table("in", Row).group_by(col.i).aggregate(n=lf.count(), total=lf.sum(col.i)).to_stream().to("out")
    node = next(node for node in app.topology().nodes.values() if isinstance(node, g.TableAggregate))
    folding = Folding(node, node.aggregations)
    added = folding.add((0, total), (value,), 0, pytest.fail)
    assert added == (1, (total + value + 2**63) % 2**64 - 2**63)
    assert folding.subtract(added, (value,), 0, pytest.fail) == (0, total)


def test_what_an_aggregator_raises_is_reported_and_leaves_its_part_alone() -> None:
    reported: list[int] = []
    folding = Folding(NODE, NODE.aggregations)
    state = folding.add(None, arguments((1, 2.0)), 0, pytest.fail)
    assert state is not None
    wrong = (1, 2.0, "no number", 1, 1, 2.0, 1)
    again = folding.add(state, wrong, 7, lambda row, error: reported.append(row))
    assert reported == [7]
    assert again is not None
    assert (again[0], again[3:5]) == (2, state[3:5])
