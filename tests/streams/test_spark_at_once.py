"""Tasks that write what they compute into the transaction of the hand-over: the same as computed first and written then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import logflume as lf
from logflume import col
from logflume.log import Log, LogflumeError, TopicPartition
from logflume.streams.planner import plan
from logflume.streams.runtime import EngineOptions, OnProblem, StreamsError, internal_topics
from logflume.streams.seams import Plan
from logflume.streams.spark import BackfillReport, LocalRunner, abort_backfill, handover, plan_backfill, run_backfill
from logflume.streams.spark.at_once import AT_ONCE_RECORDS, fits_at_once
from logflume.streams.spark.ranges import OffsetRange, read_range
from logflume.streams.spark.stages import stages_of
from logflume.streams.spark.steps import StepPlan

from ._spark_apps import ORDERS, PARTITIONS, Once, Order, create_inputs, final_results, loader, make_plan, own_topics, send_orders
from .running import embedded

STEPS = ["after-send-offsets", "writing", "after-job", "after-write"]
Record = tuple[bytes | None, bytes | None, int]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with embedded(tmp_path / "data") as opened:
        create_inputs(opened)
        send_orders(opened, 300, seed=1, start_ms=5_000_000)
        yield opened


def load_plain(name: str, partitions: int | None = None) -> Plan:
    app = lf.App(name)
    app.stream("orders", Order).filter(col.amount > 10).select(col.item).to(f"{name}-out", partitions=partitions)
    return plan(app.topology())


def backfill(log: Log, load: Callable[[], Plan], failpoint: Callable[[str], None] = lambda _: None) -> BackfillReport:
    return run_backfill(plan_backfill(load, log.where), LocalRunner(), failpoint=failpoint)


def computed_first(log: Log, load: Callable[[], Plan]) -> BackfillReport:
    return run_backfill(plan_backfill(load, log.where), LocalRunner(at_once_records=0))


def is_at_once(report: BackfillReport) -> bool:
    return [stage.way for stage in report.stages] == ["record by record, written at once"]


def records(log: Log, topic: str) -> list[list[Record]]:
    """Return what committed readers see of each partition, in order."""
    every = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    ends = log.admin().end_offsets(every, read_committed=True)
    return [
        [
            (row.key, row.value, row.timestamp_ms)
            for chunk in read_range(log, OffsetRange(*tp, 0, ends[tp]))
            for row in chunk.records()
        ]
        for tp in every
    ]


def outcome(log: Log, name: str, load: Callable[[], Plan]) -> list[object]:
    """Return results and changelogs, and the committed offsets with their times."""
    topics = [f"{name}-out", *sorted(internal_topics(load()))]
    offsets = log.admin().group_offsets(name)
    assert set(offsets) == set(ORDERS)
    return [*(records(log, topic) for topic in topics), offsets]


def check_as_if_computed_first(log: Log, kind: str) -> None:
    loads = loader("batch", kind), loader("first", kind)
    assert not is_at_once(computed_first(log, loads[1]))
    assert outcome(log, "batch", loads[0]) == outcome(log, "first", loads[1])
    assert final_results(log, "batch-out") != {}


@pytest.mark.parametrize("kind", ["direct", "counted"])
def test_what_tasks_write_at_once_is_what_is_computed_first(log: Log, kind: str) -> None:
    report = backfill(log, loader("batch", kind))
    assert is_at_once(report)
    first = computed_first(log, loader("other", kind))
    assert (report.records, report.results, report.entries) == (first.records, first.results, first.entries)
    assert (report.problems, report.left_out) == (first.problems, first.left_out)
    check_as_if_computed_first(log, kind)


@pytest.mark.parametrize("step", STEPS)
def test_a_backfill_that_is_aborted_at_any_step_leaves_nothing(log: Log, step: str) -> None:
    before = own_topics(log)
    aborted = Once(step, lambda: abort_backfill(loader("batch", "direct"), log.where))
    with pytest.raises(LogflumeError):
        backfill(log, loader("batch", "direct"), aborted)
    assert aborted.is_done
    assert own_topics(log) == before
    assert "batch" not in log.admin().list_groups()


@pytest.mark.parametrize("step", STEPS)
def test_a_later_run_takes_over_and_the_earlier_spoils_nothing(log: Log, step: str) -> None:
    with pytest.raises(LogflumeError):
        backfill(log, loader("batch", "direct"), Once(step, lambda: backfill(log, loader("batch", "direct"))))
    check_as_if_computed_first(log, "direct")


def test_no_reader_sees_a_part(log: Log) -> None:
    seen: dict[str, bool] = {}

    def look(reached: str) -> None:
        seen[reached] = any(records(log, "batch-out")) if final_results(log, "batch-out") else False

    assert is_at_once(backfill(log, loader("batch", "direct"), look))
    assert [reached for reached, is_there in seen.items() if is_there] == ["after-commit"]
    assert seen.keys() >= set(STEPS)


def test_keys_that_lie_elsewhere_are_computed_first(log: Log) -> None:
    with log.producer() as producer:
        for at in range(20):
            producer.send(
                "orders",
                b'{"shop":"x","item":"i","amount":%d}' % (50 + at),
                key=b"s%d" % at,
                partition=at % 3,
                timestamp_ms=9_000_000 + at,
            )
    report = backfill(log, loader("batch", "direct"))
    assert not is_at_once(report)
    check_as_if_computed_first(log, "direct")


def test_records_without_a_key_stay_with_their_task(log: Log) -> None:
    with log.producer() as producer:
        for at in range(30):
            producer.send(
                "orders", b'{"shop":"x","item":"i","amount":%d}' % (50 + at), partition=at % 3, timestamp_ms=9_000_000 + at
            )
    report = backfill(log, partial(load_plain, "batch"))
    assert is_at_once(report)
    assert [sum(key is None for key, _, _ in part) for part in records(log, "batch-out")] == [10, 10, 10]
    assert sum(map(len, records(log, "batch-out"))) == report.results == computed_first(log, partial(load_plain, "first")).results


def test_a_record_that_stops_the_application_is_met_once(log: Log) -> None:
    met: list[Order] = []

    def fail(order: Order) -> Order:
        met.append(order)
        raise ValueError("no such order")

    def load() -> Plan:
        app = lf.App("strict")
        app.stream("orders", Order).map_values(fail).to("strict-out")
        return plan(app.topology())

    before = own_topics(log)
    planned = plan_backfill(load, log.where, settings=EngineOptions(on_process=OnProblem.STOP))
    with pytest.raises(StreamsError, match=r"cannot process orders-\d offset \d+ \(callable\): ValueError: no such order"):
        run_backfill(planned, LocalRunner())
    assert len(met) == PARTITIONS, "by each task once, and not anew by the way that computes first"
    assert own_topics(log) == before
    assert not log.admin().group_offsets("strict")


def test_what_takes_longer_than_a_transaction_should_be_open_is_computed_first(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "AT_ONCE_SECONDS", -1.0)
    assert not is_at_once(backfill(log, loader("batch", "direct")))
    check_as_if_computed_first(log, "direct")


def test_only_what_is_short_and_stays_in_its_partition_is_written_at_once() -> None:
    def fits(load: Callable[[], Plan], *, cores: int = 1, most: int = AT_ONCE_RECORDS, partitions: int = PARTITIONS) -> bool:
        wanted = load()
        ranges = {tp: OffsetRange(*tp, 0, 100) for tp in ORDERS}
        counts = {out.topic: partitions for sub in wanted.subtopologies for out in sub.outputs.values()}
        step = StepPlan(load, "", ranges, {"orders": PARTITIONS, "items": PARTITIONS} | counts, {})
        return fits_at_once(stages_of(step, wanted, records_per_range=None, cores=cores), step, wanted, cores, most)

    direct = partial(make_plan, "batch", "direct")
    assert fits(direct)
    assert fits(direct, most=300)
    assert not fits(direct, most=299)
    assert fits(direct, most=100, cores=3), "as much as the longest task"
    assert not fits(direct, most=99, cores=300)
    assert not fits(direct, partitions=PARTITIONS + 1)
    assert not fits(partial(make_plan, "batch", "repartition"))
