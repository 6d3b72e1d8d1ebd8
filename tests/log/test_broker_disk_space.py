"""The disk fills: records are refused with a clear error while the broker itself goes on, and taken again when there is room."""

import contextlib
import shutil
import time
from pathlib import Path

import pytest

from logflume.log.broker.state.diskspace import DiskSpace
from logflume.log.protocol import ErrorCode, KafkaError, messages
from logflume.log.server import start_embedded

from ._embedded import Calls, small_disk
from ._wire import batch, fetch_request

MEGABYTE = 1 << 20


def test_a_full_disk_refuses_records_before_it_is_full_and_recovers(tmp_path: Path) -> None:
    configs = {"logflume.disk.min.free.bytes": str(8 * MEGABYTE), "log.segment.bytes": str(MEGABYTE)}
    with small_disk(tmp_path / "small") as disk, start_embedded(str(disk / "data"), configs=configs) as broker:
        call = Calls(broker)
        call.create("t")
        answers = []
        while not answers or answers[-1].error_code == 0:
            (answer,) = call.produce("t", batch(bytes(500_000)))
            answers.append(answer)
            assert len(answers) < 60
        assert answers[-1].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "logflume.disk.min.free.bytes" in answers[-1].error_message
        assert shutil.disk_usage(disk).free > 3 * MEGABYTE
        assert call(fetch_request("t", {0: 0}), 12).responses[0].partitions[0].error_code == 0
        commit = messages.OffsetCommitRequest
        partition = commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
        topic = commit.OffsetCommitRequestTopic(name="t", partitions=[partition])
        committed = call(commit(group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=[topic]), 8)
        assert committed.topics[0].partitions[0].error_code == 0
        delete = messages.DeleteRecordsRequest
        cut = delete.DeleteRecordsPartition(partition_index=0, offset=answers[-2].base_offset)
        call(delete(topics=[delete.DeleteRecordsTopic(name="t", partitions=[cut])], timeout_ms=1000), 2)
        (again,) = call.produce("t", batch(bytes(500_000)))
        assert again.error_code == 0


def test_a_low_disk_runs_retention_at_once(tmp_path: Path) -> None:
    configs = {"logflume.disk.min.free.bytes": str(8 * MEGABYTE), "log.segment.bytes": str(MEGABYTE)}
    with small_disk(tmp_path / "small") as disk, start_embedded(str(disk / "data"), configs=configs) as broker:
        call = Calls(broker)
        call.create("old", retention_ms="1000")
        while call.produce("old", batch(bytes(500_000)))[0].error_code == 0:
            assert shutil.disk_usage(disk).free > 3 * MEGABYTE
        end_s = time.monotonic() + 60
        while call.produce("old", batch(bytes(500_000)))[0].error_code != 0:
            assert time.monotonic() < end_s, "retention made no room"
            time.sleep(0.05)


def test_free_space_is_asked_for_often_enough() -> None:
    free = 1000
    asked = 0

    def free_bytes() -> int:
        nonlocal asked
        asked += 1
        return free

    space = DiskSpace(free_bytes, lambda: 200)
    while not space.is_low:
        with contextlib.suppress(KafkaError):
            space.require_room(10)
            free -= 10
    with pytest.raises(KafkaError, match="KAFKA_STORAGE_ERROR"):
        space.require_room(1)
    assert 150 < free <= 200
    assert asked < 60
    free = 500
    space.require_room(10)
    assert not space.is_low
