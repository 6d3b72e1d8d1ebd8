"""kafka-python against a broker process."""

import time

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kafka.structs import OffsetAndMetadata

from ._server_process import ServerProcess


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("is_idempotent", [False, True])
def test_every_codec_comes_back(server: ServerProcess, topic: str, codec: str | None, is_idempotent: bool) -> None:
    values = [f"{i:03}-{'y' * (i % 40)}".encode() for i in range(200)]
    producer = KafkaProducer(
        bootstrap_servers=server.address, compression_type=codec, enable_idempotence=is_idempotent, acks="all", linger_ms=2
    )
    sent = [producer.send(topic, value, partition=0) for value in values]
    assert [future.get(15).offset for future in sent] == list(range(200))
    producer.close()
    consumer = KafkaConsumer(bootstrap_servers=server.address, auto_offset_reset="earliest", consumer_timeout_ms=10_000)
    consumer.assign([TopicPartition(topic, 0)])
    assert [next(consumer).value for _ in values] == values
    consumer.close()


def test_a_group_commits_and_goes_on(server: ServerProcess, topic: str) -> None:
    producer = KafkaProducer(bootstrap_servers=server.address)
    for i in range(10):
        producer.send(topic, b"%d" % i, headers=[("h", b"x")])
    producer.flush(10)

    def consumer() -> KafkaConsumer:
        return KafkaConsumer(
            topic,
            bootstrap_servers=server.address,
            group_id=topic,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            consumer_timeout_ms=10_000,
        )

    first = consumer()
    records = [next(first) for _ in range(4)]
    assert [record.value for record in records] == [b"0", b"1", b"2", b"3"]
    assert list(records[0].headers) == [("h", b"x")]
    partition = TopicPartition(topic, 0)
    first.commit({partition: OffsetAndMetadata(4, "so far", -1)})
    first.close(autocommit=False)
    second = consumer()
    assert next(second).value == b"4"
    assert second.committed(partition) == 4
    second.close(autocommit=False)
    producer.close()


def test_offsets_at_both_ends_and_by_time(server: ServerProcess, topic: str) -> None:
    producer = KafkaProducer(bootstrap_servers=server.address)
    now_ms = time.time_ns() // 1_000_000
    for i in range(3):
        producer.send(topic, b"v", partition=0, timestamp_ms=now_ms + i).get(10)
    producer.close()
    consumer = KafkaConsumer(bootstrap_servers=server.address)
    partition = TopicPartition(topic, 0)
    assert consumer.beginning_offsets([partition]) == {partition: 0}
    assert consumer.end_offsets([partition]) == {partition: 3}
    assert consumer.offsets_for_times({partition: now_ms + 1})[partition].offset == 1
    assert consumer.offsets_for_times({partition: now_ms + 100})[partition] is None
    consumer.close()


def test_topics_are_made_and_removed(server: ServerProcess, topic: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=server.address)
    admin.create_topics([NewTopic(topic, 3, 1)])
    assert topic in admin.list_topics()
    (described,) = admin.describe_topics([topic])
    assert len(described["partitions"]) == 3
    admin.delete_topics([topic])
    assert topic not in admin.list_topics()
    admin.close()


def test_a_long_poll_answers_when_a_record_comes(server: ServerProcess, topic: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=server.address)
    admin.create_topics([NewTopic(topic, 1, 1)])
    admin.close()
    consumer = KafkaConsumer(bootstrap_servers=server.address, fetch_max_wait_ms=10_000, request_timeout_ms=30_000)
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    assert consumer.poll(timeout_ms=300) == {}
    producer = KafkaProducer(bootstrap_servers=server.address)
    begin_s = time.monotonic()
    producer.send(topic, b"late", partition=0).get(10)
    got = consumer.poll(timeout_ms=9_000)
    assert [record.value for record in got[partition]] == [b"late"]
    assert time.monotonic() - begin_s < 5
    producer.close()
    consumer.close()
