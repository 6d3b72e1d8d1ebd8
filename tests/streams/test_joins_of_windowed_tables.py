"""Joins of windowed tables: whose keys can be equal, and when the result's windows close."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import logflume.streams as lf
from logflume.log import InvalidInput
from logflume.streams.testing import TopologyTestDriver

from .running import kernels

__all__ = ["kernels"]


def counted(app: lf.App, topic: str, window: Any) -> Any:
    """Return how many records of a topic a key has per window."""
    return app.stream(topic, int, key=str).group_by_key().window(window).count(name=f"counts-of-{topic}", emit="update")


def outputs(left: Any, right: Any, *, then: Callable[[Any], Any] = lambda table: table) -> TopologyTestDriver:
    app = lf.App("test")
    both = counted(app, "a", left).join(counted(app, "b", right), prefix="b_")
    then(both).to_stream().to("out")
    return TopologyTestDriver(app)


EQUAL_KEYS = {
    "another grace": (lf.tumbling(10, grace=0), lf.tumbling(10, grace=100)),
    "another advance": (lf.tumbling(10), lf.hopping(10, advance=5)),
    "calendars": (lf.calendar("day", zone="UTC"), lf.calendar("day", zone="UTC", grace=5)),
    "sessions": (lf.session(5), lf.session(7, grace=9)),
    "sliding": (lf.sliding(5), lf.sliding(5, grace=3)),
}


@pytest.mark.parametrize("case", EQUAL_KEYS)
def test_windows_whose_keys_can_be_equal_are_joined(case: str) -> None:
    driver = outputs(*EQUAL_KEYS[case])
    driver.input("a").send(1, key="k", timestamp_ms=8)
    driver.input("b").send(1, key="k", timestamp_ms=8)
    assert {"count": 1, "b_count": 1} in [record.value for record in driver.output("out").read()]


NO_EQUAL_KEYS = {
    "another size": (lf.tumbling(10), lf.tumbling(20)),
    "another start": (lf.unlimited(), lf.unlimited(3)),
    "another kind": (lf.tumbling(10), lf.sliding(10)),
    "another zone": (lf.calendar("day", zone="UTC"), lf.calendar("day", zone="Europe/Berlin")),
}


@pytest.mark.parametrize("case", NO_EQUAL_KEYS)
def test_windows_whose_keys_are_never_equal_are_refused(case: str) -> None:
    with pytest.raises(InvalidInput, match="never equal"):
        outputs(*NO_EQUAL_KEYS[case])


@pytest.mark.parametrize("graces", [(0, 100), (100, 0)])
def test_a_joined_window_closes_when_neither_side_takes_records_for_it(graces: tuple[int, int]) -> None:
    left, right = (lf.tumbling(10, grace=grace) for grace in graces)
    driver = outputs(left, right, then=lambda both: both.suppress(lf.until_window_closes()))
    for time in (5, 109):
        driver.input("a").send(1, key="k", timestamp_ms=time)
        driver.input("b").send(1, key="k", timestamp_ms=time)
    assert driver.output("out").read() == []
    for topic in "ab":
        driver.input(topic).send(1, key="k", timestamp_ms=110)
    assert [(record.key.start_ms, record.value) for record in driver.output("out").read()] == [(0, {"count": 1, "b_count": 1})]


WINDOWS_OF_SEVERAL = {
    "hopping": lf.hopping(10, advance=5, grace=20),
    "sliding": lf.sliding(10, grace=20),
    "sessions": lf.session(10, grace=20),
}
OF_ONE_STREAM = {
    "numbers": lambda grouped: grouped.aggregate(n=lf.sum(lf.col.value), emit="update").map_values(lf.col.n),
    "any state": lambda grouped: grouped.reduce(lambda a, b: a + b, emit="update"),
    "a cogroup": lambda grouped: grouped.aggregate(0, merge=lambda a, b: a + b, emit="update"),
}


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("windows", WINDOWS_OF_SEVERAL)
@pytest.mark.parametrize("of", OF_ONE_STREAM)
@pytest.mark.parametrize("at_once", [1, 4])
def test_a_windowed_table_joined_with_itself_has_two_equal_sides(windows: str, of: str, at_once: int) -> None:
    """One record changes several windows, or takes back a session that it adds to: each change finds the table as of then."""
    app = lf.App("test")
    grouped: Any = app.stream("in", int, key=str).group_by_key()
    grouped = grouped.cogroup(lambda n, value: n + value) if of == "a cogroup" else grouped
    sums = OF_ONE_STREAM[of](grouped.window(WINDOWS_OF_SEVERAL[windows]))
    sums.to_stream().to("sums")
    sums.join(sums, lambda key, one, other: (one, other)).to_stream().to("out")
    driver = TopologyTestDriver(app)
    records = [("k", str(1 << place).encode(), time) for place, time in enumerate((8, 17, 12, 3, 17))]
    for start in range(0, len(records), at_once):
        driver.input("in").send_together(records[start : start + at_once])
    found = [(record.key, record.value) for record in driver.output("out").read()]
    kept = [(record.key, record.value) for record in driver.output("sums").read() if record.value is not None]
    assert found == [(key, [value, value]) for key, value in kept for _ in range(2)]


@pytest.mark.parametrize("of", ["numbers", "any state"])
def test_what_a_suppress_lets_go_is_found_as_its_row_though_a_later_change_is_there(of: str) -> None:
    """The second record changes the first of its windows, by which the older row of the second one leaves."""
    app = lf.App("test")
    grouped = app.stream("in", int, key=str).group_by_key().window(lf.hopping(60, advance=30, grace=5))
    held = OF_ONE_STREAM[of](grouped).suppress(lf.until_time_limit(3))
    held.join(held, lambda key, one, other: (one, other)).to_stream().to("out")
    driver = TopologyTestDriver(app)
    for time in (394, 399):
        driver.input("in").send(1, key="a", timestamp_ms=time)
    found = [(record.key.start_ms, record.value, record.timestamp_ms) for record in driver.output("out").read()]
    assert found == [(360, [2, 2], 399)] * 2 + [(390, [1, 1], 394)] * 2


def test_a_window_that_a_record_closes_is_still_a_row_to_join_with_as_it_closes() -> None:
    app = lf.App("test")
    counts = counted(app, "in", lf.hopping(60, advance=30, grace=20))
    counts.join(counts.suppress(lf.until_window_closes()), prefix="final_").to_stream().to("out")
    driver = TopologyTestDriver(app)
    driver.input("in").send(1, key="k", timestamp_ms=58)
    driver.input("in").send(1, key="k", timestamp_ms=118)
    found = [(record.key.start_ms, record.value) for record in driver.output("out").read()]
    assert found == [(start, {"count": 1, "final_count": 1}) for start in (0, 30)]


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("emit", ["commit", "final", "update"])
@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_windows_that_are_computed_between_two_commits_are_joined_however_far_time_goes(emit: str, at_once: int) -> None:
    app = lf.App("test")
    numbers = app.stream("in", int, key=str)
    odd, even = (
        numbers.filter(lf.col.value == is_odd).group_by_key().window(lf.tumbling(10)).count(name=f"n{is_odd}", emit=emit)
        for is_odd in (1, 0)
    )
    odd.join(even, prefix="even_").to_stream().to("out")
    driver = TopologyTestDriver(app)
    records = [("k", str(place % 2).encode(), place // 2 * 5) for place in range(80)]
    for start in range(0, len(records), at_once):
        driver.input("in").send_together(records[start : start + at_once])
    latest = {record.key.start_ms: record.value for record in driver.output("out").read()}
    closed = range(0, 190 if emit == "final" else 200, 10)
    assert latest == {start: {"count": 2, "even_count": 2} for start in closed}
