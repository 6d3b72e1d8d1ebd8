"""Static members (group.instance.id): a restart without a rebalance, and fencing."""

import struct

import pytest

from logflume.log.broker.groups import GroupConfig
from logflume.log.broker.replies import Reply
from logflume.log.client.subscription import encode_assignment, encode_subscription
from logflume.log.protocol.errors import ErrorCode
from logflume.log.records import TopicPartition

from ._groups_harness import Broker


@pytest.fixture
def broker() -> Broker:
    return Broker(config=GroupConfig(initial_rebalance_delay_ms=0))


def subscription(*topics: str, user_data: bytes = b"") -> bytes:
    head = struct.pack(">hi", 1, len(topics))
    return head + b"".join(struct.pack(">h", len(t)) + t.encode() for t in topics) + struct.pack(">i", len(user_data)) + user_data


def stable_static(broker: Broker) -> tuple[str, str]:
    """Make a stable group of the static members i1 (leader) and i2; return their ids."""
    first = broker.join(instance="i1").member_id
    waiting = broker.join(instance="i2")
    broker.join(first, instance="i1")
    second = waiting.value.member_id
    broker.sync(first, 2, {first: b"a1", second: b"a2"}, instance="i1")
    broker.sync(second, 2, instance="i2")
    return first, second


def test_a_static_member_needs_no_second_join(broker: Broker) -> None:
    joined = broker.join(instance="i1")
    assert joined.error_code == ErrorCode.NONE
    assert joined.member_id.startswith("i1-")


def test_a_restarted_follower_gets_its_assignment_without_a_rebalance(broker: Broker) -> None:
    first, second = stable_static(broker)
    back = broker.join(instance="i2")
    assert (back.error_code, back.generation_id) == (ErrorCode.NONE, 2)
    assert back.member_id != second
    assert broker.sync(back.member_id, 2, instance="i2").assignment == b"a2"
    assert broker.heartbeat(first, 2, instance="i1") == ErrorCode.NONE


def test_the_former_holder_is_fenced(broker: Broker) -> None:
    _, second = stable_static(broker)
    broker.join(instance="i2")
    assert broker.heartbeat(second, 2, instance="i2") == ErrorCode.FENCED_INSTANCE_ID
    assert broker.sync(second, 2, instance="i2").error_code == ErrorCode.FENCED_INSTANCE_ID
    assert broker.join(second, instance="i2").error_code == ErrorCode.FENCED_INSTANCE_ID
    assert broker.leave((second, "i2")) == [ErrorCode.FENCED_INSTANCE_ID]
    refused = broker.commit({("t", 0): 1}, member_id=second, generation=2, instance="i2")
    assert refused == {("t", 0): ErrorCode.FENCED_INSTANCE_ID}


def test_a_waiting_former_holder_is_fenced_at_once(broker: Broker) -> None:
    stable_static(broker)
    waiting = broker.join(instance="i3")
    assert isinstance(waiting, Reply)
    broker.join(instance="i3")
    assert waiting.value.error_code == ErrorCode.FENCED_INSTANCE_ID


def test_an_unknown_instance_is_unknown(broker: Broker) -> None:
    stable_static(broker)
    assert broker.heartbeat("x", 2, instance="i9") == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_restarted_leader_that_knows_how_skips_assigning(broker: Broker) -> None:
    first, _ = stable_static(broker)
    back = broker.join(instance="i1")
    assert back.leader == back.member_id
    assert back.skip_assignment
    assert len(back.members) == 2
    assert broker.sync(back.member_id, 2, instance="i1").assignment == b"a1"
    assert first != back.member_id


def test_an_older_restarted_leader_is_not_told_that_it_leads(broker: Broker) -> None:
    first, _ = stable_static(broker)
    back = broker.join(instance="i1", version=5)
    assert (back.leader, back.members) == (first, [])
    assert broker.sync(back.member_id, 2, instance="i1").assignment == b"a1"


def test_new_user_data_with_the_same_topics_does_not_rebalance(broker: Broker) -> None:
    owned = (("range", subscription("t", user_data=b"owns 1,2")),)
    first = broker.join(instance="i1", protocols=owned).member_id
    broker.sync(first, 1, {first: b"a"}, instance="i1")
    back = broker.join(instance="i1", protocols=(("range", subscription("t")),))
    assert back.generation_id == 1


def test_other_topics_rebalance(broker: Broker) -> None:
    first = broker.join(instance="i1", protocols=(("range", subscription("t")),)).member_id
    broker.sync(first, 1, {first: b"a"}, instance="i1")
    back = broker.join(instance="i1", protocols=(("range", subscription("t", "u")),))
    assert back.generation_id == 2


def test_who_dies_before_it_gives_up_what_it_owes_rebalances_when_it_is_back(broker: Broker) -> None:
    """A cooperative member is told to give up t-1 and dies before it joins once more: nobody else would ever get t-1."""
    fresh = (("cooperative-sticky", encode_subscription(["t"], [], -1)),)
    owning = (("cooperative-sticky", encode_subscription(["t"], [TopicPartition("t", 0), TopicPartition("t", 1)], 1)),)
    member = broker.join(instance="i1", protocols=fresh).member_id
    broker.sync(member, 1, {member: encode_assignment([TopicPartition("t", 0), TopicPartition("t", 1)])}, instance="i1")
    assert broker.join(member, instance="i1", protocols=owning).generation_id == 2
    broker.sync(member, 2, {member: encode_assignment([TopicPartition("t", 0)])}, instance="i1")
    back = broker.join(instance="i1", protocols=fresh)
    assert (back.generation_id, back.skip_assignment) == (3, False)
    broker.sync(back.member_id, 3, {back.member_id: encode_assignment([TopicPartition("t", 0)])}, instance="i1")
    assert broker.join(instance="i1", protocols=fresh).generation_id == 3


def test_a_static_member_may_be_away_for_its_session(broker: Broker) -> None:
    first, _ = stable_static(broker)
    for _ in range(3):
        broker.time.advance(3_000)
        assert broker.heartbeat(first, 2, instance="i1") == ErrorCode.NONE
    back = broker.join(instance="i2")
    assert back.generation_id == 2
    broker.time.advance(10_001)
    assert broker.join(instance="i2").member_id != back.member_id


def test_a_static_member_is_kept_through_a_rebalance_it_misses(broker: Broker) -> None:
    first, second = stable_static(broker)
    broker.new_member(session_ms=60_000)
    rejoined = broker.join(first, instance="i1", session_ms=60_000)
    for _ in range(12):
        broker.heartbeat(second, 2, instance="i2")
        broker.time.advance(5_000)
    assert rejoined.value.generation_id == 3
    assert second in {m.member_id for m in rejoined.value.members}


def test_the_new_id_survives_a_crash(broker: Broker) -> None:
    _, second = stable_static(broker)
    back = broker.join(instance="i2").member_id
    broker.crash()
    assert broker.heartbeat(back, 2, instance="i2") == ErrorCode.NONE
    assert broker.heartbeat(second, 2, instance="i2") == ErrorCode.FENCED_INSTANCE_ID


def test_a_broker_restart_and_a_member_restart_together_need_no_rebalance(broker: Broker) -> None:
    first, _ = stable_static(broker)
    broker.crash()
    assert broker.join(instance="i2").generation_id == 2
    assert broker.heartbeat(first, 2, instance="i1") == ErrorCode.NONE


def test_the_new_id_is_told_only_once_it_is_on_disk(broker: Broker) -> None:
    stable_static(broker)
    broker.journal.is_manual = True
    waiting = broker.join(instance="i2")
    assert isinstance(waiting, Reply)
    broker.journal.flush()
    assert waiting.value.generation_id == 2


def test_when_it_cannot_be_stored_the_old_id_stays(broker: Broker) -> None:
    _, second = stable_static(broker)
    broker.journal.is_failing = True
    assert broker.join(instance="i2").error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert broker.heartbeat(second, 2, instance="i2") == ErrorCode.NONE


def test_an_administrator_removes_an_instance_without_its_id(broker: Broker) -> None:
    first, _ = stable_static(broker)
    assert broker.leave(("", "i2"), ("", "i7")) == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert broker.heartbeat(first, 2, instance="i1") == ErrorCode.REBALANCE_IN_PROGRESS
