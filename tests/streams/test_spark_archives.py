"""Archives: a history of which the log has lost the beginning gives what the whole log gave."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from logflume.log import InvalidInput, Log, Record, TopicPartition, connect
from logflume.streams.spark import ArchiveUnreadable, LocalRunner, RangeLost, archive_topic, plan_backfill, run_backfill
from logflume.streams.spark.archives import find_archive, read_history
from logflume.streams.spark.ranges import OffsetRange

from ._kills import WAIT_S
from ._spark_apps import PARTITIONS, create_inputs, final_results, loader, send_orders

ORDERS = [TopicPartition("orders", p) for p in range(PARTITIONS)]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with connect(tmp_path / "log") as opened:
        create_inputs(opened)
        yield opened


def settled_ends(log: Log, topic: str = "orders") -> dict[TopicPartition, int]:
    """Return the ends of a topic once the markers of its transactions are in: a commit is answered when it is decided."""
    every = [TopicPartition(topic, p) for p in range(PARTITIONS)]
    deadline = time.monotonic() + WAIT_S
    while True:
        ends = log.admin().end_offsets(every, read_committed=True)
        if ends == log.admin().end_offsets(every, read_committed=False):
            return dict(ends)
        assert time.monotonic() < deadline


def records_of(log: Log, wanted: OffsetRange, root: str | None) -> list[Record]:
    files = find_archive(root, [wanted.topic]).get(wanted.topic_partition, ()) if root else ()
    return [record for chunk in read_history(log, wanted, files) for record in chunk.records()]


def test_what_is_archived_is_what_was_in_the_log_to_the_last_byte(log: Log, tmp_path: Path) -> None:
    root = str(tmp_path / "archive")
    producer = log.producer(transactional_id="t")
    producer.init_transactions()
    for number in range(6):
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            headers = (("h", b"\x00\xff"), ("h", None)) if number % 2 else ()
            producer.send("orders", None, key=b"gone", partition=partition, timestamp_ms=number, headers=headers)
            producer.send("orders", b"", partition=partition, timestamp_ms=7)
        producer.flush()
        if number == 3:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
        ends = settled_ends(log)
        if number in (2, 4):
            archive_topic(log, "orders", root, records_per_file=4)
    wholes = [OffsetRange(*tp, 0, ends[tp]) for tp in ORDERS]
    before = [records_of(log, whole, None) for whole in wholes]
    assert [len(each) for each in before] == [10] * PARTITIONS
    log.admin().delete_records({tp: ends[tp] - 5 for tp in ORDERS[1:]})
    archive_topic(log, "orders", root)
    log.admin().delete_records(dict(ends))
    assert [records_of(log, whole, root) for whole in wholes] == before
    middle = [OffsetRange(*tp, 3, 9) for tp in ORDERS]
    assert [records_of(log, each, root) for each in middle] == [[r for r in each if 3 <= r.offset < 9] for each in before]


@pytest.mark.parametrize("records_per_range", [None, 70])
def test_a_backfill_from_an_archive_equals_one_from_the_whole_log(
    log: Log, records_per_range: int | None, tmp_path: Path
) -> None:
    root = str(tmp_path / "archive")
    now_ms = send_orders(log, 700, seed=1, start_ms=5_000_000)
    archive_topic(log, "orders", root, records_per_file=100)
    archived = log.admin().end_offsets(ORDERS, read_committed=True)
    send_orders(log, 300, seed=2, start_ms=now_ms)
    runner = LocalRunner(records_per_range)
    whole = run_backfill(plan_backfill(loader("whole", "repartition"), log.where), runner)
    log.admin().delete_records({ORDERS[0]: archived[ORDERS[0]], ORDERS[1]: archived[ORDERS[1]] // 2})
    without = plan_backfill(loader("without", "repartition"), log.where)
    plan = plan_backfill(loader("joined", "repartition"), log.where, history=root)
    assert plan.records == without.records + archived[ORDERS[0]] + archived[ORDERS[1]] // 2
    report = run_backfill(plan, runner)
    assert (report.records, report.results, report.entries) == (whole.records, whole.results, whole.entries)
    assert report.problems == whole.problems
    assert [report.offsets[tp] for tp in ORDERS] == [whole.offsets[tp] for tp in ORDERS]
    for topic in ("joined-out", "whole-out"):
        settled_ends(log, topic)
    assert final_results(log, "joined-out") == final_results(log, "whole-out") != {}


def test_gaps_and_overlaps_are_refused_before_anything_changes(log: Log, tmp_path: Path) -> None:
    root = tmp_path / "archive"
    send_orders(log, 200, seed=3, start_ms=5_000_000)
    archive_topic(log, "orders", str(root), records_per_file=20)
    ends = log.admin().end_offsets(ORDERS, read_committed=True)
    send_orders(log, 100, seed=4, start_ms=5_000_000)
    before = log.admin().list_topics(include_internal=True)
    log.admin().delete_records({ORDERS[0]: ends[ORDERS[0]] + 1})

    def plan() -> None:
        plan_backfill(loader("batch", "direct"), log.where, history=str(root))

    with pytest.raises(RangeLost, match=r"orders-0: the archive ends at offset \d+ and the log starts at \d+.*in neither"):
        plan()
    with pytest.raises(RangeLost, match="in neither"):
        archive_topic(log, "orders", str(root))
    with pytest.raises(InvalidInput, match=r"no archive at .*logflume archive TOPIC --to"):
        plan_backfill(loader("batch", "direct"), log.where, history=str(tmp_path / "none"))
    files = sorted((root / "orders").glob("orders-0-*.parquet"))
    other = files[1].with_name(f"orders-0-{1:020d}-{3:020d}.parquet")
    shutil.copy(files[1], other)
    with pytest.raises(InvalidInput, match=r"overlap: .*; remove the wrong one"):
        plan()
    other.unlink()
    files[1].unlink()
    with pytest.raises(InvalidInput, match="leave a gap between"):
        plan()
    assert log.admin().list_topics(include_internal=True) == before


def test_a_file_that_is_not_what_its_name_says_is_named(log: Log, tmp_path: Path) -> None:
    root = tmp_path / "archive"
    send_orders(log, 60, seed=5, start_ms=5_000_000)
    archive_topic(log, "orders", str(root))
    ends = log.admin().end_offsets(ORDERS, read_committed=True)
    log.admin().delete_records(dict(ends))
    plan = plan_backfill(loader("batch", "direct"), log.where, history=str(root))
    for damage in (b"", b"PAR1 of somebody else"):
        (root / "orders" / f"orders-0-{0:020d}-{ends[ORDERS[0]]:020d}.parquet").write_bytes(damage)
        with pytest.raises(ArchiveUnreadable, match=r"cannot read the archive's file .*orders-0-0000"):
            run_backfill(plan, LocalRunner())
    other = root / "orders" / f"orders-1-{0:020d}-{ends[ORDERS[1]]:020d}.parquet"
    shutil.copy(other, root / "orders" / f"orders-0-{0:020d}-{2:020d}.parquet")
    (root / "orders" / f"orders-0-{0:020d}-{ends[ORDERS[0]]:020d}.parquet").unlink()
    with pytest.raises(RangeLost, match="orders-0"):
        plan_backfill(loader("batch", "direct"), log.where, history=str(root))
    assert log.admin().group_offsets("batch") == {}
