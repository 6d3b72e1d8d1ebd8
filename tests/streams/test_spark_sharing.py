"""Several applications computed in one job: read once, and each as it would be alone, whatever ends the job half-way."""

from __future__ import annotations

import signal
import subprocess
import sys
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
from logflume.streams.spark.sharing import Reading, shared_places
from logflume.streams.spark.stages import stages_of
from logflume.streams.spark.steps import StepPlan, StepRunner

from ._spark_apps import (
    PARTITIONS,
    WAIT_S,
    Item,
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
    together(log, LocalRunner(), READ_ALIKE)
    orders = [each for each in read if each.topic == "orders"]
    assert len(orders) == len(set(orders)) == PARTITIONS


def test_none_is_far_ahead_of_the_others() -> None:
    wanted = OffsetRange("orders", 0, 0, 3)
    given: list[int] = []

    def read(log: Log, wanted: OffsetRange) -> Iterator[Any]:
        for number in range(3):
            given.append(number)
            yield number

    reading = Reading(read, 2)
    ahead, behind = (iter(reading.of(reader)(None, wanted)) for reader in range(2))  # type: ignore[arg-type]
    assert [next(ahead), next(behind)] == [0, 0]
    assert given == [0]
    assert [*ahead] == [*behind] == [1, 2]
    assert given == [0, 1, 2]


def joined() -> Plan:
    app = lf.App("joined")
    app.stream("orders", Order).join(app.table("items", Item), prefix="its_").to("joined-out")
    return plan(app.topology())


def test_only_tasks_of_the_same_sources_share(log: Log) -> None:
    planned = plan_together([loader("a", "direct"), joined, loader("b", "grouped")], log.where)
    jobs = []
    for each in planned:
        found = each.load_plan()
        step = StepPlan(each.load_plan, log.where, each.ranges, prepare_topics(found, log.admin()).partitions, {})
        jobs.append((found, stages_of(step, found, records_per_range=None, cores=1)))
    assert shared_places(jobs) == [((0, 0), (2, 0))], "the order of a join's records is that of both its inputs"


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
