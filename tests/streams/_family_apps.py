"""Topologies of the families that are not cut by keys: cogroups, joins of tables, calendars, suppress, processors and others."""

from __future__ import annotations

import logflume as lf
from logflume import col
from logflume.streams.planner import plan
from logflume.streams.seams import Plan

from ._slice_apps import Refund, Sale

TABLES = (
    "cogroup",
    "windowed-cogroup",
    "table-left",
    "table-outer",
    "table-and-regrouped",
    "calendar",
    "table-grouped",
    "reduced",
)
FOREIGN = ("foreign", "foreign-left", "foreign-twice", "foreign-grouped", "foreign-self")
"""Joins on a foreign key: what a row is in between hangs on when an answer comes, so that the rows at the end are compared."""
STREAMS = ("closed", "held", "processor", "deduplicated", "versioned", "merged", "flat")


class Summing(lf.Processor):
    """Keeps a sum of amounts by key, and puts all of them out each minute of stream time."""

    def init(self, context: lf.Context) -> None:
        super().init(context)
        self.sums = context.store("sums")
        context.schedule(60_000, self.tell)

    def process(self, record: lf.Record) -> None:
        self.sums.put(record.key, (self.sums.get(record.key) or 0) + (record.value.amount or 0))

    def tell(self, now_ms: int) -> None:
        for key, total in self.sums.items():
            self.context.forward(lf.Record(key, total, now_ms))


def added(so_far: list[float], sale: Sale) -> list[float]:
    return [so_far[0] + 1, so_far[1] + (sale.amount or 0)]


def taken(so_far: list[float], refund: Refund) -> list[float]:
    return [so_far[0], so_far[1] - (refund.price or 0.0)]


def make_plan(name: str, kind: str, sales_topic: str, refunds_topic: str) -> Plan:
    """Return the plan of a topology over JSON sales and refunds."""
    app = lf.App(name)
    made = _foreign if kind in FOREIGN else _table if kind in TABLES else _stream
    made(app, kind, sales_topic, refunds_topic).to(f"{name}-out")
    return plan(app.topology())


def _table(app: lf.App, kind: str, sales_topic: str, refunds_topic: str) -> lf.Table:
    if kind == "table-and-regrouped":
        of_item = app.stream(sales_topic, Sale).group_by(col.item).aggregate(n=lf.count())
        return app.table(sales_topic, Sale, name="rows").outer_join(of_item, prefix="r_")
    if kind.startswith("table-"):
        sales, refunds = app.table(sales_topic, Sale), app.table(refunds_topic, Refund)
        match kind:
            case "table-left":
                return sales.left_join(refunds, prefix="r_")
            case "table-outer":
                return sales.outer_join(refunds, prefix="r_")
        return sales.group_by(col.item).aggregate(n=lf.count(), total=lf.sum(col.amount))
    sales, refunds = app.stream(sales_topic, Sale), app.stream(refunds_topic, Refund)
    by_key = sales.group_by_key()
    both = by_key.cogroup(added).cogroup(refunds.group_by_key(), taken)
    match kind:
        case "cogroup":
            return both.aggregate([0.0, 0.0])
        case "windowed-cogroup":
            return both.window(lf.tumbling(seconds=60, grace=30_000)).aggregate([0.0, 0.0])
        case "calendar":
            return by_key.window(lf.calendar("day", zone="Europe/Berlin", grace=lf.hours(1))).aggregate(n=lf.count())
    return by_key.reduce(lambda one, other: other if (other.amount or 0) >= (one.amount or 0) else one)


def _foreign(app: lf.App, kind: str, sales_topic: str, refunds_topic: str) -> lf.Table:
    sales, refunds = app.table(sales_topic, Sale), app.stream(refunds_topic, Refund)
    of_item = refunds.group_by(col.item).aggregate(n=lf.count(), least=lf.min(col.price), name="of-item")
    match kind:
        case "foreign-left":
            return sales.left_join(of_item, on=col.item, prefix="r_")
        case "foreign-twice":
            once = sales.left_join(of_item, on=col.item, prefix="r_")
            return once.join(of_item, on=col.item, prefix="again_", name="twice")
        case "foreign-grouped":
            joined = sales.join(of_item, on=col.item, prefix="r_")
            return joined.group_by(col.r_least).aggregate(n=lf.count(), total=lf.sum(col.amount)).filter(col.n > 0)
        case "foreign-self":
            rows = refunds.to_table()
            return rows.join(rows, on=lf.when(col.item == "a", "v").when(col.item == "b", "w").otherwise("x"), prefix="r_")
    return sales.join(of_item, on=col.item, prefix="r_")


def _stream(app: lf.App, kind: str, sales_topic: str, refunds_topic: str) -> lf.Stream:
    sales, refunds = app.stream(sales_topic, Sale), app.stream(refunds_topic, Refund)
    match kind:
        case "closed":
            windowed = sales.group_by_key().window(lf.tumbling(seconds=60, grace=30_000))
            return windowed.aggregate(n=lf.count(), emit="update").suppress(lf.until_window_closes()).to_stream()
        case "held":
            counts = sales.group_by_key().count(emit="update")
            return counts.suppress(lf.until_time_limit(lf.seconds(20))).to_stream()
        case "processor":
            return sales.process(Summing, lf.key_value_store("sums"), key=str)
        case "deduplicated":
            return sales.deduplicate(col.item, within=lf.seconds(60))
        case "versioned":
            return sales.join(refunds.to_table(history=lf.hours(1)), prefix="r_")
        case "merged":
            by_item = sales.select(col.item, col.price).merge(refunds)
            return by_item.select_key(col.item).repartition("by-item")
    return sales.flat_map_values(lambda sale: [sale.amount] * ((sale.amount or 0) % 3))
