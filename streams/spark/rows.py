"""The one shape of rows in which everything leaves a job task, and how its parts are written into them.

`seq` is the order inside a source partition: the number of the offset range above `RANGE_SHIFT`, a counter below it; of a slice
of a task the place of the cause above `CAUSE_SHIFT`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import msgspec
import numpy as np

from logflume.log import Chunk, Headers, TopicPartition, key_partitions
from logflume.log.records import I32, I64
from logflume.streams.runtime.status import LeftOut
from logflume.streams.seams import OutputTopic
from logflume.streams.state import Checkpoint

from .partials import PartialRows, RangeEnd, decode_range_end
from .replay import ChangelogRows, LetterRows, OutputRows, TaskEnd

ROWS = (
    "kind INT, name STRING, partition INT, time_ms BIGINT, task INT, seq BIGINT, "
    "key BINARY, value BINARY, timestamp_ms BIGINT, headers BINARY"
)
ROW_NAMES = [column.split()[0] for column in ROWS.split(", ")]
RANGE_SHIFT = 40
CAUSE_SHIFT = 20
WINDOW_START_BYTES = 8
BATCH_RECORDS = 50_000


class RowKind(IntEnum):
    """What a row is.

    A record of a repartition topic, of a sink topic or of a changelog, the end of a task; from an offset range, an entry of a
    partial store, or the end of the range. FORMER: that a partition of a table's topic is to be looked through for keys that
    have no row any more. WAKE: that a task runs, whether or not a record of a repartition topic comes for it. COST: what a task
    cost. WRITTEN: what a task has written to the log itself. LETTERS: dead letters of such a task, which the driver writes.
    """

    REPARTITION = 0
    SINK = 1
    CHANGELOG = 2
    END = 3
    PARTIAL = 4
    RANGE = 5
    FORMER = 6
    WAKE = 7
    COST = 8
    WRITTEN = 9
    LETTERS = 10


class RowWriter:
    """Turns what a replay or a range puts out into Arrow batches of ROWS."""

    def __init__(self, outputs: Mapping[str, OutputTopic], partitions: Mapping[str, int], task: int, *, number: int = 0) -> None:
        self._outputs = outputs
        self._partitions = partitions
        self._task = task
        self._seq = number << RANGE_SHIFT

    def rows(self, part: OutputRows | LetterRows | ChangelogRows | TaskEnd | PartialRows | RangeEnd) -> Iterator[Any]:
        """Yield the batches of one part."""
        match part:
            case OutputRows(records=records):
                out = self._outputs[part.node]
                kind = RowKind.REPARTITION if out.is_repartition else RowKind.SINK
                targets = target_partitions(records, self._partitions[out.topic], key_suffix_bytes=out.key_suffix_bytes)
                spans = _Spans(records, records.headers() if records.header_counts.any() else None)
                yield from self._batches(kind, out.topic, spans, targets, part.times_ms, part.causes)
            case LetterRows(records=records):
                targets = target_partitions(records, self._partitions[records.topic])
                yield from self._batches(RowKind.SINK, records.topic, _Spans(records, records.headers()), targets)
            case ChangelogRows():
                yield from self._batches(RowKind.CHANGELOG, part.store, _Lists(part.keys, part.values, part.timestamps_ms))
            case PartialRows(records=records):
                there = None if part.topic is None else target_partitions(records, self._partitions[part.topic])
                yield from self._batches(RowKind.PARTIAL, part.store, _Spans(records, None), there)
            case RangeEnd():
                target, end = np.array([part.partition], np.int32), msgspec.msgpack.encode(part)
                yield from self._batches(RowKind.RANGE, part.subtopology, _Lists([None], [end], [0]), target)
            case TaskEnd():
                yield from self._batches(RowKind.END, "", _Lists([None], [encode_end(part)], [0]))

    def _batches(
        self,
        kind: RowKind,
        name: str,
        records: _Spans | _Lists,
        targets: I32 | None = None,
        times_ms: I64 | None = None,
        causes: I64 | None = None,
    ) -> Iterator[Any]:
        import pyarrow as pa

        task = pa.scalar(self._task, pa.int32())
        placed = None if causes is None else _placed(causes)
        for at in range(0, len(records), BATCH_RECORDS):
            stop = min(at + BATCH_RECORDS, len(records))
            count = stop - at
            seq = np.arange(self._seq, self._seq + count, dtype=np.int64) if placed is None else placed[at:stop]
            self._seq += count
            yield pa.RecordBatch.from_arrays(
                [
                    pa.repeat(pa.scalar(int(kind), pa.int32()), count),
                    pa.repeat(pa.scalar(name, pa.string()), count),
                    pa.repeat(task, count) if targets is None else pa.array(targets[at:stop], pa.int32()),
                    pa.array(np.zeros(count, np.int64) if times_ms is None else times_ms[at:stop], pa.int64()),
                    pa.repeat(task, count),
                    pa.array(seq, pa.int64()),
                    *records.columns(at, stop),
                ],
                names=ROW_NAMES,
            )


@dataclass(frozen=True, slots=True)
class _Lists:
    """Records as aligned lists, without headers."""

    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    timestamps_ms: Sequence[int]

    def __len__(self) -> int:
        return len(self.values)

    def columns(self, at: int, stop: int) -> tuple[Any, ...]:
        """Return some as Arrow arrays: key, value, timestamp_ms, headers."""
        import pyarrow as pa

        times = pa.array(self.timestamps_ms[at:stop], pa.int64())
        return (*(pa.array(column[at:stop], pa.binary()) for column in (self.keys, self.values)), times, _no_headers(stop - at))


@dataclass(frozen=True, slots=True)
class _Spans:
    """Records of a chunk. `headers` None: they have none."""

    chunk: Chunk
    headers: list[Headers] | None

    def __len__(self) -> int:
        return len(self.chunk)

    def columns(self, at: int, stop: int) -> tuple[Any, ...]:
        """As `_Lists.columns`."""
        import pyarrow as pa

        rows = self.chunk.slice(at, stop).to_arrow()
        some = None if self.headers is None else [pack_headers(each) for each in self.headers[at:stop]]
        headers = _no_headers(stop - at) if some is None else pa.array(some, pa.binary())
        return (*(rows.column(name) for name in ("key", "value", "timestamp_ms")), headers)


def _no_headers(count: int) -> Any:
    import pyarrow as pa

    return pa.nulls(count, pa.binary())


def former_rows(tables: Mapping[str, int]) -> Any:
    """Return a row for each partition of these topics -> partitions, that what they hold be looked through."""
    places = [(topic, partition) for topic, count in sorted(tables.items()) for partition in range(count)]
    return _bare_rows(RowKind.FORMER, places)


def wake_rows(tasks: Sequence[int]) -> Any:
    """Return a row for each of these tasks, before any other of its partition: they have no name."""
    return _bare_rows(RowKind.WAKE, [("", task) for task in tasks])


def row_of_bytes(
    kind: RowKind, name: str, partition: int, value: bytes, *, task: int = 0, seq: int = 0, timestamp_ms: int = 0
) -> Any:
    """Return a row that holds bytes of whatever meaning."""
    import pyarrow as pa

    cells = [int(kind), name, partition, 0, task, seq, None, value, timestamp_ms, None]
    schema = _bare_rows(kind, []).schema
    return pa.RecordBatch.from_arrays(
        [pa.array([cell], field.type) for cell, field in zip(cells, schema, strict=True)], schema=schema
    )


def records_of(rows: Iterable[Any]) -> Iterator[Any]:
    """Yield the rows of a task that are records: one that wakes it is its first."""
    for batch in rows:
        at = int(batch.column("kind")[0].as_py() == RowKind.WAKE)
        if batch.num_rows > at:
            yield batch.slice(at)


def _bare_rows(kind: RowKind, places: Sequence[tuple[str, int]]) -> Any:
    """Return rows without a record, for (name, partition)."""
    import pyarrow as pa

    nothing, zeros = pa.array([None] * len(places), pa.binary()), pa.array([0] * len(places), pa.int64())
    return pa.RecordBatch.from_arrays(
        [
            pa.array([int(kind)] * len(places), pa.int32()),
            pa.array([name for name, _ in places], pa.string()),
            pa.array([partition for _, partition in places], pa.int32()),
            zeros,
            pa.array([0] * len(places), pa.int32()),
            zeros,
            nothing,
            nothing,
            zeros,
            nothing,
        ],
        names=ROW_NAMES,
    )


def _placed(causes: I64) -> I64:
    """Return the order of rows among those of all slices of a task: by their cause, then as they come."""
    firsts = np.flatnonzero(np.concatenate([[True], causes[1:] != causes[:-1]]))
    ranks = np.arange(len(causes)) - np.repeat(firsts, np.diff([*firsts.tolist(), len(causes)]))
    return (causes << CAUSE_SHIFT) + np.minimum(ranks, (1 << CAUSE_SHIFT) - 1)


def target_partitions(records: Chunk, count: int, *, key_suffix_bytes: int = 0) -> I32:
    """Return the partition of each record: murmur2 of the key (of the inner key for windows); null keys by their order."""
    if key_suffix_bytes:
        sizes = records.key_sizes
        records = replace(records, key_sizes=np.where(sizes < 0, sizes, np.maximum(sizes - key_suffix_bytes, 0)))
    targets = key_partitions(records, count)
    return np.where(targets < 0, np.arange(len(records), dtype=np.int32) % count, targets)


class _End(msgspec.Struct, array_like=True):
    inputs: list[tuple[str, int, int, int]]
    stores: dict[str, int]
    records: int
    problems: dict[str, int]
    left_out: tuple[LeftOut, ...]


_decode_end = msgspec.msgpack.Decoder(_End).decode


def encode_end(end: TaskEnd) -> bytes:
    """Return a task's end as bytes."""
    times = end.checkpoint.input_times_ms
    inputs = [(tp.topic, tp.partition, offset, times.get(tp, -1)) for tp, offset in end.checkpoint.inputs.items()]
    return msgspec.msgpack.encode(_End(inputs, end.checkpoint.store_times_ms, end.records, dict(end.problems), end.left_out))


def decode_end(data: bytes) -> TaskEnd:
    """Return a task's end from bytes."""
    raw = _decode_end(data)
    checkpoint = Checkpoint(
        {TopicPartition(topic, partition): offset for topic, partition, offset, _ in raw.inputs},
        {TopicPartition(topic, partition): time_ms for topic, partition, _, time_ms in raw.inputs},
        {},
        raw.stores,
    )
    return TaskEnd(checkpoint, raw.records, raw.problems, raw.left_out)


def parts_of(batch: Any) -> Iterator[PartialRows | RangeEnd]:
    """Yield what rows of ranges stand for, in their order."""
    import pyarrow.compute as pc

    ends = (pc.run_end_encode(batch.column(name)).run_ends.to_numpy() for name in ("kind", "name"))
    at = 0
    for end in np.union1d(*ends).tolist():
        part = batch.slice(at, end - at)
        at = end
        if part.column("kind")[0].as_py() == RowKind.RANGE:
            yield from (decode_range_end(value) for value in part.column("value").to_pylist())
        else:
            yield PartialRows(None, part.column("name")[0].as_py(), Chunk.from_arrow("", part))


def pack_headers(headers: Headers) -> bytes | None:
    """Return headers as bytes, None for none."""
    return msgspec.msgpack.encode(headers) if headers else None


def unpack_headers(blob: bytes | None) -> Headers:
    """Return headers from `pack_headers`."""
    return msgspec.msgpack.decode(blob, type=Headers) if blob else ()
