"""Sub-topologies that feed each other in a circle, or themselves: computed as a history they give what they give live."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

import logflume as lf
from logflume import col
from logflume.log import Log, TopicPartition, connect, key_partition
from logflume.streams.runtime.topics import count_partitions
from logflume.streams.seams import Plan
from logflume.streams.spark import LocalRunner, OffsetRange
from logflume.streams.spark.ranges import reachable
from logflume.streams.spark.rows import RowKind
from logflume.streams.spark.steps import StepPlan
from logflume.streams.spark.turns import Turn, turns_of
from logflume.streams.testing import TopologyTestDriver

from ._slice_apps import Refund, Sale

_numbers = count()
Sent = tuple[str, bytes, dict[str, Any] | None, int]
"""Topic, key, value, time in ms."""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    with connect(str(tmp_path_factory.mktemp("turns") / "log")) as opened:
        yield opened


def joined(sales: str, refunds: str, kind: str) -> lf.App:
    """Return sales with the refund that they name, by way of a foreign key; "twice": and with the one that this names."""
    app = lf.App("joined")
    left, right = app.table(sales, Sale), app.table(refunds, Refund)
    once = (left.left_join if kind == "left" else left.join)(right, on=col.item, prefix="r_")
    (once.join(right, on=col.r_item, prefix="again_", name="again") if kind == "twice" else once).to("out")
    return app


def compared_with_itself(sales: str) -> lf.App:
    """Return an application that shows each sale beside the number of sales so far of the item that its key names."""
    app = lf.App("itself")
    stream = app.stream(sales, Sale)
    stream.join(stream.group_by(col.item).count(emit="update"), prefix="so_far_").to("out")
    return app


def send(log: Log, records: list[Sent], partitions: dict[str, int]) -> None:
    for topic, number in partitions.items():
        log.admin().create_topic(topic, partitions=number, configs={"retention.ms": "-1"})
    producer = log.producer()
    for topic, key, value, time_ms in records:
        sent = None if value is None else json.dumps(value).encode()
        producer.send(topic, sent, key=key, timestamp_ms=time_ms, partition=key_partition(key, partitions[topic]))
    producer.close()


def computed(log: Log, plan: Plan, partitions: dict[str, int]) -> list[tuple[bytes, Any]]:
    """Return the records that a job over all there is puts out, those of a key in their order."""
    every = [TopicPartition(topic, p) for topic, number in partitions.items() for p in range(number)]
    ranges = {tp: OffsetRange(*tp, 0, end) for tp, end in log.admin().end_offsets(every, read_committed=True).items()}
    step = StepPlan(lambda: plan, reachable(log), ranges, count_partitions(plan, log.admin()), {})
    result = LocalRunner().run(step, plan, lambda _: None)
    assert sum(end.records for end in result.ends) == sum(map(len, ranges.values())), "counted once, however often it is read"
    rows = [row for part in result.parts for row in part.to_pylist() if row["kind"] == RowKind.SINK]
    return [(row["key"], None if row["value"] is None else json.loads(row["value"])) for row in rows]


def rows_at_end(sent: list[Sent], topic: str) -> dict[bytes, dict[str, Any]]:
    newest = {key: value for name, key, value, _ in sent if name == topic}
    return {key: value for key, value in newest.items() if value is not None}


def expected(sent: list[Sent], sales: str, refunds: str, kind: str) -> dict[bytes, dict[str, Any]]:
    """Return what `joined` comes to, from the rows at the end alone."""
    right, found = rows_at_end(sent, refunds), {}
    for key, sale in rows_at_end(sent, sales).items():
        refund = right.get(sale["item"].encode())
        if refund is None and kind != "left":
            continue
        row = {**sale, "r_item": refund and refund["item"], "r_price": refund and refund["price"]}
        if kind == "twice":
            again = refund and right.get(refund["item"].encode())
            if again is None:
                continue
            row |= {"again_item": again["item"], "again_price": again["price"]}
        found[key] = row
    return found


@pytest.mark.parametrize("kind", ["inner", "left", "twice"])
def test_rows_and_what_they_name_meet_whatever_their_times(log: Log, kind: str) -> None:
    for seed in range(12):
        rng, number = random.Random(seed), next(_numbers)
        sales, refunds = f"sales-{number}", f"refunds-{number}"
        partitions = {sales: rng.choice([1, 3]), refunds: rng.choice([1, 3])}
        sent: list[Sent] = []
        for at in range(rng.randrange(1, 90)):
            time_ms = max(10 * at - rng.choice([0, 0, rng.randrange(400)]), 0)
            topic, key = rng.choice([sales, refunds]), f"k{rng.randrange(9)}".encode()
            row = {"item": f"k{rng.randrange(9)}", "price": float(at)}
            value = {"shop": "s", "amount": at, **row} if topic == sales else row
            sent.append((topic, key, rng.choice([value, value, value, None]), time_ms))
        send(log, sent, partitions)
        found = {
            key: row
            for key, row in dict(computed(log, joined(sales, refunds, kind).plan(), partitions)).items()
            if row is not None
        }
        assert found == expected(sent, sales, refunds, kind), f"seed {seed}"


@pytest.mark.parametrize("kind", ["inner", "left", "twice"])
def test_where_times_rise_each_answer_comes_before_the_next_record(log: Log, kind: str) -> None:
    rng, number = random.Random(kind), next(_numbers)
    sales, refunds = f"sales-{number}", f"refunds-{number}"
    sent: list[Sent] = []
    for at in range(80):
        topic, row = rng.choice([sales, refunds]), {"item": f"k{rng.randrange(5)}", "price": float(at)}
        value = {"shop": "s", "amount": at, **row} if topic == sales else row
        sent.append((topic, f"k{rng.randrange(5)}".encode(), rng.choice([value, value, value, None]), 10 * at))
    partitions = {sales: 1, refunds: 1}
    send(log, sent, partitions)
    driver = TopologyTestDriver(joined(sales, refunds, kind))
    for topic, key, value, time_ms in sent:
        driver.process(topic, key, None if value is None else json.dumps(value).encode(), time_ms)
    live = [(key, None if value is None else json.loads(value)) for key, value, _, _ in driver.output("out").raw]
    assert computed(log, joined(sales, refunds, kind).plan(), partitions) == live
    assert len(live) > 20


def test_a_sub_topology_that_feeds_itself(log: Log) -> None:
    number = next(_numbers)
    sales = f"sales-{number}"
    rng = random.Random(3)
    sent = [
        (sales, rng.choice([b"a", b"b"]), {"shop": "s", "item": rng.choice("ab"), "amount": at, "price": None}, at)
        for at in range(40)
    ]
    send(log, sent, {sales: 1})
    so_far: dict[bytes, int] = {}
    wanted = []
    for _, key, value, _ in sent:
        if key in so_far:
            wanted.append((key, {**value, "so_far_count": so_far[key]}))
        so_far[value["item"].encode()] = so_far.get(value["item"].encode(), 0) + 1
    assert computed(log, compared_with_itself(sales).plan(), {sales: 1}) == wanted


def test_turns_of_a_chain_of_joins() -> None:
    one, two = (f"joined-{name}" for name in ("s-r", "again"))
    asked = [f"{each}-subscriptions-repartition" for each in (one, two)]
    answered = [f"{each}-answers-repartition" for each in (one, two)]
    right, left = tuple(asked), tuple(answered)
    assert turns_of(joined("s", "r", "twice").plan()) == [
        Turn("s", (), (asked[0],), tuple(sorted(left)), is_ahead=True),
        Turn("r", (asked[0],), (answered[0],), right, is_ahead=True),
        Turn("s", (answered[0],), (asked[1],), left, is_ahead=True),
        Turn("r", tuple(sorted(asked)), (answered[1],), right),
        Turn("s", tuple(sorted(answered)), (), left),
    ]
