"""Share groups (KIP-932): heartbeats, leaving, target assignments, and which partitions they have state of.

As nothing has to be given up before it is given to another, a member is at its target as soon as there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from logflume.log.broker.groups.config import GroupConfig
from logflume.log.broker.groups.epoch_records import GroupEpochValue, GroupKind, Role
from logflume.log.broker.groups.epoch_rules import Assignment, EpochRules, Records
from logflume.log.broker.groups.epochs import LEAVING_EPOCH
from logflume.log.broker.groups.heartbeats import HeartbeatResult
from logflume.log.broker.groups.refused import Refused
from logflume.log.broker.groups.table import GroupTable
from logflume.log.broker.ports import Clock, GroupSettings, Journal, Offload, Timers, Topics
from logflume.log.broker.replies import Reply
from logflume.log.protocol.errors import ErrorCode

from .assignor import assign_simple
from .group import NEW, ShareGroup, ShareMember
from .records import InitializedValue, ShareCurrentValue, ShareMemberValue, TopicState, encode_share_value

MAX_MEMBER_ID_CHARS = 36
MAX_TOPICS, MAX_TOPIC_CHARS = 10_000, 249


@dataclass(frozen=True, slots=True)
class ShareHeartbeat:
    """A heartbeat; `topics` None means unchanged."""

    group_id: str
    member_id: str
    member_epoch: int
    rack_id: str | None
    topics: tuple[str, ...] | None
    client_id: str
    client_host: str


class ShareGroups(EpochRules[ShareGroup, ShareMember]):
    """The rules of share groups, over the broker's table of groups."""

    kind = GroupKind.SHARE

    def __init__(
        self,
        config: GroupConfig,
        settings: GroupSettings,
        clock: Clock,
        timers: Timers,
        journal: Journal,
        topics: Topics,
        offload: Offload,
        table: GroupTable,
    ) -> None:
        super().__init__(config, settings, clock, timers, journal, topics, offload)
        self._table = table
        self.expiry_listeners: list[Callable[[str, str], None]] = []
        """Called with the group and the member whose session ran out."""

    # -- policy

    @property
    def max_size(self) -> int:
        return self._config.share_max_size

    def group_value(self, group: ShareGroup) -> GroupEpochValue:
        return GroupEpochValue(group.epoch, group.metadata_hash)

    def own_values(self, group: ShareGroup) -> Records:
        return {(Role.OWN, ""): InitializedValue(dict(group.initialized))}

    def encode_value(self, value: Any) -> bytes:
        return encode_share_value(value)

    def new_member(self, member_id: str, metadata: ShareMemberValue, current: ShareCurrentValue | None) -> ShareMember:
        return ShareMember(member_id, metadata, current or NEW)

    def restore_value(self, group: ShareGroup, role: Role, value: Any) -> None:
        if role is Role.OWN:
            group.initialized = dict(value.topics)
        else:
            super().restore_value(group, role, value)

    def on_expired(self, group: ShareGroup, member: ShareMember) -> None:
        for listener in self.expiry_listeners:
            listener(group.group_id, member.member_id)

    def assignment(self, group: ShareGroup) -> Assignment:
        subscriptions, counts = self.wanted_ids({m.member_id: m.metadata.topics for m in group.members.values()})
        compute = partial(assign_simple, subscriptions, counts, dict(group.target))
        return Assignment(len(subscriptions) + sum(counts.values()), compute)

    def on_assigned(self, group: ShareGroup, records: Records) -> None:
        """Note the partitions that are assigned, so that their state can be listed."""
        changed = {}
        for name in group.topics_in_use(self._topics):
            topic_id, count = self._topics.id_of(name), self._topics.partition_count(name)
            known = None if topic_id is None else group.initialized.get(topic_id)
            # Every partition of a topic that somebody wants is assigned.
            if topic_id is not None and (known is None or len(known.partitions) < count):
                changed[topic_id] = TopicState(name, frozenset(range(count)) | (known.partitions if known else frozenset()))
        if changed:
            self._set_initialized(group, {**group.initialized, **changed}, records)

    # -- groups

    def get(self, group_id: str) -> ShareGroup | None:
        group = self._table.get(group_id)
        return group if isinstance(group, ShareGroup) else None

    def all(self) -> list[ShareGroup]:
        return [group for group in self._table.all() if isinstance(group, ShareGroup)]

    def has_state(self, group_id: str, topic_id: bytes, partition: int) -> bool:
        """Whether a partition was assigned in a group, or given a start offset."""
        group = self.get(group_id)
        topic = group.initialized.get(topic_id) if group else None
        return topic is not None and partition in topic.partitions

    # -- heartbeats

    def heartbeat(self, beat: ShareHeartbeat) -> Reply:
        """Join, stay or leave; the reply is a HeartbeatResult once what it says is on disk."""
        try:
            _check_request(beat)
            self._table.check_alive(beat.group_id)
            if beat.member_epoch == LEAVING_EPOCH:
                return self._leave(beat)
            group, member, records = self._find_or_add(beat)
        except Refused as refused:
            return Reply.of(HeartbeatResult(refused.error, str(refused), beat.member_id))
        before = member.current
        self._set_metadata(member, beat, records)
        self.refresh(group, records, must_bump=(Role.MEMBER, member.member_id) in records)

        def go_on(records: Records) -> Reply:
            self._reconcile(group, member, records)
            self.restart_timers(group, member)
            has_news = beat.member_epoch != before.epoch or beat.topics is not None or member.current.assigned != before.assigned
            result = HeartbeatResult(
                ErrorCode.NONE,
                member_id=member.member_id,
                member_epoch=member.current.epoch,
                heartbeat_interval_ms=self.setting("heartbeat.interval.ms", group.group_id),
                assigned=member.current.assigned if has_news else None,
            )
            return self.answer(group, records, result, result.failed())

        failed = HeartbeatResult(ErrorCode.NONE, member_id=member.member_id).failed()
        return self.once_assigned(group, member, records, go_on, failed)

    def _find_or_add(self, beat: ShareHeartbeat) -> tuple[ShareGroup, ShareMember, Records]:
        group = self.get(beat.group_id)
        if group is None:
            if beat.group_id in self._table:
                raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {beat.group_id} is not a share group.")
            if beat.member_epoch != 0:
                raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"Share group {beat.group_id} not found.")
        member = group.members.get(beat.member_id) if group else None
        if group is not None and member is not None:
            if beat.member_epoch != 0:
                self.check_epoch(member.current, beat.member_epoch, has_only_its_own=True)
            return group, member, {}
        if beat.member_epoch != 0:
            raise self.unknown(beat.group_id, beat.member_id)
        if group is None:
            self._table.check_room(beat.group_id)
            group = ShareGroup(beat.group_id)
        self.check_room(group)
        self._table.put(group)
        member = self.give_timers(group, ShareMember(beat.member_id, ShareMemberValue(None, "", "", ())))
        group.add(member)
        return group, member, {(Role.MEMBER, member.member_id): member.metadata}

    def _set_metadata(self, member: ShareMember, beat: ShareHeartbeat, records: Records) -> None:
        old = member.metadata
        topics = old.topics if beat.topics is None else tuple(sorted(set(beat.topics)))
        rack_id = old.rack_id if beat.rack_id is None else beat.rack_id
        member.metadata = ShareMemberValue(rack_id, beat.client_id, beat.client_host, topics)
        if member.metadata != old:
            records[Role.MEMBER, member.member_id] = member.metadata

    def _reconcile(self, group: ShareGroup, member: ShareMember, records: Records) -> None:
        target = group.target.get(member.member_id, frozenset())
        old = member.current
        if old.epoch != group.assignment_epoch or old.assigned != target:
            previous_epoch = old.epoch if old.epoch != group.assignment_epoch else old.previous_epoch
            member.current = ShareCurrentValue(group.assignment_epoch, previous_epoch, target)
            records[Role.CURRENT, member.member_id] = member.current

    def _leave(self, beat: ShareHeartbeat) -> Reply:
        group = self.get(beat.group_id)
        if group is None:
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {beat.group_id} is not a share group.")
        member = group.members.get(beat.member_id)
        if member is None:
            raise self.unknown(beat.group_id, beat.member_id)
        result = HeartbeatResult(ErrorCode.NONE, member_id=beat.member_id, member_epoch=LEAVING_EPOCH)
        return self.answer(group, self.removed(group, [member]), result, result.failed())

    # -- administration

    def refusal_of_change(self, group_id: str, *, may_create: bool) -> tuple[ErrorCode, str] | None:
        """Return why the offsets of a group may not be changed now, None if they may."""
        group = self.get(group_id)
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID, "The group id is empty."
        if group is None and group_id in self._table:
            return ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a share group."
        if group is None and not may_create:
            return ErrorCode.GROUP_ID_NOT_FOUND, f"Share group {group_id} not found."
        try:
            self._table.check_alive(group_id)
            self._table.check_room(group_id)
        except Refused as refused:
            return refused.error, str(refused)
        if group is not None and group.members:
            return (
                ErrorCode.NON_EMPTY_GROUP,
                f"Share group {group_id} has {len(group.members)} member{'s' * (len(group.members) != 1)}; stop all first.",
            )
        return None

    def initialize(self, group_id: str, topics: Mapping[bytes, TopicState]) -> Reply:
        """Note that partitions have state in a group, which is made if it does not exist; the reply is an ErrorCode.

        The group must not have members.
        """
        group = self.get(group_id) or ShareGroup(group_id)
        assert not group.members, group_id
        self._table.put(group)
        merged = dict(group.initialized)
        for topic_id, topic in topics.items():
            known = merged.get(topic_id)
            merged[topic_id] = replace(topic, partitions=topic.partitions | known.partitions) if known else topic
        records: Records = {(Role.GROUP, ""): self.group_value(group)}
        self._set_initialized(group, merged, records)
        return self.answer(group, records, ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def forget_topics(self, group_id: str, topic_ids: Iterable[bytes]) -> Reply:
        """Note that a group has no state of topics any more; the reply is an ErrorCode."""
        group, gone = self.get(group_id), frozenset(topic_ids)
        if group is None:
            return Reply.of(ErrorCode.GROUP_ID_NOT_FOUND)
        records: Records = {}
        self._set_initialized(group, {t: state for t, state in group.initialized.items() if t not in gone}, records)
        return self.answer(group, records, ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def on_topics_deleted(self) -> None:
        """Forget topics that are gone."""
        for group in self.all():
            gone = [topic_id for topic_id in group.initialized if self._topics.name_of(topic_id) is None]
            if gone:
                self.forget_topics(group.group_id, gone)

    def _set_initialized(self, group: ShareGroup, topics: Mapping[bytes, TopicState], records: Records) -> None:
        group.initialized = topics
        records[Role.OWN, ""] = InitializedValue(dict(topics))


def _check_request(beat: ShareHeartbeat) -> None:
    """Raise Refused INVALID_REQUEST unless the fields fit together."""

    def require(condition: bool, text: str) -> None:
        if not condition:
            raise Refused(ErrorCode.INVALID_REQUEST, text)

    require(bool(beat.member_id.strip()), "MemberId can't be empty.")
    require(len(beat.member_id) <= MAX_MEMBER_ID_CHARS, f"A member id has at most {MAX_MEMBER_ID_CHARS} characters.")
    require(bool(beat.group_id.strip()), "GroupId can't be empty.")
    require(beat.rack_id is None or bool(beat.rack_id.strip()), "RackId can't be empty.")
    require(beat.member_epoch >= LEAVING_EPOCH, "MemberEpoch is invalid.")
    topics = beat.topics or ()
    is_modest = len(topics) <= MAX_TOPICS and all(len(name) <= MAX_TOPIC_CHARS for name in topics)
    require(is_modest, f"A member subscribes to at most {MAX_TOPICS} topics with names of up to {MAX_TOPIC_CHARS} characters.")
    if beat.member_epoch == 0:
        require(bool(beat.topics), "SubscribedTopicNames must be set in first request.")
