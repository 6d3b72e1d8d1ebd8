"""Global tables: each task reads all partitions of their topics into a store of its own, without the group.

A table is loaded to the end that its topic has when the task is opened; only then does the task begin. After that its records are
taken as they come, at any time. What was taken is on disk with the next task commit, together with how far that goes; the topic
is the changelog, so what was not is read again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from logflume.log.interfaces import Admin, Consumer
from logflume.log.records import TopicPartition

from .task import Task

_STEP_RECORDS = 20_000
_log = logging.getLogger("logflume.streams")


@dataclass(slots=True)
class _Reading:
    """One partition of a table, for one task. `loaded_at`: the offset from which on the task may run."""

    task: Task
    node: str
    source: TopicPartition
    loaded_at: int

    @property
    def position(self) -> int:
        return self.task.tables.get(self.source, 0)


class GlobalTables:
    """The global tables of an instance's tasks. One thread, a consumer of its own."""

    def __init__(self, open_consumer: Callable[[], Consumer], admin: Admin) -> None:
        self._open_consumer = open_consumer
        self._admin = admin
        self._consumer: Consumer | None = None
        self._readings: dict[TopicPartition, list[_Reading]] = {}
        self._loading: set[Task] = set()
        self.is_behind = False
        """Whether the last step found something: the next one may too."""

    def __bool__(self) -> bool:
        return bool(self._readings)

    def add(self, task: Task, partitions: dict[str, int]) -> None:
        """Begin to read a task's tables. `partitions`: topic -> how many it has."""
        sub = task.subtopology
        nodes = {
            TopicPartition(sub.program.sources[node], number): node
            for node in sub.global_stores().values()
            for number in range(partitions[sub.program.sources[node]])
        }
        if not nodes:
            return
        ends = self._admin.end_offsets(nodes, read_committed=True)
        for source, node in nodes.items():
            self._readings.setdefault(source, []).append(_Reading(task, node, source, ends[source]))
        self._loading.add(task)
        self._assign()

    def remove(self, task: Task) -> None:
        """Forget a task that is closed."""
        self._loading.discard(task)
        kept = {source: [each for each in group if each.task is not task] for source, group in self._readings.items()}
        kept = {source: group for source, group in kept.items() if group}
        has_fewer, self._readings = len(kept) < len(self._readings), kept
        if not kept:
            self.close()
        elif has_fewer:
            self._assign()

    def is_loading(self, task: Task) -> bool:
        """Whether a table of the task is not as far yet as its topic was when it was opened."""
        return task in self._loading

    @property
    def is_idle(self) -> bool:
        """Whether all tables are loaded."""
        return not self._loading

    @property
    def remaining_records(self) -> int:
        """About how many records are still to be read before all tables are loaded."""
        return sum(max(each.loaded_at - each.position, 0) for group in self._readings.values() for each in group)

    def step(self) -> None:
        """Read once what there is."""
        if self._consumer is None:
            return
        chunks = self._consumer.poll(timeout_s=0.0, max_records=_STEP_RECORDS)
        self.is_behind = bool(chunks)
        for chunk in chunks:
            for each in self._readings.get(TopicPartition(chunk.topic, chunk.partition), ()):
                each.task.take_table(each.node, chunk)
        if self._loading:
            self._load(self._consumer)

    def _load(self, consumer: Consumer) -> None:
        """Write what loading tasks have taken, which have no commits yet, and see which are done."""
        for source, group in self._readings.items():
            position = consumer.position(source)
            for each in group:
                each.task.tables[source] = max(each.position, position)
        for task in self._loading:
            assert task.state is not None, "it has the tables' stores"
            checkpoint = replace(task.state.checkpoint, changelogs=dict(task.changelogs), tables=dict(task.tables))
            task.state.commit(task.state.encode_dirty(), checkpoint)
            task.has_changes = False
        behind = {each.task for group in self._readings.values() for each in group if each.position < each.loaded_at}
        for task in self._loading - behind:
            _log.info("task %s: its global tables are loaded", task.name)
        self._loading &= behind

    def close(self) -> None:
        """Stop reading."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer, self.is_behind = None, False

    def _assign(self) -> None:
        if self._consumer is None:
            self._consumer = self._open_consumer()
        self._consumer.assign(self._readings)
        for source, group in self._readings.items():
            self._consumer.seek(source, min(each.position for each in group))
