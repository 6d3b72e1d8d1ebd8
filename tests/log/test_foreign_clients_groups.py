"""Consumer groups of confluent-kafka, aiokafka and kafka-python against a broker process: sharing, static members, restarts."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kafka
import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from ._server_process import ServerProcess

TIMEOUT_S = 20
WHILE_DOWN = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)
"""What a client may say of a broker that was killed."""


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A broker that the test may kill."""
    process = ServerProcess(
        str(tmp_path / "data"), ["group.consumer.min.heartbeat.interval.ms=200", "group.consumer.heartbeat.interval.ms=200"]
    )
    yield process
    process.stop()


def create(server: ServerProcess, topic: str, *, partitions: int = 4) -> None:
    admin = AdminClient({"bootstrap.servers": server.address})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(TIMEOUT_S)


def produce(server: ServerProcess, topic: str, count: int, *, partitions: int = 4) -> None:
    producer = Producer({"bootstrap.servers": server.address})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=number % partitions)
    assert producer.flush(TIMEOUT_S) == 0


def consumer(server: ServerProcess, group: str, **config: Any) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": server.address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "heartbeat.interval.ms": 200,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
            **config,
        }
    )


def wait_until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end_s, "the condition did not come true"
        time.sleep(0.01)


def owned(member: Consumer) -> set[int]:
    return {partition.partition for partition in member.assignment()}


def poll_until(members: list[Consumer], condition: Callable[[], bool]) -> list[bytes]:
    """Poll all members until the condition holds; return what they read."""
    values: list[bytes] = []

    def poll_once() -> bool:
        for member in members:
            for message in member.consume(100, timeout=0.02):
                if message.error() is None:
                    values.append(message.value())
                else:
                    assert message.error().code() in WHILE_DOWN, message.error()
        return condition()

    wait_until(poll_once)
    return values


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_members_come_and_go(server: ServerProcess, topic: str, strategy: str) -> None:
    create(server, topic)
    produce(server, topic, 40)
    config = {"partition.assignment.strategy": strategy}
    first = consumer(server, topic, **config)
    first.subscribe([topic])
    values = poll_until([first], lambda: owned(first) == {0, 1, 2, 3})
    second = consumer(server, topic, **config)
    second.subscribe([topic])
    values += poll_until([first, second], lambda: len(owned(first)) == len(owned(second)) == 2)
    assert owned(first) | owned(second) == {0, 1, 2, 3}
    second.close()
    values += poll_until([first], lambda: owned(first) == {0, 1, 2, 3})
    values += poll_until([first], lambda: [p.offset for p in first.position(first.assignment())] == [10] * 4)
    first.close()
    assert set(values) == {b"%d" % number for number in range(40)}
    admin = AdminClient({"bootstrap.servers": server.address})
    assert admin.describe_consumer_groups([topic])[topic].result(TIMEOUT_S).state == ConsumerGroupState.EMPTY


MEMBER = """
import sys
from confluent_kafka import Consumer
consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": sys.argv[2], "session.timeout.ms": 6000})
consumer.subscribe([sys.argv[2]])
while True:
    consumer.poll(0.05)
    print(len(consumer.assignment()), flush=True)
"""


@pytest.mark.slow
def test_a_member_that_dies_without_a_word_is_replaced(server: ServerProcess, topic: str) -> None:
    create(server, topic)
    left = consumer(server, topic)
    left.subscribe([topic])
    command = [sys.executable, "-c", MEMBER, server.address, topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as dies:
        assert dies.stdout is not None
        lines = iter(dies.stdout)
        poll_until([left], lambda: next(lines).strip() == "2" and len(owned(left)) == 2)
        dies.kill()
    poll_until([left], lambda: owned(left) == {0, 1, 2, 3})
    left.close()


def test_a_static_member_restarts_without_a_rebalance(server: ServerProcess, topic: str) -> None:
    create(server, topic)
    revoked: list[str] = []
    first = consumer(server, topic, **{"group.instance.id": "one"})
    first.subscribe([topic], on_revoke=lambda *_: revoked.append("one"))
    second = consumer(server, topic, **{"group.instance.id": "two"})
    second.subscribe([topic])
    poll_until([first, second], lambda: len(owned(first)) == len(owned(second)) == 2)
    revoked.clear()
    before = owned(second)
    second.close()  # a static member does not leave
    begin_s = time.monotonic()
    again = consumer(server, topic, **{"group.instance.id": "two"})
    again.subscribe([topic])
    poll_until([first, again], lambda: len(owned(again)) == 2)
    assert time.monotonic() - begin_s < 10, "far below the session timeout of 45 s"
    assert owned(again) == before
    assert revoked == [], "the other member did not notice"
    first.close()
    again.close()


def test_a_second_holder_of_an_instance_id_fences_the_first(server: ServerProcess, topic: str) -> None:
    create(server, topic)
    first = consumer(server, topic, **{"group.instance.id": "one"})
    first.subscribe([topic])
    poll_until([first], lambda: len(owned(first)) == 4)
    second = consumer(server, topic, **{"group.instance.id": "one"})
    second.subscribe([topic])
    errors: list[KafkaError] = []

    def poll_both() -> bool:
        second.poll(0.02)
        try:
            message = first.poll(0.02)
        except KafkaException as error:
            errors.append(error.args[0])
        else:
            if message is not None and message.error() is not None:
                errors.append(message.error())
        return bool(errors) and len(owned(second)) == 4

    wait_until(poll_both)
    assert errors[0].name() in ("_FATAL", "FENCED_INSTANCE_ID")
    second.close()
    first.close()


def test_groups_and_offsets_survive_a_killed_broker(own_server: ServerProcess, topic: str) -> None:
    create(own_server, topic)
    produce(own_server, topic, 40)
    member = consumer(own_server, topic)
    revoked: list[object] = []
    member.subscribe([topic], on_revoke=lambda *_: revoked.append(1))
    got: list[bytes] = []
    poll_until([member], lambda: len(owned(member)) == 4)
    got += poll_until([member], lambda: [p.offset for p in member.position(member.assignment())] == [10] * 4)
    member.commit(offsets=[TopicPartition(topic, index, 5 + index) for index in range(4)], asynchronous=False)
    own_server.kill()
    own_server.start()
    found = member.committed([TopicPartition(topic, index) for index in range(4)], timeout=TIMEOUT_S)
    assert [partition.offset for partition in found] == [5, 6, 7, 8]
    produce(own_server, topic, 4)
    assert sorted(poll_until([member], lambda: [p.offset for p in member.position(member.assignment())] == [11] * 4)) == [
        b"0",
        b"1",
        b"2",
        b"3",
    ]
    assert revoked == [], "the group goes on where it was"
    member.close()


def test_aiokafka_members_share_and_resume(server: ServerProcess, topic: str) -> None:
    create(server, topic)
    produce(server, topic, 40)

    def member(instance: str) -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            topic,
            bootstrap_servers=server.address,
            group_id=topic,
            group_instance_id=instance,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=200,
        )

    async def run() -> None:
        first, second = member("a"), member("b")
        await first.start()
        await second.start()

        async def share() -> None:
            while not len(first.assignment()) == len(second.assignment()) == 2:
                await asyncio.gather(first.getmany(timeout_ms=20), second.getmany(timeout_ms=20))

        await asyncio.wait_for(share(), TIMEOUT_S)
        for each in (first, second):
            await each.commit(dict.fromkeys(each.assignment(), 7))
        kept = first.assignment()
        await first.stop()
        again = member("a")
        await again.start()
        assert again.assignment() == kept
        for partition in kept:
            assert await again.committed(partition) == 7
        await again.stop()
        await second.stop()

    asyncio.run(run())


def test_kafka_python_members_share_and_resume(server: ServerProcess, topic: str) -> None:
    create(server, topic)
    produce(server, topic, 40)
    config = {
        "bootstrap_servers": server.address,
        "group_id": topic,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "heartbeat_interval_ms": 200,
        # Its goodbye may not get through before it closes the connection.
        "session_timeout_ms": 6_000,
    }
    first, second = kafka.KafkaConsumer(topic, **config), kafka.KafkaConsumer(topic, **config)

    is_shared = threading.Event()

    def poll(member: kafka.KafkaConsumer) -> None:
        while not is_shared.is_set():
            member.poll(timeout_ms=50)

    # Each in a thread of its own: a join waits for the other.
    threads = [threading.Thread(target=poll, args=(each,)) for each in (first, second)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: len(first.assignment()) == len(second.assignment()) == 2)
    finally:
        is_shared.set()
        for thread in threads:
            thread.join()
    assert first.assignment() | second.assignment() == {kafka.TopicPartition(topic, index) for index in range(4)}
    for each in (first, second):
        each.commit({partition: kafka.OffsetAndMetadata(9, "here", -1) for partition in each.assignment()})
    second.close()
    first.close()
    third = kafka.KafkaConsumer(topic, **config)
    # A leader of this client that joins before it knows the partitions deals out none, and may not notice.
    wait_until(lambda: bool(third.partitions_for_topic(topic)))
    values: list[bytes] = []

    def read() -> bool:
        values.extend(record.value for records in third.poll(timeout_ms=100).values() for record in records)
        return len(values) >= 4

    wait_until(read)
    assert sorted(values) == [b"36", b"37", b"38", b"39"]
    third.close()


def test_an_administrator_moves_and_deletes_offsets(server: ServerProcess, topic: str) -> None:
    create(server, topic)
    admin = AdminClient({"bootstrap.servers": server.address})
    wanted = ConsumerGroupTopicPartitions(topic, [TopicPartition(topic, index, 3) for index in range(2)])
    admin.alter_consumer_group_offsets([wanted])[topic].result(TIMEOUT_S)
    listed = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(topic)])[topic].result(TIMEOUT_S)
    assert {(p.partition, p.offset) for p in listed.topic_partitions} == {(0, 3), (1, 3)}
    busy = consumer(server, topic)
    busy.subscribe([topic])
    poll_until([busy], lambda: len(owned(busy)) == 4)
    refused = admin.alter_consumer_group_offsets([wanted])[topic].result(TIMEOUT_S).topic_partitions
    assert {partition.error.name() for partition in refused} == {"UNKNOWN_MEMBER_ID"}
    with pytest.raises(KafkaException) as caught:
        admin.delete_consumer_groups([topic])[topic].result(TIMEOUT_S)
    assert caught.value.args[0].name() == "NON_EMPTY_GROUP"
    busy.close()
    admin.delete_consumer_groups([topic])[topic].result(TIMEOUT_S)
    with pytest.raises(KafkaException) as caught:
        admin.delete_consumer_groups([topic])[topic].result(TIMEOUT_S)
    assert caught.value.args[0].name() == "GROUP_ID_NOT_FOUND"


def test_members_of_the_consumer_protocol_come_and_go(own_server: ServerProcess, topic: str) -> None:
    """KIP-848, with librdkafka: the broker assigns, hands partitions over, and goes on after it was killed."""
    create(own_server, topic)
    produce(own_server, topic, 40)

    def member() -> Consumer:
        config = {
            "bootstrap.servers": own_server.address,
            "group.id": topic,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
        return Consumer(config)

    first = member()
    first.subscribe([topic])
    values = poll_until([first], lambda: owned(first) == {0, 1, 2, 3})
    second = member()
    second.subscribe([f"^{topic[:10]}.*"])
    values += poll_until([first, second], lambda: len(owned(first)) == len(owned(second)) == 2)
    assert owned(first) | owned(second) == {0, 1, 2, 3}
    admin = AdminClient({"bootstrap.servers": own_server.address})
    described = admin.describe_consumer_groups([topic])[topic].result(TIMEOUT_S)
    assert described.state == ConsumerGroupState.STABLE
    assert {(p.topic, p.partition) for m in described.members for p in m.assignment.topic_partitions} == {
        (topic, index) for index in range(4)
    }
    first.commit(offsets=[TopicPartition(topic, index, 3) for index in owned(first)], asynchronous=False)
    before = owned(first)
    own_server.kill()
    own_server.start()
    produce(own_server, topic, 4)
    poll_until([first, second], lambda: all(p.offset == 11 for m in (first, second) for p in m.position(m.assignment())))
    assert owned(first) == before, "nobody had to rejoin"
    second.close()
    poll_until([first], lambda: owned(first) == {0, 1, 2, 3})
    found = first.committed([TopicPartition(topic, index) for index in sorted(before)], timeout=TIMEOUT_S)
    assert [partition.offset for partition in found] == [3, 3]
    first.close()


def test_a_group_changes_its_protocol_while_it_is_in_use(own_server: ServerProcess, topic: str) -> None:
    """Rolling from classic to consumer members and back, with librdkafka: somebody always has each partition, and nobody two."""
    create(own_server, topic)
    admin = AdminClient({"bootstrap.servers": own_server.address})

    def member(protocol: str) -> Consumer:
        config = {"bootstrap.servers": own_server.address, "group.id": topic, "log_level": 0, "group.protocol": protocol}
        if protocol == "classic":
            config |= {"partition.assignment.strategy": "cooperative-sticky", "heartbeat.interval.ms": 200}
        client = Consumer(config)
        client.subscribe([topic])
        return client

    def are_settled(*members: Consumer) -> bool:
        held = [index for client in members for index in owned(client)]
        return sorted(held) == [0, 1, 2, 3] and all(owned(client) for client in members)

    def protocol() -> str:
        (listed,) = (g for g in admin.list_consumer_groups().result(TIMEOUT_S).valid if g.group_id == topic)
        return str(listed.type.name)

    first, second = member("classic"), member("classic")
    poll_until([first, second], lambda: are_settled(first, second))
    assert protocol() == "CLASSIC"
    third = member("consumer")
    poll_until([first, second, third], lambda: are_settled(first, second, third))
    assert protocol() == "CONSUMER"
    first.close()
    second.close()
    poll_until([third], lambda: are_settled(third))
    fourth = member("classic")
    poll_until([third, fourth], lambda: are_settled(third, fourth))
    assert protocol() == "CONSUMER"
    third.close()
    poll_until([fourth], lambda: are_settled(fourth))
    assert protocol() == "CLASSIC"
    fourth.close()
