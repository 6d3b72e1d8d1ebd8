"""One reading for several applications: stages of theirs that read the same ranges run side by side on the same chunks.

Each keeps its own program, stores, times and order of inputs, so that what comes of it is what comes of it alone. What they share
is the chunk: fetched, checked and decompressed once. They take turns, chunk by chunk, so that hardly more than one is held.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import tee
from typing import Any

from logflume.log import Chunk, Log, connect
from logflume.streams.seams import Plan

from .bundles import bundled
from .costs import Meter
from .ranges import OffsetRange
from .rows import ROWS
from .stages import Stage
from .steps import Paced, RangeRunner, Read, TaskRunner, passing_told

READER = "reader"
SHARED_ROWS = f"{ROWS}, {READER} INT"
JobStage = tuple[int, int]
"""An application, by its number, and one of its stages."""


def shared_places(jobs: Sequence[tuple[Plan, Sequence[Stage]]]) -> list[tuple[JobStage, ...]]:
    """Return which stages of several applications read the same; a reading has one stage of each of its applications."""
    found: dict[Hashable, list[JobStage]] = {}
    for number, (plan, stages) in enumerate(jobs):
        seen: set[Hashable] = set()
        for place, stage in enumerate(stages):
            what = _what_it_reads(plan, stage)
            if what is not None and what not in seen:
                seen.add(what)
                found.setdefault(what, []).append((number, place))
    return [tuple(places) for places in found.values() if len(places) > 1]


def _what_it_reads(plan: Plan, stage: Stage) -> Hashable | None:
    """Return what a stage reads of the log, the same for stages whose tasks of one number read the same; None: rows of others."""
    if stage.takes:
        return None
    if isinstance(stage.work, RangeRunner):
        return stage.work.ranges
    sub = next(sub for sub in plan.subtopologies if sub.name == stage.subtopology)
    topics = frozenset(sub.program.sources.values())
    wanted = frozenset(whole for tp, whole in stage.work.step.ranges.items() if tp.topic in topics)
    return topics, wanted, stage.count, stage.slices


@dataclass(slots=True)
class Reading:
    """Ranges that several read at the same time, each fetched once; what one has taken before the others waits for them."""

    read: Read
    readers: int
    _taken: dict[OffsetRange, tuple[Iterator[Chunk], ...]] = field(default_factory=dict)

    def of(self, reader: int) -> Read:
        """Return what one of them reads with; each range once."""

        def chunks(log: Log, wanted: OffsetRange) -> Iterator[Chunk]:
            if wanted not in self._taken:
                self._taken[wanted] = tee(self.read(log, wanted), self.readers)
            return self._taken[wanted][reader]

        return chunks


@dataclass(frozen=True, slots=True)
class SharedRunner:
    """The function mapped over Arrow batches with a column `partition`: runs the ranges or tasks of these numbers for all works.

    What it gives has the column `reader` behind those of ROWS: the place in `works` that a row is of; records are in bundles.
    """

    works: tuple[RangeRunner | TaskRunner, ...]

    @classmethod
    def of(cls, stages: Iterable[Stage]) -> SharedRunner:
        """Let stages that read the same share it, and the memory for their stores."""
        works = [stage.work for stage in stages]
        share = [replace(work.step, memory_bytes=work.step.memory_bytes // len(works)) for work in works]
        return cls(tuple(replace(work, step=step) for work, step in zip(works, share, strict=True)))

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        numbers = (number for batch in batches for number in batch.column("partition").to_pylist())
        for reader, batch in self.rows(numbers):
            for rows in bundled(batch):
                yield rows.append_column(READER, pa.repeat(pa.scalar(reader, pa.int32()), rows.num_rows))

    def rows(self, numbers: Iterable[int]) -> Iterator[tuple[int, Any]]:
        """Yield (place in `works`, batch of ROWS); the CPU of reading counts for the first of them."""
        runs = [work.prepared() for work in self.works]
        meters = [Meter() for _ in runs]
        step = self.works[0].step
        with passing_told(), connect(step.where) as log:
            for number in numbers:
                reading = Reading(step.read, len(runs))
                yield from in_turn([meters[at].measured(run(log, number, reading.of(at))) for at, run in enumerate(runs)])
        yield from enumerate(meter.row() for meter in meters)


def in_turn(paced: Sequence[Paced]) -> Iterator[tuple[int, Any]]:
    """Yield what several give as (which, what); after a None it is the next one's turn.

    >>> list(in_turn([iter(["a", None, "b"]), iter([None, "c"])]))
    [(0, 'a'), (0, 'b'), (1, 'c')]
    """
    going = dict(enumerate(paced))
    while going:
        for which, parts in list(going.items()):
            for part in parts:
                if part is None:
                    break
                yield which, part
            else:
                del going[which]


def kept_apart(places: Iterable[tuple[JobStage, ...]], is_kept: Callable[[JobStage], bool]) -> list[tuple[JobStage, ...]]:
    """Return readings without the stages that were computed by a run before."""
    left = [tuple(place for place in each if not is_kept(place)) for each in places]
    return [each for each in left if len(each) > 1]
