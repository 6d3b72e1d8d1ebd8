"""Runs steps in this process, one stage after another, without Spark: for a history that one core can take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from logflume.streams.seams import Plan

from .at_once import AT_ONCE_RECORDS, WrittenAtOnce, fits_at_once, step_written
from .costs import Costed, cost_of
from .kept import stage_names
from .partials import decode_range_end
from .replay import TaskEnd, joined_ends, later_ends
from .rows import RANGE_SHIFT, RowKind, decode_end, former_rows, wake_rows
from .sharing import JobStage, SharedRunner, kept_apart, share
from .stages import Rows, Stage, stages_of, times_before
from .steps import Progress, StageDone, StepPlan, StepWritten
from .writing import RowsToLog, Target, Written, plain_runs


@dataclass(slots=True)
class LocalResult:
    """Rows in memory: `parts` has those of sinks and changelogs, task by task."""

    where: str
    ends: list[TaskEnd]
    parts: list[Any]
    stages: list[StageDone] = field(default_factory=list)

    @property
    def results(self) -> int:
        """See `StepResult.results`."""
        return sum(part.num_rows for part in self.parts if part.column("kind")[0].as_py() == RowKind.SINK)

    def write(self, target: Target, kinds: frozenset[RowKind]) -> Written:
        """Write those of these kinds to the log."""
        wanted = [part for part in self.parts if part.column("kind")[0].as_py() in kinds]
        former = [former_rows(target.tables)] if target.tables else []
        return Written.of(RowsToLog(self.where, target, plain_runs)(iter(former + wanted)))

    def then(self, later: LocalResult) -> LocalResult:
        """See `StepResult.then`."""
        ends, parts = later_ends(self.ends, later.ends), self.parts + later.parts
        return LocalResult(self.where, ends, parts, self.stages + later.stages)

    def release(self) -> None:
        """Forget the rows."""
        self.parts.clear()


@dataclass(frozen=True, slots=True)
class LocalRunner:
    """The `StepRunner` without Spark. All rows that leave tasks are held in memory.

    `records_per_range` None: record after record, which is the faster way for one process. `slices`: into how many each task is
    cut, where it can be; to compare, they run one after another. `at_once_records`: see `fits_at_once`.
    """

    records_per_range: int | None = None
    slices: int = 1
    at_once_records: int = AT_ONCE_RECORDS

    @property
    def concurrency(self) -> int:
        """See `StepRunner.concurrency`."""
        return 1

    def run(self, step: StepPlan, plan: Plan, on_progress: Callable[[Progress], None]) -> LocalResult:
        """Compute a step."""
        return self.run_together([(step, plan)], on_progress)[0]

    def run_together(self, jobs: Sequence[tuple[StepPlan, Plan]], on_progress: Callable[[Progress], None]) -> list[LocalResult]:
        """See `StepRunner.run_together`."""
        staged, readings = share([self._stages(*job) for job in jobs], self.concurrency)
        names = [stage_names(stages, is_bundled=False) for stages in staged]
        tables = [Tables(step, plan) for step, plan in jobs]

        def is_kept(at: JobStage) -> bool:
            kept = jobs[at[0]][0].kept
            return kept is not None and kept.has(names[at[0]][at[1]])

        done: dict[JobStage, StageDone] = {}
        for each in kept_apart(readings, is_kept):
            done |= self._run_shared(each.places, staged, names, tables, on_progress)
        for number, (own, stages) in enumerate(zip(tables, staged, strict=True)):
            of_it = {place: each for (job, place), each in done.items() if job == number}
            self._run_rest(own, stages, names[number], of_it, on_progress)
            own.result.ends = joined_ends(own.result.ends)
        return [own.result for own in tables]

    def writes_at_once(self, step: StepPlan, plan: Plan) -> bool:
        """See `StepRunner.writes_at_once`."""
        return fits_at_once(self._stages(step, plan), step, plan, 1, self.at_once_records)

    def run_at_once(self, step: StepPlan, plan: Plan, target: Target, on_progress: Callable[[Progress], None]) -> StepWritten:
        """See `StepRunner.run_at_once`."""
        begun, said = time.monotonic(), []
        (stage,) = self._stages(step, plan)
        for number, batch in enumerate(Tables(step, plan).input(stage), 1):
            for rows in WrittenAtOnce.of(stage, step.where, target)(iter([batch])):
                kinds, values = (rows.column(name).to_pylist() for name in ("kind", "value"))
                said += [(RowKind(kind), value) for kind, value in zip(kinds, values, strict=True)]
            on_progress(Progress(f"{stage.subtopology}: tasks", number, stage.count))
        return step_written(stage, said, time.monotonic() - begun)

    def _stages(self, step: StepPlan, plan: Plan) -> list[Stage]:
        return stages_of(step, plan, records_per_range=self.records_per_range, cores=None, slices=self.slices)

    def _run_shared(
        self,
        places: Sequence[JobStage],
        staged: Sequence[Sequence[Stage]],
        names: Sequence[Sequence[str]],
        tables: Sequence[Tables],
        on_progress: Callable[[Progress], None],
    ) -> dict[JobStage, StageDone]:
        """Run stages that share a reading; return what was done by place."""
        begun = time.monotonic()
        stages = [staged[number][place] for number, place in places]
        with ExitStack() as stack:
            keep = [stack.enter_context(_keeping(tables[number].step, names[number][place])) for number, place in places]
            for number, (reader, batch) in enumerate(SharedRunner.of(stages).rows(range(stages[0].count)), 1):
                keep[reader](batch)
                tables[places[reader][0]].add(batch)
                on_progress(Progress(f"{stages[reader].subtopology}: blocks of rows", number, 0))
        seconds, done = time.monotonic() - begun, {}
        for stage, place in zip(stages, places, strict=True):
            own = tables[place[0]]
            own.finish(stage)
            way, cost = f"{stage.way}, read once with others", cost_of(own.take_costs())
            done[place] = StageDone(stage.subtopology, way, stage.count, seconds, cost)
        return done

    def _run_rest(
        self,
        tables: Tables,
        stages: Sequence[Stage],
        names: Sequence[str],
        done: Mapping[int, StageDone],
        on_progress: Callable[[Progress], None],
    ) -> None:
        """Run the stages of a step that are not done."""
        kept = tables.step.kept
        for place, (stage, name) in enumerate(zip(stages, names, strict=True)):
            if place in done:
                tables.result.stages.append(done[place])
                continue
            begun = time.monotonic()
            is_kept = kept is not None and kept.has(name)
            rows = kept.load(name) if kept is not None and is_kept else Costed(stage.work)(tables.input(stage))
            with nullcontext(_pass_by) if is_kept else _keeping(tables.step, name) as keep:
                for number, batch in enumerate(rows, 1):
                    keep(batch)
                    tables.add(batch)
                    on_progress(Progress(f"{stage.subtopology}: blocks of rows", number, 0))
            tables.finish(stage)
            way, cost = f"{stage.way}{', kept' if is_kept else ''}", cost_of(tables.take_costs())
            tables.result.stages.append(StageDone(stage.subtopology, way, stage.count, time.monotonic() - begun, cost))


def _keeping(step: StepPlan, name: str) -> AbstractContextManager[Callable[[Any], None]]:
    """Give what is done with each batch of a stage beside its use."""
    return nullcontext(_pass_by) if step.kept is None else step.kept.keeping(name)


def _pass_by(_: Any) -> None:
    """Do nothing."""


@dataclass(slots=True)
class Tables:
    """Rows on their way from stage to stage."""

    step: StepPlan
    plan: Plan
    given: dict[Rows, list[Any]] = field(default_factory=dict)
    costs: list[bytes] = field(default_factory=list)
    result: LocalResult = field(init=False)

    def __post_init__(self) -> None:
        self.result = LocalResult(self.step.where, [], [])

    def input(self, stage: Stage) -> Iterator[Any]:
        """Yield the rows that a stage takes, as Arrow batches."""
        import pyarrow as pa

        if not stage.takes:
            for number in range(stage.count):
                yield pa.RecordBatch.from_pydict({"partition": pa.array([number], pa.int32())})
            return
        take = self.given.get if stage.is_ahead else self.given.pop
        taken = [batch for wanted in stage.takes for batch in take(wanted, [])]
        parts = [part for batch in taken for part in sliced(batch, stage.slices)]
        if stage.wakes:
            parts.append(wake_rows(stage.wakes))
        if parts:
            table = pa.Table.from_batches(parts)
            yield from table.sort_by([(name, "ascending") for name in stage.order]).to_batches()

    def add(self, batch: Any) -> None:
        """Keep what a stage has put out."""
        kind, name = RowKind(batch.column("kind")[0].as_py()), batch.column("name")[0].as_py()
        if kind is RowKind.END:
            self.result.ends.extend(decode_end(value) for value in batch.column("value").to_pylist())
        elif kind is RowKind.COST:
            self.costs.extend(batch.column("value").to_pylist())
        elif kind in (RowKind.SINK, RowKind.CHANGELOG):
            self.result.parts.append(batch)
        else:
            self.given.setdefault((kind, name), []).append(batch)

    def take_costs(self) -> list[bytes]:
        """Return what tasks have told of their cost since the last call."""
        taken, self.costs = self.costs, []
        return taken

    def finish(self, stage: Stage) -> None:
        """Put right the times of rows for repartition topics, once all ranges of a stage are known."""
        if not stage.is_ranged:
            return
        ends = [
            (batch.column("task")[0].as_py(), batch.column("seq")[0].as_py() >> RANGE_SHIFT, value)
            for batch in self.given[RowKind.RANGE, stage.subtopology]
            for value in (decode_range_end(batch.column("value")[0].as_py()),)
        ]
        before = times_before(self.step, self.plan, stage, ends)
        for kind, name in stage.gives:
            if kind is RowKind.REPARTITION:
                self.given[kind, name] = [_in_time(batch, before) for batch in self.given.get((kind, name), [])]


def sliced(batch: Any, slices: int) -> list[Any]:
    """Return rows for each slice of the tasks that they are for."""
    import pyarrow as pa

    if slices == 1:
        return [batch]
    place = batch.schema.get_field_index("partition")
    first = batch.column("partition").to_numpy() * slices
    return [batch.set_column(place, "partition", pa.array(first + at, pa.int32())) for at in range(slices)]


def _in_time(batch: Any, before: Any) -> Any:
    """Return a batch of one range with the running maximum of time over the whole partition."""
    import pyarrow as pa

    of = batch.column("task")[0].as_py(), batch.column("seq")[0].as_py() >> RANGE_SHIFT
    times = np.maximum(batch.column("time_ms").to_numpy(), before[of])
    place = batch.schema.get_field_index("time_ms")
    return batch.set_column(place, "time_ms", pa.array(times, pa.int64()))
