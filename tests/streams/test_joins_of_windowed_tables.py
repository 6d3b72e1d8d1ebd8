"""Joins of windowed tables: whose keys can be equal, and when the result's windows close."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import logflume.streams as lf
from logflume.log import InvalidInput
from logflume.streams.testing import TopologyTestDriver


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
