"""Topologies for the tests of slices: one of each shape that is cut by keys, and some of which a part is run in full."""

from __future__ import annotations

from functools import partial

import msgspec

import logflume as lf
from logflume import col
from logflume.streams.planner import plan
from logflume.streams.seams import Plan


class Sale(msgspec.Struct):
    shop: str
    item: str | None
    amount: int | None
    price: float | None = None


class Refund(msgspec.Struct):
    item: str | None
    price: float | None = None


JOINS = (
    "inner",
    "ungraced",
    "left",
    "outer",
    "ungraced-outer",
    "self",
    "two-readings",
    "joined-then-windowed",
    "left-then-windowed",
)
OTHERS = (
    "floats",
    "windowed-floats",
    "hopping-floats",
    "updates",
    "final",
    "sessions",
    "final-sessions",
    "callables",
    "split",
    "table-join",
    "looked-up",
    "looked-up-windowed",
    "global",
    "global-left",
    "global-windowed",
    "filtered-table",
    "kept-tables",
    "sliding",
    "short-sliding",
    "sliding-kept",
    "sliding-updates",
    "final-sliding",
    "ungraced-sliding",
    "suppressed",
    "suppressed-for-a-time",
    "bounded-suppressed",
    "suppressed-then-summed",
    "floats-then-summed",
    "final-then-summed",
    "summed-and-then-summed",
    "window-of-window",
    "row-before",
    "row-and-count",
)


def refused(value: object) -> bool:
    """Fail for one item, as a user's function may."""
    if value == "b":
        raise ValueError("not b")
    return True


def refund_of(sale: Sale) -> str | None:
    """Return the key of a sale's refund; none for some."""
    return {"a": "v", "b": "w", "ü": "nowhere"}.get(sale.item or "")


def make_plan(name: str, kind: str, sales_topic: str, refunds_topic: str) -> Plan:
    """Return the plan of a topology over JSON sales and refunds."""
    app = lf.App(name)
    sales = app.stream(sales_topic, Sale)
    passing = sales.filter(col.amount != 13)
    sums = {"n": lf.count(), "total": lf.sum(col.price)}
    if kind in JOINS:
        _join(app, kind, passing, sales_topic if kind == "two-readings" else refunds_topic, f"{name}-out")
        return plan(app.topology())
    match kind:
        case "floats":
            passing.group_by_key().aggregate(**sums).to(f"{name}-out")
            passing.select(col.item).to(f"{name}-items")
        case "windowed-floats":
            passing.group_by_key().window(lf.tumbling(seconds=60, grace=30_000)).aggregate(**sums).to(f"{name}-out")
        case "hopping-floats":
            passing.group_by_key().window(lf.hopping(seconds=60, advance=20_000, grace=5_000)).aggregate(**sums).to(f"{name}-out")
        case "updates":
            windowed = passing.group_by_key().window(lf.tumbling(seconds=60, grace=30_000))
            windowed.aggregate(**sums, emit="update").to(f"{name}-out")
        case "final":
            windowed = passing.group_by_key().window(lf.tumbling(seconds=60, grace=30_000))
            windowed.aggregate(**sums, emit="final").to(f"{name}-out")
        case "sessions":
            passing.group_by_key().window(lf.session(gap=20_000, grace=15_000)).aggregate(**sums).to(f"{name}-out")
        case "final-sessions":
            windowed = passing.group_by_key().window(lf.session(gap=20_000, grace=15_000))
            windowed.aggregate(**sums, emit="final").to(f"{name}-out")
        case "callables":
            passing.filter(lambda sale: refused(sale.item)).group_by_key().aggregate(**sums).to(f"{name}-out")
        case "split":
            large, rest = passing.split(lambda sale: refused(sale.item) and sale.amount > 50)
            large.group_by_key().aggregate(**sums).to(f"{name}-out")
            rest.to(f"{name}-rest")
        case "table-join":
            refunds = app.table(refunds_topic, Refund)
            counts = passing.group_by_key().aggregate(**sums)
            counts.join(refunds, prefix="r_").to(f"{name}-out")
        case "looked-up":
            passing.join(app.table(refunds_topic, Refund), prefix="r_").to(f"{name}-out")
        case "looked-up-windowed":
            joined = passing.left_join(app.table(refunds_topic, Refund), prefix="r_")
            joined.group_by_key().window(lf.tumbling(seconds=60, grace=30_000)).aggregate(**sums).to(f"{name}-out")
        case "global":
            passing.join(
                app.global_table(refunds_topic, Refund), on=lf.when(col.item == "a", "v").otherwise(col.item), prefix="r_"
            ).to(f"{name}-out")
        case "global-left":
            refunds = app.global_table(refunds_topic, Refund)
            passing.left_join(refunds, on=refund_of, prefix="r_").to(f"{name}-out")
        case "global-windowed":
            joined = passing.left_join(app.global_table(refunds_topic, Refund), on=refund_of, prefix="r_")
            joined.group_by_key().window(lf.tumbling(seconds=60, grace=30_000)).aggregate(**sums).to(f"{name}-out")
        case "filtered-table":
            passing.group_by_key().aggregate(**sums).filter(col.n > 2).to(f"{name}-out")
        case "kept-tables":
            many = passing.group_by_key().aggregate(**sums).filter(col.n > 2, store="many")
            many.select(n=col.n + 1, store="shown").to(f"{name}-out")
        case "sliding":
            passing.group_by_key().window(lf.sliding(seconds=20, grace=20_000)).aggregate(**sums).to(f"{name}-out")
        case "short-sliding":
            passing.group_by_key().window(lf.sliding(4, grace=4)).aggregate(**sums, emit="update").to(f"{name}-out")
        case "sliding-kept":
            window = lf.sliding(seconds=20, grace=10_000, retention=100_000)
            passing.group_by_key().window(window).aggregate(**sums).to(f"{name}-out")
        case "sliding-updates":
            windowed = passing.group_by_key().window(lf.sliding(seconds=20, grace=25_000))
            windowed.aggregate(**sums, emit="update").to(f"{name}-out")
        case "final-sliding":
            windowed = passing.group_by_key().window(lf.sliding(seconds=20, grace=20_000))
            windowed.aggregate(**sums, emit="final").to(f"{name}-out")
        case "ungraced-sliding":
            passing.group_by_key().window(lf.sliding(seconds=20, grace=10_000)).aggregate(**sums).to(f"{name}-out")
        case "suppressed":
            windowed = passing.group_by_key().window(lf.tumbling(seconds=60, grace=30_000))
            windowed.aggregate(**sums, emit="update").suppress(lf.until_window_closes()).to(f"{name}-out")
        case "suppressed-for-a-time":
            totals = passing.group_by_key().aggregate(**sums, emit="update")
            totals.suppress(lf.until_time_limit(lf.seconds(30))).to(f"{name}-out")
        case "bounded-suppressed":
            totals = passing.group_by_key().aggregate(**sums, emit="update")
            totals.suppress(lf.until_time_limit(lf.seconds(30), max_records=2)).to(f"{name}-out")
        case "suppressed-then-summed":
            windowed = passing.group_by_key().window(lf.tumbling(seconds=60, grace=30_000))
            closed = windowed.aggregate(**sums, emit="update").suppress(lf.until_window_closes())
            closed.to_stream().group_by(col.n).aggregate(total=lf.sum(col.total)).to(f"{name}-out")
        case "floats-then-summed":
            totals = passing.group_by_key().aggregate(**sums).to_stream()
            totals.group_by(col.n * 0).aggregate(total=lf.sum(col.total * 0.1)).to(f"{name}-out")
        case "summed-and-then-summed":
            passing.group_by_key().aggregate(most=lf.max(col.price)).to(f"{name}-most")
            totals = passing.group_by_key().aggregate(**sums).to_stream()
            totals.group_by(col.n * 0).aggregate(total=lf.sum(col.total * 0.1)).to(f"{name}-out")
        case "final-then-summed":
            windowed = passing.group_by_key().window(lf.tumbling(seconds=60, grace=30_000))
            finals = windowed.aggregate(**sums, emit="final").to_stream()
            finals.group_by(col.n).aggregate(total=lf.sum(col.total)).to(f"{name}-out")
        case "window-of-window":
            counts = passing.group_by_key().aggregate(**sums, emit="update").to_stream()
            counts.group_by_key().window(lf.tumbling(seconds=60, grace=5_000)).aggregate(k=lf.count()).to(f"{name}-out")
        case "row-before":
            passing.left_join(app.table(sales_topic, Sale, name="rows"), prefix="r_").to(f"{name}-out")
        case "row-and-count":
            rows = app.table(sales_topic, Sale, name="rows")
            passing.group_by_key().aggregate(**sums).join(rows, prefix="r_").to(f"{name}-out")
    return plan(app.topology())


def _join(app: lf.App, kind: str, sales: lf.Stream, refunds_topic: str, out: str) -> None:
    if kind == "self":
        sales.join(sales, within=lf.seconds(20), grace=lf.seconds(5), prefix="r_").to(out)
        return
    refunds = app.stream(refunds_topic, Refund, name="others")
    outer = {"left": sales.left_join, "left-then-windowed": sales.left_join}
    outer |= dict.fromkeys(("outer", "ungraced-outer"), sales.outer_join)
    grace = 0 if kind.startswith("ungraced") else lf.seconds(5)
    joined = outer.get(kind, sales.join)(refunds, within=lf.seconds(20), grace=grace, prefix="r_")
    if kind.endswith("then-windowed"):
        by_item = joined.group_by(col.r_item).window(lf.tumbling(seconds=60, grace=0))
        by_item.aggregate(n=lf.count(), total=lf.sum(col.price)).to(out)
    else:
        joined.to(out)


def loader(name: str, kind: str, sales_topic: str, refunds_topic: str) -> partial[Plan]:
    """Return what `plan_backfill` takes."""
    return partial(make_plan, name, kind, sales_topic, refunds_topic)
