"""confluent-kafka (librdkafka) against a broker process."""

import logging
import time
import uuid
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from ._server_process import ServerProcess


@pytest.fixture
def admin(server: ServerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": server.address})


def produce(server: ServerProcess, topic: str, values: list[bytes], **config: Any) -> list[tuple[int, int]]:
    """Produce and return (partition, offset) of each value, in order."""
    producer = Producer({"bootstrap.servers": server.address, "linger.ms": 2, **config})
    placed: list[tuple[int, int]] = []

    def on_delivery(error: KafkaError | None, message: Any) -> None:
        assert error is None, error
        placed.append((message.partition(), message.offset()))

    for value in values:
        producer.produce(topic, value, key=value[:3], on_delivery=on_delivery, partition=config.get("partition", -1))
    assert producer.flush(20) == 0
    return placed


def read(consumer: Consumer, count: int, *, timeout_s: float = 15) -> list[Any]:
    """Consume exactly `count` messages."""
    got: list[Any] = []
    end_s = time.monotonic() + timeout_s
    while len(got) < count and time.monotonic() < end_s:
        for message in consumer.consume(count - len(got), timeout=0.5):
            assert message.error() is None, message.error()
            got.append(message)
    assert len(got) == count
    return got


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("is_idempotent", [False, True])
def test_every_codec_comes_back(server: ServerProcess, topic: str, codec: str, is_idempotent: bool) -> None:
    values = [f"{i:03}-{'x' * (i % 50)}".encode() for i in range(300)]
    placed = produce(server, topic, values, **{"compression.type": codec, "enable.idempotence": is_idempotent, "acks": "all"})
    assert [offset for _, offset in placed] == list(range(300))
    consumer = Consumer({"bootstrap.servers": server.address, "group.id": topic, "check.crcs": True})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    assert [message.value() for message in read(consumer, 300)] == values
    consumer.close()


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(server: ServerProcess, topic: str, acks: str, admin: AdminClient) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    produce(server, topic, [b"one", b"two"], acks=acks)
    consumer = Consumer({"bootstrap.servers": server.address, "group.id": topic})
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert [message.value() for message in read(consumer, 2)] == [b"one", b"two"]
    consumer.close()


def test_a_group_shares_partitions_and_goes_on_from_its_commit(server: ServerProcess, topic: str, admin: AdminClient) -> None:
    admin.create_topics([NewTopic(topic, 4, 1)])[topic].result()
    values = [f"{i:03}".encode() for i in range(200)]
    produce(server, topic, values)
    config = {
        "bootstrap.servers": server.address,
        "group.id": topic,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    first, second = Consumer(config), Consumer(config)
    first.subscribe([topic])
    second.subscribe([topic])
    got: list[bytes] = []
    end_s = time.monotonic() + 20
    while len(got) < 200 and time.monotonic() < end_s:
        for consumer in (first, second):
            got += [message.value() for message in consumer.consume(100, timeout=0.1)]
    assert sorted(got) == values
    end_s = time.monotonic() + 20
    while not (first.assignment() and second.assignment()) and time.monotonic() < end_s:
        first.poll(0.05)
        second.poll(0.05)
    assert len(first.assignment()) == len(second.assignment()) == 2
    ends = {index: first.get_watermark_offsets(TopicPartition(topic, index), timeout=5)[1] for index in range(4)}
    for consumer in (first, second):
        owned = [TopicPartition(topic, each.partition, ends[each.partition]) for each in consumer.assignment()]
        consumer.commit(offsets=owned, asynchronous=False)
        consumer.close()
    produce(server, topic, [b"new"])
    third = Consumer(config)
    third.subscribe([topic])
    assert [message.value() for message in read(third, 1)] == [b"new"]
    third.close()


def test_a_long_poll_answers_when_a_record_comes(server: ServerProcess, topic: str, admin: AdminClient) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    consumer = Consumer({"bootstrap.servers": server.address, "group.id": topic, "fetch.wait.max.ms": 10_000})
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert consumer.poll(0.3) is None
    begin_s = time.monotonic()
    produce(server, topic, [b"late"])
    assert read(consumer, 1)[0].value() == b"late"
    assert time.monotonic() - begin_s < 5, "far below the 10 s that the fetch would wait"
    consumer.close()


def test_offsets_by_time_and_at_both_ends(server: ServerProcess, topic: str, admin: AdminClient) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    producer = Producer({"bootstrap.servers": server.address})
    now_ms = time.time_ns() // 1_000_000
    for i in range(5):
        producer.produce(topic, b"v", timestamp=now_ms - 10_000 + i * 1000)
        producer.flush(10)
    consumer = Consumer({"bootstrap.servers": server.address, "group.id": topic})
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=5) == (0, 5)
    found = consumer.offsets_for_times([TopicPartition(topic, 0, now_ms - 7_500)], timeout=5)
    assert found[0].offset == 3
    partition = TopicPartition(topic, 0)
    for spec, expected in ((OffsetSpec.earliest(), 0), (OffsetSpec.latest(), 5), (OffsetSpec.max_timestamp(), 4)):
        assert admin.list_offsets({partition: spec})[partition].result().offset == expected
    consumer.close()


def test_topics_partitions_and_configs(server: ServerProcess, topic: str, admin: AdminClient) -> None:
    new = NewTopic(topic, 2, 1, config={"retention.ms": "12345", "cleanup.policy": "compact"})
    admin.create_topics([new])[topic].result()
    with pytest.raises(Exception, match="TOPIC_ALREADY_EXISTS"):
        admin.create_topics([new])[topic].result()
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result()
    assert len(admin.list_topics(topic).topics[topic].partitions) == 5
    resource = ConfigResource(ResourceType.TOPIC, topic)
    configs = admin.describe_configs([resource])[resource].result()
    assert configs["retention.ms"].value == "12345"
    assert configs["retention.ms"].source == 1
    assert configs["segment.bytes"].is_default
    change = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry("retention.ms", "99", incremental_operation=AlterConfigOpType.SET),
            ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.APPEND),
        ],
    )
    admin.incremental_alter_configs([change])[change].result()
    configs = admin.describe_configs([resource])[resource].result()
    assert (configs["retention.ms"].value, configs["cleanup.policy"].value) == ("99", "compact,delete")
    bad = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[ConfigEntry("retention.mss", "1", incremental_operation=AlterConfigOpType.SET)],
    )
    with pytest.raises(Exception, match=r"retention\.ms"):
        admin.incremental_alter_configs([bad])[bad].result()
    admin.delete_topics([topic])[topic].result()
    assert topic not in admin.list_topics().topics


def test_a_compacted_topic_refuses_records_without_a_key(server: ServerProcess, topic: str, admin: AdminClient) -> None:
    admin.create_topics([NewTopic(topic, 1, 1, config={"cleanup.policy": "compact"})])[topic].result()
    producer = Producer({"bootstrap.servers": server.address})
    errors: list[KafkaError] = []
    producer.produce(topic, b"no key", on_delivery=lambda error, _: errors.append(error))
    producer.flush(10)
    assert [error.name() for error in errors] == ["INVALID_RECORD"]


def test_a_batch_that_is_too_large_is_refused(server: ServerProcess, topic: str, admin: AdminClient) -> None:
    admin.create_topics([NewTopic(topic, 1, 1, config={"max.message.bytes": "1000"})])[topic].result()
    producer = Producer({"bootstrap.servers": server.address})
    errors: list[KafkaError] = []
    producer.produce(topic, bytes(5000), on_delivery=lambda error, _: errors.append(error))
    producer.flush(10)
    assert [error.name() for error in errors] == ["MSG_SIZE_TOO_LARGE"]


def test_groups_are_listed_described_and_deleted(server: ServerProcess, topic: str, admin: AdminClient) -> None:
    produce(server, topic, [b"v"])
    group = f"group-{uuid.uuid4().hex[:8]}"
    consumer = Consumer({"bootstrap.servers": server.address, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    read(consumer, 1)
    consumer.commit(asynchronous=False)
    described = admin.describe_consumer_groups([group])[group].result()
    assert described.state.name == "STABLE"
    assert [p.topic for p in described.members[0].assignment.topic_partitions] == [topic]
    assert group in {each.group_id for each in admin.list_consumer_groups().result().valid}
    consumer.close()
    admin.delete_consumer_groups([group])[group].result()
    assert group not in {each.group_id for each in admin.list_consumer_groups().result().valid}


def test_records_are_deleted_up_to_an_offset(server: ServerProcess, topic: str, admin: AdminClient) -> None:
    produce(server, topic, [b"%03d" % i for i in range(10)])
    partition = TopicPartition(topic, 0, 4)
    assert admin.delete_records([partition])[partition].result().low_watermark == 4
    consumer = Consumer({"bootstrap.servers": server.address, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    assert [message.value() for message in read(consumer, 6)] == [b"%03d" % i for i in range(4, 10)]
    consumer.close()


def test_the_cluster_is_described(server: ServerProcess, admin: AdminClient) -> None:
    cluster = admin.describe_cluster().result()
    assert [(node.host, node.port) for node in cluster.nodes] == [("127.0.0.1", server.port)]
    assert cluster.controller.id == cluster.nodes[0].id
    assert cluster.cluster_id


class Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(record.getMessage())


def test_clients_have_nothing_to_log_while_all_is_well(server: ServerProcess, topic: str) -> None:
    """What librdkafka logs by default its users see on their terminal: a producer, a consumer and an admin from start to end."""
    lines = Lines()
    logger = logging.Logger("librdkafka")
    logger.addHandler(lines)
    admin = AdminClient({"bootstrap.servers": server.address, "logger": logger})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    producer = Producer({"bootstrap.servers": server.address, "enable.idempotence": True}, logger=logger)
    producer.produce(topic, b"one")
    assert producer.flush(20) == 0
    consumer = Consumer({"bootstrap.servers": server.address, "group.id": topic, "auto.offset.reset": "earliest"}, logger=logger)
    consumer.subscribe([topic])
    assert [message.value() for message in read(consumer, 1)] == [b"one"]
    consumer.commit(asynchronous=False)
    for client in (admin, producer):
        client.poll(0.2)
    consumer.poll(0.2)
    consumer.close()
    assert lines.told == []
    refused = Producer({"bootstrap.servers": "127.0.0.1:1", "socket.connection.setup.timeout.ms": 1_000}, logger=logger)
    refused.poll(2)
    assert any("127.0.0.1:1" in line for line in lines.told), "what is logged comes here"
