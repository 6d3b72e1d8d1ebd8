"""A clock, timers, a journal and partitions that exist in memory only: the surroundings of a coordinator in one thread.

Time moves when told to, and what is appended is on disk when told to be; a crash loses what was not. Used by the tests of
everything that is sans-IO (architecture, D2); the protocols are those of `ports`.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from logflume.log.broker.ports import JournalRecord, NewTopic, ReplayedBatch
from logflume.log.broker.replies import Reply

START_MS = 1_700_000_000_000


@dataclass(eq=False, slots=True)
class SimulatedTimer:
    callback: Callable[[], None] | None

    def cancel(self) -> None:
        self.callback = None


@dataclass(eq=False, slots=True)
class SimulatedTime:
    """Clock and timers in one. Invariant: callbacks run in the order of their time, each at exactly its time."""

    now_ms: float = 0
    _queue: list[tuple[float, int, SimulatedTimer]] = field(default_factory=list)
    _count: Iterator[int] = field(default_factory=itertools.count)

    def wall_ms(self) -> int:
        return START_MS + int(self.now_ms)

    def monotonic_ms(self) -> int:
        return int(self.now_ms)

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> SimulatedTimer:
        timer = SimulatedTimer(callback)
        heapq.heappush(self._queue, (self.now_ms + max(delay_ms, 0), next(self._count), timer))
        return timer

    def advance(self, delay_ms: float) -> None:
        """Let time pass, calling what is due."""
        end_ms = self.now_ms + delay_ms
        while self._queue and self._queue[0][0] <= end_ms:
            at_ms, _, timer = heapq.heappop(self._queue)
            callback, timer.callback = timer.callback, None
            if callback is not None:
                self.now_ms = max(self.now_ms, at_ms)
                callback()
        self.now_ms = end_ms


@dataclass(eq=False, slots=True)
class SimulatedJournal:
    """An internal topic whose appends reach the disk in order, at once or when `flush` is called.

    `on_disk[p]`: the batches of a partition that a crash leaves. With `is_failing` every append is refused.
    `appended`: number of appends ever, also before a crash if they survived it.
    """

    partition_count: int = 4
    is_manual: bool = False
    is_failing: bool = False
    on_disk: list[list[ReplayedBatch]] = field(default_factory=list)
    appended: int = 0
    _in_flight: list[tuple[int, ReplayedBatch, Reply]] = field(default_factory=list)
    _next: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.on_disk = self.on_disk or [[] for _ in range(self.partition_count)]
        ends = [batches[-1] if batches else None for batches in self.on_disk]
        self._next = [0 if end is None else end.base_offset + max(len(end.records), 1) for end in ends]

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def append(
        self, partition: int, records: Sequence[JournalRecord], *, producer_id: int = -1, producer_epoch: int = -1
    ) -> Reply:
        assert records, "a batch has a record"
        return self._append(partition, producer_id, producer_epoch, None, tuple(records))

    def append_marker(self, partition: int, producer_id: int, producer_epoch: int, *, is_commit: bool) -> Reply:
        """Append a control batch, as the broker does for a transaction's end."""
        return self._append(partition, producer_id, producer_epoch, is_commit, ())

    def replay(self, partition: int) -> Iterator[ReplayedBatch]:
        return iter(list(self.on_disk[partition]))

    def flush(self, *, count: int | None = None) -> None:
        """Bring the first `count` appends (all, also those that follow from the first) to the disk and answer them."""
        while self._in_flight and (count is None or count > 0):
            partition, batch, reply = self._in_flight.pop(0)
            self.on_disk[partition].append(batch)
            reply.set(batch.base_offset)
            count = None if count is None else count - 1

    def crashed(self, *, kept: int = 0) -> SimulatedJournal:
        """Return what a crash leaves: all that was flushed and the first `kept` appends that were on their way."""
        on_disk = [list(batches) for batches in self.on_disk]
        for partition, batch, _ in self._in_flight[:kept]:
            on_disk[partition].append(batch)
        survived = self.appended - len(self._in_flight) + min(kept, len(self._in_flight))
        return SimulatedJournal(self.partition_count, self.is_manual, False, on_disk, survived)

    def _append(
        self, partition: int, producer_id: int, producer_epoch: int, marker: bool | None, records: tuple[JournalRecord, ...]
    ) -> Reply:
        reply = Reply()
        if self.is_failing:
            reply.set(-56)
            return reply
        self.appended += 1
        offset = self._next[partition]
        self._next[partition] += max(len(records), 1)
        batch = ReplayedBatch(offset, producer_id, producer_epoch, producer_id >= 0, marker, records)
        self._in_flight.append((partition, batch, reply))
        if not self.is_manual:
            self.flush()
        return reply


@dataclass(eq=False, slots=True)
class SimulatedTopics:
    """Topics by name with their number of partitions; a topic's id is its name, padded."""

    partitions: dict[str, int] = field(default_factory=dict)
    refused: str | None = None

    def exists(self, topic: str, partition: int) -> bool:
        return 0 <= partition < self.partitions.get(topic, 0)

    def partition_count(self, topic: str) -> int:
        return self.partitions.get(topic, 0)

    def names(self) -> Iterable[str]:
        return list(self.partitions)

    def create(self, wanted: Sequence[NewTopic]) -> Reply:
        """Create topics as a streams group asks for them, unless all are `refused`."""
        if self.refused:
            return Reply.of(dict.fromkeys((topic.name for topic in wanted), self.refused))
        self.partitions |= {topic.name: topic.partitions for topic in wanted}
        return Reply.of({})

    def name_of(self, topic_id: bytes) -> str | None:
        name = topic_id.rstrip(b"\0").decode(errors="replace")
        return name if name in self.partitions else None

    def id_of(self, topic: str) -> bytes | None:
        return topic.encode().ljust(16, b"\0") if topic in self.partitions else None
