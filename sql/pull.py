"""Pull queries: what is true now, as a finished result. From a query's state where there is some, else from the topic, bounded.

A table made by GROUP BY is answered from its store: by key when WHERE fixes all key columns, else by a scan of the store. Other
tables and streams are read from their topic, from the start to the end as it is when the query begins, up to a limit of records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from logflume.log import DecodeError, TopicPartition
from logflume.log.interfaces import Log
from logflume.log.schemas import BIGINT, Column, FormatSpec, serde
from logflume.streams import expr as x
from logflume.streams import graph as g
from logflume.streams.functions import results_of
from logflume.streams.planner import rewrite
from logflume.streams.runtime import Engine, StoreView

from . import ast
from . import plan as p
from .binding.context import Context
from .binding.expressions import Binder
from .binding.projection import canonical, spread
from .binding.scope import Scope
from .binding.sources import source_columns, timestamp_expression
from .catalog import SourceInfo
from .errors import SqlError, StatementError
from .evaluate import evaluate
from .planner import PlannedQuery
from .results import Rows
from .tree import split_conjuncts

ValueRow = dict[tuple[x.Side, str], Any]

# No tool reads a topic without a limit.
SCAN_MAX_RECORDS = 2_000_000
KEYS_MAX = 10_000
_SCAN_IDLE_S = 30


@dataclass(frozen=True, slots=True)
class Materialized:
    """A running query that keeps the table asked for."""

    planned: PlannedQuery
    engine: Engine


@dataclass(frozen=True, slots=True)
class _Pull:
    """A bound pull query."""

    source: SourceInfo
    where: x.Expr | None
    columns: tuple[tuple[str, x.Expr], ...]
    keys: tuple[tuple[Any, ...], ...] | None
    limit: int | None


def run_pull(query: ast.Query, context: Context, log: Log, materialized: Callable[[SourceInfo], Materialized | None]) -> Rows:
    """Answer a pull query.

    Raises:
        StatementError: clauses that a pull query cannot have, unknown names. SqlError: the topic is beyond the limit.
    """
    pull = _bind(query, context)
    found: list[tuple[Any, ...]] = []
    skipped = _Skipped()
    rows, note = _candidates(pull, log, materialized(pull.source), skipped)
    for row in rows:
        if pull.limit is not None and len(found) >= pull.limit:
            break
        if pull.where is None or _value(pull.where, row) is True:
            found.append(tuple(_value(e, row) for _, e in pull.columns))
    columns = tuple(Column(name, e.type) for name, e in pull.columns)
    return Rows(pull.source.name, columns, tuple(found), note + skipped.note())


class _Skipped:
    """Counts records that could not be decoded, and keeps the first cause."""

    def __init__(self) -> None:
        self.count = 0
        self.first = ""

    def add(self, topic: str, partition: int, offset: int, cause: object) -> None:
        self.count += 1
        self.first = self.first or f"{topic}[{partition}] offset {offset}: {cause}"

    def note(self) -> str:
        return f"; {self.count} record(s) left out, the first {self.first}" if self.count else ""


def _value(e: x.Expr, row: ValueRow) -> Any:
    try:
        return evaluate(e, row)
    except (ArithmeticError, ValueError, TypeError, KeyError, IndexError):
        return None


# ------------------------------------------------------------------------------------------------ binding


def _bind(query: ast.Query, context: Context) -> _Pull:
    _refuse(query, context)
    source = context.catalog.source(query.source.name, query.source.span)
    alias = query.source.alias
    scope = Scope(tuple(source_columns(source, alias)))
    binder = Binder(scope, context.library, context.catalog.types, "SELECT", fixed_now_ms=context.fixed_now_ms)
    where = None if query.where is None else replace(binder, clause="WHERE").condition(query.where)
    items = spread(query.select, scope, binder, None)
    columns = [(i.name, binder.bind(i.expression)) for i in items]
    if source.window is not None and any(i.kind == "all" for i in query.select):
        bounds = [(m.value, x.ColumnRef(x.Side.META, m.value, BIGINT)) for m in (x.Meta.WINDOWSTART, x.Meta.WINDOWEND)]
        columns[len(source.key) : len(source.key)] = bounds
    keys = None if query.where is None else _keys(query.where, source, scope, binder)
    return _Pull(source, where, tuple(columns), keys, query.limit)


def _refuse(query: ast.Query, context: Context) -> None:
    refused: dict[str, ast.Span | None] = {
        "JOIN": query.joins[0].span if query.joins else None,
        "WINDOW": None if query.window is None else query.clause_span("WINDOW"),
        "GROUP BY": None if query.group_by is None else query.clause_span("GROUP BY"),
        "PARTITION BY": None if query.partition_by is None else query.clause_span("PARTITION BY"),
        "HAVING": None if query.having is None else query.clause_span("HAVING"),
    }
    for clause, span in refused.items():
        if span is not None:
            raise StatementError(
                f"Pull queries don't support {clause} clauses. Add EMIT CHANGES to follow the result instead.", span
            )
    for item in query.select:
        if item.expression is not None and isinstance(item.expression, ast.Call):
            kind = context.library.kind_of(item.expression.name)
            if kind in ("aggregate", "table"):
                raise StatementError(
                    f"Pull queries don't support {kind} functions. Add EMIT CHANGES, or make a table of it.", item.span
                )


def _keys(where: ast.Expression, source: SourceInfo, scope: Scope, binder: Binder) -> tuple[tuple[Any, ...], ...] | None:
    """Return the keys that WHERE fixes, None when it does not fix all key columns."""
    fixed: dict[str, list[Any]] = {}
    for part in split_conjuncts(where):
        e = canonical(part, scope, "WHERE")
        name, choices = _fixed_column(e)
        if name is None or name in fixed:
            continue
        column = next((c for c in source.key if c.name == name), None)
        if column is None:
            continue
        try:
            values = [evaluate(binder.as_type(c, binder.bind(c), column.type), {}) for c in choices]
        except (StatementError, KeyError):
            continue
        fixed[name] = [v for v in values if v is not None]
    if not source.key or any(c.name not in fixed for c in source.key):
        return None
    keys = tuple(product(*(fixed[c.name] for c in source.key)))
    return keys if len(keys) <= KEYS_MAX else None


def _fixed_column(e: ast.Expression) -> tuple[str | None, list[ast.Expression]]:
    match e:
        case ast.Binary("=", ast.Name(name), value) if not isinstance(value, ast.Name):
            return name, [value]
        case ast.Binary("=", value, ast.Name(name)) if not isinstance(value, ast.Name):
            return name, [value]
        case ast.InList(ast.Name(name), items, False):
            return name, list(items)
    return None, []


# ------------------------------------------------------------------------------------------------ rows


def _candidates(pull: _Pull, log: Log, materialized: Materialized | None, skipped: _Skipped) -> tuple[Iterator[ValueRow], str]:
    if materialized is not None:
        state = _State.of(materialized)
        if state is not None and state.is_complete(log):
            how = "a scan of its state" if pull.keys is None else f"{len(pull.keys)} key(s) of its state"
            return state.rows(pull.keys), f"read from {how}"
    return _topic_rows(pull.source, log, skipped), f"read from topic {pull.source.topic}, start to end"


@dataclass(frozen=True, slots=True)
class _State:
    """The store of an aggregating query, and what is computed on top of it."""

    view: StoreView
    aggregate: p.Aggregate
    steps: tuple[p.Filter | p.Select, ...]
    key: tuple[Column, ...]
    key_format: FormatSpec
    topics: tuple[str, ...]

    @classmethod
    def of(cls, materialized: Materialized) -> _State | None:
        steps: list[p.Filter | p.Select] = []
        operator = materialized.planned.plan.root
        while isinstance(operator, p.Filter | p.Select):
            steps.append(operator)
            operator = operator.input
        if not isinstance(operator, p.Aggregate) or isinstance(operator.window, g.SessionWindow):
            return None
        nodes = rewrite(materialized.planned.topology).nodes
        node: g.Node = next(n for n in nodes.values() if isinstance(n, g.Aggregate | g.TableAggregate))
        key, store = node.schema.key, node.store  # type: ignore[attr-defined]
        while not isinstance(node, g.Source | g.Repartition):
            node = nodes[node.inputs[0]]
        topics = (node.topic,) if isinstance(node, g.Source) else ()
        return cls(materialized.engine.store(store), operator, tuple(reversed(steps)), key, node.key_format, topics)

    def is_complete(self, log: Log) -> bool:
        """Tell whether every partition of the state is here."""
        here = self.view.partitions
        if not here:
            return False
        if not self.topics:
            return here == tuple(range(len(here)))
        described = log.admin().describe_topics(self.topics)
        return len(here) >= max(d.partitions for d in described.values())

    def rows(self, keys: Sequence[tuple[Any, ...]] | None) -> Iterator[ValueRow]:
        key_serde = serde(self.key_format, self.key)
        results = results_of(self.aggregate.aggregations)
        window = self.aggregate.window
        for data, start, entry in self._entries(keys, key_serde):
            if entry.state is None:
                continue
            key_row = key_serde.decode(data)
            row: ValueRow = {(x.Side.META, "ROWTIME"): entry.timestamp_ms}
            if key_row is not None:
                row |= {(x.Side.KEY, c.name): v for c, v in zip(self.key, key_row, strict=True)}
            if isinstance(window, g.TimeWindow) and start is not None:
                row[x.Side.META, "WINDOWSTART"], row[x.Side.META, "WINDOWEND"] = start, start + window.size_ms
            row |= {(x.Side.VALUE, a.name): v for a, v in zip(self.aggregate.aggregations, results(entry.state), strict=True)}
            done = self._finish(row)
            if done is not None:
                yield done

    def _entries(self, keys: Sequence[tuple[Any, ...]] | None, key_serde: Any) -> Iterator[tuple[bytes, int | None, Any]]:
        is_windowed = self.aggregate.window is not None
        if keys is None:
            for data, entry in self.view.range():
                yield (data[:-8], int.from_bytes(data[-8:], "big"), entry) if is_windowed else (data, None, entry)
            return
        for key in keys:
            data = key_serde.encode(key)
            if data is None:
                continue
            if is_windowed:
                for start, entry in self.view.windows(data):
                    yield data, start, entry
            else:
                found = self.view.get(data)
                if found is not None:
                    yield data, None, found

    def _finish(self, row: ValueRow) -> ValueRow | None:
        for step in self.steps:
            if isinstance(step, p.Filter):
                if _value(step.predicate, row) is not True:
                    return None
            else:
                columns = {(x.Side.VALUE, name): _value(e, row) for name, e in step.columns}
                row = {k: v for k, v in row.items() if k[0] is not x.Side.VALUE} | columns
        return row


def _topic_rows(source: SourceInfo, log: Log, skipped: _Skipped) -> Iterator[ValueRow]:
    """Read a topic once: all records of a stream, the latest of each key of a table."""
    key_format = source.key_format if source.key else FormatSpec("NONE")
    decode_key, decode_value = serde(key_format, source.key).decode, serde(source.value_format, source.value).decode
    time = timestamp_expression(source)
    window = source.window
    latest: dict[bytes, ValueRow | None] = {}
    for record in _records(source.topic, log):
        data, start = record.key, None
        if window is not None and data is not None:
            data, start = data[:-8], int.from_bytes(data[-8:], "big")
        try:
            key, value = decode_key(data), decode_value(record.value)
        except DecodeError as e:
            skipped.add(record.topic, record.partition, record.offset, e)
            continue
        if value is None:
            if source.is_table and record.key is not None:
                latest[record.key] = None
            continue
        row: ValueRow = {(x.Side.META, "ROWTIME"): record.timestamp_ms}
        row[x.Side.META, "ROWPARTITION"], row[x.Side.META, "ROWOFFSET"] = record.partition, record.offset
        row[x.Side.META, "HEADERS"] = [{"KEY": k, "VALUE": v} for k, v in record.headers]
        row |= {(x.Side.KEY, c.name): v for c, v in zip(source.key, key or (None,) * len(source.key), strict=True)}
        row |= {(x.Side.VALUE, c.name): v for c, v in zip(source.value, value, strict=True)}
        if isinstance(window, g.TimeWindow) and start is not None:
            row[x.Side.META, "WINDOWSTART"], row[x.Side.META, "WINDOWEND"] = start, start + (window.size_ms or 0)
        if time is not None:
            row[x.Side.META, "ROWTIME"] = _value(time, row)
        if source.is_table:
            if record.key is not None:
                latest[record.key] = row
        else:
            yield row
    yield from (row for row in latest.values() if row is not None)


def _records(topic: str, log: Log) -> Iterator[Any]:
    admin = log.admin()
    count = admin.describe_topics([topic])[topic].partitions
    partitions = [TopicPartition(topic, n) for n in range(count)]
    starts, ends = admin.start_offsets(partitions), admin.end_offsets(partitions, read_committed=True)
    total = sum(ends[tp] - starts[tp] for tp in partitions)
    if total > SCAN_MAX_RECORDS:
        raise SqlError(
            f"topic {topic} has about {total:,} records, a pull query reads at most {SCAN_MAX_RECORDS:,}; "
            "make a table with GROUP BY, or follow it with EMIT CHANGES"
        )
    left = {tp: ends[tp] for tp in partitions if ends[tp] > starts[tp]}
    consumer = log.consumer()
    try:
        consumer.assign(left)
        for tp in left:
            consumer.seek(tp, starts[tp])
        idle = 0
        while left:
            chunks = consumer.poll(timeout_s=1.0)
            idle = 0 if chunks else idle + 1
            if idle > _SCAN_IDLE_S:
                raise SqlError(f"topic {topic} gave no records for {_SCAN_IDLE_S} s before its end")
            for chunk in chunks:
                tp = TopicPartition(chunk.topic, chunk.partition)
                end = left.get(tp)
                if end is None:
                    continue
                for record in chunk.records():
                    if record.offset < end:
                        yield record
                if chunk.next_offset >= end:
                    del left[tp]
    finally:
        consumer.close()
