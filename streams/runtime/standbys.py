"""Copies of state that another instance writes: they follow its changelogs, so that the task can go on here at once.

A changelog is followed to its end, committed records only. A table that is read from its own topic is followed as far as the
group has processed that topic: its store may not be ahead of its task. A copy is an opened task that never runs; it lies where
the task itself would, and is closed before that is opened.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from logflume.log.interfaces import Consumer, OffsetAndMetadata
from logflume.log.records import TopicPartition
from logflume.streams.seams import SubTopology
from logflume.streams.state import StoreReader

from .assigning import Copies, TaskId
from .closing import Closer
from .opening import Surroundings, open_task
from .positions import read_times
from .restore import Restoration, follow_times, take_changes
from .status import StandbyStatus
from .task import Task, task_name

_ENDLESS = 1 << 62
_STEP_RECORDS = 20_000
_MEMORY_BYTES = 1 << 20
_LOOK_EVERY_S = 1.0
_STAMP_EVERY_S = 30.0

_log = logging.getLogger("logflume.streams")

Committed = Callable[[Iterable[TopicPartition]], Mapping[TopicPartition, OffsetAndMetadata | None]]


@dataclass(slots=True, eq=False)
class _Copy:
    """One task's copy. `is_warmup`: it was asked for to take the task over; `lag_records` None: not known yet."""

    task: Task
    follows: list[Restoration]
    is_warmup: bool = False
    lag_records: int | None = None
    stores_ms: Mapping[str, int] = field(default_factory=dict)


class Standbys:
    """The copies of one instance. One thread, a consumer of its own; `status` in any.

    `committed`: the group's offsets; `acceptable_lag_records`: what a copy may lack to be warm.
    """

    def __init__(
        self,
        around: Surroundings,
        open_consumer: Callable[[], Consumer],
        committed: Committed,
        closer: Closer,
        monotonic_s: Callable[[], float],
    ) -> None:
        self._around = around
        self._open_consumer = open_consumer
        self._committed = committed
        self._closer = closer
        self._monotonic_s = monotonic_s
        self._copies: dict[TaskId, _Copy] = {}
        self._consumer: Consumer | None = None
        self._looked_s = self._stamped_s = monotonic_s()
        self._has_told = False
        self.is_behind = False
        """Whether the last step found something: the next one may too."""

    def __len__(self) -> int:
        return len(self._copies)

    @property
    def status(self) -> tuple[StandbyStatus, ...]:
        """What is followed, and how far behind it is."""
        return tuple(StandbyStatus(copy.task.name, copy.lag_records) for copy in list(self._copies.values()))

    def readers(self, store: str) -> dict[int, tuple[StoreReader, int]]:
        """Return partition -> reader of its copy, and what that lacks, of the copies that know it. In any thread."""
        return {
            copy.task.partition: (copy.task.state.reader(store), copy.lag_records)
            for copy in list(self._copies.values())
            if copy.task.state is not None and store in copy.task.state.stores and copy.lag_records is not None
        }

    def wanted(self, copies: Copies, running: Collection[TaskId]) -> dict[TaskId, SubTopology]:
        """Return what of a leader's advice there is to follow: tasks with state that are not run here."""
        subs = {sub.name: sub for sub in self._around.plan.subtopologies if sub.program.stores}
        found: dict[TaskId, SubTopology] = {}
        for text in (*copies.standbys, *copies.warmups):
            name, _, number = text.rpartition(".")
            if name in subs and number.isdecimal() and (name, int(number)) not in running:
                found[name, int(number)] = subs[name]
        return found

    def leave(self, keys: Iterable[TaskId]) -> None:
        """Close the copies of these tasks."""
        for key in list(keys):
            copy = self._copies.pop(key, None)
            if copy is not None and copy.task.state is not None:
                self._note(copy)
                self._closer.close(copy.task.state)
        if self._copies:
            self._assign()
        elif self._consumer is not None:
            self._consumer.close()
            self._consumer, self.is_behind = None, False

    def keep(self, wanted: Mapping[TaskId, SubTopology], copies: Copies) -> None:
        """Follow these tasks and no others."""
        self._has_told = False
        self.leave(self._copies.keys() - wanted.keys())
        fresh = sorted(wanted.keys() - self._copies.keys())
        for key in fresh:
            self._copies[key] = self._open(wanted[key], key[1])
        for (name, partition), copy in self._copies.items():
            copy.is_warmup = f"{name}.{partition}" in copies.warmups
        if fresh:
            self._assign()

    def _open(self, sub: SubTopology, partition: int) -> _Copy:
        name = task_name(sub, partition)
        self._closer.wait(self._around.directory.task_path(name))
        topics = {topic for topic in sub.shared_topics() if partition < self._around.topics.partitions[topic]}
        inputs = frozenset(TopicPartition(topic, partition) for topic in topics)
        committed = self._committed(inputs)
        positions = {source: offset.offset if offset else 0 for source, offset in committed.items()}
        task, restorations = open_task(self._around, sub, partition, inputs, committed, positions, memory_bytes=_MEMORY_BYTES)
        for each in restorations:
            if not each.is_table_source:
                each.end = _ENDLESS
        _log.info("task %s: following its state as a standby, from %s", name, {e.store: e.position for e in restorations})
        return _Copy(task, restorations)

    def step(self) -> None:
        """Read once what there is, apply it, and look how far behind that leaves each copy."""
        if self._consumer is None:
            return
        now_s = self._monotonic_s()
        if now_s - self._looked_s >= _LOOK_EVERY_S:
            self._looked_s = now_s
            self._look()
        by_source = self._by_source()
        chunks = self._consumer.poll(timeout_s=0.0, max_records=_STEP_RECORDS)
        self.is_behind = bool(chunks)
        for chunk in chunks:
            for each in by_source.get(TopicPartition(chunk.topic, chunk.partition), ()):
                take_changes(each, chunk)
        for source, follows in by_source.items():
            position = self._consumer.position(source)
            for each in follows:
                each.position = max(each.position, min(position, each.end))
            if all(each.position >= each.end for each in follows):
                self._consumer.seek(source, min(each.position for each in follows))
                self._consumer.pause([source])
        for copy in self._copies.values():
            copy.lag_records = self._lag(copy)
            self._note(copy)
        if now_s - self._stamped_s >= _STAMP_EVERY_S:
            self._stamped_s = now_s
            self._stamp()

    def take_ready(self) -> bool:
        """Return, once for each advice, that all that warms up is warm: the group can be asked to hand it over."""
        waiting = [copy for copy in self._copies.values() if copy.is_warmup]
        bound = self._around.options.acceptable_recovery_lag
        is_ready = all(copy.lag_records is not None and copy.lag_records <= bound for copy in waiting)
        if self._has_told or not waiting or not is_ready:
            return False
        self._has_told = True
        return True

    def close(self) -> None:
        """Follow nothing any more."""
        self.leave(self._copies.keys())

    def _by_source(self) -> dict[TopicPartition, list[Restoration]]:
        found: dict[TopicPartition, list[Restoration]] = {}
        for copy in self._copies.values():
            for each in copy.follows:
                found.setdefault(each.source, []).append(each)
        return found

    def _assign(self) -> None:
        if self._consumer is None:
            self._consumer = self._open_consumer()
        by_source = self._by_source()
        self._consumer.assign(by_source)
        for source, follows in by_source.items():
            self._consumer.seek(source, min(each.position for each in follows))

    def _lag(self, copy: _Copy) -> int | None:
        assert self._consumer is not None
        lags = [each.end - each.position if each.is_table_source else self._consumer.lag(each.source) for each in copy.follows]
        known = [lag for lag in lags if lag is not None]
        return sum(known) if len(known) == len(lags) else None

    def _look(self) -> None:
        """Ask how far the group has come: tables may be followed to there, and windows before its stream time have expired."""
        assert self._consumer is not None
        committed = self._committed({source for copy in self._copies.values() for source in copy.task.inputs})
        for copy in self._copies.values():
            known = {source: offset for source in copy.task.inputs if (offset := committed.get(source)) is not None}
            copy.stores_ms = read_times(known).stores_ms
            for each in copy.follows:
                if each.is_table_source and each.source in known and known[each.source].offset > each.end:
                    each.end = known[each.source].offset
                    self._consumer.resume([each.source])

    def _stamp(self) -> None:
        """Say on disk that the copies are current, which keeps them usable, and let go of windows that have expired."""
        for copy in self._copies.values():
            state = copy.task.state
            assert state is not None
            follow_times(state, copy.stores_ms, but=copy.task.subtopology.table_sources)
            if copy.lag_records == 0:
                positions = {each.store: each.position for each in copy.follows}
                copy.task.changelogs.update(positions)
                state.commit({}, replace(state.checkpoint, changelogs=dict(copy.task.changelogs)))

    def _note(self, copy: _Copy) -> None:
        self._around.directory.progress.note(copy.task.name, sum(each.position for each in copy.follows))
