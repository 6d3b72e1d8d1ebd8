"""The hand-over: what a step computed becomes visible at once, with nothing of it going through the driver.

The driver claims the application (`claims.py`): nobody else can run it from then on. Whoever holds the rows, executors as a rule,
writes the changelogs: the state, in as many transactions as it takes, which nobody reads while the claim stands. Then the
driver begins ONE log transaction and adds the application's offsets to it (= the cut, with the times that decide about lateness
as their metadata), in place of the claim. Executors join it and write the results, each partition by one of them. The driver
counts what they say and commits. What a reader can see:

    killed or failed                    results     changelogs and offsets
    before the claim                    nothing     nothing
    driver, after the claim             nothing     the claim, and topics of which some have records: nobody can run the
                                                    application; the next backfill of that name, or --abort, removes them
    an executor, writing changelogs     nothing     its task runs again and writes the same entries again
    driver, while the transaction is    nothing     as above; the next backfill, --abort, or the time-out aborts it
    open
    an executor, while it writes        nothing     as above; the driver aborts, which fences the executors that still write, and
    results                                         has the results written again
    broker, at any of these             nothing     nothing; writers try until it is back: all of it is on its disk
    driver or broker, after the commit  all         all; the decision is on disk before the commit returns

Bound: none for the state. A reader of committed records sees a prefix of a partition, so that results that show all at once have
to be in one transaction of their partition, whatever the protocol around it. Nothing but writing them is in its time, which
brokers bound (`transaction.max.timeout.ms`, 15 minutes unless set). Where there are more than surely can be written in it, a
transaction without a time-out is asked for: brokers give it that have `transaction.two.phase.commit.enable` to whoever has the
right TwoPhaseCommit. It stays open through kills of executors and brokers; that of a driver that was killed is ended by the next
run, or --abort.

A short step whose tasks stay in their partitions (`at_once.py`) is computed inside of that transaction, by tasks that write what
they compute: results into it, changelogs ahead of it as ever. What a reader can see is the same, because nothing of it hangs on
when the transaction began. Whatever a task cannot write so, or an executor that is killed, makes it void: it is aborted, and the
step is computed and handed over as above. It is not computed so for longer than AT_ONCE_SECONDS.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain

from logflume.log import (
    NO_TIMEOUT_MS,
    GroupMetadata,
    InvalidInput,
    Log,
    LogflumeError,
    OffsetAndMetadata,
    Producer,
    TopicPartition,
    TransportError,
)
from logflume.streams.runtime import StreamsError
from logflume.streams.runtime.positions import Claim, read_times, to_offsets
from logflume.streams.runtime.rules import TopicRules
from logflume.streams.runtime.status import LeftOut, added_up
from logflume.streams.runtime.task import task_name
from logflume.streams.runtime.writer import ask_rules
from logflume.streams.seams import Plan, changelog_topic
from logflume.streams.state import Checkpoint

from .claims import claimed
from .ranges import OffsetRange
from .replay import TaskEnd
from .rows import RowKind
from .steps import Progress, StageDone, StepResult, StepWritten
from .writing import (
    MAX_TIMEOUT,
    BothAtOnce,
    OneTransaction,
    OwnTransactions,
    Target,
    Written,
    chunk_of,
    longest_transaction_ms,
)

_UNLIMITED = "transaction.two.phase.commit.enable"
RESULTS = frozenset({RowKind.SINK})
RESULTS_PER_SECOND_SURE = 10_000
"""What executors write together at the least; measured: 40 times that by one core."""
AT_ONCE_SECONDS = 300.0
"""How long tasks may compute and write at once, if brokers let a transaction be open twice as long."""
WRITES_MAX = 3
"""How often all rows are written before executors that die make a backfill fail."""


@dataclass(slots=True)
class BackfillReport:
    """What a backfill did, and in what time.

    `left_out`: by place, with the first record of each. `cores`: how many tasks ran at a time. `seconds`: of all of it, of which
    `hand_over_seconds` are for writing and committing what was computed, as far as its tasks have not.
    """

    records: int = 0
    results: int = 0
    entries: int = 0
    problems: dict[str, int] = field(default_factory=dict)
    left_out: tuple[LeftOut, ...] = ()
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    stages: list[StageDone] = field(default_factory=list)
    hand_over_seconds: float = 0.0
    cores: int = 1
    seconds: float = 0.0

    @property
    def other_seconds(self) -> float:
        """Time that is neither a stage's nor the hand-over's: the claim, topics, executors that start, what is waited for."""
        return max(self.seconds - self.hand_over_seconds - sum(stage.seconds for stage in self.stages), 0.0)


@dataclass(frozen=True, slots=True)
class Switch:
    """Another application whose place is taken in the same transaction.

    Attributes:
        offsets: what is committed for it.
        tables: topics that hold its table's rows -> partitions: of keys that are not written now the rows are deleted.
        streams: topics that keep what it has written, its dead letters too: nothing of the history is added.
    """

    application: str
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    tables: Mapping[str, int]
    streams: frozenset[str]


@contextmanager
def hand_over_producer(log: Log, application: str) -> Iterator[Producer]:
    """Give the transactional producer of an application's hand-over; it ends what an earlier one, killed half-way, left open."""
    timeout_ms = longest_transaction_ms(log)
    producer = log.producer(transactional_id=f"{application}-backfill", transaction_timeout_ms=timeout_ms)
    try:
        producer.init_transactions()
        yield producer
    finally:
        producer.close()


@contextmanager
def enough_time(log: Log, producer: Producer, application: str, results: int) -> Iterator[None]:
    """Let the next transaction of a hand-over be open for as long as so many results may take; say so where it was too short.

    Raises:
        TransportError: brokers allow no transaction that is long enough; nothing of it is visible.
    """
    limit_ms = longest_transaction_ms(log)
    if results * 1000 > RESULTS_PER_SECOND_SURE * limit_ms:
        with suppress(InvalidInput):  # it may be fast enough
            producer.init_transactions(transaction_timeout_ms=NO_TIMEOUT_MS)
            limit_ms = NO_TIMEOUT_MS
    begun = time.monotonic()
    try:
        yield
    except LogflumeError as error:
        if (time.monotonic() - begun) * 1000 < limit_ms:
            raise
        raise TransportError(
            f"the results were not written within the {limit_ms} ms that brokers allow a transaction, so none is visible: set "
            f"{_UNLIMITED}=true there (with access control, also allow TwoPhaseCommit on the transactional id "
            f"{application}-backfill), or a longer {MAX_TIMEOUT}"
        ) from error


def write_ahead(
    plan: Plan, result: StepResult, token: str, *, on_progress: Callable[[Progress], None], failpoint: Callable[[str], None]
) -> int:
    """Have the changelogs of a claimed application written, which nobody reads yet; return how many entries.

    Raises:
        LogflumeError: what a writer said.
    """
    changelogs = changelogs_of(plan)
    if not changelogs:  # to look through all rows for nothing takes a job
        return 0
    on_progress(Progress("hand-over: writing changelogs", 0, 0))
    target = Target(OwnTransactions(plan.application, token), changelogs, failpoint, "writing-ahead")
    written = result.write(target, frozenset({RowKind.CHANGELOG}))
    if written.problem is not None:
        raise LogflumeError(f"the changelogs were not written: {written.problem}")
    return written.entries


def rules_for(log: Log, plan: Plan, dead_letter_topic: str | None) -> dict[str, TopicRules]:
    """Return what the topics of an application's results, and of its dead letters, do not take, as far as they say so to us."""
    results = {out.topic for sub in plan.subtopologies for out in sub.outputs.values() if not out.is_repartition}
    letters = set() if dead_letter_topic is None else {dead_letter_topic}
    return {topic: ask_rules(log.admin(), topic) for topic in sorted(results | letters)}


def changelogs_of(plan: Plan) -> dict[str, str]:
    """Return store -> changelog topic; what is rebuilt from a table's topic has none."""
    stores = [spec.name for sub in plan.subtopologies for spec in sub.program.stores if spec.name not in sub.table_sources]
    return {store: changelog_topic(plan.application, store) for store in stores}


def install(
    producer: Producer,
    plan: Plan,
    result: StepResult,
    *,
    kinds: frozenset[RowKind] = frozenset({RowKind.SINK, RowKind.CHANGELOG}),
    switch: Switch | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
    failpoint: Callable[[str], None] = lambda _: None,
) -> BackfillReport:
    """Have rows of a step written, and commit them with its offsets, in one transaction.

    Args:
        kinds: without changelogs where those were written ahead.
        failpoint: called with a name at each step, and as "writing" by whoever writes: there it is a copy that was sent.

    Raises:
        LogflumeError: what a writer said; nothing was committed.
    """
    offsets = offsets_of(plan, result.ends)
    try:
        written = _write(producer, plan, result, kinds, offsets, switch, on_progress, failpoint)
        failpoint("after-write")
        producer.commit_transaction()
    except BaseException:
        _abort(producer)
        raise
    return _report(result.ends, result.stages, written, offsets)


def compute_into(
    log: Log,
    producer: Producer,
    plan: Plan,
    ours: Claim,
    cut: Mapping[TopicPartition, OffsetRange],
    compute: Callable[[Target], StepWritten],
    *,
    dead_letter_topic: str | None,
    on_progress: Callable[[Progress], None],
    failpoint: Callable[[str], None],
) -> BackfillReport | None:
    """Have a step computed by tasks that write into the transaction of its hand-over themselves, and commit it.

    None: a task could not, ran twice, or was not done in AT_ONCE_SECONDS. No result is visible then; entries of changelogs are
    there, and will be written once more.

    Raises:
        StreamsError: what ends the application whichever way it is computed, such as a record at which it stops.
        LogflumeError: what the driver itself met; nothing was committed.
    """
    group, changelogs = GroupMetadata(plan.application, -1, ""), changelogs_of(plan)
    until_s = time.time() + min(AT_ONCE_SECONDS, longest_transaction_ms(log) / 2000)
    state = OwnTransactions(plan.application, ours.token)
    producer.begin_transaction()
    try:
        producer.send_offsets(claimed(cut, ours), group)  # what stands there now: the coordinator has to know of the transaction
        failpoint("after-send-offsets")
        way = BothAtOnce(OneTransaction(producer.share_transaction()), state, frozenset(changelogs.values()))
        done = compute(Target(way, changelogs, failpoint, until_s=until_s))
        failpoint("after-job")
        if done.written.is_final:
            raise StreamsError(done.written.problem)
        if done.written.problem is not None or done.written.is_partial:
            on_progress(Progress("not to be written while it is computed: computed first, then written", 0, 0))
            producer.abort_transaction()
            producer.init_transactions()  # as in `_write`
            return None
        written = _with_letters(producer, done, dead_letter_topic)
        on_progress(Progress("hand-over: records written", written.results + written.entries, 0))
        computed, offsets = time.monotonic(), offsets_of(plan, done.ends)
        producer.send_offsets(offsets, group)
        failpoint("after-write")
        producer.commit_transaction()
    except BaseException:
        _abort(producer)
        raise
    report = _report(done.ends, done.stages, written, offsets)
    report.hand_over_seconds = time.monotonic() - computed
    return report


def _with_letters(producer: Producer, done: StepWritten, topic: str | None) -> Written:
    """Write the dead letters of tasks that have written everything else; return what is written then."""
    for letters in done.letters:
        assert topic is not None, "they are not kept without a topic"
        producer.send_chunk(topic, chunk_of(topic, 0, letters))
    return replace(done.written, results=done.written.results + sum(letters.num_rows for letters in done.letters))


def _report(
    ends: Sequence[TaskEnd],
    stages: list[StageDone],
    written: Written,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
) -> BackfillReport:
    report = BackfillReport(sum(end.records for end in ends), written.results, written.entries)
    for end in ends:
        for reason, count in end.problems.items():
            report.problems[reason] = report.problems.get(reason, 0) + count
    report.left_out = added_up(chain.from_iterable(end.left_out for end in ends))
    report.offsets = {tp: at.offset for tp, at in offsets.items()}
    report.stages = stages
    return report


def _write(
    producer: Producer,
    plan: Plan,
    result: StepResult,
    kinds: frozenset[RowKind],
    offsets: dict[TopicPartition, OffsetAndMetadata],
    switch: Switch | None,
    on_progress: Callable[[Progress], None],
    failpoint: Callable[[str], None],
) -> Written:
    """Leave a transaction open that holds everything."""
    for number in range(1, WRITES_MAX + 1):
        producer.begin_transaction()
        producer.send_offsets(offsets, GroupMetadata(plan.application, -1, ""))
        if switch is not None:
            producer.send_offsets(switch.offsets, GroupMetadata(switch.application, -1, ""))
        failpoint("after-send-offsets")
        on_progress(Progress("hand-over: writing, try", number, 0))
        target = Target(OneTransaction(producer.share_transaction()), changelogs_of(plan), failpoint)
        if switch is not None:
            target = replace(target, tables=switch.tables, left_out=switch.streams)
        written = result.write(target, kinds)
        if written.problem is not None:
            raise LogflumeError(f"the hand-over was not written: {written.problem}")
        if not written.is_partial:
            on_progress(Progress("hand-over: records written", written.results + written.entries, 0))
            return written
        producer.abort_transaction()
        producer.init_transactions()  # a new epoch: brokers without KIP-890 give none at an abort
    raise TransportError(
        f"executors died in each of {WRITES_MAX} tries to write the hand-over: nothing of it is visible; try again"
    )


def offsets_of(
    plan: Plan, ends: list[TaskEnd], *, ids: Mapping[str, str] | None = None
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offset commit of all tasks: positions at the cut, times and contents of stores as metadata.

    `ids`: see `to_offsets`.
    """
    readers = {topic: sub for sub in plan.subtopologies for topic in sub.shared_topics()}
    offsets: dict[TopicPartition, OffsetAndMetadata] = {}
    for end in ends:
        contents = next((readers[tp.topic].contents for tp in end.checkpoint.inputs), {})
        offsets.update(to_offsets(end.checkpoint, contents, ids=ids))
    return offsets


def task_starts(plan: Plan, committed: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[str, Checkpoint]:
    """Return where each task that has committed offsets goes on, by task name."""
    starts = {}
    for sub in plan.subtopologies:
        topics = sub.shared_topics()
        for partition in {tp.partition for tp in committed if tp.topic in topics}:
            own = {tp: at for tp, at in committed.items() if tp.topic in topics and tp.partition == partition}
            times = read_times(own)
            positions = {tp: at.offset for tp, at in own.items()}
            starts[task_name(sub, partition)] = Checkpoint(positions, times.inputs_ms, {}, times.stores_ms)
    return starts


def _abort(producer: Producer) -> None:
    try:
        producer.abort_transaction()
    except LogflumeError:
        return  # the broker aborts it by its timeout, or the next backfill of this name does
