"""The consumer protocol (KIP-848) as members see it: epochs, handing over partitions, static members, errors, crashes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from logflume.log.broker.access import Operation, Resource
from logflume.log.broker.groups import GroupConfig
from logflume.log.broker.groups.consumer import records
from logflume.log.broker.groups.consumer.assignors import ASSIGNORS, assign_uniform
from logflume.log.broker.groups.epoch_records import (
    EpochKey,
    GroupEpochValue,
    GroupKind,
    Role,
    TargetEpochValue,
    decode_epoch_key,
    encode_epoch_key,
)
from logflume.log.broker.patterns import PatternError, compile_pattern
from logflume.log.broker.replies import Reply
from logflume.log.broker.testing.simulated import SimulatedJournal
from logflume.log.protocol import messages
from logflume.log.protocol.errors import ErrorCode

from ._groups_harness import Broker, Denied

OK = ErrorCode.NONE
TOPIC_T = b"t".ljust(16, b"\0")
ALL_T = {("t", index) for index in range(4)}
Owned = set[tuple[str, int]]


def decoded(response: Any) -> Owned | None:
    """Return the assignment as (topic, index), None if the response has none."""
    if response.assignment is None:
        return None
    return {(t.topic_id.rstrip(b"\0").decode(), p) for t in response.assignment.topic_partitions for p in t.partitions}


def beat(
    broker: Broker,
    member_id: str,
    epoch: int,
    *,
    owned: Owned | None = None,
    topics: list[str] | None = None,
    group: str = "g",
    **fields: Any,
) -> Any:
    """Send a heartbeat; return the response, or its Reply."""
    partitions = None
    if owned is not None:
        by_topic: dict[str, list[int]] = {}
        for name, index in sorted(owned):
            by_topic.setdefault(name, []).append(index)
        make = messages.ConsumerGroupHeartbeatRequest.TopicPartitions
        partitions = [make(topic_id=n.encode().ljust(16, b"\0"), partitions=i) for n, i in by_topic.items()]
    return broker.send(
        "ConsumerGroupHeartbeat",
        group_id=group,
        member_id=member_id,
        member_epoch=epoch,
        topic_partitions=partitions,
        subscribed_topic_names=topics,
        **fields,
    )


def join(broker: Broker, member_id: str, *, topics: list[str] | None = None, **fields: Any) -> Any:
    options: dict[str, Any] = {"rebalance_timeout_ms": 60_000, "owned": set(), **fields}
    names = ["t"] if topics is None and "subscribed_topic_regex" not in fields else topics
    return beat(broker, member_id, 0, topics=names, **options)


@pytest.fixture
def broker() -> Broker:
    return Broker()


def describe(broker: Broker, group: str = "g") -> Any:
    return broker.send("ConsumerGroupDescribe", group_ids=[group]).groups[0]


def test_the_first_member_gets_everything(broker: Broker) -> None:
    response = join(broker, "a")
    assert (response.error_code, response.member_id, response.member_epoch) == (OK, "a", 1)
    assert decoded(response) == ALL_T
    assert response.heartbeat_interval_ms == 5_000
    again = beat(broker, "a", 1)
    assert (again.member_epoch, decoded(again)) == (1, None), "nothing changed"
    assert describe(broker).group_state == "Stable"


def test_a_partition_moves_only_when_it_was_given_up(broker: Broker) -> None:
    join(broker, "a")
    second = join(broker, "b")
    assert (second.member_epoch, decoded(second)) == (2, set()), "all is still held by the first"
    first = beat(broker, "a", 1)
    kept = decoded(first)
    assert first.member_epoch == 1, "the epoch stays until the member has given up"
    assert kept is not None
    assert len(kept) == 2
    assert decoded(beat(broker, "b", 2)) is None
    assert describe(broker).group_state == "Reconciling"
    assert beat(broker, "a", 1, owned=ALL_T).member_epoch == 1, "it has not given up yet"
    assert beat(broker, "a", 1, owned=kept).member_epoch == 2
    assert decoded(beat(broker, "b", 2)) == ALL_T - kept
    assert describe(broker).group_state == "Stable"


def test_leaving_hands_over(broker: Broker) -> None:
    join(broker, "a")
    join(broker, "b")
    left = beat(broker, "a", -1)
    assert left.member_epoch == -1
    response = beat(broker, "b", 2)
    assert (response.member_epoch, decoded(response)) == (3, ALL_T)
    beat(broker, "b", -1)
    assert describe(broker).group_state == "Empty"


def test_a_silent_member_is_removed(broker: Broker) -> None:
    join(broker, "a")
    broker.time.advance(44_000)
    join(broker, "b")
    broker.time.advance(1_001)
    assert decoded(beat(broker, "b", 2)) == ALL_T
    assert beat(broker, "a", 1).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_does_not_give_up_is_removed(broker: Broker) -> None:
    join(broker, "a", rebalance_timeout_ms=10_000)
    join(broker, "b")
    for _ in range(4):
        broker.time.advance(4_000)
        beat(broker, "a", 1, owned=ALL_T)
        beat(broker, "b", 2)
    assert beat(broker, "a", 1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert {(t.topic_name, p) for t in describe(broker).members[0].assignment.topic_partitions for p in t.partitions} == ALL_T


def test_a_response_that_was_lost(broker: Broker) -> None:
    join(broker, "a")
    join(broker, "b")
    kept = decoded(beat(broker, "a", 1))
    assert beat(broker, "a", 1, owned=kept).member_epoch == 2
    assert beat(broker, "a", 1, owned=kept).member_epoch == 2, "the epoch before, and nothing that it should not have"
    assert beat(broker, "a", 1, owned=ALL_T).error_code == ErrorCode.FENCED_MEMBER_EPOCH


@pytest.mark.parametrize(
    ("member_id", "epoch", "fields", "error"),
    [
        ("a", 5, {}, ErrorCode.FENCED_MEMBER_EPOCH),
        ("a", -3, {}, ErrorCode.INVALID_REQUEST),
        ("x", 1, {}, ErrorCode.UNKNOWN_MEMBER_ID),
        ("x", -1, {}, ErrorCode.UNKNOWN_MEMBER_ID),
        ("a", -2, {}, ErrorCode.INVALID_REQUEST),
        ("a", 1, {"group": ""}, ErrorCode.INVALID_REQUEST),
        ("a", 1, {"group": "none"}, ErrorCode.GROUP_ID_NOT_FOUND),
        ("", 1, {}, ErrorCode.INVALID_REQUEST),
        ("a", 1, {"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ("a", 1, {"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ("a", 1, {"server_assignor": "sticky"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ("b", 0, {"topics": ["t"], "owned": set()}, ErrorCode.INVALID_REQUEST),
        ("b", 0, {"topics": ["t"], "rebalance_timeout_ms": 9}, ErrorCode.INVALID_REQUEST),
        ("b", 0, {"owned": set(), "rebalance_timeout_ms": 9}, ErrorCode.INVALID_REQUEST),
        ("a", 1, {"instance_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ("a", 1, {"subscribed_topic_regex": "("}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ("a", 1, {"subscribed_topic_regex": "(?=a)b"}, ErrorCode.INVALID_REGULAR_EXPRESSION),
    ],
)
def test_a_heartbeat_is_refused(broker: Broker, member_id: str, epoch: int, fields: dict[str, Any], error: ErrorCode) -> None:
    join(broker, "a")
    response = beat(broker, member_id, epoch, **fields)
    assert (response.error_code, response.assignment) == (error, None)
    assert [m.member_id for m in describe(broker).members] == ["a"]


def test_a_full_group_refuses(broker: Broker) -> None:
    broker = Broker(config=GroupConfig(consumer_max_size=1))
    join(broker, "a")
    assert join(broker, "b").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert join(broker, "a").error_code == OK


def test_a_static_member_comes_back_to_what_it_had(broker: Broker) -> None:
    join(broker, "a1", instance_id="i")
    assert beat(broker, "a1", -2, instance_id="i").member_epoch == -2
    join(broker, "b")
    back = join(broker, "a2", instance_id="i")
    assert back.member_epoch in (1, 2)
    assert decoded(back) is not None
    assert beat(broker, "a1", 1, instance_id="i").error_code == ErrorCode.FENCED_INSTANCE_ID
    epoch = describe(broker).group_epoch
    beat(broker, "a2", -2, instance_id="i")
    again = join(broker, "a3", instance_id="i")
    assert (again.error_code, describe(broker).group_epoch) == (OK, epoch), "coming back is not a rebalance"


def test_an_instance_that_is_in_use_is_not_given_away(broker: Broker) -> None:
    join(broker, "a", instance_id="i")
    assert join(broker, "b", instance_id="i").error_code == ErrorCode.UNRELEASED_INSTANCE_ID


def test_a_static_member_that_stays_away_is_removed(broker: Broker) -> None:
    join(broker, "a", instance_id="i")
    beat(broker, "a", -2, instance_id="i")
    broker.time.advance(45_001)
    assert describe(broker).members == []


def test_a_groups_own_timeouts_apply_from_the_next_heartbeat(broker: Broker) -> None:
    assert join(broker, "a").heartbeat_interval_ms == 5_000
    broker.settings.own["g"] = {"consumer.session.timeout.ms": "60000", "consumer.heartbeat.interval.ms": "15000"}
    assert beat(broker, "a", 1).heartbeat_interval_ms == 15_000
    broker.time.advance(59_999)
    assert describe(broker).members
    broker.time.advance(1)
    assert not describe(broker).members


def test_new_partitions_and_topics_are_noticed(broker: Broker) -> None:
    join(broker, "a", topics=["t", "late"])
    broker.topics.partitions["late"] = 2
    broker.time.advance(5_000)
    response = beat(broker, "a", 1)
    assert decoded(response) == ALL_T | {("late", 0), ("late", 1)}
    del broker.topics.partitions["t"]
    broker.time.advance(5_000)
    assert decoded(beat(broker, "a", 2)) == {("late", 0), ("late", 1)}


def test_a_regular_expression_finds_its_topics(broker: Broker) -> None:
    response = join(broker, "a", subscribed_topic_regex="[tu]")
    assert decoded(response) == ALL_T | {("u", 0), ("u", 1)}
    assert describe(broker).members[0].subscribed_topic_regex == "[tu]"


def test_an_expression_does_not_find_what_the_member_may_not_know_of(broker: Broker) -> None:
    broker.rights = Denied((Operation.DESCRIBE, Resource.TOPIC, "u"))
    assert decoded(join(broker, "a", subscribed_topic_regex="[tu]")) == ALL_T
    assert join(broker, "b", topics=["t", "u"]).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    broker.rights = Denied()
    broker.time.advance(1_000)
    beat(broker, "a", 1)
    assert decoded(beat(broker, "a", 2, owned=ALL_T)) == ALL_T | {("u", 0), ("u", 1)}


def test_a_changed_subscription(broker: Broker) -> None:
    join(broker, "a")
    first = beat(broker, "a", 1, topics=["u"])
    assert (first.member_epoch, decoded(first)) == (1, set())
    second = beat(broker, "a", 1, owned=set())
    assert (second.member_epoch, decoded(second)) == (2, {("u", 0), ("u", 1)})


def test_the_assignor_that_most_ask_for(broker: Broker) -> None:
    join(broker, "a", server_assignor="range")
    assert describe(broker).assignor_name == "range"
    join(broker, "b", server_assignor="uniform")
    join(broker, "c", server_assignor="uniform")
    assert describe(broker).assignor_name == "uniform"


def test_offsets_are_committed_with_the_members_epoch(broker: Broker) -> None:
    join(broker, "a")
    where = ("t", 0)
    assert broker.commit({where: 5}, member_id="a", generation=1) == {where: OK}
    assert broker.commit({where: 6}, member_id="a", generation=0) == {where: ErrorCode.STALE_MEMBER_EPOCH}
    assert broker.commit({where: 6}, member_id="x", generation=1) == {where: ErrorCode.UNKNOWN_MEMBER_ID}
    assert broker.commit({where: 6}) == {where: ErrorCode.UNKNOWN_MEMBER_ID}
    assert broker.txn_commit({where: 6}, member_id="a", generation_id=0) == {where: ErrorCode.ILLEGAL_GENERATION}
    assert broker.fetch(where) == {where: (5, OK)}
    request = messages.OffsetFetchRequest
    for member_id, epoch, error in (("a", 1, OK), ("a", 0, ErrorCode.STALE_MEMBER_EPOCH), ("x", 1, ErrorCode.UNKNOWN_MEMBER_ID)):
        group = request.OffsetFetchRequestGroup(group_id="g", member_id=member_id, member_epoch=epoch, topics=None)
        assert broker.send("OffsetFetch", version=9, groups=[group]).groups[0].error_code == error


def test_tools_see_the_group(broker: Broker) -> None:
    join(broker, "a", client_id="me")
    listed = broker.send("ListGroups", types_filter=["consumer"]).groups
    assert [(g.group_id, g.group_type, g.group_state) for g in listed] == [("g", "Consumer", "Stable")]
    described = describe(broker)
    assert (described.group_epoch, described.assignment_epoch, described.assignor_name) == (1, 1, "uniform")
    member = described.members[0]
    assert (member.client_id, member.member_epoch, member.member_type) == ("me", 1, 1)
    for assignment in (member.assignment, member.target_assignment):
        assert [(t.topic_name, t.partitions) for t in assignment.topic_partitions] == [("t", [0, 1, 2, 3])]
    assert describe(broker, "none").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert broker.describe().error_code == ErrorCode.GROUP_ID_NOT_FOUND, "it is not a classic group"
    assert broker.send("DeleteGroups", groups_names=["g"]).results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    beat(broker, "a", -1)
    assert broker.send("DeleteGroups", groups_names=["g"]).results[0].error_code == OK
    broker.crash()
    assert describe(broker).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_an_empty_group_changes_its_protocol_and_keeps_its_offsets(broker: Broker) -> None:
    member_id, reply = broker.new_member()
    assert join(broker, "a").error_code == ErrorCode.GROUP_ID_NOT_FOUND, "classic members are there"
    broker.time.advance(50)
    assert reply.is_done
    broker.leave((member_id, None))
    broker.commit({("t", 0): 5})
    assert join(broker, "a").error_code == OK
    assert broker.join().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    broker.crash()
    assert describe(broker).group_state == "Stable"
    beat(broker, "a", -1)
    assert broker.join().error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert broker.fetch() == {("t", 0): (5, OK)}
    broker.crash()
    assert describe(broker).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert broker.fetch() == {("t", 0): (5, OK)}


def test_a_group_goes_on_after_a_crash(broker: Broker) -> None:
    join(broker, "a")
    join(broker, "b", instance_id="i")
    kept = decoded(beat(broker, "a", 1))
    broker.crash()
    assert describe(broker).group_state == "Reconciling"
    assert beat(broker, "a", 1, owned=kept).member_epoch == 2
    broker.crash()
    assert decoded(beat(broker, "b", 2, instance_id="i")) == ALL_T - (kept or set())
    assert describe(broker).group_epoch == 2


def test_what_could_not_be_written_is_written_later(broker: Broker) -> None:
    join(broker, "a")
    broker.journal.is_failing = True
    assert join(broker, "b").error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    broker.journal.is_failing = False
    join(broker, "c")
    broker.crash()
    assert {m.member_id for m in describe(broker).members} == {"a", "b", "c"}


# -- records, assignors, expressions


partitions = st.frozensets(st.tuples(st.binary(min_size=16, max_size=16), st.integers(0, 99)), max_size=8)
texts = st.text(max_size=8)
epochs = st.integers(0, 2**31 - 1)


def with_epochs(value: records.CurrentValue, epochs: dict[Any, int]) -> records.CurrentValue:
    return replace(value, epochs=epochs)


VALUES = {
    Role.GROUP: st.builds(GroupEpochValue, epoch=st.integers(0, 2**31 - 1), metadata_hash=st.integers(-(2**63), 2**63 - 1)),
    Role.MEMBER: st.builds(
        records.MemberValue,
        instance_id=st.none() | texts,
        rack_id=st.none() | texts,
        client_id=texts,
        client_host=texts,
        topics=st.lists(texts, max_size=4).map(tuple),
        regex=st.none() | texts,
        rebalance_timeout_ms=st.integers(-1, 2**31 - 1),
        assignor=st.none() | texts,
        classic=st.none()
        | st.builds(
            records.ClassicMember,
            session_timeout_ms=st.integers(0, 2**31 - 1),
            protocols=st.lists(st.tuples(texts, st.binary(max_size=8)), max_size=3).map(tuple),
        ),
    ),
    Role.TARGET_EPOCH: st.builds(TargetEpochValue, epoch=st.integers(0, 2**31 - 1), timestamp_ms=st.integers(0, 2**63 - 1)),
    Role.TARGET: partitions,
    Role.CURRENT: st.builds(
        records.CurrentValue,
        epoch=st.integers(-2, 2**31 - 1),
        previous_epoch=st.integers(-2, 2**31 - 1),
        state=st.integers(0, 2),
        assigned=partitions,
        revoking=partitions,
    ).flatmap(
        lambda value: st.fixed_dictionaries(dict.fromkeys(value.assigned | value.revoking, epochs)).map(
            partial(with_epochs, value)
        )
    ),
}


@given(st.data())
def test_records_come_back_as_they_were(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(list(VALUES)))
    value: Any = data.draw(VALUES[kind])
    assert records.decode_consumer_value(kind, records.encode_consumer_value(value)) == value
    has_member = kind not in (Role.GROUP, Role.TARGET_EPOCH)
    key = EpochKey(GroupKind.CONSUMER, kind, "g", "m" if has_member else "")
    assert decode_epoch_key(encode_epoch_key(key)) == key


def test_a_current_assignment_has_kafkas_bytes() -> None:
    first, second = (b"T" * 16, 0), (b"T" * 16, 1)
    value = records.CurrentValue(5, 4, 0, frozenset({first, second}), frozenset(), {first: 3, second: 5})
    epochs = b"\1" + b"\0" + b"\x09" + b"\3" + b"\0\0\0\3\0\0\0\5"
    head = b"\0\0" + b"\0\0\0\5" + b"\0\0\0\4" + b"\0"
    expected = head + b"\2" + b"T" * 16 + b"\3" + b"\0\0\0\0\0\0\0\1" + epochs + b"\1" + b"\0"
    assert records.encode_consumer_value(value) == expected


members = st.sampled_from(["m1", "m2", "m3", "m4"])
topic_ids = st.sampled_from([b"A", b"B", b"C"])


@given(
    subscriptions=st.dictionaries(members, st.frozensets(topic_ids), min_size=1),
    counts=st.dictionaries(topic_ids, st.integers(1, 7)),
    name=st.sampled_from(sorted(ASSIGNORS)),
    data=st.data(),
)
@settings(deadline=None)
def test_every_partition_goes_to_one_member_that_wants_it(
    subscriptions: dict[str, frozenset[bytes]], counts: dict[bytes, int], name: str, data: st.DataObject
) -> None:
    before = ASSIGNORS[name](data.draw(st.dictionaries(members, st.frozensets(topic_ids))), counts, {})
    target = ASSIGNORS[name](subscriptions, counts, before)
    assert set(target) == set(subscriptions)
    given_out = [p for member in target for p in target[member]]
    wanted = {t for topics in subscriptions.values() for t in topics}
    assert sorted(given_out) == sorted((t, i) for t in counts if t in wanted for i in range(counts[t]))
    assert all(p[0] in subscriptions[member] for member in target for p in target[member])
    if name == "uniform":
        for giver in target:
            for taker in target:
                movable = [p for p in target[giver] if p[0] in subscriptions[taker]]
                assert not movable or len(target[giver]) - len(target[taker]) <= 1


@given(count=st.integers(1, 20), size=st.integers(1, 6))
def test_a_new_member_takes_no_more_than_its_share(count: int, size: int) -> None:
    wants = frozenset({b"A"})
    before = assign_uniform({f"m{i}": wants for i in range(size)}, {b"A": count}, {})
    after = assign_uniform({f"m{i}": wants for i in range(size + 1)}, {b"A": count}, before)
    moved = sum(len(before[m] - after[m]) for m in before)
    assert moved == len(after[f"m{size}"])


class CountedTopic(bytes):
    """A topic id that counts how often it is compared."""

    times = 0

    def __eq__(self, other: object) -> bool:
        CountedTopic.times += 1
        return bytes.__eq__(self, other)

    def __lt__(self, other: bytes) -> bool:
        CountedTopic.times += 1
        return bytes.__lt__(self, other)

    __hash__ = bytes.__hash__


@pytest.mark.parametrize("size", [1, 3, 50])
def test_the_work_for_a_member_that_joins_grows_with_the_partitions_and_not_with_their_square(size: int) -> None:
    counts: dict[bytes, int] = {CountedTopic(b"%016d" % number): 5 for number in range(200)}
    wants = frozenset(counts)
    before = assign_uniform({f"m{i}": wants for i in range(size)}, counts, {})
    CountedTopic.times = 0
    after = assign_uniform({f"m{i}": wants for i in range(size + 1)}, counts, before)
    assert {len(own) for own in after.values()} <= {1_000 // (size + 1), 1_000 // (size + 1) + 1}
    assert CountedTopic.times <= 100 * 1_000


@pytest.mark.parametrize("text", ["(", "(?=a)b", r"(a)\1", "x" * 1_025, "(a{500}){500}", "a**", "[z-a]"])
def test_what_is_no_expression_of_re2_is_refused(text: str) -> None:
    with pytest.raises(PatternError):
        compile_pattern(text)


@pytest.mark.parametrize("text", ["(a+)+", "(a|aa)*", "(a*)*b", "a*a*a*a*a*a*a*a*c"])
def test_an_expression_takes_no_longer_than_its_name_is_long(text: str) -> None:
    name = "a" * 50_000 + "!"
    assert not compile_pattern(text).fullmatch(name)


@pytest.mark.parametrize(
    ("text", "name", "is_match"), [("a.*", "abc", True), ("a.*", "ba", False), ("(x|y)-[0-9]+", "y-12", True), ("^t$", "t", True)]
)
def test_expressions_match_whole_names(text: str, name: str, is_match: bool) -> None:
    assert compile_pattern(text).fullmatch(name) is is_match


# -- a model


class Member:
    """A member as a client library runs it."""

    def __init__(self, member_id: str) -> None:
        self.member_id, self.epoch = member_id, -1
        self.owned: Owned = set()
        self.waiting: Reply | None = None


class ConsumerProtocolModel(RuleBasedStateMachine):
    """Members that come, go and hang; whatever happens, no partition is owned by two of them."""

    def __init__(self) -> None:
        super().__init__()
        self.broker = Broker(journal=SimulatedJournal(partition_count=1, is_manual=True))
        self.members: list[Member] = []
        self.count = 0
        self.incarnation = 0

    @initialize()
    def begin(self) -> None:
        self.start_member()

    @precondition(lambda self: len(self.members) < 4)
    @rule()
    def start_member(self) -> None:
        self.count += 1
        self.members.append(Member(f"m{self.count}"))

    def _step(self, member: Member, *, is_full: bool) -> None:
        if member.waiting is not None:
            return
        if member.epoch < 0:
            answer = join(self.broker, member.member_id, topics=["t", "u"])
        else:
            topics = ["t", "u"] if is_full else None
            owned, timeout_ms = member.owned, 60_000 if is_full else -1
            answer = beat(
                self.broker, member.member_id, member.epoch, owned=owned, topics=topics, rebalance_timeout_ms=timeout_ms
            )
        if isinstance(answer, Reply):
            member.waiting = answer
            incarnation = self.incarnation
            answer.then(lambda response: self._on_answer(member, response) if incarnation == self.incarnation else None)
        else:
            self._on_answer(member, answer)

    def _on_answer(self, member: Member, response: Any) -> None:
        member.waiting = None
        if response.error_code:
            # The member has to give up everything before it joins anew.
            member.epoch, member.owned = -1, set()
            return
        assigned = decoded(response)
        member.epoch = response.member_epoch
        if assigned is not None:
            member.owned = assigned

    @precondition(lambda self: self.members)
    @rule(data=st.data(), is_full=st.booleans())
    def step(self, data: st.DataObject, is_full: bool) -> None:
        self._step(data.draw(st.sampled_from(self.members)), is_full=is_full)

    @rule(is_full=st.booleans(), is_quick=st.integers(0, 2))
    def step_all(self, is_full: bool, is_quick: int) -> None:
        for member in self.members:
            self._step(member, is_full=is_full)
            if is_quick:
                self.broker.journal.flush()

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(self.members))
        self.members.remove(member)
        member.owned = set()
        beat(self.broker, member.member_id, -1)

    @rule(delay_ms=st.sampled_from([500, 5_000]))
    def wait(self, delay_ms: int) -> None:
        self.broker.time.advance(delay_ms)

    @rule(partitions=st.integers(1, 6))
    def grow_topic(self, partitions: int) -> None:
        self.broker.topics.partitions["u"] = max(self.broker.topics.partitions["u"], partitions)

    @rule(count=st.integers(1, 3))
    def flush(self, count: int) -> None:
        self.broker.journal.flush(count=count)

    @rule(kept=st.integers(0, 3))
    def crash(self, kept: int) -> None:
        self.incarnation += 1
        self.broker.crash(kept=kept)
        for member in self.members:
            member.waiting = None

    @invariant()
    def nobody_shares_a_partition(self) -> None:
        group = self.broker.groups.consumer_group("g")
        known = set(group.members) if group else set()
        owned = [p for m in self.members if m.member_id in known for p in m.owned]
        assert len(owned) == len(set(owned)), "a partition has two owners"

    def teardown(self) -> None:
        """Left in peace, the members own everything between them, once the sessions of those that vanished have ended."""
        for _ in range(20):
            for member in self.members:
                self._step(member, is_full=False)
                self.broker.journal.flush()
            self.broker.time.advance(5_000)
        self.nobody_shares_a_partition()
        if self.members:
            expected = ALL_T | {("u", index) for index in range(self.broker.topics.partitions["u"])}
            assert {p for m in self.members for p in m.owned} == expected
            sizes = [len(m.owned) for m in self.members]
            assert max(sizes) - min(sizes) <= 1
            assert describe(self.broker).group_state == "Stable"


TestConsumerProtocol = ConsumerProtocolModel.TestCase
TestConsumerProtocol.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
