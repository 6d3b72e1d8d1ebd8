"""Coordinators over the broker's journals: nothing is told before it is on disk; every commit is read back by another client."""

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from logflume.log.broker.coordinators import Coordinators
from logflume.log.broker.handlers import Handlers
from logflume.log.broker.replies import Reply
from logflume.log.broker.requests import RequestContext
from logflume.log.errors import StorageError
from logflume.log.protocol import ErrorCode, messages
from logflume.log.storage import PartitionLog

from ._simulated_broker import SimulatedBroker
from ._wire import batch, produce_request

PARTITIONS, ROUNDS = 10, 500
"""5,000 commits: a fault that only every thousandth meets is met."""


class HeldFlusher:
    """Flushes when it is told to; until then nothing is durable."""

    def __init__(self) -> None:
        self.is_holding = False
        self.held: list[tuple[PartitionLog, Any]] = []

    def request(self, log: PartitionLog, callback: Any) -> None:
        self.held.append((log, callback))
        if not self.is_holding:
            self.release()

    def release(self) -> None:
        """Flush in the order of the requests, those that come of it too."""
        while self.held:
            log, callback = self.held.pop(0)
            try:
                log.flush()
            except StorageError as error:
                callback(error)
            else:
                callback(None)


class Broker:
    """A broker with coordinators on a simulated disk."""

    def __init__(self, path: Path) -> None:
        self.flusher = HeldFlusher()
        self.base = SimulatedBroker(path, flusher=self.flusher)
        self._correlation = itertools.count(1)
        self.start()

    def start(self) -> None:
        self.coordinators = Coordinators(self.base.core)
        self.handlers = Handlers(
            self.base.core, coordinators=self.coordinators.handlers(), admission=self.coordinators.transactions
        )

    def power_cut(self, seed: int = 0) -> None:
        self.flusher.held.clear()
        self.flusher.is_holding = False
        self.coordinators.close()
        self.base.power_cut(random.Random(seed))
        self.start()

    def ask(self, message: Any, version: int, *, client: str = "c") -> Any:
        """Return the response, or the Reply by which it will come."""
        context = RequestContext(message.api_key, version, next(self._correlation), client, "here", 1)
        outcome = self.handlers.handle(context, message)
        return outcome.value if isinstance(outcome, Reply) and outcome.is_done else outcome


def commit(offsets: dict[int, int], *, group: str = "g") -> Any:
    request = messages.OffsetCommitRequest
    partition = request.OffsetCommitRequestPartition
    parts = [partition(partition_index=index, committed_offset=offset) for index, offset in offsets.items()]
    return request(group_id=group, topics=[request.OffsetCommitRequestTopic(name="t", partitions=parts)])


def fetch(partitions: int, *, group: str = "g") -> Any:
    request = messages.OffsetFetchRequest
    topic = request.OffsetFetchRequestTopics(name="t", partition_indexes=list(range(partitions)))
    return request(groups=[request.OffsetFetchRequestGroup(group_id=group, topics=[topic])])


def committed(broker: Broker, *, partitions: int = PARTITIONS, group: str = "g") -> dict[int, int]:
    response = broker.ask(fetch(partitions, group=group), 8, client="another")
    (topic,) = response.groups[0].topics
    assert {each.error_code for each in topic.partitions} == {0}
    return {each.partition_index: each.committed_offset for each in topic.partitions}


def test_every_offset_commit_is_read_back_by_another_client(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.base.create("t", PARTITIONS)
    for number in range(1, ROUNDS + 1):
        offsets = {index: number * 100 + index for index in range(PARTITIONS)}
        response = broker.ask(commit(offsets), 8)
        assert {each.error_code for each in response.topics[0].partitions} == {0}
        assert committed(broker) == offsets, f"after {number * PARTITIONS} commits"
    broker.power_cut()
    assert committed(broker) == offsets


def join(member_id: str = "") -> Any:
    request = messages.JoinGroupRequest
    protocol = request.JoinGroupRequestProtocol(name="range", metadata=b"m")
    return request(
        group_id="s",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id=member_id,
        group_instance_id="i",
        protocol_type="consumer",
        protocols=[protocol],
    )


def sync(member_id: str, generation: int) -> Any:
    request = messages.SyncGroupRequest
    assignment = request.SyncGroupRequestAssignment(member_id=member_id, assignment=b"a")
    return request(group_id="s", generation_id=generation, member_id=member_id, group_instance_id="i", assignments=[assignment])


def consumer_heartbeat() -> Any:
    return messages.ConsumerGroupHeartbeatRequest(
        group_id="k",
        member_id="m" * 22,
        member_epoch=0,
        rebalance_timeout_ms=10_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )


def share_heartbeat() -> Any:
    return messages.ShareGroupHeartbeatRequest(group_id="h", member_id="n" * 22, member_epoch=0, subscribed_topic_names=["t"])


def init_producer() -> Any:
    return messages.InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000)


def add_partitions(producer_id: int, epoch: int) -> Any:
    request = messages.AddPartitionsToTxnRequest
    topic = request.AddPartitionsToTxnTopic(name="t", partitions=[0])
    return request(
        v3_and_below_transactional_id="x", v3_and_below_producer_id=producer_id, v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=[topic],
    )  # fmt: skip


def test_no_coordinator_answers_before_its_journal_is_on_disk(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.base.create("t", 2)
    broker.base.time.advance(0)

    def is_told_only_when_durable(message: Any, version: int) -> Any:
        """Ask while nothing gets to the disk; return the answer that comes once it does."""
        broker.flusher.is_holding = True
        outcome = broker.ask(message, version)
        broker.base.time.advance(1_000)
        assert isinstance(outcome, Reply), f"{type(message).__name__} was answered at once"
        assert not outcome.is_done, f"{type(message).__name__} was answered with nothing on disk"
        broker.flusher.is_holding = False
        broker.flusher.release()
        broker.base.time.advance(1_000)
        assert outcome.is_done
        return outcome.value

    assert is_told_only_when_durable(commit({0: 5}), 8).topics[0].partitions[0].error_code == 0
    assert is_told_only_when_durable(produce_request("t", batch(b"v")), 9).responses[0].partition_responses[0].base_offset == 0
    made = is_told_only_when_durable(init_producer(), 4)
    assert made.error_code == 0
    added = is_told_only_when_durable(add_partitions(made.producer_id, made.producer_epoch), 3)
    assert added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 0
    end = messages.EndTxnRequest(
        transactional_id="x", producer_id=made.producer_id, producer_epoch=made.producer_epoch, committed=True
    )
    assert is_told_only_when_durable(end, 3).error_code == 0
    joined = broker.ask(join(), 7)
    broker.base.time.advance(1_000)
    joined = joined.value if isinstance(joined, Reply) else joined
    assert joined.error_code == 0
    synced = is_told_only_when_durable(sync(joined.member_id, joined.generation_id), 5)
    assert (synced.error_code, synced.assignment) == (0, b"a")
    assert is_told_only_when_durable(consumer_heartbeat(), 0).error_code == 0
    assert is_told_only_when_durable(share_heartbeat(), 1).error_code == 0
    delete = messages.DeleteGroupsRequest(groups_names=["g"])
    assert is_told_only_when_durable(delete, 2).results[0].error_code == 0
    broker.power_cut()
    assert committed(broker, partitions=1) == {0: -1}, "the group was deleted"


@pytest.mark.parametrize("seed", range(5))
def test_what_a_coordinator_told_survives_a_power_cut(tmp_path: Path, seed: int) -> None:
    broker, rng = Broker(tmp_path), random.Random(seed)
    broker.base.create("t", PARTITIONS)
    told: dict[int, int] = {}
    ids: set[int] = set()
    for number in range(1, 41):
        asked = {rng.randrange(PARTITIONS): number * 10 for _ in range(3)}
        broker.flusher.is_holding = rng.random() < 0.3
        if not isinstance(broker.ask(commit(asked), 8), Reply):
            told |= asked
        made = broker.ask(messages.InitProducerIdRequest(transactional_id=None), 4)
        assert made.producer_id not in ids, "a producer id is given out once"
        ids.add(made.producer_id)
        if broker.flusher.is_holding:
            broker.power_cut(seed)
            found = committed(broker)
            assert all(found[index] in (offset, *asked.values()) for index, offset in told.items())
            told = {index: offset for index, offset in found.items() if offset >= 0}


def test_a_commit_that_was_not_told_may_be_lost_but_never_goes_back(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.base.create("t", 1)
    assert broker.ask(commit({0: 7}), 8).topics[0].partitions[0].error_code == ErrorCode.NONE
    broker.flusher.is_holding = True
    assert isinstance(broker.ask(commit({0: 8}), 8), Reply)
    assert committed(broker, partitions=1) == {0: 7}, "what is not on disk is not told"
    broker.power_cut()
    assert committed(broker, partitions=1)[0] in (7, 8)
