"""Fetch: long polls, limits, sessions (KIP-227), topic ids, offsets out of range; ListOffsets and epochs."""

import time
from collections.abc import Iterator
from concurrent.futures import wait
from typing import Any

import pytest

from logflume.log.batch import iter_batches
from logflume.log.protocol import ErrorCode, messages
from logflume.log.server import start_embedded

from ._embedded import Calls
from ._wire import batch, fetch_request


@pytest.fixture(scope="module")
def call(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    with start_embedded(str(tmp_path_factory.mktemp("broker"))) as broker:
        yield Calls(broker)


def partitions(response: Any) -> list[Any]:
    return [partition for topic in response.responses for partition in topic.partitions]


def test_a_long_poll_waits_for_a_record_and_no_longer(call: Calls, topic: str) -> None:
    call.create(topic, 2)
    pending = call.broker.submit("Fetch", 12, fetch_request(topic, {0: 0, 1: 0}, max_wait_ms=20_000))
    assert not wait([pending], timeout=0.2).done
    begin_s = time.monotonic()
    call.produce(topic, batch(b"v"))
    found = partitions(pending.result(10))
    assert time.monotonic() - begin_s < 5
    assert [(p.partition_index, p.high_watermark, len(p.records) > 0) for p in found] == [(0, 1, True), (1, 0, False)]


def test_a_long_poll_ends_with_what_there_is(call: Calls, topic: str) -> None:
    call.create(topic)
    call.produce(topic, batch(b"v"))
    begin_s = time.monotonic()
    (found,) = partitions(call(fetch_request(topic, {0: 0}, max_wait_ms=150, min_bytes=10_000), 12))
    assert time.monotonic() - begin_s >= 0.14
    assert len(found.records) > 0


def test_min_bytes_gathers_several_batches(call: Calls, topic: str) -> None:
    call.create(topic)
    pending = call.broker.submit("Fetch", 12, fetch_request(topic, {0: 0}, max_wait_ms=20_000, min_bytes=1_000))
    call.produce(topic, batch(bytes(400)))
    call.produce(topic, batch(bytes(400)))
    assert not pending.done()
    call.produce(topic, batch(bytes(400)))
    (found,) = partitions(pending.result(10))
    assert len(list(iter_batches(found.records))) == 3


def test_the_first_batch_comes_whole_however_small_the_limits(call: Calls, topic: str) -> None:
    call.create(topic, 2)
    big = batch(bytes(5000))
    call.produce(topic, big, big)
    request = fetch_request(topic, {0: 0, 1: 0}, max_bytes=10, partition_max_bytes=10)
    sizes = [len(p.records) for p in partitions(call(request, 12))]
    assert sizes[0] == len(big)
    assert sizes[1] == 0


def test_an_offset_inside_a_batch_gives_the_whole_batch(call: Calls, topic: str) -> None:
    call.create(topic)
    call.produce(topic, batch(b"a", b"b", b"c"))
    (found,) = partitions(call(fetch_request(topic, {0: 2}), 12))
    assert next(iter_batches(found.records))[1].base_offset == 0


def test_offsets_out_of_range_and_unknown_partitions(call: Calls, topic: str) -> None:
    call.create(topic)
    call.produce(topic, batch(b"v"))
    codes = [p.error_code for p in partitions(call(fetch_request(topic, {0: 2}), 12))]
    assert codes == [ErrorCode.OFFSET_OUT_OF_RANGE]
    codes = [p.error_code for p in partitions(call(fetch_request(topic, {9: 0}, max_wait_ms=20_000), 12))]
    assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    (found,) = partitions(call(fetch_request(topic, {0: 1}), 12))
    assert (found.error_code, len(found.records)) == (0, 0)


def test_a_deleted_topic_wakes_its_long_polls(call: Calls, topic: str) -> None:
    call.create(topic)
    pending = call.broker.submit("Fetch", 12, fetch_request(topic, {0: 0}, max_wait_ms=20_000))
    call(messages.DeleteTopicsRequest(topic_names=[topic]), 5)
    assert partitions(pending.result(10))[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_session_sends_only_changes(call: Calls, topic: str) -> None:
    call.create(topic, 3)
    call.produce(topic, batch(b"a"), batch(b"b"), batch(b"c"))
    full = call(fetch_request(topic, {0: 0, 1: 0, 2: 0}, session_id=0, session_epoch=0), 12)
    assert full.session_id > 0
    assert len(partitions(full)) == 3

    def follow_up(epoch: int, offsets: dict[int, int], forgotten: tuple[int, ...] = ()) -> Any:
        request = fetch_request(topic, offsets, session_id=full.session_id, session_epoch=epoch)
        if forgotten:
            request.forgotten_topics_data = [request.ForgottenTopic(topic=topic, partitions=list(forgotten))]
        return call(request, 12)

    assert partitions(follow_up(1, {0: 1, 1: 1, 2: 1})) == [], "nothing changed"
    call.produce(topic, None, batch(b"new"))
    (changed,) = partitions(follow_up(2, {}))
    assert (changed.partition_index, changed.high_watermark) == (1, 2)
    assert len(changed.records) > 0
    call.produce(topic, batch(b"x"), None, batch(b"x"))
    assert [p.partition_index for p in partitions(follow_up(3, {1: 2}, forgotten=(0,)))] == [2]
    assert follow_up(3, {}).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    closing = call(fetch_request(topic, {0: 0}, session_id=full.session_id, session_epoch=-1), 12)
    assert (closing.session_id, len(partitions(closing))) == (0, 1)
    assert follow_up(4, {}).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_topic_ids_are_resolved_in_requests_and_sessions(call: Calls, topic: str) -> None:
    topic_id = call.create(topic).topic_id
    call.produce(topic, batch(b"v"))
    request = fetch_request("", {0: 0}, session_id=0, session_epoch=0)
    request.topics[0].topic_id = topic_id
    response = call(request, 17)
    assert (response.responses[0].topic_id, partitions(response)[0].high_watermark) == (topic_id, 1)
    request.topics[0].topic_id = b"?" * 16
    assert partitions(call(request, 17))[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def list_offset(call: Calls, topic: str, timestamp: int, version: int = 7) -> tuple[int, int, int]:
    request = messages.ListOffsetsRequest
    asked = request.ListOffsetsTopic(
        name=topic, partitions=[request.ListOffsetsPartition(partition_index=0, timestamp=timestamp, current_leader_epoch=-1)]
    )
    (answer,) = call(request(topics=[asked]), version).topics[0].partitions
    return answer.error_code, answer.offset, answer.timestamp


def test_offsets_by_every_timestamp(call: Calls, topic: str) -> None:
    call.create(topic)
    for timestamp_ms in (1000, 3000, 2000):
        call.produce(topic, batch(b"v", timestamp_ms=timestamp_ms))
    assert list_offset(call, topic, -1) == (0, 3, -1)
    assert list_offset(call, topic, -2) == (0, 0, -1)
    assert list_offset(call, topic, -3) == (0, 1, 3000)
    assert list_offset(call, topic, 1500) == (0, 1, 3000)
    assert list_offset(call, topic, 3001) == (0, -1, -1)
    assert list_offset(call, topic, -5, version=9) == (0, -1, -1)
    assert list_offset(call, topic, -99)[0] == ErrorCode.UNSUPPORTED_VERSION


def test_the_end_of_an_epoch(call: Calls, topic: str) -> None:
    call.create(topic)
    call.produce(topic, batch(b"a", b"b"))
    request = messages.OffsetForLeaderEpochRequest

    def end(epoch: int, current: int = -1) -> tuple[int, int, int]:
        partition = request.OffsetForLeaderPartition(partition=0, leader_epoch=epoch, current_leader_epoch=current)
        asked = request(replica_id=-1, topics=[request.OffsetForLeaderTopic(topic=topic, partitions=[partition])])
        (answer,) = call(asked, 4).topics[0].partitions
        return answer.error_code, answer.leader_epoch, answer.end_offset

    assert end(0) == (0, 0, 2)
    assert end(0, current=5)[0] == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_a_reader_of_a_later_epoch_is_told_that_it_is_ahead(call: Calls, topic: str) -> None:
    call.create(topic)
    call.produce(topic, batch(b"v"))
    for epoch, expected in ((-1, 0), (0, 0), (1, ErrorCode.UNKNOWN_LEADER_EPOCH), (2**31 - 1, ErrorCode.UNKNOWN_LEADER_EPOCH)):
        request = fetch_request(topic, {0: 0})
        request.topics[0].partitions[0].current_leader_epoch = epoch
        (found,) = partitions(call(request, 12))
        assert (found.error_code, len(found.records or b"") > 0) == (expected, expected == 0)


def test_deleted_records_are_out_of_range(call: Calls, topic: str) -> None:
    call.create(topic)
    for _ in range(4):
        call.produce(topic, batch(b"v"))
    request = messages.DeleteRecordsRequest

    def delete(offset: int) -> tuple[int, int]:
        partition = request.DeleteRecordsPartition(partition_index=0, offset=offset)
        (answer,) = call(request(topics=[request.DeleteRecordsTopic(name=topic, partitions=[partition])]), 2).topics[0].partitions
        return answer.error_code, answer.low_watermark

    assert delete(2) == (0, 2)
    assert delete(1) == (0, 2), "it never moves back"
    assert delete(9) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert partitions(call(fetch_request(topic, {0: 1}), 12))[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert list_offset(call, topic, -2)[1] == 2
    assert delete(-1) == (0, 4)
