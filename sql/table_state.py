"""The rows of a table in the state of the query that keeps it, read by partition: by keys, or page by page.

A state is spread over the workers that run its query. What is asked of one is a `TableRead`; what it answers, a `TablePage`, says
which of the wanted partitions it holds, so that whoever asks knows what is missing (`pull_reads.py` asks until nothing is).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from logflume.log import UnknownName, key_partition
from logflume.log.interfaces import Admin
from logflume.log.schemas import Column, CompiledSerde, FormatSpec, serde
from logflume.streams import expr as x
from logflume.streams import graph as g
from logflume.streams.functions import results_of
from logflume.streams.planner import rewrite
from logflume.streams.runtime import Engine, StoreView
from logflume.streams.seams import Entry

from . import plan as p
from .errors import SqlError
from .evaluate import evaluate
from .planner import PlannedQuery

PAGE_ROWS = 5000
_CHANGELOG_WAIT_S, _CHANGELOG_PAUSE_S = 15.0, 0.02
ValueRow = dict[tuple[x.Side, str], Any]
RowOf = Callable[[bytes, int | None, Entry], list[Any] | None]
"""(encoded key, window start, entry) -> a page's row."""


class TableRead(msgspec.Struct, frozen=True):
    """What is wanted of a table's state.

    Attributes:
        query_id: of the query that keeps it.
        partitions: the wanted ones; a scan (no `keys`) reads one at a time.
        keys: encoded record keys; None: all rows, in pages.
        after: the store key behind which a scan goes on.
    """

    query_id: str
    partitions: tuple[int, ...]
    keys: tuple[bytes, ...] | None = None
    after: bytes | None = None


class TablePage(msgspec.Struct, frozen=True):
    """What one worker has of that. `partitions`: those of the wanted ones that were read; `after`: there are more rows behind it.

    A row is (time, window start or None, window end or None, *key columns, *value columns).
    """

    partitions: tuple[int, ...] = ()
    rows: list[list[Any]] = []
    after: bytes | None = None


@dataclass(frozen=True)
class TableShape:
    """Where the rows of a query's table are, and how they come from a store's entries.

    Attributes:
        steps: what is computed on top of the aggregate, in order.
        key: as the steps name it; result_key: as the table does.
        is_repartitioned: the state is partitioned by our own partitioner, so that a key tells its partition.
    """

    query_id: str
    store: str
    aggregate: p.Aggregate
    window: g.TimeWindow | None
    steps: tuple[p.Filter | p.Select, ...]
    key: tuple[Column, ...]
    result_key: tuple[Column, ...]
    value: tuple[Column, ...]
    key_format: FormatSpec
    is_repartitioned: bool

    @cached_property
    def codec(self) -> CompiledSerde:
        """Of the store's keys; made once, for it takes longer than a read."""
        return serde(self.key_format, self.key)

    @cached_property
    def row_of(self) -> RowOf:
        """Makes rows of entries; made once."""
        return _row_maker(self)

    def encoded(self, keys: Sequence[tuple[Any, ...]]) -> tuple[bytes, ...]:
        """Return the keys as the store has them, each once; what cannot be a key has no rows."""
        encode = self.codec.encode
        return tuple(dict.fromkeys(data for key in keys if (data := encode(key)) is not None))

    def partitions_of(self, keys: Sequence[bytes] | None, count: int) -> tuple[int, ...]:
        """Return which of `count` partitions can hold these keys."""
        if keys is None or not self.is_repartitioned:
            return tuple(range(count))
        return tuple(sorted({key_partition(key, count) for key in keys}))

    def value_row(self, row: Sequence[Any]) -> ValueRow:
        """Return a row of a page as expressions read it."""
        found: ValueRow = {(x.Side.META, "ROWTIME"): row[0]}
        if self.window is not None:
            found[x.Side.META, "WINDOWSTART"], found[x.Side.META, "WINDOWEND"] = row[1], row[2]
        first = 3 + len(self.key)
        found |= {(x.Side.KEY, c.name): v for c, v in zip(self.result_key, row[3:first], strict=True)}
        found |= {(x.Side.VALUE, c.name): v for c, v in zip(self.value, row[first:], strict=True)}
        return found


def table_shape(planned: PlannedQuery) -> TableShape | None:
    """Return how the table that a query makes is read from its state; None when its topic alone tells.

    A query with EMIT FINAL keeps the windows that are open, and drops them when their results leave: its table is in the topic.
    """
    steps: list[p.Filter | p.Select] = []
    operator = planned.plan.root
    while isinstance(operator, p.Filter | p.Select):
        steps.append(operator)
        operator = operator.input
    if not isinstance(operator, p.Aggregate) or operator.emit is g.Emit.FINAL:
        return None
    if operator.window is not None and not isinstance(operator.window, g.TimeWindow):
        return None
    nodes = rewrite(planned.topology).nodes
    # The aggregate next to the sink: others before it are of queries in FROM.
    found: g.Node = next(n for n in nodes.values() if isinstance(n, g.Sink))
    while not isinstance(found, g.Aggregate | g.TableAggregate):
        found = nodes[found.inputs[0]]
    node: g.Node = nodes[found.inputs[0]]
    while not isinstance(node, g.Source | g.Repartition):
        node = nodes[node.inputs[0]]
    return TableShape(
        query_id=planned.query.id,
        store=found.store,
        aggregate=operator,
        window=operator.window,
        steps=tuple(reversed(steps)),
        key=found.schema.key,
        result_key=planned.plan.key,
        value=planned.plan.value,
        key_format=node.key_format,
        is_repartitioned=isinstance(node, g.Repartition),
    )


class Tables:
    """What is found out once for each table that a query keeps: its shape, and how many partitions its state has. Thread-safe."""

    def __init__(self) -> None:
        self._shapes: dict[str, tuple[PlannedQuery, TableShape | None]] = {}
        self._partitions: dict[str, int] = {}

    def shape(self, planned: PlannedQuery) -> TableShape | None:
        """Return `table_shape` of a query."""
        found = self._shapes.get(planned.query.id)
        if found is None or found[0] is not planned:
            found = self._shapes[planned.query.id] = (planned, table_shape(planned))
        return found[1]

    def partitions(self, topic: str, admin: Admin) -> int:
        """Return the number of partitions of a changelog, which never changes; waits for a query that is starting to make it."""
        deadline_s = time.monotonic() + _CHANGELOG_WAIT_S
        while topic not in self._partitions:
            try:
                self._partitions[topic] = admin.describe_topics([topic])[topic].partitions
            except UnknownName:
                if time.monotonic() > deadline_s:
                    raise SqlError(f"{topic} is not there: its query has not started; SHOW QUERIES tells why") from None
                time.sleep(_CHANGELOG_PAUSE_S)
        return self._partitions[topic]

    def known_partitions(self, topic: str) -> int | None:
        """Return the number of partitions of a changelog if it is known here."""
        return self._partitions.get(topic)

    def forget(self, query_id: str) -> None:
        """Forget what belongs to a query that has ended or changed; another of its name may follow."""
        self._shapes.pop(query_id, None)
        self._partitions.clear()


def read_state(shape: TableShape, engine: Engine, read: TableRead) -> TablePage:
    """Answer from the state that an engine holds here: nothing for partitions that it does not hold, or not yet."""
    view = engine.store(shape.store).only(read.partitions)
    held = view.partitions
    if not held:
        return TablePage()
    rows_of = shape.row_of
    if read.keys is not None:
        entries = list(_by_key(view, shape, read.keys))
        rows = [row for each in entries if (row := rows_of(*each)) is not None]
        return TablePage(tuple(n for n in held if n in view.partitions), rows)
    rows, after = [], None
    start = b"" if read.after is None else read.after + b"\0"
    for number, (data, entry) in enumerate(view.range(start)):
        if number == PAGE_ROWS:
            break
        after = data
        key, window_start = (data[:-8], int.from_bytes(data[-8:], "big")) if shape.window else (data, None)
        row = rows_of(key, window_start, entry)
        if row is not None:
            rows.append(row)
    else:
        after = None
    return TablePage(tuple(n for n in held if n in view.partitions), rows, after)


def _by_key(view: StoreView, shape: TableShape, keys: Sequence[bytes]) -> Iterator[tuple[bytes, int | None, Entry]]:
    if shape.window is None:
        for data, found in zip(keys, view.get_many(keys), strict=True):
            if found is not None:
                yield data, None, found
        return
    for data in keys:
        for start, entry in view.windows(data):
            yield data, start, entry


def _row_maker(shape: TableShape) -> RowOf:
    """Return what makes a page's row of a store's entry; None of it: the row is not in the table."""
    picked = _picked(shape)
    return _maker_of_steps(shape) if picked is None else _maker_of_columns(shape, picked)


def _picked(shape: TableShape) -> list[int] | None:
    """Return which of (*key, *results) each value column is; None: one is computed, or rows are left out."""
    names = [(x.Side.KEY, c.name) for c in shape.key] + [(x.Side.VALUE, a.name) for a in shape.aggregate.aggregations]
    found = {name: place for place, name in enumerate(names)}
    for step in shape.steps:
        if isinstance(step, p.Filter):
            return None
        values: dict[tuple[x.Side, str], int] = {}
        for name, e in step.columns:
            if not isinstance(e, x.ColumnRef) or (e.side, e.name) not in found:
                return None
            values[x.Side.VALUE, name] = found[e.side, e.name]
        found = {name: place for name, place in found.items() if name[0] is x.Side.KEY} | values
    return [found[x.Side.VALUE, c.name] for c in shape.value]


def _maker_of_columns(shape: TableShape, picked: list[int]) -> RowOf:
    decode, results, nothing = shape.codec.decode, results_of(shape.aggregate.aggregations), (None,) * len(shape.key)
    size_ms = 0 if shape.window is None else shape.window.size_ms

    def row_of(data: bytes, start: int | None, entry: Entry) -> list[Any] | None:
        if entry.state is None:
            return None
        key = decode(data) or nothing
        known = (*key, *results(entry.state))
        return [entry.timestamp_ms, start, None if start is None else start + size_ms, *key, *[known[i] for i in picked]]

    return row_of


def _maker_of_steps(shape: TableShape) -> RowOf:
    decode, results = shape.codec.decode, results_of(shape.aggregate.aggregations)

    def row_of(data: bytes, start: int | None, entry: Entry) -> list[Any] | None:
        if entry.state is None:
            return None
        key = decode(data) or (None,) * len(shape.key)
        end = start + shape.window.size_ms if shape.window is not None and start is not None else None
        row: ValueRow = {(x.Side.META, "ROWTIME"): entry.timestamp_ms}
        row |= {(x.Side.KEY, c.name): v for c, v in zip(shape.key, key, strict=True)}
        if start is not None:
            row[x.Side.META, "WINDOWSTART"], row[x.Side.META, "WINDOWEND"] = start, end
        values = zip(shape.aggregate.aggregations, results(entry.state), strict=True)
        row |= {(x.Side.VALUE, a.name): v for a, v in values}
        for step in shape.steps:
            if isinstance(step, p.Filter):
                if value_of(step.predicate, row) is not True:
                    return None
            else:
                columns = {(x.Side.VALUE, name): value_of(e, row) for name, e in step.columns}
                row = {k: v for k, v in row.items() if k[0] is not x.Side.VALUE} | columns
        return [entry.timestamp_ms, start, end, *key, *(row[x.Side.VALUE, c.name] for c in shape.value)]

    return row_of


def value_of(e: x.Expr, row: ValueRow) -> Any:
    """Return the value of an expression over one row; null when it cannot be computed."""
    try:
        return evaluate(e, row)
    except (ArithmeticError, ValueError, TypeError, KeyError, IndexError):
        return None
