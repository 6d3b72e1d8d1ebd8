"""Compaction: what a reader sees stays, what is superseded goes, and a crash at any step leaves one of the two."""

from __future__ import annotations

import asyncio
import pickle
import random
import re
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logflume.log import StorageError, storage
from logflume.log.batch import Codec, RecordData, decode_records, encode_batch, iter_batches, visible_batches
from logflume.log.storage import Cleaned, Cleaner, LogConfig, OsDisk, PartitionLog, run_compaction
from logflume.log.storage.checkpoint import FILE_NAME
from logflume.log.storage.compact_orders import Budget
from logflume.log.storage.testing import PowerCut, SimulatedDisk

DIRECTORY = "/data/t-0"
CONFIG = LogConfig(
    cleanup_policy="compact", segment_bytes=600, index_interval_bytes=200, min_cleanable_dirty_ratio=0.0, delete_retention_ms=100
)


def open_log(disk: SimulatedDisk, config: LogConfig = CONFIG) -> PartitionLog:
    disk.make_dir("/data")
    disk._synced_names.setdefault("/data", None)
    return storage.open_log(DIRECTORY, disk=disk, config=config, now_ms=0)


def compact(log: PartitionLog, disk: SimulatedDisk, now_ms: int) -> int:
    """Compact as the broker would, plan and result pickled as for another process; return the bytes freed, -1 for no plan."""
    plan = log.compaction_plan(now_ms, name="a")
    if plan is None:
        return -1
    result = pickle.loads(pickle.dumps(run_compaction(pickle.loads(pickle.dumps(plan)), disk=disk)))
    return log.finish_compaction(result)


def committed(log: PartitionLog) -> list[RecordData]:
    """What a read_committed reader gets from the log start on."""
    records: list[RecordData] = []
    offset = log.log_start_offset
    while offset < log.last_stable_offset:
        data = log.read(offset, 500, up_to_offset=log.last_stable_offset).read()
        if not data:
            break
        batches = list(iter_batches(data))
        end = batches[-1][1].last_offset + 1
        aborted = [(each.producer_id, each.first_offset) for each in log.aborted_transactions(offset, end)]
        for position, _ in visible_batches(data, batches, aborted):
            records += [record for record in decode_records(data, position) if record.offset >= offset]
        offset = end
    return records


def table(records: list[RecordData]) -> dict[bytes | None, bytes]:
    """The last value of each key, deleted ones left out."""
    last = {record.key: record.value for record in records}
    return {key: value for key, value in last.items() if value is not None}


@dataclass
class Writer:
    """Appends keyed records, plain and in transactions."""

    log: PartitionLog
    sequences: dict[int, int] = field(default_factory=dict)

    def put(self, key: int, value: bytes | None, *, producer: int = -1, codec: int = Codec.NONE, time: int = 0) -> None:
        extra = {}
        if producer >= 0:
            extra = {"producer_id": producer, "producer_epoch": 0, "base_sequence": self.sequences.get(producer, 0)}
            self.sequences[producer] = extra["base_sequence"] + 2
        keys = [b"%d" % key, b"%d" % (key + 1)]
        batch = encode_batch(keys, [value, value], [time, time + 1], codec=codec, is_transactional=producer >= 10, **extra)
        self.log.append(batch, leader_epoch=0, now_ms=time)

    def end(self, producer: int, *, is_commit: bool) -> None:
        self.log.append_marker(
            producer_id=producer, producer_epoch=0, coordinator_epoch=0, is_commit=is_commit, leader_epoch=0, now_ms=0
        )


actions = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 6), st.sampled_from([b"value", b"x" * 50, None]), st.sampled_from([-1, 1])),
        st.tuples(st.just("txn"), st.integers(0, 6), st.sampled_from([10, 11]), st.booleans()),
        st.tuples(st.just("roll")),
        st.tuples(st.just("compact"), st.sampled_from([0, 50, 200])),
        st.tuples(st.just("reopen")),
    ),
    min_size=5,
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(actions, st.sampled_from([Codec.NONE, Codec.LZ4]))
def test_readers_see_the_same_table_and_only_superseded_records_go(steps: list[tuple], codec: Codec) -> None:  # type: ignore[type-arg]
    disk = SimulatedDisk()
    log = open_log(disk)
    writer = Writer(log)
    now_ms = 0
    for name, *arguments in steps:
        match name:
            case "put":
                key, value, producer = arguments
                writer.put(key, value, producer=producer, codec=codec)
            case "txn":
                key, producer, is_commit = arguments
                writer.put(key, b"txn", producer=producer, codec=codec)
                writer.end(producer, is_commit=is_commit)
            case "roll":
                log.roll()
            case "reopen":
                log.close()
                log = writer.log = open_log(disk)
                assert log.recovery.is_clean
            case "compact":
                now_ms += arguments[0]
                log.flush()
                before, end = committed(log), log.log_end_offset
                if compact(log, disk, now_ms) < 0:
                    continue
                after = committed(log)
                assert table(after) == table(before)
                assert set(after) <= set(before)
                assert [r.offset for r in after] == sorted(r.offset for r in after)
                assert log.log_end_offset == end
                cleaned = [r.key for r in after if r.offset < log._files.cleaned_offset]
                assert len(cleaned) == len(set(cleaned))
                assert not [name for name in disk.list(DIRECTORY) if name.endswith(".cleaned")]
    log.flush()
    rebuild_agrees(log, disk)


def rebuild_agrees(log: PartitionLog, disk: SimulatedDisk) -> None:
    """Without checkpoint, indexes and snapshots the log gives the same records, sequences and open transactions."""
    records = committed(log)
    log.close()
    for name in disk.list(DIRECTORY):
        if not name.endswith(".log"):
            disk.remove(f"{DIRECTORY}/{name}")
    again = open_log(disk)
    assert committed(again) == records
    assert again.open_transactions() == log.open_transactions()
    for producer, state in log._producers.states.items():
        if state.batches:
            found = again._producers.states[producer].batches[-1]
            assert found[:3] == state.batches[-1][:3]


def test_tombstones_stay_for_their_retention_and_then_go() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    writer = Writer(log)
    writer.put(1, b"value")
    writer.put(1, None)
    log.roll()
    assert compact(log, disk, 1000) > 0
    assert [(r.key, r.value) for r in committed(log)] == [(b"1", None), (b"2", None)]
    assert compact(log, disk, 1050) == -1
    writer.put(5, b"value")
    log.roll()
    compact(log, disk, 1099)
    assert [r.key for r in committed(log)] == [b"1", b"2", b"5", b"6"]
    assert [r.timestamp_ms for r in committed(log)] == [0, 1, 0, 1]
    writer.put(7, b"value")
    log.roll()
    compact(log, disk, 1101)
    assert [r.key for r in committed(log)] == [b"5", b"6", b"7", b"8"]


def test_an_open_transaction_stops_compaction_before_it() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    writer = Writer(log)
    writer.put(1, b"old")
    log.roll()
    writer.put(1, b"pending", producer=10)
    log.roll()
    writer.put(1, b"new")
    log.roll()
    assert log.last_stable_offset == 2
    plan = log.compaction_plan(0, name="a")
    assert plan is not None
    assert [info.base_offset for info in plan.segments] == [0]
    writer.end(10, is_commit=False)
    log.roll()
    compact(log, disk, 0)
    assert [r.value for r in committed(log)] == [b"new", b"new"]


def test_small_segments_are_merged_and_the_freed_bytes_are_real() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    writer = Writer(log)
    for i in range(6):
        writer.put(1, b"value %d" % i)
        log.roll()
    before = log.size_bytes
    freed = compact(log, disk, 0)
    assert log.size_bytes == before - freed
    assert len(log._segments) == 2
    assert [r.value for r in committed(log)] == [b"value 5", b"value 5"]
    assert log.read(0, 1000).first_offset == 10
    found = log.offset_for_time(1)
    assert found is not None
    assert found.offset == 11


def test_a_result_for_a_log_that_has_changed_is_thrown_away() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    writer = Writer(log)
    for _ in range(3):
        writer.put(1, b"value")
        log.roll()
    plan = log.compaction_plan(0, name="a")
    assert plan is not None
    result = run_compaction(plan, disk=disk)
    log.delete_records_before(4)
    assert log.finish_compaction(result) == 0
    assert [r.offset for r in committed(log)] == [4, 5]
    assert not [name for name in disk.list(DIRECTORY) if name.endswith(".cleaned")]


def test_damage_stops_compaction_and_a_full_disk_leaves_nothing() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    writer = Writer(log)
    writer.put(1, b"value")
    log.roll()
    plan = log.compaction_plan(0, name="a")
    assert plan is not None
    disk.capacity_bytes = disk.used_bytes() + 20
    with pytest.raises(StorageError, match="no space left"):
        run_compaction(plan, disk=disk)
    disk.capacity_bytes = 1 << 30
    disk.flip_bit(f"{DIRECTORY}/{0:020d}.log", 75, 3)
    with pytest.raises(StorageError, match="expected a batch at position 0"):
        run_compaction(plan, disk=disk)
    assert not [name for name in disk.list(DIRECTORY) if name.endswith(".cleaned")]


def test_a_log_that_is_not_dirty_or_not_compacted_has_no_plan() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    writer = Writer(log)
    for _ in range(4):
        writer.put(1, b"value")
    log.roll()
    compact(log, disk, 0)
    log.config = replace(CONFIG, min_cleanable_dirty_ratio=0.9)
    writer.put(1, b"value")
    log.roll()
    assert log.compaction_plan(0, name="a") is None
    log.config = replace(CONFIG, min_cleanable_dirty_ratio=0.9, max_compaction_lag_ms=10)
    assert log.compaction_plan(100, name="a") is not None
    log.config = replace(CONFIG, min_compaction_lag_ms=1000)
    assert log.compaction_plan(100, name="a") is None
    log.config = replace(CONFIG, cleanup_policy="delete")
    assert log.compaction_plan(100, name="a") is None


@pytest.mark.parametrize("seed", range(3))
def test_a_power_cut_at_any_step_leaves_the_old_or_the_new_segments(seed: int) -> None:
    def story(disk: SimulatedDisk) -> PartitionLog:
        log = open_log(disk)
        writer = Writer(log)
        for i in range(8):
            writer.put(i % 3, b"value %d" % i, producer=1)
            writer.put(i % 2, b"txn", producer=10)
            writer.end(10, is_commit=i % 3 > 0)
            if i % 3 == 1:
                log.roll()
        log.flush()
        return log

    disk = SimulatedDisk()
    log = story(disk)
    first = disk.steps
    expected = table(committed(log))
    assert compact(log, disk, 0) > 0
    total = disk.steps
    assert total - first > 20
    for step in range(first, total):
        disk = SimulatedDisk()
        log = story(disk)
        disk.cut_at_step = step
        with pytest.raises(PowerCut):
            compact(log, disk, 0)
        disk.crash(random.Random(seed * 1000 + step))
        again = open_log(disk)
        assert table(committed(again)) == expected, step
        assert again.log_end_offset == log.log_end_offset
        assert not [name for name in disk.list(DIRECTORY) if name.endswith(".cleaned")]
        compact(again, disk, 0)
        assert table(committed(again)) == expected, step
        again.close()
        assert open_log(disk).recovery.is_clean
        rebuild_agrees(open_log(disk), disk)


def test_the_checkpoint_of_an_older_log_has_no_cleaned_offset() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    Writer(log).put(1, b"value")
    log.roll()
    compact(log, disk, 0)
    log.close()
    assert open_log(disk).compaction_plan(0, name="a") is None
    assert FILE_NAME in disk.list(DIRECTORY)


def test_the_cleaner_compacts_in_one_process_and_reports_damage(tmp_path: Path) -> None:
    async def main() -> None:
        def make(name: str) -> PartitionLog:
            log = storage.open_log(str(tmp_path / name), disk=OsDisk(), config=CONFIG, now_ms=0)
            for i in range(5):
                Writer(log).put(1, b"value %d" % i)
                log.roll()
            return log

        first, damaged, last = make("first-0"), make("bad-0"), make("last-0")
        path = tmp_path / "bad-0" / f"{0:020d}.log"
        path.write_bytes(path.read_bytes()[:-1] + b"?")
        cleaner = Cleaner()
        cleaned = await cleaner.clean([first, damaged, last], now_ms=0)
        assert cleaned.freed_bytes[first.directory] > 0
        assert cleaned.freed_bytes[last.directory] > 0
        for log in (first, last):
            assert [r.value for r in committed(log)] == [b"value 4"] * 2
        (error,) = cleaned.errors
        assert re.search(r"cannot compact .*bad-0: .*expected a batch at position 0", str(error))
        assert await cleaner.clean([first], now_ms=0) == Cleaned()
        await cleaner.close()
        assert await cleaner.clean([damaged], now_ms=0) == Cleaned()
        for log in (first, damaged, last):
            log.close()

    asyncio.run(main())


def test_compaction_keeps_to_its_bytes_a_second() -> None:
    now_s, paused_s = 100.0, 0.0

    def sleep(seconds: float) -> None:
        nonlocal now_s, paused_s
        now_s, paused_s = now_s + seconds, paused_s + seconds

    budget = Budget(1000, monotonic_s=lambda: now_s, sleep=sleep)
    for _ in range(50):
        budget.spend(100)
    assert paused_s == pytest.approx(5.0, abs=0.1)
    now_s += 60.0
    budget.spend(5000)
    assert paused_s == pytest.approx(5.0, abs=0.1), "what was not used may be used later"


def test_a_compacted_log_rolls_before_its_records_are_too_late() -> None:
    disk = SimulatedDisk()
    log = open_log(disk, replace(CONFIG, max_compaction_lag_ms=100))
    log.append(encode_batch([b"key"], [b"old"], [1_000]), leader_epoch=0, now_ms=1_000)
    log.append(encode_batch([b"key"], [b"new"], [1_101]), leader_epoch=0, now_ms=1_101)
    assert log.compaction_plan(1_101, name="a") is not None
