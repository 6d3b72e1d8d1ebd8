"""An application on Structured Streaming instead of the native engine: each micro-batch is a step (architecture, D11)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from logflume.log import TopicPartition, connect
from logflume.streams.runtime.topics import prepare_topics
from logflume.streams.seams import Plan

from .executors import equip
from .handover import hand_over_producer, install, task_starts
from .ranges import OffsetRange, reachable
from .runner import SparkRunner
from .source import LogflumeDataSource
from .steps import StepPlan, refuse_global_tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
    plan = load_plan()
    refuse_global_tables(plan)
    spark.dataSource.register(LogflumeDataSource)
    internal = {out.topic for sub in plan.subtopologies for out in sub.outputs.values() if out.is_repartition}
    topics = sorted({topic for sub in plan.subtopologies for topic in sub.program.sources.values()} - internal)
    with connect(where) as log:
        where = reachable(log)
        equip(spark, StepPlan(load_plan, where, {}, {}, {}, state_root))
        partitions = prepare_topics(plan, log.admin()).partitions
    runner = BatchRunner(load_plan, where, partitions, tuple(topics), state_root)
    stream = spark.readStream.format("logflume").option("log", where).option("topic", ",".join(topics)).load()
    writer = (
        stream.select("topic", "partition", "offset")
        .writeStream.foreachBatch(runner)
        .option("checkpointLocation", checkpoint_dir)
    )
    writer = writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime=f"{trigger_seconds} seconds")
    return writer.queryName(f"{plan.application}-{uuid.uuid4().hex[:8]}").start()


@dataclass(slots=True)
class BatchRunner:
    """Runs one micro-batch as a step that goes on from the offsets committed so far."""

    load_plan: Callable[[], Plan]
    where: str
    partitions: Mapping[str, int]
    topics: tuple[str, ...]
    state_root: str

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        rows = frame.groupBy("topic", "partition").agg({"offset": "max"}).collect()
        newest = {TopicPartition(row.topic, row.partition): row["max(offset)"] + 1 for row in rows}
        plan = self.load_plan()
        with connect(self.where) as log:
            every = [TopicPartition(topic, p) for topic in self.topics for p in range(self.partitions[topic])]
            committed = log.admin().group_offsets(plan.application, is_stable=True)
            starts = log.admin().start_offsets(every)
            first = {tp: committed[tp].offset if tp in committed else starts[tp] for tp in every}
            ranges = {tp: OffsetRange(tp.topic, tp.partition, first[tp], max(first[tp], newest.get(tp, 0))) for tp in every}
            if not any(map(len, ranges.values())):
                return
            tasks = task_starts(plan, committed)
            step = StepPlan(self.load_plan, self.where, ranges, self.partitions, tasks, self.state_root)
            result = SparkRunner(frame.sparkSession).compute(step, plan, lambda _: None)
            with hand_over_producer(log, plan.application) as producer:
                install(producer, plan, result)
            result.release()
