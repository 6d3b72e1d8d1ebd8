"""The applications that are measured; Spark's Python workers import them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

import logflume.streams as lf
from benchmarks.streams import APPS, Event, Shown, User
from logflume.streams import App, col
from logflume.streams.planner import plan
from logflume.streams.seams import Plan

SUMS = {"n": lf.count(), "total": lf.sum(col.price)}


def load_sums(column: str) -> Plan:
    """Return the application: the sum of an integer (`ms`) or a float (`price`) per user."""
    app = App(f"sum-{column}")
    passing = app.stream("events", Event, key=str).filter(col.ok & (col.ms > 100))
    passing.group_by_key().aggregate(total=lf.sum(getattr(col, column))).to(f"sum-{column}-out")
    return plan(app.topology())


def load_filtered(number: int) -> Plan:
    """Return one of several applications that differ in what they let pass of the same topic: a sum per user."""
    app = App(f"filtered-{number}")
    passing = app.stream("events", Event, key=str).filter(col.ok & (col.ms > 100 * number))
    passing.group_by_key().aggregate(total=lf.sum(col.ms)).to(f"filtered-{number}-out")
    return plan(app.topology())


def load_topology(kind: str, name: str) -> Plan:
    """Return one of T1 to T5 (`benchmarks.streams`) as the application `name`."""
    return plan(APPS[kind](name, "").topology())


def load_counts(name: str) -> Plan:
    """Return an application that counts per key, and tells nobody."""
    app = App(name)
    app.stream("keys", Event, key=str).group_by_key().count(name="counted")
    return plan(app.topology())


def load_totals(topic: str) -> Plan:
    """Return the application that counts and sums per key of a topic; of "windows" per minute too."""
    app = App(f"totals-of-{topic}")
    grouped: Any = app.stream(topic, Event, key=str).group_by_key()
    if topic == "windows":
        grouped = grouped.window(lf.tumbling(minutes=1, grace=60_000))
    grouped.aggregate(n=lf.count(), total=lf.sum(col.ms)).to(f"{topic}-out")
    return plan(app.topology())


def noting(folder: str) -> App:
    """Return an application that notes when its first record comes."""
    app = App(f"noting-{Path(folder).name}")

    def note(event: Event) -> bool:
        note_time(folder)
        return True

    app.stream("events", Event, key=str).filter(note).to("noted")
    return app


def note_time(folder: str) -> None:
    """Write down when it is, and the CPU seconds that the command's processes have used by then, unless that was done."""
    path = Path(folder, "first-task")
    if not path.exists():
        path.write_text(f"{time.time()!r} {_session_cpu_s()!r}")


def _session_cpu_s() -> float:
    """Return that of all processes of this one's session: the command began it."""
    used_s = 0.0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getsid(process.pid) == os.getsid(0):
                used_s += float(sum(process.cpu_times()[:4]))
    return used_s


def _grouped(app: App) -> Any:
    return app.stream("events", Event, key=str).group_by_key()


def _windowed(window: Any) -> Callable[[App], Any]:
    return lambda app: _grouped(app).window(window).aggregate(**SUMS)


def _pair(app: App) -> tuple[Any, Any]:
    return app.stream("shown", Shown, key=str), app.stream("seen", Shown, key=str)


def _suppressed(app: App) -> Any:
    counts = _grouped(app).window(lf.tumbling(seconds=10, grace=10_000)).count(emit="update")
    return counts.suppress(lf.until_window_closes())


def _inner(app: App) -> Any:
    shown, seen = _pair(app)
    return shown.join(seen, within=lf.seconds(5), prefix="seen_")


def _left(app: App) -> Any:
    shown, seen = _pair(app)
    return shown.left_join(seen, within=lf.seconds(5), prefix="seen_")


def _outer(app: App) -> Any:
    shown, seen = _pair(app)
    return shown.outer_join(seen, within=lf.seconds(5), prefix="seen_")


def _with_table(app: App) -> Any:
    return app.stream("events", Event, key=str).join(app.table("users", User, key=str))


def _tables(app: App) -> tuple[Any, Any]:
    return app.table("events", Event, key=str), app.table("users", User, key=str)


def _of_tables(app: App) -> Any:
    events, users = _tables(app)
    return events.join(users)


def _by_foreign_key(app: App) -> Any:
    events, users = _tables(app)
    return events.join(users, on=col.user)


OPERATORS: dict[str, Callable[[App], Any]] = {
    "filter and select": lambda app: app.stream("events", Event, key=str).filter(col.ok).select(col.id, gross=col.price * 1.2),
    "count": lambda app: _grouped(app).count(),
    "sum of floats": lambda app: _grouped(app).aggregate(**SUMS),
    "sum by a callable": lambda app: _grouped(app).aggregate(0, lambda total, event: total + event.ms),
    "count by another key": lambda app: app.stream("events", Event, key=str).group_by(col.page).count(),
    "tumbling windows": _windowed(lf.tumbling(seconds=10, grace=10_000)),
    "hopping windows": _windowed(lf.hopping(seconds=10, advance=5_000, grace=10_000)),
    "sliding windows": _windowed(lf.sliding(lf.seconds(5), grace=lf.seconds(5))),
    "sessions": _windowed(lf.session(lf.seconds(5), grace=lf.seconds(5))),
    "suppressed windows": _suppressed,
    "join with a table": _with_table,
    "join of streams": _inner,
    "left join of streams": _left,
    "outer join of streams": _outer,
    "join of tables": _of_tables,
    "join on a foreign key": _by_foreign_key,
    "count of a table's groups": lambda app: app.table("events", Event, key=str).group_by(col.page).count(),
}
"""One of each kind."""


def load_operator(kind: str) -> Plan:
    """Return one of OPERATORS."""
    app = App(f"operator-{list(OPERATORS).index(kind)}")
    OPERATORS[kind](app).to("operator-out")
    return plan(app.topology())
