"""Several applications computed in one job: read once, and each as it would be alone, whatever ends the job half-way."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import logflume as lf
from logflume import col
from logflume.log import Chunk, InvalidInput, Log, LogflumeError
from logflume.streams.planner import plan
from logflume.streams.runtime.topics import prepare_topics
from logflume.streams.seams import Plan
from logflume.streams.spark import BackfillReport, LocalRunner, SparkRunner, abort_together, plan_together, run_together
from logflume.streams.spark.ranges import OffsetRange, reachable
from logflume.streams.spark.rows import RowKind
from logflume.streams.spark.sharing import Reading, SharedRunner, in_turn, share, shared_places
from logflume.streams.spark.stages import Stage, stages_of
from logflume.streams.spark.steps import StepPlan, StepRunner

from ._spark_apps import (
    PARTITIONS,
    WAIT_S,
    Once,
    Order,
    create_inputs,
    final_results,
    loader,
    own_topics,
    run_live,
    send_orders,
)
from ._spark_session import NEEDS_JAVA, spark_session
from .running import embedded

ROOT = Path(__file__).resolve().parents[2]
KINDS = ["direct", "counted", "repartition", "grouped", "merged"]
READ_ALIKE = ["direct", "counted", "grouped", "merged"]
"""Kinds of one source; "repartition" reads a table too, in a sub-topology of its own."""


@contextmanager
def history(path: Path, *, seed: int, count: int = 400) -> Iterator[Log]:
    with embedded(path) as log:
        create_inputs(log)
        send_orders(log, count, seed=seed, start_ms=5_000_000)
        yield log


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with history(tmp_path / "data", seed=1) as opened:
        yield opened


def together(
    log: Log, runner: StepRunner, kinds: list[str] = KINDS, keep: Path | None = None, **more: Any
) -> list[BackfillReport]:
    loads = [loader(f"batch-{kind}", kind) for kind in kinds]
    return run_together(plan_together(loads, log.where, keep=str(keep) if keep else None), runner, **more)


def check_as_live(log: Log, kind: str, report: BackfillReport, folder: Path) -> None:
    """Go on live from the hand-over, and compare with an application that was never computed as a batch."""
    problems = dict(report.problems)
    for reason, count in run_live(log, f"batch-{kind}", kind, folder / f"batch-{kind}").items():
        problems[reason] = problems.get(reason, 0) + count
    assert problems == run_live(log, f"live-{kind}", kind, folder / f"live-{kind}")
    assert final_results(log, f"batch-{kind}-out") == final_results(log, f"live-{kind}-out") != {}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("records_per_range", [None, 40])
def test_each_of_several_is_as_live(seed: int, records_per_range: int | None, tmp_path: Path) -> None:
    with history(tmp_path / "data", seed=seed) as log:
        reports = together(log, LocalRunner(records_per_range))
        shared = [sum("read once" in stage.way for stage in report.stages) for report in reports]
        assert shared == [1] * len(KINDS) if records_per_range is None else sum(shared) >= 2
        send_orders(log, 60, seed=seed + 10, start_ms=9_000_000)
        for kind, report in zip(KINDS, reports, strict=True):
            check_as_live(log, kind, report, tmp_path)


def test_each_topic_is_fetched_once(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[OffsetRange] = []
    whole = StepPlan.read

    def noted(self: StepPlan, log: Log, wanted: OffsetRange) -> Iterator[Chunk]:
        read.append(wanted)
        return whole(self, log, wanted)

    monkeypatch.setattr(StepPlan, "read", noted)
    together(log, LocalRunner(), [*READ_ALIKE, "joined"])
    assert len(read) == len(set(read)) == 2 * PARTITIONS, "of items too, which one of them reads"


def test_who_reads_more_topics_shares_those_that_others_read(log: Log) -> None:
    kinds = ["direct", "joined", "foreign", "repartition"]
    reports = together(log, LocalRunner(), kinds)
    assert [sum("read once" in stage.way for stage in report.stages) for report in reports] == [1, 1, 1, 1]
    for kind, report in zip(kinds, reports, strict=True):
        (alone,) = run_together(plan_together([loader(f"alone-{kind}", kind)], log.where), LocalRunner())
        assert (report.records, report.results, report.problems) == (alone.records, alone.results, alone.problems)
        assert final_results(log, f"batch-{kind}-out") == final_results(log, f"alone-{kind}-out") != {}


def in_turns(orders: list[list[str]], given: Counter[str]) -> Iterator[Any]:
    """Yield what readers take who take a chunk a turn, each topic by topic in its order."""
    wanted = {topic: OffsetRange(topic, 0, 0, 6) for order in orders for topic in order}

    def read(log: Log, wanted: OffsetRange) -> Iterator[Any]:
        for number in range(6):
            given[wanted.topic] += 1
            yield wanted.topic, number

    shared = Reading([frozenset(wanted[topic] for topic in order) for order in orders])

    def take(reader: int, order: list[str]) -> Iterator[Any]:
        for chunks in [shared.of(reader, read)(None, wanted[topic]) for topic in order]:  # type: ignore[arg-type]
            for chunk in chunks:
                yield chunk
                yield None

    return in_turn([take(reader, order) for reader, order in enumerate(orders)], shared)


@pytest.mark.parametrize(
    ("orders", "held"),
    [([["new"]] * 3, 1), ([["old", "new"], ["new"], ["new"]], 3), ([["old", "new"], ["new", "old"]], 6)],
    ids=["of one topic", "another waits", "each ahead of the other"],
)
def test_none_is_far_ahead_of_the_others(orders: list[list[str]], held: int) -> None:
    given = Counter[str]()
    seen = [Counter[str]() for _ in orders]
    for reader, (topic, number) in in_turns(orders, given):
        assert number == seen[reader][topic], "each has all, in order"
        seen[reader][topic] += 1
        for each in given:
            assert given[each] - min(by[each] for by, order in zip(seen, orders, strict=True) if each in order) <= held
    assert given == dict.fromkeys(given, 6), "each is read once"
    assert [dict(by) for by in seen] == [dict.fromkeys(order, 6) for order in orders]


def stages_alone(log: Log, kinds: list[str], *, records: int | None = None, cores: int = 1) -> list[list[Stage]]:
    """Return the stages of each; `records`: as if a partition had so many."""
    jobs = []
    for each in plan_together([loader(f"{kind}-{at}", kind) for at, kind in enumerate(kinds)], log.where):
        found = each.load_plan()
        ranges = {tp: whole if records is None else whole.up_to(records) for tp, whole in each.ranges.items()}
        step = StepPlan(each.load_plan, log.where, ranges, prepare_topics(found, log.admin()).partitions, {})
        jobs.append(stages_of(step, found, records_per_range=None, cores=cores, slices=None))
    return jobs


def test_a_reading_has_all_that_read_one_of_its_topics(log: Log) -> None:
    assert shared_places(stages_alone(log, ["direct", "joined", "grouped"])) == [((0, 0), (1, 0), (2, 0))]
    assert shared_places(stages_alone(log, ["direct", "foreign"])) == [((0, 0), (1, 0))]


@pytest.mark.parametrize(("cores", "slices", "tasks"), [(PARTITIONS, 1, 1), (2 * PARTITIONS, 1, 2), (3 * PARTITIONS, 3, 1)])
def test_applications_are_dealt_to_idle_cores_where_they_deal_evenly(log: Log, cores: int, slices: int, tasks: int) -> None:
    alone = stages_alone(log, READ_ALIKE[:2] * 2, records=1_000_000, cores=cores)
    staged, (found,) = share(alone, cores)
    assert {stages[0].slices for stages in staged} == {slices}
    assert {stages[0].count for stages in staged} == {slices * PARTITIONS}
    assert found.tasks == tasks


def test_dealt_to_several_tasks_each_gives_the_same(log: Log) -> None:
    stages = [each[0] for each in stages_alone(log, READ_ALIKE)]

    def rows(tasks: int) -> list[list[Any]]:
        found: list[list[Any]] = [[] for _ in stages]
        for reader, batch in SharedRunner.of(stages, tasks).rows(range(tasks * PARTITIONS)):
            found[reader] += [row for row in batch.to_pylist() if row["kind"] != RowKind.COST]
        return found

    assert rows(1) == rows(2) == rows(3)


@pytest.mark.parametrize("step", ["after-claim", "after-topics", "after-job", "writing-ahead", "after-changelogs", "writing"])
def test_a_failure_leaves_nothing_of_those_that_are_not_handed_over(log: Log, step: str) -> None:
    before = own_topics(log)
    with pytest.raises(LogflumeError, match="stopped here"):
        together(log, LocalRunner(), ["direct", "repartition"], failpoint=Once(step, stop))
    assert own_topics(log) == before
    assert not [group for group in log.admin().list_groups() if group.startswith("batch-")]


def test_those_before_a_failure_stay_and_the_others_can_be_run_again(log: Log, tmp_path: Path) -> None:
    done: list[int] = []

    def note(number: int, report: BackfillReport) -> None:
        done.append(number)
        if number == 1:
            stop()

    with pytest.raises(InvalidInput, match="stopped here"):
        together(log, LocalRunner(), on_done=note)
    assert done == [0, 1]
    assert {group for group in log.admin().list_groups() if group.startswith("batch-")} == {f"batch-{each}" for each in KINDS[:2]}
    assert not [topic for topic in own_topics(log) if topic.startswith(tuple(f"batch-{kind}" for kind in KINDS[2:]))]
    together(log, LocalRunner(), KINDS[2:])
    for kind in KINDS:
        run_live(log, f"live-{kind}", kind, tmp_path / kind)
        assert final_results(log, f"batch-{kind}-out") == final_results(log, f"live-{kind}-out") != {}


def stop() -> None:
    raise InvalidInput("stopped here")


def killed_at(log: Log, failpoint: str, folder: Path, keep: Path) -> None:
    """Have a process compute READ_ALIKE together that kills itself."""
    process = "tests.streams._backfill_process"
    command = [sys.executable, "-m", process, reachable(log), "batch", "+".join(READ_ALIKE), failpoint, str(folder / "killed")]
    killed = subprocess.run([*command, str(keep)], cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr


@pytest.mark.parametrize("failpoint", ["after-topics", "after-job", "after-send-offsets", "writing", "after-write"])
def test_a_killed_job_is_gone_on_with(log: Log, failpoint: str, tmp_path: Path) -> None:
    keep = tmp_path / "kept"
    killed_at(log, failpoint, tmp_path, keep)
    send_orders(log, 30, seed=2, start_ms=9_000_000)
    for kind, report in zip(READ_ALIKE, together(log, LocalRunner(), READ_ALIKE, keep), strict=True):
        assert report.records == 400, "it goes on at its cut"
        assert report.stages[0].way.endswith("read once with others" if failpoint == "after-topics" else "kept")
        check_as_live(log, kind, report, tmp_path)


def test_what_a_killed_job_has_left_of_several_is_taken_back(log: Log, tmp_path: Path) -> None:
    keep, loads = tmp_path / "kept", [loader(f"batch-{kind}", kind) for kind in READ_ALIKE]
    killed_at(log, "after-commit", tmp_path, keep)
    first, *others = (f"batch-{kind}" for kind in READ_ALIKE)
    assert abort_together(loads, log.where, keep=str(keep)) == {first: False} | dict.fromkeys(others, True)
    assert not [topic for topic in own_topics(log) if topic.startswith(tuple(others))]
    assert [group for group in log.admin().list_groups() if group.startswith("batch-")] == [first]
    assert [path.parent.name for path in keep.rglob("cut.json")] == [first], "it was handed over, and then killed"
    with pytest.raises(InvalidInput, match="there is no unfinished backfill of applications 'batch-counted', 'batch-direct'"):
        abort_together(loads, log.where, keep=str(keep))


def test_what_cannot_be_computed_together_is_refused(log: Log) -> None:
    def load() -> Plan:
        app = lf.App("after")
        app.stream("batch-direct-out", Order).filter(col.amount > 10).to("after-out")
        return plan(app.topology())

    log.admin().create_topic("batch-direct-out", partitions=PARTITIONS)
    with pytest.raises(InvalidInput, match=r"'after' reads 'batch-direct-out', which 'batch-direct' writes: compute"):
        plan_together([loader("batch-direct", "direct"), load], log.where)
    with pytest.raises(InvalidInput, match="'batch-direct' is given twice"):
        plan_together([loader("batch-direct", "direct")] * 2, log.where)


@NEEDS_JAVA
@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize("records_per_range", [None, 40])
def test_each_of_several_is_as_live_on_spark(spark: Any, records_per_range: int | None, is_kept: bool, tmp_path: Path) -> None:
    with history(tmp_path / "data", seed=5) as log:
        runner = SparkRunner(spark, records_per_range, ranges_from_records=0)
        reports = together(log, runner, keep=tmp_path / "kept" if is_kept else None)
        assert sum("read once" in report.stages[0].way for report in reports) >= 2
        send_orders(log, 60, seed=6, start_ms=9_000_000)
        for kind, report in zip(KINDS, reports, strict=True):
            check_as_live(log, kind, report, tmp_path)
    assert not spark.sparkContext._jsc.getPersistentRDDs().size(), "nothing is held once it is handed over"


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with spark_session("sharing", "local[2]") as session:
        yield session
