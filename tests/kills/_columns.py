"""Applications whose values are typed, so that kernels do their work: one for each family of operators, in the DSL and in SQL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec

import logflume.streams as lf
from logflume.sql import Catalog, plan_query
from logflume.sql.binding.context import Context
from logflume.sql.definitions import apply_definition
from logflume.sql.parser import parse_statement
from logflume.streams import col
from logflume.streams.seams import Plan


class Number(msgspec.Struct):
    n: int


class Totals(lf.Processor):
    """The sum of a key so far; each 200 ms of event time those that are large begin again."""

    def init(self, context: lf.Context) -> None:
        super().init(context)
        self.totals = context.store("totals")
        context.schedule(200, self.begin_again)

    def process(self, record: lf.Record) -> None:
        total = Number(record.value.n + (0 if (found := self.totals.get(record.key)) is None else found.n))
        self.totals.put(record.key, total)
        self.context.forward(record.with_value({"total": total.n}))

    def begin_again(self, now_ms: int) -> None:
        for key, total in self.totals.items():
            if total.n > 15:
                self.totals.delete(key)


SUMS = {"c": lf.count(), "total": lf.sum(col.n), "least": lf.min(col.n), "most": lf.max(col.n)}


def _left(app: lf.App) -> Any:
    return app.stream("left", Number, key=str)


def _right(app: lf.App) -> Any:
    return app.stream("right", Number, key=str)


def _table(app: lf.App, topic: str) -> Any:
    return app.table(topic, Number, key=str)


def _windows(window: Any, emit: str = "update") -> Callable[[lf.App], Any]:
    return lambda app: _left(app).group_by_key().window(window).aggregate(**SUMS, name="s", emit=emit)


def _stateless(app: lf.App) -> Any:
    return _left(app).filter(col.n % 3 != 0).select(double=col.n * 2, text=col.n.cast(str))


def _callables(app: lf.App) -> Any:
    spread = _left(app).map_values(lambda row: {"n": row.n + 1}).filter(lambda row: row["n"] % 4 != 0)
    return spread.flat_map(lambda key, row: [(key, row["n"])] * 2, key=str)


def _branches(app: lf.App) -> Any:
    small, rest = _left(app).split(col.n < 7)
    return small.select(n=col.n * 10).merge(rest.select(n=col.n * -1))


def _reduce(app: lf.App) -> Any:
    return _left(app).group_by_key().reduce(lambda a, b: Number(a.n + b.n), name="s", emit="update")


def _totals(app: lf.App) -> Any:
    return _left(app).group_by_key().aggregate(**SUMS, mean=lf.mean(col.n), name="s", emit="update")


def _regrouped(app: lf.App) -> Any:
    return _left(app).group_by(col.n, name="by").aggregate(**SUMS, name="s", emit="update")


def _suppressed(app: lf.App) -> Any:
    counts = _left(app).group_by_key().window(lf.tumbling(40, grace=10)).aggregate(**SUMS, name="s", emit="update")
    return counts.suppress(lf.until_window_closes(), name="held")


def _streams(kind: str) -> Callable[[lf.App], Any]:
    def build(app: lf.App) -> Any:
        joined = getattr(_left(app), f"{kind}join")(_right(app).select(m=col.n), within=15, grace=5, name="j")
        return joined.select(n=col.n, m=col.m)

    return build


def _lookup(kind: str) -> Callable[[lf.App], Any]:
    return lambda app: getattr(_left(app), f"{kind}join")(_table(app, "right").select(m=col.n)).select(n=col.n, m=col.m)


def _everywhere(kind: str) -> Callable[[lf.App], Any]:
    def build(app: lf.App) -> Any:
        rows = app.global_table("right", Number, key=str)
        joined = getattr(_left(app), f"{kind}join")(rows, on=(col.n % 50).cast(str).lpad(2, "k"), prefix="r_", name="j")
        return joined.select(n=col.n, m=col.r_n)

    return build


def _as_of(app: lf.App) -> Any:
    versions = app.table("right", Number, key=str, history=200)
    return _left(app).left_join(versions, prefix="r_", name="j").select(n=col.n, m=col.r_n)


def _rows_called(app: lf.App) -> Any:
    doubled = _table(app, "left").map_values(lambda row: Number(row.n * 2))
    return doubled.filter(lambda row: row.n % 3 != 0, store="kept")


def _processed(app: lf.App) -> Any:
    return _left(app).process_values(Totals, lf.key_value_store("totals", value=Number), name="totals")


def _tables(kind: str) -> Callable[[lf.App], Any]:
    def build(app: lf.App) -> Any:
        joined = getattr(_table(app, "left"), f"{kind}join")(_table(app, "right").select(m=col.n), name="j")
        return joined.select(n=col.n, m=col.m)

    return build


def _passing(app: lf.App) -> Any:
    return _table(app, "left").filter(col.n < 12).select(square=col.n * col.n)


def _groups(app: lf.App) -> Any:
    return _table(app, "left").group_by(col.n % 3, name="groups").aggregate(c=lf.count(), total=lf.sum(col.n), name="s")


def _foreign(app: lf.App) -> Any:
    joined = _table(app, "left").join(_table(app, "right").select(m=col.n), on=(col.n % 5).cast(str).lpad(2, "k"), name="j")
    return joined.select(n=col.n, m=col.m)


def _row_before(app: lf.App) -> Any:
    rows = app.table("left", Number, key=str, name="rows")
    joined = _left(app).left_join(rows, prefix="r_")
    return joined.select(n=col.n, m=col.r_n)


DSL: dict[str, Callable[[lf.App], Any]] = {
    "stateless": _stateless, "callables": _callables, "branches": _branches, "reduce": _reduce, "totals": _totals,
    "regrouped": _regrouped, "passing": _passing, "groups of columns": _groups, "foreign columns": _foreign,
    "tumbling": _windows(lf.tumbling(50, grace=20)), "hopping": _windows(lf.hopping(60, advance=20, grace=20)),
    "final": _windows(lf.tumbling(50, grace=20), "final"), "sessions of columns": _windows(lf.session(40, grace=20)),
    "sliding of columns": _windows(lf.sliding(30, grace=10)), "unlimited": _windows(lf.unlimited()), "suppressed": _suppressed,
    "inner": _streams(""), "left": _streams("left_"), "outer": _streams("outer_"),
    "lookup": _lookup(""), "left lookup": _lookup("left_"),
    "row of its own": _row_before, "everywhere": _everywhere(""), "left everywhere": _everywhere("left_"), "as of times": _as_of,
    "rows called back": _rows_called, "totals of a processor": _processed,
    "tables inner": _tables(""), "tables left": _tables("left_"), "tables outer": _tables("outer_"),
}  # fmt: skip

SOURCES = (
    "CREATE STREAM LEFTS (K STRING KEY, N INTEGER) WITH (KAFKA_TOPIC='left', VALUE_FORMAT='JSON')",
    "CREATE STREAM RIGHTS (K STRING KEY, N INTEGER) WITH (KAFKA_TOPIC='right', VALUE_FORMAT='JSON')",
    "CREATE TABLE LEFT_ROWS (K STRING PRIMARY KEY, N INTEGER) WITH (KAFKA_TOPIC='left', VALUE_FORMAT='JSON')",
    "CREATE TABLE RIGHT_ROWS (K STRING PRIMARY KEY, N INTEGER) WITH (KAFKA_TOPIC='right', VALUE_FORMAT='JSON')",
)
_SUMS = "COUNT(*) AS C, SUM(N) AS S, MIN(N) AS LEAST, MAX(N) AS MOST"
SQL = {
    "sql stateless": ("STREAM", "SELECT K, N * 2 AS D, CAST(N AS STRING) AS T FROM LEFTS WHERE N % 3 != 0"),
    "sql totals": ("TABLE", f"SELECT K, {_SUMS}, AVG(N) AS MEAN FROM LEFTS GROUP BY K"),
    "sql regrouped": ("TABLE", "SELECT N, COUNT(*) AS C FROM LEFTS GROUP BY N"),
    "sql tumbling": (
        "TABLE",
        f"SELECT K, {_SUMS} FROM LEFTS WINDOW TUMBLING (SIZE 50 MILLISECONDS, GRACE PERIOD 20 MILLISECONDS) GROUP BY K",
    ),
    "sql final": (
        "TABLE",
        f"SELECT K, {_SUMS} FROM LEFTS WINDOW TUMBLING (SIZE 50 MILLISECONDS, GRACE PERIOD 20 MILLISECONDS) "
        "GROUP BY K EMIT FINAL",
    ),
    "sql hopping": (
        "TABLE",
        f"SELECT K, {_SUMS} FROM LEFTS WINDOW HOPPING "
        "(SIZE 60 MILLISECONDS, ADVANCE BY 20 MILLISECONDS, GRACE PERIOD 20 MILLISECONDS) GROUP BY K",
    ),
    "sql sessions": (
        "TABLE",
        f"SELECT K, {_SUMS} FROM LEFTS WINDOW SESSION (40 MILLISECONDS, GRACE PERIOD 20 MILLISECONDS) GROUP BY K",
    ),
    "sql streams": (
        "STREAM",
        "SELECT LEFTS.K, LEFTS.N AS A, RIGHTS.N AS B FROM LEFTS LEFT JOIN RIGHTS WITHIN 15 MILLISECONDS "
        "GRACE PERIOD 5 MILLISECONDS ON LEFTS.K = RIGHTS.K",
    ),
    "sql lookup": ("STREAM", "SELECT LEFTS.K, LEFTS.N AS A, R.N AS B FROM LEFTS LEFT JOIN RIGHT_ROWS R ON LEFTS.K = R.K"),
    "sql row before": ("STREAM", "SELECT L.K, L.N AS A, R.N AS B FROM LEFTS L LEFT JOIN LEFT_ROWS R ON L.K = R.K"),
    "sql tables": ("TABLE", "SELECT L.K, L.N AS A, R.N AS B FROM LEFT_ROWS L JOIN RIGHT_ROWS R ON L.K = R.K"),
    "sql groups": ("TABLE", "SELECT N, COUNT(*) AS C, SUM(N) AS S FROM LEFT_ROWS GROUP BY N"),
}  # fmt: skip
TOPICS_BETWEEN = ("regrouped", "groups of columns", "foreign columns")
"""As `THROUGH_TOPICS` of the others."""
COMPACTED = tuple(name for name, (kind, _) in SQL.items() if kind == "TABLE")
"""Those whose results go to topics that keep the last value of each key."""


def sql_plan(application: str, name: str, output: str) -> Plan:
    """Return the plan of a query of `SQL`."""
    catalog = Catalog()
    for text in SOURCES:
        catalog = apply_definition(parse_statement(text), Context(catalog))
    kind, query = SQL[name]
    text = f"CREATE {kind} Q WITH (KAFKA_TOPIC='{output}', PARTITIONS=1, VALUE_FORMAT='JSON') AS {query}"
    return lf.plan(replace(plan_query(text, catalog), name=application))
