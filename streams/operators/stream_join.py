"""Joins of two streams: records of a key whose times are within a window of each other.

Each side keeps its records by key and time. A record is paired with those of the other side that are there, so each pair meets
once, when its later one comes. On an outer side a record without a partner waits, in the same entry, until no partner can come
any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import repeat

import numpy as np

from logflume.log.schemas import BYTES, INTEGER, DataType, Kind
from logflume.log.schemas import Column as Field

from .. import graph as g
from ..columns import Batch
from ..columns.batch import ColumnId
from ..columns.evaluate import evaluations
from ..expr import Side
from ..seams import State, StateStore, StoreSpec
from ..state.codec import RowCodec
from ..windows import WINDOW_START
from .emission import Emission, Emitted, Joiner, rows_of
from .operator import Bind, Operator, RawKey, Task, Wiring, Work
from .timeline import Timeline

ARRAY_OF_BYTES, ARRAY_OF_PLACES = DataType(Kind.ARRAY, element=BYTES), DataType(Kind.ARRAY, element=INTEGER)
LEFT, RIGHT = 1, 0
"""In the order in which waiting records of one time leave."""

RECORDS = (Field("row", BYTES), Field("more", ARRAY_OF_BYTES), Field("waiting", ARRAY_OF_PLACES))
"""The records of a key and time, encoded: the first, and the others if there are any; which of them wait for a partner.

Encoded, because many of them wait for long: the garbage collector does not walk bytes.
"""
_FIRST = (0,)


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


class _Side:
    """One side: which it is, how far ahead of its records a partner may be, whether its records leave alone."""

    __slots__ = ("_codec", "ahead_ms", "columns", "is_outer", "records", "which")

    def __init__(self, which: int, ahead_ms: int, columns: tuple[Field, ...], records: Timeline, *, is_outer: bool) -> None:
        self.which, self.ahead_ms, self.columns, self.records, self.is_outer = which, ahead_ms, columns, records, is_outer
        self._codec = RowCodec(columns)

    def encoded(self, values: Sequence[State | None]) -> list[bytes | None]:
        """Return values of records as they are kept."""
        return self._codec.encode_all(values)

    def decoded(self, data: bytes) -> State:
        """Return a record's value."""
        return self._codec.decode(data)


class StreamJoinWork(Work):
    """See `StreamJoinOperator`."""

    def __init__(self, node: g.StreamJoin, wiring: Wiring, task: Task) -> None:
        self._node, self._task = node, task
        left, right = (wiring.schema(name) for name in node.inputs)
        keep_ms = node.before_ms + node.after_ms + node.grace_ms
        self._stores: list[StateStore] = [task.store(name) for name in store_names(node)]
        is_outer = node.join is g.JoinKind.OUTER
        first, second = (Timeline(store, keep_ms) for store in self._stores)
        is_left_outer = is_outer or node.join is g.JoinKind.LEFT
        self._left = _Side(LEFT, node.after_ms, left.value, first, is_outer=is_left_outer)
        self._right = _Side(RIGHT, node.before_ms, right.value, second, is_outer=is_outer)
        self._joiner = Joiner(node, evaluations(node.columns, is_on_table=False), left, right)
        self._emission = Emission(node, wiring, keeps_keys=node.join is g.JoinKind.INNER, computes=node.columns)
        self._stream_time = -1
        self._waiting: list[tuple[int, int, bytes]] = []
        """(time, side, key) of the records that wait."""

    def start(self) -> None:
        self._stream_time = max(store.stream_time_ms for store in self._stores)
        for side in (self._left, self._right):
            side.records.start()
        self._find_waiting()

    def process(self, batch: Batch, source: str) -> None:
        self.process_all([(source, batch)])

    def process_all(self, batches: Sequence[tuple[str, Batch]]) -> None:
        """Take the records of both sides in order of cause, whichever alternate."""
        parts = [self._part(source, batch) for source, batch in batches]
        times = np.concatenate([part.batch.times for part in parts])
        low, high = int(times.min()), int(times.max())
        span = max(abs(self._node.before_ms), abs(self._node.after_ms))
        keys = dict.fromkeys(key for part in parts for key in part.keys if key is not None)
        for side in (self._left, self._right):
            side.records.load((key, low - span, high + span) for key in keys)
        self._take(parts, *_by_turns(parts))
        for side in (self._left, self._right):  # not before: what waits must still be found
            side.records.store.stream_time_ms = max(side.records.store.stream_time_ms, side.records.newest)
        for part in parts:
            self._forward(part.joined, part.batch)

    def _part(self, source: str, batch: Batch) -> _Part:
        assert batch.keys is not None, "a change of key is followed by a repartition"
        mine = [side for side, name in zip((self._left, self._right), self._node.inputs, strict=True) if name == source]
        values = rows_of(batch, mine[0].columns)
        ways = [(side, self._other(side), side.encoded(values)) for side in mine]
        return _Part(batch, batch.keys.objects(), values, batch.times.tolist(), ways, _Joined())

    def _take(self, parts: Sequence[_Part], turns: Iterable[int], rows: Iterable[int]) -> None:
        """Take records one by one, on one side or (a self-join) both, the left one first; `turns`: of which part each is."""
        has_outer = self._left.is_outer or self._right.is_outer
        for turn, row in zip(turns, rows, strict=False):
            part = parts[turn]
            key, time = part.keys[row], part.times[row]
            for side, other, data in part.ways:
                value, encoded = part.values[row], data[row]
                if time > self._stream_time:
                    self._stream_time = time
                if key is None or value is None or encoded is None:
                    self._take_odd(part.joined, part.batch, side, row, key, value, time)
                    continue
                if not side.records.put_new(key, time, (encoded, None, None)):
                    self._add(side, key, time, encoded)
                if has_outer and time == self._stream_time:
                    self._flush(part.joined, row)
                low = time - other.ahead_ms
                found = other.records.times(key, low if low > 0 else 0, max(0, time + side.ahead_ms))
                if found:
                    self._pair(part.joined, side, other, row, key, value, time, found)
                elif side.is_outer:
                    self._wait(part.joined, side, row, key, value, time)

    def _take_odd(
        self, joined: _Joined, batch: Batch, side: _Side, row: int, key: bytes | None, value: State | None, time: int
    ) -> None:
        """Take a record without a key or a value: it has no partner."""
        if value is None or not side.is_outer:
            self._task.report("null_value" if value is None else "null_key", self._node.name, batch, row, None)
        else:
            joined.add(row, key, time, side, value, None)

    def _wait(self, joined: _Joined, side: _Side, row: int, key: bytes, value: State, time: int) -> None:
        """Let a record of an outer side wait for a partner, or leave if none can come any more."""
        if self._node.is_eager or max(0, time + side.ahead_ms) < self._stream_time:
            joined.add(row, key, time, side, value, None)
            return
        entry = side.records.entry(key, time)
        assert entry is not None, "the record has just been stored"
        assert entry.state is not None
        first, more, waiting = entry.state
        place = len(more) if more else 0
        side.records.put(key, time, (first, more, [*waiting, place] if waiting else _FIRST if place == 0 else [place]), time)
        heappush(self._waiting, (time, side.which, key))

    def _other(self, side: _Side) -> _Side:
        return self._right if side is self._left else self._left

    def _pair(
        self, joined: _Joined, side: _Side, other: _Side, row: int, key: bytes, value: State, time: int, found: Sequence[int]
    ) -> None:  # fmt: skip
        """Put a record together with those of the other side at some times."""
        resident, decoded = other.records.store.resident, other.decoded
        for at in found:
            state = resident[key + WINDOW_START.pack(at)].state
            assert state is not None, "what the timeline shows is in the store"
            first, more, waiting = state
            if waiting:
                other.records.put(key, at, (first, more, None), at)
            joined.add(row, key, max(time, at), side, value, decoded(first))
            for each in more or ():
                joined.add(row, key, max(time, at), side, value, decoded(each))

    def _add(self, side: _Side, key: bytes, time: int, encoded: bytes) -> None:
        """Keep one more record of a key and time."""
        entry = side.records.entry(key, time)
        assert entry is not None, "what the timeline shows is in the store"
        assert entry.state is not None
        first, more, waiting = entry.state
        side.records.put(key, time, (first, [*(more or ()), encoded], waiting), time)

    def _find_waiting(self) -> None:
        for side in (self._left, self._right):
            for key, entry in side.records.store.range(b"", None) if side.is_outer else ():
                if entry.state is not None and entry.state[2]:
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
            if entry is None or entry.state is None or not entry.state[2]:
                continue
            first, more, waiting = entry.state
            side.records.put(key, time, (first, more, None), time)
            rows = (first, *(more or ()))
            for place in waiting:
                joined.add(row, key, time, side, side.decoded(rows[place]), None)
        for item in blocked:
            heappush(heap, item)

    def _forward(self, joined: _Joined, batch: Batch) -> None:
        if not joined.rows or not self._emission.has_consumers:
            return
        emitted = Emitted(joined.rows, joined.keys, joined.times)
        shell = self._emission.shell(emitted, batch)
        emitted.values = self._joiner.values(self._task, shell, joined.lefts, joined.rights, is_needed=[True] * len(emitted))
        failed = self._joiner.failed
        self._task.forward(self._node.name, self._emission.filled(shell, emitted, failed))

    def commit(self) -> None:
        for side in (self._left, self._right):
            side.records.sweep()


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """A batch as objects by row. `ways`: the side that a record is taken on, the other one, and the values as they are kept."""

    batch: Batch
    keys: Sequence[bytes | None]
    values: Sequence[State | None]
    times: Sequence[int]
    ways: Sequence[tuple[_Side, _Side, Sequence[bytes | None]]]
    joined: _Joined


def _by_turns(parts: Sequence[_Part]) -> tuple[Iterable[int], Iterable[int]]:
    """Return of which part each record is, in order of cause, and its row there."""
    if len(parts) == 1:
        return repeat(0), range(len(parts[0].keys))
    orders = [part.batch.order for part in parts]
    assert all(order is not None for order in orders), "a task commit gives one batch at a time"
    counts = [len(part.keys) for part in parts]
    order = np.argsort(np.concatenate(orders), kind="stable")  # type: ignore[arg-type]
    turns = np.repeat(np.arange(len(parts)), counts)[order]
    rows = np.concatenate([np.arange(count) for count in counts])[order]
    return turns.tolist(), rows.tolist()


class _Joined:
    """Pairs on their way out, aligned: the row that caused each, its key and time, left and right values."""

    __slots__ = ("keys", "lefts", "rights", "rows", "times")

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.keys: list[bytes | None] = []
        self.times: list[int] = []
        self.lefts: list[State | None] = []
        self.rights: list[State | None] = []

    def add(
        self, row: int, key: bytes | None, time: int, side: _Side, value: State, other: State | None
    ) -> None:  # fmt: skip
        self.rows.append(row)
        self.keys.append(key)
        self.times.append(time)
        if side.which == LEFT:
            self.lefts.append(value)
            self.rights.append(other)
        else:
            self.lefts.append(other)
            self.rights.append(value)
