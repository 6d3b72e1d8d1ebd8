"""One membership of an engine in its consumer group: from joining until it stops, is fenced or loses the log.

The loop: poll, hand chunks to tasks, restore a step, process, commit when due. Everything runs on the engine's thread, the
group's callbacks too (inside `poll`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Mapping, Sequence

from logflume.log import LogflumeError
from logflume.log.interfaces import Consumer, Log, OffsetAndMetadata
from logflume.log.records import TopicPartition
from logflume.streams.seams import SubTopology
from logflume.streams.state import StoreReader

from .assigning import Copies, Sharing, task_strategy
from .closing import Closer, within
from .committing import TaskCommits, note_progress
from .global_tables import GlobalTables
from .merge import FOREVER
from .opening import (
    Surroundings,
    TopicMadeAnew,
    across_gap,
    check_restored,
    newer_source_ids,
    open_task,
    source_ids,
    start_positions,
)
from .options import Guarantee
from .pace import Pace
from .positions import read_times
from .restore import Restorer
from .standbys import Standbys
from .status import CommitTimes
from .task import Task
from .watch import Watch
from .writer import LogWriter

_log = logging.getLogger("logflume.streams")
_IDLE_POLL_S, _TIMED_POLL_S = 1.0, 0.2
"""While nothing comes: in vain, for all that is told ends a poll; and where something is to be looked at again and again."""
_FETCH_WAIT_MS = 2_000
"""What comes ends the wait, so that it bounds only what questions in vain cost."""
_RESTORE_STEP_S = 0.05
_ADVANCE_EVERY_MS = 10
_LAGS_EVERY_S = 0.1
_CHECK_INPUTS_S = 1.0
_FAREWELL_S = 5.0


class Session:
    """See the module. `tasks` are those of the current assignment, by (sub-topology name, partition)."""

    def __init__(
        self,
        around: Surroundings,
        log: Log,
        *,
        monotonic_s: Callable[[], float],
        commit_times: CommitTimes,
        watch: Watch,
        closer: Closer,
        on_tasks: Callable[[], None],
        on_release: Callable[[Task], None],
        on_committed: Callable[[Mapping[TopicPartition, OffsetAndMetadata | None]], None],
    ) -> None:
        self._around = around
        self._options = around.options
        self._log = log
        self._monotonic_s = monotonic_s
        self._commit_times = commit_times
        self._watch = watch
        self._closer = closer
        self._on_tasks = on_tasks
        self._on_release = on_release
        self._on_committed = on_committed
        self.lags: dict[TopicPartition, int | None] = {}
        self._ids: dict[str, str] = {}
        self._checked_s = monotonic_s()
        self._lags_s = monotonic_s()
        self._pace = Pace()
        self._advanced_ms = 0
        self.tasks: dict[tuple[str, int], Task] = {}
        self._committed: dict[TopicPartition, OffsetAndMetadata | None] = {}
        self._owner: dict[TopicPartition, list[Task]] = {}
        self._is_opened = True
        self.has_joined = False
        self._progress = 0
        self._running: set[Task] = set()
        self._paused: set[TopicPartition] = set()
        instance = self.instance = around.options.instance_id or around.directory.instance_id
        application = around.plan.application
        is_transactional = self._options.guarantee is Guarantee.EXACTLY_ONCE
        self._producer = log.producer(
            transactional_id=f"{application}-{instance}" if is_transactional else None,
            transaction_timeout_ms=self._options.transaction_timeout_ms,
            client_id=f"{application}-{instance}",
        )
        self.consumer: Consumer = log.consumer(
            group_id=application,
            group_instance_id=instance,
            read_committed=True,
            offset_reset="none",
            fetch_max_wait_ms=_FETCH_WAIT_MS,
            session_timeout_ms=self._options.session_timeout_ms,
            heartbeat_interval_ms=self._options.heartbeat_interval_ms,
            assignment_strategies=[
                task_strategy(_sharing(around), self._progress_of_state, self._take_advice, rack=around.options.rack)
            ],
            client_id=f"{application}-{instance}",
        )
        writer = LogWriter(
            self._producer, self.consumer, around.admin, self._options, around.topics.partitions, wall_s=around.wall_s
        )
        self._commits = TaskCommits(around, writer, monotonic_s=monotonic_s, times=commit_times, watch=watch)
        self.restorer = Restorer(self._changelog_consumer, monotonic_s)
        self.standbys = Standbys(around, self._changelog_consumer, self.consumer.committed, closer, monotonic_s)
        self._copies = Copies()
        self.tables = GlobalTables(self._changelog_consumer, around.admin)

    def _changelog_consumer(self) -> Consumer:
        return self._log.consumer(read_committed=True, offset_reset="earliest")

    # -- the loop --------------------------------------------------------------------------------------------------------

    def run(self, is_stopping: Callable[[], bool]) -> None:
        """Take part until told to stop, then commit and leave.

        Raises:
            LogflumeError: fenced, the log is lost, or the application failed; `abandon` must follow.
        """
        if self._options.guarantee is Guarantee.EXACTLY_ONCE:
            self._producer.init_transactions()
        self._ids = source_ids(self._around)
        self._checked_s = self._monotonic_s()
        self._join()
        while not is_stopping():
            self._check_inputs()
            self._poll()
            self._open_assigned()
            self.restorer.step(timeout_s=_RESTORE_STEP_S)
            self._follow()
            self.tables.step()
            self._process()
            self._control_flow()
            self._note_lags()
            if self._commits.is_due(is_behind=self._progress >= self._pace.records):
                self.commit()
            self._commits.purge()
        self.commit()
        self._release_all()
        within(_FAREWELL_S, self.restorer.close, self.tables.close, self.consumer.close, self._producer.close, self.leave_group)

    def abandon(self) -> None:
        """Drop everything uncommitted: after an error nothing in memory may reach a store."""
        self._watch.leave()
        self._commit_times.aborts += 1
        self._release_all()
        within(
            _FAREWELL_S,
            self._commits.abort,
            self.restorer.close,
            self.tables.close,
            lambda: self.consumer.close(leave_group=False),
            self._producer.close,
        )

    def _release_all(self) -> None:
        self._release(list(self.tasks))
        self.standbys.close()
        self._around.directory.progress.write(self._monotonic_s, is_due=True)

    def is_restoring(self, task: Task) -> bool:
        """Whether a task's state is not complete yet."""
        return self.restorer.is_restoring(task) or self.tables.is_loading(task)

    @property
    def is_ready(self) -> bool:
        """Whether the state of all tasks is complete."""
        return self.restorer.is_idle and self.tables.is_idle

    def copies_of(self, store: str) -> dict[int, tuple[StoreReader, int]]:
        """Return readers of what is here of a store and lags: standbys, and tasks that are restored. In any thread."""
        found = self.standbys.readers(store)
        for task in list(self.tasks.values()):
            if task.state and store in task.state.stores and self.restorer.is_restoring(task):
                found[task.partition] = task.state.reader(store), self.restorer.lag_records(task)
        return found

    def leave_group(self) -> None:
        """Hand the partitions on now: closing the consumer leaves a static member in the group."""
        if self._options.leaves_group:
            self._around.admin.remove_group_members(self._around.plan.application, [self.instance])

    def _check_inputs(self) -> None:
        """Notice, after 3.5 s at worst, that an input is another topic now: its offsets would be taken for those of the old one.

        Raises:
            TopicMadeAnew: it is. StreamsError: it is gone.
        """
        if self._monotonic_s() - self._checked_s < _CHECK_INPUTS_S:
            return
        begun_s = self._monotonic_s()
        now = newer_source_ids(self._around, than_s=self._checked_s)
        self._checked_s = begun_s if now else self._checked_s
        changed = sorted(topic for topic, found in now.items() if found != self._ids[topic])
        if changed:
            raise TopicMadeAnew(f"topic {changed[0]!r} was deleted and made anew while it was read")

    def _poll(self) -> None:
        try:
            chunks = self.consumer.poll(timeout_s=self._poll_timeout_s(), max_records=self._pace.fetched_records)
        except LogflumeError as error:
            if error.code != "OFFSET_OUT_OF_RANGE":
                raise
            self._cross_gaps()
            return
        for chunk in chunks:
            for task in self._owner.get(TopicPartition(chunk.topic, chunk.partition), ()):
                task.add(chunk)
                self._commits.note(task, 0)

    def _poll_timeout_s(self) -> float:
        if self._progress or not self.is_ready or self.standbys.is_behind or self.tables.is_behind:
            return 0.0
        is_timed = len(self.standbys) or self.tables or any(task.function.follows_clock for task in self.tasks.values())
        idle_s = _TIMED_POLL_S if is_timed else _IDLE_POLL_S
        return min(self._commits.due_in_s(), idle_s)

    def _process(self) -> None:
        """Process what is planned, up to a bound; `_progress` becomes the number of records."""
        self._progress, begun_s = 0, self._monotonic_s()
        now_ms = int(self._around.wall_s() * 1000)
        is_due = now_ms - self._advanced_ms >= _ADVANCE_EVERY_MS
        if is_due:
            self._advanced_ms = now_ms
        for sub in self._around.plan.subtopologies:
            running = [task for (name, _), task in self.tasks.items() if name == sub.name and task in self._running]
            running.sort(key=lambda task: task.partition)
            for task in running:
                task.plan(self._is_caught_up)
            limit, most = FOREVER, self._pace.records
            if _is_aligned(sub):
                limit, most = min((_reach(task, most) for task in running), default=FOREVER), sys.maxsize
            for task in running:
                self._watch.enter(task.name)
                if is_due or not task.has_begun:
                    task.advance(now_ms)
                    self._commits.note(task, 0)
                before = task.counts.bytes_in
                done = task.process(limit, most)
                if done:
                    self._progress += done
                    self._commits.note(task, task.counts.bytes_in - before)
                self._watch.leave()
            self._commits.send_outputs(sub, running)
        self._pace.took(self._progress, self._monotonic_s() - begun_s)

    def _is_caught_up(self, partition: TopicPartition) -> bool:
        return self.consumer.lag(partition) == 0

    def _note_lags(self) -> None:
        """Keep the lags where other threads may read them (the consumer is this thread's alone)."""
        if self._monotonic_s() - self._lags_s >= _LAGS_EVERY_S:
            self._lags_s = self._monotonic_s()
            self.lags = {source: self.consumer.lag(source) for task in self._running for source in task.inputs}

    def _control_flow(self) -> None:
        """Pause inputs that are buffered beyond the bound, resume those that have drained to half of it."""
        bound = self._options.buffered_records_max
        full, drained = [], []
        for task in self._running:
            for partition, each in task.inputs.items():
                if partition in self._paused:
                    if each.buffered_records <= bound // 2:
                        drained.append(partition)
                elif each.buffered_records > bound:
                    full.append(partition)
        if full:
            self.consumer.pause(full)
            self._paused.update(full)
        if drained:
            self.consumer.resume(drained)
            self._paused.difference_update(drained)

    def commit(self) -> None:
        """Commit all tasks with changes."""
        self._committed.update(self._commits.commit(self.tasks.values(), self._ids))

    # -- assignment ------------------------------------------------------------------------------------------------------

    def _join(self) -> None:
        """Join the group, or ask it to deal out its tasks once more."""
        topics = set().union(*(sub.shared_topics() for sub in self._around.plan.subtopologies))
        self.consumer.subscribe(sorted(topics), on_assigned=self._assigned, on_revoked=self._revoked)

    def _progress_of_state(self) -> dict[str, int]:
        directory = self._around.directory
        return directory.progress.tell(directory.tasks())

    def _take_advice(self, copies: Copies) -> None:
        self._copies = copies

    def _follow(self) -> None:
        """Bring the copies of others' state up a step; when what is to move here is ready for it, say so."""
        self.standbys.step()
        self._around.directory.progress.write(self._monotonic_s)
        if self.standbys.take_ready():
            self._join()

    def _tasks_of(self, assigned: frozenset[TopicPartition]) -> dict[tuple[str, int], SubTopology]:
        return {
            (sub.name, partition): sub
            for sub in self._around.plan.subtopologies
            for partition in whole_tasks(sub, assigned, self._around.topics.partitions)
        }

    def _assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Note what is new in the assignment; nothing of it is fetched before its task is open."""
        committed = self.consumer.committed(partitions)
        positions = start_positions(self._around, committed, self._ids)
        for partition in partitions:
            self.consumer.seek(partition, positions[partition])
        self.consumer.pause(partitions)
        self._paused.update(partitions)
        self._committed.update(committed)
        self._on_committed(committed)
        self._is_opened, self.has_joined = False, True
        self.consumer.wakeup()  # nothing can come before the tasks are open, so that the poll would wait in vain

    def _open_assigned(self) -> None:
        """Open the tasks of newly assigned partitions; all others go on."""
        if self._is_opened:
            self._resume_restored()
            return
        self.standbys.leave(self._tasks_of(frozenset(self.consumer.assignment())))
        assigned = frozenset(self.consumer.assignment())
        wanted = self._tasks_of(assigned)
        standbys = self.standbys.wanted(self._copies, wanted)
        fresh = assigned.difference(*(task.inputs for task in self.tasks.values()))
        self.consumer.pause(fresh)
        self._paused |= fresh
        positions = start_positions(self._around, {tp: self._committed.get(tp) for tp in fresh}, self._ids)
        memory = self._around.disk_memory
        stateful = max(1, sum(bool(sub.program.stores) for sub in wanted.values()))
        memory.tasks = stateful + len(standbys)
        memory_bytes = memory.entries_bytes // stateful
        for task in self.tasks.values():
            if task.state:
                task.state.hold(memory_bytes)
        for (name, partition), sub in sorted(wanted.items(), key=lambda item: item[0]):
            if (name, partition) in self.tasks:
                continue
            self._closer.wait(self._around.directory.task_path(f"{name}.{partition}"))
            task, restorations = open_task(
                self._around, sub, partition, assigned, self._committed, positions, memory_bytes=memory_bytes
            )
            self.tasks[name, partition] = task
            self.restorer.add(restorations)
            self.tables.add(task, dict(self._around.topics.partitions))
            for source, each in task.inputs.items():
                self.consumer.seek(source, each.fetched_to)
        self.standbys.keep(standbys, self._copies)
        self._is_opened = True
        self._owner = {}
        for task in self.tasks.values():
            for source in task.inputs:
                self._owner.setdefault(source, []).append(task)
        _log.info(
            "%s: %d tasks on %d partitions, %d standbys",
            self._around.plan.application, len(self.tasks), len(assigned), len(self.standbys),
        )  # fmt: skip
        self._resume_restored()
        self._on_tasks()

    def _resume_restored(self) -> None:
        """Let tasks run whose stores have become complete; tasks that go by time together begin together."""
        waiting = [task for task in self.tasks.values() if task not in self._running]
        restoring = {task for task in waiting if self.is_restoring(task)}
        held_up = {task.subtopology.name for task in restoring if _is_aligned(task.subtopology)}
        fresh = [task for task in waiting if task not in restoring and task.subtopology.name not in held_up]
        for task in fresh:
            check_restored(self._around, task, self._committed)
            if task.state:
                task.state.preload()
            self._running.add(task)
            self._announce(task)
            partitions = [partition for partition in task.inputs if partition in self._paused]
            self.consumer.resume(partitions)
            self._paused.difference_update(partitions)
        if fresh:
            self._on_tasks()

    def _announce(self, task: Task) -> None:
        """Have the next task commit say where this task answers now, if that has changed."""
        known = {tp: offset for tp in task.inputs if (offset := self._committed.get(tp)) is not None}
        if read_times(known).at != self._around.address:
            task.has_changes = True
            self._commits.note(task, 0)

    def _revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Commit, and close the tasks of partitions that go elsewhere; all others go on."""
        self.commit()
        leaving = set(partitions)
        self._release([key for key, task in self.tasks.items() if leaving & task.inputs.keys()])
        self._paused -= leaving
        self._owner = {source: tasks for source, tasks in self._owner.items() if source not in leaving}
        self.lags = {source: lag for source, lag in self.lags.items() if source not in leaving}
        self._commits.leave(leaving)

    def _release(self, keys: Sequence[tuple[str, int]]) -> None:
        released = [self.tasks.pop(key) for key in keys]
        self._running.difference_update(released)
        if released:
            self._on_tasks()
        for task in released:
            self._on_release(task)
            self.restorer.remove(task)
            self.tables.remove(task)
            note_progress(self._around, task)
            if task.state:
                self._closer.close(task.state)

    def _cross_gaps(self) -> None:
        """The log deleted records before they were fetched: go on or stop, as the setting says."""
        partitions = self.consumer.assignment()
        starts = self._around.admin.start_offsets(partitions)
        for partition in partitions:
            position, start = self.consumer.position(partition), starts[partition]
            if position < start:
                self.consumer.seek(partition, across_gap(self._options, partition, position, start))
                for task in self.tasks.values():
                    if partition in task.inputs:
                        task.miss(partition, position, start)


def _sharing(around: Surroundings) -> Sharing:
    """Return what the group shares: of what each sub-topology reads, the same partitions go to one member."""
    subs, options = around.plan.subtopologies, around.options
    return Sharing(
        {sub.name: sub.shared_topics() for sub in subs},
        frozenset(sub.name for sub in subs if sub.program.stores),
        options.num_standby_replicas,
        options.max_warmup_replicas,
        options.acceptable_recovery_lag,
    )


def _is_aligned(sub: SubTopology) -> bool:
    """Return whether its tasks advance together by time."""
    return any(out.is_repartition for out in sub.outputs.values())


def _reach(task: Task, records: int) -> tuple[int, int]:
    """Return how far a task may go now beside others: what comes later is not before that, and it is about so many records."""
    return min(task.frontier(), task.horizon(records))


def whole_tasks(sub: SubTopology, assigned: Collection[TopicPartition], partitions: Mapping[str, int]) -> list[int]:
    """Return the tasks that are assigned with all that they read: whoever assigns may not have heard of a topic for a moment,
    and a task that runs without one of its inputs joins with what is not there. Their next assignment has the rest.

    `partitions`: topic -> how many it has.
    """
    topics = sub.shared_topics()
    numbers = {each.partition for each in assigned if each.topic in topics}
    read = {number: {TopicPartition(topic, number) for topic in topics if number < partitions[topic]} for number in numbers}
    return sorted(number for number, inputs in read.items() if inputs <= set(assigned))
