"""The asyncio face: the same log awaited, also when calls are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from logflume.log import AsyncConsumer, AsyncLog, OffsetAndMetadata, TopicPartition, UnknownName, connect_async

from ._client_tools import WAIT_S
from ._server_process import ServerProcess

Scenario = Callable[[AsyncLog, str], Awaitable[None]]


async def values(consumer: AsyncConsumer, count: int) -> list[bytes | None]:
    """Read until `count` values are there."""
    found: list[bytes | None] = []
    async with asyncio.timeout(WAIT_S):
        while len(found) < count:
            for chunk in await consumer.poll():
                found += chunk.values()
    return found


async def produce_and_read(log: AsyncLog, topic: str) -> None:
    await log.admin().create_topic(topic)
    partition = TopicPartition(topic, 0)
    async with log.producer() as producer:
        deliveries = [await producer.send(topic, b"%d" % i, timestamp_ms=1000 + i) for i in range(100)]
        offsets = [(await delivery).offset for delivery in deliveries]
    assert offsets == list(range(100))
    async with log.consumer() as consumer:
        consumer.assign([partition])
        assert await values(consumer, 100) == [b"%d" % i for i in range(100)]
        assert await consumer.seek_to_time({partition: 1050}) == {partition: 50}
        assert (await values(consumer, 50))[0] == b"50"
        assert await consumer.seek_to_time({partition: 9999}) == {partition: 100}
        assert await consumer.position(partition) == 100


async def transactions_with_a_group(log: AsyncLog, topic: str) -> None:
    await log.admin().create_topic(topic)
    partition = TopicPartition(topic, 0)
    async with log.producer(transactional_id=topic) as producer, log.consumer(group_id=topic) as consumer:
        await producer.init_transactions()
        await producer.begin_transaction()
        await (await producer.send(topic, b"gone"))
        await producer.abort_transaction()
        consumer.subscribe([topic])
        await producer.begin_transaction()
        await (await producer.send(topic, b"kept"))
        await producer.send_offsets({partition: OffsetAndMetadata(1)}, consumer.group_metadata())
        await producer.commit_transaction()
        assert await consumer.committed([partition]) == {partition: OffsetAndMetadata(1)}
        async with asyncio.timeout(WAIT_S):
            async for chunk in consumer:
                if len(chunk):
                    assert chunk.values() == [b"kept"]
                    break
        await consumer.commit()


async def a_cancelled_poll_loses_nothing(log: AsyncLog, topic: str) -> None:
    await log.admin().create_topic(topic)
    producer, consumer = log.producer(), log.consumer()
    consumer.assign([TopicPartition(topic, 0)])
    found: list[bytes | None] = []
    for i in range(20):
        polling = asyncio.create_task(consumer.poll(timeout_s=30.0))
        await asyncio.sleep(0)
        await (await producer.send(topic, b"%d" % i))
        polling.cancel()
        for outcome in await asyncio.gather(polling, return_exceptions=True):
            if not isinstance(outcome, BaseException):
                found += [value for chunk in outcome for value in chunk.values()]
    found += await values(consumer, 20 - len(found))
    assert found == [b"%d" % i for i in range(20)]


async def the_loop_goes_on_while_a_call_waits(log: AsyncLog, topic: str) -> None:
    await log.admin().create_topic(topic)
    consumer = log.consumer()
    consumer.assign([TopicPartition(topic, 0)])
    polling = asyncio.create_task(consumer.poll(timeout_s=30.0))
    producer = log.producer()
    await (await producer.send(topic, b"x"))
    assert [chunk.values() for chunk in await polling] == [[b"x"]]
    with pytest.raises(UnknownName, match="unknown topic"):
        await producer.send(f"{topic}-none", b"x")


SCENARIOS = [produce_and_read, transactions_with_a_group, a_cancelled_poll_loses_nothing, the_loop_goes_on_while_a_call_waits]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
@pytest.mark.parametrize("is_embedded", [False, True], ids=["tcp", "embedded"])
def test_asyncio(server: ServerProcess, topic: str, tmp_path: Path, scenario: Scenario, is_embedded: bool) -> None:
    async def run() -> None:
        async with connect_async(tmp_path / "data" if is_embedded else server.address) as log:
            await scenario(log, topic)

    asyncio.run(run())


def test_a_log_can_be_awaited(server: ServerProcess) -> None:
    async def run() -> str:
        log = await connect_async(server.address)
        await log.close()
        return log.where

    assert asyncio.run(run()) == server.address
