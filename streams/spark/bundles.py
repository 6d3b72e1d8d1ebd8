"""Records on their way through Spark: those of one partition in one row, as an Arrow stream.

What is a record to the log is bytes to Spark: its JVM keeps, shuffles and sorts a row for some thousands of them; a row for each
took 5 us of CPU. The order stays. Results and changelogs are sorted by the least `seq` of a bundle, and where bundles overlap,
those of slices of one task, whoever writes them to the log merges them (`unbundled`). What a later stage takes is sorted as that
wants it, by the least in each bundle, and merged before the stage is given it (`Spread`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np

from logflume.log.records import I64

from .rows import ROW_NAMES, RowKind
from .writing import Rows, Run

BUNDLE_BYTES = 1 << 20
"""A larger record is a bundle of its own."""
PASSED_BYTES = 512 << 10
"""Of a bundle that a later stage takes: as many may have to be held at a time as there are tasks that it comes from."""
PASSED_TOGETHER_BYTES = 64 << 20
"""What one task holds of others' bundles at a time, as a rule."""
GIVEN_BYTES = 16 << 20
"""Bundles are given to Spark by so much at a time."""
SORTED_ROWS, SORTED_BYTES = 50_000, 16 << 20
"""Rows are merged by so many at a time, or as many as wait already."""
BUNDLED = frozenset({RowKind.SINK, RowKind.CHANGELOG})
"""All rows of these kinds are bundles, between `Bundled` and `unbundled`; their `timestamp_ms` is the number of records."""
PASSED = frozenset({RowKind.REPARTITION, RowKind.PARTIAL})
"""All rows of these kinds are bundles, between `Bundled` and `Spread`; `time_ms` is the least of the records'."""
_RECORD = ("key", "value", "timestamp_ms", "headers")
_INSIDE = {RowKind.REPARTITION: ("time_ms", "seq", *_RECORD)}


def passed_bytes(tasks: int) -> int:
    """Return how large a bundle is at the most that goes to a later stage, from so many tasks.

    >>> [passed_bytes(tasks) >> 10 for tasks in (1, 1_000, 1_000_000)]
    [512, 65, 4]
    """
    return min(max(PASSED_TOGETHER_BYTES // tasks, 4 << 10), PASSED_BYTES)


@dataclass(frozen=True, slots=True)
class Bundled:
    """Maps over Arrow batches what `work` maps, and gives its records in bundles. `passed_bytes`: see the function."""

    work: Callable[[Iterator[Any]], Iterator[Any]]
    passed_bytes: int = PASSED_BYTES

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in self.work(batches):
            yield from bundled(batch, self.passed_bytes)


def bundled(batch: Any, passed_bytes: int = PASSED_BYTES) -> Iterator[Any]:
    """Yield the rows of a batch, which are of one kind and one name: records in bundles, others as they are."""
    kind = batch.column("kind")[0].as_py() if batch.num_rows else None
    if kind not in BUNDLED | PASSED:
        yield batch
        return
    limit = BUNDLE_BYTES if kind in BUNDLED else passed_bytes
    pieces: list[Any] = []
    size_bytes = 0
    for piece in (piece for rows in _by_partition(batch) for piece in _pieces(rows, limit)):
        pieces.append(piece)
        size_bytes += piece.nbytes
        if size_bytes >= GIVEN_BYTES:
            yield _rows_of(pieces)
            pieces, size_bytes = [], 0
    if pieces:
        yield _rows_of(pieces)


def _by_partition(batch: Any) -> Iterator[Any]:
    """Yield the rows of each partition; those of a batch are of one kind and one name."""
    partitions = batch.column("partition").to_numpy()
    if (partitions == partitions[0]).all():
        yield batch
        return
    order = np.argsort(partitions, kind="stable")
    taken, edges = batch.take(order), np.flatnonzero(np.diff(partitions[order])) + 1
    for start, stop in zip([0, *edges.tolist()], [*edges.tolist(), len(order)], strict=True):
        yield taken.slice(start, stop - start)


def _pieces(rows: Any, limit: int) -> Iterator[Any]:
    if rows.nbytes > limit and rows.num_rows > 1:
        half = rows.num_rows // 2
        yield from _pieces(rows.slice(0, half), limit)
        yield from _pieces(rows.slice(half), limit)
    else:
        yield rows


def _rows_of(pieces: list[Any]) -> Any:
    """Return a row for each of these, which are of one kind, one name and one task."""
    import pyarrow as pa

    first, count = pieces[0].slice(0, 1), len(pieces)
    inside = _INSIDE.get(RowKind(first.column("kind")[0].as_py()), ("seq", *_RECORD))
    leasts = {
        name: np.array([piece.column(name).to_numpy().min() for piece in pieces]) for name in ("partition", "time_ms", "seq")
    }
    cells = {name: pa.array(least, first.schema.field(name).type) for name, least in leasts.items()}
    cells |= {name: pa.repeat(first.column(name)[0], count) for name in ("kind", "name", "task")}
    cells |= {name: pa.nulls(count, pa.binary()) for name in ("key", "headers")}
    cells["value"] = pa.array([packed(piece.select(inside)) for piece in pieces], pa.binary())
    cells["timestamp_ms"] = pa.array([piece.num_rows for piece in pieces], pa.int64())
    return pa.RecordBatch.from_arrays([cells[name] for name in ROW_NAMES], names=ROW_NAMES)


def packed(rows: Any) -> bytes:
    """Return an Arrow batch as bytes; see `unpacked`."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_batch(rows)
    return bytes(sink.getvalue())


def unpacked(value: Any) -> Any:
    """Return the rows of a bundle (bytes or an Arrow buffer) as an Arrow table: seq, key, value, timestamp_ms, headers.

    Of one that a later stage takes as a repartition topic, time_ms too.
    """
    import pyarrow as pa

    with pa.ipc.open_stream(value) as stream:
        return stream.read_all()


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of a frame. `first`: the least `seq` in it."""

    place: tuple[int, str, int, int, int]
    first: int
    value: Any

    def records(self) -> Any:
        return unpacked(self.value)


def unbundled(batches: Iterable[Any]) -> Iterator[Run]:
    """Yield the records of rows that are sorted by name, partition, stage, task and `seq`; a row of another kind alone."""
    for (kind, name, partition, _, _), rows in groupby(_rows(batches), key=lambda row: row.place):
        if kind in BUNDLED:
            for records in _in_order(rows):
                yield RowKind(kind), name, partition, records
        else:
            for row in rows:
                yield RowKind(kind), name, partition, row.value


def _rows(batches: Iterable[Any]) -> Iterator[_Row]:
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("kind", "name", "partition", "stage", "task", "seq"))
        values = batch.column("value")
        for at, (kind, name, partition, stage, task, seq) in enumerate(zip(*columns, strict=True)):
            value = values[at].as_buffer() if kind in BUNDLED else batch.slice(at, 1)
            yield _Row((kind, name, partition, stage, task), seq, value)


def _in_order(rows: Iterable[_Row]) -> Iterator[Rows]:
    """Yield the records of bundles of one task by their `seq`, each as soon as no bundle can come that has one before it."""
    import pyarrow as pa

    waiting: Any = None
    for row in rows:
        if waiting is None:
            waiting = row.records()
            continue
        ready, waiting = _split(waiting, row.first)
        if ready.num_rows:
            yield ready
        records = row.records()
        waiting = pa.concat_tables([waiting, records]) if waiting.num_rows else records
    if waiting is not None:
        yield _split(waiting, None)[0]


def _split(records: Any, first: int | None) -> tuple[Any, Any]:
    """Return records by their `seq`: those before `first`, and the others. None: all are before it."""
    seqs = records.column("seq").to_numpy()
    if (np.diff(seqs) < 0).any():
        order = np.argsort(seqs, kind="stable")
        records, seqs = records.take(order), seqs[order]
    at = len(seqs) if first is None else int(np.searchsorted(seqs, first))
    return records.slice(0, at), records.slice(at)


@dataclass(frozen=True, slots=True)
class Spread:
    """Maps over Arrow batches what `work` maps, and gives it what is in bundles, one row for each record or entry."""

    work: Callable[[Iterator[Any]], Iterator[Any]]

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        return self.work(spread(batches))


def spread(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the rows that bundles hold, in order: bundles, and other rows, are sorted as whoever takes them wants to have them.

    That is by partition, name, time, task and `seq`, or where nothing is of REPARTITION by partition, task and `seq`.
    """
    for (kind, name, partition), rows in groupby(_passed(batches), key=lambda row: row.place):
        if kind == RowKind.REPARTITION:
            for records, order in _merged(rows):
                yield _rows_again(kind, name, partition, records, order)
        elif kind in PASSED:
            for row in rows:
                records = row.records()
                yield _rows_again(kind, name, partition, records, _Order.of(row, records))
        else:
            for row in rows:
                yield row.batch


@dataclass(frozen=True, slots=True)
class _Passed:
    """A row of a frame; `least`: the least (time_ms, task, seq) of what is in it."""

    place: tuple[int, str, int]
    least: tuple[int, int, int]
    batch: Any

    def records(self) -> Any:
        return unpacked(self.batch.column("value")[0].as_buffer())


def _passed(batches: Iterable[Any]) -> Iterator[_Passed]:
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("kind", "name", "partition", "time_ms", "task", "seq"))
        for at, (kind, name, partition, time_ms, task, seq) in enumerate(zip(*columns, strict=True)):
            yield _Passed((kind, name, partition), (time_ms, task, seq), batch.slice(at, 1))


@dataclass(frozen=True, slots=True, eq=False)
class _Order:
    """By what rows are sorted: int64[N] each."""

    times_ms: I64
    tasks: I64
    seqs: I64

    @classmethod
    def of(cls, row: _Passed, records: Any) -> _Order:
        """Return that of the records of a bundle. Where its own time was put right since, theirs are not below it."""
        time_ms, task, _ = row.least
        times, tasks = (np.full(records.num_rows, each) for each in (time_ms, task))
        if "time_ms" in records.column_names:
            times = np.maximum(records.column("time_ms").to_numpy(), time_ms)
        return cls(times, tasks, records.column("seq").to_numpy())

    @classmethod
    def together(cls, parts: Iterable[_Order]) -> _Order:
        """Return those of several, one behind the other."""
        columns = zip(*((part.times_ms, part.tasks, part.seqs) for part in parts), strict=True)
        return cls(*(np.concatenate(column) for column in columns))

    def take(self, which: Any) -> _Order:
        return _Order(self.times_ms[which], self.tasks[which], self.seqs[which])

    def sorted(self) -> I64:
        found: I64 = np.lexsort((self.seqs, self.tasks, self.times_ms))
        return found

    def before(self, least: tuple[int, int, int]) -> int:
        """Return how many, which are sorted, come before this."""
        time_ms, task, seq = least
        at_a_time = (self.tasks < task) | ((self.tasks == task) & (self.seqs < seq))
        return int(((self.times_ms < time_ms) | ((self.times_ms == time_ms) & at_a_time)).sum())


@dataclass(slots=True)
class _Waiting:
    """Bundles of one partition whose rows may come behind those of bundles that follow."""

    records: list[Any] = field(default_factory=list)
    orders: list[_Order] = field(default_factory=list)
    rows: int = 0
    size_bytes: int = 0

    def add(self, records: Any, order: _Order) -> None:
        self.records.append(records)
        self.orders.append(order)
        self.rows += records.num_rows
        self.size_bytes += records.nbytes

    def take(self, least: tuple[int, int, int] | None) -> tuple[Any, _Order]:
        """Return the rows before the least that is to come, in order, and keep the others; None: return all."""
        import pyarrow as pa

        records, order = pa.concat_tables(self.records), _Order.together(self.orders)
        by_order = order.sorted()
        if (np.diff(by_order) < 0).any():
            records, order = records.take(by_order), order.take(by_order)
        ready = records.num_rows if least is None else order.before(least)
        self.records, self.orders, self.rows, self.size_bytes = [], [], 0, 0
        if ready < records.num_rows:
            self.add(records.slice(ready), order.take(slice(ready, None)))
        return records.slice(0, ready), order.take(slice(0, ready))


def _merged(rows: Iterable[_Passed]) -> Iterator[tuple[Any, _Order]]:
    """Yield the records of bundles in order, once enough wait for it to be worth while to sort them."""
    waiting = _Waiting()
    rows_at, bytes_at = SORTED_ROWS, SORTED_BYTES
    for row in rows:
        if waiting.rows >= rows_at or waiting.size_bytes >= bytes_at:
            found = waiting.take(row.least)
            if found[0].num_rows:
                yield found
            rows_at, bytes_at = max(SORTED_ROWS, 2 * waiting.rows), max(SORTED_BYTES, 2 * waiting.size_bytes)
        records = row.records()
        waiting.add(records, _Order.of(row, records))
    yield waiting.take(None)


def _rows_again(kind: int, name: str, partition: int, records: Any, order: _Order) -> Any:
    """Return records as the rows that they were."""
    import pyarrow as pa

    count = records.num_rows
    cells = {
        "kind": pa.repeat(pa.scalar(int(kind), pa.int32()), count),
        "name": pa.repeat(pa.scalar(name, pa.string()), count),
        "partition": pa.repeat(pa.scalar(partition, pa.int32()), count),
        "time_ms": pa.array(order.times_ms, pa.int64()),
        "task": pa.array(order.tasks, pa.int32()),
        "seq": pa.array(order.seqs, pa.int64()),
    }
    cells |= {each: _whole(records.column(each)) for each in _RECORD}
    return pa.RecordBatch.from_arrays([cells[each] for each in ROW_NAMES], names=ROW_NAMES)


def _whole(column: Any) -> Any:
    """Return a column of a table as one array."""
    import pyarrow as pa

    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
