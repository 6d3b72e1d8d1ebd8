"""Backfill: the history of an application as a Spark job, handed to the live application in one transaction (architecture, D11).

    plan = plan_backfill(load_plan, where)      # freezes the cut: source partition -> offset; changes nothing
    report = run_backfill(plan, spark)          # computes [start, cut) on Spark, then installs it

The hand-over is ONE log transaction that holds the changelog records of all stores, the result records, and the offsets of the
application's consumer group (= the cut, with the times that decide about lateness as their metadata). So it happens wholly
or not at all: a live application that starts afterwards restores its stores from the changelogs and goes on at the cut. Before
it, nothing but new topics exists; a backfill that fails removes them, and what a killed one left is taken over by the next.

The result topic receives what a live run that commits every 500,000 records of a task would have put there: every record of a
stream result; of a table result the last value of each key (and window) at each of those commits, so the newest record per key
is the value at the cut.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from logflume.log import (
    Chunk,
    GroupMetadata,
    InvalidInput,
    Log,
    OffsetAndMetadata,
    Producer,
    TopicPartition,
    connect,
)
from logflume.streams.runtime.positions import to_offsets
from logflume.streams.runtime.topics import changelog_topic, prepare_topics
from logflume.streams.seams import Plan
from logflume.streams.state import Checkpoint

from .ranges import OffsetRange, check_available
from .replay import TaskEnd
from .steps import RowKind, StepPlan, _unpack, decode_end, run_step

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HAND_OVER_TIMEOUT_MS = 900_000
"""The longest transaction that a broker allows by default (transaction.max.timeout.ms)."""


@dataclass(frozen=True, slots=True)
class BackfillPlan:
    """What a backfill will read and write. Data: printed by a dry run.

    Attributes:
        load_plan: makes the application's plan; called on the driver and in every executor.
        ranges: source partition -> [start, cut).
        stores: names of the stores that are installed through their changelogs.
        result_topics: where results go.
    """

    application: str
    where: str
    load_plan: Callable[[], Plan]
    ranges: Mapping[TopicPartition, OffsetRange]
    stores: tuple[str, ...]
    result_topics: tuple[str, ...]

    @property
    def records(self) -> int:
        """Offsets in all ranges: an upper bound of the records."""
        return sum(len(each) for each in self.ranges.values())


@dataclass(slots=True)
class BackfillReport:
    """What a backfill did."""

    records: int = 0
    results: int = 0
    entries: int = 0
    problems: dict[str, int] = field(default_factory=dict)
    offsets: dict[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a backfill is: `step` in words, `done` of `total` (Spark tasks, then records written)."""

    step: str
    done: int
    total: int


def plan_backfill(load_plan: Callable[[], Plan], where: str) -> BackfillPlan:
    """Freeze the cut: the last stable offset of each source partition as of now. Changes nothing.

    Raises:
        UnknownName: a source topic does not exist.
        InvalidInput: the application runs already or has committed offsets.
    """
    plan = load_plan()
    with connect(where) as log:
        check_unused(log, plan.application)
        internal = {out.topic for sub in plan.subtopologies for out in sub.outputs.values() if out.is_repartition}
        topics = sorted({topic for sub in plan.subtopologies for topic in sub.program.sources.values()} - internal)
        admin = log.admin()
        described = admin.describe_topics(topics)
        every = [TopicPartition(topic, p) for topic in topics for p in range(described[topic].partitions)]
        starts, ends = admin.start_offsets(every), admin.end_offsets(every, read_committed=True)
    stores = [spec.name for sub in plan.subtopologies for spec in sub.program.stores if spec.name not in sub.table_sources]
    results = [out.topic for sub in plan.subtopologies for out in sub.outputs.values() if not out.is_repartition]
    return BackfillPlan(
        plan.application,
        where,
        load_plan,
        {tp: OffsetRange(*tp, starts[tp], max(starts[tp], ends[tp])) for tp in every},
        tuple(sorted(stores)),
        tuple(sorted(set(results))),
    )


def check_unused(log: Log, application: str) -> None:
    """Refuse an application that has members or committed offsets: its history has been computed, or is being."""
    admin = log.admin()
    if application not in admin.list_groups():
        return
    members = len(admin.describe_group(application).members)
    if members:
        raise InvalidInput(
            f"application {application!r} is running ({members} members): stop it, or give the backfill another name"
        )
    if admin.group_offsets(application):
        raise InvalidInput(
            f"application {application!r} has committed offsets, so it has begun already: give the backfill another name, or delete "
            f"the group and its internal topics to compute it again"
        )


def run_backfill(
    backfill: BackfillPlan,
    spark: SparkSession,
    *,
    on_progress: Callable[[Progress], None] = lambda _: None,
    failpoint: Callable[[str], None] = lambda _: None,
    state_root: str | None = None,
) -> BackfillReport:
    """Compute [start, cut) on Spark and install it in one transaction; on any error nothing is left behind.

    Args:
        state_root: a directory that all executors share, needed on a cluster; with a local master a temporary one is made.
        failpoint: called with a name at each step, so that tests can kill the process there.
    """
    plan = backfill.load_plan()
    root = state_root or tempfile.mkdtemp(prefix="logflume-backfill-")
    with connect(backfill.where) as log:
        check_unused(log, backfill.application)
        check_available(log, backfill.ranges)
        before = set(log.admin().list_topics(include_internal=True))
        try:
            topics = prepare_topics(plan, log.admin())
            failpoint("after-topics")
            step = StepPlan(backfill.load_plan, backfill.where, backfill.ranges, topics.partitions, {}, root)
            results = run_step(spark, step, plan)
            ends = compute(results, spark, on_progress)
            failpoint("after-job")
            report = install(log, plan, results, ends, on_progress=on_progress, failpoint=failpoint)
        except BaseException:
            remove_new_topics(log, before, plan)
            raise
        finally:
            shutil.rmtree(root, ignore_errors=True)
    failpoint("after-commit")
    return report


def compute(results: list[DataFrame], spark: SparkSession, on_progress: Callable[[Progress], None]) -> list[TaskEnd]:
    """Run the job; return the end of each task."""
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(spark, done, on_progress), name="backfill-progress", daemon=True)
    watcher.start()
    try:
        ends = []
        for frame in results:
            rows = frame.filter(f"kind = {int(RowKind.END)}").select("value").collect()
            ends += [decode_end(bytes(row.value)) for row in rows]
        return ends
    finally:
        done.set()
        watcher.join()


def _watch(spark: SparkSession, done: threading.Event, on_progress: Callable[[Progress], None]) -> None:
    tracker = spark.sparkContext.statusTracker()
    while not done.wait(0.5):
        for stage_id in tracker.getActiveStageIds():
            stage = tracker.getStageInfo(stage_id)
            if stage is not None:
                on_progress(Progress(f"Spark stage {stage_id}", stage.numCompletedTasks, stage.numTasks))


def install(
    log: Log,
    plan: Plan,
    results: list[DataFrame],
    ends: list[TaskEnd],
    *,
    on_progress: Callable[[Progress], None] = lambda _: None,
    failpoint: Callable[[str], None] = lambda _: None,
) -> BackfillReport:
    """Write changelogs, results and offsets in one transaction."""
    report = BackfillReport(records=sum(end.records for end in ends))
    for end in ends:
        for reason, count in end.problems.items():
            report.problems[reason] = report.problems.get(reason, 0) + count
    changelogs = {
        spec.name: changelog_topic(plan.application, spec.name) for sub in plan.subtopologies for spec in sub.program.stores
    }
    producer = log.producer(
        transactional_id=f"{plan.application}-backfill", transaction_timeout_ms=HAND_OVER_TIMEOUT_MS, batch_size=1 << 20
    )
    try:
        producer.init_transactions()
        producer.begin_transaction()
        for frame in results:
            for table in outputs_of(frame):
                for kind, topic, chunk in chunks_of(table, changelogs):
                    producer.send_chunk(topic, chunk, partition=chunk.partition)
                    if kind is RowKind.SINK:
                        report.results += len(chunk)
                    else:
                        report.entries += len(chunk)
                on_progress(Progress("hand-over: records written", report.results + report.entries, 0))
        failpoint("after-write")
        offsets = offsets_of(ends)
        producer.send_offsets(offsets, GroupMetadata(plan.application, -1, ""))
        failpoint("after-send-offsets")
        producer.commit_transaction()
    except BaseException:
        _abort(producer)
        raise
    finally:
        producer.close()
    report.offsets = {tp: at.offset for tp, at in offsets.items()}
    return report


def offsets_of(ends: list[TaskEnd]) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offset commit of all tasks: positions at the cut, times as metadata."""
    offsets: dict[TopicPartition, OffsetAndMetadata] = {}
    for end in ends:
        offsets.update(to_offsets(end.checkpoint))
    return offsets


def outputs_of(frame: DataFrame) -> Iterator[Any]:
    """Yield the sink and changelog rows of a computed frame as pyarrow tables, one Spark partition at a time, in order."""
    from pyspark.sql.functions import spark_partition_id

    rows = frame.withColumn("at", spark_partition_id())
    rows = rows.filter(f"kind IN ({int(RowKind.SINK)}, {int(RowKind.CHANGELOG)})")
    for at in range(frame.rdd.getNumPartitions()):
        table = rows.filter(f"at = {at}").toArrow()
        if table.num_rows:
            yield table


def chunks_of(table: Any, changelogs: Mapping[str, str]) -> Iterator[tuple[RowKind, str, Chunk]]:
    """Yield (kind, topic, chunk) of each run of rows of one topic and partition, keeping the order inside each partition."""
    groups: dict[tuple[int, str, int], list[int]] = {}
    kinds, names, partitions = (table.column(name).to_pylist() for name in ("kind", "name", "partition"))
    for row, group in enumerate(zip(kinds, names, partitions, strict=True)):
        groups.setdefault(group, []).append(row)
    for (kind, name, partition), rows in groups.items():
        part = table.take(rows)
        topic = changelogs[name] if kind == RowKind.CHANGELOG else name
        blobs = part.column("headers").to_pylist()
        headers = [_unpack(blob) for blob in blobs] if any(blob is not None for blob in blobs) else None
        keys, values = part.column("key").to_pylist(), part.column("value").to_pylist()
        times = part.column("timestamp_ms").to_pylist()
        yield RowKind(kind), topic, Chunk.from_columns(topic, keys, values, times, partition=partition, headers=headers)


def remove_new_topics(log: Log, before: set[str], plan: Plan) -> None:
    """Delete the topics of the application that did not exist before."""
    own = {out.topic for sub in plan.subtopologies for out in sub.outputs.values()}
    own |= {changelog_topic(plan.application, spec.name) for sub in plan.subtopologies for spec in sub.program.stores}
    admin = log.admin()
    for topic in sorted((own & set(admin.list_topics(include_internal=True))) - before):
        admin.delete_topic(topic)


def _abort(producer: Producer) -> None:
    from logflume.log import LogflumeError

    try:
        producer.abort_transaction()
    except LogflumeError:
        return  # the broker aborts it by its timeout, or the next backfill of this name does


def run_continuously(
    load_plan: Callable[[], Plan],
    where: str,
    spark: SparkSession,
    *,
    checkpoint_dir: str,
    state_root: str,
    trigger_seconds: float = 1.0,
    available_now: bool = False,
) -> Any:
    """Run an application on Structured Streaming instead of the native engine; returns the StreamingQuery.

    Each micro-batch is a step: it goes on from the offsets that the application's group has committed and ends with one
    transaction of results, changelogs and offsets, so a batch that Spark runs again finds its offsets committed and does nothing.
    State is kept in `state_root` (shared by all executors) between batches.
    """
    from .source import LogflumeDataSource

    plan = load_plan()
    spark.dataSource.register(LogflumeDataSource)
    internal = {out.topic for sub in plan.subtopologies for out in sub.outputs.values() if out.is_repartition}
    topics = sorted({topic for sub in plan.subtopologies for topic in sub.program.sources.values()} - internal)
    with connect(where) as log:
        partitions = prepare_topics(plan, log.admin()).partitions
    runner = _BatchRunner(load_plan, where, partitions, tuple(topics), state_root)
    stream = spark.readStream.format("logflume").option("log", where).option("topic", ",".join(topics)).load()
    writer = (
        stream.select("topic", "partition", "offset")
        .writeStream.foreachBatch(runner)
        .option("checkpointLocation", checkpoint_dir)
    )
    writer = writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime=f"{trigger_seconds} seconds")
    return writer.queryName(f"{plan.application}-{uuid.uuid4().hex[:8]}").start()


@dataclass(slots=True)
class _BatchRunner:
    """Runs one micro-batch as a step; `ends` remembers where each task stands in its state directory."""

    load_plan: Callable[[], Plan]
    where: str
    partitions: Mapping[str, int]
    topics: tuple[str, ...]
    state_root: str
    ends: dict[str, Checkpoint] = field(default_factory=dict)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        rows = frame.groupBy("topic", "partition").agg({"offset": "max"}).collect()
        newest = {TopicPartition(row.topic, row.partition): row["max(offset)"] + 1 for row in rows}
        plan = self.load_plan()
        with connect(self.where) as log:
            every = [TopicPartition(topic, p) for topic in self.topics for p in range(self.partitions[topic])]
            committed = log.admin().group_offsets(plan.application)
            starts = log.admin().start_offsets(every)
            first = {tp: committed[tp].offset if tp in committed else starts[tp] for tp in every}
            ranges = {tp: OffsetRange(*tp, first[tp], max(first[tp], newest.get(tp, 0))) for tp in every}
            if not any(map(len, ranges.values())):
                return
            step = StepPlan(self.load_plan, self.where, ranges, self.partitions, self.ends, self.state_root)
            results = run_step(frame.sparkSession, step, plan)
            ends = compute(results, frame.sparkSession, lambda _: None)
            install(log, plan, results, ends)
            for result in results:
                result.unpersist()
        self.ends.update(_by_task(plan, ends))


def _by_task(plan: Plan, ends: list[TaskEnd]) -> dict[str, Checkpoint]:
    """Return the checkpoints by task name: a task's inputs are those of its sub-topology, and its partition is theirs."""
    by_task = {}
    for end in ends:
        tp = next(iter(end.checkpoint.inputs))
        sub = next(sub for sub in plan.subtopologies if tp.topic in sub.program.sources.values())
        by_task[f"{sub.name}.{tp.partition}"] = end.checkpoint
    return by_task
