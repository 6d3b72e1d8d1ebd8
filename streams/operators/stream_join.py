"""Joins of two streams: records of a key whose times are within a window of each other.

Each side keeps its records by key and time. A record is paired with those of the other side that are there, so each pair meets
once, when its later one comes. On an outer side a record without a partner waits, in the same entry, until no partner can come
any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any

from logflume.log.schemas import ANY
from logflume.log.schemas import Column as Field

from .. import graph as g
from ..columns import Batch
from ..columns.batch import ColumnId
from ..columns.evaluate import evaluations
from ..expr import Side
from ..seams import State, StateStore, StoreSpec
from ..windows import WINDOW_START
from .emission import Emission, Emitted, Joiner, rows_of
from .operator import Bind, Operator, RawKey, Task, Wiring, Work
from .timeline import Timeline

LEFT, RIGHT = 1, 0
"""In the order in which waiting records of one time leave."""

RECORDS = (Field("rows", ANY), Field("waiting", ANY))
"""Values of the records of a key and time, in order; and of those among them that wait for a partner."""


class StreamJoinOperator(Operator[g.StreamJoin]):
    """A StreamJoin, inner, left or outer."""

    node_class = g.StreamJoin

    def reads(self, source: g.Node, below: frozenset[ColumnId], wiring: Wiring) -> set[ColumnId]:
        return {(Side.VALUE, c.name) for c in source.schema.value} | {(Side.KEY, c.name) for c in source.schema.key}

    def stores(self) -> tuple[StoreSpec, ...]:
        node = self.node
        span_ms = max(node.before_ms, 0) + max(node.after_ms, 0) + 1
        window = g.TimeWindow(span_ms, 1, node.grace_ms)
        return tuple(StoreSpec(name, node.schema.key, RECORDS, window) for name in store_names(node))

    def raw_key(self, inputs: Sequence[RawKey | None]) -> RawKey | None:
        return inputs[0]

    def wants_old(self, *, is_asked: bool) -> bool:
        return False

    def plan(self, wiring: Wiring) -> Bind:
        return lambda task: StreamJoinWork(self.node, wiring, task)


def store_names(node: g.StreamJoin) -> tuple[str, str]:
    """Return the names of the stores of the left and the right side."""
    return f"{node.store}-left", f"{node.store}-right"


@dataclass(slots=True, eq=False)
class _Side:
    """One side: which it is, how far ahead of its records a partner may be, whether its records leave alone."""

    which: int
    ahead_ms: int
    is_outer: bool
    columns: Sequence[Field]
    records: Timeline


class StreamJoinWork(Work):
    """See `StreamJoinOperator`."""

    def __init__(self, node: g.StreamJoin, wiring: Wiring, task: Task) -> None:
        self._node, self._task = node, task
        left, right = (wiring.schema(name) for name in node.inputs)
        keep_ms = node.before_ms + node.after_ms + node.grace_ms
        self._stores: list[StateStore] = [task.store(name) for name in store_names(node)]
        is_outer = node.join is g.JoinKind.OUTER
        self._left = _Side(
            LEFT, node.after_ms, is_outer or node.join is g.JoinKind.LEFT, left.value, Timeline(self._stores[0], keep_ms)
        )
        self._right = _Side(RIGHT, node.before_ms, is_outer, right.value, Timeline(self._stores[1], keep_ms))
        self._joiner = Joiner(node, evaluations(node.columns, is_on_table=False), left, right)
        self._emission = Emission(node, wiring, keeps_keys=node.join is g.JoinKind.INNER)
        self._stream_time = -1
        self._waiting: list[tuple[int, int, bytes]] = []
        """(time, side, key) of the records that wait."""

    def start(self) -> None:
        self._stream_time = max(store.stream_time_ms for store in self._stores)
        for side in (self._left, self._right):
            side.records.start()
        self._find_waiting()

    def process(self, batch: Batch, source: str) -> None:
        assert batch.keys is not None, "a change of key is followed by a repartition"
        keys = batch.keys.objects()
        times = batch.times.tolist()
        low, high = min(times), max(times)
        span = max(abs(self._node.before_ms), abs(self._node.after_ms))
        mine = [side for side, name in zip((self._left, self._right), self._node.inputs, strict=True) if name == source]
        for side in (self._left, self._right):
            side.records.load((key, low - span, high + span) for key in dict.fromkeys(keys) if key is not None)
        joined = _Joined()
        values = rows_of(batch, mine[0].columns)
        for row, (key, value, time) in enumerate(zip(keys, values, times, strict=True)):
            for side in mine:
                self._take(joined, batch, side, row, key, value, time)
        for side in (self._left, self._right):  # not before: what waits must still be found
            side.records.store.stream_time_ms = max(side.records.store.stream_time_ms, side.records.newest)
        self._forward(joined, batch)

    def _take(
        self, joined: _Joined, batch: Batch, side: _Side, row: int, key: bytes | None, value: State | None, time: int
    ) -> None:
        if key is not None and value is not None:
            self._store(side, key, time, value, is_waiting=False)
        self._stream_time = max(self._stream_time, time)
        if value is None or (key is None and not side.is_outer):
            self._task.report("null_value" if value is None else "null_key", self._node.name, batch, row, None)
            return
        if key is None:
            joined.add(row, key, time, side, value, None)
            return
        if (self._left.is_outer or self._right.is_outer) and time == self._stream_time:
            self._flush(joined, row)
        if self._pair(joined, side, row, key, value, time) or not side.is_outer:
            return
        if self._node.is_eager or max(0, time + side.ahead_ms) < self._stream_time:
            joined.add(row, key, time, side, value, None)
        else:
            self._store(side, key, time, value, is_waiting=True)
            heappush(self._waiting, (time, side.which, key))

    def _other(self, side: _Side) -> _Side:
        return self._right if side is self._left else self._left

    def _pair(self, joined: _Joined, side: _Side, row: int, key: bytes, value: State, time: int) -> bool:
        other = self._other(side)
        found = other.records.times(key, max(0, time - other.ahead_ms), max(0, time + side.ahead_ms))
        for at in found:
            entry = other.records.entry(key, at)
            assert entry is not None, "what the timeline shows is in the store"
            assert entry.state is not None
            rows, waiting = entry.state
            if waiting:
                other.records.put(key, at, (rows, []), at)
            for each in rows:
                joined.add(row, key, max(time, at), side, value, tuple(each))
        return bool(found)

    def _store(self, side: _Side, key: bytes, time: int, value: State, *, is_waiting: bool) -> None:
        entry = side.records.entry(key, time)
        rows, waiting = ([], []) if entry is None or entry.state is None else entry.state
        if is_waiting:
            waiting = [*waiting, list(value)]
        else:
            rows = [*rows, list(value)]
        side.records.put(key, time, (rows, waiting), time)

    def _find_waiting(self) -> None:
        for side in (self._left, self._right):
            for key, entry in side.records.store.range(b"", None) if side.is_outer else ():
                if entry.state is not None and entry.state[1]:
                    self._waiting.append((WINDOW_START.unpack_from(key, len(key) - 8)[0], side.which, key[:-8]))
        heapify(self._waiting)

    def _flush(self, joined: _Joined, row: int) -> None:
        """Let records out that no partner can come for any more, in order of (time, right before left, key)."""
        heap, blocked = self._waiting, []
        while heap and heap[0][0] < self._stream_time - min(self._left.ahead_ms, self._right.ahead_ms) - self._node.grace_ms:
            time, which, key = heappop(heap)
            side = self._left if which == LEFT else self._right
            if time + side.ahead_ms + self._node.grace_ms >= self._stream_time:
                blocked.append((time, which, key))
                continue
            side.records.load(iter([(key, time, time)]))
            entry = side.records.entry(key, time)
            if entry is None or entry.state is None or not entry.state[1]:
                continue
            rows, waiting = entry.state
            side.records.put(key, time, (rows, []), time)
            for value in waiting:
                joined.add(row, key, time, side, tuple(value), None)
        for item in blocked:
            heappush(heap, item)

    def _forward(self, joined: _Joined, batch: Batch) -> None:
        emitted = joined.emitted
        if not len(emitted) or not self._emission.has_consumers:
            return
        shell = self._emission.shell(emitted, batch)
        emitted.values = self._joiner.values(self._task, shell, joined.lefts, joined.rights, is_needed=[True] * len(emitted))
        failed = self._joiner.failed
        self._task.forward(self._node.name, self._emission.filled(shell, emitted, failed))

    def commit(self) -> None:
        for side in (self._left, self._right):
            side.records.sweep()


class _Joined:
    """Pairs on their way out."""

    __slots__ = ("emitted", "lefts", "rights")

    def __init__(self) -> None:
        self.emitted = Emitted()
        self.lefts: list[State | None] = []
        self.rights: list[State | None] = []

    def add(self, row: int, key: Any, time: int, side: _Side, value: State, other: State | None) -> None:
        self.emitted.add(row, key, time, None)
        self.lefts.append(value if side.which == LEFT else other)
        self.rights.append(other if side.which == LEFT else value)
