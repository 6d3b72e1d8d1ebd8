"""Estimates by sketches: how close they are, merged and not, and that they are kept over a restart."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import logflume as lf
from logflume.log import InvalidInput
from logflume.streams import col
from logflume.streams.functions import builtin_library
from logflume.streams.testing import TopologyTestDriver

CONSTANTS: dict[str, tuple[Any, ...]] = {"COUNT_DISTINCT": (), "APPROX_QUANTILE": (0.5,), "FREQUENT_ITEMS": (3,)}


def aggregator(name: str) -> Any:
    return builtin_library().aggregates[name].overloads[0].make([], list(CONSTANTS[name]))


def folded(made: Any, values: list[Any]) -> Any:
    state = made.initial
    for value in values:
        state = made.add(state, value)
    return state


@pytest.mark.parametrize("name", CONSTANTS)
@settings(max_examples=30)
@given(st.lists(st.integers(0, 30), max_size=60), st.integers(0, 60))
def test_a_merged_sketch_is_that_of_all_while_few(name: str, numbers: list[int], cut: int) -> None:
    made = aggregator(name)
    values: list[Any] = [str(n) for n in numbers] if name != "APPROX_QUANTILE" else [float(n) for n in numbers]
    whole = made.result(folded(made, values))
    assert made.result(made.merge(folded(made, values[:cut]), folded(made, values[cut:]))) == whole
    if name == "COUNT_DISTINCT":
        assert whole == len(set(values))
    elif name == "APPROX_QUANTILE":
        assert whole == (sorted(values)[(len(values) + 1) // 2 - 1] if values else None)
    else:
        counts = sorted((-values.count(v), v) for v in set(values))[:3]
        assert whole == [{"ITEM": v, "COUNT": -n} for n, v in counts]


def test_estimates_of_many_are_close() -> None:
    count = 20_000
    distinct, quantile, frequent = (aggregator(name) for name in CONSTANTS)
    assert abs(distinct.result(folded(distinct, list(range(count)))) - count) < 0.08 * count
    assert abs(quantile.result(folded(quantile, [float(n) for n in range(count)])) - count / 2) < 0.05 * count
    items = [f"rare{n}" if n % 2 else f"often{n % 6}" for n in range(count)]
    found = frequent.result(folded(frequent, items))
    assert {row["ITEM"] for row in found} == {"often0", "often2", "often4"}
    assert all(abs(row["COUNT"] - count / 6) < 50 for row in found)


def test_in_a_topology() -> None:
    app = lf.App("sketches")
    f = lf.functions
    app.stream("in").group_by_key().aggregate(
        users=f.count_distinct(col.user.cast(str)), median=f.approx_quantile(col.ms.cast(float), 0.5),
        top=f.frequent_items(col.user.cast(str), 1), name="s",
    ).to("out")  # fmt: skip
    driver = TopologyTestDriver(app)
    for user, ms in (("ann", 3), ("bob", 1), ("ann", 2), (None, None)):
        driver.input("in").send({"user": user, "ms": ms}, key="k")
    assert driver.output("out").read()[-1].value == {"users": 2, "median": 2.0, "top": [{"ITEM": "ann", "COUNT": 2}]}


@pytest.mark.parametrize(("name", "wrong"), [("approx_quantile", 1.5), ("frequent_items", 0)])
def test_settings_that_have_no_meaning_are_refused(name: str, wrong: Any) -> None:
    app = lf.App("x")
    call = getattr(lf.functions, name)(col.x.cast(float) if name == "approx_quantile" else col.x.cast(str), wrong)
    with pytest.raises(InvalidInput, match=name.upper()):
        app.stream("in").group_by_key().aggregate(y=call)
