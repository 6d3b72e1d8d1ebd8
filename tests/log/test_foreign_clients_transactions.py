"""Transactions of confluent-kafka, aiokafka and kafka-python against a broker process.

confluent-kafka and aiokafka are clients of the first generation (AddPartitionsToTxn, one epoch per producer); kafka-python
speaks the newest versions of each API.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ._server_process import ServerProcess

TIMEOUT_S = 20


def create(server: ServerProcess, *topics: str, partitions: int = 2) -> None:
    admin = AdminClient({"bootstrap.servers": server.address})
    for future in admin.create_topics([NewTopic(topic, partitions, 1) for topic in topics]).values():
        future.result()


def visible(server: ServerProcess, topic: str, *, partitions: int = 2, isolation: str = "read_committed") -> list[bytes]:
    """Return what a reader sees of a topic up to its end, partition by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": server.address,
            "group.id": f"reader-{topic}",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    values: dict[int, list[bytes]] = {index: [] for index in range(partitions)}
    finished: set[int] = set()
    end_s = time.monotonic() + TIMEOUT_S
    while len(finished) < partitions and time.monotonic() < end_s:
        message = consumer.poll(0.5)
        if message is None:
            continue
        if message.error() is not None:
            finished.add(message.partition())
        else:
            values[message.partition()].append(message.value())
    consumer.close()
    assert len(finished) == partitions
    return [value for index in range(partitions) for value in values[index]]


def producer(server: ServerProcess, name: str, **config: Any) -> Producer:
    made = Producer({"bootstrap.servers": server.address, "transactional.id": name, "linger.ms": 1, "log_level": 0, **config})
    made.init_transactions(TIMEOUT_S)
    return made


def committed(server: ServerProcess, group: str, topic: str, *, partitions: int = 2) -> list[int]:
    consumer = Consumer({"bootstrap.servers": server.address, "group.id": group})
    found = consumer.committed([TopicPartition(topic, index) for index in range(partitions)], timeout=TIMEOUT_S)
    consumer.close()
    return [max(each.offset, -1) for each in found]


def wait_until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end_s, "the condition did not come true"
        time.sleep(0.02)


# -- confluent-kafka


def test_only_committed_transactions_are_visible(server: ServerProcess, topic: str) -> None:
    create(server, topic)
    writer = producer(server, topic)
    for number in range(6):
        writer.begin_transaction()
        for index in range(2):
            writer.produce(topic, b"%d" % number, partition=index)
        if number % 3 == 2:
            writer.abort_transaction(TIMEOUT_S)
        else:
            writer.commit_transaction(TIMEOUT_S)
        expected = [b"%d" % n for n in range(number + 1) if n % 3 != 2]
        assert visible(server, topic) == expected * 2, "right after the end of the transaction"


def test_an_open_transaction_is_hidden_and_holds_back_what_follows(server: ServerProcess, topic: str) -> None:
    create(server, topic, partitions=1)
    writer = producer(server, topic)
    writer.begin_transaction()
    writer.produce(topic, b"open")
    writer.flush(TIMEOUT_S)
    plain = Producer({"bootstrap.servers": server.address})
    plain.produce(topic, b"plain")
    plain.flush(TIMEOUT_S)
    assert visible(server, topic, partitions=1) == []
    assert visible(server, topic, partitions=1, isolation="read_uncommitted") == [b"open", b"plain"]
    writer.commit_transaction(TIMEOUT_S)
    assert visible(server, topic, partitions=1) == [b"open", b"plain"]


def test_a_new_instance_fences_the_old_one_and_aborts_what_it_left(server: ServerProcess, topic: str) -> None:
    create(server, topic)
    old = producer(server, topic)
    old.begin_transaction()
    old.produce(topic, b"left over", partition=0)
    old.flush(TIMEOUT_S)
    new = producer(server, topic)
    new.begin_transaction()
    new.produce(topic, b"new", partition=0)
    new.commit_transaction(TIMEOUT_S)
    with pytest.raises(KafkaException) as caught:
        old.commit_transaction(TIMEOUT_S)
    assert caught.value.args[0].fatal()
    assert visible(server, topic) == [b"new"]


def test_offsets_are_part_of_the_transaction(server: ServerProcess, topic: str) -> None:
    source = f"{topic}-source"
    create(server, topic, source)
    plain = Producer({"bootstrap.servers": server.address})
    for number in range(20):
        plain.produce(source, b"%d" % number, partition=number % 2)
    plain.flush(TIMEOUT_S)
    consumer = Consumer(
        {
            "bootstrap.servers": server.address,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([source])
    writer = producer(server, topic)
    taken: list[bytes] = []
    is_first = True
    end_s = time.monotonic() + TIMEOUT_S
    while len(taken) < 20 and time.monotonic() < end_s:
        messages = [m for m in consumer.consume(5, timeout=0.5) if m.error() is None]
        if not messages:
            continue
        writer.begin_transaction()
        for message in messages:
            writer.produce(topic, message.value() + b"!", partition=message.partition())
        positions = consumer.position(consumer.assignment())
        writer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), TIMEOUT_S)
        if is_first:
            is_first = False
            writer.abort_transaction(TIMEOUT_S)
            assert committed(server, topic, source) == [-1, -1]
            for index in range(2):
                consumer.seek(TopicPartition(source, index, 0))
            continue
        writer.commit_transaction(TIMEOUT_S)
        taken += [message.value() for message in messages]
        done = [max(position.offset, -1) for position in sorted(positions, key=lambda p: p.partition)]
        assert committed(server, topic, source) == done
    assert sorted(visible(server, topic)) == sorted(b"%d!" % n for n in range(20))
    consumer.close()


def test_a_transaction_that_takes_too_long_is_aborted(server: ServerProcess, topic: str) -> None:
    create(server, topic)
    writer = producer(server, topic, **{"transaction.timeout.ms": 1_000, "message.timeout.ms": 1_000})
    writer.begin_transaction()
    writer.produce(topic, b"slow", partition=0)
    writer.flush(TIMEOUT_S)
    plain = Producer({"bootstrap.servers": server.address})
    plain.produce(topic, b"after", partition=0)
    plain.flush(TIMEOUT_S)
    wait_until(lambda: visible(server, topic) == [b"after"])
    with pytest.raises(KafkaException):
        writer.commit_transaction(TIMEOUT_S)
    assert visible(server, topic) == [b"after"]


def test_a_zombie_member_cannot_commit_offsets(server: ServerProcess, topic: str) -> None:
    source = f"{topic}-source"
    create(server, topic, source)
    consumer = Consumer({"bootstrap.servers": server.address, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([source])
    wait_until(lambda: consumer.poll(0.1) is None and len(consumer.assignment()) == 2)
    stale = consumer.consumer_group_metadata()
    consumer.close()
    writer = producer(server, topic)
    writer.begin_transaction()
    with pytest.raises(KafkaException):
        writer.send_offsets_to_transaction([TopicPartition(source, 0, 5)], stale, TIMEOUT_S)
    writer.abort_transaction(TIMEOUT_S)
    assert committed(server, topic, source) == [-1, -1]


# -- aiokafka


def test_aiokafka_commits_and_aborts_with_offsets(server: ServerProcess, topic: str) -> None:
    create(server, topic)

    async def run() -> list[bytes]:
        group = f"{topic}-group"
        async with AIOKafkaProducer(bootstrap_servers=server.address, transactional_id=f"{topic}-tx") as writer:
            for number in range(4):
                with suppress(ZeroDivisionError):
                    async with writer.transaction():
                        await writer.send_and_wait(topic, b"%d" % number, partition=0)
                        offsets = {AioTopicPartition(topic, 1): number + 1}
                        await writer.send_offsets_to_transaction(offsets, group)
                        assert 1 / (number % 2)
        async with AIOKafkaConsumer(
            bootstrap_servers=server.address, isolation_level="read_committed", auto_offset_reset="earliest"
        ) as reader:
            reader.assign([AioTopicPartition(topic, 0)])
            return [(await asyncio.wait_for(reader.getone(), TIMEOUT_S)).value for _ in range(2)]

    assert asyncio.run(run()) == [b"1", b"3"]
    assert visible(server, topic) == [b"1", b"3"]
    assert committed(server, f"{topic}-group", topic) == [-1, 4]


def test_aiokafka_is_fenced(server: ServerProcess, topic: str) -> None:
    create(server, topic)

    async def run() -> None:
        config = {"bootstrap_servers": server.address, "transactional_id": f"{topic}-tx"}
        old = AIOKafkaProducer(**config)
        await old.start()
        await old.begin_transaction()
        await old.send_and_wait(topic, b"old", partition=0)
        async with AIOKafkaProducer(**config) as new, new.transaction():
            await new.send_and_wait(topic, b"new", partition=0)
        with pytest.raises(Exception, match=r"(?i)fenced|epoch"):
            await old.commit_transaction()
        with suppress(Exception):
            await old.stop()

    asyncio.run(run())
    assert visible(server, topic) == [b"new"]


# -- kafka-python


def test_kafka_python_commits_aborts_and_is_fenced(server: ServerProcess, topic: str) -> None:
    create(server, topic)
    config = {"bootstrap_servers": server.address, "transactional_id": f"{topic}-tx"}
    old = kafka.KafkaProducer(**config)
    old.init_transactions()
    for number in range(4):
        old.begin_transaction()
        old.send(topic, b"%d" % number, partition=number % 2)
        offsets = {kafka.TopicPartition(topic, 0): kafka.OffsetAndMetadata(number + 1, "", -1)}
        old.send_offsets_to_transaction(offsets, f"{topic}-group")
        if number % 2:
            old.abort_transaction()
        else:
            old.commit_transaction()
    assert visible(server, topic) == [b"0", b"2"]
    assert committed(server, f"{topic}-group", topic) == [3, -1]
    new = kafka.KafkaProducer(**config)
    new.init_transactions()
    old.begin_transaction()
    with pytest.raises(kafka.errors.KafkaError):
        old.send(topic, b"zombie", partition=0).get(timeout=TIMEOUT_S)
    new.begin_transaction()
    new.send(topic, b"new", partition=1)
    new.commit_transaction()
    new.close()
    old.close(timeout=1)
    assert visible(server, topic) == [b"0", b"2", b"new"]
