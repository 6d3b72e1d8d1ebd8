"""The kernels inside the engine: re-keying, a repartition topic and a join over an embedded log, exactly once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import logflume.streams as lf
from logflume.log import connect
from logflume.log.interfaces import Log
from logflume.log.records import Chunk, TopicPartition
from logflume.streams import col
from logflume.streams.kernels import kernel_loader
from logflume.streams.runtime import Engine, EngineOptions
from logflume.streams.runtime.outputs import TaskOutputs

numba = pytest.importorskip("numba", reason="the kernels need numba")

ORDERS, ITEMS, PARTITIONS = 4000, 40, 3


class Order(msgspec.Struct):
    n: int
    item: str
    price: float


class Item(msgspec.Struct):
    name: str
    weight: float


def item_of(n: int) -> str:
    """Return the item of an order; some items are not in the table."""
    return f"i{n * 7 % (ITEMS + 5)}"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """A log with items and orders; every 50th order names its item with an escape, which the kernels read too."""
    with connect(str(tmp_path / "data")) as opened:
        for topic in ("orders", "items"):
            opened.admin().ensure_topic(topic, partitions=PARTITIONS)
        producer = opened.producer()
        for n in range(ITEMS):
            value = b'{"name":"item %d","weight":%d.5}' % (n, n)
            producer.send("items", value, key=b"i%d" % n, timestamp_ms=0)
        for n in range(ORDERS):
            name = item_of(n).replace("i", "\\u0069") if n % 50 == 0 else item_of(n)
            value = f'{{"n":{n},"item":"{name}","price":{n}.25}}'.encode()
            producer.send("orders", value, key=b"o%d" % n, timestamp_ms=1_000 + n)
        producer.flush()
        yield opened


def test_orders_find_their_items_through_a_repartition_topic(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernel_loader().load("message_rows")
    as_columns: dict[str, int] = {}
    plain = TaskOutputs.send_columns

    def counting(self: TaskOutputs, node: str, records: Chunk, **more: Any) -> None:
        as_columns[node] = as_columns.get(node, 0) + len(records)
        plain(self, node, records, **more)

    monkeypatch.setattr(TaskOutputs, "send_columns", counting)
    app = lf.App("columns", log=log)
    orders, items = app.stream("orders", Order, key=str), app.table("items", Item, key=str)
    joined = orders.filter(col.price > 10).join(items, on=col.item)
    joined.select(n=col.n, name=col.name, total=col.price * 2.0 + col.weight).to("out")
    expected = {}
    for n in range(10, ORDERS):
        item = int(item_of(n)[1:])
        if item < ITEMS:
            expected[n] = (item_of(n).encode(), {"n": n, "name": f"item {item}", "total": (n + 0.25) * 2.0 + item + 0.5})
    engine = Engine(app.plan(), log, EngineOptions(state_dir=tmp_path / "state", commit_interval_ms=50))
    engine.start()
    try:
        found = read(log, "out", len(expected))
    finally:
        engine.stop()
    assert found == list(expected.items())
    assert sum(as_columns.values()) > 1.5 * len(expected), "both sub-topologies put out columns"


def read(log: Log, topic: str, wanted: int) -> list[Any]:
    """Return (n, (key, value)) of all committed records once there are as many as wanted, in order of n."""
    deadline = time.monotonic() + 60
    while topic not in log.admin().list_topics():
        assert time.monotonic() < deadline, "the output topic was not created"
        time.sleep(0.01)
    consumer = log.consumer(read_committed=True)
    consumer.assign([TopicPartition(topic, partition) for partition in range(PARTITIONS)])
    found: list[Any] = []
    while len(found) < wanted:
        assert time.monotonic() < deadline, f"{len(found)} of {wanted} records after 60 s"
        for chunk in consumer.poll(timeout_s=0.5):
            for record in chunk.records():
                value = msgspec.json.decode(record.value or b"")
                found.append((value["n"], (record.key, value)))
    consumer.close()
    return sorted(found, key=lambda item: item[0])
