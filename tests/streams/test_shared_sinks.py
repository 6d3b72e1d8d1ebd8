"""Several sinks to one topic: its records lie in the order of the records that caused them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

import logflume.streams as lf
from logflume.log.interfaces import Log
from logflume.streams import col
from tests.streams.running import embedded, kernels, read, running, send_json, until

__all__ = ["kernels"]
COUNT, KEYS = 3000, 7


class Order(msgspec.Struct):
    n: int
    status: str


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with embedded(tmp_path / "data") as opened:
        opened.admin().ensure_topic("orders", partitions=2)
        yield opened


def split(app: lf.App) -> None:
    fresh, rest = app.stream("orders", Order).split(col.status == "new")
    fresh.to("out")
    rest.to("out")


def overlapping(app: lf.App) -> None:
    orders = app.stream("orders", Order)
    orders.filter(col.status == "new").select(n=col.n, status=col.status).to("out")
    orders.filter(col.status != "new").map_values(lambda order: {"n": order.n, "status": order.status}).to("out")


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("build", [split, overlapping])
def test_two_sinks_to_one_topic_keep_the_order_of_each_key(log: Log, tmp_path: Path, build: Callable[[lf.App], None]) -> None:
    app = lf.App("branches")
    build(app)
    rows = [(f"k{n % KEYS}", {"n": n, "status": "new" if n % 3 else "old"}, 1000 + n) for n in range(COUNT)]
    with running(app, log, tmp_path / "state") as engine:
        for start in range(0, COUNT, 1000):
            send_json(log, "orders", rows[start : start + 1000])
        until(lambda: len(read(log, "out")) == COUNT, engine)
    found: dict[bytes | None, list[int]] = {}
    for record in read(log, "out"):
        found.setdefault(record.key, []).append(msgspec.json.decode(record.value or b"")["n"])
    assert found == {b"k%d" % key: list(range(key, COUNT, KEYS)) for key in range(KEYS)}


@pytest.mark.usefixtures("kernels")
def test_two_sinks_behind_a_repartition_keep_the_order_too(log: Log, tmp_path: Path) -> None:
    app = lf.App("branches")
    fresh, rest = app.stream("orders", Order).split(col.status == "new")
    by_status = fresh.merge(rest).group_by(col.status).aggregate(n=lf.max(col.n), emit="update").to_stream()
    odd, even = by_status.split(col.n % 2 == 1)
    odd.to("out")
    even.to("out")
    rows = [(f"k{n % KEYS}", {"n": n, "status": "new" if n % 3 else "old"}, 1000 + n) for n in range(COUNT)]
    with running(app, log, tmp_path / "state") as engine:
        send_json(log, "orders", rows)
        until(lambda: len(read(log, "out")) == COUNT, engine)
    found: dict[bytes | None, list[int]] = {}
    for record in read(log, "out"):
        found.setdefault(record.key, []).append(msgspec.json.decode(record.value or b"")["n"])
    assert found == {
        b"new": [n for n in range(COUNT) if n % 3],
        b"old": [n for n in range(COUNT) if not n % 3],
    }


@pytest.mark.usefixtures("kernels")
def test_windows_that_close_together_and_go_two_ways_keep_the_order_of_each_key(log: Log, tmp_path: Path) -> None:
    app = lf.App("finals")
    counted = app.stream("orders", Order, key=str).group_by_key().window(lf.tumbling(10)).count(emit="final")
    rows = counted.select(n=col.count, at=lf.window_start, who=col.key).to_stream()
    odd, even = rows.select_key(col.who).split(col.at % 20 == 10)
    odd.to("out")
    even.to("out")
    with running(app, log, tmp_path / "state") as engine:
        send_json(log, "orders", [(f"k{n % KEYS}", {"n": n, "status": "new"}, 1000 + n) for n in range(COUNT)])
        send_json(log, "orders", [(f"k{n}", {"n": n, "status": "last"}, 1_000_000) for n in range(2 * KEYS)])
        until(lambda: sum(msgspec.json.decode(record.value or b"")["n"] for record in read(log, "out")) == COUNT, engine)
    found: dict[bytes | None, list[int]] = {}
    for record in read(log, "out"):
        found.setdefault(record.key, []).append(msgspec.json.decode(record.value or b"")["at"])
    assert len(found) == KEYS
    assert all(starts == sorted(starts) and len(starts) > COUNT // 20 for starts in found.values())


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("has_windows_first", [True, False])
def test_keys_with_and_without_windows_each_go_to_the_partition_of_their_key(
    log: Log, tmp_path: Path, has_windows_first: bool
) -> None:
    log.admin().ensure_topic("out", partitions=2)
    app = lf.App("windows-too")
    orders = app.stream("orders", Order, key=str)
    counts = orders.group_by_key().window(lf.tumbling(10)).count(emit="update").to_stream()
    for stream in (counts, orders) if has_windows_first else (orders, counts):
        stream.to("out")
    with running(app, log, tmp_path / "state") as engine:
        send_json(log, "orders", [(f"k{n % KEYS}", {"n": n, "status": "new"}, 1000 + n) for n in range(100)])
        until(lambda: len(read(log, "out")) == 200, engine)
    partitions = {record.key: record.partition for record in read(log, "orders")}
    windowed = [record for record in read(log, "out") if len(record.key or b"") > 2]
    assert len(windowed) == 100
    assert all(record.partition == partitions[(record.key or b"")[:2]] for record in read(log, "out"))
    assert len({record.partition for record in windowed}) == 2
