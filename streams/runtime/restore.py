"""Brings the stores of opened tasks up to their changelogs: only the tail after a crash, everything on an empty disk.

A changelog is read to its high watermark with committed records only: what an instance that died left open is first ended (by its
successor of the same name, or by its timeout), so that no committed record is missed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from logflume.log.interfaces import Consumer
from logflume.log.records import Chunk, TopicPartition
from logflume.streams.state import Gathered, TaskState

from .task import Task

_log = logging.getLogger("logflume.streams")
_REPORT_EVERY_S = 1.0
_WAITS_S = 15.0
"""How long nothing comes before that is said: longer than a transaction may stay open by default."""


@dataclass(slots=True)
class Restoration:
    """One store's way from `position` to `end` of the partition that it is rebuilt from; `records` so far.

    `stream_time_ms`: the group's of that store. A table's own comes from its records as they are read once more, for which of
    them were too late was judged by the time then: the group's counts when all have been read.
    """

    task: Task
    store: str
    source: TopicPartition
    position: int
    end: int
    is_table_source: bool
    stream_time_ms: int = -1
    records: int = 0
    gathered: Gathered = field(init=False)

    def __post_init__(self) -> None:
        self.gathered = Gathered(self.position)

    @property
    def is_done(self) -> bool:
        return self.position >= self.end

    @property
    def next_offset(self) -> int:
        """Where to go on reading: beyond `position` by what has been gathered."""
        return max(self.position, self.gathered.next_offset)


def follow_times(state: TaskState, times_ms: Mapping[str, int], *, but: Collection[str] = ()) -> None:
    """Let the times of stores be at least the group's."""
    for name, time_ms in times_ms.items():
        if name in state.stores and name not in but:
            state.stores[name].stream_time_ms = max(state.stores[name].stream_time_ms, time_ms)


def take_changes(each: Restoration, chunk: Chunk) -> int:
    """Bring a store up by the records of a chunk before its end; return how many."""
    start = int(chunk.offsets.searchsorted(each.position))
    stop = int(chunk.offsets.searchsorted(each.end))
    state = each.task.state
    assert state is not None
    store = state.stores[each.store]
    each.position = max(each.position, chunk.next_offset if stop == len(chunk) else each.end)
    each.task.changelogs[each.store] = each.position
    checkpoint = replace(state.checkpoint, changelogs=dict(each.task.changelogs))
    if each.is_table_source:
        node = each.task.subtopology.table_sources[each.store]
        each.task.function.restore(node, chunk, start, stop)
        state.commit(state.encode_dirty(), checkpoint)
    elif stop > start:
        state.restore(store, chunk.slice(start, stop), checkpoint)
    each.records += stop - start
    return stop - start


def _end(each: Restoration) -> None:
    assert each.task.state is not None
    follow_times(each.task.state, {each.store: each.stream_time_ms})


class Restorer:
    """Restores tasks step by step, so that the engine can go on with others. One thread, a consumer of its own."""

    def __init__(self, open_consumer: Callable[[], Consumer], monotonic_s: Callable[[], float]) -> None:
        self._open_consumer = open_consumer
        self._monotonic_s = monotonic_s
        self._consumer: Consumer | None = None
        self._pending: dict[TopicPartition, list[Restoration]] = {}
        self._started_s = self._reported_s = self._moved_s = 0.0
        self._left = 0
        self._records = 0
        self._total = 0

    @property
    def is_idle(self) -> bool:
        return not self._pending

    @property
    def remaining_records(self) -> int:
        """Return about how many records are still to be read (offsets, so markers and compacted records count too)."""
        return sum(max(each.end - each.position, 0) for group in self._pending.values() for each in group)

    @property
    def records_per_s(self) -> float:
        """Return the rate of what is being restored, 0 when nothing is."""
        return self._records / max(self._monotonic_s() - self._started_s, 1e-9) if self._pending else 0.0

    def add(self, restorations: list[Restoration]) -> None:
        """Queue stores; those that are up to date already are left out."""
        todo = [each for each in restorations if not each.is_done]
        for each in [each for each in restorations if each.is_done]:
            _end(each)
        if not todo:
            return
        if not self._pending:
            self._started_s = self._reported_s = self._monotonic_s()
            self._records, self._total = 0, 0
        for each in todo:
            self._pending.setdefault(each.source, []).append(each)
            self._total += each.end - each.position
            what = "all" if each.position == 0 else "the tail"
            count = each.end - each.position
            _log.info(
                "task %s: restoring %s of store %s: up to %d records from %s-%d",
                each.task.name,
                what,
                each.store,
                count,
                *each.source,
            )
        self._assign()

    def remove(self, task: Task) -> None:
        """Forget the stores of a task that is closed."""
        before = len(self._pending)
        for source, group in list(self._pending.items()):
            kept = [each for each in group if each.task is not task]
            if kept:
                self._pending[source] = kept
            else:
                del self._pending[source]
        if len(self._pending) != before and self._consumer:
            self._assign()

    def is_restoring(self, task: Task) -> bool:
        """Return whether a store of the task is not up to date yet."""
        return any(each.task is task for group in list(self._pending.values()) for each in group)

    def lag_records(self, task: Task) -> int:
        """Return about how many records the stores of a task lack. In any thread, like `is_restoring`."""
        pending = [each for group in list(self._pending.values()) for each in group if each.task is task]
        return sum(max(each.end - each.position, 0) for each in pending)

    def step(self, *, timeout_s: float) -> None:
        """Read and apply once."""
        if not self._pending:
            return
        assert self._consumer is not None
        for chunk in self._consumer.poll(timeout_s=timeout_s):
            for each in self._pending.get(TopicPartition(chunk.topic, chunk.partition), []):
                self._take(each, chunk)
        for source, group in self._pending.items():
            position = self._consumer.position(source)
            for each in group:
                if position >= each.end:
                    self._write(each)
                if not each.gathered.size_bytes:
                    each.position = max(each.position, min(position, each.end))
        self._finish()
        self._report()

    def close(self) -> None:
        """Stop reading."""
        if self._consumer:
            self._consumer.close()
            self._consumer = None

    def _take(self, each: Restoration, chunk: Chunk) -> None:
        """Gather records of a changelog until they are worth a file; a table's own topic is for its operator."""
        if each.is_table_source:
            self._records += take_changes(each, chunk)
            return
        each.gathered.add(chunk)
        assert each.task.state is not None
        if each.gathered.size_bytes >= each.task.state.gather_bytes:
            self._write(each)

    def _write(self, each: Restoration) -> None:
        chunk = each.gathered.take()
        if chunk is not None:
            self._records += take_changes(each, chunk)

    def _assign(self) -> None:
        if self._consumer is None:
            self._consumer = self._open_consumer()
        self._consumer.assign(self._pending)
        for source, group in self._pending.items():
            self._consumer.seek(source, min(each.next_offset for each in group))

    def _finish(self) -> None:
        for source, group in list(self._pending.items()):
            for each in [each for each in group if each.is_done]:
                group.remove(each)
                each.task.changelogs[each.store] = each.position
                _end(each)
                _log.info("task %s: store %s is restored (%d records)", each.task.name, each.store, each.records)
            if not group:
                del self._pending[source]
        if not self._pending:
            self.close()
        elif self._consumer and len(self._consumer.assignment()) != len(self._pending):
            self._assign()

    def _report(self) -> None:
        now = self._monotonic_s()
        if now - self._reported_s < _REPORT_EVERY_S or not self._pending:
            return
        self._reported_s = now
        rate = self.records_per_s
        before, self._left = self._left, self.remaining_records
        left = self._left
        if left != before:
            self._moved_s = now
        elif now - self._moved_s >= _WAITS_S:
            self._moved_s = now
            self._say_what_waits()
        eta = left / rate if rate else float("inf")
        _log.info("restoring: %d of about %d records, %.0f records/s, %.0f s to go", self._records, self._total, rate, eta)

    def _say_what_waits(self) -> None:
        source = next(iter(self._pending))
        _log.warning(
            "restoring waits at offset %d of %s-%d: an open transaction holds back what follows; one that does not end by its "
            "timeout is shown by `logflume txn hanging` and ended by `logflume txn abort`",
            min(each.next_offset for each in self._pending[source]), *source,
        )  # fmt: skip
