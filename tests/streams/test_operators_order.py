"""However many records are taken at once, results come as if records had come one by one, depth first."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import logflume.streams as lf
from logflume.log.records import Chunk
from logflume.streams import col
from logflume.streams.processors import Context
from logflume.streams.state.store import Store

from ._kernel_rows import Recorder


class Order(msgspec.Struct):
    id: int
    status: str


def two_branches() -> lf.App:
    app = lf.App("branches")
    new, rest = app.stream("orders", Order, key=str).split(col.status == "new")
    new.to("out")
    rest.to("out")
    return app


def merged() -> lf.App:
    app = lf.App("merged")
    new, rest = app.stream("orders", Order, key=str).split(col.status == "new")
    new.merge(rest).group_by_key().count(emit="update").to("out")
    return app


def same_record_on_two_ways() -> lf.App:
    app = lf.App("ways")
    orders = app.stream("orders", Order, key=str)
    orders.filter(col.id >= 0).to("out")
    orders.flat_map_values(lambda order: [order, order]).to("out")
    return app


def joined_with_its_own_count() -> lf.App:
    app = lf.App("own")
    orders = app.stream("orders", Order, key=str)
    counts = orders.group_by_key().count(emit="update", name="counts")
    orders.left_join(counts).select(col.id, seen=col.count).to("out")
    return app


def several_rows_of_one_record_into_a_table_beside_it() -> lf.App:
    app = lf.App("words")
    words = app.stream("orders", Order, key=str).flat_map_values(lambda order: [order.id, order.id + 1, order.id + 2])
    latest = words.to_table(store="latest")
    words.join(latest, lambda word, row: [word, row]).to("out")
    return app


def looked_up_before_it_is_kept() -> lf.App:
    app = lf.App("before")
    orders = app.stream("orders", Order, key=str)
    changes = orders.map_values(lambda order: order.id)
    late = orders.flat_map_values(lambda order: [order.id, -order.id]).to_table(store="late")
    changes.left_join(late, lambda now, row: [now, row]).to("out")
    return app


def joined_with_itself_and_again() -> lf.App:
    app = lf.App("itself")
    orders = app.table("orders", Order, key=str)
    twice = orders.join(orders, lambda left, right: [left.id, right.id])
    again = orders.left_join(twice, lambda order, pair: [order.id, pair])
    for table in (twice, again):
        table.to_stream().to("out")
    return app


class Ticking(lf.Processor):
    """Forwards what comes, and a row for each key every 10 ms of stream time."""

    def init(self, context: Context) -> None:
        self.context = context
        context.schedule(10, self.tick)

    def process(self, record: lf.Record) -> None:
        self.context.forward(record)

    def tick(self, at_ms: int) -> None:
        for key in range(5):
            self.context.forward(lf.Record(f"k{key}", Order(-at_ms - key, "new"), at_ms))


def ticks_between_two_branches() -> lf.App:
    app = lf.App("ticks")
    odd, even = app.stream("orders", Order, key=str).process(Ticking).split(lambda order: order.id % 2 == 1)
    odd.to("out")
    even.to("out")
    return app


def outputs(build: Callable[[], lf.App], sizes: list[int], count: int = 200) -> list[Any]:
    """Return what `count` records give, taken in runs of the given sizes over and over."""
    values: list[bytes | None] = [
        b'{"id":%d,"status":"%s"}' % (n, [b"new", b"paid", b"caf\\u00e9"][n * 7 % 3]) for n in range(count)
    ]
    chunk = Chunk.from_columns("orders", [b"k%d" % (n % 5) for n in range(count)], values, list(range(count)), partition=0)
    program = build().plan().subtopologies[0].program
    recorder, stores = Recorder(), {spec.name: Store(spec) for spec in program.stores}
    task = program.bind(stores, recorder, recorder)
    at, turn = 0, 0
    while at < count:
        stop = min(count, at + sizes[turn % len(sizes)])
        task.process(next(iter(program.sources)), chunk, at, stop)
        at, turn = stop, turn + 1
    assert recorder.problems == []
    return [(key, value, time, cause) for _, key, value, time, cause, _ in recorder.outputs]


@pytest.mark.parametrize(
    "build",
    [
        two_branches,
        merged,
        same_record_on_two_ways,
        joined_with_its_own_count,
        several_rows_of_one_record_into_a_table_beside_it,
        looked_up_before_it_is_kept,
        ticks_between_two_branches,
        joined_with_itself_and_again,
    ],
)
@pytest.mark.parametrize("sizes", [[7], [64, 3], [200]])
def test_runs_of_any_size_give_what_single_records_give(build: Callable[[], lf.App], sizes: list[int]) -> None:
    one_by_one = outputs(build, [1])
    assert len(one_by_one) >= 200
    assert outputs(build, sizes) == one_by_one


def test_two_branches_to_one_topic_keep_the_order_of_their_records() -> None:
    found = outputs(two_branches, [200])
    assert [json.loads(value)["id"] for _, value, _, _ in found] == list(range(200))


def test_a_record_sees_its_own_count_where_the_count_comes_first() -> None:
    found = outputs(joined_with_its_own_count, [200], 20)
    assert [json.loads(value)["seen"] for _, value, _, _ in found] == [1 + n // 5 for n in range(20)]


@pytest.mark.parametrize("size", [1, 7, 200])
def test_each_row_of_a_record_goes_all_its_way_before_the_next_one(size: int) -> None:
    found = outputs(several_rows_of_one_record_into_a_table_beside_it, [size], 20)
    assert [json.loads(value) for _, value, _, _ in found] == [[n + more] * 2 for n in range(20) for more in range(3)]


@pytest.mark.parametrize("size", [1, 7, 200])
def test_consumers_take_a_row_in_the_order_in_which_they_were_made(size: int) -> None:
    found = outputs(looked_up_before_it_is_kept, [size], 20)
    before = [None] * 5 + [-n for n in range(15)]
    assert [json.loads(value) for _, value, _, _ in found] == [[n, seen] for n, seen in enumerate(before)]


@pytest.mark.parametrize("size", [1, 7, 200])
def test_both_results_of_a_join_with_itself_go_all_their_way_one_after_the_other(size: int) -> None:
    found = [json.loads(value) for _, value, _, _ in outputs(joined_with_itself_and_again, [size], 10)]
    once = [[n, n] for n in range(10)]
    assert found == [row for n, pair in enumerate(once) for row in ([n, pair], pair, [n, pair], pair, [n, pair])]


def test_more_rows_of_no_record_than_there_are_numbers_all_go_out(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = outputs(ticks_between_two_branches, [200])
    monkeypatch.setattr("logflume.streams.operators.program._OF_NO_RECORD", -2)
    assert sorted(outputs(ticks_between_two_branches, [200])) == sorted(whole)
