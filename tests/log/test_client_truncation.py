"""A new leader that lost records which a consumer has read (KIP-320): noticed, and gone on from where the logs part."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from logflume.log import LogTruncated, TopicPartition, connect
from logflume.log.batch import encode_batch
from logflume.log.batch.header import stamp
from logflume.log.client.log import Log
from logflume.log.protocol import ErrorCode, messages

from ._client_tools import read, wait_until
from ._fake_broker import FakeBroker

PARTITION = TopicPartition("t", 0)


class FakeLeader(FakeBroker):
    """Serves one partition whose log is a list of (leader epoch, value), one batch a record."""

    def __init__(self) -> None:
        super().__init__({"t": 1})
        self.ranges += [(1, 4, 12), (2, 1, 5), (23, 2, 3)]
        self.records: list[tuple[int, bytes]] = []

    def elect(self, keep: int, values: list[bytes]) -> None:
        """A leader of the next epoch has only the first `keep` records, and writes others behind them."""
        self.leader_epoch += 1
        self.records = self.records[:keep] + [(self.leader_epoch, value) for value in values]

    def _FetchRequest(self, request: Any) -> Any:
        response = messages.FetchResponse
        asked = request.topics[0].partitions[0]
        answer = response.PartitionData(partition_index=0, high_watermark=len(self.records), last_stable_offset=len(self.records))
        if asked.current_leader_epoch < self.leader_epoch:
            answer.error_code = ErrorCode.FENCED_LEADER_EPOCH
        elif asked.fetch_offset > len(self.records):
            answer.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
        else:
            answer.records = b"".join(self._batch(offset) for offset in range(asked.fetch_offset, len(self.records)))
        return response(responses=[response.FetchableTopicResponse(topic="t", partitions=[answer])])

    def _batch(self, offset: int) -> bytes:
        epoch, value = self.records[offset]
        batch = bytearray(encode_batch([None], [value], [0]))
        stamp(batch, offset, epoch)
        return bytes(batch)

    def _ListOffsetsRequest(self, request: Any) -> Any:
        response = messages.ListOffsetsResponse
        answer = response.ListOffsetsPartitionResponse(partition_index=0, offset=0, timestamp=-1)
        return response(topics=[response.ListOffsetsTopicResponse(name="t", partitions=[answer])])

    def _OffsetForLeaderEpochRequest(self, request: Any) -> Any:
        response = messages.OffsetForLeaderEpochResponse
        asked = request.topics[0].partitions[0].leader_epoch
        end = sum(epoch <= asked for epoch, _ in self.records)
        answer = response.EpochEndOffset(error_code=0, partition=0, leader_epoch=asked, end_offset=end)
        return response(topics=[response.OffsetForLeaderTopicResult(topic="t", partitions=[answer])])


@pytest.fixture
def leader() -> Iterator[FakeLeader]:
    with FakeLeader() as started:
        yield started


@pytest.fixture
def log(leader: FakeLeader) -> Iterator[Log]:
    with connect(leader.address) as opened:
        yield opened


def test_a_clean_election_is_not_noticed(leader: FakeLeader, log: Log) -> None:
    leader.elect(0, [b"a", b"b"])
    consumer = log.consumer(offset_reset="none")
    consumer.assign([PARTITION])
    consumer.seek(PARTITION, 0)
    assert [r.value for r in read(consumer, 2)] == [b"a", b"b"]
    leader.elect(2, [b"c"])
    assert [r.value for r in read(consumer, 1)] == [b"c"]
    consumer.close()


def test_lost_records_are_noticed_and_read_anew(leader: FakeLeader, log: Log, caplog: pytest.LogCaptureFixture) -> None:
    leader.elect(0, [b"a", b"b", b"c"])
    consumer = log.consumer()
    consumer.assign([PARTITION])
    assert [r.value for r in read(consumer, 3)] == [b"a", b"b", b"c"]
    with caplog.at_level(logging.WARNING):
        leader.elect(1, [b"B", b"C", b"D"])
        assert [(r.offset, r.value) for r in read(consumer, 3)] == [(1, b"B"), (2, b"C"), (3, b"D")]
    assert "t-0: offsets 1 to 2 are not what they were" in caplog.text
    consumer.close()


def test_without_a_reset_policy_the_caller_decides(leader: FakeLeader, log: Log) -> None:
    leader.elect(0, [b"a", b"b"])
    consumer = log.consumer(offset_reset="none")
    consumer.assign([PARTITION])
    consumer.seek(PARTITION, 0)
    assert len(read(consumer, 2)) == 2
    leader.elect(1, [b"B"])
    with pytest.raises(LogTruncated, match="differs from 1 on") as told:
        wait_until(lambda: consumer.poll(timeout_s=0.1))
    consumer.seek(PARTITION, told.value.diverges_at)
    assert [(r.offset, r.value) for r in read(consumer, 1)] == [(1, b"B")]
    consumer.close()
