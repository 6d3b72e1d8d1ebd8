"""Backfill: the history of an application as a Spark job, handed to the live application in one step (architecture, D11).

    plan = plan_backfill(load_plan, where)      # freezes the cut: source partition -> offset; changes nothing
    report = run_backfill(plan, spark)          # computes [start, cut) on Spark, then installs it

The hand-over (`handover.py`) happens wholly or not at all: a live application that starts afterwards restores its stores from
the changelogs and goes on at the cut. Before it, nobody can run the application, and no reader sees anything; a backfill that
fails takes back what it has made, and what a killed one left goes with the next, or by `abort_backfill`.

The result topic receives what a live run that commits every 500,000 records of a task would have put there: every record of a
stream result; of a table result the last value of each key (and window) at each of those commits, so the newest record per key
is the value at the cut.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

from logflume.log import InvalidInput, Log, Producer, TopicPartition, connect
from logflume.streams.runtime import EngineOptions
from logflume.streams.runtime.handlers import SKIPPING, Handlers
from logflume.streams.runtime.positions import Claim
from logflume.streams.runtime.topics import (
    DEAD_LETTER_PARTITIONS,
    check_dead_letter_topic,
    ensure_dead_letter_topic,
    prepare_topics,
)
from logflume.streams.seams import Plan

from .applications import AppFile
from .archives import Archive, find_archive, join_history, left_to_the_log, refuse_missing
from .claims import abandon, check_claimed, check_unused, claim, claim_of, release
from .handover import (
    RESULTS,
    BackfillReport,
    Switch,
    compute_into,
    enough_time,
    hand_over_producer,
    install,
    offsets_of,
    rules_for,
    task_starts,
    write_ahead,
)
from .kept import Kept, cut_of
from .ranges import OffsetRange, check_available, check_partitions, inputs_of
from .replacing import check_replaceable, take_place
from .steps import Progress, StepPlan, StepResult, StepRunner, StepWritten
from .turns import turns_of
from .writing import Target


@dataclass(frozen=True, slots=True)
class BackfillPlan:
    """What a backfill will read and write. Data: printed by a dry run.

    Attributes:
        load_plan: makes the application's plan; called in every executor.
        plan: what it has made here.
        ranges: source partition -> [start, cut); of a global table what each of its tasks reads before all else.
        stores: names of the stores that are installed through their changelogs.
        result_topics: where results go.
        archive: what of the ranges is read from files: offsets up to the last one's end.
        token: tells this run, and those that go on with it, from any other.
        replaces: the application whose place this one shall take; None: none.
        handlers: what becomes of records that cannot be processed.
        dead_letter_topic: where they are kept; None: they are counted only.
        kept: where the cut and finished stages are kept for a run that goes on with it; None: nowhere.
    """

    application: str
    where: str
    load_plan: Callable[[], Plan]
    plan: Plan
    ranges: Mapping[TopicPartition, OffsetRange]
    stores: tuple[str, ...]
    result_topics: tuple[str, ...]
    archive: Archive = field(default_factory=dict)
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    kept: Kept | None = None
    replaces: str | None = None
    handlers: Handlers = SKIPPING
    dead_letter_topic: str | None = None

    @property
    def records(self) -> int:
        """Offsets in all ranges: an upper bound of the records."""
        return sum(len(each) for each in self.ranges.values())


def plan_backfill(
    load_plan: Callable[[], Plan],
    where: str,
    *,
    history: str | None = None,
    keep: str | None = None,
    replaces: str | None = None,
    cut: Mapping[TopicPartition, OffsetRange] | None = None,
    settings: EngineOptions | None = None,
) -> BackfillPlan:
    """Freeze the cut: the last stable offset of each source partition as of now, or that of a run that died. Changes nothing.

    Args:
        replaces: an application whose place this one takes, in its result topics too (`replacing.py`); it may run meanwhile.
        keep: a directory in which the run keeps what it has finished; one that holds what another run has kept is gone on with.
        cut: what is read of partitions that another backfill reads too, to the same ends, unless this one goes on at a cut of
            its own. Where they begin is for each to say: what is a stream here, from an archive, may be a table there.
        history: an archive of source topics (`archive_topic`), for records that the log does not have any more. Tables are
            read from the log alone: a live application fills its stores from there.
        settings: what of them holds here too: what becomes of records that cannot be processed (`on_problem` and its like), and
            where they are kept (`dead_letter_topic`); None: as the file says that the application is in.

    Raises:
        UnknownName: a source topic does not exist.
        InvalidInput: the application runs already or has committed offsets; its dead letter topic is compacted.
        RangeLost: there are records between the archive and the log that neither has.
    """
    plan, said = _read(load_plan)
    return _planned(
        load_plan,
        plan,
        where,
        history=history,
        keep=keep,
        replaces=replaces,
        cut=cut,
        settings=settings or said,
    )


def _read(load_plan: Callable[[], Plan]) -> tuple[Plan, EngineOptions]:
    """Return what is computed, and what it says that it runs with: a file is run once for both."""
    return load_plan.read() if isinstance(load_plan, AppFile) else (load_plan(), EngineOptions())


def _planned(
    load_plan: Callable[[], Plan],
    plan: Plan,
    where: str,
    *,
    history: str | None,
    keep: str | None,
    replaces: str | None,
    cut: Mapping[TopicPartition, OffsetRange] | None,
    settings: EngineOptions,
) -> BackfillPlan:
    """See `plan_backfill`."""
    turns_of(plan)  # refuses what no job computes
    kept = None if keep is None else Kept(keep)
    former = None if kept is None else kept.cut(plan)
    with connect(where) as log:
        check_unused(log, plan.application)
        if settings.dead_letter_topic is not None:
            check_dead_letter_topic(log.admin(), settings.dead_letter_topic)
        if replaces is not None:
            check_replaceable(log, plan.application, replaces)
        held = claim_of(log, plan.application, is_stable=False)
        internal = {out.topic for sub in plan.subtopologies for out in sub.outputs.values() if out.is_repartition}
        topics = sorted({topic for sub in plan.subtopologies for topic in sub.program.sources.values()} - internal)
        admin = log.admin()
        described = admin.describe_topics(topics)
        every = [TopicPartition(topic, p) for topic in topics for p in range(described[topic].partitions)]
        tables = {sub.program.sources[node] for sub in plan.subtopologies for node in sub.table_sources.values()}
        streams = [topic for topic in topics if topic not in tables]
        starts = admin.start_offsets(every)
        archive = find_archive(history, streams) if history else {}
        ends = admin.end_offsets(every, read_committed=True)  # last: an archiver may add to it meanwhile
    if history and streams and not archive:
        raise InvalidInput(
            f"the archive at {history} has nothing of {', '.join(streams)}: the history would begin where the log does; make one "
            f"with: logflume archive {streams[0]} --to {history}"
        )
    logged = {tp: OffsetRange(*tp, starts[tp], max(starts[tp], ends[tp])) for tp in every}
    ranges = {tp: join_history(whole, archive.get(tp, ())) for tp, whole in logged.items()}
    archived = {tp.topic for tp in archive}
    for tp, whole in logged.items():
        if tp.topic in archived and tp not in archive:
            refuse_missing(whole)
    ranges |= {tp: ranges[tp].up_to(whole.end) for tp, whole in (cut or {}).items() if tp in ranges}
    goes_on = former is not None and held is not None and held.token == former.token
    token = uuid.uuid4().hex
    if goes_on:
        assert former is not None
        ranges = former.by_partition()
        token = former.token if replaces is None else token  # what was read beyond the cut may be in the changelogs already
    stores = [spec.name for sub in plan.subtopologies for spec in sub.program.stores if spec.name not in sub.table_sources]
    results = [out.topic for sub in plan.subtopologies for out in sub.outputs.values() if not out.is_repartition]
    return BackfillPlan(
        plan.application,
        where,
        load_plan,
        plan,
        ranges,
        tuple(sorted(stores)),
        tuple(sorted(set(results))),
        archive,
        token,
        kept,
        replaces,
        settings.handlers,
        settings.dead_letter_topic,
    )


def plan_together(
    loads: Sequence[Callable[[], Plan]],
    where: str,
    *,
    history: str | None = None,
    keep: str | None = None,
    settings: Sequence[EngineOptions | None] | None = None,
) -> list[BackfillPlan]:
    """Freeze one cut for several applications that are computed together; see `plan_backfill`.

    Args:
        settings: of each; None: as their files say.
        keep: a directory that has one for each application.

    Raises:
        InvalidInput: one reads what another writes, so that it has no history yet; or two have the same name.
    """
    plans: list[BackfillPlan] = []
    for load_plan, its in zip(loads, settings or [None] * len(loads), strict=True):
        found, said = _read(load_plan)
        own, cut = _kept_of(found, keep), {tp: whole for plan in plans for tp, whole in plan.ranges.items()}
        plans.append(_planned(load_plan, found, where, history=history, keep=own, replaces=None, cut=cut, settings=its or said))
    names = Counter(plan.application for plan in plans)
    if len(names) < len(plans):
        raise InvalidInput(
            f"{names.most_common(1)[0][0]!r} is given twice; give each application once, and each INSERT INTO an id of its own: "
            "INSERT INTO stream WITH (QUERY_ID = 'name') SELECT ..."
        )
    writers = {topic: plan.application for plan in plans for topic in plan.result_topics}
    for plan in plans:
        for topic in sorted({tp.topic for tp in plan.ranges} & writers.keys()):
            raise InvalidInput(
                f"{plan.application!r} reads {topic!r}, which {writers[topic]!r} writes: compute {writers[topic]!r} first, and "
                f"{plan.application!r} in a backfill of its own"
            )
    return plans


def run_backfill(
    backfill: BackfillPlan,
    runner: StepRunner,
    *,
    on_stopping: Callable[[], None] = lambda: None,
    on_progress: Callable[[Progress], None] = lambda _: None,
    failpoint: Callable[[str], None] = lambda _: None,
) -> BackfillReport:
    """Compute [start, cut) and hand it over; on any error nothing is left behind, unless it is kept to be gone on with.

    Args:
        runner: `SparkRunner(session)`, or `LocalRunner()` for a history that one core of this machine can take.
        on_stopping: called when the application that is replaced has to be stopped; what follows waits for that.
        failpoint: called with a name at each step, so that tests can kill the process there; pickles.
    """
    return run_together([backfill], runner, on_stopping=on_stopping, on_progress=on_progress, failpoint=failpoint)[0]


def run_together(
    backfills: Sequence[BackfillPlan],
    runner: StepRunner,
    *,
    on_done: Callable[[int, BackfillReport], None] = lambda _, __: None,
    on_stopping: Callable[[], None] = lambda: None,
    on_progress: Callable[[Progress], None] = lambda _: None,
    failpoint: Callable[[str], None] = lambda _: None,
) -> list[BackfillReport]:
    """Compute several histories in one job that reads once what they share, and hand over one after another.

    Each hand-over is all or nothing. An error ends it for those that are not handed over yet: nothing of them is left behind,
    unless it is kept to be gone on with. Those before stay.

    Args: see `run_backfill`.
        on_done: called with the place in `backfills` of what has been handed over, before the next one is.
    """
    begun_s, reports = time.monotonic(), []
    with connect(backfills[0].where) as log, ExitStack() as stack:
        begun = [stack.enter_context(_begun(log, backfill, failpoint)) for backfill in backfills]
        if len(begun) == 1 and (report := _at_once(log, begun[0], runner, on_progress, failpoint)):
            failpoint("after-commit")
            report.cores, report.seconds = runner.concurrency, time.monotonic() - begun_s
            on_done(0, report)
            return [report]
        results = runner.run_together([(each.step, each.plan) for each in begun], on_progress)
        for number, (each, result) in enumerate(zip(begun, results, strict=True)):
            report = _hand_over(log, each, result, runner, on_stopping, on_progress, failpoint)
            failpoint("after-commit")
            if each.backfill.kept is not None:
                each.backfill.kept.forget()
            report.cores, report.seconds = runner.concurrency, time.monotonic() - begun_s
            reports.append(report)
            on_done(number, report)
    return reports


@dataclass(frozen=True, slots=True)
class _Begun:
    """A backfill whose application is claimed."""

    backfill: BackfillPlan
    plan: Plan
    producer: Producer
    ours: Claim
    step: StepPlan


@contextmanager
def _begun(log: Log, backfill: BackfillPlan, failpoint: Callable[[str], None]) -> Iterator[_Begun]:
    """Claim an application; an error in the context takes it back, unless it is handed over or stages of it are kept."""
    plan, kept = backfill.plan, backfill.kept
    with hand_over_producer(log, backfill.application) as producer:
        left = {tp: left_to_the_log(whole, backfill.archive.get(tp, ())) for tp, whole in backfill.ranges.items()}
        check_available(log, left)
        check_partitions(log, backfill.ranges)
        if kept is not None:
            kept.begin(cut_of(plan, backfill.token, backfill.ranges))
        ours = claim(log, plan, inputs_of(plan, backfill.ranges), backfill.token, replaces=backfill.replaces or "")
        try:
            failpoint("after-claim")
            partitions = {**prepare_topics(plan, log.admin()).partitions, **_letter_partitions(log, backfill)}
            failpoint("after-topics")
            step = StepPlan(
                backfill.load_plan,
                backfill.where,
                backfill.ranges,
                partitions,
                {},
                archive=backfill.archive,
                kept=kept,
                handlers=backfill.handlers,
                rules=rules_for(log, plan, backfill.dead_letter_topic),
                dead_letter_topic=backfill.dead_letter_topic,
            )
            yield _Begun(backfill, plan, producer, ours, step)
        except BaseException:
            if kept is not None and kept.has_any():
                release(log, ours)
                raise
            abandon(log, plan, ours)
            if kept is not None:
                kept.forget()
            raise


def _letter_partitions(log: Log, backfill: BackfillPlan) -> dict[str, int]:
    """Return how many partitions the dead letter topic has, or will have: it is made when there is something to write.

    Others may keep theirs there by the time at which what a failed backfill has made is removed.
    """
    topic = backfill.dead_letter_topic
    if topic is None:
        return {}
    found = log.admin().find_topics([topic])
    return {topic: found[topic].partitions if topic in found else DEAD_LETTER_PARTITIONS}


def _ensure_letters(log: Log, backfill: BackfillPlan) -> None:
    if backfill.dead_letter_topic is not None:
        ensure_dead_letter_topic(log.admin(), backfill.dead_letter_topic)


def _at_once(
    log: Log, begun: _Begun, runner: StepRunner, on_progress: Callable[[Progress], None], failpoint: Callable[[str], None]
) -> BackfillReport | None:
    """Have what is computed written by its tasks; None: it has to be computed first."""
    backfill, plan, step = begun.backfill, begun.plan, begun.step
    if backfill.replaces is not None or not runner.writes_at_once(step, plan):
        return None

    def compute(target: Target) -> StepWritten:
        done = runner.run_at_once(step, plan, target, on_progress)
        check_partitions(log, backfill.ranges)
        _ensure_letters(log, backfill)
        return done

    with enough_time(log, begun.producer, plan.application, 0):
        inputs = inputs_of(plan, backfill.ranges)
        return compute_into(
            log,
            begun.producer,
            plan,
            begun.ours,
            inputs,
            compute,
            dead_letter_topic=backfill.dead_letter_topic,
            on_progress=on_progress,
            failpoint=failpoint,
        )


def _hand_over(
    log: Log,
    begun: _Begun,
    result: StepResult,
    runner: StepRunner,
    on_stopping: Callable[[], None],
    on_progress: Callable[[Progress], None],
    failpoint: Callable[[str], None],
) -> BackfillReport:
    """Write what was computed, and commit it with the cut."""
    backfill, plan, step = begun.backfill, begun.plan, begun.step
    check_partitions(log, backfill.ranges)
    failpoint("after-job")
    ahead_s = time.monotonic()
    entries = _written_ahead(backfill, plan, result, on_progress, failpoint)
    ahead_s = time.monotonic() - ahead_s
    failpoint("after-changelogs")
    check_claimed(log, plan.application, backfill.token)
    switch: Switch | None = None
    if backfill.replaces is not None:
        on_stopping()
        inputs, letters = inputs_of(plan, backfill.ranges), backfill.dead_letter_topic
        switch, rest = take_place(log, plan, begun.ours, inputs, letters, on_progress)
        failpoint("after-stop")
        starts = task_starts(plan, offsets_of(plan, result.ends))
        ranges = {**backfill.ranges, **rest}  # global tables as they were at the cut
        later = runner.run(replace(step, ranges=ranges, starts=starts, kept=None), plan, on_progress)
        entries += write_ahead(plan, later, backfill.token, on_progress=on_progress, failpoint=failpoint)
        result = result.then(later)
        failpoint("after-rest")
    begun_s = time.monotonic()
    _ensure_letters(log, backfill)
    with enough_time(log, begun.producer, plan.application, result.results):
        report = install(begun.producer, plan, result, kinds=RESULTS, switch=switch, on_progress=on_progress, failpoint=failpoint)
    report.hand_over_seconds = ahead_s + time.monotonic() - begun_s
    result.release()
    report.entries = entries
    return report


def _written_ahead(
    backfill: BackfillPlan,
    plan: Plan,
    result: StepResult,
    on_progress: Callable[[Progress], None],
    failpoint: Callable[[str], None],
) -> int:
    """Have the changelogs written, unless a run before has; return how many entries."""
    kept = backfill.kept
    done = None if kept is None else kept.entries()
    if done is not None:
        return done
    entries = write_ahead(plan, result, backfill.token, on_progress=on_progress, failpoint=failpoint)
    if kept is not None:
        kept.have_written(entries)
    return entries


def abort_backfill(load_plan: Callable[[], Plan], where: str, *, keep: str | None = None) -> None:
    """Take back what a backfill that was killed, or fails, has left; what it has kept too.

    Raises:
        InvalidInput: there is none.
    """
    plan = load_plan()
    if not _take_back(plan, where, keep):
        raise InvalidInput(f"there is no unfinished backfill of application {plan.application!r}")


def abort_together(loads: Sequence[Callable[[], Plan]], where: str, *, keep: str | None = None) -> dict[str, bool]:
    """Take back what is left of applications that were computed together; return of each by its name whether there was something.

    Those that were handed over before the others failed have nothing left, and stay. The last one goes first: topics of results
    that several write go with the first.

    Args:
        keep: a directory that has one for each application (`plan_together`).

    Raises:
        InvalidInput: there is nothing of any of them.
    """
    plans = [load_plan() for load_plan in loads]
    found = {}
    for plan in reversed(plans):
        found[plan.application] = _take_back(plan, where, _kept_of(plan, keep))
    if not any(found.values()):
        raise InvalidInput(f"there is no unfinished backfill of applications {', '.join(map(repr, sorted(found)))}")
    return found


def _take_back(plan: Plan, where: str, keep: str | None) -> bool:
    """Take back what a backfill has left; return whether there was one."""
    with connect(where) as log, hand_over_producer(log, plan.application):
        held = claim_of(log, plan.application)
        if held is None or not abandon(log, plan, held):
            return False
    if keep is not None:
        Kept(keep).forget()
    return True


def _kept_of(plan: Plan, keep: str | None) -> str | None:
    """Return the directory that one of several applications has in theirs."""
    return None if keep is None else f"{keep.rstrip('/')}/{plan.application}"
