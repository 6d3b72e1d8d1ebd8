"""A step whose tasks write what they compute themselves, into the one transaction of its hand-over: nothing goes through Spark.

Only where that is as safe as to compute first and write then:
- the step is one stage that nothing is shuffled for, and each task writes the partitions of its own number, so that a partition
  has one writer. Keys that lie elsewhere than Kafka's partitioner puts them show while it runs;
- it is short (`AT_ONCE_RECORDS`), because the transaction is open meanwhile;
- dead letters, which may belong to any partition of their topic, are so few that the driver can write them.
What a task cannot write so, or one that runs a second time, makes all of it void: the step is computed and written in the
ordinary way, which knows how to go on from there (`handover.compute_into`). What ends the application, as a record at which it
stops, ends it here: the other way would meet it too.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from logflume.log import InvalidInput
from logflume.streams.seams import Plan

from .bundles import BUNDLED, packed, unpacked
from .costs import Costed, cost_of
from .replay import joined_ends
from .rows import RowKind, decode_end, row_of_bytes
from .stages import Stage
from .steps import StageDone, StepPlan, StepWritten, TaskRunner
from .writing import RowsToLog, Run, Target, Written

AT_ONCE_RECORDS = 10_000_000
"""What one core takes at the most, in offsets: some seconds, or minutes with dear functions of the user."""
LETTERS_BYTES = 16 << 20
"""What all tasks together give the driver at the most."""


def fits_at_once(stages: Sequence[Stage], step: StepPlan, plan: Plan, cores: int, most: int) -> bool:
    """Return whether the tasks of a step write what they compute; `most`: see AT_ONCE_RECORDS."""
    if len(stages) > 1 or step.kept is not None or step.state_root is not None or step.starts:
        return False
    (stage,) = stages
    sub = next(sub for sub in plan.subtopologies if sub.name == stage.subtopology)
    by_task: Counter[int] = Counter()
    for tp, whole in step.ranges.items():
        by_task[tp.partition] += len(whole)
    longest = max(by_task.total() / cores, *by_task.values(), 0)
    is_alone = isinstance(stage.work, TaskRunner) and stage.slices == 1 and not stage.takes and not stage.gives
    results = {out.topic for out in sub.outputs.values()}
    stays = step.dead_letter_topic not in results and all(step.partitions[topic] == stage.count for topic in results)
    return is_alone and longest <= most and stays


@dataclass(frozen=True, slots=True)
class WrittenAtOnce:
    """Maps over Arrow batches what `work` maps; records of results and changelogs go to the log, other rows come out.

    The last row says what was written. `letters`: the topic of dead letters, of which a task gives so many bytes at the most.
    """

    work: Callable[[Iterator[Any]], Generator[Any]]
    where: str
    target: Target
    letters: str | None
    letters_max_bytes: int

    @classmethod
    def of(cls, stage: Stage, where: str, target: Target) -> WrittenAtOnce:
        """Let a stage write what it computes."""
        letters = stage.work.step.dead_letter_topic
        return cls(Costed(stage.work), where, target, letters, LETTERS_BYTES // stage.count)

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        others: list[Any] = []
        to_log = RowsToLog(self.where, self.target, partial(self._runs, others))
        with closing(self.work(batches)) as rows:  # what stops early lets go of the log at once
            written = [row_of_bytes(RowKind.WRITTEN, "", 0, packed(said)) for said in to_log(rows)]
        yield from others + written

    def _runs(self, others: list[Any], batches: Iterable[Any]) -> Iterator[Run]:
        """Yield the records of a task, which are all of its own partition; put other rows aside.

        Raises:
            InvalidInput: a key belongs elsewhere (records without one stay with the task), it takes too long, or too many records
                are left out.
        """
        import pyarrow.compute as pc

        letters_bytes = 0
        for batch in batches:
            kind, name, task = (batch.column(each)[0].as_py() for each in ("kind", "name", "task"))
            if kind not in BUNDLED:
                others.append(batch)
                continue
            if time.time() > self.target.until_s:
                raise InvalidInput("it takes longer than a transaction should be open")
            if name == self.letters:
                letters = packed(batch.select(_LETTER))
                letters_bytes += len(letters)
                if letters_bytes > self.letters_max_bytes:
                    raise InvalidInput(f"there are too many dead letters of partition {task} for the driver to write them")
                others.append(row_of_bytes(RowKind.LETTERS, name, 0, letters))
                continue
            elsewhere = pc.not_equal(batch.column("partition"), task)
            if pc.any(pc.and_(elsewhere, batch.column("key").is_valid())).as_py():
                raise InvalidInput(f"records of partition {task} have keys that belong elsewhere in {name!r}")
            yield RowKind(kind), name, task, batch


_LETTER = ["key", "value", "timestamp_ms", "headers"]
_KINDS = (RowKind.END, RowKind.COST, RowKind.WRITTEN, RowKind.LETTERS)


def step_written(stage: Stage, said: Sequence[tuple[RowKind, bytes]], seconds: float) -> StepWritten:
    """Return what came of it. `said`: the rows that came out, as kinds and values."""
    of_kind = {wanted: [value for kind, value in said if kind is wanted] for wanted in _KINDS}
    ends = joined_ends(map(decode_end, of_kind[RowKind.END]))
    done = StageDone(stage.subtopology, f"{stage.way}, written at once", stage.count, seconds, cost_of(of_kind[RowKind.COST]))
    letters = [unpacked(value) for value in of_kind[RowKind.LETTERS]]
    return StepWritten(ends, [done], Written.of(map(unpacked, of_kind[RowKind.WRITTEN])), letters)
