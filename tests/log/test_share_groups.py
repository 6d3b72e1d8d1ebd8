"""Members of share groups, their offsets and their records; a restart at every prefix of the journal."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logflume.log.broker.groups import GroupConfig, GroupCoordinator
from logflume.log.broker.groups.epoch_records import (
    EpochKey,
    GroupEpochValue,
    GroupKind,
    Role,
    TargetEpochValue,
    decode_epoch_key,
    encode_epoch_key,
)
from logflume.log.broker.groups.heartbeats import HeartbeatResult
from logflume.log.broker.groups.offset_commits import Committer, NewOffset
from logflume.log.broker.groups.share import ShareHeartbeat
from logflume.log.broker.groups.share.assignor import assign_simple
from logflume.log.broker.groups.share.records import (
    InitializedValue,
    ShareCurrentValue,
    ShareMemberValue,
    TopicState,
    decode_share_value,
    encode_share_value,
)
from logflume.log.broker.ports import JournalRecord
from logflume.log.broker.share.runs import DeliveryState, Run
from logflume.log.broker.share.state_records import (
    SNAPSHOT,
    UPDATE,
    ShareKey,
    ShareSnapshot,
    ShareUpdate,
    decode_state_key,
    decode_state_value,
    encode_snapshot,
    encode_state_key,
    updated,
)
from logflume.log.broker.testing.simulated import SimulatedJournal, SimulatedTime, SimulatedTopics
from logflume.log.errors import DecodeError
from logflume.log.protocol import ErrorCode, messages

from ._groups_harness import NoShareStates
from ._share_harness import Member, ShareBroker
from ._wire import batch

TOPIC_ID = bytes(range(16))


NUMBERS = {"share.session.timeout.ms": 45_000, "share.heartbeat.interval.ms": 5_000, "share.assignment.interval.ms": 0}


class Settings:
    """Kafka's defaults."""

    def number(self, name: str, group_id: str) -> int:
        return NUMBERS[name]

    def text(self, name: str, group_id: str) -> str:
        raise AssertionError(name)


class Groups:
    """Share groups in simulated surroundings."""

    def __init__(self, journal: SimulatedJournal | None = None) -> None:
        self.time, self.topics = SimulatedTime(), SimulatedTopics({"t": 4, "u": 2})
        self.journal = journal or SimulatedJournal()
        self.expired: list[tuple[str, str]] = []
        self.coordinator = GroupCoordinator(
            GroupConfig(max_groups=3, share_max_size=3),
            self.time,
            self.time,
            self.journal,
            self.topics,
            Settings(),
            self.topics,
            NoShareStates(),
            new_id=lambda: "never",
        )
        self.coordinator.load()
        self.groups = self.coordinator.share
        self.groups.expiry_listeners.append(lambda group_id, member_id: self.expired.append((group_id, member_id)))
        if journal is None:
            self.coordinator.commit_offsets("classic", Committer(), {("t", 0): NewOffset(1)})

    def beat(self, member: str, epoch: int = 0, topics: tuple[str, ...] | None = None, *, group: str = "g") -> HeartbeatResult:
        reply = self.groups.heartbeat(ShareHeartbeat(group, member, epoch, None, topics, "c", "/h"))
        assert reply.is_done
        result: HeartbeatResult = reply.value
        return result

    def snapshot(self) -> dict[str, Any]:
        """Everything that must survive, by group."""
        return {
            group.group_id: (
                group.epoch,
                group.assignment_epoch,
                group.metadata_hash,
                {m.member_id: (m.metadata, m.current) for m in group.members.values()},
                group.target,
                group.initialized,
            )
            for group in self.groups.all()
        }


def test_members_share_the_partitions_and_epochs_move_with_the_group() -> None:
    made = Groups()
    first = made.beat("a", 0, ("t",))
    assert (first.error, first.member_epoch, first.heartbeat_interval_ms) == (0, 1, 5_000)
    assert len(first.assigned or ()) == 4
    second = made.beat("b", 0, ("t",))
    assert (second.member_epoch, len(second.assigned or ())) == (2, 2)
    news = made.beat("a", 1)
    assert (news.member_epoch, len(news.assigned or ())) == (2, 2)
    assert not (news.assigned or frozenset()) & (second.assigned or frozenset())
    assert made.beat("a", 2).assigned is None
    assert made.beat("a", 1).assigned == news.assigned


def test_more_members_than_partitions_share_them() -> None:
    made = Groups()
    shares = [made.beat(name, 0, ("u",)).assigned for name in "abc"]
    assert all(shares)
    assert made.groups.get("g").state == "Stable"  # type: ignore[union-attr]


def test_changed_subscriptions_and_topics_are_noticed() -> None:
    made = Groups()
    made.beat("a", 0, ("t",))
    changed = made.beat("a", 1, ("u", "later"))
    assert {topic_id.rstrip(b"\0") for topic_id, _ in changed.assigned or ()} == {b"u"}
    made.topics.partitions["later"] = 3
    made.time.advance(1_000)
    assert len(made.beat("a", 2).assigned or ()) == 5


@pytest.mark.parametrize(
    ("member", "epoch", "topics", "group", "error"),
    [
        ("", 0, ("t",), "g", ErrorCode.INVALID_REQUEST),
        ("x", 0, ("t",), "", ErrorCode.INVALID_REQUEST),
        ("x", 0, None, "g", ErrorCode.INVALID_REQUEST),
        ("x", 0, (), "g", ErrorCode.INVALID_REQUEST),
        ("x", -2, None, "g", ErrorCode.INVALID_REQUEST),
        ("x", 1, None, "g", ErrorCode.UNKNOWN_MEMBER_ID),
        ("x", -1, None, "g", ErrorCode.UNKNOWN_MEMBER_ID),
        ("x", 1, None, "none", ErrorCode.GROUP_ID_NOT_FOUND),
        ("x", -1, None, "none", ErrorCode.GROUP_ID_NOT_FOUND),
        ("x", 0, ("t",), "classic", ErrorCode.GROUP_ID_NOT_FOUND),
        ("a", 9, None, "g", ErrorCode.FENCED_MEMBER_EPOCH),
        ("m" * 37, 0, ("t",), "g", ErrorCode.INVALID_REQUEST),
        ("x", 0, ("t" * 250,), "g", ErrorCode.INVALID_REQUEST),
        ("x", 0, tuple(map(str, range(10_001))), "g", ErrorCode.INVALID_REQUEST),
    ],
)
def test_heartbeats_that_are_refused_change_nothing(
    member: str, epoch: int, topics: tuple[str, ...] | None, group: str, error: ErrorCode
) -> None:
    made = Groups()
    made.beat("a", 0, ("t",))
    before = made.snapshot(), made.journal.appended
    assert made.beat(member, epoch, topics, group=group).error is error
    assert (made.snapshot(), made.journal.appended) == before


def test_a_full_group_and_members_that_leave_or_fall_silent() -> None:
    made = Groups()
    for name in "abc":
        assert made.beat(name, 0, ("t",)).error is ErrorCode.NONE
    assert made.beat("d", 0, ("t",)).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert made.beat("a", -1).member_epoch == -1
    made.time.advance(44_000)
    assert made.beat("b", 2).error is ErrorCode.NONE
    made.time.advance(2_000)
    assert made.expired == [("g", "c")]
    assert len(made.beat("b", made.groups.get("g").members["b"].current.epoch).assigned or ()) in (0, 4)  # type: ignore[union-attr]
    assert list(made.groups.get("g").members) == ["b"]  # type: ignore[union-attr]


def test_there_is_an_end_to_groups() -> None:
    made = Groups()
    assert [made.beat("a", 0, ("t",), group=name).error for name in "gh"] == [0, 0]
    assert made.beat("a", 0, ("t",), group="i").error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert made.groups.refusal_of_change("i", may_create=True) is not None
    made.beat("a", -1, group="h")
    assert made.coordinator.removal.delete("h").value is ErrorCode.NONE
    assert made.beat("a", 0, ("t",), group="i").error is ErrorCode.NONE


def test_a_failed_write_is_told_and_the_next_one_holds_the_whole_group() -> None:
    made = Groups()
    made.beat("a", 0, ("t",))
    made.journal.is_failing = True
    assert made.beat("b", 0, ("t",)).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    made.journal.is_failing = False
    assert made.beat("a", 1).error is ErrorCode.NONE
    assert Groups(made.journal.crashed()).snapshot() == made.snapshot()


def test_a_record_that_cannot_be_read_is_named_with_its_place() -> None:
    made = Groups()
    key = encode_epoch_key(EpochKey(GroupKind.SHARE, Role.CURRENT, "g", "m"))
    made.journal.append(2, [JournalRecord(key, b"\x00\x00\x00")])
    with pytest.raises(DecodeError, match=r"__consumer_offsets-2, offset [01]: 3 bytes"):
        Groups(made.journal.crashed())


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.sampled_from("abcd"), st.sampled_from([("t",), ("u",), ("t", "u")])),
        st.tuples(st.just("leave"), st.sampled_from("abcd"), st.just(())),
        st.tuples(st.just("beat"), st.sampled_from("abcd"), st.just(())),
        st.tuples(st.just("wait"), st.just(""), st.just(())),
        st.tuples(st.just("grow"), st.just(""), st.just(())),
        st.tuples(st.just("delete"), st.just(""), st.just(())),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_a_restart_after_any_write_finds_the_state_of_that_moment(steps: list[tuple[str, str, tuple[str, ...]]]) -> None:
    made = Groups()
    for action, name, topics in steps:
        group = made.groups.get("g")
        member = group.members.get(name) if group else None
        if action == "join":
            made.beat(name, 0, topics)
        elif action == "leave":
            made.beat(name, -1)
        elif action == "beat":
            made.beat(name, member.current.epoch if member else 1)
        elif action == "grow":
            made.topics.partitions["t"] += 1
        elif action == "wait":
            made.time.advance(20_000)
        else:
            made.coordinator.removal.delete("g")
        restarted = Groups(made.journal.crashed())
        assert restarted.snapshot() == made.snapshot()
        restarted.coordinator.close()


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_shares_cover_everything_are_balanced_and_stay(data: st.DataObject) -> None:
    topics = {bytes([65 + n]) * 16: data.draw(st.integers(1, 6)) for n in range(data.draw(st.integers(1, 4)))}
    is_homogeneous = data.draw(st.booleans())
    members = [f"m{n}" for n in range(data.draw(st.integers(1, 8)))]
    one = st.sets(st.sampled_from(sorted(topics)), min_size=1)
    common = frozenset(data.draw(one))
    wanted = {member: common if is_homogeneous else frozenset(data.draw(one)) for member in members}
    old = [(topic, index) for topic in topics for index in range(8)]
    previous = {member: frozenset(data.draw(st.sets(st.sampled_from(old)))) for member in members}
    shares = assign_simple(wanted, topics, previous)
    assert set(shares) == set(members)
    assert all(topic in wanted[member] and index < topics[topic] for member in members for topic, index in shares[member])
    covered = {partition for share in shares.values() for partition in share}
    assert covered == {(topic, index) for topic in frozenset().union(*wanted.values()) for index in range(topics[topic])}
    assert all(shares[member] for member in members)
    if is_homogeneous:
        sizes = sorted(map(len, shares.values()))
        assert sizes[-1] - sizes[0] <= 1
        holders = [sum(partition in share for share in shares.values()) for partition in covered]
        assert max(holders) - min(holders) <= 1
    assert assign_simple(wanted, topics, shares) == shares


GROUP_VALUES = [
    (Role.MEMBER, ShareMemberValue("rack", "c", "/h", ("t", "u"))),
    (Role.MEMBER, ShareMemberValue(None, "", "", ())),
    (Role.GROUP, GroupEpochValue(7, -5)),
    (Role.TARGET_EPOCH, TargetEpochValue(7, 1_700_000_000_000)),
    (Role.TARGET_EPOCH, TargetEpochValue(7)),
    (Role.TARGET, frozenset({(TOPIC_ID, 0), (TOPIC_ID, 3)})),
    (Role.CURRENT, ShareCurrentValue(3, 2, frozenset({(TOPIC_ID, 1)}))),
    (Role.OWN, InitializedValue({TOPIC_ID: TopicState("t", frozenset({0, 1}))})),
]


@pytest.mark.parametrize(("kind", "value"), GROUP_VALUES)
def test_records_of_groups_come_back(kind: Role, value: Any) -> None:
    has_member = kind in (Role.MEMBER, Role.TARGET, Role.CURRENT)
    key = EpochKey(GroupKind.SHARE, kind, "group", "m" if has_member else "")
    assert decode_epoch_key(encode_epoch_key(key)) == key
    encoded = encode_share_value(value)
    assert decode_share_value(kind, encoded) == value
    for size in range(len(encoded)):
        if size < len(encoded) - 1:
            with pytest.raises(DecodeError):
                _decoded_whole(kind, encoded[:size], value)


def _decoded_whole(kind: Role, data: bytes, value: Any) -> None:
    """Decode; what is read of a cut value by chance is as wrong as an error."""
    if decode_share_value(kind, data) != value:
        raise DecodeError("cut")
    raise DecodeError("the cut bytes were not needed")


def test_the_bytes_of_a_snapshot_are_those_of_kafka() -> None:
    key = ShareKey("g", TOPIC_ID, 2)
    assert encode_state_key(key) == bytes.fromhex("0000000167") + TOPIC_ID + bytes.fromhex("00000002")
    assert decode_state_key(encode_state_key(key)) == (key, SNAPSHOT)
    batches = (Run(5, 6, DeliveryState.ACKNOWLEDGED, 1), Run(9, 9, DeliveryState.AVAILABLE, 2))
    value = ShareSnapshot(5, batches, 2, 3, 1, 10, 11)
    expected = (
        "0000" "00000003" "00000001" "00000000" "0000000000000005" "000000000000000a" "000000000000000b" "03"
        "0000000000000005" "0000000000000006" "02" "0001" "00"
        "0000000000000009" "0000000000000009" "00" "0002" "00"
        "01" "00" "04" "00000002"
    )  # fmt: skip
    assert encode_snapshot(value, leader_epoch=0) == bytes.fromhex(expected)
    assert decode_state_value(SNAPSHOT, bytes.fromhex(expected)) == value
    bad = bytes.fromhex(expected.replace("0000000000000006", "0000000000000004"))
    with pytest.raises(DecodeError, match="batch of offsets 5 to 4"):
        decode_state_value(SNAPSHOT, bad)


def test_updates_that_kafka_writes_are_laid_over_the_snapshot() -> None:
    text = "00000000000300000000ffffffffffffffff02000000000000000600000000000000070200010000"
    update = decode_state_value(UPDATE, bytes.fromhex(text))
    assert update == ShareUpdate(-1, (Run(6, 7, DeliveryState.ACKNOWLEDGED, 1),), -1)
    snapshot = ShareSnapshot(5, (Run(5, 6, DeliveryState.AVAILABLE, 1),))
    after = updated(snapshot, update)
    assert after.batches == (Run(5, 5, DeliveryState.AVAILABLE, 1), Run(6, 7, DeliveryState.ACKNOWLEDGED, 1))
    moved = updated(after, ShareUpdate(7, (), 1))
    assert (moved.start_offset, moved.batches) == (7, (Run(7, 7, DeliveryState.ACKNOWLEDGED, 1),))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ShareBroker]:
    made = ShareBroker(tmp_path)
    made.inner.create("t", 2)
    made.set_group("g", share_auto_offset_reset="earliest")
    yield made
    made.close()


def offsets_of(broker: ShareBroker, group: str = "g") -> dict[tuple[str, int], tuple[int, int]]:
    """Return (start offset, lag) by topic and partition of all that has state in a group."""
    asked = messages.DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=None)
    (answer,) = broker.send("DescribeShareGroupOffsets", groups=[asked]).groups
    assert answer.error_code == 0
    return {(t.topic_name, p.partition_index): (p.start_offset, p.lag) for t in answer.topics for p in t.partitions}


def alter(broker: ShareBroker, offsets: dict[tuple[str, int], int], group: str = "g") -> tuple[int, list[int]]:
    request = messages.AlterShareGroupOffsetsRequest
    topics = [
        request.AlterShareGroupOffsetsRequestTopic(
            topic_name=name,
            partitions=[request.AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=offset)],
        )
        for (name, index), offset in offsets.items()
    ]
    response = broker.send("AlterShareGroupOffsets", group_id=group, topics=topics)
    return response.error_code, [p.error_code for t in response.responses for p in t.partitions]


def delete_offsets(broker: ShareBroker, *topics: str, group: str = "g") -> tuple[int, list[int]]:
    request = messages.DeleteShareGroupOffsetsRequest
    asked = [request.DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in topics]
    response = broker.send("DeleteShareGroupOffsets", group_id=group, topics=asked)
    return response.error_code, [topic.error_code for topic in response.responses]


def test_offsets_are_described_altered_and_deleted(broker: ShareBroker) -> None:
    broker.inner.produce("t", batch(*[b"v"] * 10))
    member = Member(broker, "m", "t")
    assert offsets_of(broker) == {("t", 0): (-1, -1), ("t", 1): (-1, -1)}
    member.take(("t", 0))
    member.acknowledge({("t", 0): {(0, 1): [1], (4, 4): [1]}})
    assert offsets_of(broker)["t", 0] == (2, 7)
    assert alter(broker, {("t", 0): 5}) == (ErrorCode.NON_EMPTY_GROUP, [])
    assert delete_offsets(broker, "t")[0] == ErrorCode.NON_EMPTY_GROUP
    broker.heartbeat("m", -1)
    unknown = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert alter(broker, {("t", 0): 5, ("t", 9): 1, ("none", 0): 1, ("t", 1): -1}) == (0, [0, unknown, unknown, 42])
    broker.power_cut()
    assert offsets_of(broker)["t", 0] == (5, 5)
    assert Member(broker, "m2", "t").take(("t", 0)) == [(5, 9, 1)]
    broker.heartbeat("m2", -1)
    assert delete_offsets(broker, "t", "none") == (0, [0, unknown])
    assert delete_offsets(broker, "t") == (0, [unknown])
    broker.power_cut()
    assert offsets_of(broker) == {}
    assert Member(broker, "m3", "t").take(("t", 0)) == [(0, 9, 1)]


def test_altering_makes_a_group_and_needs_a_name(broker: ShareBroker) -> None:
    broker.inner.produce("t", batch(*[b"v"] * 10))
    assert alter(broker, {("t", 0): 7}, group="new") == (0, [0])
    assert Member(broker, "m", "t", group="new").take(("t", 0)) == [(7, 9, 1)]
    assert alter(broker, {("t", 0): 7}, group="")[0] == ErrorCode.INVALID_GROUP_ID
    assert delete_offsets(broker, "t", group="nobody")[0] == ErrorCode.GROUP_ID_NOT_FOUND


def test_share_groups_are_listed_described_and_deleted_with_their_state(broker: ShareBroker) -> None:
    broker.inner.produce("t", batch(b"v"))
    member = Member(broker, "m", "t")
    member.take(("t", 0))
    listed = [(g.group_id, g.protocol_type, g.group_state, g.group_type) for g in broker.send("ListGroups").groups]
    assert listed == [("g", "share", "Stable", "Share")]
    assert broker.send("ListGroups", types_filter=["consumer"]).groups == []
    assert len(broker.send("ListGroups", types_filter=["Share"], states_filter=["stable"]).groups) == 1
    described, missing = broker.send("ShareGroupDescribe", group_ids=["g", "none"]).groups
    assert (described.group_state, described.assignor_name, described.members[0].member_id) == ("Stable", "simple", "m")
    assert described.members[0].assignment.topic_partitions[0].topic_name == "t"
    assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND

    def delete(*names: str) -> list[tuple[str, int]]:
        return [(r.group_id, r.error_code) for r in broker.send("DeleteGroups", groups_names=list(names)).results]

    assert delete("g", "none") == [("g", ErrorCode.NON_EMPTY_GROUP), ("none", ErrorCode.GROUP_ID_NOT_FOUND)]
    broker.heartbeat("m", -1)
    assert delete("g", "g") == [("g", 0)]  # who is named twice is told once, as Kafka does
    broker.power_cut()
    assert broker.send("ListGroups").groups == []
    assert broker.share.partitions.of_group("g") == []


def test_a_deletion_that_fails_can_be_asked_for_again(broker: ShareBroker) -> None:
    broker.inner.produce("t", batch(b"v"))
    Member(broker, "m", "t").take(("t", 0))
    broker.heartbeat("m", -1)
    broker.inner.disk.fail("write", errno.ENOSPC)
    (failed,) = broker.send("DeleteGroups", groups_names=["g"]).results
    assert failed.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    (deleted,) = broker.send("DeleteGroups", groups_names=["g"]).results
    assert deleted.error_code == 0
    broker.power_cut()
    assert (broker.send("ListGroups").groups, broker.share.partitions.keys()) == ([], [])


def test_a_group_id_belongs_to_one_kind_of_group(broker: ShareBroker) -> None:
    Member(broker, "m", "t")
    assert broker.send("JoinGroup", group_id="g", protocol_type="consumer").error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    beat = broker.send(
        "ConsumerGroupHeartbeat",
        group_id="g",
        member_id="x",
        rebalance_timeout_ms=1,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    assert beat.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    request = messages.OffsetCommitRequest
    partition = request.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topics = [request.OffsetCommitRequestTopic(name="t", topic_id=broker.topic_id("t"), partitions=[partition])]
    commit = broker.send("OffsetCommit", group_id="g", generation_id_or_member_epoch=-1, topics=topics)
    assert commit.topics[0].partitions[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND
    request = messages.TxnOffsetCommitRequest
    partition = request.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    in_txn = [request.TxnOffsetCommitRequestTopic(name="t", partitions=[partition])]
    given = broker.send("InitProducerId", transactional_id="x", transaction_timeout_ms=60_000)
    producer = {"transactional_id": "x", "producer_id": given.producer_id, "producer_epoch": given.producer_epoch}
    commit = broker.send("TxnOffsetCommit", group_id="g", topics=in_txn, **producer)
    assert commit.topics[0].partitions[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND
    broker.send("OffsetCommit", group_id="simple", generation_id_or_member_epoch=-1, topics=topics)
    assert broker.heartbeat("m", group="simple", topics=["t"]).error_code == ErrorCode.GROUP_ID_NOT_FOUND
