"""Archives as Delta and Iceberg tables: the same history as the log had, for us and for whoever else reads the table."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.utils.config import Config

from logflume.log import InvalidInput, Log, TopicPartition, connect
from logflume.streams.spark import (
    ArchiveUnreadable,
    LocalRunner,
    RangeLost,
    archive_tables,
    archive_topic,
    archiving,
    check_archive,
    keep_archiving,
    plan_backfill,
    run_backfill,
)
from logflume.streams.spark.archive_tables import ArchiveConflict, open_table
from logflume.streams.spark.archives import find_archive
from logflume.streams.spark.ranges import OffsetRange, reachable

from ..end_to_end._command import run
from ._kills import WAIT_S
from ._spark_apps import ORDERS, PARTITIONS, create_inputs, final_results, loader, send_orders
from .test_spark_archives import records_of, settled_ends, wait_until

KINDS = ["delta", "iceberg"]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with connect(tmp_path / "log") as opened:
        create_inputs(opened)
        yield opened


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Return where an archive of a kind is; of Iceberg in a catalog that the environment describes, as pyiceberg has it."""
    (tmp_path / "warehouse").mkdir()
    monkeypatch.setenv("PYICEBERG_CATALOG__HOME__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__HOME__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__HOME__WAREHOUSE", f"file://{tmp_path}/warehouse")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    load_catalog("home")  # makes its tables in SQLite, which two threads would do at a time
    return lambda kind: f"delta:{tmp_path}/lake" if kind == "delta" else "iceberg:home/kept"


@contextmanager
def nobody_kept_out(system: Any, folder: str) -> Iterator[None]:
    """Stand for storage without locks."""
    system.create_dir(folder, recursive=True)
    yield


def send_all_sorts(log: Log, first: int) -> None:
    """Write null and empty values, headers, no keys, and what is aborted."""
    producer = log.producer(transactional_id="t")
    producer.init_transactions()
    for number in range(first, first + 4):
        producer.begin_transaction()
        for partition in range(PARTITIONS - 1):  # the last stays empty
            headers = (("h", b"\x00\xff"), ("h", None)) if number % 2 else ()
            producer.send("orders", None, key=b"gone", partition=partition, timestamp_ms=number, headers=headers)
            producer.send("orders", b"", partition=partition, timestamp_ms=7)
        producer.flush()
        if number == first + 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    producer.close()


def compact(kind: str, root: str) -> None:
    """Make one file of all, in another order, as a keeper of the table would."""
    if kind == "delta":
        table = DeltaTable(f"{root.removeprefix('delta:')}/orders")
        rows = table.to_pyarrow_dataset().to_table()
        write_deltalake(table, rows.sort_by([("timestamp_ms", "ascending"), ("partition", "descending")]), mode="overwrite")
    else:
        iceberg = load_catalog("home").load_table("kept.orders")
        rows = iceberg.scan().to_arrow()
        iceberg.overwrite(rows.sort_by([("timestamp_ms", "ascending"), ("partition", "descending")]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_holds_what_was_in_the_log_to_the_last_byte_also_when_it_is_compacted(
    log: Log, kind: str, place: Callable[[str], str]
) -> None:
    root = place(kind)
    send_all_sorts(log, 0)
    archive_topic(log, "orders", root, records_per_file=4)
    middle = settled_ends(log)
    send_all_sorts(log, 4)
    ends = settled_ends(log)
    wholes = [OffsetRange(*tp, 0, ends[tp]) for tp in ORDERS]
    before = [records_of(log, whole, None) for whole in wholes]
    assert [len(each) for each in before] == [12, 12, 0]
    log.admin().delete_records(dict(middle))
    assert [records_of(log, whole, root) for whole in wholes] == before, "the table first, then the log"
    archive_topic(log, "orders", root)
    log.admin().delete_records(dict(ends))
    assert [records_of(log, whole, root) for whole in wholes] == before
    assert [meeting.problem for meeting in check_archive(log, "orders", root)] == [None] * PARTITIONS
    compact(kind, root)
    assert len({part for files in find_archive(root, ["orders"]).values() for file in files for part in file.parts or ()}) == 1
    assert [records_of(log, whole, root) for whole in wholes] == before
    inside = [OffsetRange(*tp, 3, 9) for tp in ORDERS[:-1]]
    assert [records_of(log, each, root) for each in inside] == [[r for r in each if 3 <= r.offset < 9] for each in before[:-1]]


@pytest.mark.parametrize("kind", KINDS)
def test_only_files_that_may_hold_rows_of_the_range_are_opened(
    log: Log, kind: str, place: Callable[[str], str], tmp_path: Path
) -> None:
    root, tp = place(kind), ORDERS[1]
    send_orders(log, 120, seed=2, start_ms=5_000_000)
    ends = settled_ends(log)
    archive_topic(log, "orders", root, records_per_file=5)
    files = {tuple(map(int, path.stem.split("-")[1:4])): path for path in tmp_path.rglob("orders-*.parquet")}
    (_, start, _), (_, _, end) = wanted = sorted(each for each in files if each[0] == tp.partition)[1:3]
    inside = OffsetRange(*tp, start, end)
    for each in files.keys() - set(wanted):
        files[each].unlink()
    assert records_of(log, inside, root) == records_of(log, inside, None) != []
    for beyond in (
        OffsetRange(*tp, start - 1, end),
        OffsetRange(*tp, start, end + 1),
        OffsetRange(*ORDERS[0], 0, ends[ORDERS[0]]),
    ):
        with pytest.raises(ArchiveUnreadable, match="cannot read the archive's table"):
            records_of(log, beyond, root)


def test_a_table_whose_files_lack_a_column_by_which_others_have_parted_it_is_refused(
    log: Log, place: Callable[[str], str], tmp_path: Path
) -> None:
    root = place("delta")
    send_orders(log, 60, seed=5, start_ms=5_000_000)
    archive_topic(log, "orders", root)
    table = DeltaTable(str(tmp_path / "lake" / "orders"))
    rows = table.to_pyarrow_dataset().to_table()
    write_deltalake(table, rows, mode="overwrite", schema_mode="overwrite", partition_by=["partition"])
    with pytest.raises(ArchiveUnreadable, match="is partitioned by partition: its files lack"):
        find_archive(root, ["orders"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_backfill_from_a_table_equals_one_from_the_whole_log(log: Log, kind: str, place: Callable[[str], str]) -> None:
    root = place(kind)
    now_ms = send_orders(log, 500, seed=1, start_ms=5_000_000)
    archive_topic(log, "orders", root, records_per_file=100)
    archived = log.admin().end_offsets(ORDERS, read_committed=True)
    send_orders(log, 200, seed=2, start_ms=now_ms)
    runner = LocalRunner(70)
    whole = run_backfill(plan_backfill(loader("whole", "repartition"), log.where), runner)
    log.admin().delete_records({ORDERS[0]: archived[ORDERS[0]], ORDERS[1]: archived[ORDERS[1]] // 2})
    report = run_backfill(plan_backfill(loader("joined", "repartition"), log.where, history=root), runner)
    assert (report.records, report.results, report.entries) == (whole.records, whole.results, whole.entries)
    for topic in ("joined-out", "whole-out"):
        settled_ends(log, topic)
    assert final_results(log, "joined-out") == final_results(log, "whole-out") != {}


@pytest.mark.parametrize("kind", KINDS)
def test_an_archiver_that_goes_on_adds_to_the_table_and_others_query_it(log: Log, kind: str, place: Callable[[str], str]) -> None:
    root, stop = place(kind), threading.Event()
    archiver = threading.Thread(target=partial(keep_archiving, log, ["orders"], root, every_s=0.01, stop=stop))
    try:
        for seed in range(2):
            send_orders(log, 60, seed=seed, start_ms=5_000_000 + seed)
            ends = settled_ends(log)
            if not seed:
                archiver.start()
            wait_until(partial(goes_to, root, ends))
    finally:
        stop.set()
        archiver.join(WAIT_S)
    rows = rows_of(kind, root)
    by_place = sorted(zip(*(rows.column(name).to_pylist() for name in ("partition", "offset", "key", "value")), strict=True))
    known = [r for tp in ORDERS for r in records_of(log, OffsetRange(*tp, 0, ends[tp]), None)]
    assert by_place == sorted((r.partition, r.offset, r.key, r.value) for r in known)


def goes_to(root: str, ends: dict[TopicPartition, int]) -> bool:
    """Return whether the archive goes to these ends; its table may not be there yet."""
    try:
        found = find_archive(root, ["orders"])
    except InvalidInput:
        return False
    return {tp: files[-1].held.end for tp, files in found.items()} == ends


def rows_of(kind: str, root: str) -> Any:
    """Return a table as its own library reads it."""
    if kind == "iceberg":
        return load_catalog("home").load_table("kept.orders").scan().to_arrow()
    return DeltaTable(f"{root.removeprefix('delta:')}/orders").to_pyarrow_dataset().to_table()


@pytest.mark.parametrize("kind", KINDS)
def test_gaps_and_tables_that_do_not_say_their_offsets_are_refused(
    log: Log, kind: str, place: Callable[[str], str], tmp_path: Path
) -> None:
    root = place(kind)
    send_orders(log, 60, seed=3, start_ms=5_000_000)
    with pytest.raises(InvalidInput, match=r"no archive at .*logflume archive TOPIC --to"):
        plan_backfill(loader("batch", "direct"), log.where, history=root)
    archive_topic(log, "orders", root)
    ends = settled_ends(log)
    send_orders(log, 60, seed=4, start_ms=6_000_000)
    log.admin().delete_records({ORDERS[0]: ends[ORDERS[0]] + 1})
    with pytest.raises(RangeLost, match="in neither"):
        plan_backfill(loader("batch", "direct"), log.where, history=root)
    with pytest.raises(RangeLost, match="in neither"):
        archive_topic(log, "orders", root)
    foreign = pa.table({"offset": [1], "value": [b"x"]})
    if kind == "delta":
        write_deltalake(str(tmp_path / "lake" / "items"), foreign)
    else:
        load_catalog("home").create_table("kept.items", schema=foreign.schema).append(foreign)
    with pytest.raises(ArchiveUnreadable, match="does not say which offsets it holds"):
        find_archive(root, ["items"])


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_gone_before_a_table_is_known_and_a_partition_that_it_lacks_is_refused(
    log: Log, kind: str, place: Callable[[str], str]
) -> None:
    root = place(kind)
    send_orders(log, 60, seed=3, start_ms=5_000_000)
    ends = settled_ends(log)
    log.admin().delete_records({ORDERS[0]: ends[ORDERS[0]]})
    archive_topic(log, "orders", root)
    plan_backfill(loader("batch", "direct"), log.where, history=root)
    log.admin().create_partitions("orders", PARTITIONS + 1)
    with log.producer() as producer:
        producer.send("orders", b"{}", partition=PARTITIONS)
        producer.flush()
    log.admin().delete_records({TopicPartition("orders", PARTITIONS): 1})
    with pytest.raises(RangeLost, match=rf"orders-{PARTITIONS}: nothing is archived, and the log starts at 1"):
        plan_backfill(loader("batch", "direct"), log.where, history=root)


def test_a_table_whose_data_is_gone_is_named(log: Log, place: Callable[[str], str]) -> None:
    root = place("delta")
    send_orders(log, 60, seed=5, start_ms=5_000_000)
    archive_topic(log, "orders", root)
    ends = settled_ends(log)
    for path in Path(root.removeprefix("delta:"), "orders").glob("*.parquet"):
        path.write_bytes(b"PAR1 of somebody else")
    assert all("cannot read the archive's file" in str(each.problem) for each in check_archive(log, "orders", root))
    with pytest.raises(ArchiveUnreadable, match="cannot read the archive's table"):
        list(records_of(log, OffsetRange(*ORDERS[0], 0, ends[ORDERS[0]]), root))


def test_the_command_archives_into_tables_and_checks_them(log: Log, place: Callable[[str], str], tmp_path: Path) -> None:
    send_orders(log, 30, seed=6, start_ms=5_000_000)
    where = reachable(log)
    for kind in KINDS:
        root = place(kind)
        made = run("archive", "orders", "--to", root, "--bootstrap", where)
        assert len(made.stdout.splitlines()) == PARTITIONS
        checked = run("archive", "orders", "--to", root, "--check", "--bootstrap", where)
        assert checked.stdout.count("one history") == PARTITIONS
    with pytest.raises(InvalidInput, match="iceberg:CATALOG/NAMESPACE, found 'iceberg:home'"):
        find_archive("iceberg:home", ["orders"])
    with pytest.raises(ArchiveUnreadable, match="cannot use the archive's table iceberg:nowhere/x"):
        find_archive("iceberg:nowhere/x", ["orders"])
    assert find_archive(place("delta"), ["orders"]).keys() == {TopicPartition("orders", p) for p in range(PARTITIONS)}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_are_deleted_by_writing_files_anew_are_missed(log: Log, kind: str, place: Callable[[str], str]) -> None:
    root = place(kind)
    send_orders(log, 60, seed=6, start_ms=5_000_000)
    archive_topic(log, "orders", root, records_per_file=7)
    settled_ends(log)
    compact(kind, root)
    send_orders(log, 60, seed=7, start_ms=6_000_000)
    archive_topic(log, "orders", root)
    assert find_archive(root, ["orders"]), "compacting takes nothing away"
    if kind == "delta":
        DeltaTable(f"{root.removeprefix('delta:')}/orders").delete("partition = 0 AND offset = 3")
    else:
        load_catalog("home").load_table("kept.orders").delete("partition = 0 and offset = 3")
    with pytest.raises(ArchiveUnreadable, match=r"has 119 rows, and 120 were archived.*DELETE"):
        find_archive(root, ["orders"])


def change(kind: str, root: str, column: str, value: Any, *, offset: int) -> None:
    """Change a column of one row of the first partition, as an UPDATE does: the number of rows stays."""
    if kind == "delta":
        table = DeltaTable(f"{root.removeprefix('delta:')}/orders")
        done = table.update(
            {column: f"X'{value.hex()}'" if isinstance(value, bytes) else str(value or "NULL")},
            predicate=f'partition = 0 AND "offset" = {offset}',
        )
        assert done["num_updated_rows"] == 1
        return
    iceberg = load_catalog("home").load_table("kept.orders")
    rows = iceberg.scan().to_arrow()
    at = list(zip(rows.column("partition").to_pylist(), rows.column("offset").to_pylist(), strict=True)).index((0, offset))
    cells = rows.column(column).to_pylist()
    cells[at] = value
    place = rows.schema.get_field_index(column)
    iceberg.overwrite(rows.set_column(place, rows.schema.field(place), pa.array(cells, rows.schema.field(place).type)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("column", "value"), [("value", b"another"), ("key", None), ("timestamp_ms", 77), ("digest", None)])
def test_a_row_that_others_have_changed_is_named_by_who_reads_it_and_by_the_check(
    log: Log, kind: str, place: Callable[[str], str], column: str, value: Any
) -> None:
    root = place(kind)
    send_orders(log, 60, seed=6, start_ms=5_000_000)
    archive_topic(log, "orders", root)
    ends = settled_ends(log)
    log.admin().delete_records(dict(ends))
    change(kind, root, column, value, offset=3)
    wanted = r"orders-0 at offset 3 .* not what was archived.*UPDATE"
    with pytest.raises(ArchiveUnreadable, match=wanted):
        records_of(log, OffsetRange(*ORDERS[0], 0, ends[ORDERS[0]]), root)
    with pytest.raises(ArchiveUnreadable, match=wanted):
        run_backfill(plan_backfill(loader("batch", "direct"), log.where, history=root), LocalRunner())
    problems = [meeting.problem for meeting in check_archive(log, "orders", root)]
    assert "orders-0 at offset 3" in str(problems[0])
    assert problems[1:] == [None] * (PARTITIONS - 1)
    for tp in ORDERS[1:]:
        assert len(records_of(log, OffsetRange(*tp, 0, ends[tp]), root)) == ends[tp]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_empty", [False, True])
def test_an_archiver_whose_table_was_changed_meanwhile_may_try_again(
    log: Log, kind: str, place: Callable[[str], str], is_empty: bool
) -> None:
    root = place(kind)
    send_orders(log, 60, seed=8, start_ms=5_000_000)
    archive_topic(log, "orders", root)
    archived = settled_ends(log)
    send_orders(log, 60, seed=9, start_ms=6_000_000)
    slow = open_table(root, "orders")
    assert slow is not None
    archive_topic(log, "orders", root)
    ends = settled_ends(log)
    held = OffsetRange(*ORDERS[0], archived[ORDERS[0]], ends[ORDERS[0]])
    written = set(Path(slow.location.removeprefix("file://")).glob("orders-0-*.parquet"))
    path = max(written, key=lambda each: each.stat().st_mtime_ns)
    records = 0 if is_empty else len(held)
    with pytest.raises(ArchiveConflict, match="another process") as told:
        slow.add(str(path), held, 0, records=records, size_bytes=path.stat().st_size)
    assert told.value.is_retriable
    archive_topic(log, "orders", root)
    wholes = [OffsetRange(*tp, 0, ends[tp]) for tp in ORDERS]
    assert [records_of(log, whole, root) for whole in wholes] == [records_of(log, whole, None) for whole in wholes]


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_whose_commit_was_done_though_it_was_told_as_refused_stays(
    log: Log, kind: str, place: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = place(kind)
    send_orders(log, 60, seed=8, start_ms=5_000_000)
    opened = archiving.open_table(root, "orders", schema=archiving.arrow_schema())
    add = type(opened).add

    def add_unheard(*said: Any, **more: Any) -> None:
        """Commit, and have the answer lost: the library's own second try meets what the first one has done."""
        add(*said, **more)
        raise ArchiveConflict("another process has changed the table")

    monkeypatch.setattr(type(opened), "add", add_unheard)
    for partition in range(PARTITIONS):
        with pytest.raises(ArchiveConflict):
            archive_topic(log, "orders", root)
        assert len(find_archive(root, ["orders"])) == partition + 1
    archive_topic(log, "orders", root)
    ends = settled_ends(log)
    wholes = [OffsetRange(*tp, 0, ends[tp]) for tp in ORDERS]
    assert [records_of(log, whole, root) for whole in wholes] == [records_of(log, whole, None) for whole in wholes]


@pytest.mark.parametrize("kind", KINDS)
def test_a_range_without_records_is_archived_and_goes_on(log: Log, kind: str, place: Callable[[str], str]) -> None:
    root = place(kind)
    producer = log.producer(transactional_id="t")
    producer.init_transactions()
    for _ in range(2):
        producer.begin_transaction()
        producer.send("orders", b"never", partition=0)
        producer.flush()
        producer.abort_transaction()
        archive_topic(log, "orders", root)
    producer.close()
    ends = settled_ends(log)
    assert [file.held.end for file in find_archive(root, ["orders"])[ORDERS[0]]] == [ends[ORDERS[0]]]
    send_orders(log, 60, seed=9, start_ms=5_000_000)
    archive_topic(log, "orders", root)
    assert records_of(log, OffsetRange(*ORDERS[0], 0, settled_ends(log)[ORDERS[0]]), root)


@pytest.mark.parametrize("kind", KINDS)
def test_who_loses_a_table_to_another_archiver_leaves_no_file_and_takes_none(
    log: Log, kind: str, place: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = place(kind)
    send_orders(log, 60, seed=8, start_ms=5_000_000)
    opened = archiving.open_table(root, "orders", schema=archiving.arrow_schema())
    assert opened is not None
    folder = Path(opened.location.removeprefix("file://"))
    with monkeypatch.context() as patched:
        patched.setattr(archiving, "open_table", lambda *_, **__: opened)
        patched.setattr(archiving, "_alone", nobody_kept_out)
        archive_beside = partial(archive_topic, log, "orders", root)
        other = open_table(root, "orders")
        with patched.context() as inner:
            inner.setattr(archiving, "open_table", lambda *_, **__: other)
            archive_beside()
        kept = {path: path.stat().st_ino for path in folder.glob("orders-*.parquet")}
        patched.setattr(archiving, "find_archive", lambda *_: {})  # it looked before the other one wrote
        with pytest.raises(ArchiveConflict):
            archive_beside()
    assert {path: path.stat().st_ino for path in folder.glob("orders-*.parquet")} == kept
    assert kept


@pytest.mark.parametrize("kind", KINDS)
def test_of_two_archivers_that_make_the_table_at_a_time_each_finds_it(
    log: Log, kind: str, place: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, looks = place(kind), list[str]()
    send_orders(log, 40, seed=3, start_ms=5_000_000)

    def hidden_once(look: Callable[..., Any], missing: Callable[[], Any]) -> Callable[..., Any]:
        def looked(*args: Any) -> Any:
            looks.append("")
            return look(*args) if len(looks) > 1 else missing()

        return looked

    def no_table() -> Any:
        raise NoSuchTableError("orders")

    archive_topic(log, "orders", root)
    if kind == "delta":
        monkeypatch.setattr(archive_tables, "_is_there", hidden_once(archive_tables._is_there, lambda: False))
    else:
        monkeypatch.setattr(SqlCatalog, "load_table", hidden_once(SqlCatalog.load_table, no_table))
    archive_topic(log, "orders", root)
    assert looks
    assert [meeting.problem for meeting in check_archive(log, "orders", root)] == [None] * PARTITIONS


@pytest.mark.parametrize("kind", KINDS)
def test_libraries_of_tables_add_nothing_to_what_is_said(
    log: Log, kind: str, place: Callable[[str], str], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    send_orders(log, 40, seed=3, start_ms=5_000_000)
    archive_topic(log, "orders", place(kind))
    assert [record.getMessage() for record in caplog.records] == []
    assert capfd.readouterr() == ("", "")
