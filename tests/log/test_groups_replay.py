"""Recovery: whatever happened, a coordinator that reads the journal back is in the state that had been reached by then.

Groups of all kinds live through random events, each of which is on disk at once. After each event a new coordinator over a copy
of the journal must hold what the live one holds: members, epochs, targets, assignments, offsets.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from logflume.log.broker.groups.classic.group import ClassicGroup, GroupState
from logflume.log.broker.groups.consumer.group import ConsumerGroup
from logflume.log.broker.groups.subscription import write_assignment
from logflume.log.broker.replies import Reply
from logflume.log.broker.testing.simulated import SimulatedJournal
from logflume.log.protocol.errors import ErrorCode

from . import test_groups_streams as streams
from ._groups_harness import Broker
from .test_groups_consumer_protocol import beat as beat_consumer
from .test_groups_consumer_protocol import join as join_consumer
from .test_groups_migration import protocols

GROUPS = ["a", "b"]
MEMBERS = ["m1", "m2", "m3"]
MOVING = "moving"
"""A classic group that makes its next generation: what a crash leaves is the last complete one, or nothing."""
groups = st.sampled_from(GROUPS)
member_ids = st.sampled_from(MEMBERS)


def snapshot(broker: Broker) -> dict[str, Any]:
    """Return what of the groups has to outlive a crash."""
    found: dict[str, Any] = {}
    for group in broker.groups.groups():
        offsets = {where: offset.offset for where, offset in broker.groups.committed_offsets(group.group_id).items()}
        unstable = broker.groups.unstable_partitions(group.group_id)
        state = _classic(group) if isinstance(group, ClassicGroup) else _modern(group)
        if state is not None or offsets or unstable:
            found[group.group_id] = (state, offsets, unstable)
    return found


def _classic(group: ClassicGroup) -> Any:
    """Return what a classic group keeps: its last complete generation; None for one that only holds offsets."""
    if group.state not in (GroupState.STABLE, GroupState.EMPTY):
        return MOVING
    if group.is_simple:
        return None
    members = {m.member_id: (m.instance_id, m.session_timeout_ms, m.assignment) for m in group.members.values()}
    return group.kind, group.generation, group.protocol_name, members


def _modern(group: Any) -> Any:
    head = (group.kind, group.state, group.epoch, group.assignment_epoch, group.metadata_hash)
    if isinstance(group, ConsumerGroup):
        head += (dict(group.static),)
    else:
        head += (group.topology, group.validated_epoch, group.configs)
    members = {m.member_id: (m.metadata, m.current) for m in group.members.values()}
    return *head, members, {member_id: target for member_id, target in group.target.items() if target}


class ReplayModel(RuleBasedStateMachine):
    """Any request of any kind of member for two groups; mostly legal, sometimes not."""

    def __init__(self) -> None:
        super().__init__()
        self.broker = Broker(journal=SimulatedJournal(partition_count=2))
        self.classic: dict[tuple[str, str], tuple[str, int]] = {}

    def _check(self) -> None:
        """Recover from what is on disk now and compare."""
        recovered = Broker(journal=self.broker.journal.crashed(), settings=self.broker.settings)
        found, expected = snapshot(recovered), snapshot(self.broker)
        recovered.groups.close()
        for group_id, (state, *offsets) in expected.items():
            there, *offsets_there = found.pop(group_id, (None, {}, set()))
            assert offsets_there == offsets
            if state is not MOVING:
                assert there == state
        assert not found, "nothing comes back that was gone"

    def _epoch(self, group: str, member_id: str) -> int:
        held = self.broker.groups.consumer_group(group) or self.broker.groups.streams_group(group)
        member: Any = held.members.get(member_id) if held else None
        return member.current.epoch if member else 0

    @rule(group=groups, member_id=member_ids, topics=st.sampled_from([["t"], ["u"], ["t", "u"]]), is_static=st.booleans())
    def consumer_joins(self, group: str, member_id: str, topics: list[str], is_static: bool) -> None:
        join_consumer(self.broker, member_id, topics=topics, group=group, instance_id=f"i{member_id}" if is_static else None)
        self._check()

    @rule(group=groups, member_id=member_ids, gives_up=st.booleans())
    def consumer_goes_on(self, group: str, member_id: str, gives_up: bool) -> None:
        held = self.broker.groups.consumer_group(group)
        member = held.members.get(member_id) if held else None
        owned = None
        if gives_up and member is not None:
            owned = {(topic.rstrip(b"\0").decode(), index) for topic, index in member.current.assigned}
        beat_consumer(self.broker, member_id, self._epoch(group, member_id), group=group, owned=owned)
        self._check()

    @rule(group=groups, member_id=member_ids, epoch=st.sampled_from([-1, -2]))
    def consumer_leaves(self, group: str, member_id: str, epoch: int) -> None:
        beat_consumer(self.broker, member_id, epoch, group=group, instance_id=f"i{member_id}" if epoch == -2 else None)
        self._check()

    @rule(group=groups, member_id=member_ids, process_id=st.sampled_from(["p", "q"]))
    def streams_member_joins(self, group: str, member_id: str, process_id: str) -> None:
        streams.join(self.broker, member_id, group=group, process_id=process_id)
        self._check()

    @rule(group=groups, member_id=member_ids, gives_up=st.booleans())
    def streams_member_goes_on(self, group: str, member_id: str, gives_up: bool) -> None:
        held = self.broker.groups.streams_group(group)
        member = held.members.get(member_id) if held else None
        owned: Any = {}
        if gives_up and member is not None:
            owned = {"owned": set(member.current.assigned.active), "standby": set(member.current.assigned.standby)}
        streams.beat(self.broker, member_id, self._epoch(group, member_id), group=group, **owned)
        self._check()

    @rule(group=groups, member_id=member_ids)
    def streams_member_leaves(self, group: str, member_id: str) -> None:
        streams.beat(self.broker, member_id, -1, group=group)
        self._check()

    @rule(group=groups, member_id=member_ids, replicas=st.integers(0, 1))
    def standbys_change(self, group: str, member_id: str, replicas: int) -> None:
        self.broker.settings.own[group] = {"streams.num.standby.replicas": str(replicas)}

    @rule(group=groups, instance=st.sampled_from([None, "im1", "x"]))
    def classic_member_joins(self, group: str, instance: str | None) -> None:
        """Join, assign everything to oneself if one leads, and sync; others that hang are timed out."""
        answer = self.broker.join(group=group, instance=instance, protocols=protocols(), rebalance_ms=1_000)
        if not isinstance(answer, Reply) and answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            answer = self.broker.join(answer.member_id, group=group, protocols=protocols(), rebalance_ms=1_000)
        self.broker.time.advance(1_100)
        joined = answer.value if isinstance(answer, Reply) else answer
        if joined is not None and not joined.error_code:
            assignments = {joined.member_id: write_assignment([("t", 0)], 1)} if joined.leader == joined.member_id else {}
            self.broker.sync(joined.member_id, joined.generation_id, assignments, group=group, instance=instance)
            self.classic[group, instance or ""] = (joined.member_id, joined.generation_id)
        self._check()

    @rule(group=groups, instance=st.sampled_from(["", "im1", "x"]))
    def classic_member_leaves(self, group: str, instance: str) -> None:
        member_id, _ = self.classic.get((group, instance), ("nobody", 0))
        self.broker.leave((member_id, instance or None), group=group)
        self._check()

    @rule(group=groups, offset=st.integers(0, 9), is_transactional=st.booleans())
    def commit(self, group: str, offset: int, is_transactional: bool) -> None:
        if is_transactional:
            self.broker.txn_commit({("t", 0): offset}, group=group)
        else:
            self.broker.commit({("u", 1): offset}, group=group)
        self._check()

    @rule(group=groups, is_commit=st.booleans())
    def end_transaction(self, group: str, is_commit: bool) -> None:
        self.broker.end_transaction(is_commit=is_commit, group=group)
        self._check()

    @rule(group=groups)
    def delete(self, group: str) -> None:
        self.broker.send("DeleteGroups", groups_names=[group])
        self._check()

    @rule(delay_ms=st.sampled_from([100, 10_000, 46_000]))
    def wait(self, delay_ms: int) -> None:
        self.broker.time.advance(delay_ms)
        self._check()


TestReplay = ReplayModel.TestCase
TestReplay.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
