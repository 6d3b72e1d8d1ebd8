"""Joins of two streams: records of a key whose times are within a window of each other.

Each side keeps its records in a `RowLog`. Which of them meet depends on keys and times alone, and is found for all records of a
round at once (`meetings.py`). On an outer side a record without a partner waits, marked in the log, until no partner can come any
more. Values are never looked at: they go from the logs to the results column by column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np

from logflume.log.records import I64
from logflume.log.schemas import Column as Field

from .. import graph as g
from ..columns import Batch, Bytes
from ..columns.batch import ColumnId
from ..columns.evaluate import evaluations
from ..expr import Side as ColumnSide
from ..kernels import loaded_kernels, more_kernels
from ..seams import StateStore, StoreSpec
from ..vectors.expressions import Mask
from .emission import Emission, Joiner
from .meetings import LEFT, NEVER, RIGHT, ArrayMeetings, Coming, Keys, Meetings, Met, ObjectMeetings, Reach
from .operator import Bind, Cut, Operator, RawKey, Task, Wiring, Work, interleaved
from .row_log import BLOCKS, RowLog
from .slices import Slice, writes_repartition
from .to_table import has_key_and_value

_SWEPT_EACH_MS = 60_000
_SLICE_BITS = 48


class StreamJoinOperator(Operator[g.StreamJoin]):
    """A StreamJoin, inner, left or outer."""

    node_class = g.StreamJoin

    def reads(self, source: g.Node, below: frozenset[ColumnId], wiring: Wiring) -> set[ColumnId]:
        return {(ColumnSide.VALUE, c.name) for c in source.schema.value} | {(ColumnSide.KEY, c.name) for c in source.schema.key}

    def stores(self) -> tuple[StoreSpec, ...]:
        node = self.node
        span_ms = max(node.before_ms, 0) + max(node.after_ms, 0) + 1
        window = g.TimeWindow(span_ms, 1, node.grace_ms)
        return tuple(StoreSpec(name, node.schema.key, BLOCKS, window) for name in store_names(node))

    def raw_key(self, inputs: Sequence[RawKey | None]) -> RawKey | None:
        return inputs[0]

    def wants_old(self, *, is_asked: bool) -> bool:
        return False

    def cut(self, wiring: Wiring) -> Cut:
        """Not where a window lies on one side of a record: then time matters to records in order too.

        Nor where records that leave alone go to a repartition topic: those that one record lets go are of several slices, and
        have an order there.
        """
        is_one_sided = self.node.before_ms < 0 or self.node.after_ms < 0
        has_order = self.node.join is not g.JoinKind.INNER and writes_repartition(wiring, self.node.name)
        return Cut.WHOLE if is_one_sided or has_order else Cut.TIMES

    def plan(self, wiring: Wiring) -> Bind:
        return lambda task: StreamJoinWork(self.node, wiring, task)


def store_names(node: g.StreamJoin) -> tuple[str, str]:
    """Return the names of the stores of the left and the right side."""
    return f"{node.store}-left", f"{node.store}-right"


class _Side:
    """One side: which it is, how far ahead of its records a partner may be, whether its records leave alone."""

    __slots__ = ("ahead_ms", "columns", "is_outer", "log", "which")

    def __init__(self, which: int, ahead_ms: int, columns: tuple[Field, ...], store: StateStore, *, is_outer: bool) -> None:
        self.which, self.ahead_ms, self.columns, self.is_outer = which, ahead_ms, columns, is_outer
        self.log = RowLog(store, columns)


class StreamJoinWork(Work):
    """See `StreamJoinOperator`."""

    def __init__(self, node: g.StreamJoin, wiring: Wiring, task: Task) -> None:
        self._node, self._task = node, task
        left, right = (wiring.schema(name) for name in node.inputs)
        first, second = (task.store(name) for name in store_names(node))
        is_outer = node.join is g.JoinKind.OUTER
        is_left_outer = is_outer or node.join is g.JoinKind.LEFT
        self._left = _Side(LEFT, node.after_ms, left.value, first, is_outer=is_left_outer)
        self._right = _Side(RIGHT, node.before_ms, right.value, second, is_outer=is_outer)
        self._sides = (self._right, self._left)
        self._has_outer = any(side.is_outer for side in self._sides)
        self._reach = Reach(node.before_ms + node.after_ms + node.grace_ms, (node.before_ms, node.after_ms))
        self._meetings: Meetings = ObjectMeetings(self._reach)
        self._swept = [NEVER, NEVER]
        self._joiner = Joiner(node, evaluations(node.columns, is_on_table=False), left, right)
        self._emission = Emission(node, wiring, keeps_keys=node.join is g.JoinKind.INNER, computes=node.columns)
        self._stream_time = -1
        self._slice: Slice | None = None
        self._waiting: tuple[list[tuple[int, int, bytes, int]], ...] = ([], [])
        """(time, side, key, number) of the records that wait: of each side a heap, for they may wait for times of two lengths."""

    def start(self) -> None:
        for side in self._sides:
            for numbers, keys, times in side.log.start():
                sides = np.full(len(numbers), side.which, np.int8)
                self._meetings.put(Coming(sides, Keys([keys]), times, numbers))
            for number in side.log.marked:
                key, time = side.log.key_and_time(number)
                assert key is not None, "only records with keys wait"
                self._waiting[side.which].append((time, side.which, key, number))
            heapify(self._waiting[side.which])
        self._stream_time = max(max(side.log.store.stream_time_ms, side.log.clock) for side in self._sides)

    def cut(self, own: Slice) -> bool:
        """Give rows numbers that no other slice gives. Rows of others are wanted by those that wait: they leave with them."""
        for side in self._sides:
            side.log.number_from(own.number << _SLICE_BITS)
        self._slice = own if self._has_outer else None
        return self._has_outer

    @property
    def slack_ms(self) -> int:
        """Rows are seen for both parts of the window and the grace, and met within one: the other part is a grace too."""
        return self._node.grace_ms + min(self._node.before_ms, self._node.after_ms)

    def moves_time(self, batch: Batch) -> Mask:
        return has_key_and_value(batch)

    def note_time(self, source: str, time_ms: int) -> None:
        for side, name in zip((self._left, self._right), self._node.inputs, strict=True):
            if name == source:
                self._meetings.note_time(side.which, time_ms)
                side.log.store.stream_time_ms = max(side.log.store.stream_time_ms, time_ms)

    def process(self, batch: Batch, source: str) -> None:
        self.process_all([(source, batch)])

    def process_all(self, batches: Sequence[tuple[str, Batch]]) -> None:
        """Take the records of both sides in order of cause, whichever alternate."""
        if len({source for source, _ in batches}) < len(batches):
            for source, batch in interleaved(batches):  # so that numbers are in order
                self.process_all([(source, batch)])
            return
        parts = [self._part(source, batch) for source, batch in batches]
        turns = _turns_of(parts)
        self._choose_meetings()
        met = self._meetings.meet(turns.coming)
        results = self._with_waiting(parts, turns, met) if self._has_outer else self._pairs(parts, turns, met)
        for side in self._sides:
            side.log.store.stream_time_ms = max(side.log.store.stream_time_ms, self._meetings.newest(side.which))
        for part, result in zip(parts, results, strict=True):
            self._forward(result, part.batch)

    def _choose_meetings(self) -> None:
        """Keep rows by key and time as arrays from when the kernels are there."""
        if isinstance(self._meetings, ObjectMeetings) and loaded_kernels() is not None:
            kernels = more_kernels("meetings")
            if kernels is not None:
                self._meetings = ArrayMeetings.of_objects(self._meetings, self._reach, kernels)

    def _part(self, source: str, batch: Batch) -> _Part:
        """Add a batch to the log of its side, or (a self-join) of both."""
        assert batch.keys is not None, "a change of key is followed by a repartition"
        mine = [side for side, name in zip((self._left, self._right), self._node.inputs, strict=True) if name == source]
        own = None if self._slice is None else self._slice.own(batch)
        ways = [(side, self._append(side, batch, batch.keys, own)) for side in mine]
        return _Part(batch, ways, None if own is None else ~own)

    def _append(self, side: _Side, batch: Batch, keys: Bytes, own: Mask | None) -> I64:
        """Add the rows that may leave or be met; return the number of each row, -1 for the others."""
        columns = [batch.column(ColumnSide.VALUE, field.name) for field in side.columns]
        kept = np.ones(len(batch), np.bool_) if batch.nulls is None else ~batch.nulls
        if own is not None:
            kept &= own
        if not side.is_outer and (gone := keys.nulls()) is not None:
            kept &= ~gone
        if kept.all():
            begin = side.log.append(keys, batch.times, columns)
            return np.arange(begin, begin + len(batch))
        rows = np.flatnonzero(kept)
        begin = side.log.append(keys.take(rows), batch.times[rows], [column.take(rows) for column in columns])
        numbers = np.full(len(batch), -1, np.int64)
        numbers[rows] = np.arange(begin, begin + len(rows))
        return numbers

    def _pairs(self, parts: Sequence[_Part], turns: _Turns, met: Met) -> list[_Results]:
        """Return the results of an inner join, by part."""
        for turn in np.flatnonzero(turns.coming.numbers < 0).tolist():
            self._report(parts, turns, turn)
        own, is_left = turns.coming.numbers[met.rows], turns.coming.sides[met.rows] == LEFT
        times = np.maximum(turns.coming.times[met.rows], met.times)
        lefts, rights = np.where(is_left, own, met.numbers), np.where(is_left, met.numbers, own)
        rows, results = turns.rows[met.rows], []
        for which in range(len(parts)):
            mine = slice(None) if len(parts) == 1 else turns.parts[met.rows] == which
            results.append(_Results(rows[mine], None, times[mine], lefts[mine], rights[mine]))
        return results

    def _with_waiting(self, parts: Sequence[_Part], turns: _Turns, met: Met) -> list[_Results]:
        """Return the results of a join whose records may leave alone, by part: what waits leaves when its time has come."""
        joined = [_Joined() for _ in parts]
        coming, bounds = turns.coming, np.searchsorted(met.rows, np.arange(len(turns.rows) + 1)).tolist()
        numbers, times = met.numbers.tolist(), met.times.tolist()
        rows = zip(turns.parts.tolist(), turns.rows.tolist(), coming.sides.tolist(), coming.keys.objects(), coming.times.tolist(),
                   coming.numbers.tolist(), strict=True)  # fmt: skip
        for turn, (part, row, which, key, time, number) in enumerate(rows):
            into, side = joined[part], self._sides[which]
            self._stream_time = max(self._stream_time, time)
            foreign = parts[part].foreign
            if foreign is not None and foreign[row]:
                nulls = parts[part].batch.nulls
                if key is not None and (nulls is None or not nulls[row]) and time == self._stream_time and any(self._waiting):
                    self._flush(into, row)
                continue
            if number < 0:
                self._report(parts, turns, turn)
                continue
            if key is None:
                into.alone(row, key, time, which, number)
                continue
            if time == self._stream_time and any(self._waiting):
                self._flush(into, row)
            first, last = bounds[turn], bounds[turn + 1]
            if first < last:
                into.pairs(row, key, time, which, number, numbers[first:last], times[first:last])
                other = self._sides[1 - which].log
                for each in numbers[first:last] if other.marked else ():
                    other.unmark(each)
            elif side.is_outer:
                self._wait(into, side, row, key, number, time)
        return [each.results() for each in joined]

    def _report(self, parts: Sequence[_Part], turns: _Turns, turn: int) -> None:
        """Report a record that has no partner and does not leave alone: without a key or a value."""
        batch, row = parts[int(turns.parts[turn])].batch, int(turns.rows[turn])
        is_null = batch.nulls is not None and bool(batch.nulls[row])
        self._task.report("null_value" if is_null else "null_key", self._node.name, batch, row, None)

    def _wait(self, joined: _Joined, side: _Side, row: int, key: bytes, number: int, time: int) -> None:
        """Let a record of an outer side wait for a partner, or leave if none can come any more."""
        if self._node.is_eager or max(0, time + side.ahead_ms) < self._stream_time:
            joined.alone(row, key, time, side.which, number)
            return
        side.log.mark(number)
        heappush(self._waiting[side.which], (time, side.which, key, number))

    def _flush(self, joined: _Joined, row: int) -> None:
        """Let records out that no partner can come for any more, in order of (time, right before left, key)."""
        while ready := [heap for heap in self._waiting if heap and self._is_over(*heap[0])]:
            time, which, key, number = heappop(min(ready, key=lambda heap: heap[0]))
            side = self._sides[which]
            if number in side.log.marked:
                side.log.unmark(number)
                joined.alone(row, key, time, which, number)

    def _is_over(self, time: int, which: int, _key: bytes, _number: int) -> bool:
        """Return whether no partner can come any more for a record that waits."""
        return time + self._sides[which].ahead_ms + self._node.grace_ms < self._stream_time

    def _forward(self, found: _Results, batch: Batch) -> None:
        if not len(found.rows) or not self._emission.has_consumers:
            return
        keys = None if found.keys is None else Bytes.of_objects(found.keys)
        shell = self._emission.shell_of(found.rows, keys, found.times, batch)
        after = self._joiner.joined(self._task, shell, self._left.log.take(found.lefts), self._right.log.take(found.rights))
        if len(after):
            self._task.forward(self._node.name, after)

    def commit(self) -> None:
        newest = [self._meetings.newest(side.which) for side in self._sides]
        oldest = [each - self._reach.keep_ms + 1 for each in newest]
        clock = self._stream_time if self._has_outer and self._stream_time > max(newest) else -1
        for side in self._sides:
            side.log.write(max(0, newest[side.which]), oldest[side.which], clock=clock)
        each_ms = max(self._reach.keep_ms // 2, _SWEPT_EACH_MS)
        if any(now > 0 and now - swept >= each_ms for now, swept in zip(oldest, self._swept, strict=True)):
            self._swept = oldest
            self._meetings.sweep()
            for side in self._sides:
                side.log.drop(oldest[side.which])


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """A batch. `ways`: the side that its records are taken on (of a self-join both), and their numbers there, -1 for none.

    `foreign`: which records are of other slices of the task; None: none.
    """

    batch: Batch
    ways: Sequence[tuple[_Side, I64]]
    foreign: Mask | None


@dataclass(frozen=True, slots=True, eq=False)
class _Turns:
    """The records of all parts in order of cause, each with its part and its row there; of a self-join the left one first."""

    parts: I64
    rows: I64
    coming: Coming


def _turns_of(parts: Sequence[_Part]) -> _Turns:
    count = len(parts[0].batch)
    if len(parts) == 1:
        batch, ways = parts[0].batch, parts[0].ways
        rows = np.repeat(np.arange(count), len(ways))
        sides = np.tile(np.array([side.which for side, _ in ways], np.int8), count)
        numbers = np.stack([numbers for _, numbers in ways], axis=1).reshape(-1)
        assert batch.keys is not None
        times, order = (batch.times, None) if len(ways) == 1 else (batch.times[rows], rows)
        return _Turns(np.zeros(len(rows), np.int64), rows, Coming(sides, Keys([batch.keys], order), times, numbers))
    orders = [part.batch.order for part in parts]
    assert all(order is not None for order in orders), "a task commit gives one batch at a time"
    order = np.argsort(np.concatenate(orders), kind="stable")  # type: ignore[arg-type]
    counts = [len(part.batch) for part in parts]
    which = np.repeat(np.arange(len(parts)), counts)[order]
    sides = np.array([part.ways[0][0].which for part in parts], np.int8)[which]
    rows, times, numbers = (
        np.concatenate(each)[order]
        for each in (
            [np.arange(count) for count in counts],
            [part.batch.times for part in parts],
            [part.ways[0][1] for part in parts],
        )
    )
    keys = Keys([part.batch.keys for part in parts if part.batch.keys is not None], order)
    return _Turns(which, rows, Coming(sides, keys, times, numbers))


@dataclass(frozen=True, slots=True, eq=False)
class _Results:
    """R results: the row that caused each, its key (None: those of the rows), time, numbers of its left and right row or -1."""

    rows: I64
    keys: list[bytes | None] | None
    times: I64
    lefts: I64
    rights: I64


class _Joined:
    """Results one by one."""

    __slots__ = ("keys", "lefts", "rights", "rows", "times")

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.keys: list[bytes | None] = []
        self.times: list[int] = []
        self.lefts: list[int] = []
        self.rights: list[int] = []

    def pairs(
        self, row: int, key: bytes, time: int, which: int, number: int, met: Sequence[int], times: Sequence[int]
    ) -> None:  # fmt: skip
        """Add a row with each of those that it meets."""
        mine, theirs = (self.lefts, self.rights) if which == LEFT else (self.rights, self.lefts)
        self.rows += [row] * len(met)
        self.keys += [key] * len(met)
        self.times += [max(time, at) for at in times]
        mine += [number] * len(met)
        theirs += met

    def alone(self, row: int, key: bytes | None, time: int, which: int, number: int) -> None:
        """Add a row without a partner; `row`: the one that causes it to leave."""
        self.rows.append(row)
        self.keys.append(key)
        self.times.append(time)
        self.lefts.append(number if which == LEFT else -1)
        self.rights.append(-1 if which == LEFT else number)

    def results(self) -> _Results:
        """Return them all."""
        rows, times, lefts, rights = (np.array(each, np.int64) for each in (self.rows, self.times, self.lefts, self.rights))
        return _Results(rows, self.keys, times, lefts, rights)
