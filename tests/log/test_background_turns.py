"""Work that nobody asked for is done in short turns too: what is looked through grows with the broker, a turn does not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logflume.log.batch import encode_batch
from logflume.log.broker import core as broker_core
from logflume.log.broker.groups import GroupConfig
from logflume.log.broker.groups.removal import DELETIONS_AT_A_TIME
from logflume.log.broker.transactions import TransactionConfig
from logflume.log.broker.transactions import coordinator as transaction_coordinator
from logflume.log.protocol import messages
from logflume.log.server import metrics as metrics_of_the_broker
from logflume.log.server.shell import BrokerShell
from logflume.log.storage import cleaner, scrub

from ._groups_harness import Broker
from ._simulated_broker import made, make_topic
from ._transactions_harness import TxnBroker
from ._turned_broker import MOST_WORK, TurnedBroker, TurnedTime, Turns
from ._wire import create_topic_request

PARTITIONS = 300
HOUR_MS = 3_600_000


def test_retention_looks_at_some_partitions_in_a_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_core, "PARTITIONS_AT_A_TIME", 50)
    broker = TurnedBroker(tmp_path)
    broker.call(create_topic_request("t", PARTITIONS, **{"retention.ms": "1000"}), 7)
    for index in (0, 7, 299):
        partition = broker.core.partition("t", index)
        assert partition is not None
        partition.log.append(encode_batch([None], [b"old"], [0]), leader_epoch=0, now_ms=0)
        partition.log.flush()
    broker.turns.turns = 0
    broker.core.run_retention()
    broker.core.run_retention()
    broker.call(messages.DeleteTopicsRequest(topic_names=["no such topic"]), 5)
    broker.turns.run_due()
    assert 6 <= broker.turns.turns <= 13, "a turn for fifty, one more for each that deletes; the second call does nothing"
    starts = [broker.core.partitions["t", index].log.log_start_offset for index in range(PARTITIONS)]
    assert {index for index, start in enumerate(starts) if start} == {0, 7, 299}
    broker.core.run_retention()
    broker.close()


def test_a_topic_may_go_while_retention_is_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_core, "PARTITIONS_AT_A_TIME", 2)
    broker = TurnedBroker(tmp_path)
    broker.call(create_topic_request("t", 20), 7)
    broker.core.run_retention()
    broker.call(messages.DeleteTopicsRequest(topic_names=["t"]), 5)
    broker.turns.run_due()
    assert not broker.core.partitions
    broker.call(create_topic_request("t", 20), 7)
    broker.core.run_retention()
    broker.turns.run_due()
    assert len(broker.core.partitions) == 20
    broker.close()


def commit(broker: Broker, group: str, count: int) -> None:
    partition = messages.OffsetCommitRequest.OffsetCommitRequestPartition
    topic = messages.OffsetCommitRequest.OffsetCommitRequestTopic(
        name="many", partitions=[partition(partition_index=index, committed_offset=1) for index in range(count)]
    )
    answer = broker.send(
        "OffsetCommit", version=8, group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=[topic]
    )
    assert {each.error_code for each in answer.topics[0].partitions} == {0}


def test_offsets_and_groups_expire_in_short_turns() -> None:
    turns = Turns()
    config = GroupConfig(offsets_retention_ms=HOUR_MS, offsets_retention_check_interval_ms=10 * HOUR_MS)
    broker = Broker(config=config, time=TurnedTime(turns))
    broker.topics.partitions = {"many": 3_000}
    commit(broker, "big", 3_000)
    for number in range(400):
        commit(broker, f"g{number}", 10)
    assert len(broker.send("ListGroups").groups) == 401
    turns.turns = turns.longest = 0
    broker.time.advance(10 * HOUR_MS)
    assert broker.send("ListGroups").groups == []
    assert turns.turns >= 3_000 // DELETIONS_AT_A_TIME
    assert turns.longest <= MOST_WORK
    broker.crash()
    assert broker.send("ListGroups").groups == []


def test_transactional_ids_expire_in_short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_coordinator, "EXPIRED_AT_A_TIME", 100)
    broker = TxnBroker(config=TransactionConfig(id_expiration_ms=HOUR_MS, expiry_check_interval_ms=10 * HOUR_MS))
    turns: list[int] = []
    for number in range(1_000):
        broker.init(f"x{number}")
    expire = broker.txns._on_expiry

    def noted() -> None:
        before = len(list(broker.txns.transactions()))
        expire()
        turns.append(before - len(list(broker.txns.transactions())))

    monkeypatch.setattr(broker.txns._expiry, "_callback", noted)
    broker.time.advance(10 * HOUR_MS)
    assert turns == [100] * 10
    assert not list(broker.txns.transactions())


class Looked:
    """Counts the turns of the loop that something took."""

    def __init__(self) -> None:
        self.turns = 0
        self._is_over = False

    async def __aenter__(self) -> Looked:
        async def count() -> None:
            while not self._is_over:
                self.turns += 1
                await asyncio.sleep(0)

        self._counting = asyncio.create_task(count())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_over = True
        await self._counting


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[asyncio.AbstractEventLoop, BrokerShell]]:
    loop = asyncio.new_event_loop()

    async def start() -> BrokerShell:
        shell = await BrokerShell.start(str(tmp_path_factory.mktemp("many")), has_unix_socket=False)
        await made(make_topic(shell.core, "t", PARTITIONS, {"cleanup.policy": "compact"}))
        return shell

    shell = loop.run_until_complete(start())
    yield loop, shell
    loop.run_until_complete(shell.stop())
    loop.close()


def test_metrics_are_read_in_short_turns(many: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, shell = many
    monkeypatch.setattr(metrics_of_the_broker, "PARTITIONS_AT_A_TIME", 10)
    sources = metrics_of_the_broker.Sources(
        shell.core, shell.handlers, shell.coordinators, shell._listener, shell._flusher, shell.logins, 0.0
    )

    async def ask() -> tuple[bytes, int]:
        async with Looked() as looked:
            text = await metrics_of_the_broker.Metrics(sources).text()
        return text, looked.turns

    text, turns = loop.run_until_complete(ask())
    assert f"logflume_partitions {float(PARTITIONS)}".encode() in text
    assert b'logflume_topic_size_bytes{topic="t"}' in text
    assert turns >= 2 * PARTITIONS // 10


def test_what_is_to_be_compacted_or_scrubbed_is_looked_for_in_short_turns(many: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, shell = many
    monkeypatch.setattr(cleaner, "LOGS_AT_A_TIME", 10)
    monkeypatch.setattr(scrub, "LOGS_AT_A_TIME", 10)
    logs = [partition.log for partition in shell.core.partitions.values()]

    async def look() -> tuple[int, int]:
        async with Looked() as compacting:
            await cleaner.Cleaner().clean(logs, now_ms=0)
        async with Looked() as scrubbing:
            await scrub.Scrubber().scrub(logs, now_ms=0, interval_ms=1, max_bytes_per_s=1e9)
        return compacting.turns, scrubbing.turns

    compacting, scrubbing = loop.run_until_complete(look())
    assert min(compacting, scrubbing) >= PARTITIONS // 10


def test_logs_that_changed_are_looked_for_in_short_turns(many: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, shell = many
    monkeypatch.setattr("logflume.log.server.shell.CHECKPOINT_LOOKS", 10)

    async def look() -> int:
        shell._checkpointed = {
            (partition.log.topic_id, partition.log.partition): (partition.log.log_start_offset, partition.log.log_end_offset)
            for partition in shell.core.partitions.values()
        }
        last = next(iter(shell.core.partitions.values())).log
        del shell._checkpointed[last.topic_id, last.partition]
        async with Looked() as looked:
            shell._checkpoint()
            while (last.topic_id, last.partition) not in shell._checkpointed:
                await asyncio.sleep(0)
        return looked.turns

    assert loop.run_until_complete(look()) >= PARTITIONS // 10 - 1
