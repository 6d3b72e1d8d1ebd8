"""Consumer groups with our own consumer against the real broker: rebalances, commits, static members, lost members."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import pytest

from logflume.log import GroupMetadata, InvalidInput, KafkaError, OffsetAndMetadata, TopicPartition, connect, is_rebalance
from logflume.log.broker.access import Operation, Pattern, Permission, Resource
from logflume.log.client.cluster import Cluster
from logflume.log.client.consumer_protocol import ConsumerProtocolMembership
from logflume.log.client.errors import ClientClosed, TransactionMustAbort
from logflume.log.client.group import GroupMember
from logflume.log.client.log import Log
from logflume.log.client.loop import IoLoop
from logflume.log.client.transport import Channel
from logflume.log.interfaces import Assignment, AssignmentStrategy, Consumer, Subscription
from logflume.log.protocol import ErrorCode, messages

from ._client_tools import WAIT_S, Member, read, wait_until
from ._server_process import ServerProcess
from ._wire import Wire


@pytest.fixture
def log(server: ServerProcess) -> Iterator[Log]:
    with connect(server.address) as opened:
        yield opened


def test_two_members_share_and_hand_over(log: Log, topic: str) -> None:
    log.admin().create_topic(topic, partitions=4)
    producer = log.producer()

    def produce(numbers: range) -> None:
        for i in numbers:
            producer.send(topic, b"%d" % i, partition=i % 4)
        producer.flush()

    produce(range(100))
    first = Member(log.consumer(group_id=topic), [topic])
    wait_until(lambda: len(first.values) == 100)
    second = Member(log.consumer(group_id=topic), [topic])
    wait_until(lambda: first.assignments[-1:] and second.assignments[-1:] and len(first.assignments[-1]) == 2)
    assert sorted(first.assignments[-1] + second.assignments[-1]) == [TopicPartition(topic, p) for p in range(4)]
    assert len(first.revoked[-1]) == 4
    produce(range(100, 200))
    wait_until(lambda: len(first.values) + len(second.values) >= 200)
    first.stop()
    wait_until(lambda: len(second.assignments[-1]) == 4)
    produce(range(200, 300))
    wait_until(lambda: len(first.values) + len(second.values) >= 300)
    second.stop()
    assert sorted(int(v or b"-1") for v in first.values + second.values) == list(range(300))


def test_a_new_consumer_goes_on_from_the_committed_offset(log: Log, topic: str) -> None:
    log.admin().create_topic(topic)
    partition = TopicPartition(topic, 0)
    producer = log.producer()
    for i in range(10):
        producer.send(topic, b"%d" % i)
    producer.flush()
    first = log.consumer(group_id=topic)
    first.subscribe([topic])
    assert len(read(first, 10)) == 10
    assert first.committed([partition]) == {partition: None}
    first.commit({partition: OffsetAndMetadata(7, "seven")})
    assert first.committed([partition]) == {partition: OffsetAndMetadata(7, "seven")}
    first.close()
    second = log.consumer(group_id=topic)
    second.subscribe([topic])
    assert [r.offset for r in read(second, 3)] == [7, 8, 9]
    second.close()


def test_a_static_member_that_comes_back_gets_what_it_had(log: Log, topic: str) -> None:
    log.admin().create_topic(topic, partitions=4)
    members = [Member(log.consumer(group_id=topic, group_instance_id=f"i{i}"), [topic]) for i in range(2)]
    wait_until(lambda: all(m.assignments and len(m.assignments[-1]) == 2 for m in members))
    before, count = members[1].assignments[-1], len(members[0].assignments)
    members[1].stop()
    again = Member(log.consumer(group_id=topic, group_instance_id="i1"), [topic])
    wait_until(lambda: again.assignments)
    assert again.assignments[-1] == before
    assert len(members[0].assignments) == count
    again.stop()
    members[0].stop()


def test_a_second_holder_of_an_instance_id_fences_the_first(log: Log, topic: str) -> None:
    log.admin().create_topic(topic)
    first = log.consumer(group_id=topic, group_instance_id="i", session_timeout_ms=6000)
    first.subscribe([topic])
    wait_until(lambda: first.poll(timeout_s=0.1) or first.assignment())
    second = log.consumer(group_id=topic, group_instance_id="i", session_timeout_ms=6000)
    second.subscribe([topic])
    wait_until(lambda: second.poll(timeout_s=0.1) or second.assignment())

    def is_fenced() -> bool:
        try:
            first.poll(timeout_s=0.1)
        except KafkaError as error:
            return error.code == "FENCED_INSTANCE_ID"
        return False

    wait_until(is_fenced)


def test_a_consumer_that_is_not_polled_leaves_the_group(log: Log, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    log.admin().create_topic(topic)
    lazy = log.consumer(group_id=topic, session_timeout_ms=6000, max_poll_interval_ms=1000)
    lazy.subscribe([topic])
    wait_until(lambda: lazy.poll(timeout_s=0.1) or lazy.assignment())
    with caplog.at_level(logging.WARNING):
        wait_until(lambda: log.admin().describe_group(topic).state == "Empty")
    assert "no poll for more than 1000 ms" in caplog.text
    with pytest.raises(KafkaError, match="UNKNOWN_MEMBER_ID") as refused:
        lazy.commit({TopicPartition(topic, 0): OffsetAndMetadata(0)})
    assert is_rebalance(refused.value)
    wait_until(lambda: lazy.poll(timeout_s=0.1) or log.admin().describe_group(topic).state == "Stable")


def test_a_topic_that_appears_later_is_read(log: Log, topic: str) -> None:
    consumer = log.consumer(group_id=topic)
    consumer.subscribe([topic])
    assert consumer.poll(timeout_s=0.3) == []
    log.admin().create_topic(topic)
    log.producer().send(topic, b"x").result(WAIT_S)
    assert [r.value for r in read(consumer, 1)] == [b"x"]
    consumer.close()


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    """A broker that takes short sessions."""
    configs = [
        "group.min.session.timeout.ms=100",
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found=true",
    ]
    server = ServerProcess(str(tmp_path_factory.mktemp("hasty")), configs)
    try:
        with connect(server.address) as opened:
            yield opened
    finally:
        server.stop()


def test_heartbeats_come_three_times_a_session_at_least(hasty: Log, topic: str) -> None:
    hasty.admin().create_topic(topic)
    with hasty.consumer(group_id=topic, session_timeout_ms=1500, heartbeat_interval_ms=60_000) as consumer:
        consumer.subscribe([topic])
        wait_until(lambda: consumer.poll(timeout_s=0.1) or consumer.assignment())
        (member,) = hasty.admin().describe_group(topic).members
        deadline = time.monotonic() + 3.5
        while time.monotonic() < deadline:
            consumer.poll(timeout_s=0.2)
        assert [each.member_id for each in hasty.admin().describe_group(topic).members] == [member.member_id]
    with pytest.raises(InvalidInput, match="heartbeat_interval_ms must be greater than 0, not 0"):
        hasty.consumer(group_id=topic, heartbeat_interval_ms=0)


@pytest.mark.parametrize("is_made_first", [True, False])
def test_a_topic_that_the_leader_missed_is_read_after_it_came_back(hasty: Log, topic: str, is_made_first: bool) -> None:
    hasty.admin().create_topic(topic)
    later = f"{topic}-later"

    def member() -> Consumer:
        consumer = hasty.consumer(group_id=topic, group_instance_id="i", session_timeout_ms=3000)
        consumer.subscribe([topic, later])
        return consumer

    first = member()
    wait_until(lambda: first.poll(timeout_s=0.1) or first.assignment())
    first.close()
    if is_made_first:
        hasty.admin().create_topic(later)
    second = member()
    wait_until(lambda: second.poll(timeout_s=0.1) or second.assignment())
    if not is_made_first:
        hasty.admin().create_topic(later)
    hasty.producer().send(later, b"x").result(WAIT_S)
    assert [r.value for r in read(second, 1)] == [b"x"]
    second.close()


def test_a_static_leader_that_may_not_describe_its_group_is_told_so(hasty: Log, topic: str) -> None:
    """Who comes back as leader asks who has what, which needs no right that finding the coordinator does not need already."""
    hasty.admin().create_topic(topic)

    def member(log: Log) -> Consumer:
        consumer = log.consumer(group_id=topic, group_instance_id="i", session_timeout_ms=3000)
        consumer.subscribe([topic])
        return consumer

    first = member(hasty)
    wait_until(lambda: first.poll(timeout_s=0.1) or first.assignment())
    first.close()
    creation = messages.CreateAclsRequest.AclCreation
    of_group = {"resource_type": Resource.GROUP, "resource_name": topic, "resource_pattern_type": Pattern.LITERAL}
    rules = [(Operation.READ, Permission.ALLOW), (Operation.DESCRIBE, Permission.DENY)]
    acls = [
        creation(**of_group, principal="User:*", host="*", operation=operation, permission_type=permission)
        for operation, permission in rules
    ]
    with Wire(int(hasty.where.rpartition(":")[2])) as wire:
        assert [each.error_code for each in wire.call(messages.CreateAclsRequest(creations=acls), 2).results] == [0, 0]
    with connect(hasty.where) as anew:
        second = member(anew)
        with pytest.raises(KafkaError, match=topic) as refused:
            wait_until(lambda: second.poll(timeout_s=0.1) or second.assignment())
        assert refused.value.error is ErrorCode.GROUP_AUTHORIZATION_FAILED
        second.close()


def test_what_a_cooperative_leader_left_over_is_dealt_out_again(hasty: Log, topic: str) -> None:
    """As if a static member had died before it joined once more to give something up: nobody else would start a rebalance."""
    dealt: list[int] = []

    def assign(members: Sequence[Subscription], counts: Mapping[str, int]) -> Assignment:
        dealt.append(len(members))
        return {each.member_id: [TopicPartition(topic, p) for p in range(counts[topic])][: len(dealt)] for each in members}

    hasty.admin().create_topic(topic, partitions=2)
    strategy = AssignmentStrategy("a piece at a time", assign, is_cooperative=True)
    consumer = hasty.consumer(group_id=topic, session_timeout_ms=1000, assignment_strategies=[strategy])
    consumer.subscribe([topic])
    wait_until(lambda: consumer.poll(timeout_s=0.1) or len(consumer.assignment()) == 2)
    assert dealt == [1, 1]
    consumer.close()


def test_roundrobin_is_used_when_all_members_want_it(log: Log, topic: str) -> None:
    log.admin().create_topic(topic, partitions=3)
    consumer = log.consumer(group_id=topic, assignment_strategies=["roundrobin"])
    consumer.subscribe([topic])
    wait_until(lambda: consumer.poll(timeout_s=0.1) or len(consumer.assignment()) == 3)
    assert log.admin().describe_group(topic).protocol == "roundrobin"
    metadata = consumer.group_metadata()
    assert isinstance(metadata, GroupMetadata)
    assert metadata.generation >= 1
    consumer.close()


def test_waking_up_does_not_lose_a_join(log: Log, topic: str) -> None:
    log.admin().create_topic(topic)
    log.producer().send(topic, b"x").result(WAIT_S)
    consumer = log.consumer(group_id=topic)
    consumer.subscribe([topic])
    for _ in range(5):
        consumer.wakeup()
        consumer.poll(timeout_s=0.01)
    started = time.monotonic()
    assert [r.value for r in read(consumer, 1)] == [b"x"]
    assert time.monotonic() - started < WAIT_S
    consumer.close()


class _SlowJoins:
    """A channel whose joins take 0.2 s, whoever still waits for the answer: to reach the coordinator, or to be answered."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def request(self, message: Any, **options: Any) -> Any:
        async def arrive() -> Any:
            if isinstance(message, messages.JoinGroupRequest):
                await asyncio.sleep(0.2)
            answer = await self._channel.request(message, **options)
            if isinstance(message, messages.ConsumerGroupHeartbeatRequest) and message.member_epoch == 0:
                await asyncio.sleep(0.2)
            return answer

        return await asyncio.shield(asyncio.ensure_future(arrive()))


@pytest.mark.parametrize("is_static", [False, True])
def test_who_closes_while_it_joins_leaves_nobody_behind(
    log: Log, topic: str, is_static: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A join that the coordinator meets behind the leave would make a member that nobody is, until its session ends."""
    init = GroupMember.__init__

    def with_slow_joins(self: GroupMember, cluster: Cluster, _: Channel, **options: Any) -> None:
        init(self, cluster, cast("Channel", _SlowJoins(cluster.channel)), **options)  # closing the consumer's would lose it

    monkeypatch.setattr(GroupMember, "__init__", with_slow_joins)
    admin = log.admin()
    admin.create_topic(topic)
    consumer = log.consumer(group_id=topic, group_instance_id="one" if is_static else None)
    consumer.subscribe([topic])
    consumer.poll(timeout_s=0.1)  # sends the join, and does not wait for its answer
    consumer.close()
    if is_static:
        admin.remove_group_members(topic, ["one"])
    time.sleep(0.5)  # a join on its way would arrive
    assert not admin.describe_group(topic).members


class _FailingJoins(_SlowJoins):
    """A channel whose joins fail after 0.2 s, with no error of the log's own."""

    async def request(self, message: Any, **options: Any) -> Any:
        if isinstance(message, messages.JoinGroupRequest):
            await asyncio.sleep(0.2)
            raise ZeroDivisionError
        return await super().request(message, **options)


def test_who_closes_while_its_join_fails_closes(log: Log, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    init = GroupMember.__init__

    def with_failing_joins(self: GroupMember, cluster: Cluster, channel: Channel, **options: Any) -> None:
        init(self, cluster, cast("Channel", _FailingJoins(channel)), **options)

    monkeypatch.setattr(GroupMember, "__init__", with_failing_joins)
    log.admin().create_topic(topic)
    consumer = log.consumer(group_id=topic)
    consumer.subscribe([topic])
    consumer.poll(timeout_s=0.05)
    consumer.close()
    with pytest.raises(ClientClosed):
        consumer.poll(timeout_s=0.1)


def test_who_closes_before_its_first_heartbeat_is_answered_leaves_nobody_behind(
    log: Log, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    init = ConsumerProtocolMembership.__init__

    def with_slow_joins(
        self: ConsumerProtocolMembership, cluster: Cluster, loop: IoLoop, channel: Channel, **options: Any
    ) -> None:
        init(self, cluster, loop, cast("Channel", _SlowJoins(channel)), **options)

    monkeypatch.setattr(ConsumerProtocolMembership, "__init__", with_slow_joins)
    log.admin().create_topic(topic)
    consumer = log.consumer(group_id=topic, group_protocol="consumer")
    consumer.subscribe([topic])
    consumer.poll(timeout_s=0.1)
    consumer.close()
    time.sleep(0.3)
    response = log.admin().request("ConsumerGroupDescribe", group_ids=[topic], include_authorized_operations=False)
    assert [group.members for group in response.groups] == [[]]


def test_a_member_that_was_dropped_commits_nothing_for_what_it_had(log: Log, topic: str) -> None:
    """It learns of it while it joins once more and reads on: what it had was another's meanwhile, whoever it is afterwards."""
    log.admin().create_topic(topic, partitions=2)
    both = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    options: dict[str, Any] = {
        "group_id": topic,
        "assignment_strategies": ["cooperative-sticky"],
        "heartbeat_interval_ms": 3_000,
    }
    first, revoked = log.consumer(group_instance_id="first", **options), list[TopicPartition]()
    first.subscribe([topic], on_revoked=revoked.extend)
    wait_until(lambda: first.poll(timeout_s=0.05) == [] and len(first.assignment()) == 2)
    log.admin().remove_group_members(topic, ["first"])
    second = Member(log.consumer(group_instance_id="second", **options), [topic])
    wait_until(lambda: second.assignments[-1:] == [tuple(both)])
    producer = log.producer()
    for number in range(10):
        producer.send(topic, b"", partition=number % 2)
    producer.close()
    wait_until(lambda: committed(log, topic) == {5})
    first.subscribe([topic], on_revoked=revoked.extend)
    first.poll(timeout_s=0.0)
    writer = log.producer(transactional_id=topic)
    writer.init_transactions()
    writer.begin_transaction()
    with pytest.raises(TransactionMustAbort):
        writer.send_offsets(dict.fromkeys(both, OffsetAndMetadata(3)), first.group_metadata(), renewed=first.renewed_metadata)
    writer.abort_transaction()
    assert committed(log, topic) == {5}
    wait_until(lambda: not first.poll(timeout_s=0.05) and len(first.assignment()) == 1)
    assert sorted(revoked) == both
    assert [first.position(tp) for tp in first.assignment()] == [5]
    second.stop()
    first.close()


def committed(log: Log, group: str) -> set[int]:
    return {at.offset for at in log.admin().group_offsets(group).values()}
