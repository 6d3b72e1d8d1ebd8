"""The micro-batches of an application that runs on a cluster: each goes on from what its group has committed. No Spark here.

A micro-batch reads what is committed in the log by now, computes it as a step (`steps.py`), and ends with one transaction of
results, changelogs and offsets. The offsets of the group are the only position: a micro-batch that failed anywhere is computed
again from there, by whoever runs the application then, on a cluster or live. Who that is, the group says (`membership.py`).
What a live instance has put into repartition topics and not taken from there comes first in the next micro-batch; those of Spark
put nothing there.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from logflume.log import (
    GroupMetadata,
    Log,
    LogflumeError,
    OffsetAndMetadata,
    Producer,
    TopicPartition,
)
from logflume.streams.runtime import EngineOptions, OnGap, StreamsError, ensure_dead_letter_topic, prepare_topics
from logflume.streams.runtime.opening import check_contents, check_stores
from logflume.streams.runtime.positions import read_times, refuse_claimed, to_offsets
from logflume.streams.runtime.topics import TopicMap, count_partitions
from logflume.streams.seams import Plan
from logflume.streams.state import Checkpoint

from .claims import refuse_state
from .handover import changelogs_of, offsets_of, rules_for, task_starts
from .membership import Member
from .ranges import OffsetRange, check_partitions
from .rows import RowKind
from .state_folder import StateFolder, mark_of
from .steps import Progress, StepPlan, StepResult
from .turns import turns_of
from .writing import OneTransaction, Target, Written, longest_transaction_ms, transaction_of

Compute = Callable[[StepPlan, Plan, Callable[[Progress], None]], StepResult]
"""Computes a step, each task as a whole."""
_log = logging.getLogger("logflume.streams")


@dataclass(frozen=True, slots=True)
class BatchDone:
    """A micro-batch that is committed: the records it took, what came of them (dead letters too), and in what time.

    `problems`: how many records were left out, by reason. `behind`: how many offsets have come since it began; None: not known.
    """

    number: int
    records: int
    results: int
    entries: int
    problems: Mapping[str, int]
    seconds: float
    behind: int | None


def checked_plan(log: Log, load_plan: Callable[[], Plan], settings: EngineOptions) -> Plan:
    """Return the plan of an application that micro-batches can compute from the topics that there are. Changes nothing.

    Raises:
        UnknownName: a source topic does not exist.
        InvalidInput: the application asks for what a cluster cannot do, or does not fit its topics.
    """
    plan = load_plan()
    turns_of(plan)  # refuses what no job computes
    check_stores(plan, log.admin(), settings.drops)
    count_partitions(plan, log.admin())
    return plan


@contextmanager
def open_batches(
    log: Log,
    load_plan: Callable[[], Plan],
    compute: Compute,
    state_root: Path,
    *,
    settings: EngineOptions,
    on_progress: Callable[[Progress], None] = lambda _: None,
    failpoint: Callable[[str], None] = lambda _: None,
) -> Iterator[Batches]:
    """Give the micro-batches of an application that this process alone runs meanwhile.

    Args:
        state_root: where stores are between micro-batches; whoever computes has to see it.
        settings: what of them holds on a cluster too: where inputs begin, and what becomes of records that cannot be processed.
        failpoint: called with a name at each step of a commit (after-job, after-send-offsets, after-write, after-commit).

    Raises:
        InvalidInput: the application runs elsewhere, or does not fit its state; and as `checked_plan`.
    """
    plan = checked_plan(log, load_plan, settings)
    topics = prepare_topics(plan, log.admin())
    letters = settings.dead_letter_topic
    if letters is not None:
        ensure_dead_letter_topic(log.admin(), letters)
        count = log.admin().describe_topics([letters])[letters].partitions
        topics = replace(topics, partitions={**topics.partitions, letters: count})
    with Member(log, plan, topics.partitions) as member:
        producer = log.producer(
            transactional_id=f"{plan.application}-on-spark", transaction_timeout_ms=longest_transaction_ms(log)
        )
        with producer:
            producer.init_transactions()
            yield Batches(log, load_plan, compute, state_root, settings, plan, topics, member, producer, on_progress, failpoint)


@dataclass(slots=True, eq=False)
class Batches:
    """See the module. `step` and `finish` in any thread; one micro-batch is run at a time."""

    log: Log
    load_plan: Callable[[], Plan]
    compute: Compute
    state_root: Path
    settings: EngineOptions
    plan: Plan
    topics: TopicMap
    member: Member
    producer: Producer
    on_progress: Callable[[Progress], None]
    failpoint: Callable[[str], None]
    done: int = 0
    ids: dict[str, str] = field(default_factory=dict)
    table_ids: dict[str, str] = field(default_factory=dict)
    state: StateFolder | None = None
    is_over: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def sources(self) -> list[str]:
        """The topics that the application reads and does not write itself, those of global tables apart."""
        read = {topic for sub in self.plan.subtopologies for topic in sub.shared_topics()}
        return sorted(read - self.topics.repartition_topics)

    def step(self) -> BatchDone | None:
        """Run a micro-batch up to what is committed in the log now; None: there is nothing new.

        Raises:
            LogflumeError: nothing of it is visible; a retriable one is gone by opening the micro-batches anew.
        """
        with self._lock:
            try:
                return None if self.is_over else self._step()
            except LogflumeError as error:
                reason = self.member.reason(error)
                if reason is error:
                    raise
                raise reason from error

    def finish(self) -> None:
        """Wait for the micro-batch that is under way; none follows."""
        with self._lock:
            self.is_over = True

    def _step(self) -> BatchDone | None:
        begun = time.monotonic()
        metadata = self.member.metadata()  # before the offsets are read: whoever commits after that makes ours void
        committed: Mapping[TopicPartition, OffsetAndMetadata]
        committed = self.log.admin().group_offsets(self.plan.application, is_stable=True)
        if self.settings.offset_reset == "latest":
            committed = self._begun(metadata, committed)
        ranges = self._ranges(committed)
        if not any(map(len, ranges.values())):
            return None
        tables = self._tables()
        if self.state is None:
            self._check(committed)
            self.state = StateFolder.open(self.state_root, self._mark(committed))
        step = StepPlan(
            self.load_plan,
            self.log.where,
            {**ranges, **tables},
            self.topics.partitions,
            task_starts(self.plan, committed),
            str(self.state.path),
            token=uuid.uuid4().hex,
            handlers=self.settings.handlers,
            rules=rules_for(self.log, self.plan, self.settings.dead_letter_topic),
            dead_letter_topic=self.settings.dead_letter_topic,
        )
        self.state.begin()
        result = self.compute(step, self.plan, self.on_progress)
        try:
            self.failpoint("after-job")
            check_partitions(self.log, step.ranges)
            offsets = offsets_of(self.plan, result.ends, ids=self.ids)
            written = self._commit(metadata, result, offsets)
            self.failpoint("after-commit")
        finally:
            result.release()
        self.done += 1
        records = sum(end.records for end in result.ends)
        problems = sum((Counter(end.problems) for end in result.ends), Counter[str]())
        behind = self._looked_after(self.state, {**committed, **offsets}, ranges)
        seconds = time.monotonic() - begun
        return BatchDone(self.done, records, written.results, written.entries, problems, seconds, behind)

    def _looked_after(
        self,
        state: StateFolder,
        committed: Mapping[TopicPartition, OffsetAndMetadata],
        ranges: Mapping[TopicPartition, OffsetRange],
    ) -> int | None:
        """Note what the stores are of, and return how far the log is ahead. What is committed is so if that fails: None."""
        try:
            state.committed(self._mark(committed))
            now = self._ranges({tp: OffsetAndMetadata(taken.end) for tp, taken in ranges.items()})
        except LogflumeError as error:
            _log.warning("the micro-batch is committed, but it is not known what follows: %s", error)
            return None
        return sum(map(len, now.values()))

    def _mark(self, committed: Mapping[TopicPartition, OffsetAndMetadata]) -> str:
        return mark_of(self.log, self.plan, self.topics, committed, self.table_ids)

    def _begun(
        self, metadata: GroupMetadata, committed: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Commit that inputs without a position begin at their ends: whoever goes on begins there, not at later ends.

        Returns all positions.
        """
        admin = self.log.admin()
        fresh = [
            tp
            for topic in self.sources
            for p in range(self.topics.partitions[topic])
            if (tp := TopicPartition(topic, p)) not in committed
        ]
        if not fresh:
            return committed
        self._check(committed)
        ids = {name: topic.topic_id for name, topic in admin.describe_topics(self.sources).items()}
        offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        for tp, end in admin.end_offsets(fresh, read_committed=True).items():
            offsets |= to_offsets(Checkpoint({tp: end}), {}, ids=ids)
        with transaction_of(self.producer):
            self.producer.send_offsets(offsets, metadata)
        return {**committed, **offsets}

    def _commit(
        self, metadata: GroupMetadata, result: StepResult, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> Written:
        """Commit what was computed: offsets first, so that nobody is given the partitions before the transaction has ended."""
        with transaction_of(self.producer):
            self.producer.send_offsets(offsets, metadata)
            self.failpoint("after-send-offsets")
            target = Target(OneTransaction(self.producer.share_transaction()), changelogs_of(self.plan), self.failpoint)
            written = result.write(target, frozenset({RowKind.SINK, RowKind.CHANGELOG}))
            written.check()
            self.failpoint("after-write")
        return written

    def _ranges(self, committed: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[TopicPartition, OffsetRange]:
        """Return what is to be read of each partition, from where the group is to the last stable offset.

        Raises:
            StreamsError: retention has taken records that were not read, or a topic was made anew.
        """
        admin, topics = self.log.admin(), [*self.sources, *sorted(self.topics.repartition_topics)]
        described = admin.describe_topics(topics)
        self._check_ids(committed, {name: topic.topic_id for name, topic in described.items()})
        every = [TopicPartition(topic, p) for topic in topics for p in range(self.topics.partitions[topic])]
        starts, ends = admin.start_offsets(every), admin.end_offsets(every, read_committed=True)
        ranges = {}
        for tp in every:
            first = starts[tp]
            if tp in committed:
                first = self._across_gap(tp, committed[tp].offset, starts[tp])
            ranges[tp] = OffsetRange(*tp, first, max(first, ends[tp]))
        return ranges

    def _tables(self) -> dict[TopicPartition, OffsetRange]:
        """Return what there is of the global tables now. Stores of one that was made anew begin anew."""
        admin, topics = self.log.admin(), sorted({topic for sub in self.plan.subtopologies for topic in sub.global_topics})
        ids = {name: topic.topic_id for name, topic in admin.describe_topics(topics).items()}
        if ids != self.table_ids:
            self.table_ids, self.state = ids, None
        every = [TopicPartition(topic, p) for topic in topics for p in range(self.topics.partitions[topic])]
        starts, ends = admin.start_offsets(every), admin.end_offsets(every, read_committed=True)
        return {tp: OffsetRange(*tp, starts[tp], max(starts[tp], ends[tp])) for tp in every}

    def _across_gap(self, tp: TopicPartition, wanted: int, oldest: int) -> int:
        if wanted >= oldest or tp.topic in self.topics.repartition_topics:
            return max(wanted, oldest)
        text = f"{tp.topic}-{tp.partition}: offsets {wanted} to {oldest - 1} were deleted by retention before they were read"
        if self.settings.on_gap is OnGap.STOP:
            raise StreamsError(f"{text}; set on_gap='earliest' to go on without them, or give the topic a longer retention")
        _log.warning("%s; going on from %d", text, oldest)
        return oldest

    def _check_ids(self, committed: Mapping[TopicPartition, OffsetAndMetadata], now: dict[str, str]) -> None:
        kept = {tp.topic: known for tp, known in read_times(committed).ids.items()} | self.ids
        changed = sorted(topic for topic, known in kept.items() if now.get(topic, known) != known)
        if changed:
            raise StreamsError(
                f"topic {changed[0]!r} was deleted and made anew: what is committed are offsets of the one before; reset the "
                "application"
            )
        self.ids = now

    def _check(self, committed: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Refuse what a live instance would refuse to go on from."""
        refuse_claimed(self.plan.application, committed)
        if not committed:
            refuse_state(self.log, self.plan, set(self.log.admin().list_topics(include_internal=True)))
        for sub in self.plan.subtopologies:
            topics = set(sub.program.sources.values())
            own = {tp: at for tp, at in committed.items() if tp.topic in topics}
            check_contents(self.plan.application, sub, read_times(own).contents, self.state_root)
