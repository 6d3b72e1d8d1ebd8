"""Segment files as others see them: foreign readers, and the check of every byte."""

from __future__ import annotations

from pathlib import Path

from aiokafka.record import MemoryRecords

from logflume.log.batch import Codec, encode_batch
from logflume.log.storage import LogConfig, OsDisk, PartitionLog, open_log, verify_log
from logflume.log.storage.segment import Segment
from logflume.log.storage.testing import SimulatedDisk


def filled(disk: SimulatedDisk | OsDisk, directory: str, segment_bytes: int = 10_000) -> PartitionLog:
    log = open_log(directory, disk=disk, config=LogConfig(segment_bytes=segment_bytes), now_ms=0)
    for i in range(10):
        log.append(encode_batch([b"k%d" % i], [b"v%d" % i], [i], codec=Codec(i % 5)), leader_epoch=0, now_ms=0)
    log.append_marker(producer_id=1, producer_epoch=0, coordinator_epoch=0, is_commit=True, leader_epoch=0, now_ms=10)
    log.flush()
    return log


def test_a_foreign_codec_reads_a_segment_file(tmp_path: Path) -> None:
    filled(OsDisk(), str(tmp_path / "t-0")).close()
    records = MemoryRecords((tmp_path / "t-0" / f"{0:020d}.log").read_bytes())
    found = []
    while records.has_next():
        batch = records.next_batch()
        assert batch.validate_crc()
        found += [(record.offset, record.key, record.value) for record in batch if not batch.is_control_batch]
    assert found == [(i, b"k%d" % i, b"v%d" % i) for i in range(10)]


def test_every_flipped_bit_is_found_and_nothing_else() -> None:
    disk = SimulatedDisk()
    log = filled(disk, "/data/t-0", 300)
    assert len(log._segments) > 2
    assert list(verify_log("/data/t-0", disk=disk)) == []
    for segment in log._segments[:-1]:
        for position in range(21, segment.size_bytes, 7):
            disk.flip_bit(segment.path, position, position % 8)
            found = list(verify_log("/data/t-0", disk=disk))
            disk.flip_bit(segment.path, position, position % 8)
            assert {each.path for each in found} <= {segment.path}
            if not is_stamp(segment, position):
                assert [each.position <= position for each in found] == [True], position
    before = dict(disk._names)
    list(verify_log("/data/t-0", disk=disk))
    assert disk._names == before


def is_stamp(segment: Segment, position: int) -> bool:
    """Whether a position holds an offset or a leader epoch, which the checksum does not cover."""
    start = max(at for at, _ in segment.scan(0) if at <= position)
    return position - start < 8 or 12 <= position - start < 16


def test_a_cut_in_a_sealed_segment_is_found_and_a_torn_tail_is_none() -> None:
    disk = SimulatedDisk()
    log = filled(disk, "/data/t-0", 300)
    disk.append_bytes(log._segments[-1].path, b"torn")
    assert list(verify_log("/data/t-0", disk=disk)) == []
    sealed = log._segments[0].path
    disk.cut_file(sealed, disk.size(sealed) - 1)
    assert [each.path for each in verify_log("/data/t-0", disk=disk)] == [sealed]
