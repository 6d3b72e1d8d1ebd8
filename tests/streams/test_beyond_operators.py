"""Operators that Kafka Streams does not have: duplicates, rankings, late records as a stream, keys that live for a time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import logflume.streams as lf
from logflume.log import InvalidInput
from logflume.streams import col
from logflume.streams.testing import TopologyTestDriver

KEYS = st.sampled_from("abc")
RECORDS = st.lists(st.tuples(KEYS, st.integers(0, 60), st.integers(0, 9)), max_size=25)


def fed(app: lf.App, records: list[tuple[str, int, int]], *, cuts: int = 1, **options: Any) -> TopologyTestDriver:
    """Return a driver that has taken records (key, time, n), `cuts` at once."""
    driver = TopologyTestDriver(app, on_problem="skip", **options)
    for at in range(0, len(records), cuts):
        driver.input("in").send_together([(key, {"n": n}, time) for key, time, n in records[at : at + cuts]])
    return driver


def out(driver: TopologyTestDriver) -> list[Any]:
    return [(r.key, r.timestamp_ms, r.value) for r in driver.output("out").read()]


@given(RECORDS, st.integers(1, 20), st.integers(0, 20), st.sampled_from([1, 7, 64]))
def test_of_records_within_a_time_the_first_passes(records: Any, within: int, grace: int, cuts: int) -> None:
    app = lf.App("once")
    app.stream("in").deduplicate(within=within, grace=grace).to("out")
    driver = fed(app, records, cuts=cuts)
    passed: list[tuple[str, int]] = []
    clock, late = 0, 0
    for key, time, _ in records:
        clock = max(clock, time)
        if time < clock - grace:
            late += 1
        elif not any(other == key and abs(time - at) < within for other, at in passed):
            passed.append((key, time))
    assert [(key, time) for key, time, _ in out(driver)] == passed
    assert driver.problems["late"] == late


@given(RECORDS, st.sampled_from([1, 7, 64]))
def test_what_has_passed_is_known_for_ever(records: Any, cuts: int) -> None:
    app = lf.App("once")
    app.stream("in").distinct(col.n.cast(int)).to("out")
    expected = list(dict.fromkeys(n for _, _, n in records))
    assert [key for key, _, _ in out(fed(app, records, cuts=cuts))] == expected


@given(RECORDS, st.integers(1, 4), st.booleans(), st.sampled_from([1, 7, 64]))
def test_a_ranking_is_what_sorting_gives(records: Any, count: int, largest: bool, cuts: int) -> None:
    app = lf.App("top")
    app.stream("in").group_by_key().aggregate(best=lf.top_n(count, col.n, largest=largest), n=lf.count(), name="s").to("out")
    driver = fed(app, records, cuts=cuts)
    for key in {key for key, _, _ in records}:
        values = [n for other, _, n in records if other == key]
        row = driver.store("s").get(key)
        assert [each["n"] for each in row["best"]] == sorted(values, reverse=largest)[:count]
        assert row["n"] == len(values)


@given(st.lists(st.tuples(KEYS, st.one_of(st.none(), st.tuples(st.sampled_from("xy"), st.integers(0, 9)))), max_size=25))
def test_a_ranking_of_rows_forgets_those_that_change(changes: Any) -> None:
    app = lf.App("top")
    app.table("in").group_by(col.team.cast(str), name="teams").top_n(2, by=col.n, name="s").to("out")
    driver = TopologyTestDriver(app)
    rows: dict[str, tuple[str, int]] = {}
    for key, row in changes:
        driver.input("in").send(None if row is None else {"team": row[0], "n": row[1]}, key=key)
        rows = {**rows, key: row} if row is not None else {k: v for k, v in rows.items() if k != key}
    for team in "xy":
        found = driver.store("s").get(team)
        assert sorted([n for t, n in rows.values() if t == team], reverse=True)[:2] == [row["n"] for row in found or ()]


def test_rows_of_a_class_rank_by_their_columns_and_ties_stay_in_order() -> None:
    app = lf.App("top")
    values = app.stream("in", int).group_by_key().top_n(2, by=col.value)
    values.to("out")
    driver = TopologyTestDriver(app)
    for n in (3, 1, 3, None, 5):
        driver.input("in").send(n, key="k")
    assert driver.output("out").read()[-1].value == [{"value": 5}, {"value": 3}]


WINDOWS = {
    "tumbling": lf.tumbling(10), "hopping": lf.hopping(10, advance=5), "session": lf.session(5), "sliding": lf.sliding(5),
    "grace": lf.tumbling(10, grace=5),
}  # fmt: skip


@pytest.mark.parametrize("window", WINDOWS)
@settings(max_examples=50)
@given(st.sampled_from(["update", "commit", "final"]), RECORDS, st.sampled_from([1, 7, 64]))
def test_each_record_is_counted_or_late(window: str, emit: str, records: Any, cuts: int) -> None:
    app = lf.App("late")
    counts = (
        app.stream("in")
        .group_by_key()
        .window(WINDOWS[window])
        .aggregate(lf.aggregate(list, lambda rows, v: [*rows, v["n"]], merge=lambda a, b: a + b), name="s", emit=emit)
    )
    counts.late().select(n=col.n).to("out")
    driver = fed(app, records, cuts=cuts)
    plain = lf.App("late")
    plain.stream("in").group_by_key().window(WINDOWS[window]).count(name="s", emit=emit).to("out")
    found = out(driver)
    if window == "hopping":
        assert len(found) <= fed(plain, records, cuts=cuts).problems["late"]
    else:
        assert driver.problems["late"] == 0
        assert len(found) == fed(plain, records, cuts=cuts).problems["late"]
    clock = -1
    expected = []
    for key, time, n in records:
        clock = max(clock, time)
        size = {"tumbling": 10, "hopping": 10, "grace": 10}.get(window)
        if size is not None:
            last = time // WINDOWS[window].advance_ms * WINDOWS[window].advance_ms + size  # type: ignore[union-attr]
            if last <= clock - WINDOWS[window].grace_ms:  # type: ignore[union-attr]
                expected.append((key, time, {"n": n}))
    if window not in ("session", "sliding"):
        assert found == expected


def test_late_records_are_counted_again_behind_their_own_window() -> None:
    app = lf.App("late")
    counts = app.stream("in").group_by_key().window(lf.tumbling(10)).count(name="s")
    counts.late().group_by_key().count(name="lates", emit="update").to("out")
    assert [row["count"] for _, _, row in out(fed(app, [("a", 1, 0), ("a", 50, 0), ("a", 2, 0), ("b", 3, 0), ("a", 4, 0)]))] == [
        1, 1, 2,
    ]  # fmt: skip


def test_only_a_windowed_aggregate_has_late_records() -> None:
    app = lf.App("late")
    counts = app.stream("in").group_by_key().count()
    for table in (counts, app.table("t"), counts.filter(col.count > 1)):
        with pytest.raises(InvalidInput, match="windowed aggregate"):
            table.late()


@pytest.mark.parametrize("emit", ["update", "commit"])
@given(RECORDS, st.integers(1, 20), st.sampled_from([1, 7, 64]))
def test_a_key_is_forgotten_after_its_time(emit: str, records: Any, ttl: int, cuts: int) -> None:
    app = lf.App("ttl")
    app.stream("in").group_by_key().aggregate(n=lf.count(), total=lf.sum(col.n.cast(int)), name="s", emit=emit, ttl=ttl).to("out")
    driver = fed(app, records, cuts=cuts)
    rows: dict[str, tuple[int, int, int]] = {}
    clock, late = -1, 0
    for key, time, n in records:
        clock = max(clock, time)
        rows = {k: row for k, row in rows.items() if row[2] > clock - ttl}
        if time <= clock - ttl:
            late += 1
            continue
        count, total, newest = rows.get(key, (0, 0, time))
        rows[key] = (count + 1, total + n, max(newest, time))
    assert driver.problems["late"] == late
    table = {key: value for key, _, value in out(driver)}
    assert {k: v for k, v in table.items() if v is not None} == {k: {"n": c, "total": t} for k, (c, t, _) in rows.items()}
    assert {r.key for r in driver.store("s").rows()} == set(rows)


def test_a_time_to_live_is_refused_where_it_has_no_meaning() -> None:
    for make in (
        lambda grouped: grouped.window(lf.tumbling(10)).count(ttl=5),
        lambda grouped: grouped.count(ttl=0),
    ):
        app = lf.App("ttl")
        make(app.stream("in").group_by_key())
        with pytest.raises(InvalidInput, match="a time above 0, of aggregates without windows"):
            app.plan()


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda s: s.deduplicate(within=0), "a time above 0"),
        (lambda s: s.deduplicate(grace=5), "with it grace"),
        (lambda s: s.deduplicate("id"), "found 'id'"),
        (lambda s: s.group_by_key().top_n(0, by=col.n), "at least 1, found 0"),
    ],
)
def test_what_cannot_be_meant_is_refused(use: Any, text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        use(lf.App("x").stream("in"))


def test_duplicates_need_a_key() -> None:
    with pytest.raises(InvalidInput, match="needs a key"):
        lf.App("x").stream("in", key=None).deduplicate(within=5)
