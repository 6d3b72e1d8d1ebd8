"""An application that comes back with another topology: what means something else is refused, the rest goes on."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import logflume.streams as lf
from logflume.log import InvalidInput
from logflume.log.interfaces import Log
from logflume.log.records import TopicPartition
from logflume.streams import col
from logflume.streams.changes import Fate, compare, layout_of
from logflume.streams.runtime.positions import changed_contents, read_times, to_offsets
from logflume.streams.state import Checkpoint
from tests.streams.running import embedded, read, running, send_json, until


class Order(msgspec.Struct):
    price: int
    cost: int


class Item(msgspec.Struct):
    name: str


class NewItem(msgspec.Struct):
    name: str
    weight: float = 1.0


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with embedded(tmp_path / "data") as opened:
        for topic in ("orders", "items"):
            opened.admin().ensure_topic(topic)
        yield opened


def aggregating(aggregate: Callable[[Any], Any], window: Any = None, key: Any = str) -> lf.App:
    app = lf.App("shop")
    grouped = app.stream("orders", Order, key=key).group_by_key()
    aggregate(grouped.window(window) if window else grouped).to("out")
    return app


def count_as_n(grouped: Any) -> Any:
    return grouped.aggregate(n=lf.count(), name="kept")


def sums(column: Any) -> Callable[[Any], Any]:
    return lambda grouped: grouped.aggregate(n=lf.sum(column), name="kept")


def run_once(app: lf.App, log: Log, state: Path, wanted: int) -> list[Any]:
    send_json(log, "orders", [("1", {"price": 100, "cost": 10}, 1000)] * 3)
    with running(app, log, state) as engine:
        until(lambda: len(read(log, "out")) >= wanted and engine.status().lag_records == 0, engine)
    return [msgspec.json.decode(record.value or b"") for record in read(log, "out")]


@pytest.mark.parametrize("has_disk", [True, False])
@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        (aggregating(count_as_n), aggregating(sums(col.price)), r"holds n = count\(\).*now keeps n = sum\(price\)"),
        (aggregating(sums(col.price)), aggregating(sums(col.cost)), r"sum\(price\).*sum\(cost\)"),
        (aggregating(sums(col.price)), aggregating(lambda x: x.aggregate(n=lf.mean(col.price), name="kept")), "mean"),
        (aggregating(sums(col.price)), aggregating(sums(col.price * 1.5)), "DOUBLE"),
        (aggregating(count_as_n, lf.tumbling(hours=1)), aggregating(count_as_n, lf.tumbling(hours=2)), "7200000"),
        (aggregating(count_as_n), aggregating(count_as_n, key=int), "by key BIGINT"),
    ],
)
def test_a_changed_aggregate_under_the_same_name_is_refused_with_the_way_out(
    log: Log, tmp_path: Path, before: lf.App, after: lf.App, found: str, has_disk: bool
) -> None:
    state = tmp_path / "state"
    results = run_once(before, log, state, 1)
    if not has_disk:
        shutil.rmtree(state)
    with running(after, log, state) as engine, pytest.raises(InvalidInput, match=found) as caught:
        engine.wait(timeout_s=60)
    assert "name=" in str(caught.value)
    assert "reset" in str(caught.value)
    assert [msgspec.json.decode(record.value or b"") for record in read(log, "out")] == results
    again = run_once(before, log, state, len(results) + 1)
    assert len(again) > len(results), "as it was, it goes on"


def test_what_does_not_change_the_meaning_goes_on(log: Log, tmp_path: Path) -> None:
    """More lateness, more retention and another cut of the disk into segments: no window is lost."""
    state = tmp_path / "state"
    for days, total in ((0, 3), (1, 6), (40, 9), (0, 12)):
        window = lf.tumbling(hours=1, grace=lf.days(days), retention=lf.days(days))
        results = run_once(aggregating(count_as_n, window), log, state, 1)
        until(lambda total=total: msgspec.json.decode(read(log, "out")[-1].value or b"") == {"n": total})
    assert results


def test_a_joined_table_may_get_more_columns(log: Log, tmp_path: Path) -> None:
    send_json(log, "items", [("1", {"name": "nut", "weight": 2.5}, 500)])
    for number, shape in enumerate((Item, NewItem, Item), 1):
        app = lf.App("shop")
        app.stream("orders", Order).join(app.table("items", shape)).to("out")
        assert len(run_once(app, log, tmp_path / "state", 3 * number)) == 3 * number
    rows = [msgspec.json.decode(record.value or b"") for record in read(log, "out")]
    assert [row.get("weight") for row in rows] == [None] * 3 + [2.5] * 3 + [None] * 3


def test_contents_that_are_too_long_for_the_metadata_are_compared_all_the_same() -> None:
    partition = TopicPartition("in", 0)
    contents = {f"store-{n}": f"n{n} = count() " + "x" * 200 for n in range(60)}
    offsets = to_offsets(Checkpoint({partition: 3}, {partition: 7}, {}, {}), contents)
    assert len(offsets[partition].metadata or "") < 4096
    before = read_times(offsets).contents
    assert changed_contents(before, contents) == []
    changed = contents | {"store-7": "n7 = sum(x)"}
    assert [store for store, _, _ in changed_contents(before, changed)] == ["store-7"]
    assert changed_contents({}, contents) == []


def test_a_store_that_would_be_lost_stops_the_start(log: Log, tmp_path: Path) -> None:
    kept = aggregating(lambda grouped: grouped.aggregate(n=lf.count(), name="kept"))
    run_once(kept, log, tmp_path / "state", 1)
    renamed = aggregating(lambda grouped: grouped.aggregate(n=lf.count(), name="renamed"))
    with pytest.raises(InvalidInput, match=r"has kept store 'kept'.*new in it: store 'renamed'.*drops=\['kept'\]"):
        run_once(renamed, log, tmp_path / "state", 1)
    with running(renamed, log, tmp_path / "state", drops="kept") as engine:
        send_json(log, "orders", [("a", {"price": 1, "cost": 1}, 10)])
        until(lambda: engine.status().lag_records == 0, engine)
    assert msgspec.json.decode(read(log, "out")[-1].value or b"") == {"n": 1}


def test_a_restart_does_not_say_that_a_joined_table_begins_empty(
    log: Log, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    send_json(log, "items", [("1", {"name": "nut"}, 500)])
    for wanted in (1, 2):
        app = lf.App("shop")
        joined = app.stream("orders", Order, key=str).join(app.table("items", Item))
        joined.group_by_key().aggregate(n=lf.count(), name="kept").to("out")
        run_once(app, log, tmp_path / "state", wanted)
    assert "begin empty" not in caplog.text


def test_what_waits_in_a_join_is_not_lost_in_silence(log: Log, tmp_path: Path) -> None:
    def joining(name: str) -> lf.App:
        app = lf.App("shop")
        left, right = app.stream("orders", Order, key=str), app.stream("items", Item, key=str)
        left.join(right, within=lf.minutes(5), name=name).to("out")
        return app

    send_json(log, "orders", [("a", {"price": 1, "cost": 1}, 10)])
    with running(joining("first"), log, tmp_path / "state") as engine:
        until(lambda: engine.status().lag_records == 0 and engine.status().commit.commits, engine)
    with pytest.raises(InvalidInput, match="has kept store 'first"), running(joining("second"), log, tmp_path / "state"):
        pass


def test_another_branch_of_a_split_leaves_what_the_others_keep() -> None:
    def app(*more: Any) -> lf.App:
        made = lf.App("shop")
        *_, dear, rest = made.stream("orders", Order, key=str).split(*more, col.price > 5)
        dear.group_by(col.cost, name="dear").count().to("dear")
        rest.group_by_key().count(name="rest").to("rest")
        return made

    old, new = (layout_of(each.topology()) for each in (app(), app(col.cost > 9)))
    assert {change.name: change.fate for change in compare(old, new)} == dict.fromkeys(
        ("shop-dear-repartition", "dear-count", "rest"), Fate.KEPT
    )


def test_two_topologies_are_compared_before_they_run() -> None:
    def app(name: str, column: Any, table: Any) -> lf.App:
        made = lf.App("shop")
        orders = made.stream("orders", Order, key=str)
        orders.group_by_key().aggregate(n=lf.sum(column), name=name).to("sums")
        orders.group_by_key().aggregate(n=lf.count(), name="same").to("counts")
        orders.group_by(col.cost).count(name="by-cost").to("by-cost")
        orders.join(made.table("items", table)).to("joined")
        return made

    old = layout_of(app("sums", col.price, Item).topology())
    assert {change.fate for change in compare(old, old)} == {Fate.KEPT}
    found = {change.name: change for change in compare(old, layout_of(app("sums", col.cost, NewItem).topology()))}
    assert (found["sums"].fate, found["same"].fate, found["items"].fate) == (Fate.LOST, Fate.KEPT, Fate.REBUILT)
    assert "sum(price)" in found["sums"].why
    assert "sum(cost)" in found["sums"].why
    renamed = {change.name: change.fate for change in compare(old, layout_of(app("totals", col.price, Item).topology()))}
    assert (renamed["sums"], renamed["totals"]) == (Fate.LOST, Fate.NEW)
