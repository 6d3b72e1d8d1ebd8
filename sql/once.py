"""Queries that end and are more than a look-up: JOIN, GROUP BY, UNION ALL, DISTINCT, aggregates, queries in FROM.

The plan is that of the same query with EMIT CHANGES. It runs here, in memory, over all records of its topics up to their ends as
they are now; what is left at the end is the answer. Records of several partitions and topics are taken in order of time, each
partition's in its own order, so that the same records give the same answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

from logflume.log import Headers
from logflume.log.interfaces import Log
from logflume.log.schemas import Column
from logflume.streams import expr as x
from logflume.streams.testing import TopologyTestDriver

from . import ast
from . import plan as p
from .as_of import Until, at_the_end
from .binding.aggregation import has_aggregate
from .binding.context import Context
from .binding.query import Target, bind_query, is_whole
from .catalog import Catalog
from .errors import StatementError
from .planner import watched_plan
from .properties import COMPUTED
from .pull_topic import SCAN_MAX_RECORDS, OnRead, topic_records
from .results import Rows
from .rules import optimize
from .snapshot import hashable
from .table_state import value_of
from .topology import build_topology
from .tree import names_in

_BATCH_RECORDS = 10_000
_QUERY_ID = "ONCE"


def is_computed(query: ast.Query, context: Context) -> bool:
    """Tell whether a query that ends is more than rows of one source, and may be."""
    if context.property(COMPUTED, "true").lower() == "false":
        return False
    has_clauses = query.joins or query.unions or query.group_by is not None or query.is_distinct or query.window is not None
    return bool(has_clauses) or query.source.query is not None or _has_aggregate(query, context)


def _has_aggregate(query: ast.Query, context: Context) -> bool:
    return any(i.expression is not None and has_aggregate(i.expression, context.functions) for i in query.select)


def run_once(query: ast.Query, context: Context, log: Log, *, until: Mapping[str, Until]) -> Rows:
    """Compute a query over its topics as they are now, or were at the points of `until`.

    Raises:
        StatementError: what it cannot be, with its position. SqlError: the topics are beyond the limit.
    """
    planned = plan_once(at_the_end(query), context)
    plan, grouped = planned.plan, _grouped_table(planned.root)
    read = _Topics(log, context.catalog, until, context.on_read)
    rows = _computed(plan, read) if grouped is None else _folded(grouped, plan, read)
    if planned.is_whole and not rows:
        rows = _of_nothing(planned.root)
    sources = ", ".join(plan.sources)
    is_limited = query.limit is not None and len(rows) > query.limit
    return Rows(
        sources,
        plan.value,
        tuple(rows[: query.limit]),
        f"computed from the topics of {sources}, start to {'the point of AS OF' if until else 'end'}",
        is_limited=is_limited,
    )


@dataclass(frozen=True, slots=True)
class PlannedOnce:
    """A query that is computed once. `root`: before the rules; `is_whole`: aggregates over all rows, a row of nothing too."""

    plan: p.QueryPlan
    root: p.Operator
    is_whole: bool


def plan_once(query: ast.Query, context: Context) -> PlannedOnce:
    """Plan a query that is computed once. Raises StatementError: what it cannot be, with its position."""
    _check_places(query)
    bound = bind_query(query, context, Target(_QUERY_ID, needs_undo=False))
    return PlannedOnce(watched_plan(bound, query_id=_QUERY_ID), bound.root, is_whole(query, context.functions))


def _check_places(query: ast.Query) -> None:
    """Refuse what a record does not know of itself any more once it was taken out of its partition."""
    parts = [i.expression for i in query.select] + [query.where, query.having, *(query.group_by or ())]
    for e in parts:
        for name in () if e is None else names_in(e):
            if name.name in (x.Meta.ROWPARTITION, x.Meta.ROWOFFSET):
                raise StatementError(f"queries that are computed once don't support the column `{name.name}`", name.span)


@dataclass(frozen=True, slots=True)
class _Topics:
    """Where records come from, and up to which point."""

    log: Log
    catalog: Catalog
    until: Mapping[str, Until]
    on_read: OnRead | None


def _computed(plan: p.QueryPlan, read: _Topics) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    latest: dict[Any, tuple[Any, ...]] = {}

    def watch(key: Any, value: Any, timestamp_ms: int) -> None:
        if plan.kind is p.ResultKind.STREAM:
            if value is not None:
                found.append(tuple(value))
        elif value is None:
            latest.pop(hashable(key), None)
        else:
            latest[hashable(key)] = tuple(value)

    driver = TopologyTestDriver(
        build_topology(plan, watch=watch), on_problem="skip", commits_each_record=False, goes_together=True
    )
    topics = dict.fromkeys(read.catalog.sources[name].topic for name in plan.sources)
    for topic, batch in _batches(list(topics), read):
        driver.process_together(topic, *batch)
    # Each aggregate's results leave at a commit, and what follows from them at the next.
    for _ in range(1 + sum(isinstance(o, p.Aggregate) for o in p.operators(plan.root))):
        driver.commit()
    return [*found, *latest.values()]


class _Record(NamedTuple):
    """A record with the latest time of its partition so far, by which it is taken."""

    order_ms: int
    topic: str
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers


_Batch = tuple[list[bytes | None], list[bytes | None], list[int], list[Headers]]


def _batches(topics: list[str], read: _Topics) -> Iterator[tuple[str, _Batch]]:
    """Yield the records of topics in order of time, neighbours of one topic together."""
    records: list[_Record] = []
    for topic in topics:
        times: dict[int, int] = {}
        left, until = SCAN_MAX_RECORDS - len(records), read.until.get(topic)
        for r in topic_records(topic, read.log, records_max=left, until=until, on_read=read.on_read):
            order = times[r.partition] = max(times.get(r.partition, r.timestamp_ms), r.timestamp_ms)
            records.append(_Record(order, topic, r.key, r.value, r.timestamp_ms, r.headers))
    records.sort(key=lambda r: r.order_ms)
    for topic, group in groupby(records, lambda r: r.topic):
        run = list(group)
        for at in range(0, len(run), _BATCH_RECORDS):
            part = run[at : at + _BATCH_RECORDS]
            yield (
                topic,
                ([r.key for r in part], [r.value for r in part], [r.timestamp_ms for r in part], [r.headers for r in part]),
            )


def _of_nothing(root: p.Operator) -> list[tuple[Any, ...]]:
    """Return the one row of aggregates over no records at all."""
    aggregate = next(o for o in reversed(list(p.operators(root))) if isinstance(o, p.Aggregate))
    assert isinstance(root, p.Select)
    row = {(x.Side.VALUE, a.name): a.aggregator.result(a.aggregator.initial) for a in aggregate.aggregations}
    return [tuple(value_of(e, row) for _, e in root.columns)]


# ------------------------------------------------------------------------------------------------ groups of a table's rows


@dataclass(frozen=True, slots=True)
class _GroupedTable:
    """GROUP BY over a table: its last rows are folded here, so that aggregates need not take a row out again."""

    select: p.Select
    having: p.Filter | None
    aggregate: p.Aggregate
    regroup: p.Regroup


def _grouped_table(root: p.Operator) -> _GroupedTable | None:
    if not isinstance(root, p.Select):
        return None
    having = root.input if isinstance(root.input, p.Filter) else None
    aggregate = root.input if having is None else having.input
    if not isinstance(aggregate, p.Aggregate) or not isinstance(aggregate.input, p.Regroup):
        return None
    return _GroupedTable(root, having, aggregate, aggregate.input)


def _folded(grouped: _GroupedTable, plan: p.QueryPlan, read: _Topics) -> list[tuple[Any, ...]]:
    regroup, aggregations = grouped.regroup, grouped.aggregate.aggregations
    keys = tuple((f"KSQL_GROUP_{n}", e) for n, (_, e) in enumerate(regroup.keys))
    columns = (*keys, *regroup.columns)
    root = optimize(p.Select(regroup.input, columns))
    value = tuple(Column(name, e.type) for name, e in columns)
    groups: dict[Any, tuple[tuple[Any, ...], list[tuple[Any, ...]]]] = {}
    for values in _computed(replace(plan, root=root, value=value), read):
        key = values[: len(keys)]
        if None in key:
            continue
        row = {(x.Side.VALUE, c.name): v for c, v in zip(value, values, strict=True)}
        _, states = groups.setdefault(hashable(key), (key, [a.aggregator.initial for a in aggregations]))
        for n, a in enumerate(aggregations):
            args = [value_of(e, row) for e in a.args]
            if not (a.aggregator.skips_null and None in args):
                states[n] = a.aggregator.add(states[n], *args)
    found: list[tuple[Any, ...]] = []
    for key, states in groups.values():
        row = {(x.Side.KEY, name): v for (name, _), v in zip(regroup.keys, key, strict=True)}
        row |= {(x.Side.VALUE, a.name): a.aggregator.result(s) for a, s in zip(aggregations, states, strict=True)}
        if grouped.having is None or value_of(grouped.having.predicate, row) is True:
            found.append(tuple(value_of(e, row) for _, e in grouped.select.columns))
    return found
