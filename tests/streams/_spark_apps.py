"""Topologies and inputs for the Spark tests; importable by Spark's Python workers and by processes that are killed.

They import it anew each time, so it does without pytest.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

import logflume as lf
from logflume import col
from logflume.log import Log, TopicPartition
from logflume.streams.planner import plan
from logflume.streams.runtime import Engine, EngineOptions
from logflume.streams.seams import Plan
from logflume.streams.spark.replay import TaskEnd

PARTITIONS = 3
ORDERS = [TopicPartition("orders", p) for p in range(PARTITIONS)]
WAIT_S = 120
PAUSE_S = 0.02
WINDOW_MS, GRACE_MS = 600_000, 120_000


class Order(msgspec.Struct):
    shop: str
    item: str
    amount: float | None


class Item(msgspec.Struct):
    item: str
    group: str


def topology(name: str, kind: str):  # type: ignore[no-untyped-def]
    """Return a topology.

    "direct" aggregates by the input's key, "repartition" joins a table and aggregates by another key; "counted" and "grouped" do
    the same with aggregates whose partial states merge exactly, "grouped" without windows. "merged" reads two repartition topics.
    "foreign" joins two tables on a foreign key, "joined" a stream with a table of its own key, in one task. "global" is as
    "repartition", with a global table.
    """
    app = lf.App(name)
    if kind == "foreign":
        newest = app.table("orders", Order)
        newest.left_join(app.table("items", Item), on=col.item, prefix="of_").to(f"{name}-out")
        return app.topology()
    orders = app.stream("orders", Order)
    if kind == "joined":
        joined = orders.left_join(app.table("items", Item), prefix="its_")
        joined.group_by_key().aggregate(orders=lf.count(), groups=lf.max(col.its_group)).to(f"{name}-out")
        return app.topology()
    if kind == "grouped":
        orders.group_by(col.item).aggregate(orders=lf.count(), top=lf.max(col.shop)).to(f"{name}-out")
        return app.topology()
    if kind == "merged":
        by_item = orders.select_key(col.item, name="one").repartition("by-item")
        by_shop = orders.with_columns(item=col.shop).select_key(col.item, name="two").repartition("by-shop")
        by_item.merge(by_shop).group_by_key().aggregate(orders=lf.count(), top=lf.max(col.shop)).to(f"{name}-out")
        return app.topology()
    if kind in ("direct", "counted"):
        stream = orders.filter(col.amount > 10).group_by_key()
    else:
        items = app.global_table("items", Item) if kind == "global" else app.table("items", Item)
        stream = orders.join(items, on=col.item).group_by(col.group)
    windowed = stream.window(lf.tumbling(seconds=WINDOW_MS // 1000, grace=GRACE_MS))
    if kind == "counted":
        windowed.aggregate(orders=lf.count(), top=lf.max(col.item)).to(f"{name}-out")
        return app.topology()
    windowed.aggregate(orders=lf.count(), total=lf.sum(col.amount), top=lf.max(col.amount)).to(f"{name}-out")
    return app.topology()


def make_plan(name: str, kind: str) -> Plan:
    return plan(topology(name, kind))


def loader(name: str, kind: str):  # type: ignore[no-untyped-def]
    """Return what `plan_backfill` takes."""
    return partial(make_plan, name, kind)


def create_inputs(log: Log) -> None:
    """Create the topics and load the table."""
    admin = log.admin()
    admin.create_topic("orders", partitions=PARTITIONS, configs={"retention.ms": "-1"})  # its records are of 1970
    admin.create_topic("items", partitions=PARTITIONS, configs={"cleanup.policy": "compact"})
    send_items(log, 0)


def send_items(log: Log, number: int) -> None:
    """Write the table, a version of which with another number puts items in other groups, and has no row of one of them."""
    producer = log.producer()
    for n in range(8):
        value = json.dumps({"item": f"i{n}", "group": f"g{(n + number) % 3}"}).encode()
        producer.send("items", None if n + 1 == number else value, key=f"i{n}".encode(), timestamp_ms=0)
    producer.flush()
    producer.close()


def send_orders(log: Log, count: int, *, seed: int, start_ms: int, at_once: bool = False) -> int:
    """Write orders in about the order of time: some out of order, some late, some broken; return the last time.

    `at_once`: readers of committed records see them all at the same moment, so that an application that runs takes them by time.
    """
    rng = random.Random(seed)
    now_ms = start_ms
    producer = log.producer(transactional_id="orders" if at_once else None)
    if at_once:
        producer.init_transactions()
        producer.begin_transaction()
    for _ in range(count):
        now_ms += rng.randrange(0, 20_000)
        shop = f"s{rng.randrange(9)}"
        back_ms = rng.randrange(0, 3_600_000) if rng.random() < 0.1 else 0
        amount = rng.choice([None, rng.randrange(100), rng.random() * 100])
        value = json.dumps({"shop": shop, "item": f"i{rng.randrange(10)}", "amount": amount}).encode()
        if rng.random() < 0.01:
            value = b"{broken"
        producer.send("orders", value, key=shop.encode(), timestamp_ms=max(0, now_ms - back_ms))
    producer.flush()
    if at_once:
        producer.commit_transaction()
    producer.close()
    return now_ms


def own_topics(log: Log) -> set[str]:
    """Return all topics but the broker's own."""
    return {topic for topic in log.admin().list_topics(include_internal=True) if not topic.startswith("__")}


def final_results(log: Log, topic: str) -> dict[bytes | None, tuple[bytes | None, int, int]]:
    """Return the newest (value, timestamp, partition) of each key, committed records only; nothing where there is no topic."""
    if not log.admin().find_topics([topic]):
        return {}
    partitions = [TopicPartition(topic, p) for p in range(PARTITIONS)]
    ends = log.admin().end_offsets(partitions, read_committed=True)
    consumer = log.consumer()
    consumer.assign(partitions)
    newest = {}
    while any(consumer.position(tp) < ends[tp] for tp in partitions):
        for chunk in consumer.poll(timeout_s=1.0):
            for record in chunk.records():
                newest[record.key] = (record.value, record.timestamp_ms, record.partition)
    consumer.close()
    return newest


def run_live(log: Log, name: str, kind: str, state_dir: Path) -> dict[str, int]:
    """Run an application until it has read everything there is; return what it left out by reason."""
    plan = make_plan(name, kind)
    engine = Engine(plan, log, EngineOptions(state_dir=state_dir, commit_interval_ms=50))
    engine.start()
    deadline = time.monotonic() + WAIT_S
    try:
        while not is_done(log, plan.application):
            assert not engine.has_ended
            assert time.monotonic() < deadline, f"{name} did not read everything: {engine.status()}"
            time.sleep(PAUSE_S)
        return dict(engine.status().dropped)
    finally:
        engine.stop()


def is_done(log: Log, application: str) -> bool:
    """Return whether the application has committed the end of everything it reads, its repartition topics included."""
    committed = log.admin().group_offsets(application)
    if not {tp for tp in committed if tp.topic == "orders"} >= set(ORDERS):
        return False
    ends = log.admin().end_offsets(committed, read_committed=True)
    if not all(at.offset >= ends[tp] for tp, at in committed.items()):
        return False
    repartition = [
        topic
        for topic in log.admin().list_topics(include_internal=True)
        if topic.startswith(f"{application}-") and topic.endswith("-repartition")
    ]
    every = [TopicPartition(topic, p) for topic in repartition for p in range(PARTITIONS)]
    ends = log.admin().end_offsets(every, read_committed=True)
    return all(ends[tp] == 0 or (tp in committed and committed[tp].offset >= ends[tp]) for tp in every)


def without_firsts(end: TaskEnd) -> TaskEnd:
    """Return the end of a task without the records that were left out first: ranges and slices meet them in another order."""
    return replace(end, left_out=tuple(replace(each, first="") for each in end.left_out))


class Once:
    """A failpoint: does something when a step is reached for the first time."""

    def __init__(self, step: str, do: Callable[[], object]) -> None:
        self.step, self.do, self.is_done = step, do, False

    def __call__(self, reached: str) -> None:
        if reached == self.step and not self.is_done:
            self.is_done = True
            self.do()
