"""The hand-over: what a step computed becomes visible at once, with nothing of it going through the driver.

The driver begins ONE log transaction and adds the application's offsets to it (= the cut, with the times that decide about
lateness as their metadata). Whoever holds the rows, executors as a rule, joins that transaction and writes changelogs and results
into it, each partition by one of them. The driver counts what they say and commits. What a reader can see:

    killed or failed                    results     changelogs and offsets
    before the transaction began        nothing     nothing; topics that the backfill made may be there
    driver, while it is open            nothing     nothing; the next backfill of that name, or the time-out, aborts it
    an executor, while it writes        nothing     nothing; the driver aborts, which fences the executors that still write, and
                                                    has everything written again
    broker, while it is open            nothing     nothing; writers try until it is back: all of it is on its disk
    driver or broker, after the commit  all         all; the decision is on disk before the commit returns

Bound: all executors together have to write within `HAND_OVER_TIMEOUT_MS`; the broker aborts a transaction that is open longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from logflume.log import GroupMetadata, Log, LogflumeError, OffsetAndMetadata, Producer, TopicPartition, TransportError
from logflume.streams.runtime.positions import to_offsets
from logflume.streams.seams import Plan, changelog_topic

from .replay import TaskEnd
from .steps import Progress, StageDone, StepResult
from .writing import Target, Written

HAND_OVER_TIMEOUT_MS = 900_000
"""The longest transaction that a broker allows by default (transaction.max.timeout.ms)."""
WRITES_MAX = 3
"""How often all rows are written before executors that die make a backfill fail."""


@dataclass(slots=True)
class BackfillReport:
    """What a backfill did, and in what time."""

    records: int = 0
    results: int = 0
    entries: int = 0
    problems: dict[str, int] = field(default_factory=dict)
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    stages: list[StageDone] = field(default_factory=list)
    hand_over_seconds: float = 0.0


@contextmanager
def hand_over_producer(log: Log, application: str) -> Iterator[Producer]:
    """Give the transactional producer of an application's hand-over; it ends what an earlier one, killed half-way, left open."""
    producer = log.producer(transactional_id=f"{application}-backfill", transaction_timeout_ms=HAND_OVER_TIMEOUT_MS)
    try:
        producer.init_transactions()
        yield producer
    finally:
        producer.close()


def install(
    producer: Producer,
    plan: Plan,
    result: StepResult,
    *,
    on_progress: Callable[[Progress], None] = lambda _: None,
    failpoint: Callable[[str], None] = lambda _: None,
) -> BackfillReport:
    """Have changelogs and results of a step written, and commit them with its offsets, in one transaction.

    Args:
        failpoint: called with a name at each step, and as "writing" by whoever writes: there it is a copy that was sent.

    Raises:
        LogflumeError: what a writer said; nothing was committed.
    """
    offsets = offsets_of(plan, result.ends)
    begun = time.monotonic()
    try:
        written = _write(producer, plan, result, offsets, on_progress, failpoint)
        failpoint("after-write")
        producer.commit_transaction()
    except BaseException:
        _abort(producer)
        raise
    report = BackfillReport(sum(end.records for end in result.ends), written.results, written.entries)
    for end in result.ends:
        for reason, count in end.problems.items():
            report.problems[reason] = report.problems.get(reason, 0) + count
    report.offsets = {tp: at.offset for tp, at in offsets.items()}
    report.stages, report.hand_over_seconds = result.stages, time.monotonic() - begun
    return report


def _write(
    producer: Producer,
    plan: Plan,
    result: StepResult,
    offsets: dict[TopicPartition, OffsetAndMetadata],
    on_progress: Callable[[Progress], None],
    failpoint: Callable[[str], None],
) -> Written:
    """Leave a transaction open that holds everything."""
    stores = [spec.name for sub in plan.subtopologies for spec in sub.program.stores]
    changelogs = {store: changelog_topic(plan.application, store) for store in stores}
    for number in range(1, WRITES_MAX + 1):
        producer.begin_transaction()
        producer.send_offsets(offsets, GroupMetadata(plan.application, -1, ""))
        failpoint("after-send-offsets")
        on_progress(Progress("hand-over: writing, try", number, 0))
        written = result.write(Target(producer.share_transaction(), changelogs, failpoint))
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


def offsets_of(plan: Plan, ends: list[TaskEnd]) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offset commit of all tasks: positions at the cut, times and contents of stores as metadata."""
    readers = {topic: sub for sub in plan.subtopologies for topic in sub.program.sources.values()}
    offsets: dict[TopicPartition, OffsetAndMetadata] = {}
    for end in ends:
        contents = next((readers[tp.topic].contents for tp in end.checkpoint.inputs), {})
        offsets.update(to_offsets(end.checkpoint, contents))
    return offsets


def _abort(producer: Producer) -> None:
    try:
        producer.abort_transaction()
    except LogflumeError:
        return  # the broker aborts it by its timeout, or the next backfill of this name does
