"""In what order a task takes the records of its inputs, decided ahead as runs. (pure)

The rule is Kafka Streams' with `max.task.idle.ms` = 0: next comes the head with the smallest timestamp (ties: topic, then
partition); an input that is empty holds the task back only while its lag is greater than zero or not known yet. The order
depends on the log alone as long as every input has more to read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from logflume.log.records import I64, Chunk, TopicPartition

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


class Input:
    """One partition read by a task: what is fetched and not yet in a run, and how far the task has processed."""

    __slots__ = (
        "buffered_bytes",
        "buffered_records",
        "chunks",
        "fetched_to",
        "head",
        "nodes",
        "partition",
        "position",
        "time_ms",
    )

    def __init__(self, nodes: tuple[str, ...], partition: TopicPartition, *, position: int, time_ms: int = -1) -> None:
        self.nodes = nodes
        self.partition = partition
        self.position = position
        self.time_ms = time_ms
        self.chunks: deque[Chunk] = deque()
        self.fetched_to = position
        self.head = 0
        self.buffered_records = 0
        self.buffered_bytes = 0

    def add(self, chunk: Chunk) -> bool:
        """Buffer a fetched chunk; return whether the position moved at once (nothing to process before it)."""
        self.fetched_to = chunk.next_offset
        if len(chunk):
            self.chunks.append(chunk)
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
            self.head = 0

    def gather(self) -> None:
        """Make one of small chunks that follow each other: records that come a few at a time are fetched a few at a time."""
        if len(self.chunks) < 2:
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

    @property
    def is_empty(self) -> bool:
        return not self.chunks

    def head_time_ms(self) -> int:
        return int(self.chunks[0].timestamps_ms[self.head])


class Merger:
    """Turns what the inputs of one task have buffered into runs, in the order they are to be processed."""

    def __init__(self, inputs: list[Input]) -> None:
        self.inputs = sorted(inputs, key=lambda each: each.partition)
        self.runs: deque[Run] = deque()
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
            heads.sort()
            first = self.inputs[heads[0][1]]
            self._take(first, self._length(first, heads[0][1], heads[1] if len(heads) > 1 else None))

    def _length(self, first: Input, place: int, second: tuple[int, int] | None) -> int:
        """Return how many records of the head chunk come before the head of the second input."""
        times = first.chunks[0].timestamps_ms[first.head :]
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

    def _take(self, first: Input, count: int) -> None:
        assert count > 0, "the input with the smallest head gives at least that record"
        chunk, start = first.chunks[0], first.head
        times = np.maximum.accumulate(chunk.timestamps_ms[start : start + count])
        if self.time_ms > int(times[0]):
            times = np.maximum(times, self.time_ms)
        self.time_ms = int(times[-1])
        self.runs.append(Run(first, chunk, start, start + count, times))
        first.head += count
