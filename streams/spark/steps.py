"""A step of an application as a batch job: sub-topologies in order, a job task per stream task, repartition topics as shuffles.

A step goes from a start (nothing, or the end of the step before) to a cut of the source topics. Each job task runs a `Replay`
that reads its offset ranges from the log itself, so no record passes through Spark's JVM unless it is an output. Rows that
leave a stream task all have one shape (`ROWS`); those of a repartition topic are partitioned and sorted in the order that the
engine gives such a topic: (running maximum of time in the source partition, source partition, order inside the task).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np

from logflume.log import Chunk, Headers, InvalidInput, Log, TopicPartition, connect
from logflume.log.batch.columns import key_partitions
from logflume.streams.runtime.task import task_name
from logflume.streams.seams import OutputTopic, Plan, SubTopology, changelog_topic
from logflume.streams.state import Checkpoint

from .ranges import OffsetRange, read_range
from .replay import ChangelogRows, OutputRows, Replay, ReplayInput, TaskEnd, chunk_of_rows

ROWS = (
    "kind INT, name STRING, partition INT, time_ms BIGINT, task INT, seq BIGINT, "
    "key BINARY, value BINARY, timestamp_ms BIGINT, headers BINARY"
)
WINDOW_START_BYTES = 8
BATCH_RECORDS = 50_000


class RowKind(IntEnum):
    """What a row is: a record of a repartition topic, of a sink topic, of a changelog, or the end of a task."""

    REPARTITION = 0
    SINK = 1
    CHANGELOG = 2
    END = 3


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step computes. Picklable, apart from `load_plan` itself being importable or picklable by value.

    Attributes:
        where: the log, as `logflume.log.connect` takes it, reachable from every Spark executor.
        ranges: what is read of each source partition.
        partitions: topic -> number of partitions, for all topics of the application.
        starts: task name -> checkpoint that it goes on from; absent: the beginning.
        state_root: directory on a file system that all executors share (or local, with a local master); one folder a task.
    """

    load_plan: Callable[[], Plan]
    where: str
    ranges: Mapping[TopicPartition, OffsetRange]
    partitions: Mapping[str, int]
    starts: Mapping[str, Checkpoint]
    state_root: str
    memory_bytes: int = 512 << 20


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a step is, in words, and `done` of `total` (0: not known)."""

    step: str
    done: int
    total: int


class StepResult(Protocol):
    """What a step computed, kept until `release`."""

    @property
    def ends(self) -> list[TaskEnd]:
        """The end of each task that ran."""
        ...

    def tables(self) -> Iterator[Any]:
        """Yield pyarrow tables of ROWS: records of sinks and changelogs, those of one partition in order."""
        ...

    def release(self) -> None: ...


class StepRunner(Protocol):
    """Runs the stream tasks of a step somewhere."""

    def run(self, step: StepPlan, plan: Plan, on_progress: Callable[[Progress], None]) -> StepResult: ...


def repartition_input(sub: SubTopology, plan: Plan) -> str | None:
    """Return the repartition topic that a sub-topology reads, None without one; refuses more than one."""
    internal = {out.topic for each in plan.subtopologies for out in each.outputs.values() if out.is_repartition}
    own = sorted(set(sub.program.sources.values()) & internal)
    if len(own) > 1:
        raise InvalidInput(
            f"sub-topology {sub.name!r} reads {len(own)} repartition topics ({', '.join(own)}); a backfill holds one: run this "
            "query live from the start"
        )
    return own[0] if own else None


def in_order(plan: Plan) -> list[SubTopology]:
    """Return the sub-topologies so that whoever writes a repartition topic comes before whoever reads it."""
    writers: dict[str, set[str]] = {}
    for sub in plan.subtopologies:
        for out in sub.outputs.values():
            if out.is_repartition:
                writers.setdefault(out.topic, set()).add(sub.name)
    ordered: list[SubTopology] = []
    waiting = list(plan.subtopologies)
    while waiting:
        placed = {sub.name for sub in ordered}
        ready = [
            sub
            for sub in waiting
            if all(writers.get(topic, set()) <= placed | {sub.name} for topic in sub.program.sources.values())
        ]
        if not ready:
            raise InvalidInput(f"sub-topologies feed each other in a circle: {', '.join(sub.name for sub in waiting)}")
        ordered += ready
        waiting = [sub for sub in waiting if sub not in ready]
    return ordered


@dataclass(frozen=True, slots=True)
class TaskRunner:
    """The function mapped over Arrow batches: runs the stream tasks whose partitions come along, sorted by partition."""

    step: StepPlan
    subtopology: str
    repartition: str | None

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        plan = self.step.load_plan()
        sub = next(each for each in plan.subtopologies if each.name == self.subtopology)
        feed = _by_partition(batches)
        for partition, rows in feed:
            yield from self._run(plan.application, sub, partition, rows)

    def _run(self, application: str, sub: SubTopology, partition: int, rows: Iterator[Any]) -> Iterator[Any]:
        name = task_name(sub, partition)
        start = self.step.starts.get(name, Checkpoint())
        with connect(self.step.where) as log:
            inputs = []
            for topic in sorted(set(sub.program.sources.values())):
                tp = TopicPartition(topic, partition)
                if topic == self.repartition:
                    offset = start.inputs.get(tp, 0)
                    inputs.append(ReplayInput(tp, _chunks_of(tp, offset, rows), offset))
                elif tp in self.step.ranges:
                    wanted = self.step.ranges[tp]
                    inputs.append(ReplayInput(tp, read_range(log, wanted), wanted.end))
                else:
                    inputs.append(ReplayInput(tp, iter(()), 0))
            replay = Replay(
                sub,
                partition,
                inputs,
                application,
                Path(self.step.state_root) / name,
                start=start,
                stored=partial(stored_chunks, log, application, sub, partition, start),
                memory_bytes=self.step.memory_bytes,
            )
            writer = _RowWriter(sub.outputs, self.step.partitions, partition)
            for part in replay:
                yield from writer.rows(part)


def stored_chunks(log: Log, application: str, sub: SubTopology, partition: int, start: Checkpoint, store: str) -> Iterator[Chunk]:
    """Yield what a store is rebuilt from: its changelog, or its table source up to where the task has read it."""
    if not start.inputs:
        return
    node = sub.table_sources.get(store)
    topic = changelog_topic(application, store) if node is None else sub.program.sources[node]
    tp = TopicPartition(topic, partition)
    first = log.admin().start_offsets([tp])[tp]
    end = log.admin().end_offsets([tp], read_committed=True)[tp] if node is None else start.inputs[tp]
    yield from read_range(log, OffsetRange(topic, partition, min(first, end), end))


def _by_partition(batches: Iterator[Any]) -> Iterator[tuple[int, Iterator[Any]]]:
    """Group consecutive rows by their `partition` column; each group must be used up before the next (it is, on advance)."""
    pending: list[Any] = []

    def take(partition: int) -> Iterator[Any]:
        while True:
            if not pending:
                batch = next(batches, None)
                if batch is None:
                    return
                if batch.num_rows:
                    pending.append(batch)
                continue
            batch = pending.pop()
            column = batch.column("partition").to_numpy(zero_copy_only=False)
            count = int(np.searchsorted(column, partition, side="right"))
            if count == 0:
                pending.append(batch)
                return
            if count < batch.num_rows:
                pending.append(batch.slice(count))
            yield batch.slice(0, count)

    while True:
        while not pending:
            batch = next(batches, None)
            if batch is None:
                return
            if batch.num_rows:
                pending.append(batch)
        partition = int(pending[0].column("partition")[0].as_py())
        rows = take(partition)
        yield partition, rows
        for _ in rows:
            pass


def _chunks_of(tp: TopicPartition, offset: int, rows: Iterator[Any]) -> Iterator[Chunk]:
    """Turn shuffled rows into the chunks of the repartition topic."""
    for batch in rows:
        blobs = batch.column("headers").to_pylist()
        headers = [unpack_headers(blob) for blob in blobs] if any(blob is not None for blob in blobs) else None
        keys, values = batch.column("key").to_pylist(), batch.column("value").to_pylist()
        yield chunk_of_rows(tp, offset, keys, values, batch.column("timestamp_ms").to_pylist(), headers)
        offset += batch.num_rows


class _RowWriter:
    """Turns what a replay puts out into Arrow batches of ROWS; `seq` is the order inside the task."""

    def __init__(self, outputs: Mapping[str, OutputTopic], partitions: Mapping[str, int], task: int) -> None:
        self._outputs = outputs
        self._partitions = partitions
        self._task = task
        self._seq = 0

    def rows(self, part: OutputRows | ChangelogRows | TaskEnd) -> Iterator[Any]:
        """Yield the batches of one part."""
        match part:
            case OutputRows():
                out = self._outputs[part.node]
                kind = RowKind.REPARTITION if out.is_repartition else RowKind.SINK
                targets = target_partitions(out, part.keys, self._partitions[out.topic])
                headers = [pack_headers(each) for each in part.headers] if part.headers else None
                yield from self._batches(
                    kind, out.topic, targets, part.times_ms, part.keys, part.values, part.timestamps_ms, headers
                )
            case ChangelogRows():
                targets = [self._task] * len(part.keys)
                yield from self._batches(
                    RowKind.CHANGELOG, part.store, targets, None, part.keys, part.values, part.timestamps_ms, None
                )
            case TaskEnd():
                end = encode_end(part)
                yield from self._batches(RowKind.END, "", [self._task], None, [None], [end], [0], None)

    def _batches(
        self,
        kind: RowKind,
        name: str,
        targets: list[int],
        times_ms: list[int] | None,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps_ms: list[int],
        headers: list[bytes | None] | None,
    ) -> Iterator[Any]:
        import pyarrow as pa

        for at in range(0, len(values), BATCH_RECORDS):
            stop = min(at + BATCH_RECORDS, len(values))
            count = stop - at
            seq = np.arange(self._seq, self._seq + count, dtype=np.int64)
            self._seq += count
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array([int(kind)] * count, pa.int32()),
                    pa.array([name] * count, pa.string()),
                    pa.array(targets[at:stop], pa.int32()),
                    pa.array(times_ms[at:stop] if times_ms else [0] * count, pa.int64()),
                    pa.array([self._task] * count, pa.int32()),
                    pa.array(seq, pa.int64()),
                    pa.array(keys[at:stop], pa.binary()),
                    pa.array(values[at:stop], pa.binary()),
                    pa.array(timestamps_ms[at:stop], pa.int64()),
                    pa.array(headers[at:stop] if headers else [None] * count, pa.binary()),
                ],
                names=["kind", "name", "partition", "time_ms", "task", "seq", "key", "value", "timestamp_ms", "headers"],
            )


def target_partitions(out: OutputTopic, keys: list[bytes | None], count: int) -> list[int]:
    """Return the partition of each record: murmur2 of the key (of the inner key for windows); null keys by their order."""
    inner = [None if key is None else key[:-WINDOW_START_BYTES] for key in keys] if out.is_windowed else keys
    chunk = Chunk.from_columns(out.topic, inner, [None] * len(inner), [0] * len(inner))
    targets: list[int] = key_partitions(chunk, count).tolist()
    return [i % count if target < 0 else target for i, target in enumerate(targets)]


class _End(msgspec.Struct, array_like=True):
    inputs: list[tuple[str, int, int, int]]
    stores: dict[str, int]
    records: int
    problems: dict[str, int]


def encode_end(end: TaskEnd) -> bytes:
    """Return a task's end as bytes."""
    times = end.checkpoint.input_times_ms
    inputs = [(tp.topic, tp.partition, offset, times.get(tp, -1)) for tp, offset in end.checkpoint.inputs.items()]
    return msgspec.msgpack.encode(_End(inputs, end.checkpoint.store_times_ms, end.records, dict(end.problems)))


def decode_end(data: bytes) -> TaskEnd:
    """Return a task's end from bytes."""
    raw = msgspec.msgpack.decode(data, type=_End)
    checkpoint = Checkpoint(
        {TopicPartition(topic, partition): offset for topic, partition, offset, _ in raw.inputs},
        {TopicPartition(topic, partition): time_ms for topic, partition, _, time_ms in raw.inputs},
        {},
        raw.stores,
    )
    return TaskEnd(checkpoint, raw.records, raw.problems)


def pack_headers(headers: Headers) -> bytes | None:
    """Return headers as bytes, None for none."""
    return msgspec.msgpack.encode(headers) if headers else None


def unpack_headers(blob: bytes | None) -> Headers:
    """Return headers from `pack_headers`."""
    return msgspec.msgpack.decode(blob, type=Headers) if blob else ()
