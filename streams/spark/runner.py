"""Runs steps on Spark: stages as passes over rows, each partition of a pass in a Python worker, shuffles in between."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from logflume.log import connect
from logflume.streams.seams import Plan

from .bundles import Bundled, unbundled
from .costs import Cost, Costed, cost_of
from .executors import equip
from .kept import Kept, stage_names
from .partials import RangeEnd, decode_range_end
from .ranges import reachable
from .replay import TaskEnd, joined_ends, later_ends
from .rows import RANGE_SHIFT, ROWS, RowKind, decode_end, former_rows, wake_rows
from .stages import Rows, Stage, stages_of, times_before
from .steps import Progress, StageDone, StepPlan
from .writing import WRITTEN, RowsToLog, Target, Written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WATCH_EVERY_S = 0.5
RECORDS_PER_RANGE = 1_000_000
RANGES_FROM_RECORDS = 5_000_000
SLICES_PER_CORE = 4
"""Ranges are dealt to at most so many Spark tasks per core: each prepares the program once."""
_KEPT = {"parquet.block.size": str(16 << 20), "parquet.block.size.row.check.min": "1"}
"""Spark reads up to a whole row group at a time, and a row may be a bundle."""
_BY_TOPIC = ("name", "partition", "stage", "task", "seq")


@dataclass(frozen=True, slots=True)
class SparkRunner:
    """The `StepRunner` of a Spark session.

    `records_per_range`: offsets that one pass over a range takes; None: no ranges. `cores`: how many tasks run at a time;
    None: as Spark says. `ranges_from_records`: a shorter history is not cut into ranges for the sake of idle cores. `slices`:
    into how many a task is cut that takes record after record; None: as there are idle cores.
    """

    spark: SparkSession
    records_per_range: int | None = RECORDS_PER_RANGE
    cores: int | None = None
    ranges_from_records: int = RANGES_FROM_RECORDS
    slices: int | None = None

    @property
    def concurrency(self) -> int:
        """See `StepRunner.concurrency`."""
        return self.cores or int(self.spark.sparkContext.defaultParallelism)

    def run(self, step: StepPlan, plan: Plan, on_progress: Callable[[Progress], None]) -> SparkResult:
        """Compute a step; returns when every task has ended, with the rows kept by Spark.

        Raises:
            SparkUnavailable: the executors lack something that the step needs; no task of it has begun.
        """
        with connect(step.where) as log:
            step = replace(step, where=reachable(log))
        equip(self.spark, step)
        return self.compute(step, plan, on_progress)

    def compute(self, step: StepPlan, plan: Plan, on_progress: Callable[[Progress], None]) -> SparkResult:
        """`run`, on executors that were equipped before."""
        done = threading.Event()
        frames = _Frames(self.spark, step, plan)
        watcher = threading.Thread(target=self._watch, args=(done, frames, on_progress), name="spark-progress", daemon=True)
        watcher.start()
        try:
            cores = self.concurrency
            least = self.ranges_from_records
            size, slices = self.records_per_range, self.slices
            stages = stages_of(step, plan, records_per_range=size, cores=cores, least=least, slices=slices)
            for stage, name in zip(stages, stage_names(stages), strict=True):
                frames.add(stage, name)
            ends = frames.ends()
            return SparkResult(step.where, frames.made, ends, frames.sliced, frames.stages_done())
        finally:
            done.set()
            watcher.join()

    def _watch(self, done: threading.Event, frames: _Frames, on_progress: Callable[[Progress], None]) -> None:
        tracker = self.spark.sparkContext.statusTracker()
        while not done.wait(WATCH_EVERY_S):
            for stage_id in tracker.getActiveStageIds():
                stage = tracker.getStageInfo(stage_id)
                if stage is not None:
                    on_progress(Progress(f"{frames.at}: tasks", stage.numCompletedTasks, stage.numTasks))


@dataclass(frozen=True, slots=True)
class SparkResult:
    """Computed frames of ROWS, one per stage, with executors; what executors write goes from them to the log."""

    where: str
    frames: list[DataFrame]
    ends: list[TaskEnd]
    sliced: list[bool]
    stages: list[StageDone]

    @property
    def results(self) -> int:
        """See `StepResult.results`."""
        bundles = (frame.filter(frame.kind == int(RowKind.SINK)) for frame in self.frames)
        return sum(row.records or 0 for each in bundles for row in each.selectExpr("sum(timestamp_ms) AS records").collect())

    def write(self, target: Target, kinds: frozenset[RowKind]) -> Written:
        """Have executors write the rows: changelogs from where they are, results after a shuffle by topic and partition.

        Of a task that was cut the changelogs go through that too: a partition has one writer.
        """
        from pyspark.sql.functions import lit

        in_place: list[DataFrame] = []
        shuffled: list[DataFrame] = []
        for number, (frame, is_sliced) in enumerate(zip(self.frames, self.sliced, strict=True)):
            staged = frame.withColumn("stage", lit(number))
            if RowKind.CHANGELOG in kinds and not is_sliced:
                in_place.append(staged.filter(staged.kind == int(RowKind.CHANGELOG)))
            others = kinds if is_sliced else kinds - {RowKind.CHANGELOG}
            if others:
                shuffled.append(staged.filter(staged.kind.isin([int(kind) for kind in others])))
        if target.tables:
            former = _frame(self.frames[0].sparkSession, former_rows(target.tables))
            shuffled.append(former.withColumn("stage", lit(-1)))  # before any row of the partition
        if shuffled:
            cores = self.frames[0].sparkSession.sparkContext.defaultParallelism
            in_place.append(_union(shuffled).repartition(cores, "name", "partition").sortWithinPartitions(*_BY_TOPIC))
        written = _union(in_place).mapInArrow(RowsToLog(self.where, target, unbundled), WRITTEN)
        return Written.of([written.toArrow()])

    def then(self, later: SparkResult) -> SparkResult:
        """See `StepResult.then`."""
        ends = later_ends(self.ends, later.ends)
        return SparkResult(self.where, self.frames + later.frames, ends, self.sliced + later.sliced, self.stages + later.stages)

    def release(self) -> None:
        """Let Spark forget the rows."""
        for frame in self.frames:
            frame.unpersist()


@dataclass(slots=True)
class _Frames:
    """The frames of a step, one per stage, kept by Spark; computed when they are first used."""

    spark: SparkSession
    step: StepPlan
    plan: Plan
    made: list[DataFrame] = field(default_factory=list)
    given: dict[Rows, list[DataFrame]] = field(default_factory=dict)
    sliced: list[bool] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    ways: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)
    at: str = "Spark"
    """The stage that is being computed, in words."""

    def add(self, stage: Stage, name: str) -> None:
        """Add the frame of a stage; of ranges whose times others want, and of one that is to be kept as `name`, compute it."""
        begun = time.monotonic()
        self.at = f"{stage.subtopology}, {stage.way}"
        kept = self.step.kept
        self.sliced.append(stage.slices > 1 or kept is not None)  # what is kept is read in other pieces than it was written
        self.stages.append(stage)
        self.ways.append(f"{stage.way}, kept" if kept is not None and kept.has(name) else stage.way)
        frame = self._input(stage).mapInArrow(Bundled(Costed(stage.work)), ROWS)
        self._give(stage, frame.persist() if kept is None else self._kept(kept, name, frame))
        self.seconds.append(time.monotonic() - begun)

    def _kept(self, kept: Kept, name: str, frame: DataFrame) -> DataFrame:
        path = kept.stage_path(name)
        if not kept.has(name):
            frame.write.mode("overwrite").options(**_KEPT).parquet(path)
        return self.spark.read.schema(ROWS).parquet(path)

    def _give(self, stage: Stage, frame: DataFrame) -> None:
        self.made.append(frame)
        in_time = frame
        if stage.is_ranged and any(kind is RowKind.REPARTITION for kind, _ in stage.gives):
            in_time = self._in_time(stage, frame)
        for kind, name in stage.gives:
            rows = (in_time if kind is RowKind.REPARTITION else frame).filter(f"kind = {int(kind)}")
            self.given.setdefault((kind, name), []).append(rows.filter(rows.name == name))

    def _input(self, stage: Stage) -> DataFrame:
        if not stage.takes:
            cores = self.spark.sparkContext.defaultParallelism
            slices = min(stage.count, SLICES_PER_CORE * cores) if stage.is_ranged else stage.count
            return self.spark.range(0, stage.count, 1, slices).selectExpr("CAST(id AS INT) AS partition")
        frames = [frame for wanted in stage.takes for frame in self.given[wanted]]
        if stage.slices > 1:
            first = f"partition * {stage.slices}"
            each = f"explode(sequence({first}, {first} + {stage.slices - 1}))"
            names = [each + " AS partition" if name == "partition" else name for name in frames[0].columns]
            frames = [frame.selectExpr(*names) for frame in frames]
        if stage.wakes:
            frames.append(_frame(self.spark, wake_rows(stage.wakes)))
        return _union(frames).repartition(stage.count, "partition").sortWithinPartitions(*stage.order)

    def _in_time(self, stage: Stage, frame: DataFrame) -> DataFrame:
        """Return the frame with the running maximum of time over the whole partition instead of that in each range."""
        from pyspark.sql.functions import broadcast, greatest, shiftright

        before = times_before(self.step, self.plan, stage, self._range_ends(stage, frame))
        rows = [(task, number, time_ms) for (task, number), time_ms in before.items()]
        times = broadcast(self.spark.createDataFrame(rows, "of_task INT, number BIGINT, before_ms BIGINT"))
        known = frame.join(times, (frame.task == times.of_task) & (shiftright(frame.seq, RANGE_SHIFT) == times.number))
        return known.withColumn("time_ms", greatest("time_ms", "before_ms")).select(frame.columns)

    def _range_ends(self, stage: Stage, frame: DataFrame) -> list[tuple[int, int, RangeEnd]]:
        rows = frame.filter(f"kind = {int(RowKind.RANGE)}")
        found = rows.filter(rows.name == stage.subtopology).select("task", "seq", "value").collect()
        return [(row.task, row.seq >> RANGE_SHIFT, decode_range_end(bytes(row.value))) for row in found]

    def ends(self) -> list[TaskEnd]:
        """Compute everything; return the ends of all tasks."""
        found = []
        for number, (stage, frame) in enumerate(zip(self.stages, self.made, strict=True)):
            begun = time.monotonic()
            self.at = f"{stage.subtopology}, {stage.way}"
            rows = frame.filter(f"kind IN ({int(RowKind.END)}, {int(RowKind.COST)})").select("kind", "value").collect()
            found += [decode_end(bytes(row.value)) for row in rows if row.kind == RowKind.END]
            self.costs.append(cost_of(bytes(row.value) for row in rows if row.kind == RowKind.COST))
            self.seconds[number] += time.monotonic() - begun
        self.at = "hand-over"
        return joined_ends(found)

    def stages_done(self) -> list[StageDone]:
        """Return what was computed, and in what time."""
        found = zip(self.stages, self.ways, self.seconds, self.costs, strict=True)
        return [StageDone(stage.subtopology, way, stage.count, seconds, cost) for stage, way, seconds, cost in found]


def _frame(spark: SparkSession, rows: Any) -> DataFrame:
    """Return an Arrow batch of ROWS as a frame."""
    import pyarrow as pa

    return spark.createDataFrame(pa.Table.from_batches([rows]))


def _union(frames: list[DataFrame]) -> DataFrame:
    return reduce(lambda one, other: one.union(other), frames)
