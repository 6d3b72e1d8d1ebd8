"""What a dry run says: the stages of the job, what each will take in and give, and keys that are hot; nothing changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from logflume.cli.backfill_estimate import fields_of, tree_of, warning_of
from logflume.log import Chunk, Log, TopicPartition, connect
from logflume.streams.spark import (
    LocalRunner,
    OffsetRange,
    ReadOnce,
    archive_topic,
    cores_of,
    estimate_backfill,
    estimate_together,
    estimates,
    plan_backfill,
    plan_together,
    run_backfill,
)
from logflume.streams.spark.session import SparkSettings
from logflume.streams.spark.steps import StepPlan

from ._spark_apps import PARTITIONS, create_inputs, loader, send_orders

ORDERS = [TopicPartition("orders", p) for p in range(PARTITIONS)]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with connect(tmp_path / "log") as opened:
        create_inputs(opened)
        yield opened


def test_of_a_sample_that_is_the_history_the_counts_are_those_of_the_job(log: Log) -> None:
    send_orders(log, 400, seed=1, start_ms=5_000_000)
    before = log.admin().list_topics(include_internal=True)
    for kind in ("repartition", "grouped"):
        planned = plan_backfill(loader(kind, kind), log.where)
        for cores in (None, 8):
            found = estimate_backfill(planned, cores=cores)
            assert log.admin().list_topics(include_internal=True) == before
            assert not log.admin().group_offsets(kind)
            first = [stage for stage in found.stages if "orders" in stage.topics]
            assert sum(stage.records for stage in first) == sum(len(planned.ranges[tp]) for tp in ORDERS)
            if cores is None:
                local = found
        report = run_backfill(planned, LocalRunner())
        assert sum(stage.results for stage in local.stages) == report.results
        assert sum(stage.entries for stage in local.stages) == report.entries
        before = log.admin().list_topics(include_internal=True)


def test_a_part_of_the_history_tells_of_all_of_it(log: Log) -> None:
    send_orders(log, 3_000, seed=2, start_ms=5_000_000)
    planned = plan_backfill(loader("batch", "direct"), log.where)
    found = estimate_backfill(planned, cores=None, sample_records=600)
    assert found.sampled < 620
    report = run_backfill(planned, LocalRunner())
    (stage,) = found.stages
    assert stage.records == planned.records
    assert 0.5 < stage.entries / report.entries < 2
    assert 0.5 < stage.results / report.results < 2
    assert stage.cpu_seconds > 0
    assert stage.memory_bytes > 0
    assert stage.in_bytes > 3_000 * 20


def test_what_is_read_once_counts_with_the_first(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    send_orders(log, 100, seed=5, start_ms=5_000_000)
    whole, used_s = StepPlan.read, [0.0]

    def dear(self: StepPlan, log: Log, wanted: OffsetRange) -> Iterator[Chunk]:
        used_s[0] += 1.0
        yield from whole(self, log, wanted)

    monkeypatch.setattr(StepPlan, "read", dear)
    monkeypatch.setattr(estimates, "time", SimpleNamespace(process_time=lambda: used_s[0]))
    planned = plan_together([loader(kind, kind) for kind in ("direct", "joined", "grouped")], log.where)
    assert [estimate_backfill(each, cores=None).stages[0].cpu_seconds for each in planned] == [3.0, 6.0, 3.0]
    found, shared = estimate_together(planned, cores=None)
    stages = [estimate.stages[0] for estimate in found]
    assert [stage.cpu_seconds for stage in stages] == [3.0, 3.0, 0.0], "items are read by the second alone"
    assert {stage.way for stage in stages} == {"record by record, read once with others"}
    assert shared == [ReadOnce(("orders",), ("direct", "joined", "grouped"))]


def test_the_tree_shows_what_comes_of_what_and_json_says_the_same(log: Log) -> None:
    send_orders(log, 100, seed=3, start_ms=5_000_000)
    found = estimate_backfill(plan_backfill(loader("batch", "merged"), log.where), cores=8)
    rows = [row[0] for row in tree_of(found)]
    assert rows[0] == "hand-over"
    assert rows[1].startswith("└─ ")
    assert rows[2].startswith("   ")
    assert rows[-1].strip() == "└─ orders"
    said = json.loads(json.dumps(fields_of(found)))
    assert [stage["way"] for stage in said["stages"]] == [stage.way for stage in found.stages]
    assert said["hand_over"]["records"] == found.written > 0
    assert said["cores"] == 8


@pytest.mark.parametrize(("kind", "keys"), [("direct", ["busy"]), ("repartition", ["i0", "g0"]), ("grouped", [])])
def test_a_hot_key_is_named_where_its_records_cannot_be_merged(log: Log, kind: str, keys: list[str]) -> None:
    producer = log.producer()
    for number in range(600):
        shop, item = ("busy", "i0") if number % 3 else (f"s{number}", f"i{number % 10}")
        value = json.dumps({"shop": shop, "item": item, "amount": 20 + number}).encode()
        producer.send("orders", value, key=shop.encode(), timestamp_ms=number)
    producer.flush()
    producer.close()
    found = estimate_backfill(plan_backfill(loader("batch", kind), log.where), cores=8).hot_keys
    assert [warning_of(each).split()[1] for each in found] == [repr(key) for key in keys]
    assert all(0.6 < each.share < 0.9 for each in found)


def test_records_of_an_archive_are_part_of_the_sample(log: Log, tmp_path: Path) -> None:
    root = str(tmp_path / "archive")
    send_orders(log, 200, seed=4, start_ms=5_000_000)
    archive_topic(log, "orders", root)
    whole = estimate_backfill(plan_backfill(loader("batch", "direct"), log.where), cores=None)
    log.admin().delete_records(dict(log.admin().end_offsets(ORDERS, read_committed=True)))
    found = estimate_backfill(plan_backfill(loader("batch", "direct"), log.where, history=root), cores=None)
    assert [(s.records, s.results, s.in_bytes) for s in found.stages] == [
        (s.records, s.results, s.in_bytes) for s in whole.stages
    ]


def test_cores_are_those_that_the_settings_say() -> None:
    assert cores_of(SparkSettings("local")) == 1
    assert cores_of(SparkSettings("local[2,4]")) == 2
    assert cores_of(SparkSettings("yarn", {"spark.executor.instances": "5", "spark.executor.cores": "4"})) == 20
    assert cores_of(SparkSettings("spark://m:7077")) is None
