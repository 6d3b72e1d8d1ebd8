"""A history is computed by ranges where a look at it shows that they give few entries for their records."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from logflume.log import Chunk, Log, TopicPartition, connect
from logflume.streams.runtime.topics import count_partitions
from logflume.streams.spark import OffsetRange, SparkRunner, estimate_backfill, estimates, looks, plan_backfill, stages
from logflume.streams.spark.looks import Looks, entries_a_record
from logflume.streams.spark.rows import RowKind
from logflume.streams.spark.stages import COMBINED_ENTRIES_MAX, ENTRIES_MAX, LOOK_FROM_RECORDS, stages_of
from logflume.streams.spark.steps import RangeRunner, StepPlan

from ._range_apps import loader, make_plan

RECORDS, LOOKED_AT, RANGE = 24_000, 4_000, 12_000


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with connect(tmp_path / "log") as opened:
        yield opened


def fill(log: Log, key: Callable[[int], str]) -> None:
    """Write sales, one a second."""
    log.admin().create_topic("sales", partitions=1)
    numbers = range(RECORDS)
    values = [json.dumps({"shop": key(n), "item": f"i{n % 500}", "amount": n % 40}).encode() for n in numbers]
    chunk = Chunk.from_columns("sales", [key(n).encode() for n in numbers], values, [1_000 * n for n in numbers], partition=0)
    producer = log.producer()
    producer.send_chunk("sales", chunk, partition=0)
    producer.close()


def runner_of(log: Log, kind: str, combined: frozenset[str] = frozenset()) -> RangeRunner:
    """Return what runs ranges of the sales."""
    plan = make_plan("app", kind)
    step = StepPlan(loader("app", kind), log.where, {}, count_partitions(plan, log.admin()), {})
    return RangeRunner(step, "sales", (), combined)


BY_ITEM = frozenset({"app-sales-by-item-repartition"})


@pytest.mark.parametrize(
    ("kind", "key", "combined", "expected"),
    [
        ("plain", lambda n: f"s{n * 7919 % 53}", frozenset(), 53 / RANGE),
        ("plain", lambda n: f"s{n}", frozenset(), 39 / 40),  # an amount is filtered
        ("windowed", lambda n: f"s{n % 20}", frozenset(), 20 / 60),
        ("hopping", lambda n: f"s{n % 10}", frozenset(), 10 / 20),
        ("rekeyed", lambda n: f"s{n}", BY_ITEM, 500 / RANGE),
        ("rekeyed", lambda n: f"s{n}", frozenset(), 0),  # gives records
    ],
)
def test_a_part_says_how_many_entries_a_range_gives(
    log: Log,
    kind: str,
    key: Callable[[int], str],
    combined: frozenset[str],
    expected: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill(log, key)
    monkeypatch.setattr(looks, "LOOK_RECORDS", LOOKED_AT)
    work, whole = runner_of(log, kind, combined), OffsetRange("sales", 0, 0, RECORDS)
    found = entries_a_record(work, whole, RANGE)
    assert sum(found.values()) == pytest.approx(expected, rel=0.25)
    given: Counter[str] = Counter()
    for batch in RangeRunner(work.step, "sales", ((0, OffsetRange("sales", 0, 0, RANGE)),), combined).prepared()(
        log, 0, work.step.read
    ):
        if batch is not None and batch.num_rows and batch.column("kind")[0].as_py() == RowKind.PARTIAL:
            given[batch.column("name")[0].as_py()] += batch.num_rows
    assert found == pytest.approx({store: entries / RANGE for store, entries in given.items()}, rel=0.25)


def test_of_a_partition_that_is_shorter_than_a_range_all_of_it_is_one(log: Log) -> None:
    fill(log, lambda n: f"s{n % 100}")
    for length in (1, 3, 1_000):
        (found,) = entries_a_record(runner_of(log, "plain"), OffsetRange("sales", 0, 0, length), 1_000_000).values()
        assert found == pytest.approx(min(length, 97.5) / length, rel=0.03)


def test_a_look_that_takes_long_is_given_up(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(log, lambda n: f"s{n}")
    looked_at: list[int] = []

    def slowly(step: StepPlan, log: Log, whole: OffsetRange) -> Iterator[Chunk]:
        looked_at.append(len(whole))
        time.sleep(0.01)
        return iter(())

    monkeypatch.setattr(looks, "LOOK_S_MAX", 0.005)
    monkeypatch.setattr(StepPlan, "read", slowly)
    assert entries_a_record(runner_of(log, "plain"), OffsetRange("sales", 0, 0, RECORDS), RANGE) == {}
    assert looked_at == [-(-RECORDS // 256)]


def test_what_was_looked_at_is_known(log: Log) -> None:
    fill(log, lambda n: "s")
    look, work = Looks(), runner_of(log, "plain")
    first = look("app", work, OffsetRange("sales", 0, 0, 100), 100)
    other = look("other", runner_of(log, "windowed"), OffsetRange("sales", 0, 0, 100), 100)
    assert other != first, "of another application, whose parts have the same names"
    log.admin().delete_records({TopicPartition("sales", 0): RECORDS})
    assert look("app", work, OffsetRange("sales", 0, 0, 100), 100) is first


def shapes(kind: str, entries: Mapping[str, float], records: int = LOOK_FROM_RECORDS, cores: int = 2) -> list[str]:
    """Return by what the stages of one partition are computed, if ranges give so many entries a record."""
    plan = make_plan("app", kind)
    names = {topic for sub in plan.subtopologies for topic in sub.program.sources.values()}
    ranges = {TopicPartition("sales", 0): OffsetRange("sales", 0, 0, records)}
    step = StepPlan(loader("app", kind), "nowhere:1", ranges, dict.fromkeys(names, 1), {})

    def look(application: str, work: RangeRunner, whole: OffsetRange, size: int) -> Mapping[str, float]:
        assert application == "app"
        assert whole == ranges[TopicPartition("sales", 0)]
        return entries

    found = stages_of(step, plan, records_per_range=1_000_000, cores=cores, slices=1, look=look)
    return [stage.way for stage in found]


def test_ranges_that_give_too_many_entries_are_not_made() -> None:
    (store,) = [spec.name for spec in make_plan("app", "plain").subtopologies[0].program.stores]
    by_ranges, record_by_record = ["range by range", "ranges merged"], ["record by record"]
    assert shapes("plain", {store: ENTRIES_MAX}) == by_ranges
    assert shapes("plain", {store: ENTRIES_MAX * 1.01}) == record_by_record
    assert shapes("plain", {store: 1.0}, LOOK_FROM_RECORDS - 1) == by_ranges, "a short one is not looked at"


def test_records_are_shuffled_where_entries_in_their_place_are_too_many() -> None:
    (store,) = [spec.name for sub in make_plan("app", "rekeyed").subtopologies for spec in sub.program.stores]
    few, many = {store: COMBINED_ENTRIES_MAX}, {store: COMBINED_ENTRIES_MAX * 1.01}
    combined = ["range by range", "ranges merged", "ranges merged"]
    assert shapes("rekeyed", few) == combined
    assert shapes("rekeyed", few, cores=1) == combined
    assert shapes("rekeyed", many) == ["range by range", "ranges merged", "record by record"]
    assert shapes("rekeyed", many, cores=1) == ["record by record", "record by record"]


@pytest.mark.parametrize(("key", "way"), [(lambda n: f"s{n % 20}", "range by range"), (lambda n: f"s{n}", "record by record")])
def test_a_backfill_and_its_estimate_look_at_the_history(
    log: Log, key: Callable[[int], str], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(log, key)
    for module, name in ((stages, "LOOK_FROM_RECORDS"), (estimates, "RANGES_FROM_RECORDS")):
        monkeypatch.setattr(module, name, RECORDS)
    planned = plan_backfill(loader("app", "plain"), log.where)
    plan = planned.load_plan()
    step = StepPlan(planned.load_plan, log.where, planned.ranges, count_partitions(plan, log.admin()), {})
    runner = SparkRunner(None, cores=2, ranges_from_records=RECORDS, slices=1)  # type: ignore[arg-type]  # none is begun
    assert runner.stages(step, plan)[0].way == way
    assert estimate_backfill(planned, cores=2).stages[0].way == way
