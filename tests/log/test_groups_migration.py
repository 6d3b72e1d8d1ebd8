"""Groups that change their protocol while they are in use: classic to consumer and back, with members of both (KIP-848)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from logflume.log.broker.groups import GroupConfig
from logflume.log.broker.groups.subscription import read_assignment, write_assignment
from logflume.log.broker.replies import Reply
from logflume.log.broker.testing.simulated import SimulatedJournal
from logflume.log.protocol import codec, messages
from logflume.log.protocol.errors import ErrorCode

from ._groups_harness import Broker
from .test_groups_consumer_protocol import ALL_T, Owned, beat, decoded, describe, join

OK, REBALANCE = ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS


@pytest.fixture
def broker() -> Broker:
    return Broker()


def subscription(*topics: str, owned: Owned | None = None) -> bytes:
    """Return what a classic consumer says of itself."""
    part = messages.ConsumerProtocolSubscription.TopicPartition
    parts = [part(topic=name, partitions=[index]) for name, index in sorted(owned or ())]
    body = messages.ConsumerProtocolSubscription(topics=list(topics), owned_partitions=parts)
    return b"\0\1" + codec.encode_data(body, 1)


def protocols(owned: Owned | None = None, *, topics: tuple[str, ...] = ("t",)) -> tuple[tuple[str, bytes], ...]:
    return (("range", subscription(*topics, owned=owned)),)


def assigned(response: Any) -> Owned:
    return set(read_assignment(response.assignment)[0])


def classic_member(broker: Broker, **options: Any) -> tuple[str, int]:
    """Join a classic group as its first member, assigning everything to oneself; return id and generation."""
    member_id, reply = broker.new_member(protocols=protocols(), **options)
    broker.time.advance(50)
    joined = reply.value
    assignment = write_assignment(sorted(ALL_T), 1)
    synced = broker.sync(member_id, joined.generation_id, {member_id: assignment})
    assert assigned(synced) == ALL_T
    return member_id, joined.generation_id


def rejoin(broker: Broker, member_id: str, *, owned: Owned | None = None, **options: Any) -> tuple[int, Owned]:
    """Join anew and sync in a consumer group; return generation and assignment."""
    joined = broker.join(member_id, protocols=protocols(owned), **options)
    assert (joined.error_code, joined.leader, joined.members) == (OK, "", []), "nobody leads"
    synced = broker.sync(joined.member_id, joined.generation_id, instance=options.get("instance"))
    assert synced.error_code == OK
    return joined.generation_id, assigned(synced)


def test_a_consumer_joins_a_classic_group_which_goes_on(broker: Broker) -> None:
    old, generation = classic_member(broker)
    broker.commit({("t", 0): 5}, member_id=old, generation=generation)
    new = join(broker, "new")
    assert (new.error_code, decoded(new)) == (OK, set()), "the classic member still has everything"
    listed = broker.send("ListGroups").groups
    assert [(g.group_id, g.group_type, g.protocol_type) for g in listed] == [("g", "Consumer", "consumer")]
    described = describe(broker)
    assert {m.member_id: m.member_type for m in described.members} == {old: 0, "new": 1}
    assert described.group_state == "Reconciling"
    assert broker.heartbeat(old, generation) == REBALANCE

    generation, kept = rejoin(broker, old)
    assert len(kept) == 2
    new = beat(broker, "new", new.member_epoch)
    assert decoded(new) == ALL_T - kept
    assert broker.heartbeat(old, generation) == OK
    assert describe(broker).group_state == "Stable"
    assert broker.fetch(("t", 0)) == {("t", 0): (5, OK)}
    broker.crash()
    assert broker.heartbeat(old, generation) == OK
    assert {m.member_id: m.member_type for m in describe(broker).members} == {old: 0, "new": 1}


def test_a_cooperative_member_keeps_what_it_may_while_it_gives_up_the_rest(broker: Broker) -> None:
    old, _ = classic_member(broker)
    join(broker, "new")
    generation, kept = rejoin(broker, old, owned=ALL_T)
    assert len(kept) == 2
    assert decoded(beat(broker, "new", 2)) is None, "not before the classic member confirms"
    assert broker.heartbeat(old, generation) == REBALANCE
    generation, again = rejoin(broker, old, owned=kept)
    assert (again, broker.heartbeat(old, generation)) == (kept, OK)
    assert decoded(beat(broker, "new", 2)) == ALL_T - kept


def test_a_classic_consumer_joins_a_consumer_group(broker: Broker) -> None:
    epoch = join(broker, "new").member_epoch
    first = broker.join(protocols=protocols())
    assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
    generation, got = rejoin(broker, first.member_id)
    assert got == set()
    new = beat(broker, "new", epoch)
    kept = decoded(new)
    assert kept is not None
    assert len(kept) == 2
    beat(broker, "new", new.member_epoch, owned=kept)
    assert broker.heartbeat(first.member_id, generation) == REBALANCE
    assert rejoin(broker, first.member_id)[1] == ALL_T - kept


def test_the_last_consumer_leaves_and_the_group_is_classic_again(broker: Broker) -> None:
    old, _ = classic_member(broker)
    join(broker, "new")
    generation, _ = rejoin(broker, old)
    beat(broker, "new", 2)
    assert beat(broker, "new", -1).error_code == OK
    assert broker.describe().group_state == "PreparingRebalance"
    assert describe(broker).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert broker.heartbeat(old, generation) == REBALANCE
    joined = broker.join(old, protocols=protocols())
    assert (joined.leader, joined.generation_id > generation) == (old, True)
    assert broker.sync(old, joined.generation_id, {old: write_assignment(sorted(ALL_T), 1)}).error_code == OK
    assert broker.heartbeat(old, joined.generation_id) == OK
    broker.crash()
    assert broker.heartbeat(old, joined.generation_id) == OK


def test_a_crash_after_the_change_still_lets_the_classic_members_rebalance(broker: Broker) -> None:
    old, _ = classic_member(broker)
    join(broker, "new")
    generation, _ = rejoin(broker, old)
    beat(broker, "new", 2)
    beat(broker, "new", -1)
    broker.crash()
    assert broker.heartbeat(old, generation) == REBALANCE
    assert broker.join(old, protocols=protocols()).leader == old


def test_the_last_consumer_times_out(broker: Broker) -> None:
    old, _ = classic_member(broker, session_ms=600_000)
    join(broker, "new")
    rejoin(broker, old, session_ms=600_000)
    broker.time.advance(45_001)
    assert broker.describe().group_state == "PreparingRebalance"


def test_a_static_member_of_the_classic_protocol_replaces_the_last_consumer(broker: Broker) -> None:
    join(broker, "new", instance_id="i")
    held = decoded(beat(broker, "new", 1, instance_id="i", topics=["t"], owned=set(), rebalance_timeout_ms=60_000))
    beat(broker, "new", -2, instance_id="i")
    joined = broker.join(instance="i", protocols=protocols())
    assert joined.error_code == OK
    assert broker.describe().group_state == "Stable", "it has what the other had: no rebalance"
    synced = broker.sync(joined.member_id, joined.generation_id, instance="i")
    assert (synced.error_code, assigned(synced)) == (OK, held)
    broker.crash()
    assert broker.heartbeat(joined.member_id, joined.generation_id, instance="i") == OK
    assert describe(broker).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_static_member_changes_its_protocol_in_place(broker: Broker) -> None:
    joined = broker.join(instance="i", protocols=protocols())
    broker.time.advance(50)
    joined = joined.value
    broker.sync(joined.member_id, joined.generation_id, {joined.member_id: write_assignment(sorted(ALL_T), 1)}, instance="i")
    new = join(broker, "new", instance_id="i")
    assert (new.error_code, decoded(new)) == (OK, ALL_T)
    assert broker.heartbeat(joined.member_id, joined.generation_id, instance="i") == ErrorCode.FENCED_INSTANCE_ID
    assert [m.member_id for m in describe(broker).members] == ["new"]


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
def test_groups_that_may_not_be_upgraded(policy: str) -> None:
    broker = Broker(config=GroupConfig(consumer_migration_policy=policy))
    old, generation = classic_member(broker)
    refused = join(broker, "new")
    assert (refused.error_code, "disabled" in refused.error_message) == (ErrorCode.GROUP_ID_NOT_FOUND, True)
    assert broker.heartbeat(old, generation) == OK


@pytest.mark.parametrize(("policy", "is_allowed"), [("disabled", False), ("upgrade", True), ("downgrade", True)])
def test_whether_classic_members_may_join_a_consumer_group(policy: str, is_allowed: bool) -> None:
    broker = Broker(config=GroupConfig(consumer_migration_policy=policy))
    join(broker, "new")
    expected = ErrorCode.MEMBER_ID_REQUIRED if is_allowed else ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert broker.join(protocols=protocols()).error_code == expected


def test_a_group_that_may_not_be_downgraded_stays() -> None:
    broker = Broker(config=GroupConfig(consumer_migration_policy="upgrade"))
    old, _ = classic_member(broker)
    join(broker, "new")
    rejoin(broker, old)
    beat(broker, "new", -1)
    assert [m.member_id for m in describe(broker).members] == [old]
    generation, got = rejoin(broker, old)
    assert (got, broker.heartbeat(old, generation)) == (ALL_T, OK)


@pytest.mark.parametrize(
    ("metadata", "assignment", "reason"),
    [
        (b"m", b"", "malformed"),
        (subscription("t"), b"\0", "malformed"),
        (subscription("t"), b"\0\0" + b"\0\0\0\0" + b"\0\0\0\1x", "custom assignor"),
    ],
)
def test_members_that_cannot_be_read_are_left_alone(broker: Broker, metadata: bytes, assignment: bytes, reason: str) -> None:
    member_id, reply = broker.new_member(protocols=(("range", metadata),))
    broker.time.advance(50)
    generation = reply.value.generation_id
    broker.sync(member_id, generation, {member_id: assignment})
    refused = join(broker, "new")
    assert (refused.error_code, reason in refused.error_message) == (ErrorCode.GROUP_ID_NOT_FOUND, True)
    assert broker.heartbeat(member_id, generation) == OK


def test_other_kinds_of_groups_are_not_changed(broker: Broker) -> None:
    member_id, _ = broker.new_member(protocol_type="connect")
    broker.time.advance(50)
    assert join(broker, "new").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert broker.describe().protocol_type == "connect"
    assert member_id in {m.member_id for m in broker.describe().members}


def test_who_may_not_join_a_consumer_group(broker: Broker) -> None:
    join(broker, "new")
    refused = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert broker.join(protocols=(("range", b"x"),)).error_code == refused
    assert broker.join(protocols=protocols(), protocol_type="connect").error_code == refused
    assert broker.join(protocols=()).error_code == refused
    assert broker.join(protocols=protocols(), session_ms=1).error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    assert broker.join("x", protocols=protocols(), instance="i").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    broker.join("c1", protocols=protocols())
    assert broker.join("c2", protocols=(("other", subscription("t")),)).error_code == refused, "they share no protocol"
    full = Broker(config=GroupConfig(consumer_max_size=1))
    join(full, "new")
    assert full.join(protocols=protocols()).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_group_that_is_full_is_not_upgraded() -> None:
    broker = Broker(config=GroupConfig(consumer_max_size=1))
    old, generation = classic_member(broker)
    assert join(broker, "new").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert broker.heartbeat(old, generation) == OK


def test_members_of_one_protocol_cannot_act_as_one_of_the_other(broker: Broker) -> None:
    join(broker, "new")
    broker.join("c1", protocols=protocols())
    assert broker.heartbeat("new", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert broker.sync("new", 1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert broker.heartbeat("c1", 7) == ErrorCode.ILLEGAL_GENERATION
    assert broker.sync("c1", 7).error_code == ErrorCode.ILLEGAL_GENERATION
    assert broker.sync("c1", 2, protocol_name="other").error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert broker.leave(("nobody", None), ("c1", None)) == [ErrorCode.UNKNOWN_MEMBER_ID, OK]
    assert [m.member_id for m in describe(broker).members] == ["new"]


def test_a_classic_member_that_does_not_come_back_is_removed(broker: Broker) -> None:
    old, generation = classic_member(broker, session_ms=600_000, rebalance_ms=20_000)
    join(broker, "new")
    assert broker.heartbeat(old, generation) == REBALANCE
    broker.time.advance(20_000)
    assert [m.member_id for m in describe(broker).members] == ["new"]


def test_offsets_of_members_of_both_protocols(broker: Broker) -> None:
    old, generation = classic_member(broker)
    where = ("t", 0)
    join(broker, "new")
    assert broker.commit({where: 1}, member_id=old, generation=generation) == {where: OK}
    assert broker.commit({where: 1}, member_id=old, generation=generation + 1) == {where: ErrorCode.ILLEGAL_GENERATION}
    assert broker.commit({where: 1}, member_id=old, generation=generation, version=8) == {where: OK}
    assert broker.commit({where: 1}, member_id="new", generation=2, version=8) == {where: ErrorCode.UNSUPPORTED_VERSION}
    assert broker.commit({where: 1}, member_id="new", generation=1) == {where: ErrorCode.STALE_MEMBER_EPOCH}
    newer, kept = rejoin(broker, old)
    given_up = next(iter(ALL_T - kept))
    still = next(iter(kept))
    late = broker.commit({still: 2, given_up: 2}, member_id=old, generation=generation)
    assert late == {still: OK, given_up: ErrorCode.ILLEGAL_GENERATION}, "late, but it has had that all along"
    assert newer > generation


# -- a model


class Consumer:
    """A member of either protocol, as a client library runs it: the classic one gives up everything before it joins."""

    def __init__(self, name: str, *, is_classic: bool) -> None:
        self.name, self.is_classic = name, is_classic
        self.member_id = "" if is_classic else name
        self.epoch = -1
        self.owned: Owned = set()
        self.waiting: Reply | None = None
        self.is_synced = False
        self.leads: list[str] | None = None


class MigrationModel(RuleBasedStateMachine):
    """Members of both protocols come and go; whatever kind the group is, no partition has two owners."""

    def __init__(self) -> None:
        super().__init__()
        self.broker = Broker(
            config=GroupConfig(initial_rebalance_delay_ms=20), journal=SimulatedJournal(partition_count=1, is_manual=True)
        )
        self.members: list[Consumer] = []
        self.count = self.incarnation = 0

    @initialize(is_classic=st.booleans())
    def begin(self, is_classic: bool) -> None:
        self.start(is_classic)

    @precondition(lambda self: len(self.members) < 4)
    @rule(is_classic=st.booleans())
    def start(self, is_classic: bool) -> None:
        self.count += 1
        self.members.append(Consumer(f"m{self.count}", is_classic=is_classic))

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        self._step(data.draw(st.sampled_from(self.members)))

    @rule(is_quick=st.booleans())
    def step_all(self, is_quick: bool) -> None:
        for member in self.members:
            self._step(member)
            if is_quick:
                self.broker.journal.flush()
            self.nobody_shares_a_partition()

    @rule(rounds=st.integers(2, 8))
    def go_on(self, rounds: int) -> None:
        """Let everybody act for a while, so that the group gets somewhere before the next thing happens."""
        for _ in range(rounds):
            self.step_all(is_quick=True)
            self.broker.time.advance(30)

    def _step(self, member: Consumer) -> None:
        if member.waiting is not None:
            return
        if not member.is_classic:
            self._beat(member)
        elif member.epoch < 0:
            member.owned = set()
            self._send(member, self.broker.join(member.member_id, protocols=protocols(topics=("t", "u"))), self._on_joined)
        elif not member.is_synced:
            self._sync(member)
        else:
            self._on_error(member, self.broker.heartbeat(member.member_id, member.epoch))

    def _beat(self, member: Consumer) -> None:
        if member.epoch < 0:
            answer = join(self.broker, member.member_id, topics=["t", "u"])
        else:
            answer = beat(self.broker, member.member_id, member.epoch, owned=member.owned)
        self._send(member, answer, self._on_beat)

    def _send(self, member: Consumer, answer: Any, on_answer: Any) -> None:
        if not isinstance(answer, Reply):
            on_answer(member, answer)
            return
        member.waiting, incarnation = answer, self.incarnation

        def done(response: Any) -> None:
            if incarnation == self.incarnation:
                member.waiting = None
                on_answer(member, response)

        answer.then(done)

    def _on_beat(self, member: Consumer, response: Any) -> None:
        if response.error_code:
            member.epoch, member.owned = -1, set()
            return
        got = decoded(response)
        member.epoch = response.member_epoch
        member.owned = member.owned if got is None else got

    def _on_joined(self, member: Consumer, response: Any) -> None:
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            member.member_id = response.member_id
        elif response.error_code:
            self._on_error(member, ErrorCode(response.error_code))
        else:
            member.member_id, member.epoch, member.is_synced = response.member_id, response.generation_id, False
            is_leader = response.leader == response.member_id
            member.leads = sorted(m.member_id for m in response.members) if is_leader else None

    def _sync(self, member: Consumer) -> None:
        assignments = {}
        if member.leads is not None:
            every = sorted(ALL_T | {("u", index) for index in range(2)})
            shares = {name: every[i :: len(member.leads)] for i, name in enumerate(member.leads)}
            assignments = {name: write_assignment(share, 1) for name, share in shares.items()}
        self._send(member, self.broker.sync(member.member_id, member.epoch, assignments), self._on_synced)

    def _on_synced(self, member: Consumer, response: Any) -> None:
        if response.error_code:
            self._on_error(member, ErrorCode(response.error_code))
        else:
            member.is_synced, member.owned = True, assigned(response)

    def _on_error(self, member: Consumer, error: ErrorCode) -> None:
        if error:
            member.epoch, member.owned, member.is_synced = -1, set(), False
        if error == ErrorCode.UNKNOWN_MEMBER_ID:
            member.member_id = ""

    @precondition(lambda self: self.members)
    @rule(data=st.data(), says_goodbye=st.booleans())
    def stop(self, data: st.DataObject, says_goodbye: bool) -> None:
        member = data.draw(st.sampled_from(self.members))
        self.members.remove(member)
        member.owned = set()
        if says_goodbye and member.is_classic and member.member_id:
            self.broker.leave((member.member_id, None))
        elif says_goodbye:
            beat(self.broker, member.member_id, -1)

    @rule(delay_ms=st.sampled_from([30, 2_000, 9_000]))
    def wait(self, delay_ms: int) -> None:
        self.broker.time.advance(delay_ms)

    @rule(count=st.integers(1, 3))
    def flush(self, count: int) -> None:
        self.broker.journal.flush(count=count)

    @rule(kept=st.integers(0, 3))
    def crash(self, kept: int) -> None:
        self.incarnation += 1
        self.broker.crash(kept=kept)
        for member in self.members:
            if member.waiting is not None:
                member.waiting = None
                if member.is_classic:
                    member.epoch, member.is_synced, member.owned = -1, False, set()

    @invariant()
    def nobody_shares_a_partition(self) -> None:
        known = {m.member_id for g in self.broker.groups.groups() for m in g.members.values()}
        owned = [p for m in self.members if m.member_id in known for p in m.owned]
        assert len(owned) == len(set(owned)), "a partition has two owners"

    def teardown(self) -> None:
        """Left in peace, the members own everything between them."""
        for _ in range(60):
            for member in self.members:
                self._step(member)
                self.broker.journal.flush()
            self.broker.time.advance(1_500)
        self.nobody_shares_a_partition()
        if self.members:
            assert {p for m in self.members for p in m.owned} == ALL_T | {("u", 0), ("u", 1)}
            kind = "Classic" if all(m.is_classic for m in self.members) else "Consumer"
            assert self.broker.groups.kind_of("g") == kind


TestMigration = MigrationModel.TestCase
TestMigration.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
