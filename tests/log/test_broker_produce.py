"""Produce: offsets, idempotence, sizes, timestamps, forced compression, keys of compacted topics, internal topics."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from logflume.log.batch import decode_records, parse_header
from logflume.log.protocol import ErrorCode, messages
from logflume.log.server import start_embedded

from ._embedded import Calls
from ._wire import batch, fetch_request, produce_request


@pytest.fixture(scope="module")
def call(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    with start_embedded(str(tmp_path_factory.mktemp("broker"))) as broker:
        yield Calls(broker)


def read(call: Calls, topic: str, *, offset: int = 0, **fields: int) -> bytes:
    (partition,) = call(fetch_request(topic, {0: offset}, **fields), 12).responses[0].partitions
    assert partition.error_code == 0
    return bytes(partition.records)


def test_offsets_go_on_over_batches_and_acks(call: Calls, topic: str) -> None:
    call.create(topic)
    assert [call.produce(topic, batch(b"a", b"b"), acks=acks)[0].base_offset for acks in (-1, 1, -1)] == [0, 2, 4]
    raw = read(call, topic)
    assert parse_header(raw).base_offset == 0
    assert len(decode_records(raw)) == 2


def test_a_batch_sent_twice_is_stored_once(call: Calls, topic: str) -> None:
    call.create(topic)
    producer = call(messages.InitProducerIdRequest(transactional_id=None), 4)
    fields = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
    first, second = batch(b"a", b"b", base_sequence=0, **fields), batch(b"c", base_sequence=2, **fields)
    assert [call.produce(topic, each)[0].base_offset for each in (first, second, first, second)] == [0, 2, 0, 2]
    assert call.produce(topic, batch(b"x", base_sequence=7, **fields))[0].error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    older = batch(b"x", base_sequence=0, producer_id=producer.producer_id, producer_epoch=producer.producer_epoch + 1)
    assert call.produce(topic, older)[0].base_offset == 3
    assert call.produce(topic, batch(b"x", base_sequence=3, **fields))[0].error_code == ErrorCode.INVALID_PRODUCER_EPOCH


def test_producer_ids_are_never_given_twice(tmp_path: Path) -> None:
    seen: list[int] = []
    for _ in range(2):
        with start_embedded(str(tmp_path)) as broker:
            call = Calls(broker)
            seen += [call(messages.InitProducerIdRequest(transactional_id=None), 4).producer_id for _ in range(1500)]
    assert len(set(seen)) == 3000


def test_a_forced_compression_type_rewrites_the_batch(call: Calls, topic: str) -> None:
    call.create(topic, compression_type="zstd")
    assert call.produce(topic, batch(b"v" * 500, b"w" * 500))[0].error_code == 0
    raw = read(call, topic)
    assert parse_header(raw).codec == 4
    assert [record.value for record in decode_records(raw)] == [b"v" * 500, b"w" * 500]


def test_log_append_time_is_told_and_stored(call: Calls, topic: str) -> None:
    call.create(topic, message_timestamp_type="LogAppendTime")
    (answer,) = call.produce(topic, batch(b"v", timestamp_ms=5))
    assert answer.log_append_time_ms > 1_600_000_000_000
    assert decode_records(read(call, topic))[0].timestamp_ms == answer.log_append_time_ms


def test_a_timestamp_too_far_ahead_is_refused(call: Calls, topic: str) -> None:
    call.create(topic, message_timestamp_after_max_ms="1000")
    (answer,) = call.produce(topic, batch(b"v", timestamp_ms=2**42))
    assert answer.error_code == ErrorCode.INVALID_TIMESTAMP


def test_null_keys_of_a_compacted_topic_are_named(call: Calls, topic: str) -> None:
    call.create(topic, cleanup_policy="compact")
    (answer,) = call.produce(topic, batch(b"a", b"b", key=None))
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert [each.batch_index for each in answer.record_errors] == [0, 1]
    assert call.produce(topic, batch(b"a"))[0].base_offset == 0


def test_sizes(call: Calls, topic: str) -> None:
    call.create(topic, max_message_bytes="500")
    assert call.produce(topic, batch(bytes(600)))[0].error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert call.produce(topic, batch(bytes(300)))[0].error_code == 0


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_clients_may_not_write_to_internal_topics(call: Calls, name: str) -> None:
    request = messages.FindCoordinatorRequest(key="g", key_type=0, coordinator_keys=["g"])
    assert call(request, 4).coordinators[0].error_code == 0
    (answer,) = call.produce(name, batch(b"v"))
    assert answer.error_code in (ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def test_what_does_not_exist(call: Calls) -> None:
    (answer,) = call.produce("missing", batch(b"v"))
    assert (answer.error_code, answer.base_offset) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    request = messages.ProduceRequest
    by_id = request(
        acks=-1,
        topic_data=[
            request.TopicProduceData(
                topic_id=b"x" * 16, partition_data=[request.PartitionProduceData(index=0, records=batch(b"v"))]
            )
        ],
    )
    assert call(by_id, 13).responses[0].partition_responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert call(request(acks=2, topic_data=by_id.topic_data), 13).responses[0].partition_responses[0].error_code == 21


def test_topic_ids_name_topics(call: Calls, topic: str) -> None:
    topic_id = call.create(topic).topic_id
    request = messages.ProduceRequest
    by_id = request(
        acks=-1,
        transactional_id=None,
        topic_data=[
            request.TopicProduceData(
                topic_id=topic_id, partition_data=[request.PartitionProduceData(index=0, records=batch(b"v"))]
            )
        ],
    )
    (answer,) = call(by_id, 13).responses
    assert (answer.topic_id, answer.partition_responses[0].error_code) == (topic_id, 0)


def test_zstd_is_refused_from_clients_that_are_too_old(call: Calls, topic: str) -> None:
    call.create(topic)
    assert call.produce(topic, batch(b"v", codec=4), version=6)[0].error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_a_transactional_batch_without_a_transaction_is_refused(call: Calls, topic: str) -> None:
    call.create(topic)
    data = batch(b"v", producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True)
    assert call.produce(topic, data)[0].error_code == ErrorCode.INVALID_TXN_STATE


def test_a_transaction_begins_each_partition_with_its_first_batch(call: Calls, topic: str) -> None:
    """With KIP-890 nothing else tells a batch that overtook the first one: were it taken, the first would be refused for good."""
    call.create(topic)
    granted = call(messages.InitProducerIdRequest(transactional_id=topic, transaction_timeout_ms=60_000), 4)
    fields = {"producer_id": granted.producer_id, "producer_epoch": granted.producer_epoch, "is_transactional": True}
    first, second = batch(b"a", b"b", base_sequence=0, **fields), batch(b"c", base_sequence=2, **fields)
    codes = []
    for each in (second, first, second):
        (answer,) = call(produce_request(topic, each, transactional_id=topic), 12).responses
        codes.append(answer.partition_responses[0].error_code)
    assert codes == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0, 0]
    assert [record.value for record in decode_records(read(call, topic))] == [b"a", b"b"]
