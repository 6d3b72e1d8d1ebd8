"""The consumer groups of KIP-848: heartbeats, leaving, and target assignments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from logflume.log.broker.groups.config import GroupConfig
from logflume.log.broker.groups.epoch_records import GroupEpochValue, GroupKind, Partition, Role
from logflume.log.broker.groups.epoch_rules import Assignment, EpochRules, Records, member_tombstones
from logflume.log.broker.groups.epochs import LEAVING_EPOCH
from logflume.log.broker.groups.heartbeats import HeartbeatResult
from logflume.log.broker.groups.refused import Refused
from logflume.log.broker.patterns import PatternError, compile_pattern
from logflume.log.broker.ports import Clock, GroupSettings, Journal, Offload, Timers, Topics
from logflume.log.broker.replies import Reply
from logflume.log.broker.turns.deadline import Deadline
from logflume.log.protocol.errors import ErrorCode

from .assignors import ASSIGNORS
from .group import (
    AWAY_EPOCH,
    NEW,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    may_see_all,
    reconcile,
    topics_by_member,
    topics_of,
)
from .records import CurrentValue, MemberValue, encode_consumer_value

Downgrade = Callable[[ConsumerGroup, list[ConsumerMember]], Reply | None]
"""Makes a group a classic one when these members leave and only such of the classic protocol stay. Returns the write of that,
None if the group stays what it is."""


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeat:
    """A heartbeat: None and -1 mean unchanged. `owned`: partitions the member has, by topic id. `may_see`: whether it may know of
    a topic, asked for those that an expression matches."""

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None
    rack_id: str | None
    rebalance_timeout_ms: int
    topics: frozenset[str] | None
    regex: str | None
    assignor: str | None
    owned: frozenset[Partition] | None
    client_id: str
    client_host: str
    may_see: Callable[[str], bool] = may_see_all

    @property
    def is_full(self) -> bool:
        """Whether the member says everything, so that it wants to hear everything."""
        has_topics = self.topics is not None or self.regex is not None
        return self.member_epoch == 0 or (self.rebalance_timeout_ms != -1 and has_topics and self.owned is not None)


@dataclass(frozen=True, slots=True)
class Update:
    """What a member wants now, and has: None if it did not say."""

    metadata: MemberValue
    owned: frozenset[Partition] | None
    is_joining: bool


class ConsumerGroups(EpochRules[ConsumerGroup, ConsumerMember]):
    """The rules of consumer groups, over groups that the coordinator keeps. Holds no state of its own."""

    kind = GroupKind.CONSUMER

    def __init__(
        self,
        config: GroupConfig,
        settings: GroupSettings,
        clock: Clock,
        timers: Timers,
        journal: Journal,
        topics: Topics,
        offload: Offload,
        new_id: Callable[[], str],
        downgrade: Downgrade,
    ) -> None:
        super().__init__(config, settings, clock, timers, journal, topics, offload)
        self._new_id, self._downgrade = new_id, downgrade

    # -- policy

    @property
    def max_size(self) -> int:
        return self._config.consumer_max_size

    def group_value(self, group: ConsumerGroup) -> GroupEpochValue:
        return GroupEpochValue(group.epoch, group.metadata_hash)

    def encode_value(self, value: Any) -> bytes:
        return encode_consumer_value(value)

    def new_member(self, member_id: str, metadata: MemberValue, current: CurrentValue | None) -> ConsumerMember:
        return ConsumerMember(member_id, metadata, current or NEW)

    def session_ms(self, group: ConsumerGroup, member: ConsumerMember) -> int:
        classic = member.metadata.classic
        return (classic.session_timeout_ms if classic else 0) or super().session_ms(group, member)

    def give_up_ms(self, member: ConsumerMember) -> int | None:
        """A member of the classic protocol has its own deadline, to join anew."""
        is_asked = member.current.state == MemberState.UNREVOKED_PARTITIONS and not member.is_classic
        return member.metadata.rebalance_timeout_ms if is_asked else None

    def give_timers(self, group: ConsumerGroup, member: ConsumerMember) -> ConsumerMember:
        member.rejoin = Deadline(self._clock, self._timers, lambda: self.drop(group, member))
        return super().give_timers(group, member)

    def drop(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        if group.members.get(member.member_id) is member:
            self.remove_members(group, [member], None, None)

    def assignment(self, group: ConsumerGroup) -> Assignment:
        # Static members keep their place in the order over a restart under another id.
        members = sorted(group.members.values(), key=lambda m: (m.metadata.instance_id or "", m.member_id))
        subscriptions, counts = self.wanted_ids(topics_by_member(members, self._topics))
        compute = partial(ASSIGNORS[group.assignor()], subscriptions, counts, dict(group.target))
        return Assignment(len(members) + sum(counts.values()), compute)

    # -- heartbeat

    def heartbeat(self, group: ConsumerGroup, beat: ConsumerHeartbeat) -> Reply:
        """Join, stay or leave; the reply is a HeartbeatResult once what it says is on disk."""
        try:
            if beat.member_epoch in (LEAVING_EPOCH, AWAY_EPOCH):
                return self._leave(group, beat)
            member, records = self._find_or_add(group, beat)
        except Refused as refused:
            return Reply.of(HeartbeatResult(refused.error, str(refused), beat.member_id))
        current_before = member.current
        member.may_see = beat.may_see

        def go_on(records: Records) -> Reply:
            self.restart_timers(group, member)
            has_news = beat.is_full or member.current.assigned != current_before.assigned or _has_missed(beat, current_before)
            result = HeartbeatResult(
                ErrorCode.NONE,
                member_id=member.member_id,
                member_epoch=member.current.epoch,
                heartbeat_interval_ms=self.setting("heartbeat.interval.ms", group.group_id),
                assigned=member.current.assigned if has_news else None,
            )
            return self.answer(group, records, result, result.failed())

        news = Update(_updated(member.metadata, beat), beat.owned, is_joining=beat.member_epoch == 0)
        failed = HeartbeatResult(ErrorCode.NONE, member_id=member.member_id).failed()
        return self.update(group, member, news, records, go_on, failed)

    def update(
        self,
        group: ConsumerGroup,
        member: ConsumerMember,
        news: Update,
        records: Records,
        go_on: Callable[[Records], Reply],
        failed: object,
    ) -> Reply:
        """Take over what a member wants and has, let it move towards its target, and go on with the records of what changed.

        The reply is that of `go_on`, or `failed` (`once_assigned` says when).
        """
        metadata_before, current_before = member.metadata, member.current
        member.metadata = news.metadata
        if metadata_before != news.metadata or records:
            records[Role.MEMBER, member.member_id] = news.metadata
        wants_other = _interest(metadata_before) != _interest(news.metadata) or current_before is NEW
        self.refresh(group, records, must_bump=wants_other)

        def move(records: Records) -> Reply:
            self._move(group, member, news.owned, has_changed=wants_other)
            if member.current != current_before or news.is_joining:
                records[Role.CURRENT, member.member_id] = member.current
            return go_on(records)

        return self.once_assigned(group, member, records, move, failed)

    def _move(
        self, group: ConsumerGroup, member: ConsumerMember, owned: frozenset[Partition] | None, *, has_changed: bool
    ) -> None:
        target = group.target.get(member.member_id, frozenset())
        if group.epoch > group.assignment_epoch:
            # The target is from before: what the member does not want any more is not in it.
            wanted = {self._topics.id_of(name) for name in topics_of(member, self._topics)}
            target = frozenset(partition for partition in target if partition[0] in wanted)
        member.current = reconcile(
            member.current,
            target,
            group.assignment_epoch,
            owned,
            lambda: group.held_by_others(member),
            has_changed=has_changed,
        )

    def _find_or_add(self, group: ConsumerGroup, beat: ConsumerHeartbeat) -> tuple[ConsumerMember, Records]:
        """Return the member and the records that its arrival needs. Raises Refused."""
        check_request(beat)
        member_id = beat.member_id or self._new_id()
        known = group.members.get(member_id)
        if beat.instance_id is not None:
            return self._find_static(group, beat, member_id, beat.instance_id)
        if known is None:
            if beat.member_epoch != 0:
                raise self.unknown(group.group_id, member_id)
            return self.add(group, member_id, beat.instance_id), {}
        if beat.member_epoch != 0:
            self._check_epoch(known, beat)
        return known, {}

    def _find_static(
        self, group: ConsumerGroup, beat: ConsumerHeartbeat, member_id: str, instance_id: str
    ) -> tuple[ConsumerMember, Records]:
        holder_id = group.static.get(instance_id)
        if beat.member_epoch != 0:
            if holder_id is None:
                raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
            if holder_id != member_id:
                raise Refused(ErrorCode.FENCED_INSTANCE_ID, f"Static member {member_id} was fenced by {holder_id}.")
            self._check_epoch(group.members[member_id], beat)
            return group.members[member_id], {}
        if holder_id is None:
            return self.add(group, member_id, instance_id), {}
        holder = group.members[holder_id]
        if holder_id == member_id:
            return holder, {}
        if holder.current.epoch != AWAY_EPOCH and not holder.is_classic:
            text = f"Static member {member_id} cannot join: instance id {instance_id} is in use by {holder_id}."
            raise Refused(ErrorCode.UNRELEASED_INSTANCE_ID, text)
        return self.take_over(group, holder, member_id)

    def take_over(self, group: ConsumerGroup, holder: ConsumerMember, member_id: str) -> tuple[ConsumerMember, Records]:
        """Give a static member that came back under a new id all that it had."""
        records = member_tombstones(holder.member_id)
        target = group.target.get(holder.member_id, frozenset())
        group.remove(holder)
        held = frozenset[Partition]()
        current = replace(holder.current, epoch=0, previous_epoch=-1, state=int(MemberState.STABLE), revoking=held)
        member = self.give_timers(group, ConsumerMember(member_id, holder.metadata, current))
        group.add(member)
        group.target[member_id] = target
        records[Role.TARGET, member_id] = target
        return member, records

    def add(self, group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember:
        """Add a member that has said nothing yet. Raises Refused GROUP_MAX_SIZE_REACHED."""
        self.check_room(group)
        nothing = MemberValue(instance_id, None, "", "", (), None, -1, None)
        member = self.give_timers(group, ConsumerMember(member_id, nothing))
        group.add(member)
        return member

    def _check_epoch(self, member: ConsumerMember, beat: ConsumerHeartbeat) -> None:
        has_only_its_own = beat.owned is not None and member.current.assigned.issuperset(beat.owned)
        self.check_epoch(member.current, beat.member_epoch, has_only_its_own=has_only_its_own)

    # -- leaving and timeouts

    def _leave(self, group: ConsumerGroup, beat: ConsumerHeartbeat) -> Reply:
        member = group.members.get(beat.member_id)
        if beat.instance_id is not None:
            holder_id = group.static.get(beat.instance_id)
            if holder_id is not None and holder_id != beat.member_id:
                raise Refused(ErrorCode.FENCED_INSTANCE_ID, f"Static member {beat.member_id} was fenced by {holder_id}.")
        if member is None:
            raise self.unknown(group.group_id, beat.member_id)
        interval_ms = self.setting("heartbeat.interval.ms", group.group_id)
        result = HeartbeatResult(ErrorCode.NONE, None, beat.member_id, beat.member_epoch, interval_ms)
        if beat.member_epoch == LEAVING_EPOCH:
            return self.remove_members(group, [member], result, result.failed())
        if beat.instance_id is None:
            raise Refused(ErrorCode.INVALID_REQUEST, "InstanceId can't be null for a static member that leaves for a while.")
        member.current = replace(
            member.current,
            epoch=AWAY_EPOCH,
            state=int(MemberState.STABLE),
            revoking=frozenset(),
            epochs=dict.fromkeys(member.current.assigned, 0),
        )
        member.revocation.cancel()
        return self.answer(group, {(Role.CURRENT, member.member_id): member.current}, result, result.failed())

    def remove_members(self, group: ConsumerGroup, members: list[ConsumerMember], result: object, failed: object) -> Reply:
        """Take members out; the reply is `result` once that is on disk, or `failed`."""
        written = self._downgrade(group, members)
        if written is None:
            return self.answer(group, self.removed(group, members), result, failed)
        reply = Reply()
        written.then(lambda offset: reply.set(result if offset >= 0 else failed))
        return reply


def check_request(beat: ConsumerHeartbeat) -> None:
    """Raise Refused INVALID_REQUEST unless the fields fit together."""

    def require(condition: bool, text: str) -> None:
        if not condition:
            raise Refused(ErrorCode.INVALID_REQUEST, text)

    require(beat.member_epoch >= 0, f"MemberEpoch is {beat.member_epoch}, but must be greater than or equal to -2.")
    require(beat.instance_id != "", "InstanceId can't be empty.")
    require(beat.rack_id != "", "RackId can't be empty.")
    if beat.member_epoch == 0:
        require(beat.rebalance_timeout_ms != -1, "RebalanceTimeoutMs must be provided in first request.")
        require(beat.owned is not None and not beat.owned, "TopicPartitions must be empty when (re-)joining.")
        require(
            beat.topics is not None or beat.regex is not None,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        )
    else:
        require(bool(beat.member_id), "MemberId can't be empty.")
    if beat.assignor is not None and beat.assignor not in ASSIGNORS:
        known = ", ".join(ASSIGNORS)
        text = f"ServerAssignor {beat.assignor} is not supported. Supported assignors: {known}."
        raise Refused(ErrorCode.UNSUPPORTED_ASSIGNOR, text)
    if beat.regex:
        try:
            compile_pattern(beat.regex)
        except PatternError as error:
            text = f"SubscribedTopicRegex `{beat.regex}` is not a valid regular expression: {error}."
            raise Refused(ErrorCode.INVALID_REGULAR_EXPRESSION, text) from error


def _has_missed(beat: ConsumerHeartbeat, current: CurrentValue) -> bool:
    """Whether a member shows by its epoch or its partitions that it did not hear the last response."""
    return beat.member_epoch != current.epoch or (beat.owned is not None and beat.owned != current.assigned)


def _updated(metadata: MemberValue, beat: ConsumerHeartbeat) -> MemberValue:
    """Return what the member wants now."""
    return MemberValue(
        instance_id=beat.instance_id if beat.instance_id is not None else metadata.instance_id,
        rack_id=beat.rack_id if beat.rack_id is not None else metadata.rack_id,
        client_id=beat.client_id,
        client_host=beat.client_host,
        topics=tuple(sorted(beat.topics)) if beat.topics is not None else metadata.topics,
        regex=(beat.regex or None) if beat.regex is not None else metadata.regex,
        rebalance_timeout_ms=beat.rebalance_timeout_ms if beat.rebalance_timeout_ms != -1 else metadata.rebalance_timeout_ms,
        assignor=beat.assignor if beat.assignor is not None else metadata.assignor,
        classic=None,
    )


def _interest(metadata: MemberValue) -> tuple[object, ...]:
    """Return what a new target assignment depends on."""
    return metadata.topics, metadata.regex, metadata.assignor
