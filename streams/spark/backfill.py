"""Backfill: the history of an application as a Spark job, handed to the live application in one transaction (architecture, D11).

    plan = plan_backfill(load_plan, where)      # freezes the cut: source partition -> offset; changes nothing
    report = run_backfill(plan, spark)          # computes [start, cut) on Spark, then installs it

The hand-over (`handover.py`) happens wholly or not at all: a live application that starts afterwards restores its stores from
the changelogs and goes on at the cut. Before it, nothing but new topics exists; a backfill that fails removes them, and what
a killed one left is taken over by the next.

The result topic receives what a live run that commits every 500,000 records of a task would have put there: every record of a
stream result; of a table result the last value of each key (and window) at each of those commits, so the newest record per key
is the value at the cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from logflume.log import InvalidInput, Log, TopicPartition, connect
from logflume.streams.runtime.topics import prepare_topics
from logflume.streams.seams import Plan, changelog_topic

from .archives import Archive, find_archive, join_history, left_to_the_log
from .handover import BackfillReport, hand_over_producer, install
from .ranges import OffsetRange, check_available, check_partitions
from .steps import Progress, StepPlan, StepRunner, refuse_global_tables


@dataclass(frozen=True, slots=True)
class BackfillPlan:
    """What a backfill will read and write. Data: printed by a dry run.

    Attributes:
        load_plan: makes the application's plan; called on the driver and in every executor.
        ranges: source partition -> [start, cut).
        stores: names of the stores that are installed through their changelogs.
        result_topics: where results go.
        archive: what of the ranges is read from files: offsets up to the last one's end.
    """

    application: str
    where: str
    load_plan: Callable[[], Plan]
    ranges: Mapping[TopicPartition, OffsetRange]
    stores: tuple[str, ...]
    result_topics: tuple[str, ...]
    archive: Archive = field(default_factory=dict)

    @property
    def records(self) -> int:
        """Offsets in all ranges: an upper bound of the records."""
        return sum(len(each) for each in self.ranges.values())


def plan_backfill(load_plan: Callable[[], Plan], where: str, *, history: str | None = None) -> BackfillPlan:
    """Freeze the cut: the last stable offset of each source partition as of now. Changes nothing.

    Args:
        history: an archive of source topics (`archive_topic`), for records that the log does not have any more. Tables are
            read from the log alone: a live application fills its stores from there.

    Raises:
        UnknownName: a source topic does not exist.
        InvalidInput: the application runs already or has committed offsets.
        RangeLost: there are records between the archive and the log that neither has.
    """
    plan = load_plan()
    refuse_global_tables(plan)
    with connect(where) as log:
        check_unused(log, plan.application)
        internal = {out.topic for sub in plan.subtopologies for out in sub.outputs.values() if out.is_repartition}
        topics = sorted({topic for sub in plan.subtopologies for topic in sub.program.sources.values()} - internal)
        admin = log.admin()
        described = admin.describe_topics(topics)
        every = [TopicPartition(topic, p) for topic in topics for p in range(described[topic].partitions)]
        starts, ends = admin.start_offsets(every), admin.end_offsets(every, read_committed=True)
    tables = {sub.program.sources[node] for sub in plan.subtopologies for node in sub.table_sources.values()}
    archive = find_archive(history, [topic for topic in topics if topic not in tables]) if history else {}
    logged = {tp: OffsetRange(*tp, starts[tp], max(starts[tp], ends[tp])) for tp in every}
    stores = [spec.name for sub in plan.subtopologies for spec in sub.program.stores if spec.name not in sub.table_sources]
    results = [out.topic for sub in plan.subtopologies for out in sub.outputs.values() if not out.is_repartition]
    return BackfillPlan(
        plan.application,
        where,
        load_plan,
        {tp: join_history(whole, archive.get(tp, ())) for tp, whole in logged.items()},
        tuple(sorted(stores)),
        tuple(sorted(set(results))),
        archive,
    )


def check_unused(log: Log, application: str, *, is_stable: bool = False) -> None:
    """Refuse an application that has members or committed offsets: its history has been computed, or is being."""
    admin = log.admin()
    if application not in admin.list_groups():
        return
    members = len(admin.describe_group(application).members)
    if members:
        raise InvalidInput(
            f"application {application!r} is running ({members} members): stop it, or give the backfill another name"
        )
    if admin.group_offsets(application, is_stable=is_stable):
        raise InvalidInput(
            f"application {application!r} has committed offsets, so it has begun already: give the backfill another name, or "
            "delete the group and its internal topics to compute it again"
        )


def run_backfill(
    backfill: BackfillPlan,
    runner: StepRunner,
    *,
    on_progress: Callable[[Progress], None] = lambda _: None,
    failpoint: Callable[[str], None] = lambda _: None,
) -> BackfillReport:
    """Compute [start, cut) and install it in one transaction; on any error nothing is left behind.

    Args:
        runner: `SparkRunner(session)`, or `LocalRunner()` for a history that one core of this machine can take.
        failpoint: called with a name at each step, so that tests can kill the process there; pickles.
    """
    plan = backfill.load_plan()
    with connect(backfill.where) as log, hand_over_producer(log, backfill.application) as producer:
        check_unused(log, backfill.application, is_stable=True)
        left = {tp: left_to_the_log(whole, backfill.archive.get(tp, ())) for tp, whole in backfill.ranges.items()}
        check_available(log, left)
        check_partitions(log, backfill.ranges)
        before = set(log.admin().list_topics(include_internal=True))
        try:
            topics = prepare_topics(plan, log.admin())
            failpoint("after-topics")
            step = StepPlan(backfill.load_plan, backfill.where, backfill.ranges, topics.partitions, {}, archive=backfill.archive)
            result = runner.run(step, plan, on_progress)
            check_partitions(log, backfill.ranges)
            failpoint("after-job")
            report = install(producer, plan, result, on_progress=on_progress, failpoint=failpoint)
            result.release()
        except BaseException:
            remove_new_topics(log, before, plan)
            raise
    failpoint("after-commit")
    return report


def remove_new_topics(log: Log, before: set[str], plan: Plan) -> None:
    """Delete the topics of the application that did not exist before."""
    own = {out.topic for sub in plan.subtopologies for out in sub.outputs.values()}
    own |= {changelog_topic(plan.application, spec.name) for sub in plan.subtopologies for spec in sub.program.stores}
    admin = log.admin()
    for topic in sorted((own & set(admin.list_topics(include_internal=True))) - before):
        admin.delete_topic(topic)
