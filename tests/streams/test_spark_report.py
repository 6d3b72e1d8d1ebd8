"""What a backfill says at its end: what each stage cost, and of what was left out the first record at each place."""

from __future__ import annotations

import io
import sys
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from logflume.cli.backfill import Job, Where, run
from logflume.cli.stopping import Interrupts
from logflume.log import Log, connect, progress
from logflume.streams.spark import BackfillReport, LocalRunner, SparkSettings, plan_backfill, run_backfill

from ._spark_apps import ORDERS, create_inputs, loader, send_orders


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    with connect(tmp_path_factory.mktemp("report") / "log") as opened:
        create_inputs(opened)
        producer = opened.producer()
        for number in (1, 2):
            producer.send("orders", b"{broken %d" % number, key=b"s1", partition=1, timestamp_ms=5_000_000)
        producer.close()
        send_orders(opened, 300, seed=1, start_ms=5_000_000)
        yield opened


def backfilled(log: Log, name: str, kind: str, runner: LocalRunner) -> BackfillReport:
    return run_backfill(plan_backfill(loader(name, kind), log.where), runner)


@pytest.mark.parametrize(
    ("kind", "runner"), [("direct", LocalRunner()), ("direct", LocalRunner(slices=3)), ("counted", LocalRunner(70))]
)
def test_what_is_left_out_is_told_by_place_with_its_first_record(log: Log, kind: str, runner: LocalRunner) -> None:
    name = f"left-{kind}-{runner.slices}"
    report = backfilled(log, name, kind, runner)
    by_reason = Counter[str]()
    for place in report.left_out:
        by_reason[place.reason] += place.records
    assert by_reason["decode"] == report.problems["decode"] >= 2
    (place,) = [place for place in report.left_out if place.reason == "decode"]
    assert place.topic == "orders"
    assert place.first.startswith("orders-"), "the record is named"
    firsts = [place.first.split(":")[0] for place in report.left_out]
    known = {f"{tp.topic}-{tp.partition} offset {offset}" for tp in ORDERS for offset in range(200)}
    assert set(firsts) <= known


def test_each_stage_says_what_it_gave_and_what_that_cost(log: Log) -> None:
    report = backfilled(log, "cost", "repartition", LocalRunner())
    first, *_, last = report.stages
    assert all(stage.cost.rows > 0 for stage in report.stages)
    assert last.cost.rows == report.results + report.entries, "results and entries leave the last stage, and nothing else"
    assert first.cost.out_bytes > 10 * first.cost.rows
    assert all(stage.cost.cpu_seconds > 0 for stage in report.stages)
    assert report.cores == 1


@pytest.mark.parametrize("runner", [LocalRunner(), LocalRunner(at_once_records=0)])
def test_times_add_up_and_what_is_neither_stage_nor_hand_over_is_told(log: Log, runner: LocalRunner) -> None:
    name, pause_s = f"times-{runner.at_once_records}", 0.2

    def pause(step: str) -> None:
        time.sleep(pause_s if step in ("after-claim", "writing-ahead") else 0.0)

    planned = plan_backfill(loader(name, "direct"), log.where)
    report = run_backfill(planned, runner, failpoint=pause)
    assert report.other_seconds >= pause_s, "the claim"
    told = sum(stage.seconds for stage in report.stages) + report.hand_over_seconds + report.other_seconds
    assert told == pytest.approx(report.seconds)
    assert runner.at_once_records or report.hand_over_seconds >= pause_s, "changelogs are written ahead of it"


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_at_a_terminal_the_report_is_not_behind_the_progress_line(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    screen, load = Screen(), loader("shown", "direct")
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(sys, stream, screen)
    for pause in ("_TERMINAL_FIRST_S", "_TERMINAL_EVERY_S"):
        monkeypatch.setattr(progress, pause, 0.0)
    with Interrupts("") as interrupts:
        job = Job(load, lambda: "it goes on")
        run([plan_backfill(load, log.where)], Where.LOCAL, SparkSettings(), [job], False, interrupts)
    lines = screen.getvalue().split("\n")
    (first,) = [line for line in lines if "computed     3" in line]
    assert "hand-over: records written" in first
    assert first.rpartition("\r\x1b[K")[2].startswith("computed     3")
