"""Coordinators make their topics when they first write to them: in a full broker too, and never while the loop waits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logflume.log.broker.access import OWNER
from logflume.log.broker.journal import DataPartitions, TopicJournal
from logflume.log.broker.ports import JournalRecord, do_at_once
from logflume.log.broker.replies import Reply
from logflume.log.broker.requests import RequestContext
from logflume.log.broker.security import internal_topics
from logflume.log.broker.state import cluster
from logflume.log.errors import StorageError
from logflume.log.protocol import ErrorCode, messages
from logflume.log.storage import DataDir
from logflume.log.storage.disk import write_atomically

from ._simulated_broker import SimulatedBroker, make_topic
from ._turned_broker import TurnedBroker
from ._wire import create_topic_request

MOST = 20


def commit(group: str) -> tuple[Any, int, Callable[[Any], int]]:
    partition = messages.OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=0)
    topic = messages.OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=[partition])
    request = messages.OffsetCommitRequest(group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=[topic])
    return request, 8, lambda answer: answer.topics[0].partitions[0].error_code


def consumer() -> tuple[Any, int, Callable[[Any], int]]:
    request = messages.ConsumerGroupHeartbeatRequest(
        group_id="consumers", member_id="m", rebalance_timeout_ms=1000, subscribed_topic_names=["t"], topic_partitions=[]
    )
    return request, 1, lambda answer: answer.error_code


def share() -> tuple[Any, int, Callable[[Any], int]]:
    request = messages.ShareGroupHeartbeatRequest(group_id="shares", member_id="m", subscribed_topic_names=["t"])
    return request, 1, lambda answer: answer.error_code


def share_state() -> tuple[Any, int, Callable[[Any], int]]:
    request = messages.AlterShareGroupOffsetsRequest
    partition = request.AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=0)
    topic = request.AlterShareGroupOffsetsRequestTopic(topic_name="t", partitions=[partition])
    return request(group_id="others", topics=[topic]), 0, lambda answer: answer.responses[0].partitions[0].error_code


def transaction() -> tuple[Any, int, Callable[[Any], int]]:
    request = messages.InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1000, producer_id=-1, producer_epoch=-1)
    return request, 4, lambda answer: answer.error_code


def streams() -> tuple[Any, int, Callable[[Any], int]]:
    request = messages.StreamsGroupHeartbeatRequest
    changelogs = [request.TopicInfo(name=f"app-{name}-changelog", topic_configs=[]) for name in ("a", "b")]
    part = request.Subtopology(subtopology_id="0", source_topics=["t"], state_changelog_topics=changelogs)
    beat = request(
        group_id="app", member_id="m", rebalance_timeout_ms=1000, topology=request.Topology(subtopologies=[part]), process_id="p",
        active_tasks=[], standby_tasks=[], warmup_tasks=[],
    )  # fmt: skip
    return beat, 0, lambda answer: answer.error_code or len(answer.status)


ASKED = (lambda: commit("simple"), consumer, share, share_state, transaction)
NAMES = ("commit", "consumer", "share", "share state", "transaction")


@pytest.mark.parametrize("asked", ASKED, ids=NAMES)
@pytest.mark.parametrize("bound", ["logflume_max_partitions", "logflume_topic_max_partitions"])
def test_groups_and_transactions_work_in_a_broker_without_room_for_more_partitions(
    tmp_path: Path, asked: Any, bound: str
) -> None:
    is_of_all = bound == "logflume_max_partitions"
    broker = TurnedBroker(tmp_path, **{bound: str(MOST) if is_of_all else "1"})
    made = broker.call(create_topic_request("t", MOST if is_of_all else 1), 7)
    assert made.topics[0].error_code == 0
    request, version, error_of = asked()
    assert error_of(broker.call(request, version)) == 0
    assert len(broker.core.partitions) > MOST or not is_of_all
    broker.close()


def test_services_and_connect_have_room_of_their_own_that_clients_cannot_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(internal_topics, "BEYOND_FOR_KNOWN_NAMES", 5)
    monkeypatch.setattr(internal_topics, "BEYOND_FOR_SERVICES", 10)
    broker = SimulatedBroker(tmp_path, configs={"logflume.max.partitions": str(MOST)})

    def create(name: str, partitions: int, *, principal: str = OWNER) -> int:
        request = create_topic_request(name, partitions)
        outcome = broker.handlers.handle(RequestContext(request.api_key, 7, 1, "c", "h", 1, principal), request)
        answer = outcome.value if isinstance(outcome, Reply) else outcome
        return int(answer.topics[0].error_code)

    full = ErrorCode.POLICY_VIOLATION
    assert create("t", MOST, principal="User:a") == 0
    assert create("u", 1) == full
    for name in ("__mine", "_confluent-mine"):
        assert create(name, 1, principal="User:a") == full, "only names that are known have room"
    assert create("connect-offsets", 6, principal="User:a") == full
    assert create("connect-offsets", 5, principal="User:a") == 0
    assert create("connect-status", 1) == full
    assert create("_logflume-sql-commands", 6) == full
    assert create("_logflume-sql-commands", 5) == 0
    assert create("_logflume-sql-workers", 1) == full
    errors = make_topic(broker.core, "__consumer_offsets", 8).value
    assert errors == {}
    more = messages.CreatePartitionsRequest
    grown = broker.call(more(topics=[more.CreatePartitionsTopic(name="t", count=MOST + 1, assignments=None)]), 3)
    assert grown.results[0].error_code == full
    broker.close()


@pytest.mark.parametrize("asked", [*ASKED, streams], ids=[*NAMES, "streams"])
def test_topics_of_coordinators_are_made_while_the_loop_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: Any
) -> None:
    broker = TurnedBroker(tmp_path)
    broker.call(create_topic_request("t", 2), 7)
    where: list[bool] = []
    open_partition = DataDir.open_partition

    def noted_open(self: DataDir, *args: Any, **options: Any) -> Any:
        where.append(broker.turns.is_elsewhere)
        return open_partition(self, *args, **options)

    def noted_write(disk: Any, path: str, content: bytes) -> None:
        where.append(broker.turns.is_elsewhere)
        write_atomically(disk, path, content)

    monkeypatch.setattr(DataDir, "open_partition", noted_open)
    monkeypatch.setattr(cluster, "write_atomically", noted_write)
    request, version, error_of = asked()
    assert error_of(broker.call(request, version)) == 0
    assert len(where) > 2
    assert all(where)
    broker.close()


class Held:
    """What is to be done elsewhere, when it is told to be."""

    def __init__(self, broker: SimulatedBroker) -> None:
        self._jobs: list[tuple[Callable[[], Any], Reply]] = []
        broker.core.offload = self
        broker.core.cluster._offload = self

    def __call__(self, work: Callable[[], Any]) -> Reply:
        reply = Reply()
        self._jobs.append((work, reply))
        return reply

    def run(self) -> None:
        while self._jobs:
            work, reply = self._jobs.pop(0)
            reply.set(do_at_once(work).value)


def written(broker: SimulatedBroker, topic: str) -> list[list[bytes | None]]:
    return [broker.values(topic, index) for index in range(2)]


def test_what_is_written_while_the_topic_is_made_comes_in_order(tmp_path: Path) -> None:
    broker = SimulatedBroker(tmp_path)
    held = Held(broker)
    journal = TopicJournal(broker.core, "__consumer_offsets", partition_count=2)
    replies = [journal.append(number % 2, [JournalRecord(b"k", b"%d" % number)]) for number in range(6)]
    replies[0].then(lambda _: replies.append(journal.append(0, [JournalRecord(b"k", b"after")])))
    assert not any(reply.is_done for reply in replies)
    held.run()
    assert [reply.value for reply in replies] == [0, 0, 1, 1, 2, 2, 3]
    assert written(broker, "__consumer_offsets") == [[b"0", b"2", b"4", b"after"], [b"1", b"3", b"5"]]
    assert journal.append(1, [JournalRecord(b"k", b"later")]).value == 3
    broker.close()


def test_if_the_topic_cannot_be_made_all_hear_it_and_the_next_write_tries_again(tmp_path: Path) -> None:
    broker = SimulatedBroker(tmp_path)
    held = Held(broker)
    journal = TopicJournal(broker.core, "__consumer_offsets", partition_count=2)
    open_partition, broker.core.data_dir.open_partition = broker.core.data_dir.open_partition, refuse  # type: ignore[method-assign]
    replies = [journal.append(0, [JournalRecord(b"k", b"lost")]) for _ in range(3)]
    held.run()
    assert [reply.value for reply in replies] == [-ErrorCode.KAFKA_STORAGE_ERROR] * 3
    assert not broker.core.partitions
    broker.core.data_dir.open_partition = open_partition  # type: ignore[method-assign]
    kept = journal.append(0, [JournalRecord(b"k", b"kept")])
    held.run()
    assert (kept.value, written(broker, "__consumer_offsets")[0]) == (0, [b"kept"])
    broker.close()


def refuse(*_: Any, **__: Any) -> Any:
    raise StorageError("no")


def test_a_marker_for_a_topic_that_is_being_made_is_tried_again(tmp_path: Path) -> None:
    """What is written there in the transaction waits for the topic as well; without its marker it would stay open."""
    broker = SimulatedBroker(tmp_path)
    partitions = DataPartitions(broker.core)

    def mark() -> int:
        return int(partitions.write_marker("__consumer_offsets", 0, 1, 0, 0, is_commit=True).value)

    assert mark() == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    held = Held(broker)
    TopicJournal(broker.core, "__consumer_offsets", partition_count=2).append(0, [JournalRecord(b"k", b"v")])
    assert mark() == ErrorCode.KAFKA_STORAGE_ERROR
    held.run()
    assert mark() == 0
    broker.close()
