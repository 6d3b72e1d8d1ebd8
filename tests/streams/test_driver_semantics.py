"""What each operator does, seen from outside: records in, records, rows and counted problems out."""

from __future__ import annotations

import dataclasses
import heapq
import json
from collections.abc import Callable
from typing import Any, TypedDict

import msgspec
import pytest

import logflume as lf
from logflume import col
from logflume.log import InvalidInput, UnknownName
from logflume.log.records import Chunk
from logflume.streams.operators import stream_join
from logflume.streams.rows import StoredRow
from logflume.streams.testing import TestRecord, TopologyTestDriver, WindowedKey

from .running import kernels

__all__ = ["kernels"]


class Click(msgspec.Struct):
    user: str | None
    ms: int | None = None
    price: float | None = None
    ok: bool | None = None


class User(msgspec.Struct):
    name: str
    country: str | None = None


@dataclasses.dataclass
class Point:
    x: int
    y: int


class Pair(TypedDict):
    left: int
    right: int


def click_app() -> tuple[lf.App, Any]:
    app = lf.App("test")
    return app, app.stream("clicks", Click)


def drive(
    app: lf.App, values: list[Any], *, topic: str = "clicks", key: Callable[[Any], Any] = lambda value: "k", **settings: Any
) -> TopologyTestDriver:
    driver = TopologyTestDriver(app, **settings)
    for time, value in enumerate(values):
        driver.input(topic).send(value, key=key(value), timestamp_ms=time)
    return driver


def values(driver: TopologyTestDriver, topic: str = "out") -> list[Any]:
    return [record.value for record in driver.output(topic).read()]


def test_filter_and_select_by_expression() -> None:
    app, clicks = click_app()
    clicks.filter(col.ok & (col.ms > 100)).select(col.user, cost=col.price * 2).to("out")
    driver = drive(
        app, [Click("a", 200, 1.5, True), Click("b", 50, 1.0, True), Click("c", 300, None, True), Click("d", 300, 1.0)]
    )
    assert values(driver) == [{"user": "a", "cost": 3.0}, {"user": "c", "cost": None}]


def test_functions_take_the_typed_object_and_give_one() -> None:
    def to_point(click: Click) -> Point:
        return Point(click.ms or 0, 1)

    app, clicks = click_app()
    clicks.filter(lambda click: isinstance(click, Click)).map_values(to_point).filter(col.x > 1).to("out")
    assert values(drive(app, [Click("a", 1), Click("b", 2)])) == [{"x": 2, "y": 1}]


def test_a_function_with_two_arguments_gets_the_key() -> None:
    app, clicks = click_app()
    clicks.map_values(lambda key, click: [key, click.user]).to("out")
    assert values(drive(app, [Click("a")])) == [["k", "a"]]


@pytest.mark.parametrize("cls", [Click, None])
def test_schemaless_and_typed_values_take_the_same_expressions(cls: Any) -> None:
    app = lf.App("test")
    app.stream("clicks", cls).filter(col.ms > 100).select(user=col.user, half=col.ms / 2).to("out")
    given = [{"user": "a", "ms": 200}, {"user": "b", "ms": 1}, {"user": "c"}]
    driver = drive(app, [json.dumps(value).encode() for value in given])
    assert values(driver) == [{"user": "a", "half": 100.0}]


def test_a_comparison_of_unknown_types_that_fails_is_counted_and_dropped() -> None:
    app = lf.App("test")
    app.stream("clicks").filter(col.ms > 100).to("out")
    driver = drive(app, [b'{"ms": "text"}', b'{"ms": 101}'])
    assert values(driver) == [{"ms": 101}]
    assert driver.problems == {"expression": 1}


def test_an_error_in_a_projection_nulls_that_column_only() -> None:
    app, clicks = click_app()
    clicks.select(col.user, length=col.ms // (col.ms - col.ms), same=col.ms).to("out")
    driver = drive(app, [Click("a", 7)])
    assert values(driver) == [{"user": "a", "length": None, "same": 7}]
    assert driver.problems == {"expression": 1}


def test_undecodable_values_are_counted_and_the_rest_goes_on() -> None:
    app, clicks = click_app()
    clicks.group_by_key().count().to("out")
    driver = drive(app, [b"{broken", Click("a"), b"[1]", Click("b")])
    assert values(driver) == [{"count": 1}, {"count": 2}]
    assert driver.problems == {"decode": 2}


def test_numbers_written_as_text_are_read_as_the_serde_reads_them() -> None:
    app, clicks = click_app()
    clicks.select(col.ms).to("out")
    assert values(drive(app, [b'{"ms": "42"}', b'{"ms": 43}'])) == [{"ms": 42}, {"ms": 43}]


def test_null_keys_and_null_values_are_dropped_by_an_aggregate_and_counted() -> None:
    app, clicks = click_app()
    clicks.group_by_key().count().to("out")
    driver = TopologyTestDriver(app)
    clicks_in = driver.input("clicks")
    clicks_in.send(Click("a"), key=None, timestamp_ms=1)
    clicks_in.send(None, key="k", timestamp_ms=2)
    clicks_in.send(Click("a"), key="k", timestamp_ms=3)
    assert values(driver) == [{"count": 1}]
    assert driver.problems == {"null_key": 1, "null_value": 1}


def test_a_negative_time_is_dropped_and_counted() -> None:
    app, clicks = click_app()
    clicks.to("out")
    driver = TopologyTestDriver(app)
    driver.input("clicks").send(Click("a"), timestamp_ms=-1)
    assert values(driver) == []
    assert driver.problems == {"negative_time": 1}


def test_the_event_time_comes_from_an_expression() -> None:
    app = lf.App("test")
    app.stream("clicks", Click, timestamp=col.ms * 1000).to("out")
    driver = drive(app, [Click("a", 5), Click("b", None), Click("c", -1)])
    assert [record.timestamp_ms for record in driver.output("out").read()] == [5000]
    assert driver.problems == {"expression": 1, "negative_time": 1}


def test_group_by_goes_through_a_repartition_topic() -> None:
    app, clicks = click_app()
    clicks.group_by(col.user).aggregate(n=lf.count(), total=lf.sum(col.ms), top=lf.max(col.price), mean=lf.mean(col.ms)).to("out")
    driver = drive(app, [Click("a", 1, 2.0), Click("b", 5), Click("a", 3, 1.0), Click("a", None)])
    assert driver.output("out").read()[-1] == TestRecord("a", {"n": 3, "total": 4, "top": 2.0, "mean": 2.0}, 3)
    assert [row.key for row in driver.store("clicks-by-user-n-total-top-mean").rows()] == ["a", "b"]


def test_group_by_several_columns_makes_a_key_of_several() -> None:
    app, clicks = click_app()
    clicks.group_by(col.user, col.ok).count().to("out")
    driver = drive(app, [Click("a", ok=True), Click("a", ok=False), Click("a", ok=True)])
    records = driver.output("out").read()
    assert [record.value["count"] for record in records] == [1, 1, 2]
    assert driver.store("clicks-by-user-ok-count").get((("a"), True)) == {"count": 2}


def test_grouping_by_the_key_itself_needs_no_repartition() -> None:
    app, clicks = click_app()
    clicks.group_by(col.key).count().to("out")
    assert not any("repartition" in name for name in app.topology().describe().parts[0].name.split())
    assert len(app.plan().subtopologies) == 1


def test_results_at_commit_leave_once_per_key() -> None:
    app, clicks = click_app()
    clicks.group_by_key().count().to("out")
    driver = TopologyTestDriver(app, commits_each_record=False)
    for time, key in enumerate("abaab"):
        driver.input("clicks").send(Click("u"), key=key, timestamp_ms=time)
    assert len(driver.output("out")) == 0
    driver.commit()
    assert [(r.key, r.value["count"], r.timestamp_ms) for r in driver.output("out").read()] == [("a", 3, 3), ("b", 2, 4)]
    driver.commit()
    assert len(driver.output("out")) == 0


def test_results_of_update_leave_at_once() -> None:
    app, clicks = click_app()
    clicks.group_by_key().count(emit="update").to("out")
    driver = TopologyTestDriver(app, commits_each_record=False)
    for time in range(3):
        driver.input("clicks").send(Click("u"), key="k", timestamp_ms=time)
    assert [value["count"] for value in values(driver)] == [1, 2, 3]


def test_tumbling_windows_take_what_is_within_grace_and_count_the_late() -> None:
    app, clicks = click_app()
    clicks.group_by_key().window(lf.tumbling(lf.seconds(10), grace=lf.seconds(5))).count().to("out")
    driver = TopologyTestDriver(app)
    for time in (1_000, 12_000, 9_000, 15_000, 9_500, 25_000):
        driver.input("clicks").send(Click("u"), key="k", timestamp_ms=time)
    found = [(record.key.start_ms, record.value["count"]) for record in driver.output("out").read()]
    assert found == [(0, 1), (10_000, 1), (0, 2), (10_000, 2), (20_000, 1)]
    assert driver.problems == {"late": 1}
    assert driver.store("clicks-10s-count").get(WindowedKey("k", 10_000, 20_000)) == {"count": 2}


def test_hopping_windows_count_a_record_in_each() -> None:
    app, clicks = click_app()
    clicks.group_by_key().window(lf.hopping(10, advance=5)).count().to("out")
    driver = TopologyTestDriver(app)
    driver.input("clicks").send(Click("u"), key="k", timestamp_ms=12)
    assert [record.key for record in driver.output("out").read()] == [WindowedKey("k", 5, 15), WindowedKey("k", 10, 20)]


@pytest.mark.parametrize("joins", ["join", "left_join"])
def test_a_window_that_has_expired_is_no_row_to_join_with_though_it_is_still_in_memory(joins: str) -> None:
    app = lf.App("joined")
    clicks, views = (
        app.stream(topic, Click).group_by_key().window(lf.tumbling(10)).aggregate(**{topic: lf.count()}, emit="update")
        for topic in ("clicks", "views")
    )
    getattr(clicks, joins)(views).to("out")
    driver = TopologyTestDriver(app)
    for topic, time in (("views", 0), ("views", 95), ("clicks", 5), ("clicks", 99)):
        driver.input(topic).send(Click("u"), key="k", timestamp_ms=time)
    found = [(record.key.start_ms, record.value) for record in driver.output("out").read()]
    alone = [] if joins == "join" else [(0, {"clicks": 1, "views": None})]
    assert found == [*alone, (90, {"clicks": 1, "views": 1})]


@pytest.mark.parametrize("kernels", ["without kernels", "with kernels"], indirect=True)
@pytest.mark.parametrize("window", [lf.session(0), lf.sliding(0), lf.session(0, grace=5), lf.sliding(0, grace=5)])
@pytest.mark.parametrize("emit", ["update", "final"])
def test_windows_of_no_length_hold_the_records_of_one_time(window: Any, emit: str, kernels: str) -> None:
    app = lf.App("test")
    app.stream("in", int, key=str).group_by_key().window(window).count(name="n", emit=emit).to_stream().to("out")
    driver = TopologyTestDriver(app)
    for time in (5, 5, 6, 5, 20):
        driver.input("in").send(1, key="k", timestamp_ms=time)
    takes_third = window.grace_ms > 0
    latest = {record.key.start_ms: record.value["count"] for record in driver.output("out").read()}
    assert latest == {5: 3 if takes_third else 2, 6: 1} | ({20: 1} if emit == "update" else {})
    assert driver.problems == ({} if takes_third else {"late": 1})
    assert [(row.key.start_ms, row.value["count"]) for row in driver.store("n").rows()] == [(20, 1)]


def test_window_bounds_and_key_are_columns_behind_an_aggregate() -> None:
    app, clicks = click_app()
    counts = clicks.group_by(col.user).window(lf.tumbling(10)).count()
    counts.select(user=col.user, start=lf.window_start, end=lf.window_end, n=col["count"]).to("out")
    assert values(drive(app, [Click("a")])) == [{"user": "a", "start": 0, "end": 10, "n": 1}]


def test_a_row_that_stops_passing_a_table_filter_is_deleted_downstream() -> None:
    app, clicks = click_app()
    clicks.group_by_key().aggregate(last=lf.aggregate(lambda: 0, lambda a, v: v.ms)).filter(col["last"] > 10).to("out")
    driver = drive(app, [Click("a", 5), Click("a", 20), Click("a", 7), Click("a", 6)])
    assert values(driver) == [{"last": 20}, None]


def test_an_aggregate_of_plain_functions_is_deleted_by_none() -> None:
    app, clicks = click_app()
    total = clicks.group_by_key().aggregate(0, lambda total, click: None if click.ms == 0 else total + click.ms, name="total")
    total.to("out")
    driver = drive(app, [Click("a", 5), Click("a", 6), Click("a", 0), Click("a", 1)])
    assert values(driver) == [5, 11, None, 1]
    assert driver.store("total").get("k") == 1


def test_reduce_keeps_the_first_value_and_goes_on_from_it() -> None:
    app = lf.App("test")
    app.stream("numbers", int).group_by_key().reduce(max).to("out")
    assert values(drive(app, [3, 1, 7], topic="numbers")) == [3, 3, 7]


def test_what_an_aggregate_function_raises_is_counted_and_leaves_the_state() -> None:
    app, clicks = click_app()
    clicks.group_by_key().aggregate(0, lambda total, click: total + click.ms, name="total").to("out")
    driver = drive(app, [Click("a", 5), Click("a", None), Click("a", 2)], on_problem="skip")
    assert values(driver)[-1] == 7
    assert driver.problems == {"callable": 1}


def join_app(method: str, **options: Any) -> lf.App:
    app, clicks = click_app()
    users = app.table("users", User)
    getattr(clicks, method)(users, on=col.user, **options).to("out")
    return app


def feed(app: lf.App) -> TopologyTestDriver:
    driver = TopologyTestDriver(app)
    driver.input("clicks").send(Click("u1", 1), key="x", timestamp_ms=1)
    driver.input("users").send(User("Ann", "DE"), key="u1", timestamp_ms=5)
    driver.input("clicks").send(Click("u1", 2), key="x", timestamp_ms=2)
    driver.input("users").send(None, key="u1", timestamp_ms=6)
    driver.input("clicks").send(Click("u1", 3), key="x", timestamp_ms=3)
    return driver


def test_an_inner_join_takes_the_row_of_now() -> None:
    driver = feed(join_app("join"))
    assert [(r.key, r.value["ms"], r.value["name"], r.timestamp_ms) for r in driver.output("out").read()] == [("u1", 2, "Ann", 2)]


def test_a_left_join_has_nulls_for_a_missing_row() -> None:
    driver = feed(join_app("left_join"))
    assert [(v["ms"], v["name"]) for v in values(driver)] == [(1, None), (2, "Ann"), (3, None)]


def test_a_left_join_keeps_records_without_a_key() -> None:
    app = join_app("left_join")
    driver = TopologyTestDriver(app)
    driver.input("clicks").send({"ms": 4}, key="x", timestamp_ms=1)
    assert [(r.key, r.value["ms"]) for r in driver.output("out").read()] == [(None, 4)]


@pytest.mark.parametrize("window", [None, lf.tumbling(10), lf.sliding(10), lf.session(10)])
@pytest.mark.parametrize("at_once", [1, 2])
def test_a_stream_that_is_twice_in_a_cogroup_counts_for_both_of_its_aggregators(window: Any, at_once: int) -> None:
    app = lf.App("test")
    clicks = app.stream("clicks", int)
    both = clicks.group_by_key().cogroup(lambda n, click: n + click).cogroup(clicks.group_by_key(), lambda n, click: n * 10)
    both = both if window is None else both.window(window)
    both.aggregate(0, merge=max, name="both", emit="update").to("out")
    driver = TopologyTestDriver(app)
    records = [("k", b"1", 20), ("k", b"2", 20)]
    for start in range(0, 2, at_once):
        driver.input("clicks").send_together(records[start : start + at_once])
    assert [value for value in values(driver) if value is not None] == [1, 10, 12, 120]


def test_a_repartition_lets_records_without_a_key_through_to_a_left_join_far_behind_it() -> None:
    app = lf.App("test")
    users = app.table("users", User, key=str)
    clicks = app.stream("clicks", Click).repartition("again")
    clicks.filter(col.ms > 0).left_join(users).to("out")
    driver = TopologyTestDriver(app)
    driver.input("clicks").send({"ms": 4}, timestamp_ms=1)
    assert [(r.key, r.value["ms"]) for r in driver.output("out").read()] == [(None, 4)]
    assert driver.problems == {}


@pytest.mark.parametrize("kept", ["filter", "select"])
def test_a_kept_view_of_a_versioned_table_is_a_table_without_versions(kept: str) -> None:
    app = lf.App("test")
    users = app.table("users", User, key=str, history=1000)
    view = users.filter(col.country == "DE", store="view") if kept == "filter" else users.select(col.name, store="view")
    view.group_by(lambda key, row: "all", key=str).count(name="n", emit="update").to("out")
    driver = TopologyTestDriver(app)
    driver.input("users").send(User("Ann", "DE"), key="a", timestamp_ms=20)
    driver.input("users").send(None, key="a", timestamp_ms=10)
    assert [row.key for row in driver.store("view").rows()] == []
    assert [value["count"] for value in values(driver)] == [1, 0]


def test_a_versioned_table_beside_a_filter_of_what_it_is_made_of_changes_nothing_there() -> None:
    app = lf.App("test")
    users = app.table("users", User, key=str, store="users")
    users.to_stream().to_table(history=100, store="versions")
    users.filter(lambda key, user: user is not None).to("out")
    driver = TopologyTestDriver(app)
    driver.input("users").send(None, key="a", timestamp_ms=20)
    assert driver.output("out").read() == []


@pytest.mark.parametrize("name", [None, "versions"])
def test_a_stream_read_as_a_versioned_table_takes_nothing_from_before_its_history(name: str | None) -> None:
    app = lf.App("test")
    app.stream("users", User, key=str).to_table(name=name, history=10).to("out")
    driver = TopologyTestDriver(app)
    for time in (50, 40, 39):
        driver.input("users").send(User("Ann"), key="a", timestamp_ms=time)
    assert [record.timestamp_ms for record in driver.output("out").read()] == [50, 40]
    assert driver.problems == {"late": 1}


def test_a_group_of_sessions_takes_back_what_was_put_in_though_merging_adds_to_it() -> None:
    app = lf.App("test")
    sessions = app.stream("in", int, key=str).group_by_key().window(lf.session(10, grace=100))
    sums = sessions.aggregate(lf.aggregate(100, lambda a, n: a + n, merge=lambda a, b: a + b), emit="update")
    groups = sums.group_by(lambda key, total: "all", key=str)
    groups.reduce(lambda a, b: a + b, lambda a, b: a - b, emit="update").to("out")
    driver = TopologyTestDriver(app)
    for value, time in ((13, 28), (2, 28), (3, 8)):
        driver.input("in").send(value, key="k", timestamp_ms=time)
    assert values(driver) == [113, 215, 215 + 103]


@pytest.mark.parametrize("kernels", ["without kernels", "with kernels"], indirect=True)
def test_a_sliding_window_that_begins_with_what_another_holds_takes_nothing_back(kernels: str) -> None:
    app = lf.App("test")
    windows = app.stream("clicks", Click).group_by_key().window(lf.sliding(3, grace=1))
    windows = windows.aggregate(ms=lf.sum(col.ms), name="sums", emit="update")
    windows.group_by(lambda key, row: "all", key=str).aggregate(
        0, lambda total, row: total + row.ms, lambda total, row: total - row.ms, name="n", emit="update"
    ).to("out")
    driver = TopologyTestDriver(app)
    driver.input("clicks").send(Click("u", 3), key="k", timestamp_ms=3)
    driver.input("clicks").send(Click("u", 14), key="k", timestamp_ms=6)
    assert values(driver) == [3, 17, 34]


def test_of_two_topics_that_one_record_feeds_the_first_one_goes_on_first() -> None:
    app = lf.App("test")
    numbers, clicks = app.table("numbers", int, key=str), app.table("clicks", int, key=str)
    near = clicks.join(numbers, lambda click, number: number, on=lambda click: str(click), name="near")
    numbers.left_join(near, lambda number, found: [number, found], on=lambda number: str(number), name="far").to("out")
    driver = TopologyTestDriver(app)
    driver.input("clicks").send(1, key="1", timestamp_ms=20)
    driver.input("numbers").send(1, key="1", timestamp_ms=30)
    assert values(driver) == [[1, 1]]


def test_a_joiner_takes_both_objects() -> None:
    driver = feed(join_app("join", joiner=lambda key, click, user: [key, click.ms, user.name]))
    assert values(driver) == [["u1", 2, "Ann"]]


def test_a_prefix_keeps_the_columns_apart() -> None:
    assert values(feed(join_app("join", prefix="u_")))[0]["u_country"] == "DE"


def test_a_stream_joins_a_view_of_an_aggregate() -> None:
    app, clicks = click_app()
    seen = clicks.group_by_key().count().filter(col["count"] > 1).select(times=col["count"] * 10)
    app.stream("asks", Pair).join(seen).to("out")
    driver = TopologyTestDriver(app)
    for time in range(3):
        driver.input("asks").send({"left": time, "right": 0}, key="k", timestamp_ms=time)
        driver.input("clicks").send(Click("u"), key="k", timestamp_ms=time)
    assert values(driver) == [{"left": 2, "right": 0, "times": 20}]


def test_flat_map_makes_pairs_and_the_new_key_is_counted() -> None:
    app = lf.App("test")
    words = app.stream("lines", str).flat_map(lambda line: [(word, 1) for word in line.split()], key=str, name="words")
    words.group_by_key().count().to("out")
    driver = drive(app, ["to be", "not to"], topic="lines")
    assert [(r.key, r.value["count"]) for r in driver.output("out").read()] == [("to", 1), ("be", 1), ("not", 1), ("to", 2)]


def test_split_sends_a_record_to_the_first_branch_that_takes_it() -> None:
    app, clicks = click_app()
    big, small, rest = clicks.split(col.ms > 100, lambda click: click.ms is not None)
    big.to("big"), small.to("small"), rest.to("rest")
    driver = drive(app, [Click("a", 200), Click("b", 1), Click("c", None)])
    assert [[v.user for v in values(driver, topic)] for topic in ("big", "small", "rest")] == [["a"], ["b"], ["c"]]


def test_merge_and_peek() -> None:
    seen: list[Any] = []
    app, clicks = click_app()
    more = app.stream("more", Click)
    clicks.merge(more).peek(lambda key, value, time: seen.append((key, value.user, time))).to("out")
    driver = TopologyTestDriver(app)
    driver.input("clicks").send(Click("a"), key="1", timestamp_ms=5)
    driver.input("more").send(Click("b"), key="2", timestamp_ms=6)
    assert seen == [("1", "a", 5), ("2", "b", 6)]
    assert len(values(driver)) == 2


@pytest.mark.parametrize("kernels", ["without kernels", "with kernels"], indirect=True)
@pytest.mark.parametrize("is_typed_first", [True, False])
@pytest.mark.parametrize("at_once", [1, 4])
def test_typed_streams_merge_with_one_of_any_values(is_typed_first: bool, at_once: int, kernels: str) -> None:
    """Behind it each value is what a function gets, also beyond a repartition."""
    app = lf.App("test")
    clicks = app.stream("clicks", Click, key=str)
    sizes, untyped = clicks.map_values(col.ms), clicks.map_values(lambda click: click and {"user": click.user})
    first, second = (sizes, untyped) if is_typed_first else (untyped, sizes)
    both = first.merge(second)
    both.to("out")
    both.merge(clicks).repartition("again").to("again")
    driver = TopologyTestDriver(app)
    records = [("k", b'{"user": "ann", "ms": 5}', 1), ("k", b'{"user": "bob"}', 2), ("k", None, 3)]
    for start in range(0, len(records), at_once):
        driver.input("clicks").send_together(records[start : start + at_once])
    ann, bob = ({"user": name, "ms": ms, "price": None, "ok": None} for name, ms in (("ann", 5), ("bob", None)))
    found = [[5, {"user": "ann"}, ann], [None, {"user": "bob"}, bob], [None, None, None]]
    assert values(driver, "again") == [value for three in found for value in three]
    assert values(driver) == [value for three in found for value in three[:2]]


def test_when_takes_the_first_branch_that_holds() -> None:
    app, clicks = click_app()
    level = lf.when(col.ms > 100, "high").when(col.ms > 10, "middle").otherwise("low")
    clicks.select(level=level).to("out")
    driver = drive(app, [Click("a", 500), Click("a", 50), Click("a", None)])
    assert [v["level"] for v in values(driver)] == ["high", "middle", "low"]


def test_text_and_null_helpers() -> None:
    app, clicks = click_app()
    clicks.select(
        upper=col.user.upper(), has=col.user.contains("n"), ms=col.ms.fill_null(-1), among=col.user.isin(["Ann", "Bob"]),
        text=col.ms.cast(str), mid=col.ms.between(1, 5), size=col.user.length(),
    ).to("out")  # fmt: skip
    driver = drive(app, [Click("Ann", None), Click("Kim", 3)])
    assert values(driver) == [
        {"upper": "ANN", "has": True, "ms": -1, "among": True, "text": None, "mid": False, "size": 3},
        {"upper": "KIM", "has": False, "ms": 3, "among": False, "text": "3", "mid": True, "size": 3},
    ]


def test_columns_may_be_named_like_what_generated_code_uses() -> None:
    names = ["key", "data", "time", "i", "chunk", "list", "row", "dumps", "entry", "out_keys", "class", "error", "null", "pack"]
    app = lf.App("test")
    source = app.stream("t", msgspec.defstruct("Odd", [(name, int) for name in names if name != "class"] + [("klass", int)]))
    source.filter(col.list > 0).select(*[col[n] for n in names if n != "class"], **{"class": col.klass}).to("out")
    given = {name: i + 1 for i, name in enumerate(names) if name != "class"} | {"klass": 99}
    assert values(drive(app, [given], topic="t")) == [{n: given.get(n, 99) for n in values_order(names)}]


def values_order(names: list[str]) -> list[str]:
    return [n for n in names if n != "class"] + ["class"]


def test_the_driver_names_near_topics_and_stores() -> None:
    app, clicks = click_app()
    clicks.to("out")
    driver = TopologyTestDriver(app)
    with pytest.raises(UnknownName, match="did you mean 'clicks'"):
        driver.input("click")
    with pytest.raises(UnknownName, match="unknown store"):
        driver.store("counts")


def test_names_that_differ_only_in_punctuation_stay_apart() -> None:
    app, clicks = click_app()
    clicks.group_by_key().count(name="a-b").to("out-1")
    clicks.filter(col.ms > 5).group_by_key().count(name="a_b").to("out_1")
    driver = drive(app, [Click("a", 1), Click("b", 9)])
    assert [v["count"] for v in values(driver, "out-1")] == [1, 2]
    assert [v["count"] for v in values(driver, "out_1")] == [1]


def test_headers_pass_on_to_what_a_record_causes() -> None:
    app, clicks = click_app()
    clicks.filter(col.ms > 1).to("out")
    program = app.plan().subtopologies[0].program
    seen: list[Any] = []

    class Outputs:
        def send(self, node: str, keys: Any, values: Any, timestamps_ms: Any, **more: Any) -> None:
            seen.append(more["headers"])

        def send_columns(self, node: str, records: Chunk, **more: Any) -> None:
            seen.append(records.headers())

    records = [b'{"user":"a","ms":1}', b'{"user":"b","ms":2}']
    headers = [(), (("trace", b"7"),)]
    chunk = Chunk.from_columns("clicks", [None, None], list(records), [1, 2], partition=0, headers=headers)
    program.bind({}, Outputs(), TopologyTestDriver(app)).process("clicks", chunk, 0, 2)
    assert seen == [[(("trace", b"7"),)]]


def test_a_repartition_that_nobody_reads_is_still_written() -> None:
    app, clicks = click_app()
    clicks.repartition("again")
    assert [list(part.outputs) for part in app.plan().subtopologies] == [["again-repartition"]]


def test_a_stream_read_as_a_table_is_joined_and_its_rows_can_be_read() -> None:
    app, clicks = click_app()
    prices = clicks.select_key(col.user).select(col.price).to_table(name="prices", store="prices")
    app.stream("asks", Pair).join(prices).to("out")
    driver = TopologyTestDriver(app)
    driver.input("clicks").send(Click("u", price=1.5), key="x", timestamp_ms=1)
    driver.input("asks").send({"left": 1, "right": 2}, key="u", timestamp_ms=2)
    driver.input("asks").send({"left": 3, "right": 4}, key="v", timestamp_ms=3)
    assert values(driver) == [{"left": 1, "right": 2, "price": 1.5}]
    assert driver.store("prices").rows() == [StoredRow("u", {"price": 1.5}, 1)]


def test_a_stored_view_holds_the_rows_that_pass() -> None:
    app = lf.App("test")
    users = app.table("users", User)
    users.filter(col.country == "DE", store="germans").select(upper=col.name.upper(), store="names").to("out")
    driver = TopologyTestDriver(app)
    for time, (key, user) in enumerate(
        [("a", User("Ann", "DE")), ("b", User("Bob", "UK")), ("a", User("Ann", "FR")), ("c", User("Cid", "DE")), ("b", None)]
    ):
        driver.input("users").send(user, key=key, timestamp_ms=time)
    assert [(r.key, r.value) for r in driver.output("out").read()] == [
        ("a", {"upper": "ANN"}),
        ("a", None),
        ("c", {"upper": "CID"}),
    ]
    assert [row.key for row in driver.store("germans").rows()] == [row.key for row in driver.store("names").rows()] == ["c"]


def test_a_join_on_several_columns() -> None:
    app = lf.App("test")
    prices = app.table("prices", Point, key={"left": int, "right": int})
    app.stream("asks", Pair).join(prices, on=(col.left, col.right)).to("out")
    driver = TopologyTestDriver(app)
    driver.input("prices").send(Point(7, 8), key={"left": 1, "right": 2}, timestamp_ms=1)
    driver.input("asks").send({"left": 1, "right": 2}, timestamp_ms=2)
    driver.input("asks").send({"left": 2, "right": 1}, timestamp_ms=3)
    assert [(r.key, r.value) for r in driver.output("out").read()] == [
        ({"left": 1, "right": 2}, {"left": 1, "right": 2, "x": 7, "y": 8})
    ]


def test_final_results_leave_once_when_their_window_closes() -> None:
    app, clicks = click_app()
    windowed = clicks.group_by_key().window(lf.tumbling(10, grace=5))
    windowed.aggregate(n=lf.count(), name="s", emit="final").filter(col.n > 1).to("out")
    driver = TopologyTestDriver(app)
    for key, time in (("b", 1), ("a", 2), ("b", 9), ("a", 14), ("a", 3), ("x", 15), ("b", 4), ("x", 100)):
        driver.input("clicks").send(Click("u"), key=key, timestamp_ms=time)
    found = [
        (record.key.key, record.key.start_ms, record.value["n"], record.timestamp_ms) for record in driver.output("out").read()
    ]
    assert found == [("a", 0, 2, 3), ("b", 0, 2, 9)]
    assert driver.problems == {"late": 1}


def test_final_results_need_a_window() -> None:
    app, clicks = click_app()
    clicks.group_by_key().count(emit="final").to("out")
    with pytest.raises(InvalidInput, match="needs a window"):
        app.plan()


@pytest.mark.parametrize(("before", "after"), [(0, 60_000), (60_000, 0)])
def test_waiting_for_a_partner_on_one_side_of_time_is_looked_at_once(
    monkeypatch: pytest.MonkeyPatch, before: int, after: int
) -> None:
    pops: list[object] = []

    def counted(heap: list[Any]) -> Any:
        pops.append(heap[0])
        return heapq.heappop(heap)

    monkeypatch.setattr(stream_join, "heappop", counted)
    app, clicks = click_app()
    others = app.stream("others", Click)
    clicks.left_join(others, lambda one, other: one, before=before, after=after, grace=0).to("out")
    driver = TopologyTestDriver(app)
    for number in range(300):
        driver.input("clicks").send(Click("a"), key=f"k{number}", timestamp_ms=number * 1000)
    alone = sum(number * 1000 + after < 299_000 for number in range(300))
    assert len(values(driver)) == alone
    assert len(pops) == alone


@pytest.mark.parametrize(
    ("records", "joined"),
    [
        ([("right", 0), ("left", 5)], [5]),
        ([("right", 0), ("left", 4)], [4]),  # Kafka Streams looks up to time 0 at least, and so finds one that is too near
        ([("right", 1), ("left", 5)], []),
        ([("left", 4), ("right", 0)], []),
        ([("left", 5), ("right", 0)], [5]),
        ([("right", 100), ("left", 105), ("left", 104)], [105]),
    ],
)
def test_a_join_with_what_came_at_least_some_time_before_looks_up_to_time_0(
    records: list[tuple[str, int]], joined: list[int]
) -> None:
    app = lf.App("test")
    left, right = app.stream("left", int), app.stream("right", int)
    left.join(right, lambda one, other: one, before=10, after=-5, grace=100).to("out")
    driver = TopologyTestDriver(app)
    for side, time in records:
        driver.input(side).send(time, key="k", timestamp_ms=time)
    assert values(driver) == joined


def header(name: str) -> tuple[tuple[str, bytes | None], ...]:
    return (("from", name.encode()),)


@pytest.mark.parametrize("is_opened_again", [False, True])
def test_what_is_held_back_leaves_with_the_headers_that_it_came_with(is_opened_again: bool) -> None:
    app = lf.App("test")
    app.table("in", int, key=str).suppress(lf.until_time_limit(10), name="held").map_values(lambda n: n + 1).to("out")
    driver = TopologyTestDriver(app)
    driver.input("in").send(1, key="a", timestamp_ms=0, headers=header("first"))
    driver.input("in").send(2, key="a", timestamp_ms=1, headers=header("second"))
    driver.input("in").send(3, key="b", timestamp_ms=2)
    driver.commit()
    if is_opened_again:
        codec = driver._stores["held"].codec
        for entry in driver._stores["held"].resident.values():
            entry.state = codec.decode(codec.encode(entry) or b"").state
    driver.input("in").send(4, key="c", timestamp_ms=50, headers=header("another"))
    assert [(r.key, r.value, r.headers) for r in driver.output("out").read()] == [("a", 3, header("second")), ("b", 4, ())]


class Signing(lf.Processor):
    """Forwards each record twice: with a header more, and without any; and one more at a time."""

    def init(self, context: lf.Context) -> None:
        self.context = context
        context.schedule(1000, self.sign, time=lf.Time.WALL_CLOCK)

    def sign(self, now_ms: int) -> None:
        self.context.forward(lf.Record("clock", b"3", now_ms, header("clock")))

    def process(self, record: lf.Record) -> None:
        self.context.forward(dataclasses.replace(record, headers=(*record.headers, *header("me"))))
        self.context.forward(lf.Record(record.key, b"2", record.timestamp_ms))


@pytest.mark.parametrize("through", [False, True])
def test_what_a_processor_forwards_has_the_headers_that_it_gives(through: bool) -> None:
    app = lf.App("test")
    made = app.stream("in").process(Signing, key=str)
    (made.repartition("again") if through else made).filter(lambda value: True).to("out")
    driver = TopologyTestDriver(app)
    driver.input("in").send(b"1", key="a", headers=header("them"))
    driver.input("in").send(b"1", key="b")
    driver.advance(1000)
    both = (*header("them"), *header("me"))
    found = [("a", both), ("a", ()), ("b", header("me")), ("b", ()), ("clock", header("clock"))]
    assert [(record.key, record.headers) for record in driver.output("out").read()] == found


RELEASED: dict[str, Callable[[Any], Any]] = {
    "tumbling": lambda grouped: grouped.window(lf.tumbling(10)).count(emit="final"),
    "hopping": lambda grouped: grouped.window(lf.hopping(10, advance=5)).count(emit="final"),
    "any state": lambda grouped: grouped.window(lf.tumbling(10)).reduce(max, emit="final"),
    "calendar": lambda grouped: grouped.window(lf.calendar("day")).count(emit="final"),
    "sliding": lambda grouped: grouped.window(lf.sliding(10)).count(emit="final"),
    "sliding, any state": lambda grouped: grouped.window(lf.sliding(10)).reduce(max, emit="final"),
    "session": lambda grouped: grouped.window(lf.session(10)).count(emit="final"),
    "session, any state": lambda grouped: grouped.window(lf.session(10)).reduce(max, emit="final"),
}
DAY_MS = 86_400_000


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("is_together", [False, True])
@pytest.mark.parametrize("windows", RELEASED)
def test_a_final_result_has_the_headers_of_the_record_that_closed_its_window(windows: str, is_together: bool) -> None:
    app = lf.App("test")
    RELEASED[windows](app.stream("in", int, key=str).group_by_key()).to_stream().to("out")
    driver = TopologyTestDriver(app)
    unit = DAY_MS if windows == "calendar" else 20
    # nothing of the late record; the bare one closes what came at 2 units, and the next to last one changes nothing
    sent = [(0, "a"), (unit, "b"), (0, "late"), (2 * unit, "c"), (3 * unit, None), (3 * unit, "same"), (4 * unit, "e")]
    headers = [() if name is None else header(name) for _, name in sent]
    if is_together:
        keys = [b"bare" if name is None else name.encode() for _, name in sent]
        driver.process_together("in", keys, [b"1"] * len(sent), [time for time, _ in sent], headers)
    else:
        for (time, name), own in zip(sent, headers, strict=True):
            driver.input("in").send(1, key=name or "bare", timestamp_ms=time, headers=own)
    driver.commit()
    found = {(record.key.key, record.headers) for record in driver.output("out").read()}
    assert found == {("a", header("b")), ("b", header("c")), ("c", ()), ("bare", header("e")), ("same", header("e"))}


@pytest.mark.usefixtures("kernels")
def test_a_final_result_of_several_streams_has_the_headers_of_the_record_that_closed_its_window() -> None:
    app = lf.App("test")
    first, second = (app.stream(topic, int, key=str).group_by_key() for topic in ("first", "second"))
    both = first.cogroup(lambda total, value: total + value).cogroup(second, lambda total, value: total - value)
    both.window(lf.tumbling(10)).aggregate(0, emit="final").to_stream().to("out")
    driver = TopologyTestDriver(app)
    driver.input("first").send(5, key="a", timestamp_ms=0, headers=header("a"))
    driver.input("second").send(1, key="a", timestamp_ms=1, headers=header("b"))
    driver.input("second").send(1, key="b", timestamp_ms=10, headers=header("c"))
    assert [(r.key.key, r.value, r.headers) for r in driver.output("out").read()] == [("a", 4, header("c"))]


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("aggregated", [lambda windows: windows.count(emit="update"), lambda w: w.reduce(max, emit="update")])
def test_results_of_sessions_have_no_headers(aggregated: Callable[[Any], Any]) -> None:
    """One record ends several sessions and makes another."""
    app = lf.App("test")
    sessions = aggregated(app.stream("in", int, key=str).group_by_key().window(lf.session(10)))
    sessions.to_stream().map_values(lambda value: value).to("out")
    driver = TopologyTestDriver(app)
    for time in (0, 5, 6):
        driver.input("in").send(time, key="k", timestamp_ms=time, headers=header("in"))
    assert [record.headers for record in driver.output("out").read()] == [()] * 5


@pytest.mark.parametrize("is_opened_again", [False, True])
def test_what_waits_for_a_table_leaves_with_its_own_headers(is_opened_again: bool) -> None:
    app = lf.App("test")
    table = app.table("table", int, key=str, history=500)
    app.stream("in", int, key=str).left_join(table, lambda n, _: n, grace=10, name="j").to("out")
    driver = TopologyTestDriver(app)
    sent = [(1, 0, header("first")), (2, 0, header("second")), (3, 1, ())]
    for value, time, own in sent:
        driver.input("in").send(value, key="k", timestamp_ms=time, headers=own)
    driver.commit()
    if is_opened_again:
        (store,) = [store for name, store in driver._stores.items() if name != "table" and store.resident]
        for entry in store.resident.values():
            entry.state = store.codec.decode(store.codec.encode(entry) or b"").state
    driver.input("in").send(4, key="k", timestamp_ms=50, headers=header("another"))
    driver.input("in").send(5, key="k", timestamp_ms=20, headers=header("late"))
    found = [(r.value, r.headers) for r in driver.output("out").read()]
    assert found == [(1, header("first")), (2, header("second")), (3, ()), (5, header("late"))]


def test_a_sliding_window_whose_result_is_gone_has_the_time_of_its_newest_record() -> None:
    app = lf.App("test")
    windows = app.stream("in", int, key=str).group_by_key().window(lf.sliding(30))
    windows.reduce(lambda a, b: a + b or None, emit="update").to_stream().to("out")
    driver = TopologyTestDriver(app)
    for time, value in ((46, 7), (69, 2), (62, -9)):
        driver.input("in").send(value, key="k", timestamp_ms=time)
    found = [(record.key.start_ms, record.value, record.timestamp_ms) for record in driver.output("out").read()]
    assert found[-4:] == [(39, 9, 69), (47, -7, 69), (39, None, 69), (63, 2, 69)]


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("of", ["numbers", "any state"])
def test_a_sliding_window_that_one_record_makes_twice_counts_once_in_a_group(of: str) -> None:
    """The last record's window is also the one right after the record before: told twice, as Kafka Streams does."""
    app = lf.App("test")
    windows = app.stream("in", int, key=str).group_by_key().window(lf.sliding(3))
    sums = windows.aggregate(n=lf.sum(col.value), emit="update") if of == "numbers" else windows.reduce(max, emit="update")
    sums.to_stream().to("windows")
    number = (lambda row: row) if of == "any state" else (lambda row: row.n)
    groups = sums.group_by(lambda key, row: "all", key=str)
    groups.aggregate(
        0, lambda total, row: total + number(row), lambda total, row: total - number(row), emit="update"
    ).to("out")  # fmt: skip
    driver = TopologyTestDriver(app)
    for time, value in ((8, 1), (10, 5), (14, 7)):
        driver.input("in").send(value, key="k", timestamp_ms=time)
    assert [record.key.start_ms for record in driver.output("windows").read()] == [5, 9, 7, 11, 11]
    assert values(driver)[-1] == 1 + 5 + (6 if of == "numbers" else 5) + 7
