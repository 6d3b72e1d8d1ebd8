"""aiokafka against a broker process."""

import asyncio
import time

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from ._server_process import ServerProcess


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("is_idempotent", [False, True])
def test_every_codec_comes_back(server: ServerProcess, topic: str, codec: str | None, is_idempotent: bool) -> None:
    values = [f"{i:03}-{'z' * (i % 40)}".encode() for i in range(200)]

    async def run() -> list[bytes]:
        async with AIOKafkaProducer(
            bootstrap_servers=server.address, compression_type=codec, enable_idempotence=is_idempotent, acks="all", linger_ms=2
        ) as producer:
            sent = [await producer.send(topic, value, partition=0) for value in values]
            assert [(await future).offset for future in sent] == list(range(200))
        async with AIOKafkaConsumer(bootstrap_servers=server.address, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            return [(await asyncio.wait_for(consumer.getone(), 10)).value for _ in values]

    assert asyncio.run(run()) == values


def test_a_group_rebalances_and_keeps_its_offsets(server: ServerProcess, topic: str) -> None:
    def consumer() -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            topic,
            bootstrap_servers=server.address,
            group_id=topic,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=200,
        )

    async def assigned(*members: AIOKafkaConsumer) -> None:
        while sorted(len(member.assignment()) for member in members) != [1, 1]:
            await asyncio.gather(*(member.getmany(timeout_ms=50) for member in members))

    async def run() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=server.address)
        await admin.start()
        await admin.create_topics([NewTopic(topic, 2, 1)])
        await admin.close()
        async with AIOKafkaProducer(bootstrap_servers=server.address) as producer:
            for i in range(20):
                await producer.send_and_wait(topic, b"%d" % i, partition=i % 2)
            async with consumer() as first:
                got = [(await asyncio.wait_for(first.getone(), 10)).value for _ in range(20)]
                assert sorted(map(int, got)) == list(range(20))
                await first.commit()
                async with consumer() as second:
                    await asyncio.wait_for(assigned(first, second), 20)
            await producer.send_and_wait(topic, b"new", partition=1)
            async with consumer() as third:
                assert (await asyncio.wait_for(third.getone(), 15)).value == b"new"

    asyncio.run(run())


def test_a_long_poll_answers_when_a_record_comes(server: ServerProcess, topic: str) -> None:
    async def run() -> None:
        async with AIOKafkaProducer(bootstrap_servers=server.address) as producer:
            await producer.send_and_wait(topic, b"first", partition=0)
            async with AIOKafkaConsumer(bootstrap_servers=server.address, fetch_max_wait_ms=8_000) as consumer:
                consumer.assign([TopicPartition(topic, 0)])
                consumer.seek(TopicPartition(topic, 0), 1)
                waiting = asyncio.create_task(consumer.getone())
                assert (await asyncio.wait([waiting], timeout=0.3))[0] == set()
                begin_s = time.monotonic()
                await producer.send_and_wait(topic, b"late", partition=0)
                assert (await asyncio.wait_for(waiting, 7)).value == b"late"
                assert time.monotonic() - begin_s < 5

    asyncio.run(run())
