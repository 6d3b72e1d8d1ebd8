"""The whole client in the request versions of Apache Kafka 2.1, the oldest broker it supports, on the wire to the real broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from logflume.log import OffsetAndMetadata, TopicPartition, connect
from logflume.log.client.connection import Connection
from logflume.log.client.log import Log

from ._client_tools import WAIT_S, read, read_all, wait_until
from ._server_process import ServerProcess
from .test_client_wire import OLD


@pytest.fixture
def log(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    negotiate = Connection.negotiate

    async def negotiate_as_2_1(connection: Connection, *, timeout_s: float) -> None:
        await negotiate(connection, timeout_s=timeout_s)
        connection.ranges = {key: (low, min(high, OLD[key][1])) for key, (low, high) in connection.ranges.items() if key in OLD}
        connection.features = {}

    monkeypatch.setattr(Connection, "negotiate", negotiate_as_2_1)
    with connect(server.address) as opened:
        yield opened


def test_records_groups_and_offsets(log: Log, topic: str) -> None:
    log.admin().create_topic(topic, partitions=2, replication_factor=1, configs={"retention.ms": "-1"})
    producer = log.producer(compression="lz4")
    for i in range(20):
        producer.send(topic, b"%d" % i, partition=i % 2, timestamp_ms=i)
    producer.flush()
    consumer = log.consumer(group_id=topic)
    consumer.subscribe([topic])
    assert len(read(consumer, 20)) == 20
    consumer.commit({TopicPartition(topic, 0): OffsetAndMetadata(4, "four")})
    assert log.admin().group_offsets(topic) == {TopicPartition(topic, 0): OffsetAndMetadata(4, "four")}
    assert log.admin().describe_group(topic).state == "Stable"
    consumer.close()
    wait_until(lambda: log.admin().describe_group(topic).state == "Empty")
    assert log.admin().offsets_for_time({TopicPartition(topic, 1): 6}) == {TopicPartition(topic, 1): 3}
    assert topic in log.admin().list_groups()
    log.admin().delete_group(topic)


def test_transactions(log: Log, topic: str) -> None:
    log.admin().create_topic(topic, replication_factor=1)
    producer = log.producer(transactional_id=topic)
    producer.init_transactions()
    for number in range(4):
        producer.begin_transaction()
        producer.send(topic, b"%d" % number).result(WAIT_S)
        if number % 2:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    assert [r.value for r in read_all(log, topic)[0]] == [b"1", b"3"]


def test_administration(log: Log, topic: str) -> None:
    admin = log.admin()
    admin.create_topic(topic, replication_factor=1, configs={"cleanup.policy": "compact,delete"})
    admin.create_partitions(topic, 3)
    described = admin.describe_topics([topic])[topic]
    assert described.partitions == 3
    assert admin.changed_topic_configs(topic) == {"cleanup.policy": "compact,delete"}
    log.producer().send(topic, b"x", key=b"k", partition=0).result(WAIT_S)
    admin.delete_records({TopicPartition(topic, 0): 1})
    assert admin.start_offsets([TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): 1}
    admin.delete_topic(topic)
    wait_until(lambda: topic not in admin.list_topics())
