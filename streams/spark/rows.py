"""The one shape of rows in which everything leaves a job task, and how its parts are written into them.

`seq` is the order inside a source partition: the number of the offset range above `RANGE_SHIFT`, a counter below it; of a slice
of a task the place of the cause above `CAUSE_SHIFT`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import groupby
from typing import Any

import msgspec
import numpy as np

from logflume.log import Chunk, Headers, TopicPartition, key_partitions
from logflume.log.records import I64
from logflume.streams.runtime.status import LeftOut
from logflume.streams.seams import OutputTopic
from logflume.streams.state import Checkpoint

from .partials import PartialRows, RangeEnd, decode_range_end
from .replay import ChangelogRows, OutputRows, TaskEnd

ROWS = (
    "kind INT, name STRING, partition INT, time_ms BIGINT, task INT, seq BIGINT, "
    "key BINARY, value BINARY, timestamp_ms BIGINT, headers BINARY"
)
_NAMES = [column.split()[0] for column in ROWS.split(", ")]
RANGE_SHIFT = 40
CAUSE_SHIFT = 20
WINDOW_START_BYTES = 8
BATCH_RECORDS = 50_000


class RowKind(IntEnum):
    """What a row is.

    A record of a repartition topic, of a sink topic or of a changelog, the end of a task; from an offset range, an entry of a
    partial store, or the end of the range. FORMER: that a partition of a table's topic is to be looked through for keys that
    have no row any more. WAKE: that a task runs, whether or not a record of a repartition topic comes for it. COST: what a task
    cost.
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


class RowWriter:
    """Turns what a replay or a range puts out into Arrow batches of ROWS."""

    def __init__(self, outputs: Mapping[str, OutputTopic], partitions: Mapping[str, int], task: int, *, number: int = 0) -> None:
        self._outputs = outputs
        self._partitions = partitions
        self._task = task
        self._seq = number << RANGE_SHIFT

    def rows(self, part: OutputRows | ChangelogRows | TaskEnd | PartialRows | RangeEnd) -> Iterator[Any]:
        """Yield the batches of one part."""
        targets: list[int] | None
        match part:
            case OutputRows():
                out = self._outputs[part.node]
                kind = RowKind.REPARTITION if out.is_repartition else RowKind.SINK
                targets = target_partitions(out, part.keys, self._partitions[out.topic])
                headers = [pack_headers(each) for each in part.headers] if part.headers else None
                yield from self._batches(
                    kind, out.topic, targets, part.times_ms, part.keys, part.values, part.timestamps_ms, headers, part.causes
                )
            case ChangelogRows():
                yield from self._batches(
                    RowKind.CHANGELOG, part.store, None, None, part.keys, part.values, part.timestamps_ms, None
                )
            case PartialRows():
                targets = None if part.topic is None else self._targets(part.topic, part.keys)
                yield from self._batches(
                    RowKind.PARTIAL, part.store, targets, None, part.keys, part.values, part.timestamps_ms, None
                )
            case RangeEnd():
                target, end = [part.partition], msgspec.msgpack.encode(part)
                yield from self._batches(RowKind.RANGE, part.subtopology, target, None, [None], [end], [0], None)
            case TaskEnd():
                yield from self._batches(RowKind.END, "", None, None, [None], [encode_end(part)], [0], None)

    def _targets(self, topic: str, keys: list[bytes]) -> list[int]:
        return target_partitions(OutputTopic(topic), keys, self._partitions[topic])

    def _batches(
        self,
        kind: RowKind,
        name: str,
        targets: list[int] | None,
        times_ms: list[int] | None,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps_ms: list[int],
        headers: list[bytes | None] | None,
        causes: I64 | None = None,
    ) -> Iterator[Any]:
        import pyarrow as pa

        task = pa.scalar(self._task, pa.int32())
        placed = None if causes is None else _placed(causes)
        for at in range(0, len(values), BATCH_RECORDS):
            stop = min(at + BATCH_RECORDS, len(values))
            count = stop - at
            seq = np.arange(self._seq, self._seq + count, dtype=np.int64) if placed is None else placed[at:stop]
            self._seq += count
            yield pa.RecordBatch.from_arrays(
                [
                    pa.repeat(pa.scalar(int(kind), pa.int32()), count),
                    pa.repeat(pa.scalar(name, pa.string()), count),
                    pa.repeat(task, count) if targets is None else pa.array(targets[at:stop], pa.int32()),
                    pa.array(times_ms[at:stop] if times_ms else np.zeros(count, np.int64), pa.int64()),
                    pa.repeat(task, count),
                    pa.array(seq, pa.int64()),
                    pa.array(keys[at:stop], pa.binary()),
                    pa.array(values[at:stop], pa.binary()),
                    pa.array(timestamps_ms[at:stop], pa.int64()),
                    pa.array(headers[at:stop], pa.binary()) if headers else pa.nulls(count, pa.binary()),
                ],
                names=_NAMES,
            )


def former_rows(tables: Mapping[str, int]) -> Any:
    """Return a row for each partition of these topics -> partitions, that what they hold be looked through."""
    places = [(topic, partition) for topic, count in sorted(tables.items()) for partition in range(count)]
    return _bare_rows(RowKind.FORMER, places)


def wake_rows(tasks: Sequence[int]) -> Any:
    """Return a row for each of these tasks, before any other of its partition: they have no name."""
    return _bare_rows(RowKind.WAKE, [("", task) for task in tasks])


def cost_row(value: bytes) -> Any:
    """Return the row by which a task tells what it cost."""
    import pyarrow as pa

    row = _bare_rows(RowKind.COST, [("", 0)])
    place = row.schema.get_field_index("value")
    return row.set_column(place, "value", pa.array([value], pa.binary()))


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
        names=_NAMES,
    )


def _placed(causes: I64) -> I64:
    """Return the order of rows among those of all slices of a task: by their cause, then as they come."""
    firsts = np.flatnonzero(np.concatenate([[True], causes[1:] != causes[:-1]]))
    ranks = np.arange(len(causes)) - np.repeat(firsts, np.diff([*firsts.tolist(), len(causes)]))
    return (causes << CAUSE_SHIFT) + np.minimum(ranks, (1 << CAUSE_SHIFT) - 1)


def target_partitions(out: OutputTopic, keys: Sequence[bytes | None], count: int) -> list[int]:
    """Return the partition of each record: murmur2 of the key (of the inner key for windows); null keys by their order."""
    suffix_bytes = out.key_suffix_bytes
    inner = [None if key is None else key[:-suffix_bytes] for key in keys] if suffix_bytes else keys
    chunk = Chunk.from_columns(out.topic, inner, [None] * len(inner), [0] * len(inner))
    targets: list[int] = key_partitions(chunk, count).tolist()
    return [i % count if target < 0 else target for i, target in enumerate(targets)]


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
    kinds, names = batch.column("kind").to_pylist(), batch.column("name").to_pylist()
    at = 0
    for (kind, name), run in groupby(zip(kinds, names, strict=True)):
        count = sum(1 for _ in run)
        part = batch.slice(at, count)
        at += count
        values = part.column("value").to_pylist()
        if kind == RowKind.RANGE:
            yield from (decode_range_end(value) for value in values)
        else:
            yield PartialRows(None, name, part.column("key").to_pylist(), values, part.column("timestamp_ms").to_pylist())


def pack_headers(headers: Headers) -> bytes | None:
    """Return headers as bytes, None for none."""
    return msgspec.msgpack.encode(headers) if headers else None


def unpack_headers(blob: bytes | None) -> Headers:
    """Return headers from `pack_headers`."""
    return msgspec.msgpack.decode(blob, type=Headers) if blob else ()
