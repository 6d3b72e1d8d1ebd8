"""confluent-kafka's share consumer (librdkafka, KIP-932) against broker processes, also through SIGKILL."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, KafkaException, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from ._server_process import ServerProcess

PATIENCE_S = 60.0


def make_topic(address: str, topic: str, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        future.result(PATIENCE_S)


def set_group(address: str, group: str, **configs: str) -> None:
    """Set a group's configs, with `_` for `.`."""
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET) for name, value in configs.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(PATIENCE_S)


def produce(address: str, topic: str, count: int, **config: Any) -> None:
    producer = Producer({"bootstrap.servers": address, "linger.ms": 2, **config})
    for number in range(count):
        producer.produce(topic, b"%d" % number)
    assert producer.flush(PATIENCE_S) == 0


@contextmanager
def member(address: str, group: str, topic: str, *, mode: str = "implicit", **config: Any) -> Iterator[ShareConsumer]:
    settings = {"bootstrap.servers": address, "group.id": group, "share.acknowledgement.mode": mode, "log_level": 0}
    consumer = ShareConsumer({**settings, **config})
    consumer.subscribe([topic])
    try:
        yield consumer
    finally:
        consumer.close()


def poll(consumer: ShareConsumer) -> list[Any]:
    return [message for message in consumer.poll(timeout=0.5) if message.error() is None]


def read(consumers: list[ShareConsumer], count: int) -> list[list[Any]]:
    """Poll all in turn until they have `count` messages together; return them by consumer."""
    got: list[list[Any]] = [[] for _ in consumers]
    end_s = time.monotonic() + PATIENCE_S
    while sum(map(len, got)) < count and time.monotonic() < end_s:
        for mine, consumer in zip(got, consumers, strict=True):
            mine += poll(consumer)
    assert sum(map(len, got)) == count
    return got


@pytest.fixture
def group(server: ServerProcess) -> str:
    name = f"share-{uuid.uuid4().hex[:12]}"
    set_group(server.address, name, share_auto_offset_reset="earliest")
    return name


def test_members_share_the_records_of_one_partition(server: ServerProcess, topic: str, group: str) -> None:
    make_topic(server.address, topic)
    small = {"max.poll.records": 20}
    with member(server.address, group, topic, **small) as first, member(server.address, group, topic, **small) as second:
        produce(server.address, topic, 200, **{"batch.num.messages": 10})
        got = read([first, second], 200)
    assert sorted(message.offset() for mine in got for message in mine) == list(range(200))


def test_accept_release_and_reject(server: ServerProcess, topic: str, group: str) -> None:
    make_topic(server.address, topic)
    produce(server.address, topic, 6)
    with member(server.address, group, topic, mode="explicit") as consumer:
        (messages,) = read([consumer], 6)
        kinds = [AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT]
        for message, kind in zip(messages, kinds * 2, strict=True):
            consumer.acknowledge(message, kind)
        assert all(error is None for error in consumer.commit_sync(timeout=PATIENCE_S).values())
        (again,) = read([consumer], 2)
        assert [(message.offset(), message.delivery_count()) for message in again] == [(1, 2), (4, 2)]
        for message in again:
            consumer.acknowledge(message, AcknowledgeType.ACCEPT)
        consumer.commit_sync(timeout=PATIENCE_S)
        assert poll(consumer) == []


def test_what_a_member_that_leaves_has_not_acknowledged_goes_to_the_next(server: ServerProcess, topic: str, group: str) -> None:
    make_topic(server.address, topic)
    produce(server.address, topic, 10)
    with member(server.address, group, topic, mode="explicit") as consumer:
        (messages,) = read([consumer], 10)
        for message in messages[:4]:
            consumer.acknowledge(message, AcknowledgeType.ACCEPT)
    with member(server.address, group, topic) as consumer:
        (rest,) = read([consumer], 6)
    assert [message.offset() for message in rest] == [4, 5, 6, 7, 8, 9]


def test_a_record_that_is_released_again_and_again_is_given_up(server: ServerProcess, topic: str, group: str) -> None:
    make_topic(server.address, topic)
    set_group(server.address, group, share_delivery_count_limit="3")
    produce(server.address, topic, 1)
    with member(server.address, group, topic, mode="explicit") as consumer:
        for _ in range(3):
            ((message,),) = read([consumer], 1)
            consumer.acknowledge(message, AcknowledgeType.RELEASE)
            consumer.commit_sync(timeout=PATIENCE_S)
        produce(server.address, topic, 1)
        ((message,),) = read([consumer], 1)
        assert message.offset() == 1
        consumer.acknowledge(message, AcknowledgeType.ACCEPT)


def test_aborted_records_are_not_delivered_to_a_group_that_reads_committed(server: ServerProcess, topic: str, group: str) -> None:
    make_topic(server.address, topic)
    set_group(server.address, group, share_isolation_level="read_committed")
    producer = Producer({"bootstrap.servers": server.address, "transactional.id": topic})
    producer.init_transactions(PATIENCE_S)
    for is_commit in (False, True, False, True):
        producer.begin_transaction()
        producer.produce(topic, b"kept" if is_commit else b"dropped")
        (producer.commit_transaction if is_commit else producer.abort_transaction)(PATIENCE_S)
    with member(server.address, group, topic) as consumer:
        (messages,) = read([consumer], 2)
    assert [message.value() for message in messages] == [b"kept", b"kept"]


def test_what_was_acknowledged_is_not_delivered_again_after_sigkill(tmp_path: Path) -> None:
    server = ServerProcess(str(tmp_path))
    make_topic(server.address, "t")
    set_group(server.address, "g", share_auto_offset_reset="earliest")
    count = 120
    produce(server.address, "t", count, **{"batch.num.messages": 7})
    settled: set[int] = set()
    kills = [90, 60, 30]
    end_s = time.monotonic() + PATIENCE_S
    with member(
        server.address, "g", "t", mode="explicit", **{"max.poll.records": 10, "reconnect.backoff.max.ms": 100}
    ) as consumer:
        while len(settled) < count and time.monotonic() < end_s:
            messages = poll(consumer)
            offsets = {message.offset() for message in messages}
            assert not offsets & settled, "a record came again although its acknowledgement had been confirmed"
            for message in messages:
                consumer.acknowledge(message, AcknowledgeType.ACCEPT)
            if messages and len(settled) >= (kills[-1] if kills else count):
                kills.pop()
                server.kill()
                server.start()
            if messages and _is_committed(consumer):
                settled |= offsets
    assert (len(settled), kills) == (count, [])
    assert server.stop() == 0


def _is_committed(consumer: ShareConsumer) -> bool:
    """Whether everything that was acknowledged is confirmed."""
    try:
        return all(error is None for error in consumer.commit_sync(timeout=5).values())
    except KafkaException:
        return False
