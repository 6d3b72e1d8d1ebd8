"""Task commits of a session: results due, one log transaction for all tasks, then one write batch of each task's state."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from logflume.log import LogflumeError
from logflume.log.interfaces import OffsetAndMetadata
from logflume.log.records import TopicPartition
from logflume.streams.seams import SubTopology
from logflume.streams.state import Dirty

from .opening import Surroundings
from .options import Guarantee
from .outputs import Columns, merge_by_time
from .pace import CommitPace
from .positions import to_offsets
from .status import CommitTimes
from .task import Task
from .watch import Watch
from .writer import LogWriter

_log = logging.getLogger("logflume.streams")


class TaskCommits:
    """When to commit, and how. One thread, the engine's."""

    def __init__(
        self, around: Surroundings, writer: LogWriter, *, monotonic_s: Callable[[], float], times: CommitTimes, watch: Watch
    ) -> None:
        self._around = around
        self._options = around.options
        self._writer = writer
        self._monotonic_s = monotonic_s
        self._times = times
        self._watch = watch
        self._pace = CommitPace(around.options.commit_interval_ms / 1000, due_s=monotonic_s())
        self._has_changes = False
        self._uncommitted_bytes = 0
        self._purged_s = monotonic_s()
        self._purgeable: dict[TopicPartition, int] = {}

    def note(self, task: Task, size_bytes: int) -> None:
        """Take note that a task may have changed, by so much input."""
        self._uncommitted_bytes += size_bytes
        self._has_changes = self._has_changes or task.has_changes

    def is_due(self, *, is_behind: bool) -> bool:
        """Return whether to commit: what comes after a pause at once, what follows it once per interval."""
        if not self._has_changes:
            return False
        is_due = self._pace.is_due(self._monotonic_s(), is_behind=is_behind)
        return is_due or self._uncommitted_bytes >= self._options.commit_bytes

    def due_in_s(self) -> float:
        """Return in how many seconds a commit will be due; infinity while nothing has changed."""
        return max(self._pace.due_s - self._monotonic_s(), 0.0) if self._has_changes else float("inf")

    def send_outputs(self, sub: SubTopology, tasks: Sequence[Task]) -> None:
        """Send what the tasks have put out; for repartition topics merged by time between tasks."""
        parts: dict[tuple[str, str], list[tuple[Task, Columns]]] = {}
        for task in tasks:
            for columns in task.take_outputs():
                parts.setdefault((columns.node, columns.topic), []).append((task, columns))
        for (node, topic), group in parts.items():
            output = sub.outputs[node]
            chunks = [(task, columns.chunk()) for task, columns in group] if not output.is_repartition else []
            for task, chunk in chunks or [(group[0][0], merge_by_time([columns for _, columns in group]))]:
                refused = partial(task.problems.refused, node, topic, is_computed=output.is_computed)
                self._writer.send(output, topic, chunk, refused)

    def commit(self, tasks: Iterable[Task], ids: Mapping[str, str]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Commit those of the tasks that have changes; return the offsets. `ids`: topic -> id, of the inputs.

        Raises:
            LogflumeError: as `LogWriter.commit`; nothing of it is in the stores then.
        """
        changed = [task for task in tasks if task.has_changes]
        self._has_changes, self._uncommitted_bytes = False, 0
        if not changed:
            return {}
        started_s, failpoint = self._monotonic_s(), self._options.failpoint
        failpoint("before-flush")
        for task in changed:
            self._watch.enter(task.name)
            task.flush()
            self._watch.leave()
        for sub in self._around.plan.subtopologies:
            self.send_outputs(sub, [task for task in changed if task.subtopology is sub])
        failpoint("after-flush")
        offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        entries: list[dict[str, Dirty]] = []
        for task in changed:
            entries.append(self._send_changes(task))
            offsets.update(to_offsets(task.checkpoint(), task.subtopology.contents, self._around.address, ids=ids))
        failpoint("after-produce")
        for task in changed:
            task.will_commit()
        self._writer.commit(offsets, lambda: [letter for task in changed for letter in task.problems.take_letters()])
        failpoint("after-log-commit")
        for task, dirty in zip(changed, entries, strict=True):
            self._store(task, dirty)
        repartitions = self._around.topics.repartition_topics
        self._purgeable.update({tp: offset.offset for tp, offset in offsets.items() if tp.topic in repartitions})
        ended_s = self._monotonic_s()
        self._pace.committed(started_s, ended_s)
        self._times.add(ended_s - started_s)
        return offsets

    def _send_changes(self, task: Task) -> dict[str, Dirty]:
        """Send changed entries to the changelogs; return the entries for the write batch."""
        if task.state is None:
            return {}
        dirty = task.state.encode_dirty()
        has_marker = self._options.guarantee is Guarantee.EXACTLY_ONCE
        for name in task.state.stores:
            topic = self._around.topics.changelogs[task.subtopology.name, name]
            if name in task.subtopology.global_stores():
                continue
            if name in task.subtopology.table_sources:
                source = TopicPartition(topic, task.partition)
                task.changelogs[name] = task.inputs[source].position
            elif name in dirty:
                self._writer.send_changelog(topic, task.partition, dirty[name])
                task.changelogs[name] = task.changelogs.get(name, 0) + len(dirty[name]) + has_marker
        return dirty

    def _store(self, task: Task, dirty: dict[str, Dirty]) -> None:
        """Write what the log holds now into the task's own state."""
        if task.state:
            self._options.failpoint("before-store-batch")
            task.state.commit(dirty, task.checkpoint())
            self._options.failpoint("after-store-batch")
            for store, offset in task.state.expired_changelogs().items():
                topic = self._around.topics.changelogs[task.subtopology.name, store]
                self._purgeable[TopicPartition(topic, task.partition)] = offset
        task.has_committed()
        note_progress(self._around, task)

    def abort(self) -> None:
        """Drop what is not committed."""
        self._writer.abort()

    def leave(self, partitions: Collection[TopicPartition]) -> None:
        """Forget what may be deleted from partitions that go elsewhere."""
        self._purgeable = {tp: offset for tp, offset in self._purgeable.items() if tp not in partitions}

    def purge(self) -> None:
        """Delete what is processed from repartition topics, and what has expired from changelogs. Failing costs space only."""
        now_s = self._monotonic_s()
        if self._purgeable and (now_s - self._purged_s) * 1000 >= self._options.purge_interval_ms:
            self._purged_s = now_s
            purgeable, self._purgeable = self._purgeable, {}
            try:
                self._around.admin.delete_records(purgeable)
            except LogflumeError as error:
                _log.warning("%s: what is no longer needed stays for now: %s", self._around.plan.application, error)


def note_progress(around: Surroundings, task: Task) -> None:
    """Keep how far a task's state has come, for the next time that tasks are dealt out."""
    if task.state:
        around.directory.progress.note(task.name, sum(task.state.checkpoint.changelogs.values()))
