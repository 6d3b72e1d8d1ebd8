"""The consumer groups of KIP-848: heartbeats, leaving, timeouts, target assignments, and their records in the journal.

What a member hears is on disk when it hears it. Memory goes ahead: a partition that one member gave up may go to the next in a
record right behind, and the order of the journal keeps that right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from ...protocol.errors import ErrorCode
from ..deadline import Deadline
from ..patterns import PatternError, compile_pattern
from ..seams import Clock, Journal, JournalRecord, Reply, Timers
from .assignors import ASSIGNORS, Partition
from .config import GroupConfig
from .consumer_group import (
    AWAY_EPOCH,
    LEAVING_EPOCH,
    NEW,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    all_of,
    hash_topics,
    may_see_all,
    reconcile,
    topics_by_member,
    topics_of,
)
from .consumer_records import (
    ConsumerKey,
    ConsumerKeyKind,
    ConsumerValue,
    CurrentValue,
    GroupEpochValue,
    MemberValue,
    TargetEpochValue,
    encode_consumer_key,
    encode_consumer_value,
)
from .partitioner import partition_of
from .ports import GroupSettings, Topics
from .refused import Refused

Records = dict[ConsumerKey, ConsumerValue | None]
"""What is to be written, None for a removal."""

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
class HeartbeatResult:
    """The answer; `assigned` is None when nothing changed."""

    error: ErrorCode
    message: str | None = None
    member_id: str = ""
    member_epoch: int = 0
    assigned: frozenset[Partition] | None = None


class ConsumerGroups:
    """The rules of consumer groups, over groups that the coordinator keeps. Holds no state of its own."""

    def __init__(
        self,
        config: GroupConfig,
        settings: GroupSettings,
        clock: Clock,
        timers: Timers,
        journal: Journal,
        topics: Topics,
        new_id: Callable[[], str],
        downgrade: Downgrade,
    ) -> None:
        self._config, self._settings, self._clock, self._timers = config, settings, clock, timers
        self._journal, self._topics, self._new_id, self._downgrade = journal, topics, new_id, downgrade

    # -- heartbeat

    def heartbeat(self, group: ConsumerGroup, beat: ConsumerHeartbeat) -> Reply:
        """Join, stay or leave; the reply is a HeartbeatResult once what it says is on disk."""
        try:
            if beat.member_epoch in (LEAVING_EPOCH, AWAY_EPOCH):
                return self._leave(group, beat)
            member, records = self._find_or_add(group, beat)
        except Refused as refused:
            return _done(HeartbeatResult(refused.error, str(refused), beat.member_id))
        current_before = member.current
        member.may_see = beat.may_see
        self.update(group, member, _updated(member.metadata, beat), beat.owned, records, is_joining=beat.member_epoch == 0)
        self.restart_timers(group, member)
        has_news = beat.is_full or member.current.assigned != current_before.assigned or _has_missed(beat, current_before)
        result = HeartbeatResult(
            ErrorCode.NONE,
            member_id=member.member_id,
            member_epoch=member.current.epoch,
            assigned=member.current.assigned if has_news else None,
        )
        return self.answer(group, records, result, _failed(result))

    def update(
        self,
        group: ConsumerGroup,
        member: ConsumerMember,
        metadata: MemberValue,
        owned: frozenset[Partition] | None,
        records: Records,
        *,
        is_joining: bool,
    ) -> None:
        """Take over what a member wants and has, and let it move towards its target; adds to `records` what changed."""
        metadata_before, current_before = member.metadata, member.current
        member.metadata = metadata
        if metadata_before != metadata or records:
            records[ConsumerKey(ConsumerKeyKind.MEMBER, group.group_id, member.member_id)] = metadata
        wants_other = _interest(metadata_before) != _interest(metadata) or current_before is NEW
        self._refresh(group, records, must_bump=wants_other)
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
            has_changed=wants_other,
        )
        if member.current != current_before or is_joining:
            records[ConsumerKey(ConsumerKeyKind.CURRENT, group.group_id, member.member_id)] = member.current

    def _find_or_add(self, group: ConsumerGroup, beat: ConsumerHeartbeat) -> tuple[ConsumerMember, Records]:
        """Return the member and the records that its arrival needs. Raises Refused."""
        check_request(beat)
        member_id = beat.member_id or self._new_id()
        known = group.members.get(member_id)
        if beat.instance_id is not None:
            return self._find_static(group, beat, member_id, beat.instance_id)
        if known is None:
            if beat.member_epoch != 0:
                raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group.group_id}.")
            return self.add(group, member_id, beat.instance_id), {}
        if beat.member_epoch != 0:
            _check_epoch(known, beat)
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
            _check_epoch(group.members[member_id], beat)
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
        records = _tombstones(group.group_id, holder.member_id)
        target = group.target.get(holder.member_id, frozenset())
        group.remove(holder)
        held = frozenset[Partition]()
        current = replace(holder.current, epoch=0, previous_epoch=-1, state=int(MemberState.STABLE), revoking=held)
        member = self.give_timers(group, ConsumerMember(member_id, holder.metadata, current))
        group.add(member)
        group.target[member_id] = target
        records[ConsumerKey(ConsumerKeyKind.TARGET, group.group_id, member_id)] = target
        return member, records

    def add(self, group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember:
        """Add a member that has said nothing yet. Raises Refused GROUP_MAX_SIZE_REACHED."""
        self.check_room(group)
        nothing = MemberValue(instance_id, None, "", "", (), None, -1, None)
        member = self.give_timers(group, ConsumerMember(member_id, nothing))
        group.add(member)
        return member

    def check_room(self, group: ConsumerGroup) -> None:
        """Raise Refused GROUP_MAX_SIZE_REACHED if the group is full."""
        if len(group.members) >= self._config.consumer_max_size:
            raise Refused(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {self._config.consumer_max_size} members.",
            )

    # -- leaving and timeouts

    def _leave(self, group: ConsumerGroup, beat: ConsumerHeartbeat) -> Reply:
        member = group.members.get(beat.member_id)
        if beat.instance_id is not None:
            holder_id = group.static.get(beat.instance_id)
            if holder_id is not None and holder_id != beat.member_id:
                raise Refused(ErrorCode.FENCED_INSTANCE_ID, f"Static member {beat.member_id} was fenced by {holder_id}.")
        if member is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {beat.member_id} is not a member of group {group.group_id}.")
        result = HeartbeatResult(ErrorCode.NONE, member_id=beat.member_id, member_epoch=beat.member_epoch)
        if beat.member_epoch == LEAVING_EPOCH:
            return self.remove(group, [member], result, _failed(result))
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
        key = ConsumerKey(ConsumerKeyKind.CURRENT, group.group_id, member.member_id)
        return self.answer(group, {key: member.current}, result, _failed(result))

    def remove(self, group: ConsumerGroup, members: list[ConsumerMember], result: object, failed: object) -> Reply:
        """Take members out; the reply is `result` once that is on disk, or `failed`."""
        written = self._downgrade(group, members)
        if written is not None:
            reply = Reply()
            written.then(lambda offset: reply.set(result if offset >= 0 else failed))
            return reply
        return self.answer(group, self._removed(group, members), result, failed)

    def _removed(self, group: ConsumerGroup, members: list[ConsumerMember]) -> Records:
        """Take members out and bump the epoch; the others learn of it with their next heartbeat."""
        records: Records = {}
        for member in members:
            group.remove(member)
            records |= _tombstones(group.group_id, member.member_id)
        group.epoch += 1
        if not group.members:
            # Nobody is left to compute a target for: the empty one is up to date.
            group.assignment_epoch = group.epoch
            records[ConsumerKey(ConsumerKeyKind.TARGET_EPOCH, group.group_id)] = TargetEpochValue(group.epoch)
        records[ConsumerKey(ConsumerKeyKind.GROUP, group.group_id)] = GroupEpochValue(group.epoch, group.metadata_hash)
        return records

    def _drop(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        if group.members.get(member.member_id) is member:
            self.remove(group, [member], None, None)

    def give_timers(self, group: ConsumerGroup, member: ConsumerMember) -> ConsumerMember:
        """Give a member its timers and start its session."""
        member.session = Deadline(self._clock, self._timers, lambda: self._drop(group, member))
        member.revocation = Deadline(self._clock, self._timers, lambda: self._drop(group, member))
        member.rejoin = Deadline(self._clock, self._timers, lambda: self._drop(group, member))
        self.restart_timers(group, member)
        return member

    def restart_timers(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        """Begin a member's session anew; one that has to give up partitions gets its rebalance timeout for that."""
        classic = member.metadata.classic
        own_ms = classic.session_timeout_ms if classic else 0
        member.session.set_after(own_ms or self._settings.number("consumer.session.timeout.ms", group.group_id))
        if member.is_classic:
            # It has its own deadline, to join anew.
            return
        if member.current.state != MemberState.UNREVOKED_PARTITIONS:
            member.revocation.cancel()
        elif not member.revocation.is_set:
            member.revocation.set_after(max(member.metadata.rebalance_timeout_ms, 0))

    # -- target assignment

    def _refresh(self, group: ConsumerGroup, records: Records, *, must_bump: bool) -> None:
        """Bump the epoch if members or topics changed, and compute the target assignment for it."""
        now_ms, wanted = self._clock.monotonic_ms(), None
        is_due = group.refreshed_ms < 0 or now_ms - group.refreshed_ms >= self._config.consumer_refresh_interval_ms
        if must_bump or is_due:
            group.refreshed_ms = now_ms
            wanted = topics_by_member(group.members.values(), self._topics)
            hashed = hash_topics(all_of(wanted), self._topics)
            if must_bump or hashed != group.metadata_hash:
                group.epoch, group.metadata_hash = group.epoch + 1, hashed
                records[ConsumerKey(ConsumerKeyKind.GROUP, group.group_id)] = GroupEpochValue(group.epoch, hashed)
        if group.epoch > group.assignment_epoch and self._may_assign(group):
            self._assign(group, wanted or topics_by_member(group.members.values(), self._topics), records)

    def _may_assign(self, group: ConsumerGroup) -> bool:
        """Whether the last target assignment is old enough for the next one (KIP-1263)."""
        interval_ms = self._settings.number("consumer.assignment.interval.ms", group.group_id)
        return interval_ms == 0 or self._clock.wall_ms() >= group.assigned_ms + interval_ms

    def _assign(self, group: ConsumerGroup, wanted: Mapping[str, frozenset[str]], records: Records) -> None:
        """Compute the target assignment of the present epoch for members that want these topics."""
        ids = {names: self._ids_of(names) for names in set(wanted.values())}
        counts = {topic_id: self._topics.partition_count(name) for own in ids.values() for topic_id, name in own.items()}
        topic_ids = {names: frozenset(own) for names, own in ids.items()}
        # Static members keep their place in the order over a restart under another id.
        members = sorted(group.members.values(), key=lambda m: (m.metadata.instance_id or "", m.member_id))
        subscriptions = {member.member_id: topic_ids[wanted[member.member_id]] for member in members}
        target = ASSIGNORS[group.assignor()](subscriptions, counts, group.target)
        for member_id, partitions in target.items():
            if group.target.get(member_id) != partitions:
                records[ConsumerKey(ConsumerKeyKind.TARGET, group.group_id, member_id)] = partitions
        group.target, group.assignment_epoch, group.assigned_ms = target, group.epoch, self._clock.wall_ms()
        records[ConsumerKey(ConsumerKeyKind.TARGET_EPOCH, group.group_id)] = TargetEpochValue(group.epoch, group.assigned_ms)

    def _ids_of(self, names: Iterable[str]) -> dict[bytes, str]:
        return {topic_id: name for name in names if (topic_id := self._topics.id_of(name)) is not None}

    # -- journal

    def tombstones(self, group: ConsumerGroup) -> list[JournalRecord]:
        """Return the records that remove a group from the journal."""
        keys: Records = {}
        for member_id in group.members:
            keys |= _tombstones(group.group_id, member_id)
        for kind in (ConsumerKeyKind.TARGET_EPOCH, ConsumerKeyKind.GROUP):
            keys[ConsumerKey(kind, group.group_id)] = None
        return self.encoded(keys)

    def answer(self, group: ConsumerGroup, records: Records, result: object, failed: object) -> Reply:
        """Write records; the reply is `result` once they are on disk, or `failed`."""
        if not records and not group.is_dirty and not group.owed:
            return _done(result)
        reply = Reply()
        self._write(group, records).then(lambda offset: reply.set(result if offset >= 0 else failed))
        return reply

    def _write(self, group: ConsumerGroup, records: Records) -> Reply:
        """Append records; after a failure the next write holds the whole group."""
        if group.is_dirty:
            records = records | everything(group)
            group.is_dirty = False
        owed, group.owed = group.owed, []
        partition = partition_of(group.group_id, self._journal.partition_count)
        written = self._journal.append(partition, [*owed, *self.encoded(records)])
        group.last_write = written

        def on_written(base_offset: int) -> None:
            if base_offset < 0:
                group.is_dirty, group.owed = True, owed

        written.then(on_written)
        return written

    def encoded(self, records: Records) -> list[JournalRecord]:
        now_ms = self._clock.wall_ms()
        return [
            JournalRecord(encode_consumer_key(key), None if value is None else encode_consumer_value(value), now_ms)
            for key, value in records.items()
        ]


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


def _check_epoch(member: ConsumerMember, beat: ConsumerHeartbeat) -> None:
    """Raise Refused FENCED_MEMBER_EPOCH unless the epoch is the member's, or that before a response which was lost."""
    if beat.member_epoch == member.current.epoch:
        return
    is_retry = beat.member_epoch == member.current.previous_epoch and beat.member_epoch < member.current.epoch
    if is_retry and beat.owned is not None and member.current.assigned.issuperset(beat.owned):
        return
    side = "smaller" if beat.member_epoch < member.current.epoch else "larger"
    raise Refused(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {side} member epoch ({beat.member_epoch}) than the one known by the group "
        f"coordinator ({member.current.epoch}). The member must abandon all its partitions and rejoin.",
    )


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


def _tombstones(group_id: str, member_id: str) -> Records:
    kinds = (ConsumerKeyKind.CURRENT, ConsumerKeyKind.TARGET, ConsumerKeyKind.MEMBER)
    return {ConsumerKey(kind, group_id, member_id): None for kind in kinds}


def everything(group: ConsumerGroup) -> Records:
    records: Records = {}
    for member in group.members.values():
        records[ConsumerKey(ConsumerKeyKind.MEMBER, group.group_id, member.member_id)] = member.metadata
        records[ConsumerKey(ConsumerKeyKind.CURRENT, group.group_id, member.member_id)] = member.current
    for member_id, partitions in group.target.items():
        records[ConsumerKey(ConsumerKeyKind.TARGET, group.group_id, member_id)] = partitions
    records[ConsumerKey(ConsumerKeyKind.TARGET_EPOCH, group.group_id)] = TargetEpochValue(
        group.assignment_epoch, group.assigned_ms
    )
    records[ConsumerKey(ConsumerKeyKind.GROUP, group.group_id)] = GroupEpochValue(group.epoch, group.metadata_hash)
    return records


def _failed(result: HeartbeatResult) -> HeartbeatResult:
    return replace(result, error=ErrorCode.COORDINATOR_NOT_AVAILABLE, assigned=None)


def _done(result: object) -> Reply:
    reply = Reply()
    reply.set(result)
    return reply


def restore(
    group: ConsumerGroup, values: dict[ConsumerKey, ConsumerValue], give_timers: Callable[[ConsumerMember], ConsumerMember]
) -> None:
    """Rebuild a group from the last value of each of its keys; parts of a member without its metadata are left out."""
    members: dict[str, MemberValue] = {}
    currents: dict[str, CurrentValue] = {}
    for key, value in values.items():
        if isinstance(value, GroupEpochValue):
            group.epoch, group.metadata_hash = value.epoch, value.metadata_hash
        elif isinstance(value, MemberValue):
            members[key.member_id] = value
        elif isinstance(value, CurrentValue):
            currents[key.member_id] = value
        elif isinstance(value, TargetEpochValue):
            group.assignment_epoch, group.assigned_ms = value.epoch, value.timestamp_ms
        else:
            group.target[key.member_id] = value
    group.target = {member_id: target for member_id, target in group.target.items() if member_id in members}
    for member_id, metadata in members.items():
        group.add(give_timers(ConsumerMember(member_id, metadata, currents.get(member_id, NEW))))
