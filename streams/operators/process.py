"""Processors of the user: records one by one, with stores and schedules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from logflume.log import InvalidInput, LogflumeError, UnknownName
from logflume.log.records import I64
from logflume.log.schemas import ANY, Kind

from .. import graph as g
from ..columns import Batch, Column
from ..columns.batch import ColumnId
from ..expr import WHOLE, Side
from ..processors import Metadata, Processor, Record, Time
from ..seams import StoreSpec
from ..windows import FOREVER_MS
from .child import CHILD_COLUMN
from .emission import places_of
from .operator import Bind, Errors, Operator, RawKey, Task, Wiring, Work
from .processor_stores import ProcessorRows, opened, spec_of
from .rows import state_columns


class ProcessOperator(Operator[g.Process]):
    """A Process."""

    node_class = g.Process
    has_effects = True

    def reads(self, source: g.Node, below: frozenset[ColumnId], wiring: Wiring) -> set[ColumnId]:
        found: set[ColumnId] = {(Side.VALUE, WHOLE), (Side.KEY, WHOLE)}
        found |= {(Side.VALUE, c.name) for c in source.schema.value} | {(Side.KEY, c.name) for c in source.schema.key}
        return found

    def stores(self) -> tuple[StoreSpec, ...]:
        return tuple(spec_of(store) for store in self.node.stores)

    def raw_key(self, inputs: Sequence[RawKey | None]) -> RawKey | None:
        return inputs[0] if self.node.is_keyed else None

    def plan(self, wiring: Wiring) -> Bind:
        return lambda task: ProcessWork(self.node, task)


def _is_header(name: object, value: object) -> bool:
    return isinstance(name, str) and (value is None or isinstance(value, bytes))


class _Schedule:
    """A callback each `every_ms`; implements `processors.Cancellable`."""

    def __init__(self, every_ms: int, call: Callable[[int], None], next_ms: int) -> None:
        self.every_ms, self.call, self.next_ms = every_ms, call, next_ms
        self.is_cancelled = False

    def cancel(self) -> None:
        """Let it not be called any more."""
        self.is_cancelled = True

    def run(self, now_ms: int) -> None:
        """Call, once, if it is due; the next time is aligned again."""
        if now_ms >= self.next_ms and not self.is_cancelled:
            self.next_ms = (now_ms // self.every_ms + 1) * self.every_ms
            self.call(now_ms)


class ProcessWork(Work):
    """See `ProcessOperator`. Implements `processors.Context`."""

    def __init__(self, node: g.Process, task: Task) -> None:
        self._node, self._task = node, task
        self._stores = {store.name: opened(store, task.store(store.name), lambda: self.stream_time_ms) for store in node.stores}
        self._schedules: list[tuple[Time, _Schedule]] = []
        self._batch: Batch | None = None
        self._causes: I64 | None = None
        self._row = 0
        self._made: list[tuple[int, Record, str | None]] = []
        self._now_ms: int | None = None
        self._processor: Processor | None = None

    # -- processors.Context ----------------------------------------------------------------------------------------------

    def forward(self, record: Record, *, child: str | None = None) -> None:
        """Give a record to all that follows, or to a named child."""
        if not isinstance(record, Record):
            raise InvalidInput(f"forward() takes a lf.Record (record.with_value(...) makes one), found {type(record).__name__}")
        if child is not None and child not in self._node.children:
            raise UnknownName("child of this processor", child, self._node.children)
        self._check(record)
        self._made.append((self._row, record, child))

    def _check(self, record: Record) -> None:
        """Refuse what is no record of a topic, while it is known who forwards it."""
        at = record.timestamp_ms
        if not isinstance(at, int | np.integer) or not 0 <= at <= FOREVER_MS:
            raise InvalidInput(f"forward() takes a record with a time in whole ms since 1970, found {at!r:.100}")
        for header in record.headers:
            if not (isinstance(header, tuple | list) and len(header) == 2 and _is_header(*header)):
                raise InvalidInput(f"forward() takes headers as (text, bytes or None) pairs, found {header!r:.100}")
        fields = self._node.schema.key
        if not self._node.is_keyed and len(fields) > 1 and record.key is not None:
            names = [field.name for field in fields]
            if not isinstance(record.key, tuple | list) or len(record.key) != len(names):
                raise InvalidInput(f"forward() takes a key of {names} as a tuple, found {record.key!r:.100}")

    def store(self, name: str) -> ProcessorRows:
        """Return one of the processor's stores."""
        if name not in self._stores:
            raise UnknownName("store of this processor", name, self._stores)
        return self._stores[name]

    def schedule(self, every_ms: int, call: Callable[[int], None], *, time: Time = Time.STREAM) -> _Schedule:
        """Call `call(time_ms)` each time that this much time has passed."""
        if every_ms <= 0:
            raise InvalidInput(f"schedule() needs an interval of 1 ms or more, found {every_ms}")
        if time is Time.WALL_CLOCK and self.wall_clock_ms < 0:
            raise InvalidInput(
                f"{self._node.name}: a schedule by the wall clock has no meaning in a backfill or on Spark, where records "
                "are not computed when they come; schedule by stream time (time=lf.Time.STREAM), or run it live alone"
            )
        now_ms = self.stream_time_ms if time is Time.STREAM else self.wall_clock_ms
        is_new = time is Time.STREAM and now_ms < 0
        aligned_ms = (now_ms // every_ms + 1) * every_ms if time is Time.STREAM else now_ms + every_ms
        found = _Schedule(every_ms, call, 0 if is_new else aligned_ms)
        self._schedules.append((time, found))
        return found

    @property
    def metadata(self) -> Metadata | None:
        """Where the record being processed comes from; None in a schedule."""
        batch = self._batch
        if batch is None or batch.chunk is None or batch.rows is None:
            return None
        chunk = batch.chunk
        return Metadata(chunk.topic, chunk.partition, int(chunk.offsets[batch.rows[self._row]]))

    @property
    def stream_time_ms(self) -> int:
        """The largest event time that the task has taken, -1 before the first."""
        causes = self._causes
        return self._task.stream_time_ms if causes is None else self._task.stream_time_at(int(causes[self._row]))

    @property
    def wall_clock_ms(self) -> int:
        """The time of the wall clock, as of the last time that the task looked."""
        return self._task.now_ms

    # -- Work ------------------------------------------------------------------------------------------------------------

    def _started(self) -> Processor:
        if self._processor is None:
            try:
                self._processor = self._made_anew()
            except LogflumeError:
                raise
            except Exception as error:
                raise InvalidInput(
                    f"{self._node.name}: its processor could not begin: {type(error).__name__}: {error}"
                ) from error
        return self._processor

    def _made_anew(self) -> Processor:
        processor = self._node.make()
        if not isinstance(processor, Processor):
            raise InvalidInput(f"{self._node.name}: expected a lf.Processor, found {type(processor).__name__}")
        processor.init(self)
        return processor

    def process(self, batch: Batch, source: str) -> None:
        processor = self._started()
        self._batch, self._causes = batch, batch.causes
        keys, values = (batch.column(side, WHOLE).objects() for side in (Side.KEY, Side.VALUE))
        headers = batch.headers() or [()] * len(batch)
        report = Errors(self._task, self._node, batch).callable
        for row, (key, value, at, own) in enumerate(zip(keys, values, batch.times.tolist(), headers, strict=True)):
            self._row = row
            try:
                processor.process(Record(key, value, at, tuple(own)))
            except Exception as error:  # noqa: BLE001
                report(row, error)
        self._batch = self._causes = None
        self._put_out(batch)

    def start(self) -> None:
        self._started()

    @property
    def due_ms(self) -> int | None:
        return min((each.next_ms for kind, each in self._schedules if kind is Time.STREAM), default=None)

    def follow(self, stream_time_ms: int) -> None:
        self._run(Time.STREAM, stream_time_ms)

    def advance(self, now_ms: int) -> None:
        self._run(Time.WALL_CLOCK, now_ms)

    def commit(self) -> None:
        for store in self._stores.values():
            store.note_time(self.stream_time_ms)

    def _run(self, time: Time, now_ms: int) -> None:
        for kind, schedule in list(self._schedules):
            if kind is time:
                try:
                    schedule.run(now_ms)
                except Exception as error:  # noqa: BLE001
                    self._task.report("callable", self._node.name, None, -1, error)
        self._schedules = [item for item in self._schedules if not item[1].is_cancelled]
        self._put_out(None)

    def _put_out(self, causing: Batch | None) -> None:
        made, self._made = self._made, []
        if not made:
            return
        schema = self._node.schema
        records = [record for _, record, _ in made]
        times = np.array([record.timestamp_ms for record in records], np.int64)
        columns = state_columns([None if r.value is None else (r.value,) for r in records], [("value", ANY.kind)])
        nulls = np.fromiter([record.value is None for record in records], np.bool_, len(records))
        after = Batch(schema, times, None, columns, nulls=nulls if nulls.any() else None)
        if causing is not None:
            rows = np.array([row for row, _, _ in made], np.int64)
            expanded = causing.expand(rows, places_of(rows))
            after.chunk, after.rows, after.order, after.path_bits = (
                expanded.chunk, expanded.rows, expanded.order, expanded.path_bits,
            )  # fmt: skip
            if self._node.is_keyed:
                after.keys = expanded.keys
                columns |= {c: x for c, x in expanded.columns.items() if c[0] is Side.KEY}
        if after.keys is None:
            columns |= self._key_columns([record.key for record in records])
        children = [child for _, _, child in made]
        if any(children):
            columns[CHILD_COLUMN] = Column.of_objects(children, Kind.STRING)
        after.set_headers([record.headers for record in records])
        self._task.forward(self._node.name, after)

    def _key_columns(self, keys: list[Any]) -> dict[ColumnId, Any]:
        fields = self._node.schema.key
        states = [None if key is None else (key,) if len(fields) == 1 else tuple(key) for key in keys]
        found = state_columns(list(states), [(c.name, c.type.kind) for c in fields])
        return {(Side.KEY, name): column for (_, name), column in found.items()}
