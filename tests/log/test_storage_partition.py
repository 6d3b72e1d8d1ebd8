"""A partition's log: recovery from damage, refusals of a leader, full and failing disks, Kafka's file formats."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from logflume.log import CorruptLog, StorageError, storage
from logflume.log.batch import CorruptBatch, UnsupportedMagic, decode_records, encode_batch, parse_header, parse_marker
from logflume.log.storage import (
    AppendRefused,
    DiskFull,
    LogConfig,
    OffsetOutOfRange,
    OsDisk,
    PartitionFailed,
    PartitionLog,
)
from logflume.log.storage.checkpoint import FILE_NAME
from logflume.log.storage.producers import ProducerStates
from logflume.log.storage.snapshots import pack_snapshot, unpack_snapshot
from logflume.log.storage.testing import SimulatedDisk

DIRECTORY = "/data/t-0"
FIRST = f"{DIRECTORY}/{0:020d}"
CONFIG = LogConfig(index_interval_bytes=100)


def open_log(disk: Any, config: LogConfig = CONFIG, directory: str = DIRECTORY) -> PartitionLog:
    return storage.open_log(directory, disk=disk, config=config, now_ms=0)


def batch(value: bytes = b"value", count: int = 1, time: int = 5, **settings: Any) -> bytearray:
    return encode_batch([b"key"] * count, [value] * count, [time] * count, **settings)


def append(log: PartitionLog, *args: Any, **settings: Any) -> int:
    return log.append(batch(*args, **settings), leader_epoch=0, now_ms=1000).first_offset


def filled(disk: SimulatedDisk, count: int = 5, config: LogConfig = CONFIG) -> PartitionLog:
    log = open_log(disk, config)
    for i in range(count):
        append(log, b"value %d" % i)
    log.flush()
    return log


def all_values(log: PartitionLog) -> list[bytes | None]:
    return [r.value for _, piece in log.headers(log.log_start_offset) for r in decode_records(piece.read())]


def batch_ends(disk: SimulatedDisk, path: str) -> list[int]:
    data = disk.read_file(path) or b""
    ends = [0]
    while ends[-1] < len(data):
        ends.append(ends[-1] + parse_header(data, ends[-1]).size_bytes)
    return ends


# -- damage


def test_a_tail_torn_at_any_byte_is_cut_off_and_reported() -> None:
    template = SimulatedDisk()
    filled(template).abandon()
    ends = batch_ends(template, FIRST + ".log")
    for size in range(ends[-1] + 1):
        disk = SimulatedDisk()
        filled(disk).abandon()
        disk.cut_file(FIRST + ".log", size)
        log = open_log(disk)
        whole = sum(1 for end in ends[1:] if end <= size)
        assert log.log_end_offset == log.durable_offset == whole
        assert all_values(log) == [b"value %d" % i for i in range(whole)]
        assert log.recovery.truncated_bytes == size - ends[whole]
        if log.recovery.truncated_bytes:
            assert (log.recovery.truncated_file, log.recovery.truncated_position) == (FIRST + ".log", ends[whole])


def test_garbage_and_zeros_behind_the_end_are_cut_off() -> None:
    for tail in (b"\x00" * 300, b"\x02" * 300, bytes(range(256)), bytes(batch())[:-1]):
        disk = SimulatedDisk()
        filled(disk).abandon()
        disk.append_bytes(FIRST + ".log", tail)
        log = open_log(disk)
        assert log.recovery.truncated_bytes == len(tail)
        assert append(log) == 5


def test_a_segment_cut_below_the_recovery_point_is_corruption() -> None:
    disk = SimulatedDisk()
    filled(disk).close()
    size = disk.size(FIRST + ".log")
    for cut in (size - 1, size // 2, 0):
        disk.cut_file(FIRST + ".log", cut)
        with pytest.raises(CorruptLog, match=rf"{FIRST}\.log: expected a segment of {size} bytes, found {cut} bytes"):
            open_log(disk)
        assert disk.size(FIRST + ".log") == cut
    disk.remove(FIRST + ".log")
    with pytest.raises(CorruptLog, match="no such file"):
        open_log(disk)


def test_every_flipped_bit_in_the_middle_stops_the_open_and_names_the_place() -> None:
    template = SimulatedDisk()
    filled(template, 3).abandon()
    ends = batch_ends(template, FIRST + ".log")
    outside_of_checks = set(range(ends[1], ends[1] + 16)) - set(range(ends[1] + 8, ends[1] + 12))
    for position in range(ends[1], ends[2]):
        if position in outside_of_checks:
            continue
        disk = SimulatedDisk()
        filled(disk, 3).abandon()
        disk.flip_bit(FIRST + ".log", position, position % 8)
        before = disk.read_file(FIRST + ".log")
        with pytest.raises(CorruptLog, match=rf"{FIRST}\.log: expected a batch at position {ends[1]}"):
            open_log(disk)
        assert disk.read_file(FIRST + ".log") == before


def test_holes_left_by_a_power_loss_are_cut_off_with_what_follows_kept_aside() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    append(log, b"before")
    log.checkpoint()
    for i in range(3):
        append(log, b"value %d" % i)
    log.abandon()
    ends = batch_ends(disk, FIRST + ".log")
    content = disk.read_file(FIRST + ".log") or b""
    disk.flip_bit(FIRST + ".log", ends[2] + 70, 1)
    with pytest.raises(CorruptLog, match=f"expected a batch at position {ends[2]}"):
        open_log(disk)
    disk.boots += 1
    log = open_log(disk)
    assert all_values(log) == [b"before", b"value 0"]
    assert log.recovery.kept_file == f"{FIRST}.log.{ends[2]}.torn"
    kept = disk.read_file(log.recovery.kept_file) or b""
    assert (len(kept), kept[-50:]) == (len(content) - ends[2], content[-50:])


def test_a_sealed_segment_is_never_taken_for_torn() -> None:
    disk = SimulatedDisk()
    config = replace(CONFIG, segment_bytes=200)
    log = filled(disk, 5, config)
    sealed = log._segments[0].path
    log.abandon()
    disk.remove(f"{DIRECTORY}/{FILE_NAME}")
    disk.cut_file(sealed, disk.size(sealed) - 1)
    with pytest.raises(CorruptLog, match="a later segment exists"):
        open_log(disk, config)
    disk.remove(sealed)
    disk.remove(f"{DIRECTORY}/{FILE_NAME}")
    assert open_log(disk, config).log_start_offset > 0


def test_a_missing_segment_in_the_middle_is_corruption() -> None:
    disk = SimulatedDisk()
    config = replace(CONFIG, segment_bytes=200)
    log = filled(disk, 8, config)
    middle = log._segments[1].path
    log.abandon()
    disk.remove(f"{DIRECTORY}/{FILE_NAME}")
    disk.remove(middle)
    with pytest.raises(CorruptLog, match="expected a segment that begins at offset"):
        open_log(disk, config)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_damaged_or_missing_indexes_are_rebuilt(suffix: str) -> None:
    damages: list[Callable[[SimulatedDisk], None]] = [
        lambda disk: disk.flip_bit(FIRST + suffix, 5, 0),
        lambda disk: disk.cut_file(FIRST + suffix, 7),
        lambda disk: disk.remove(FIRST + suffix),
    ]
    for damage in damages:
        disk = SimulatedDisk()
        log = open_log(disk)
        for i in range(40):
            append(log, time=i)
        log.close()
        original = disk.read_file(FIRST + suffix)
        damage(disk)
        log = open_log(disk)
        assert [log.read(i, 1).first_offset for i in range(40)] == list(range(40))
        assert [log.offset_for_time(i).offset for i in range(40)] == list(range(40))  # type: ignore[union-attr]
        append(log, time=41)
        log.roll()
        assert original is not None
        assert (disk.read_file(FIRST + suffix) or b"")[: len(original) - 12] == original[:-12]


def test_a_damaged_checkpoint_or_snapshot_is_noticed() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    append(log, producer_id=7, producer_epoch=0, base_sequence=0)
    log.close()
    snapshot = f"{DIRECTORY}/{1:020d}.snapshot"
    disk.flip_bit(snapshot, 12, 1)
    assert open_log(disk)._producers.states[7].batches[-1].last_sequence == 0
    disk.flip_bit(f"{DIRECTORY}/{FILE_NAME}", 3, 1)
    with pytest.raises(CorruptLog, match="checksum of this checkpoint"):
        open_log(disk)


# -- rules of a leader


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        (bytes(batch())[:-1], CorruptBatch, "its header says"),
        (bytes(batch())[:-1] + b"x", CorruptBatch, "expected CRC"),
        (bytes(batch()) + b"x", CorruptBatch, "behind the last one"),
        (bytes(batch()[:16]) + b"\x01" + bytes(batch()[17:]), UnsupportedMagic, "magic 1"),
        (b"", CorruptBatch, "found 0 bytes"),
    ],
)
def test_bytes_that_are_not_a_batch_change_nothing(data: bytes, error: type[Exception], text: str) -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    with pytest.raises(error, match=text):
        log.append(data, leader_epoch=0, now_ms=0)
    assert (log.log_end_offset, disk.size(FIRST + ".log")) == (0, 0)


def counts(record_count: int, delta: int) -> bytearray:
    from logflume.log.batch.header import seal

    data = batch(count=2)
    struct.pack_into(">i", data, 23, delta)
    struct.pack_into(">i", data, 57, record_count)
    seal(data, position=0, size_bytes=len(data))
    return data


@pytest.mark.parametrize(
    ("config", "data", "error_code"),
    [
        ({"max_message_bytes": 100}, batch(b"v" * 100), 10),
        ({"segment_bytes": 100}, batch(b"v" * 100), 18),
        ({}, counts(1, 1), 87),
        ({}, counts(0, 1), 87),
        ({}, batch() + batch(), 87),
        ({}, batch(is_control=True), 87),
        ({}, batch(producer_id=1, producer_epoch=0), 87),
        ({}, batch(is_transactional=True), 87),
        ({"message_timestamp_before_max_ms": 100}, batch(time=5), 32),
        ({"message_timestamp_after_max_ms": 100}, batch(time=1200), 32),
    ],
)
def test_a_batch_that_breaks_a_rule_is_refused_with_its_code(config: Any, data: bytearray, error_code: int) -> None:
    log = open_log(SimulatedDisk(), replace(CONFIG, **config))
    with pytest.raises(AppendRefused) as refusal:
        log.append(data, leader_epoch=0, now_ms=1000)
    assert (refusal.value.error_code, log.log_end_offset) == (error_code, 0)


def idempotent(log: PartitionLog, sequence: int, *, epoch: int = 0, count: int = 1, is_transactional: bool = False) -> Any:
    data = batch(count=count, producer_id=4, producer_epoch=epoch, base_sequence=sequence, is_transactional=is_transactional)
    return log.append(data, leader_epoch=0, now_ms=0)


def refusal(call: Callable[[], Any]) -> int:
    with pytest.raises(AppendRefused) as caught:
        call()
    return caught.value.error_code


@pytest.mark.parametrize("is_reopened", [False, True])
def test_sequences_of_an_idempotent_producer(is_reopened: bool) -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    sent = [idempotent(log, sequence * 2, count=2) for sequence in range(7)]
    if is_reopened:
        log.close()
        log = open_log(disk)
    for i in range(2, 7):
        assert idempotent(log, i * 2, count=2) == sent[i]._replace(is_duplicate=True)
    assert refusal(lambda: idempotent(log, 2, count=2)) == 45
    assert refusal(lambda: idempotent(log, 15)) == 45
    assert refusal(lambda: idempotent(log, 5, epoch=1)) == 45
    assert idempotent(log, 0, epoch=1).first_offset == 14
    assert refusal(lambda: idempotent(log, 14)) == 47


def test_sequences_wrap_around() -> None:
    log = open_log(SimulatedDisk())
    assert idempotent(log, 2**31 - 2, count=3).first_offset == 0
    assert idempotent(log, 2**31 - 2, count=3).is_duplicate
    assert idempotent(log, 1).first_offset == 3


def marker(log: PartitionLog, *, epoch: int = 0, coordinator_epoch: int = 0, is_commit: bool = True) -> Any:
    return log.append_marker(
        producer_id=4, producer_epoch=epoch, coordinator_epoch=coordinator_epoch, is_commit=is_commit, leader_epoch=0, now_ms=0
    )


def test_a_transaction_ends_for_readers_once_its_marker_is_on_disk() -> None:
    log = open_log(SimulatedDisk())
    idempotent(log, 0, is_transactional=True)
    append(log)
    log.flush()
    marker(log)
    assert (log.last_stable_offset, log.durable_offset) == (0, 2)
    log.flush()
    assert log.last_stable_offset == 3


def test_transactions_hold_the_last_stable_offset_and_are_listed_when_aborted() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    append(log)
    idempotent(log, 0, is_transactional=True)
    append(log)
    log.flush()
    assert (log.last_stable_offset, log.durable_offset) == (1, 3)
    assert refusal(lambda: idempotent(log, 1)) == 48
    assert marker(log, coordinator_epoch=3, is_commit=False).first_offset == 3
    log.flush()
    assert log.last_stable_offset == 4
    assert refusal(lambda: marker(log, coordinator_epoch=2)) == 52
    idempotent(log, 0, epoch=1, is_transactional=True)
    assert refusal(lambda: marker(log, epoch=0, coordinator_epoch=3)) == 47
    log.close()
    log = open_log(disk)
    assert (log.last_stable_offset, log.open_transactions()) == (4, {4: 4})
    assert [tuple(each) for each in log.aborted_transactions(0, 5)] == [(4, 1, 3, 4)]
    assert log.aborted_transactions(4, 5) == []
    assert (disk.read_file(FIRST + ".txnindex") or b"") == struct.pack(">hqqqq", 0, 4, 1, 3, 4)
    marker(log, epoch=1, coordinator_epoch=3)
    log.flush()
    assert log.last_stable_offset == 6
    header, piece = next(iter(log.headers(5)))
    assert header.is_control
    assert parse_marker(piece.read()) == (True, 3)


# -- reading


def test_reads_begin_at_the_batch_that_holds_the_offset_and_end_at_the_bound() -> None:
    log = open_log(SimulatedDisk())
    for _ in range(4):
        append(log, count=3)
    assert log.read(0, 1000).size_bytes == 0
    log.flush()
    assert log.read(4, 10_000).first_offset == 3
    size = log.size_bytes // 4
    assert log.read(4, 1).size_bytes == size
    assert log.read(4, 1, min_one_batch=False).size_bytes == 1
    assert log.read(0, 10_000, up_to_offset=9).size_bytes == 3 * size
    assert log.read(0, 10_000, up_to_offset=8).size_bytes == 2 * size
    assert log.read(9, 10_000, up_to_offset=9).size_bytes == 0
    assert log.read(0, 2 * size + 5).size_bytes == 2 * size
    assert log.read(12, 10).size_bytes == 0
    for offset in (-1, 13):
        with pytest.raises(OffsetOutOfRange, match="expected an offset of 0 to 12"):
            log.read(offset, 100)


def test_a_slice_outlives_its_segment(tmp_path: Path) -> None:
    log = open_log(OsDisk(), replace(CONFIG, segment_bytes=200), str(tmp_path / "t-0"))
    for i in range(6):
        append(log, b"value %d" % i)
    log.flush()
    piece = log.read(0, 1)
    log.delete_records_before(6)
    assert not (tmp_path / "t-0" / f"{0:020d}.log").exists()
    assert decode_records(piece.read())[0].value == b"value 0"
    with pytest.raises(OffsetOutOfRange):
        log.read(0, 1)
    log.close()


def test_log_append_time_is_stamped_under_a_new_checksum() -> None:
    log = open_log(SimulatedDisk(), replace(CONFIG, message_timestamp_type="LogAppendTime"))
    data = batch(count=2)
    info = log.append(data, leader_epoch=3, now_ms=777)
    log.flush()
    assert info.log_append_time_ms == 777
    assert data == batch(count=2)
    stored = log.read(0, 1000).read()
    assert [r.timestamp_ms for r in decode_records(stored)] == [777, 777]
    assert parse_header(stored).partition_leader_epoch == 3


def test_leader_epochs_survive_and_say_where_they_end() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    for epoch in (2, 2, 5):
        log.append(batch(), leader_epoch=epoch, now_ms=0)
    log.close()
    assert disk.read_file(f"{DIRECTORY}/leader-epoch-checkpoint") == b"0\n2\n2 0\n5 2\n"
    log = open_log(disk)
    assert [log.end_offset_for_epoch(epoch) for epoch in (1, 2, 4, 5, 9)] == [(-1, -1), (2, 2), (2, 2), (5, 3), (5, 3)]
    log.append(batch(), leader_epoch=6, now_ms=0)
    log.abandon()
    assert open_log(disk).end_offset_for_epoch(6) == (6, 4)


# -- rolling and retention


def test_segments_roll_by_time_and_go_by_age_and_size() -> None:
    log = open_log(SimulatedDisk(), replace(CONFIG, segment_ms=50, retention_ms=1000))
    for now in (0, 10, 60, 70, 130):
        log.append(batch(time=now), leader_epoch=0, now_ms=now)
    log.flush()
    assert [segment.base_offset for segment in log._segments] == [0, 2, 4]
    assert log.apply_retention(1005) == 0
    assert log.apply_retention(1050) > 0
    assert log.log_start_offset == 2
    log.config = replace(log.config, retention_bytes=0)
    log.apply_retention(1050)
    assert log.log_start_offset == 4
    assert log.apply_retention(5000) > 0
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (5, 5, 0)


def test_retention_by_size_keeps_at_least_that_size() -> None:
    log = open_log(SimulatedDisk(), replace(CONFIG, segment_bytes=200))
    while len(log._segments) < 5:
        append(log, b"x" * 20)
    log.flush()
    size_bytes, sealed = log.size_bytes, log._segments[0].size_bytes
    log.config = replace(log.config, retention_bytes=size_bytes - sealed - sealed // 2)
    assert log.apply_retention(0) == sealed
    assert log.size_bytes == size_bytes - sealed


def test_a_sync_that_ends_late_does_not_move_the_high_watermark_back() -> None:
    log = open_log(SimulatedDisk())
    append(log)
    older = log.begin_flush()
    append(log)
    newer = log.begin_flush()
    assert older is not None
    assert newer is not None
    newer.sync()
    assert log.finish_flush(newer) == 2
    older.sync()
    assert log.finish_flush(older) == 2
    assert log.durable_offset == 2


def test_compacted_logs_keep_their_records() -> None:
    log = open_log(SimulatedDisk(), replace(CONFIG, cleanup_policy="compact", segment_bytes=200))
    for _ in range(6):
        append(log)
    log.flush()
    assert log.apply_retention(10**15) == 0
    assert log.log_start_offset == 0


# -- disks that refuse


def test_a_full_disk_leaves_nothing_half_written_and_recovers() -> None:
    disk = SimulatedDisk()
    log = filled(disk, 2)
    size = disk.size(FIRST + ".log")
    disk.capacity_bytes = disk.used_bytes() + 30
    with pytest.raises(DiskFull, match=r"no space left on the device; free some"):
        append(log)
    assert (disk.size(FIRST + ".log"), log.log_end_offset) == (size, 2)
    disk.capacity_bytes = 1 << 30
    assert append(log) == 2
    log.flush()
    assert len(all_values(log)) == 3


@pytest.mark.parametrize("room", [*range(0, 1500, 35)])
def test_a_disk_that_fills_at_any_point_only_refuses(room: int) -> None:
    """Rolls, checkpoints and retention meet the full disk too; when there is room again the log goes on, and opens again."""
    disk = SimulatedDisk()
    log = open_log(disk, replace(CONFIG, segment_bytes=200))
    acked = [append(log, b"value %d" % i) for i in range(5)]
    log.flush()
    disk.capacity_bytes = disk.used_bytes() + room
    refused = 0
    for i in range(5, 40):
        try:
            assert append(log, b"value %d" % len(acked)) == len(acked)
            acked.append(i)
        except DiskFull:
            refused += 1
    assert refused
    assert log.flush() == len(acked)
    assert all_values(log) == [b"value %d" % i for i in range(len(acked))]
    with contextlib.suppress(DiskFull):
        log.delete_records_before(4)
    assert log.log_start_offset in (0, 4)
    disk.capacity_bytes = 1 << 30
    assert log.delete_records_before(4) == 4
    assert append(log, b"value %d" % len(acked)) == len(acked)
    log.flush()
    log.abandon()
    again = open_log(disk, replace(CONFIG, segment_bytes=200))
    assert (
        all_values(again) == [b"value %d" % i for i in range(again.log_start_offset, len(acked) + 1)][-len(all_values(again)) :]
    )
    assert (again.log_start_offset, again.log_end_offset) == (4, len(acked) + 1)


def test_after_a_failed_fsync_nothing_is_appended_until_the_log_is_reopened() -> None:
    disk = SimulatedDisk()
    log = filled(disk, 2)
    append(log, b"lost")
    disk.fail("sync")
    with pytest.raises(StorageError, match="cannot sync"):
        log.flush()
    assert log.durable_offset == 2
    with pytest.raises(PartitionFailed, match="takes no appends"):
        append(log)
    with pytest.raises(PartitionFailed):
        log.flush()
    assert len(all_values(log)) == 2
    log.close()
    log = open_log(disk)
    assert (log.log_end_offset, append(log, b"again")) == (2, 2)


def test_a_failed_write_fails_the_partition() -> None:
    disk = SimulatedDisk()
    log = filled(disk, 2)
    disk.fail("write")
    with pytest.raises(StorageError, match="cannot write"):
        append(log)
    with pytest.raises(PartitionFailed):
        append(log)
    log.close()
    assert append(open_log(disk)) == 2


def test_flush_os_acknowledges_at_once() -> None:
    log = open_log(SimulatedDisk(), replace(CONFIG, flush="os"))
    append(log)
    assert log.durable_offset == 1
    assert log.begin_flush() is None


# -- identity and formats


def test_the_topic_id_is_kept_and_compared() -> None:
    disk = SimulatedDisk()
    topic_id = "00112233445566778899aabbccddeeff"
    storage.open_log(DIRECTORY, disk=disk, config=CONFIG, now_ms=0, topic_id=topic_id).close()
    assert disk.read_file(f"{DIRECTORY}/partition.metadata") == b"version: 0\ntopic_id: ABEiM0RVZneImaq7zN3u_w"
    assert open_log(disk).topic_id == topic_id
    with pytest.raises(StorageError, match="expected a log of topic id ffff"):
        storage.open_log(DIRECTORY, disk=disk, config=CONFIG, now_ms=0, topic_id="f" * 32)


def test_index_files_are_kafkas() -> None:
    disk = SimulatedDisk()
    log = open_log(disk, replace(CONFIG, index_interval_bytes=1))
    for time in (10, 30, 20):
        append(log, time=time, count=2)
    size = log.size_bytes // 3
    log.close()
    assert disk.read_file(FIRST + ".index") == struct.pack(">6i", 1, 0, 3, size, 5, 2 * size)
    assert disk.read_file(FIRST + ".timeindex") == struct.pack(">qiqi", 10, 1, 30, 3)


def test_a_directory_of_apache_kafka_opens_without_a_checkpoint() -> None:
    disk = SimulatedDisk()
    config = replace(CONFIG, segment_bytes=200)
    filled(disk, 6, config).close()
    for name in disk.list(DIRECTORY):
        if not name.endswith(".log"):
            disk.remove(f"{DIRECTORY}/{name}")
    log = open_log(disk, config)
    assert all_values(log) == [b"value %d" % i for i in range(6)]
    assert not log.recovery.is_clean


def test_snapshots_hold_every_remembered_batch_and_the_last_entry_is_the_last_batch() -> None:
    states = ProducerStates()
    for sequence in range(7):
        header = parse_header(batch(producer_id=9, producer_epoch=1, base_sequence=sequence, is_transactional=True))
        states.apply(header, first_offset=sequence, last_offset=sequence, timestamp_ms=sequence)
    data = pack_snapshot(states)
    assert struct.unpack(">qhiqiqiq", data[-46:]) == (9, 1, 6, 6, 0, 6, -1, 0)
    again = unpack_snapshot(data)
    assert again is not None
    assert (again.states, again.open_transactions) == (states.states, {9: 0})
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1
        assert unpack_snapshot(bytes(damaged)) is None
