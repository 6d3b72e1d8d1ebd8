"""Runs steps on Spark: stages as passes over rows, each partition of a pass in a Python worker, shuffles in between."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from logflume.log import connect
from logflume.streams.seams import Plan

from .at_once import AT_ONCE_RECORDS, WrittenAtOnce, fits_at_once, step_written
from .bundles import Bundled, Spread, passed_bytes, unbundled
from .costs import Cost, Costed, cost_of
from .executors import equip, meanwhile, warned_of_no_executors
from .failures import failures_of, unless_gone
from .kept import Kept, stage_names
from .looks import Looks
from .partials import RangeEnd, decode_range_end
from .ranges import reachable
from .replay import TaskEnd, joined_ends, later_ends
from .rows import RANGE_SHIFT, ROWS, RowKind, decode_end, former_rows, wake_rows
from .sharing import READER, SHARED_ROWS, JobStage, Shared, SharedRunner, kept_apart, share
from .stages import Rows, Stage, stages_of, times_before
from .steps import Progress, StageDone, StepPlan, StepWritten
from .writing import WRITTEN, RowsToLog, Target, Written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WATCH_EVERY_S = 0.5
RECORDS_PER_RANGE = 1_000_000
RANGES_FROM_RECORDS = 5_000_000
IN_PLACE_FROM_ROWS = 100_000
SLICES_PER_CORE = 4
"""Ranges are dealt to at most so many Spark tasks per core: each prepares the program once."""
_ROWS_BETWEEN = {f"parquet.page.size.row.check.{each}": str(rows) for each, rows in (("min", 1), ("max", 10))}
_KEPT = {"parquet.block.size": str(16 << 20), **_ROWS_BETWEEN}
"""Spark reads up to a whole row group at a time, and a row may be a bundle: so sizes are looked at every few rows, not 10,000."""
Place = tuple[str, int]
"""A topic and a partition."""
_BY_TOPIC = ("name", "partition", "stage", "task", "seq")


@dataclass(frozen=True, slots=True)
class SparkRunner:
    """The `StepRunner` of a Spark session.

    `records_per_range`: offsets that one pass over a range takes; None: no ranges. `cores`: how many tasks run at a time;
    None: as Spark says. `ranges_from_records`: a shorter history is not cut into ranges for the sake of idle cores. `slices`:
    into how many a task is cut that takes record after record; None: as there are idle cores. `in_place_from_rows`: with fewer,
    it is not looked which results can be written from where they are. `at_once_records`: see `fits_at_once`.
    """

    spark: SparkSession
    records_per_range: int | None = RECORDS_PER_RANGE
    cores: int | None = None
    ranges_from_records: int = RANGES_FROM_RECORDS
    slices: int | None = None
    in_place_from_rows: int = IN_PLACE_FROM_ROWS
    at_once_records: int = AT_ONCE_RECORDS
    looks: Looks = field(default_factory=Looks)

    @property
    def concurrency(self) -> int:
        """See `StepRunner.concurrency`."""
        return self.cores or int(self.spark.sparkContext.defaultParallelism)

    def run(self, step: StepPlan, plan: Plan, on_progress: Callable[[Progress], None]) -> SparkResult:
        """Compute a step; returns when every task has ended, with the rows kept by Spark.

        Raises:
            SparkUnavailable: the executors lack something that the step needs; no task of it has begun.
        """
        return self.run_together([(step, plan)], on_progress)[0]

    def run_together(self, jobs: Sequence[tuple[StepPlan, Plan]], on_progress: Callable[[Progress], None]) -> list[SparkResult]:
        """See `StepRunner.run_together`. Raises as `run`."""
        with connect(jobs[0][0].where) as log:
            where = reachable(log)
        sent = [(replace(step, where=where), plan) for step, plan in jobs]
        for step, _ in sent:
            equip(self.spark, step)
        return self._compute(sent, on_progress)

    def compute(self, step: StepPlan, plan: Plan, on_progress: Callable[[Progress], None]) -> SparkResult:
        """`run`, on executors that were equipped before."""
        return self._compute([(step, plan)], on_progress)[0]

    def _compute(self, jobs: Sequence[tuple[StepPlan, Plan]], on_progress: Callable[[Progress], None]) -> list[SparkResult]:
        at = _At()
        what = f"computed {', '.join(repr(plan.application) for _, plan in jobs)}"
        with (
            failures_of(self.spark, what),
            warned_of_no_executors(self.spark),
            self._watched(at, on_progress),
            ExitStack() as made,
        ):
            staged, readings = share([self.stages(step, plan) for step, plan in jobs], self.concurrency)
            frames = [_Frames(self.spark, step, plan, at) for step, plan in jobs]
            for own in frames:
                made.callback(_forget, own.made)
            names = [stage_names(stages, is_bundled=True) for stages in staged]
            shared = self._shared(readings, frames, staged, names)
            made.callback(_forget, shared.frames)
            for number, (own, stages) in enumerate(zip(frames, staged, strict=True)):
                for place, (stage, name) in enumerate(zip(stages, names[number], strict=True)):
                    own.add(stage, name, shared.by_place.get((number, place)))
            results = [self._result(own) for own in frames]
            results[-1].read_once.extend(shared.frames)
            made.pop_all()  # from here on they are the results'
            return results

    def writes_at_once(self, step: StepPlan, plan: Plan) -> bool:
        """See `StepRunner.writes_at_once`."""
        return fits_at_once(self.stages(step, plan), step, plan, self.concurrency, self.at_once_records)

    def run_at_once(self, step: StepPlan, plan: Plan, target: Target, on_progress: Callable[[Progress], None]) -> StepWritten:
        """See `StepRunner.run_at_once`. Raises as `run`."""
        with connect(step.where) as log:
            sent = replace(step, where=reachable(log))
        equip(self.spark, sent)
        (stage,) = self.stages(sent, plan)
        begun, at = time.monotonic(), _At(f"{stage.subtopology}, {stage.way}")
        with (
            failures_of(self.spark, f"computed {plan.application!r}"),
            warned_of_no_executors(self.spark),
            self._watched(at, on_progress),
        ):
            work = WrittenAtOnce.of(stage, sent.where, target)
            rows = _numbers(self.spark, stage).mapInArrow(work, ROWS).select("kind", "value").collect()
        said = [(RowKind(row.kind), bytes(row.value)) for row in rows]
        return step_written(stage, said, time.monotonic() - begun)

    def stages(self, step: StepPlan, plan: Plan) -> list[Stage]:
        """Return the stages as which a step is computed here."""
        size, least = self.records_per_range, self.ranges_from_records
        cores, slices = self.concurrency, self.slices
        return stages_of(step, plan, records_per_range=size, cores=cores, least=least, slices=slices, look=self.looks)

    def _shared(
        self,
        readings: Sequence[Shared],
        jobs: Sequence[_Frames],
        staged: Sequence[Sequence[Stage]],
        names: Sequence[Sequence[str]],
    ) -> _SharedFrames:
        """Return the frames of stages that share a reading."""

        def is_kept(place: JobStage) -> bool:
            kept = jobs[place[0]].step.kept
            return kept is not None and kept.has(names[place[0]][place[1]])

        found = _SharedFrames()
        for each in kept_apart(readings, is_kept):
            stages = [staged[number][place] for number, place in each.places]
            numbers = _numbers(self.spark, stages[0], each.tasks)
            frame = numbers.mapInArrow(SharedRunner.of(stages, each.tasks), SHARED_ROWS).persist()
            found.frames.append(frame)
            for reader, place in enumerate(each.places):
                found.by_place[place] = frame.filter(frame[READER] == reader).drop(READER)
        return found

    def _result(self, frames: _Frames) -> SparkResult:
        ends = frames.ends()
        done = frames.stages_done()
        is_large = sum(stage.cost.rows for stage in done) >= self.in_place_from_rows
        return SparkResult(frames.step.where, frames.made, ends, frames.sliced, done, looks_at_places=is_large)

    def _watched(self, at: _At, on_progress: Callable[[Progress], None]) -> AbstractContextManager[None]:
        """Tell how far the stages are that run in the context."""
        return meanwhile("spark-progress", lambda done: self._watch(done, at, on_progress))

    def _watch(self, done: threading.Event, at: _At, on_progress: Callable[[Progress], None]) -> None:
        with unless_gone():
            tracker = self.spark.sparkContext.statusTracker()
            while not done.wait(WATCH_EVERY_S):
                for stage_id in tracker.getActiveStageIds():
                    stage = tracker.getStageInfo(stage_id)
                    if stage is not None:
                        on_progress(Progress(f"{at.stage}: tasks", stage.numCompletedTasks, stage.numTasks))


@dataclass(frozen=True, slots=True)
class _Place:
    """A partition of a topic of results: how many records, and whether one task holds all of them in their order."""

    records: int
    is_together: bool


@dataclass(slots=True)
class SparkResult:
    """Computed frames of ROWS, one per stage, with executors; what executors write goes from them to the log.

    `read_once`: frames that these, and those of results before, are parts of.
    `looks_at_places`: whether results are so many that it is worth a look which of them are written from where they are.
    """

    where: str
    frames: list[DataFrame]
    ends: list[TaskEnd]
    sliced: list[bool]
    stages: list[StageDone]
    looks_at_places: bool
    read_once: list[DataFrame] = field(default_factory=list)
    _places: Mapping[Place, _Place] | None = None

    @property
    def results(self) -> int:
        """See `StepResult.results`."""
        return sum(place.records for place in self._by_place().values())

    def _by_place(self) -> Mapping[Place, _Place]:
        if self._places is None:
            self._places = self._look()
        return self._places

    def _look(self) -> Mapping[Place, _Place]:
        """Return what there is of each partition; what a task was cut into is not together."""
        writers = []
        for number, (frame, is_sliced) in enumerate(zip(self.frames, self.sliced, strict=True)):
            writer = f"shiftleft({number}L, 32) + spark_partition_id() AS writer"
            bundles = frame.filter(f"kind = {int(RowKind.SINK)}")
            writers.append(bundles.selectExpr("name", "partition", "timestamp_ms", writer, f"{is_sliced} AS is_sliced"))
        found = _union(writers).groupBy("name", "partition")
        together = "min(writer) = max(writer) AND NOT bool_or(is_sliced)"
        places = found.agg(*_sql_columns("sum(timestamp_ms) AS records", f"{together} AS is_together"))
        with failures_of(places.sparkSession, "counted the results"):
            rows = places.collect()
        return {(row.name, row.partition): _Place(row.records, row.is_together) for row in rows}

    def write(self, target: Target, kinds: frozenset[RowKind]) -> Written:
        """Have executors write the rows.

        Changelogs are written from where they are, and results of a partition that are together there; other results after a
        shuffle by topic and partition. Of a task that was cut the changelogs go through that too: a partition has one writer.
        """
        in_place: list[DataFrame] = []
        shuffled: list[DataFrame] = []
        together: list[Place] = []
        if self.looks_at_places and RowKind.SINK in kinds and not target.tables:
            together = [at for at, place in self._by_place().items() if place.is_together]
        changelogs, results = (f"kind = {int(kind)}" for kind in (RowKind.CHANGELOG, RowKind.SINK))
        for number, (frame, is_sliced) in enumerate(zip(self.frames, self.sliced, strict=True)):
            staged = frame.selectExpr("*", f"{number} AS stage")
            wanted = " OR ".join(f"kind = {int(kind)}" for kind in sorted(kinds))
            here = "false" if is_sliced else f"{changelogs} OR ({results} AND ({_is_at(together)}))"
            if not is_sliced and (together or RowKind.CHANGELOG in kinds):
                in_place.append(staged.filter(f"({wanted}) AND ({here})"))
            if is_sliced or kinds != {RowKind.CHANGELOG}:
                shuffled.append(staged.filter(f"({wanted}) AND NOT ({here})"))
        if target.tables:
            former = _frame(self.frames[0].sparkSession, former_rows(target.tables))
            shuffled.append(former.selectExpr("*", "-1 AS stage"))  # before any row of the partition
        is_whole = bool(together) and len(together) == len(self._by_place()) and not any(self.sliced)
        if shuffled and not is_whole:
            cores = self.frames[0].sparkSession.sparkContext.defaultParallelism
            in_place.append(_union(shuffled).repartition(cores, "name", "partition").sortWithinPartitions(*_BY_TOPIC))
        written = _union(in_place).mapInArrow(RowsToLog(self.where, target, unbundled), WRITTEN)
        with failures_of(written.sparkSession, "written the results"):
            return Written.of([written.toArrow()])

    def then(self, later: SparkResult) -> SparkResult:
        """See `StepResult.then`."""
        return SparkResult(
            self.where,
            self.frames + later.frames,
            later_ends(self.ends, later.ends),
            self.sliced + later.sliced,
            self.stages + later.stages,
            self.looks_at_places or later.looks_at_places,
            self.read_once + later.read_once,
        )

    def release(self) -> None:
        """Let Spark forget the rows."""
        _forget(self.frames + self.read_once)


def _forget(frames: Sequence[DataFrame]) -> None:
    """Let Spark forget frames; waits for executors: what they still say when a session stops is a page of Java's errors."""
    with unless_gone():
        for frame in frames:
            frame.unpersist(blocking=True)


@dataclass(slots=True)
class _At:
    """The stage that is being computed, in words."""

    stage: str = "Spark"


@dataclass(slots=True)
class _SharedFrames:
    """Frames that hold the rows of several stages, and the part of each."""

    frames: list[DataFrame] = field(default_factory=list)
    by_place: dict[JobStage, DataFrame] = field(default_factory=dict)


@dataclass(slots=True)
class _Frames:
    """The frames of a step, one per stage, kept by Spark; computed when they are first used."""

    spark: SparkSession
    step: StepPlan
    plan: Plan
    at: _At
    made: list[DataFrame] = field(default_factory=list)
    given: dict[Rows, list[DataFrame]] = field(default_factory=dict)
    sliced: list[bool] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    ways: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)

    def add(self, stage: Stage, name: str, shared: DataFrame | None) -> None:
        """Add the frame of a stage; of ranges whose times others want, and of one that is to be kept as `name`, compute it.

        `shared`: its part of what is read once for several.
        """
        begun = time.monotonic()
        self.at.stage = f"{stage.subtopology}, {stage.way}"
        kept = self.step.kept
        self.sliced.append(stage.slices > 1 or kept is not None)  # what is kept is read in other pieces than it was written
        self.stages.append(stage)
        is_kept = kept is not None and kept.has(name)
        self.ways.append(f"{stage.way}{', kept' if is_kept else ''}{', read once with others' if shared is not None else ''}")
        frame = self._input(stage).mapInArrow(_mapped(stage), ROWS) if shared is None else shared
        if kept is not None:
            frame = self._kept(kept, name, frame)
        elif shared is None:
            frame = frame.persist()
        self._give(stage, frame)
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
            return _numbers(self.spark, stage)
        frames = [frame for wanted in stage.takes for frame in self.given[wanted]]
        if stage.slices > 1:
            first = f"partition * {stage.slices}"
            each = f"explode(sequence({first}, {first} + {stage.slices - 1}))"
            names = [each + " AS partition" if name == "partition" else name for name in frames[0].columns]
            frames = [frame.selectExpr(*names) for frame in frames]
        if stage.wakes:
            frames.append(_frame(self.spark, wake_rows(stage.wakes)))
        return _union(frames).repartitionById(stage.count, "partition").sortWithinPartitions(*stage.order)

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
            self.at.stage = f"{stage.subtopology}, {stage.way}"
            rows = frame.filter(f"kind IN ({int(RowKind.END)}, {int(RowKind.COST)})").select("kind", "value").collect()
            found += [decode_end(bytes(row.value)) for row in rows if row.kind == RowKind.END]
            self.costs.append(cost_of(bytes(row.value) for row in rows if row.kind == RowKind.COST))
            self.seconds[number] += time.monotonic() - begun
        self.at.stage = "hand-over"
        return joined_ends(found)

    def stages_done(self) -> list[StageDone]:
        """Return what was computed, and in what time."""
        found = zip(self.stages, self.ways, self.seconds, self.costs, strict=True)
        return [StageDone(stage.subtopology, way, stage.count, seconds, cost) for stage, way, seconds, cost in found]


def _mapped(stage: Stage) -> Bundled:
    """Return what is mapped over the rows of a stage."""
    return Bundled(Costed(Spread(stage.work) if stage.takes else stage.work), passed_bytes(stage.tasks))


def _numbers(spark: SparkSession, stage: Stage, tasks: int = 1) -> DataFrame:
    """Return what a stage is given that takes no rows; `tasks`: to how many each of its own is dealt."""
    cores, count = spark.sparkContext.defaultParallelism, stage.count * tasks
    slices = min(count, SLICES_PER_CORE * cores) if stage.is_ranged else count
    return spark.range(0, count, 1, slices).selectExpr("CAST(id AS INT) AS partition")


def _frame(spark: SparkSession, rows: Any) -> DataFrame:
    """Return an Arrow batch of ROWS as a frame."""
    import pyarrow as pa

    return spark.createDataFrame(pa.Table.from_batches([rows]))


def _sql_columns(*expressions: str) -> list[Any]:
    from pyspark.sql.functions import expr

    return [expr(each) for each in expressions]


def _is_at(places: Iterable[Place]) -> str:
    """Return the condition of rows that are of these partitions."""
    by_name: dict[str, list[int]] = {}
    for name, partition in places:
        by_name.setdefault(name, []).append(partition)
    each = [f"name = '{name}' AND partition IN ({', '.join(map(str, numbers))})" for name, numbers in by_name.items()]
    return " OR ".join(f"({one})" for one in each) or "false"


def _union(frames: list[DataFrame]) -> DataFrame:
    return reduce(lambda one, other: one.union(other), frames)
