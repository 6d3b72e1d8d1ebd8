"""A step of an application as a Spark job: sub-topologies in order, a Spark task per stream task, repartition topics as shuffles.

A step goes from a start (nothing, or the end of the step before) to a cut of the source topics. Each Spark task runs a `Replay`
that reads its offset ranges from the log itself, so no record passes through the JVM unless it is an output. Rows that leave a
stream task all have one shape (`ROWS`); those of a repartition topic are partitioned and sorted by Spark in the order that the
engine gives such a topic: (running maximum of time in the source partition, source partition, order inside the task).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from logflume.log import Chunk, Headers, InvalidInput, TopicPartition, connect
from logflume.log.batch.columns import key_partitions
from logflume.streams.seams import OutputTopic, Plan, SubTopology
from logflume.streams.state import Checkpoint

from .ranges import OffsetRange, read_range
from .replay import ChangelogRows, OutputRows, Replay, ReplayInput, TaskEnd, chunk_of_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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


def run_step(spark: SparkSession, step: StepPlan, plan: Plan) -> list[DataFrame]:
    """Return one persisted DataFrame of ROWS per sub-topology; Spark computes them when they are first used."""
    shuffled: dict[str, DataFrame] = {}
    results: list[DataFrame] = []
    repartition_topics = {out.topic for sub in plan.subtopologies for out in sub.outputs.values() if out.is_repartition}
    for sub in in_order(plan):
        own = [topic for topic in sub.program.sources.values() if topic in repartition_topics]
        if len(own) > 1:
            raise InvalidInput(
                f"sub-topology {sub.name!r} reads {len(own)} repartition topics ({', '.join(sorted(own))}); a backfill on Spark "
                "holds one: run this query live from the start"
            )
        count = max(step.partitions[topic] for topic in sub.program.sources.values())
        run = _TaskRunner(step, sub.name, own[0] if own else None)
        if own:
            rows = shuffled[own[0]]
            rows = rows.repartition(count, "partition").sortWithinPartitions("partition", "time_ms", "task", "seq")
        else:
            rows = spark.range(0, count, 1, count).selectExpr("CAST(id AS INT) AS partition")
        done = rows.mapInArrow(run, ROWS).persist()
        results.append(done)
        for out in sub.outputs.values():
            if out.is_repartition:
                part = done.filter(f"kind = {int(RowKind.REPARTITION)} AND name = '{out.topic}'")
                shuffled[out.topic] = shuffled[out.topic].union(part) if out.topic in shuffled else part
    return results


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
class _TaskRunner:
    """The function that Spark maps over Arrow batches: runs the stream tasks whose partitions come along."""

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
        name = f"{sub.name}.{partition}"
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
                task_dir(self.step.state_root, name, start),
                start=start,
                memory_bytes=self.step.memory_bytes,
            )
            writer = _RowWriter(sub.outputs, self.step.partitions, partition)
            for part in replay:
                yield from writer.rows(part)


def task_dir(state_root: str, name: str, start: Checkpoint) -> Path:
    """Return the state directory of a task; emptied when the task starts from the beginning (a task that is tried again)."""
    path = Path(state_root) / name
    if not start.inputs and path.exists():
        shutil.rmtree(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


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
        headers = [_unpack(blob) for blob in blobs] if any(blob is not None for blob in blobs) else None
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
                headers = [_pack(each) for each in part.headers] if part.headers else None
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


def with_changelogs(checkpoint: Checkpoint, changelogs: Mapping[str, int]) -> Checkpoint:
    """Return a checkpoint that also says how far each store's changelog has come."""
    return replace(checkpoint, changelogs=dict(changelogs))


def _pack(headers: Headers) -> bytes | None:
    return msgspec.msgpack.encode(headers) if headers else None


def _unpack(blob: bytes | None) -> Headers:
    return msgspec.msgpack.decode(blob, type=Headers) if blob else ()
