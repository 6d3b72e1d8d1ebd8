"""Archives: a history of which the log has lost the beginning gives what the whole log gave."""

from __future__ import annotations

import fcntl
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from logflume.log import InvalidInput, Log, LogflumeError, Record, TopicPartition, TransportError, connect
from logflume.streams.spark import (
    ArchiveUnreadable,
    LocalRunner,
    RangeLost,
    archive_topic,
    backfill,
    check_archive,
    keep_archiving,
    plan_backfill,
    plan_together,
    run_backfill,
)
from logflume.streams.spark.archive_tables import DataFile
from logflume.streams.spark.archives import RECORDS, Archive, ArchiveFile, _read, arrow_schema, find_archive, read_history
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
        time.sleep(0.01)


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


def test_files_of_a_table_without_rows_are_not_asked_offset_by_offset(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(arrow_schema().empty_table(), tmp_path / "empty.parquet")
    held = OffsetRange("orders", 0, 0, 1 << 40)
    file = ArchiveFile("delta:lake", str(tmp_path), held, (DataFile(str(tmp_path / "empty.parquet")),))
    assert list(_read(file, held.start, held.end)) == []


def test_a_delta_archive_has_a_path(log: Log) -> None:
    with pytest.raises(InvalidInput, match="an archive in Delta Lake is delta:PATH, found 'delta:'"):
        archive_topic(log, "orders", "delta:")


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


@pytest.mark.parametrize("kinds", [["foreign", "direct"], ["direct", "foreign"]])
def test_together_with_one_that_reads_the_topic_as_a_table_a_stream_has_its_archive(
    log: Log, kinds: list[str], tmp_path: Path
) -> None:
    root = str(tmp_path / "archive")
    send_orders(log, 90, seed=4, start_ms=5_000_000)
    archive_topic(log, "orders", root)
    halves = {tp: end // 2 for tp, end in settled_ends(log).items()}
    log.admin().delete_records(halves)
    starts = {"direct": dict.fromkeys(ORDERS, 0), "foreign": halves}
    for plan in plan_together([loader(kind, kind) for kind in kinds], log.where, history=root):
        assert {tp: plan.ranges[tp].start for tp in ORDERS} == starts[plan.application]


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


def test_a_partition_that_the_archive_lacks_is_refused_where_the_log_has_lost_its_beginning(log: Log, tmp_path: Path) -> None:
    root = str(tmp_path / "archive")
    send_orders(log, 60, seed=3, start_ms=5_000_000)
    ends = settled_ends(log)
    log.admin().delete_records({ORDERS[0]: ends[ORDERS[0]], ORDERS[1]: 1})
    archive_topic(log, "orders", root)
    plan_backfill(loader("batch", "direct"), log.where, history=root)  # of what was gone before, the archive knows
    assert [meeting.problem for meeting in check_archive(log, "orders", root)] == [None] * PARTITIONS
    log.admin().delete_records(dict(ends))
    for path in Path(root, "orders").glob("orders-2-*.parquet"):
        path.unlink()
    said = rf"orders-2: nothing is archived, and the log starts at {ends[ORDERS[2]]}: .*logflume archive orders --to"
    with pytest.raises(RangeLost, match=said):
        plan_backfill(loader("batch", "direct"), log.where, history=root)
    assert re.match(said, str(check_archive(log, "orders", root)[2].problem))


def test_an_archiver_may_add_while_a_cut_is_frozen(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = str(tmp_path / "archive")

    def find(place: str, topics: Sequence[str]) -> Archive:
        send_orders(log, 30, seed=4, start_ms=6_000_000)
        archive_topic(log, "orders", root)
        log.admin().delete_records(dict(settled_ends(log)))
        return find_archive(place, topics)

    send_orders(log, 60, seed=3, start_ms=5_000_000)
    archive_topic(log, "orders", root)
    log.admin().delete_records(dict.fromkeys(ORDERS, 5))
    monkeypatch.setattr(backfill, "find_archive", find)
    planned = plan_backfill(loader("batch", "direct"), log.where, history=root)
    assert sum(len(planned.ranges[tp]) for tp in ORDERS) == 90
    assert run_backfill(planned, LocalRunner()).records == 90


def test_an_archive_that_has_nothing_of_what_is_read_is_refused(log: Log, tmp_path: Path) -> None:
    root = tmp_path / "archive"
    (root / "others").mkdir(parents=True)
    with pytest.raises(InvalidInput, match=r"the archive at .* has nothing of orders: .* logflume archive orders --to"):
        plan_backfill(loader("batch", "direct"), log.where, history=str(root))


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


def test_a_file_with_fewer_rows_or_without_their_offsets_is_refused(log: Log, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    root = str(tmp_path / "archive")
    send_orders(log, 60, seed=5, start_ms=5_000_000)
    archive_topic(log, "orders", root)
    log.admin().delete_records(settled_ends(log))
    plan = plan_backfill(loader("batch", "direct"), log.where, history=root)
    file = find_archive(root, ["orders"])[ORDERS[0]][0].path
    table = pq.read_table(file)
    offsets = pa.array([None, *table.column("offset").to_pylist()[1:]], pa.int64())
    for damaged, told, words in (
        (
            table.slice(1),
            len(table),
            f"holds {len(table) - 1} rows of the {len(table)} that were archived: others have written it",
        ),
        (table.slice(1), None, "does not say how many rows were archived: others have written it anew"),
        (table.set_column(0, "offset", offsets), len(table), "has a row without an offset"),
    ):
        with pq.ParquetWriter(file, damaged.schema) as writer:
            writer.write_table(damaged)
            if told is not None:
                writer.add_key_value_metadata({RECORDS.decode(): str(told)})
        with pytest.raises(ArchiveUnreadable, match=words):
            run_backfill(plan, LocalRunner())
        assert re.search(words, str(check_archive(log, "orders", root)[0].problem))
    assert log.admin().group_offsets("batch") == {}


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_archived(root: str, ends: dict[TopicPartition, int]) -> bool:
    """Return whether the archive goes to these ends."""
    found = find_archive(root, ["orders"]) if Path(root).is_dir() else {}
    return {tp: files[-1].held.end for tp, files in found.items()} == ends


def test_with_an_archive_that_is_written_all_the_time_the_log_may_forget(log: Log, tmp_path: Path) -> None:
    root, stop = str(tmp_path / "archive"), threading.Event()
    archiver = threading.Thread(target=keep_archiving, args=(log, ["orders"], root), kwargs={"every_s": 0.01, "stop": stop})
    archiver.start()
    written: list[Record] = []
    start = dict.fromkeys(ORDERS, 0)
    try:
        for seed in range(3):
            send_orders(log, 60, seed=seed, start_ms=5_000_000 + seed)
            ends = settled_ends(log)
            written += [record for tp in ORDERS for record in records_of(log, OffsetRange(*tp, start[tp], ends[tp]), None)]
            wait_until(partial(is_archived, root, ends))
            log.admin().delete_records(dict(ends))
            start = ends
    finally:
        stop.set()
        archiver.join(WAIT_S)
    assert not archiver.is_alive()
    kept = [record for tp in ORDERS for record in records_of(log, OffsetRange(*tp, 0, start[tp]), root)]
    assert len(kept) == 180
    assert sorted(kept, key=lambda each: (each.partition, each.offset)) == sorted(
        written, key=lambda each: (each.partition, each.offset)
    )
    assert [meeting.problem for meeting in check_archive(log, "orders", root)] == [None] * PARTITIONS


def test_an_archiver_waits_for_a_broker_and_says_what_no_wait_can_help(log: Log, tmp_path: Path) -> None:
    class Away(Exception):
        """Ends the loop."""

    problems: list[LogflumeError] = []

    class Broker:
        def admin(self) -> object:
            if len(problems) < 2:
                raise TransportError("no broker")
            raise Away

    stop = threading.Event()
    with pytest.raises(Away):
        keep_archiving(Broker(), ["orders"], "x", every_s=0.0, stop=stop, on_problem=problems.append)  # type: ignore[arg-type]
    assert [str(problem) for problem in problems] == ["no broker"] * 2
    send_orders(log, 50, seed=1, start_ms=5_000_000)
    archive_topic(log, "orders", str(tmp_path))
    send_orders(log, 50, seed=2, start_ms=5_000_000)
    log.admin().delete_records({ORDERS[0]: settled_ends(log)[ORDERS[0]]})
    with pytest.raises(RangeLost, match="in neither"):
        keep_archiving(log, ["orders"], str(tmp_path), every_s=0.0, stop=stop)


def test_one_process_archives_a_topic_at_a_time_and_removes_what_a_killed_one_left(log: Log, tmp_path: Path) -> None:
    send_orders(log, 50, seed=1, start_ms=5_000_000)
    folder = tmp_path / "orders"
    folder.mkdir()
    left = folder / f"orders-0-{0:020d}-{9:020d}.parquet.77.unfinished"
    left.write_bytes(b"PAR1")
    with (folder / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(InvalidInput, match="another process writes the archive"):
            archive_topic(log, "orders", str(tmp_path))
    assert left.exists()
    archive_topic(log, "orders", str(tmp_path))
    assert sorted(path.suffix for path in folder.iterdir() if path.name != ".lock") == [".parquet"] * PARTITIONS


def test_the_check_names_what_does_not_meet(log: Log, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    root = str(tmp_path)
    send_orders(log, 90, seed=1, start_ms=5_000_000)
    archive_topic(log, "orders", root)
    ends = settled_ends(log)
    files = {tp: Path(found[0].path) for tp, found in find_archive(root, ["orders"]).items()}

    def said() -> list[str | None]:
        return [meeting.problem for meeting in check_archive(log, "orders", root)]

    assert said() == [None] * PARTITIONS
    table = pq.read_table(files[ORDERS[0]])
    pq.write_table(table.drop_columns(["headers"]), files[ORDERS[0]])
    pq.write_table(table.set_column(0, "offset", pa.array(range(7, 7 + len(table)))), files[ORDERS[1]])
    files[ORDERS[2]].write_bytes(b"nothing of Parquet")
    found = said()
    assert "has no column 'headers'" in str(found[0])
    assert "which its name does not say" in str(found[1])
    assert "cannot read the archive's file" in str(found[2])
    for path in files.values():
        path.unlink()
    log.admin().delete_records({ORDERS[0]: ends[ORDERS[0]]})
    send_orders(log, 50, seed=2, start_ms=5_000_000)
    archive_topic(log, "orders", root)
    log.admin().delete_records(dict.fromkeys(ORDERS[1:], 1))
    assert said() == [None] * PARTITIONS
    for path in (tmp_path / "orders").glob("*.parquet"):
        path.unlink()
    assert ["nothing is archived, and the log starts at" in str(problem) for problem in said()] == [True] * PARTITIONS


def test_headers_that_others_have_changed_are_told_by_who_reads_them(log: Log, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    root = str(tmp_path)
    producer = log.producer()
    for number in range(3):
        producer.send("orders", b"same", partition=0, timestamp_ms=number, headers=(("h", b"%d" % number), ("h", None)))
    producer.close()
    whole = OffsetRange(*ORDERS[0], 0, 3)
    before = records_of(log, whole, None)
    archive_topic(log, "orders", root)
    log.admin().delete_records({ORDERS[0]: 3})
    assert records_of(log, whole, root) == before
    path = find_archive(root, ["orders"])[ORDERS[0]][0].path
    table = pq.read_table(path)
    headers = table.column("headers").to_pylist()
    place = table.schema.get_field_index("headers")
    for changed in ([headers[0], headers[1], headers[2][:1]], [headers[0], [], headers[2]]):
        pq.write_table(
            table.set_column(place, table.schema.field(place), pa.array(changed, table.schema.field(place).type)), path
        )
        with pytest.raises(ArchiveUnreadable, match=r"orders-0 at offset [12] .*not what was archived"):
            records_of(log, whole, root)


def test_an_archive_is_no_file(log: Log, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match=r"cannot make the directory .*file"):
        archive_topic(log, "orders", str(tmp_path / "file"))
