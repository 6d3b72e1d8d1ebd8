"""Runs steps on Spark: one Spark task per stream task, shuffles for repartition topics."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from logflume.streams.seams import Plan

from .replay import TaskEnd
from .steps import ROWS, Progress, RowKind, StepPlan, TaskRunner, decode_end, in_order, repartition_input

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WATCH_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class SparkRunner:
    """The `StepRunner` of a Spark session."""

    spark: SparkSession

    def run(self, step: StepPlan, plan: Plan, on_progress: Callable[[Progress], None]) -> SparkResult:
        """Compute a step; returns when every task has ended, with the rows kept by Spark."""
        frames = plan_frames(self.spark, step, plan)
        done = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(done, on_progress), name="spark-progress", daemon=True)
        watcher.start()
        try:
            ends = []
            for frame in frames:
                rows = frame.filter(f"kind = {int(RowKind.END)}").select("value").collect()
                ends += [decode_end(bytes(row.value)) for row in rows]
            return SparkResult(frames, ends)
        finally:
            done.set()
            watcher.join()

    def _watch(self, done: threading.Event, on_progress: Callable[[Progress], None]) -> None:
        tracker = self.spark.sparkContext.statusTracker()
        while not done.wait(WATCH_EVERY_S):
            for stage_id in tracker.getActiveStageIds():
                stage = tracker.getStageInfo(stage_id)
                if stage is not None:
                    on_progress(Progress(f"Spark stage {stage_id}: tasks", stage.numCompletedTasks, stage.numTasks))


@dataclass(frozen=True, slots=True)
class SparkResult:
    """Computed frames of ROWS, one per sub-topology."""

    frames: list[DataFrame]
    ends: list[TaskEnd]

    def tables(self) -> Iterator[Any]:
        """Yield sink and changelog rows, one Spark partition at a time, so that the driver holds no more than that."""
        from pyspark.sql.functions import spark_partition_id

        for frame in self.frames:
            rows = frame.withColumn("at", spark_partition_id())
            rows = rows.filter(f"kind IN ({int(RowKind.SINK)}, {int(RowKind.CHANGELOG)})")
            for at in range(frame.rdd.getNumPartitions()):
                table = rows.filter(f"at = {at}").toArrow()
                if table.num_rows:
                    yield table

    def release(self) -> None:
        """Let Spark forget the rows."""
        for frame in self.frames:
            frame.unpersist()


def plan_frames(spark: SparkSession, step: StepPlan, plan: Plan) -> list[DataFrame]:
    """Return one persisted DataFrame of ROWS per sub-topology; Spark computes them when they are first used."""
    shuffled: dict[str, DataFrame] = {}
    frames: list[DataFrame] = []
    for sub in in_order(plan):
        repartition = repartition_input(sub, plan)
        count = max(step.partitions[topic] for topic in sub.program.sources.values())
        if repartition is None:
            rows = spark.range(0, count, 1, count).selectExpr("CAST(id AS INT) AS partition")
        else:
            rows = shuffled[repartition].repartition(count, "partition")
            rows = rows.sortWithinPartitions("partition", "time_ms", "task", "seq")
        frame = rows.mapInArrow(TaskRunner(step, sub.name, repartition), ROWS).persist()
        frames.append(frame)
        for out in sub.outputs.values():
            if out.is_repartition:
                part = frame.filter(f"kind = {int(RowKind.REPARTITION)} AND name = '{out.topic}'")
                shuffled[out.topic] = shuffled[out.topic].union(part) if out.topic in shuffled else part
    return frames
