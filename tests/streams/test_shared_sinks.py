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
