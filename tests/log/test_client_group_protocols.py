"""Our consumer in groups that do not stop for a rebalance: cooperative-sticky in a classic group, and the consumer protocol."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from logflume.log import InvalidInput, KafkaError, OffsetAndMetadata, TopicPartition, UnknownName, connect, is_rebalance
from logflume.log.client.log import Log

from ._client_tools import WAIT_S, Member, read, wait_until
from ._server_process import ServerProcess

PROTOCOLS: Mapping[str, dict[str, Any]] = {
    "cooperative": {"assignment_strategies": ["cooperative-sticky"]},
    "consumer": {"group_protocol": "consumer"},
}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    """A broker whose members report often: what a member gave up reaches the others with their next heartbeat."""
    configs = ["group.consumer.min.heartbeat.interval.ms=100", "group.consumer.heartbeat.interval.ms=200"]
    server = ServerProcess(str(tmp_path_factory.mktemp("broker")), configs)
    with connect(server.address) as opened:
        yield opened
    assert server.stop() == 0


@pytest.fixture(params=PROTOCOLS)
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    return PROTOCOLS[request.param]


def owned(member: Member) -> set[TopicPartition]:
    return set(member.consumer.assignment())


def test_members_keep_what_they_need_not_give_up(log: Log, topic: str, options: dict[str, Any]) -> None:
    log.admin().create_topic(topic, partitions=4)
    every = {TopicPartition(topic, p) for p in range(4)}
    producer = log.producer()

    def produce(numbers: range) -> None:
        for i in numbers:
            producer.send(topic, b"%d" % i, partition=i % 4)
        producer.flush()

    produce(range(100))
    first = Member(log.consumer(group_id=topic, **options), [topic])
    wait_until(lambda: len(first.values) == 100)
    second = Member(log.consumer(group_id=topic, **options), [topic])
    wait_until(lambda: len(owned(first)) == 2 and owned(first) | owned(second) == every)
    assert {tp for tps in first.revoked for tp in tps} == owned(second), "only what moved was given up"
    produce(range(100, 200))
    wait_until(lambda: len(first.values) + len(second.values) >= 200)
    first.stop()
    wait_until(lambda: owned(second) == every)
    assert second.revoked == []
    produce(range(200, 300))
    wait_until(lambda: len(first.values) + len(second.values) >= 300)
    second.stop()
    assert sorted(int(v or b"-1") for v in first.values + second.values) == list(range(300))


def test_offsets_are_committed_as_a_member(log: Log, topic: str, options: dict[str, Any]) -> None:
    log.admin().create_topic(topic)
    partition = TopicPartition(topic, 0)
    producer = log.producer()
    for i in range(5):
        producer.send(topic, b"%d" % i)
    producer.flush()
    consumer = log.consumer(group_id=topic, **options)
    consumer.subscribe([topic])
    assert len(read(consumer, 5)) == 5
    consumer.commit()
    assert consumer.committed([partition]) == {partition: OffsetAndMetadata(5, leader_epoch=0)}
    described = log.admin().describe_group(topic)
    assert described.state == "Stable"
    assert [m.assignment for m in described.members] == [(partition,)]
    transactional = log.producer(transactional_id=topic)
    transactional.init_transactions()
    transactional.begin_transaction()
    transactional.send_offsets({partition: OffsetAndMetadata(3)}, consumer.group_metadata())
    transactional.commit_transaction()
    assert consumer.committed([partition]) == {partition: OffsetAndMetadata(3)}
    consumer.close()
    wait_until(lambda: log.admin().describe_group(topic).state == "Empty")


@pytest.mark.parametrize("group", [{}, *PROTOCOLS.values()], ids=["eager", *PROTOCOLS])
def test_a_pattern_reads_topics_that_match_also_later_ones(log: Log, topic: str, group: dict[str, Any]) -> None:
    admin, producer = log.admin(), log.producer()
    admin.create_topic(f"{topic}-a")
    admin.create_topic(f"x-{topic}-a")
    consumer = log.consumer(group_id=topic, **group)
    consumer.subscribe(pattern=f"{topic}-.*", on_revoked=lambda _: consumer.commit())
    producer.send(f"{topic}-a", b"a").result(WAIT_S)
    assert [r.value for r in read(consumer, 1)] == [b"a"]
    admin.create_topic(f"{topic}-b")
    producer.send(f"{topic}-b", b"b").result(WAIT_S)
    assert [r.value for r in read(consumer, 1)] == [b"b"]
    assert consumer.assignment() == (TopicPartition(f"{topic}-a", 0), TopicPartition(f"{topic}-b", 0))
    consumer.close()


def test_a_subscription_can_change(log: Log, topic: str, options: dict[str, Any]) -> None:
    for name in ("a", "b"):
        log.admin().create_topic(f"{topic}-{name}")
    consumer = log.consumer(group_id=topic, **options)
    consumer.subscribe([f"{topic}-a"])
    wait_until(lambda: consumer.poll(timeout_s=0.1) or consumer.assignment() == (TopicPartition(f"{topic}-a", 0),))
    consumer.subscribe([f"{topic}-b"])
    wait_until(lambda: consumer.poll(timeout_s=0.1) or consumer.assignment() == (TopicPartition(f"{topic}-b", 0),))
    consumer.close()


def test_a_member_that_is_not_polled_leaves_and_comes_back(log: Log, topic: str) -> None:
    log.admin().create_topic(topic)
    revoked: list[TopicPartition] = []
    lazy = log.consumer(group_id=topic, group_protocol="consumer", max_poll_interval_ms=1000)
    lazy.subscribe([topic], on_revoked=revoked.extend)
    wait_until(lambda: lazy.poll(timeout_s=0.1) or lazy.assignment())
    other = Member(log.consumer(group_id=topic, group_protocol="consumer"), [topic])
    wait_until(lambda: owned(other))
    with pytest.raises(KafkaError) as refused:
        lazy.commit({TopicPartition(topic, 0): OffsetAndMetadata(0)})
    assert is_rebalance(refused.value)
    lazy.poll(timeout_s=0.0)
    assert revoked == [TopicPartition(topic, 0)]
    other.stop()
    wait_until(lambda: lazy.poll(timeout_s=0.1) or lazy.assignment())
    lazy.close()


def test_a_member_that_waits_in_a_long_poll_stays(log: Log, topic: str, options: dict[str, Any]) -> None:
    log.admin().create_topic(topic)
    revoked: list[TopicPartition] = []
    waiting = log.consumer(group_id=topic, max_poll_interval_ms=1000, **options)
    waiting.subscribe([topic], on_revoked=revoked.extend)
    wait_until(lambda: waiting.poll(timeout_s=0.1) or waiting.assignment())
    assert waiting.poll(timeout_s=5.0) == []
    assert (revoked, waiting.assignment()) == ([], (TopicPartition(topic, 0),))
    waiting.close()


def test_an_assignor_the_broker_does_not_have_is_refused(log: Log, topic: str) -> None:
    consumer = log.consumer(group_id=topic, group_protocol="consumer", server_assignor="sorted")
    consumer.subscribe([topic])
    with pytest.raises(KafkaError, match="UNSUPPORTED_ASSIGNOR"):
        wait_until(lambda: consumer.poll(timeout_s=0.1))
    consumer.close()


def test_bad_options_are_named(log: Log) -> None:
    with pytest.raises(UnknownName, match="did you mean 'consumer'"):
        log.consumer(group_id="g", group_protocol="consumers")
    consumer = log.consumer(group_id="g")
    with pytest.raises(InvalidInput, match="no regular expression"):
        consumer.subscribe(pattern="a(")
    with pytest.raises(InvalidInput, match="a list of topics or a pattern"):
        consumer.subscribe()


@pytest.mark.parametrize("attempt", range(3))
def test_commits_without_a_pause_do_not_hold_up_a_rebalance(log: Log, topic: str, attempt: int) -> None:
    """A commit that meets the end of its generation is refused; the member stays, or the group would wait for it."""
    log.admin().create_topic(topic, partitions=6)
    members: list[Member] = []
    for _ in range(3):
        members.append(Member(log.consumer(group_id=topic, **PROTOCOLS["cooperative"]), [topic], poll_s=0.001))
        wait_until(lambda: all(member.assignments for member in members))
    wait_until(lambda: all(len(owned(member)) == 2 for member in members), timeout_s=20.0)
    for member in members:
        member.stop()
