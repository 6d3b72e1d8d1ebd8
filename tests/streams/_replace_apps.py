"""Applications over sales that take each other's place, and what they should have."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

import logflume as lf
from logflume import col
from logflume.log import Log
from logflume.streams.planner import plan
from logflume.streams.seams import Plan

from .running import read, send_json


class Sale(msgspec.Struct):
    n: int


def make(name: str, kind: str, least: int) -> Plan:
    """Return an application over sales: "table" counts and sums per shop, "stream" passes on; of those of `least` and more."""
    app = lf.App(name)
    sales = app.stream("sales", Sale, key=str).filter(col.n >= least)
    if kind == "stream":
        sales.with_columns(n=col.n + (100 if name == "new" else 0)).to("result")
    else:
        sales.group_by_key().aggregate(count=lf.count(), total=lf.sum(col.n)).to("result")
    return plan(app.topology())


def maker(name: str, kind: str = "table", least: int = 0) -> Callable[[], Plan]:
    return partial(make, name, kind, least)


def sell(log: Log, first: int, stop: int) -> None:
    """Write sales of shops a to e; only e's are below 5."""
    shops = "abcde"
    send_json(log, "sales", ((shops[i % 5], {"n": i % 5 * -1 + 10 if i % 5 < 4 else 1}, 1000 + i) for i in range(first, stop)))


def table(log: Log, *, topic: str = "result") -> dict[bytes | None, object]:
    """Return the rows of a topic as a reader holds them."""
    rows: dict[bytes | None, object] = {}
    for record in read(log, topic):
        if record.value is None:
            rows.pop(record.key, None)
        else:
            rows[record.key] = msgspec.json.decode(record.value)
    return rows


def expected(stop: int) -> dict[bytes, object]:
    """Return what an application for sales of 5 and more has of the first sales."""
    counts = {shop: len(range(i, stop, 5)) for i, shop in enumerate("abcd")}
    return {shop.encode(): {"count": n, "total": n * (10 - i)} for i, (shop, n) in enumerate(counts.items())}
