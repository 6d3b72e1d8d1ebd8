"""One reading for several applications: stages of theirs that read the same ranges run side by side on the same chunks.

Each keeps its own program, stores, times and order of inputs, so that what comes of it is what comes of it alone. What they share
is the chunk: fetched, checked and decompressed once. They take turns, chunk by chunk, and who is ahead waits, so that hardly more
than one is held. Where partitions leave cores idle, the applications of a reading are dealt to several tasks; each of them reads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from logflume.log import Chunk, Log, connect

from .bundles import bundled, passed_bytes
from .costs import Meter
from .ranges import OffsetRange
from .rows import ROWS
from .stages import Stage, slices_of
from .steps import Paced, RangeRunner, Read, Run, TaskRunner, passing_told

READER = "reader"
SHARED_ROWS = f"{ROWS}, {READER} INT"
AHEAD_MAX_CHUNKS = 2
"""Who has taken more of a range than another one is not given a turn."""
JobStage = tuple[int, int]
"""An application, by its number, and one of its stages."""


@dataclass(frozen=True, slots=True)
class Shared:
    """Stages that are computed on one reading; `tasks`: to how many each of their tasks is dealt, application by application."""

    places: tuple[JobStage, ...]
    tasks: int = 1


def share(jobs: Sequence[Sequence[Stage]], cores: int) -> tuple[list[list[Stage]], list[Shared]]:
    """Return the stages of several applications, and which of them share a reading.

    Where cores are idle, tasks that were cut by keys are not if there is an application for each of the cuts: a cut by keys
    decodes all for each of them, one by applications only reads all.
    """
    staged = [list(stages) for stages in jobs]
    found = []
    for places in shared_places(staged):
        tasks = _tasks_of([staged[number][place] for number, place in places], cores)
        if tasks > 1:
            for number, place in places:
                staged[number][place] = staged[number][place].whole()
        found.append(Shared(places, tasks))
    return staged, found


def shared_places(jobs: Sequence[Sequence[Stage]]) -> list[tuple[JobStage, ...]]:
    """Return which stages read something that others read too; a reading has at most one stage of each application.

    Stages with most topics come first: who reads one of them goes with them.
    """
    found: dict[Hashable, list[tuple[set[Hashable], list[JobStage]]]] = {}
    places = [(number, place) for number, stages in enumerate(jobs) for place, _ in enumerate(stages)]
    for number, place in sorted(places, key=lambda at: (-len(jobs[at[0]][at[1]].reads), at)):
        stage = jobs[number][place]
        if stage.takes:
            continue
        shape, parts = _what_it_reads(stage)
        for read, readers in found.setdefault(shape, []):
            if read & parts and number not in {other for other, _ in readers}:
                read |= parts
                readers.append((number, place))
                break
        else:
            found[shape].append((parts, [(number, place)]))
    every = (tuple(sorted(readers)) for readings in found.values() for _, readers in readings)
    return sorted(readers for readers in every if len(readers) > 1)


def _what_it_reads(stage: Stage) -> tuple[Hashable, set[Hashable]]:
    """Return what is the same of stages that can share, and the parts of which they have to have one in common."""
    if isinstance(stage.work, RangeRunner):
        return stage.work.ranges, {stage.work.ranges}
    by_topic = {topic: frozenset(whole for whole in stage.ranges if whole.topic == topic) for topic in stage.reads | stage.tables}
    return (stage.count, stage.slices), {parts for parts in by_topic.values() if any(map(len, parts))}


def _tasks_of(stages: Sequence[Stage], cores: int) -> int:
    """Return to how many tasks the applications of one are dealt: so many that cores are not idle which its partitions leave."""
    first = stages[0]
    if first.is_ranged:
        return 1
    wanted = slices_of(first.work.step, first.reads, first.tables, first.count // first.slices, cores)
    if first.slices == 1:
        return min(wanted, len(stages))
    return 1 if len(stages) % wanted else wanted


@dataclass(slots=True)
class _Tape:
    """A range: chunks that one of its readers has taken wait for the others."""

    chunks: Iterator[Chunk]
    waiting: dict[int, deque[Chunk]]

    def taken_by(self, reader: int) -> Iterator[Chunk]:
        """Yield all chunks."""
        own = self.waiting[reader]
        while True:
            if not own:
                chunk = next(self.chunks, None)
                if chunk is None:
                    return
                for each in self.waiting.values():
                    each.append(chunk)
            yield own.popleft()


@dataclass(slots=True)
class Reading:
    """Ranges that several read at the same time, each fetched once. `ranges`: what each of them reads."""

    ranges: Sequence[frozenset[OffsetRange]]
    _tapes: dict[OffsetRange, _Tape] = field(default_factory=dict)

    def of(self, reader: int, read: Read) -> Read:
        """Return what one of them reads with; each range once. `read`: gives what nobody has taken yet."""

        def chunks(log: Log, wanted: OffsetRange) -> Iterator[Chunk]:
            if wanted not in self._tapes:
                readers = [other for other, ranges in enumerate(self.ranges) if wanted in ranges]
                self._tapes[wanted] = _Tape(read(log, wanted), {other: deque() for other in readers})
            return self._tapes[wanted].taken_by(reader)

        return chunks

    def is_ahead(self, reader: int) -> bool:
        """Return whether one of them should wait for the others."""
        return any(
            max(map(len, tape.waiting.values())) - len(tape.waiting[reader]) >= AHEAD_MAX_CHUNKS
            for tape in self._tapes.values()
            if reader in tape.waiting
        )

    def end(self, reader: int) -> None:
        """Keep nothing for one of them any more."""
        for tape in self._tapes.values():
            tape.waiting.pop(reader, None)


@dataclass(frozen=True, slots=True)
class SharedRunner:
    """The function mapped over Arrow batches with a column `partition`: runs the ranges or tasks of these numbers for all works.

    What it gives has the column `reader` behind those of ROWS: the place in `works` that a row is of; records are in bundles.
    `ranges`: what each of them reads. `tasks`: number n stands for number n // tasks, and for each of `tasks` works one.
    """

    works: tuple[RangeRunner | TaskRunner, ...]
    ranges: tuple[frozenset[OffsetRange], ...]
    tasks: int = 1

    @classmethod
    def of(cls, stages: Sequence[Stage], tasks: int = 1) -> SharedRunner:
        """Let stages share what they read, and the memory for their stores."""
        works = [stage.work for stage in stages]
        at_a_time = -(-len(works) // tasks)
        share = [replace(work.step, memory_bytes=work.step.memory_bytes // at_a_time) for work in works]
        return cls(
            tuple(replace(work, step=step) for work, step in zip(works, share, strict=True)),
            tuple(stage.ranges for stage in stages),
            tasks,
        )

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        numbers = (number for batch in batches for number in batch.column("partition").to_pylist())
        limit = passed_bytes(len({whole.partition for ranges in self.ranges for whole in ranges}) or 1)
        for reader, batch in self.rows(numbers):
            for rows in bundled(batch, limit):
                yield rows.append_column(READER, pa.repeat(pa.scalar(reader, pa.int32()), rows.num_rows))

    def rows(self, numbers: Iterable[int]) -> Iterator[tuple[int, Any]]:
        """Yield (place in `works`, batch of ROWS); the CPU of reading counts for whoever is the first to take a chunk."""
        runs: dict[int, Run] = {}
        meters = [Meter() for _ in self.works]
        with passing_told(), connect(self.works[0].step.where) as log:
            for number in numbers:
                at, part = divmod(number, self.tasks)
                chosen = range(part, len(self.works), self.tasks)
                reading = Reading([self.ranges[which] for which in chosen])
                paced = []
                for reader, which in enumerate(chosen):
                    if which not in runs:
                        runs[which] = self.works[which].prepared()
                    read = reading.of(reader, self.works[which].step.read)
                    paced.append(meters[which].measured(runs[which](log, at, read)))
                yield from ((chosen[reader], batch) for reader, batch in in_turn(paced, reading))
        yield from enumerate(meter.row() for meter in meters)


def in_turn(paced: Sequence[Paced], reading: Reading) -> Iterator[tuple[int, Any]]:
    """Yield what several give as (which, what); after a None it is the next one's turn, of those that are not ahead.

    Where each is ahead of another, as of ranges that two take in another order, one goes on.

    >>> list(in_turn([iter(["a", None, "b"]), iter([None, "c"])], Reading([])))
    [(0, 'a'), (0, 'b'), (1, 'c')]
    """
    going = dict(enumerate(paced))
    while going:
        for which in [each for each in going if not reading.is_ahead(each)] or list(going)[:1]:
            for part in going[which]:
                if part is None:
                    break
                yield which, part
            else:
                del going[which]
                reading.end(which)


def kept_apart(readings: Iterable[Shared], is_kept: Callable[[JobStage], bool]) -> list[Shared]:
    """Return readings without the stages that were computed by a run before."""
    left = []
    for each in readings:
        places = tuple(place for place in each.places if not is_kept(place))
        if len(places) > 1:
            left.append(Shared(places, min(each.tasks, len(places))))
    return left
