"""The application of `benchmarks.spark`; Spark's Python workers import it."""

from __future__ import annotations

import msgspec

from logflume.streams import App, col, sum
from logflume.streams.planner import plan
from logflume.streams.seams import Plan


class Event(msgspec.Struct):
    """One input record."""

    id: int
    user: str
    page: str
    ms: int
    price: float
    ok: bool


def load_plan(column: str) -> Plan:
    """Return the application: the sum of an integer (`ms`) or a float (`price`) per user."""
    app = App(f"sum-{column}")
    passing = app.stream("events", Event, key=str).filter(col.ok & (col.ms > 100))
    passing.group_by_key().aggregate(total=sum(getattr(col, column))).to(f"sum-{column}-out")
    return plan(app.topology())
