"""In what order a task takes the records of its inputs, decided ahead as runs. (pure)

The rule is Kafka Streams' with `max.task.idle.ms` = 0: next comes the head with the smallest timestamp (ties: rank, topic,
partition); an input that is empty holds the task back only while its lag is greater than zero or not known yet. The order depends
on the log alone as long as every input has more to read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from logflume.log.records import I64, Chunk, TopicPartition

FOREVER = (int(np.iinfo(np.int64).max), 1 << 30)
"""A (time, partition) that no record lies behind."""
_PROBE = 16
_SMALL_RECORDS = 1024
_SMALL_BYTES = 256 << 10
"""Chunks below both are gathered: a batch costs as much as some hundred records."""


@dataclass(slots=True)
class Run:
    """Records start..stop of a chunk of one input.

    `times_ms`: int64[stop - start], the largest timestamp of the task up to and including each record: never falls.
    """

    input: Input
    chunk: Chunk
    start: int
    stop: int
    times_ms: I64

    def split(self, count: int) -> tuple[Run, Run]:
        """Return the first `count` records and the rest."""
        middle = self.start + count
        return (
            Run(self.input, self.chunk, self.start, middle, self.times_ms[:count]),
            Run(self.input, self.chunk, middle, self.stop, self.times_ms[count:]),
        )

    def __len__(self) -> int:
        return self.stop - self.start

    def parts(self) -> tuple[Run, ...]:
        """Return the runs that it is made of: itself."""
        return (self,)


@dataclass(slots=True)
class Round:
    """Runs of several inputs that are taken together: whose records alternate, so that runs of one input would be short.

    `places`: of each run, where its records are in the round, int64, rising. `times_ms`: as in `Run`, of the whole.
    """

    runs: tuple[Run, ...]
    places: tuple[I64, ...]
    times_ms: I64

    @property
    def start(self) -> int:
        """What the first place is called."""
        return 0

    def parts(self) -> tuple[Run, ...]:
        """Return the runs that it is made of."""
        return self.runs

    def split(self, count: int) -> tuple[Round, Round]:
        """Return the first `count` records and the rest."""
        cuts = [int(places.searchsorted(count)) for places in self.places]
        first, rest = [], []
        for run, places, cut in zip(self.runs, self.places, cuts, strict=True):
            now, later = run.split(cut)
            first += [(now, places[:cut])] if cut else []
            rest += [(later, places[cut:] - count)] if cut < len(run) else []
        return _round(first, self.times_ms[:count]), _round(rest, self.times_ms[count:])

    def __len__(self) -> int:
        return len(self.times_ms)


def _round(parts: Sequence[tuple[Run, I64]], times_ms: I64) -> Round:
    return Round(tuple(run for run, _ in parts), tuple(places for _, places in parts), times_ms)


class Input:
    """One partition read by a task: what is fetched and not yet in a run, and how far the task has processed.

    `rank`: above 0 what it holds was caused by records of the task's other inputs, of lower rank, and is given with the times of
    these causes, so that it comes behind all that were there by then.
    """

    __slots__ = (
        "buffered_bytes",
        "buffered_records",
        "chunks",
        "fetched_to",
        "head",
        "nodes",
        "partition",
        "position",
        "rank",
        "time_ms",
        "times",
    )

    def __init__(
        self,
        nodes: tuple[str, ...],
        partition: TopicPartition,
        *,
        position: int,
        time_ms: int = -1,
        rank: int = 0,
    ) -> None:
        self.nodes = nodes
        self.partition = partition
        self.position = position
        self.time_ms = time_ms
        self.rank = rank
        self.chunks: deque[Chunk] = deque()
        self.times: deque[I64] = deque()
        """Of each chunk the times by which its records are ordered."""
        self.fetched_to = position
        self.head = 0
        self.buffered_records = 0
        self.buffered_bytes = 0

    def add(self, chunk: Chunk, times_ms: I64 | None = None) -> bool:
        """Buffer a fetched chunk; return whether the position moved at once (nothing to process before it).

        `times_ms`: by which its records are ordered; None: their own.
        """
        self.fetched_to = chunk.next_offset
        if len(chunk):
            self.chunks.append(chunk)
            self.times.append(chunk.timestamps_ms if times_ms is None else times_ms)
            self.buffered_records += len(chunk)
            self.buffered_bytes += len(chunk.buffer)
        elif self.buffered_records == 0 and chunk.next_offset > self.position:
            self.position = chunk.next_offset
            return True
        return False

    def processed(self, run: Run) -> None:
        """Move position and time over the records of a run."""
        chunk = run.chunk
        self.buffered_records -= len(run)
        if run.stop == len(chunk):
            self.buffered_bytes -= len(chunk.buffer)
        self.time_ms = max(self.time_ms, int(chunk.timestamps_ms[run.start : run.stop].max()))
        if self.buffered_records == 0:
            self.position = self.fetched_to
        else:
            self.position = chunk.next_offset if run.stop == len(chunk) else int(chunk.offsets[run.stop])

    def drop_read_chunks(self) -> None:
        """Forget chunks whose records are all in runs; called before looking for a head."""
        while self.chunks and self.head >= len(self.chunks[0]):
            self.chunks.popleft()
            self.times.popleft()
            self.head = 0

    def gather(self) -> None:
        """Make one of small chunks that follow each other: records that come a few at a time are fetched a few at a time."""
        if len(self.chunks) < 2 or self.rank:
            return
        gathered: deque[Chunk] = deque()
        small: list[Chunk] = []
        records = size_bytes = 0
        for place, chunk in enumerate(self.chunks):
            is_begun = place == 0 and self.head > 0
            if small and (is_begun or records + len(chunk) > _SMALL_RECORDS or size_bytes + len(chunk.buffer) > _SMALL_BYTES):
                gathered.append(Chunk.joined(small))
                small, records, size_bytes = [], 0, 0
            if is_begun:
                gathered.append(chunk)
                continue
            small.append(chunk)
            records, size_bytes = records + len(chunk), size_bytes + len(chunk.buffer)
        if small:
            gathered.append(Chunk.joined(small))
        self.chunks = gathered
        self.times = deque(chunk.timestamps_ms for chunk in gathered)

    @property
    def is_empty(self) -> bool:
        return not self.chunks

    def head_time_ms(self) -> int:
        return int(self.times[0][self.head])


class Merger:
    """Turns what the inputs of one task have buffered into runs, in the order they are to be processed.

    `takes_together`: runs of several inputs may be one round.
    """

    def __init__(self, inputs: list[Input], *, takes_together: bool = False) -> None:
        self.inputs = sorted(inputs, key=lambda each: (each.rank, each.partition))
        self._takes_together = takes_together
        self.runs: deque[Run | Round] = deque()
        self.time_ms = max((each.time_ms for each in inputs), default=-1)
        self.is_blocked = True

    def plan(self, is_caught_up: Callable[[TopicPartition], bool]) -> None:
        """Add all runs whose place is certain. Afterwards `is_blocked` says whether more exists that has not been fetched."""
        for each in self.inputs:
            each.drop_read_chunks()
            each.gather()
        while True:
            for each in self.inputs:
                each.drop_read_chunks()
            waiting = [each for each in self.inputs if each.is_empty and not is_caught_up(each.partition)]
            self.is_blocked = bool(waiting)
            heads = [(each.head_time_ms(), place) for place, each in enumerate(self.inputs) if not each.is_empty]
            if waiting or not heads:
                return
            if self._takes_together and len(heads) > 1:
                self._take_heads()
                continue
            heads.sort()
            first = self.inputs[heads[0][1]]
            self._take(first, self._length(first, heads[0][1], heads[1] if len(heads) > 1 else None))

    def _length(self, first: Input, place: int, second: tuple[int, int] | None) -> int:
        """Return how many records of the head chunk come before the head of the second input."""
        times = first.times[0][first.head :]
        if second is None:
            return len(times)
        limit = second[0] if place < second[1] else second[0] - 1
        at, width = 0, _PROBE
        while at < len(times):
            beyond = times[at : at + width] > limit
            if beyond.any():
                return at + int(beyond.argmax())
            at, width = at + width, width * 4
        return len(times)

    def _take_heads(self) -> None:
        """Take from the head chunks of all inputs, up to and with the first of these that comes to its end.

        What comes behind a record of its own input comes at once if its time is smaller: so the order is that of the largest
        times up to each record of an input, ties in the order of inputs.
        """
        found = [(place, each) for place, each in enumerate(self.inputs) if not each.is_empty]
        rising = [np.maximum.accumulate(each.times[0][each.head :]) for _, each in found]
        last, end = min((int(times[-1]), place) for (place, _), times in zip(found, rising, strict=True))
        counts = [
            int(times.searchsorted(last, side="right" if place <= end else "left"))
            for (place, _), times in zip(found, rising, strict=True)
        ]
        if sum(count > 0 for count in counts) == 1:
            self._take(*next((each, count) for (_, each), count in zip(found, counts, strict=True) if count))
            return
        parts = [each for each in zip(found, rising, counts, strict=True) if each[2]]
        order = np.argsort(np.concatenate([times[:count] for _, times, count in parts]), kind="stable")
        places = np.empty(len(order), np.int64)
        places[order] = np.arange(len(order))
        own = np.concatenate([each.times[0][each.head : each.head + count] for (_, each), _, count in parts])
        times_ms = self._moved(own[order])
        runs, at = [], 0
        for (_, each), _, count in parts:
            where, at = places[at : at + count], at + count
            runs.append((Run(each, each.chunks[0], each.head, each.head + count, times_ms[where]), where))
            each.head += count
        self.runs.append(_round(runs, times_ms))

    def _take(self, first: Input, count: int) -> None:
        assert count > 0, "the input with the smallest head gives at least that record"
        chunk, start = first.chunks[0], first.head
        self.runs.append(Run(first, chunk, start, start + count, self._moved(first.times[0][start : start + count])))
        first.head += count

    def _moved(self, times: I64) -> I64:
        """Move the task's time over those of records; return it at each of them."""
        largest: I64 = np.maximum.accumulate(np.maximum(times, self.time_ms))
        self.time_ms = int(largest[-1])
        return largest
