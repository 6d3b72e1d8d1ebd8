"""The members of share groups (KIP-932): heartbeats, leaving, timeouts, target assignments, and their records in the journal.

As nothing has to be given up before it is given to another, a member is at its target as soon as there is one. What a member
hears is on disk when it hears it. Memory goes ahead of the disk; after a failed write the next one holds the whole group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from ...protocol.errors import ErrorCode
from ..deadline import Deadline
from ..groups.consumer_group import hash_topics
from ..groups.partitioner import partition_of
from ..groups.ports import Topics
from ..seams import Clock, Journal, JournalRecord, Reply, Timers
from .assignor import Partition, assign_simple
from .config import GroupSettings, ShareConfig
from .group_records import (
    InitializedValue,
    ShareCurrentValue,
    ShareEpochValue,
    ShareGroupKey,
    ShareGroupValue,
    ShareKeyKind,
    ShareMemberValue,
    TargetEpochValue,
    TargetValue,
    TopicState,
    encode_share_group_key,
    encode_share_group_value,
)

LEAVING_EPOCH = -1
MAX_MEMBER_ID_CHARS = 36
MAX_TOPICS, MAX_TOPIC_CHARS = 10_000, 249
NEW = ShareCurrentValue(0, -1, frozenset())

Records = dict[ShareGroupKey, ShareGroupValue | None]


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


@dataclass(frozen=True, slots=True)
class ShareHeartbeatResult:
    """The answer; `assigned` is None when nothing changed."""

    error: ErrorCode
    message: str | None = None
    member_id: str = ""
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assigned: frozenset[Partition] | None = None


class Refused(Exception):
    """A heartbeat that is refused, before anything has changed."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error


@dataclass(slots=True, eq=False)
class ShareMember:
    """A member: what it wants and what it has."""

    member_id: str
    metadata: ShareMemberValue
    session: Deadline
    current: ShareCurrentValue = NEW


@dataclass(slots=True, eq=False)
class ShareGroup:
    """A share group. `initialized`: topic id -> its partitions that the group has state of, or will once they are fetched."""

    group_id: str
    epoch: int = 0
    assignment_epoch: int = 0
    metadata_hash: int = 0
    members: dict[str, ShareMember] = field(default_factory=dict)
    target: dict[str, frozenset[Partition]] = field(default_factory=dict)
    initialized: dict[bytes, TopicState] = field(default_factory=dict)
    refreshed_ms: int = -1
    assigned_ms: int = -1
    is_dirty: bool = False

    @property
    def state(self) -> str:
        """The state as clients see it."""
        return "Stable" if self.members else "Empty"


class ShareGroups:
    """All share groups of the broker. A group id belongs to one kind of group only: `is_taken` tells of the other kinds."""

    def __init__(
        self,
        config: ShareConfig,
        clock: Clock,
        timers: Timers,
        journal: Journal,
        topics: Topics,
        settings: GroupSettings,
        *,
        is_taken: Callable[[str], bool],
        on_member_expired: Callable[[str, str], None],
    ) -> None:
        """`on_member_expired` hears the group and the member whose session ran out."""
        self._config, self._clock, self._timers, self._journal = config, clock, timers, journal
        self._topics, self._settings, self._is_taken = topics, settings, is_taken
        self._on_member_expired = on_member_expired
        self._groups: dict[str, ShareGroup] = {}

    # -- life

    def restore(self, values: Mapping[ShareGroupKey, ShareGroupValue]) -> None:
        """Rebuild the groups from the last value of each key of the journal; sessions begin anew."""
        for key in values:
            self._groups.setdefault(key.group_id, ShareGroup(key.group_id))
        for key, value in values.items():
            if isinstance(value, ShareMemberValue):
                self._add(self._groups[key.group_id], key.member_id, value)
        for key, value in values.items():
            _restore(self._groups[key.group_id], key.member_id, value)

    def close(self) -> None:
        """Stop all timers."""
        for group in self._groups.values():
            for member in group.members.values():
                member.session.cancel()

    def get(self, group_id: str) -> ShareGroup | None:
        return self._groups.get(group_id)

    def all(self) -> Iterable[ShareGroup]:
        return self._groups.values()

    def has_state(self, group_id: str, topic_id: bytes, partition: int) -> bool:
        """Whether a partition was assigned in a group, or given a start offset."""
        group = self._groups.get(group_id)
        topic = group.initialized.get(topic_id) if group else None
        return topic is not None and partition in topic.partitions

    # -- heartbeats

    def heartbeat(self, beat: ShareHeartbeat) -> Reply:
        """Join, stay or leave; the reply is a ShareHeartbeatResult once what it says is on disk."""
        try:
            _check_request(beat)
            if beat.member_epoch == LEAVING_EPOCH:
                return self._leave(beat)
            group, member, records = self._find_or_add(beat)
        except Refused as refused:
            return _done(ShareHeartbeatResult(refused.error, str(refused), beat.member_id))
        before = member.current
        self._set_metadata(group, member, beat, records)
        is_changed = ShareGroupKey(ShareKeyKind.MEMBER, group.group_id, member.member_id) in records
        self._refresh(group, records, must_bump=is_changed)
        self._reconcile(group, member, records)
        member.session.set_after(self._settings.number("share.session.timeout.ms", group.group_id))
        has_news = beat.member_epoch != before.epoch or beat.topics is not None or member.current.assigned != before.assigned
        result = ShareHeartbeatResult(
            ErrorCode.NONE,
            member_id=member.member_id,
            member_epoch=member.current.epoch,
            heartbeat_interval_ms=self._settings.number("share.heartbeat.interval.ms", group.group_id),
            assigned=member.current.assigned if has_news else None,
        )
        return self._answer_when_written(group, records, result)

    def _find_or_add(self, beat: ShareHeartbeat) -> tuple[ShareGroup, ShareMember, Records]:
        group = self._groups.get(beat.group_id)
        if group is None:
            if self._is_taken(beat.group_id):
                raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {beat.group_id} is not a share group.")
            if beat.member_epoch != 0:
                raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"Share group {beat.group_id} not found.")
        member = group.members.get(beat.member_id) if group else None
        if member is not None:
            _check_epoch(member, beat)
            assert group is not None
            return group, member, {}
        if beat.member_epoch != 0:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {beat.member_id} is not a member of group {beat.group_id}.")
        if group is not None and len(group.members) >= self._config.max_size:
            raise Refused(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The share group has reached its maximum capacity of {self._config.max_size} members.",
            )
        if group is None and len(self._groups) >= self._config.max_groups:
            raise Refused(ErrorCode.GROUP_MAX_SIZE_REACHED, self._too_many_groups())
        group = group or self._groups.setdefault(beat.group_id, ShareGroup(beat.group_id))
        member = self._add(group, beat.member_id, ShareMemberValue(None, "", "", ()))
        return group, member, {ShareGroupKey(ShareKeyKind.MEMBER, group.group_id, member.member_id): member.metadata}

    def _add(self, group: ShareGroup, member_id: str, metadata: ShareMemberValue) -> ShareMember:
        session = Deadline(self._clock, self._timers, lambda: self._expire(group, member))
        member = ShareMember(member_id, metadata, session)
        group.members[member_id] = member
        session.set_after(self._settings.number("share.session.timeout.ms", group.group_id))
        return member

    def _set_metadata(self, group: ShareGroup, member: ShareMember, beat: ShareHeartbeat, records: Records) -> None:
        old = member.metadata
        topics = old.topics if beat.topics is None else tuple(sorted(set(beat.topics)))
        rack_id = old.rack_id if beat.rack_id is None else beat.rack_id
        member.metadata = ShareMemberValue(rack_id, beat.client_id, beat.client_host, topics)
        if member.metadata != old:
            records[ShareGroupKey(ShareKeyKind.MEMBER, group.group_id, member.member_id)] = member.metadata

    def _refresh(self, group: ShareGroup, records: Records, *, must_bump: bool) -> None:
        """Bump the epoch if members or topics changed, and compute the target assignment for it.

        Assignments are at least `share.assignment.interval.ms` apart; until then members keep what they have.
        """
        now_ms = self._clock.monotonic_ms()
        is_due = group.refreshed_ms < 0 or now_ms - group.refreshed_ms >= self._config.refresh_interval_ms
        if must_bump or is_due:
            group.refreshed_ms = now_ms
            hashed = hash_topics({name for member in group.members.values() for name in member.metadata.topics}, self._topics)
            if must_bump or hashed != group.metadata_hash:
                group.epoch, group.metadata_hash = group.epoch + 1, hashed
                records[ShareGroupKey(ShareKeyKind.GROUP, group.group_id)] = ShareEpochValue(group.epoch, hashed)
        interval_ms = self._settings.number("share.assignment.interval.ms", group.group_id)
        is_time = group.assigned_ms < 0 or now_ms - group.assigned_ms >= interval_ms
        if group.epoch > group.assignment_epoch and is_time:
            group.assigned_ms = now_ms
            self._assign(group, records)

    def _assign(self, group: ShareGroup, records: Records) -> None:
        subscriptions: dict[str, frozenset[bytes]] = {}
        counts: dict[bytes, int] = {}
        for member in group.members.values():
            ids = {topic_id: name for name in member.metadata.topics if (topic_id := self._topics.id_of(name)) is not None}
            counts.update((topic_id, self._topics.partition_count(name)) for topic_id, name in ids.items())
            subscriptions[member.member_id] = frozenset(ids)
        target = assign_simple(subscriptions, counts, group.target)
        for member_id, partitions in target.items():
            if group.target.get(member_id) != partitions:
                records[ShareGroupKey(ShareKeyKind.TARGET, group.group_id, member_id)] = TargetValue(partitions)
        group.target, group.assignment_epoch = target, group.epoch
        stamp = TargetEpochValue(group.epoch, self._clock.wall_ms())
        records[ShareGroupKey(ShareKeyKind.TARGET_EPOCH, group.group_id)] = stamp
        self._initialize(group, records)

    def _initialize(self, group: ShareGroup, records: Records) -> None:
        """Note the partitions that are assigned, so that their state can be listed."""
        assigned: dict[bytes, set[int]] = {}
        for topic_id, index in (partition for share in group.target.values() for partition in share):
            assigned.setdefault(topic_id, set()).add(index)
        changed = {}
        for topic_id, indexes in assigned.items():
            known, name = group.initialized.get(topic_id), self._topics.name_of(topic_id)
            if name is not None and (known is None or not indexes <= known.partitions):
                changed[topic_id] = TopicState(name, frozenset(indexes) | (known.partitions if known else frozenset()))
        if changed:
            self._set_initialized(group, {**group.initialized, **changed}, records)

    def _set_initialized(self, group: ShareGroup, topics: dict[bytes, TopicState], records: Records) -> None:
        group.initialized = topics
        records[ShareGroupKey(ShareKeyKind.INITIALIZED, group.group_id)] = InitializedValue(dict(topics))

    def _reconcile(self, group: ShareGroup, member: ShareMember, records: Records) -> None:
        target = group.target.get(member.member_id, frozenset())
        old = member.current
        if old.epoch != group.assignment_epoch or old.assigned != target:
            previous_epoch = old.epoch if old.epoch != group.assignment_epoch else old.previous_epoch
            member.current = ShareCurrentValue(group.assignment_epoch, previous_epoch, target)
            records[ShareGroupKey(ShareKeyKind.CURRENT, group.group_id, member.member_id)] = member.current

    # -- leaving

    def _leave(self, beat: ShareHeartbeat) -> Reply:
        group = self._groups.get(beat.group_id)
        if group is None:
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {beat.group_id} is not a share group.")
        member = group.members.get(beat.member_id)
        if member is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {beat.member_id} is not a member of group {beat.group_id}.")
        result = ShareHeartbeatResult(ErrorCode.NONE, member_id=beat.member_id, member_epoch=LEAVING_EPOCH)
        return self._answer_when_written(group, self._removed(group, member), result)

    def _expire(self, group: ShareGroup, member: ShareMember) -> None:
        if group.members.get(member.member_id) is member:
            self._write(group, self._removed(group, member))
            self._on_member_expired(group.group_id, member.member_id)

    def _removed(self, group: ShareGroup, member: ShareMember) -> Records:
        """Take a member out and bump the epoch; the others learn of it with their next heartbeat."""
        del group.members[member.member_id]
        group.target.pop(member.member_id, None)
        member.session.cancel()
        records = _tombstones(group.group_id, member.member_id)
        group.epoch += 1
        if not group.members:
            # Nobody is left to compute a target for: the empty one is up to date.
            group.assignment_epoch = group.epoch
            records[ShareGroupKey(ShareKeyKind.TARGET_EPOCH, group.group_id)] = TargetEpochValue(group.epoch)
        records[ShareGroupKey(ShareKeyKind.GROUP, group.group_id)] = ShareEpochValue(group.epoch, group.metadata_hash)
        return records

    # -- administration

    def refusal_of_change(self, group_id: str, *, may_create: bool) -> tuple[ErrorCode, str] | None:
        """Return why the offsets of a group may not be changed now, None if they may."""
        group = self._groups.get(group_id)
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID, "The group id is empty."
        if group is None and self._is_taken(group_id):
            return ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a share group."
        if group is None and not may_create:
            return ErrorCode.GROUP_ID_NOT_FOUND, f"Share group {group_id} not found."
        if group is None and len(self._groups) >= self._config.max_groups:
            return ErrorCode.GROUP_MAX_SIZE_REACHED, self._too_many_groups()
        if group is not None and group.members:
            return ErrorCode.NON_EMPTY_GROUP, f"Share group {group_id} has {len(group.members)} members; stop them first."
        return None

    def _too_many_groups(self) -> str:
        return f"There are {self._config.max_groups} share groups (logflume.share.max.groups); delete those that are not used."

    def delete(self, group_id: str) -> Reply:
        """Delete an empty group; the reply is an ErrorCode once that is on disk. Its share partitions are not touched."""
        group = self._groups.get(group_id)
        if group is None or group.members:
            return _done(ErrorCode.NON_EMPTY_GROUP if group else ErrorCode.GROUP_ID_NOT_FOUND)
        kinds = (ShareKeyKind.TARGET_EPOCH, ShareKeyKind.INITIALIZED, ShareKeyKind.GROUP)
        del self._groups[group_id]
        written = self._write(group, {ShareGroupKey(kind, group_id): None for kind in kinds}, is_last=True)
        reply = Reply()

        def on_written(offset: int) -> None:
            if offset < 0:
                self._groups.setdefault(group_id, group)
            reply.set(ErrorCode.NONE if offset >= 0 else ErrorCode.COORDINATOR_NOT_AVAILABLE)

        written.then(on_written)
        return reply

    def initialize(self, group_id: str, topics: dict[bytes, TopicState]) -> Reply:
        """Note that partitions have state in a group, which is made if it does not exist; the reply is an ErrorCode.

        The group must not have members.
        """
        group = self._groups.setdefault(group_id, ShareGroup(group_id))
        assert not group.members, group_id
        merged = dict(group.initialized)
        for topic_id, topic in topics.items():
            known = merged.get(topic_id)
            merged[topic_id] = replace(topic, partitions=topic.partitions | known.partitions) if known else topic
        records: Records = {ShareGroupKey(ShareKeyKind.GROUP, group_id): ShareEpochValue(group.epoch, group.metadata_hash)}
        self._set_initialized(group, merged, records)
        return self._written(group, records)

    def forget_topics(self, group_id: str, topic_ids: Iterable[bytes]) -> Reply:
        """Note that a group has no state of topics any more; the reply is an ErrorCode."""
        group, gone = self._groups[group_id], frozenset(topic_ids)
        records: Records = {}
        self._set_initialized(group, {t: state for t, state in group.initialized.items() if t not in gone}, records)
        return self._written(group, records)

    def on_topics_deleted(self) -> None:
        """Forget topics that are gone."""
        for group in list(self._groups.values()):
            gone = [topic_id for topic_id in group.initialized if self._topics.name_of(topic_id) is None]
            if gone:
                self.forget_topics(group.group_id, gone)

    # -- journal

    def _answer_when_written(self, group: ShareGroup, records: Records, result: ShareHeartbeatResult) -> Reply:
        if not records and not group.is_dirty:
            return _done(result)
        reply = Reply()
        failed = replace(result, error=ErrorCode.COORDINATOR_NOT_AVAILABLE, assigned=None)
        self._write(group, records).then(lambda offset: reply.set(result if offset >= 0 else failed))
        return reply

    def _written(self, group: ShareGroup, records: Records) -> Reply:
        reply = Reply()
        self._write(group, records).then(
            lambda offset: reply.set(ErrorCode.NONE if offset >= 0 else ErrorCode.COORDINATOR_NOT_AVAILABLE)
        )
        return reply

    def _write(self, group: ShareGroup, records: Records, *, is_last: bool = False) -> Reply:
        """Append records; after a failure the next write holds the whole group."""
        if group.is_dirty and not is_last:
            records = records | _everything(group)
            group.is_dirty = False
        now_ms = self._clock.wall_ms()
        encoded = [
            JournalRecord(encode_share_group_key(key), None if value is None else encode_share_group_value(value), now_ms)
            for key, value in records.items()
        ]
        written = self._journal.append(partition_of(group.group_id, self._journal.partition_count), encoded)

        def on_written(base_offset: int) -> None:
            if base_offset < 0:
                group.is_dirty = True

        written.then(on_written)
        return written


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


def _check_epoch(member: ShareMember, beat: ShareHeartbeat) -> None:
    """Raise Refused FENCED_MEMBER_EPOCH unless the epoch is the member's, or that before a response which was lost."""
    if beat.member_epoch in (0, member.current.epoch, member.current.previous_epoch):
        return
    side = "smaller" if beat.member_epoch < member.current.epoch else "greater"
    raise Refused(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The share group member has a {side} member epoch ({beat.member_epoch}) than the one known by the group "
        f"coordinator ({member.current.epoch}). The member must abandon all its partitions and rejoin.",
    )


def _tombstones(group_id: str, member_id: str) -> Records:
    kinds = (ShareKeyKind.CURRENT, ShareKeyKind.TARGET, ShareKeyKind.MEMBER)
    return {ShareGroupKey(kind, group_id, member_id): None for kind in kinds}


def _everything(group: ShareGroup) -> Records:
    group_id = group.group_id
    records: Records = {}
    for member in group.members.values():
        records[ShareGroupKey(ShareKeyKind.MEMBER, group_id, member.member_id)] = member.metadata
        records[ShareGroupKey(ShareKeyKind.CURRENT, group_id, member.member_id)] = member.current
    for member_id, partitions in group.target.items():
        records[ShareGroupKey(ShareKeyKind.TARGET, group_id, member_id)] = TargetValue(partitions)
    records[ShareGroupKey(ShareKeyKind.TARGET_EPOCH, group_id)] = TargetEpochValue(group.assignment_epoch)
    records[ShareGroupKey(ShareKeyKind.INITIALIZED, group_id)] = InitializedValue(dict(group.initialized))
    records[ShareGroupKey(ShareKeyKind.GROUP, group_id)] = ShareEpochValue(group.epoch, group.metadata_hash)
    return records


def _restore(group: ShareGroup, member_id: str, value: ShareGroupValue) -> None:
    """Put one replayed value in its place; parts of a member without its metadata are left out."""
    member = group.members.get(member_id)
    if isinstance(value, ShareEpochValue):
        group.epoch, group.metadata_hash = value.epoch, value.metadata_hash
    elif isinstance(value, TargetEpochValue):
        group.assignment_epoch = value.epoch
    elif isinstance(value, InitializedValue):
        group.initialized = dict(value.topics)
    elif isinstance(value, TargetValue) and member is not None:
        group.target[member_id] = value.partitions
    elif isinstance(value, ShareCurrentValue) and member is not None:
        member.current = value


def _done(value: object) -> Reply:
    reply = Reply()
    reply.set(value)
    return reply
