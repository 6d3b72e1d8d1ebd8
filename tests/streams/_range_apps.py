"""Topologies for the tests of ranges, one of each shape that is computed in its own way."""

from __future__ import annotations

from functools import partial

import msgspec

import logflume as lf
from logflume import col
from logflume.streams.planner import plan
from logflume.streams.seams import Plan

NUMBERS = ("numbers", "numbers-windowed", "numbers-compared")
"""Kinds whose entries are kept as columns where there are kernels."""
KINDS = ("windowed", "hopping", "plain", "floats", "rekeyed", "rekeyed-windowed", "two-repartitions", "split", *NUMBERS[:2])
EXACT = ("windowed", "hopping", "plain", "split", *NUMBERS)


class Sale(msgspec.Struct):
    shop: str
    item: str | None
    amount: int | None
    price: float | None = None


def make_plan(name: str, kind: str, topic: str = "sales") -> Plan:
    """Return the plan of a topology over JSON sales."""
    app = lf.App(name)
    sales = app.stream(topic, Sale)
    sums = {"sales": lf.count(), "total": lf.sum(col.amount), "least": lf.min(col.amount), "last_item": lf.max(col.item)}
    numbers = {**sums, "last_item": lf.max(col.amount), "mean": lf.mean(col.amount)}
    passing = sales.filter(col.amount != 13)
    match kind:
        case "numbers":
            passing.group_by_key().aggregate(**numbers).to(f"{name}-out")
        case "numbers-windowed":
            grouped = passing.group_by_key().window(lf.hopping(seconds=60, advance=20_000, grace=5_000))
            grouped.aggregate(**numbers).filter(col.sales > 1).to(f"{name}-out")
        case "numbers-compared":
            passing.group_by_key().aggregate(**numbers).filter(col.total > 100).to(f"{name}-out")
        case "windowed":
            grouped = passing.group_by_key().window(lf.tumbling(seconds=60, grace=30_000))
            grouped.aggregate(**sums).filter(col.sales > 1).to(f"{name}-out")
        case "hopping":
            grouped = passing.group_by_key().window(lf.hopping(seconds=60, advance=20_000, grace=5_000))
            grouped.aggregate(**sums, mean=lf.mean(col.amount)).to(f"{name}-out")
        case "plain":
            passing.group_by_key().aggregate(**sums, mean=lf.mean(col.amount)).to(f"{name}-out")
            passing.select(col.item, twice=col.amount + col.amount).to(f"{name}-items")
        case "split":
            small, negative, rest = passing.split(col.amount > 50, lambda sale: len(sale.item) and sale.amount < 0)
            small.group_by_key().aggregate(**sums).to(f"{name}-out")
            negative.to(f"{name}-negative")
            rest.select(col.item).to(f"{name}-items")
        case "floats":
            passing.group_by_key().aggregate(total=lf.sum(col.price), top=lf.max(col.price)).to(f"{name}-out")
        case "rekeyed":
            passing.group_by(col.item).aggregate(**sums).to(f"{name}-out")
        case "rekeyed-windowed":
            passing.group_by(col.item).window(lf.tumbling(seconds=60, grace=30_000)).aggregate(**sums).to(f"{name}-out")
        case "two-repartitions":
            by_item = passing.select_key(col.item, name="one").repartition("by-item")
            by_shop = sales.filter(col.amount > 50).with_columns(item=col.shop).select_key(col.item, name="two")
            by_item.merge(by_shop.repartition("by-shop")).group_by_key().aggregate(**sums).to(f"{name}-out")
    return plan(app.topology())


def loader(name: str, kind: str, topic: str = "sales"):  # type: ignore[no-untyped-def]
    """Return what `plan_backfill` takes."""
    return partial(make_plan, name, kind, topic)
