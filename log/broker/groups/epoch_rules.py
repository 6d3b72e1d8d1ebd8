"""The machine of groups with epochs: epochs, targets, timers and records of the consumer, share and streams protocols.

Each protocol is a policy on it: what a heartbeat says, how a target is computed, how a member moves towards it.

What a member hears is on disk when it hears it. Memory goes ahead: what one member gave up may go to the next in a record right
behind, and the order of the journal keeps that right. After a failed write the next one holds the whole group.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from logflume.log.broker.partitioner import partition_of
from logflume.log.broker.ports import Clock, GroupSettings, Journal, JournalRecord, Offload, Timers, Topics, do_at_once
from logflume.log.broker.replies import Reply
from logflume.log.broker.turns.deadline import Deadline
from logflume.log.protocol.errors import ErrorCode

from .config import GroupConfig
from .epoch_records import KEY_VERSIONS, OF_MEMBERS, EpochKey, GroupKind, Role, TargetEpochValue, encode_epoch_key
from .epochs import Current, EpochGroup, EpochMember, hash_topics
from .refused import Refused

Records = dict[tuple[Role, str], Any]
"""What is to be written of one group, by role and member ("" for the whole group); None for a removal."""

Group = TypeVar("Group", bound=EpochGroup[Any, Any])
Member = TypeVar("Member", bound=EpochMember[Any, Any])


ASSIGNED_AT_ONCE = 500
"""Members and partitions of a target that is computed on the loop."""
ATTEMPTS = 2
"""Targets that a heartbeat waits for, as members may come while the first one is computed."""
_log = logging.getLogger("logflume.broker")


@dataclass(frozen=True, slots=True)
class Assignment:
    """A target to be computed. `size`: how many members and partitions; `compute` shares nothing that changes."""

    size: int
    compute: Callable[[], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class _Target:
    """What each member is to have, and the records of those that have something else now, encoded."""

    shares: Mapping[str, Any]
    changed: Mapping[str, _Encoded]


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A value that is encoded already."""

    data: bytes


class EpochRules(ABC, Generic[Group, Member]):
    """The rules, over groups that are kept elsewhere. Holds no state of its own."""

    kind: ClassVar[GroupKind]

    def __init__(
        self,
        config: GroupConfig,
        settings: GroupSettings,
        clock: Clock,
        timers: Timers,
        journal: Journal,
        topics: Topics,
        offload: Offload,
    ) -> None:
        self._config, self._settings, self._clock, self._timers = config, settings, clock, timers
        self._journal, self._topics, self._offload = journal, topics, offload

    # -- what a protocol says

    @abstractmethod
    def group_value(self, group: Group) -> object:
        """Return the record of the group itself."""

    @abstractmethod
    def encode_value(self, value: Any) -> bytes: ...

    @abstractmethod
    def assignment(self, group: Group) -> Assignment:
        """Return the work of computing what each member is to have, by id."""

    def on_assigned(self, group: Group, records: Records) -> None:
        """Hear that there is a new target; adds to `records` what changes with it."""

    def own_values(self, group: Group) -> Records:
        """Return the records that only this protocol has."""
        return {}

    def session_ms(self, group: Group, member: Member) -> int:
        """Return how long a member may be silent."""
        return self.setting("session.timeout.ms", group.group_id)

    def give_up_ms(self, member: Member) -> int | None:
        """Return how long a member has for giving up what it was told to, None if there is nothing."""
        return None

    def on_empty(self, group: Group) -> None:
        """Hear that the last member left."""

    def on_expired(self, group: Group, member: Member) -> None:
        """Hear that a member was removed as it was silent, or gave up nothing."""

    @property
    @abstractmethod
    def max_size(self) -> int:
        """Most members of a group."""

    # -- members

    def setting(self, name: str, group_id: str) -> int:
        """Return a setting of a group, by its name without the protocol."""
        return self._settings.number(f"{self.kind.lower()}.{name}", group_id)

    def check_room(self, group: Group) -> None:
        """Raise Refused GROUP_MAX_SIZE_REACHED if the group is full."""
        if len(group.members) >= self.max_size:
            text = f"The {self.kind.lower()} group has reached its maximum capacity of {self.max_size} members."
            raise Refused(ErrorCode.GROUP_MAX_SIZE_REACHED, text)

    def unknown(self, group_id: str, member_id: str) -> Refused:
        return Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group_id}.")

    def check_epoch(self, current: Current, epoch: int, *, has_only_its_own: bool) -> None:
        """Raise Refused FENCED_MEMBER_EPOCH unless the epoch is the member's, or that before a response which was lost.

        `has_only_its_own`: it says what it has, and that is nothing that it was not given.
        """
        if epoch == current.epoch or (has_only_its_own and epoch == current.previous_epoch and epoch < current.epoch):
            return
        side = "smaller" if epoch < current.epoch else "greater"
        raise Refused(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The {self.kind.lower()} group member has a {side} member epoch ({epoch}) than the one known by the group "
            f"coordinator ({current.epoch}). The member must abandon all its partitions and rejoin.",
        )

    def removed(self, group: Group, members: Iterable[Member]) -> Records:
        """Take members out and bump the epoch; the others learn of it with their next heartbeat."""
        records: Records = {}
        for member in members:
            group.remove(member)
            records |= member_tombstones(member.member_id)
        self.bump(group, records)
        if not group.members:
            # Nobody is left to compute a target for: the empty one is up to date.
            self.on_empty(group)
            group.assignment_epoch = group.epoch
            records[Role.TARGET_EPOCH, ""] = TargetEpochValue(group.epoch, group.assigned_ms)
        return records

    def drop(self, group: Group, member: Member) -> None:
        """Remove a member that was silent for too long."""
        if group.members.get(member.member_id) is member:
            self.write(group, self.removed(group, [member]))
            self.on_expired(group, member)

    def give_timers(self, group: Group, member: Member) -> Member:
        """Give a member its timers and start its session."""
        member.session = Deadline(self._clock, self._timers, lambda: self.drop(group, member))
        member.revocation = Deadline(self._clock, self._timers, lambda: self.drop(group, member))
        self.restart_timers(group, member)
        return member

    def restart_timers(self, group: Group, member: Member) -> None:
        """Begin a member's session anew; one that has to give something up gets its time for that."""
        member.session.set_after(self.session_ms(group, member))
        limit_ms = self.give_up_ms(member)
        if limit_ms is None:
            member.revocation.cancel()
        elif not member.revocation.is_set:
            member.revocation.set_after(max(limit_ms, 0))

    # -- epochs and targets

    def bump(self, group: Group, records: Records) -> None:
        group.epoch += 1
        records[Role.GROUP, ""] = self.group_value(group)

    def is_refresh_due(self, group: Group) -> bool:
        """Whether it is time to look whether the group's topics have changed."""
        elapsed_ms = self._clock.monotonic_ms() - group.refreshed_ms
        return group.refreshed_ms < 0 or elapsed_ms >= self._config.refresh_interval_ms

    def refresh(self, group: Group, records: Records, *, must_bump: bool) -> None:
        """Bump the epoch if members or topics changed."""
        if must_bump or self.is_refresh_due(group):
            group.refreshed_ms = self._clock.monotonic_ms()
            hashed = hash_topics(group.topics_in_use(self._topics), self._topics)
            if must_bump or hashed != group.metadata_hash:
                group.metadata_hash = hashed
                self.bump(group, records)

    def once_assigned(
        self, group: Group, member: Member, records: Records, go_on: Callable[[Records], Reply], failed: object
    ) -> Reply:
        """Go on once the target assignment is that of the group's epoch, as far as it may be now; the reply is that of `go_on`.

        A big one is computed off the loop, while the group goes on; `records` are written before that, and the reply is
        `failed` if they could not be, or if the member is gone when the target is there.
        """
        if not self._is_behind(group):
            return go_on(records)
        if group.assigning is None and (work := self.assignment(group)).size <= ASSIGNED_AT_ONCE:
            self._take_target(group, group.epoch, self._computed(work, group.target), records)
            return go_on(records)
        reply, written = Reply(), self.write(group, records) if records else Reply.of(0)

        def is_there(attempts_left: int) -> None:
            if group.is_dead or group.members.get(member.member_id) is not member:
                reply.set(failed)
            elif attempts_left and self._is_behind(group):
                self.assign(group).then(lambda _: is_there(attempts_left - 1))
            else:
                done = go_on({})
                written.then(lambda offset: done.then(reply.set) if offset >= 0 else reply.set(failed))

        self.assign(group).then(lambda _: is_there(ATTEMPTS - 1))
        return reply

    def _is_behind(self, group: Group) -> bool:
        return group.epoch > group.assignment_epoch and self.may_assign(group)

    def may_assign(self, group: Group) -> bool:
        """Whether the last target assignment is old enough for the next one (KIP-1263)."""
        interval_ms = self.setting("assignment.interval.ms", group.group_id)
        return not group.assigned_ms or interval_ms == 0 or self._clock.wall_ms() >= group.assigned_ms + interval_ms

    def assign(self, group: Group) -> Reply:
        """Compute a target for the group's epoch as of now, and write it; the reply is set then. One at a time for a group."""
        if group.assigning is not None:
            return group.assigning
        over, epoch, work, before = Reply(), group.epoch, self.assignment(group), dict(group.target)
        group.assigning = over
        is_big = work.size > ASSIGNED_AT_ONCE

        def finish() -> None:
            group.assigning = None
            over.set(None)

        def done(target: Any) -> None:
            if isinstance(target, Exception):
                _log.error("cannot assign partitions in group %s", group.group_id, exc_info=target)
            elif self._is_usable(group, epoch, target.shares):
                records: Records = {}
                self._take_target(group, epoch, target, records)
                self.write(group, records)
            if is_big:
                self._timers.call_later(0, finish)  # whoever waits has a turn of its own
            else:
                finish()

        (self._offload if is_big else do_at_once)(lambda: self._computed(work, before)).then(done)
        return over

    def _computed(self, work: Assignment, before: Mapping[str, Any]) -> _Target:
        """For any thread."""
        shares = work.compute()
        changed = {
            member_id: _Encoded(self.encode_value(share)) for member_id, share in shares.items() if before.get(member_id) != share
        }
        return _Target(shares, changed)

    def _is_usable(self, group: Group, epoch: int, target: Mapping[str, Any]) -> bool:
        """Whether a target that was computed meanwhile says something: members that came or left moved the epoch on, so that
        another follows; but a static one that took its own place under another id did not."""
        if group.is_dead or not group.members or epoch <= group.assignment_epoch:
            return False
        return group.epoch > epoch or target.keys() == group.members.keys()

    def _take_target(self, group: Group, epoch: int, target: _Target, records: Records) -> None:
        shares = {member_id: target.shares.get(member_id, group.target.get(member_id)) for member_id in group.members}
        records |= {(Role.TARGET, member_id): value for member_id, value in target.changed.items() if member_id in group.members}
        group.target = {member_id: share for member_id, share in shares.items() if share is not None}
        group.assignment_epoch, group.assigned_ms = epoch, self._clock.wall_ms()
        records[Role.TARGET_EPOCH, ""] = TargetEpochValue(epoch, group.assigned_ms)
        self.on_assigned(group, records)

    def wanted_ids(self, wanted: Mapping[str, Iterable[str]]) -> tuple[dict[str, frozenset[bytes]], dict[bytes, int]]:
        """Return the topics that each member wants by id, without those that do not exist, and the partitions of each."""
        counts: dict[bytes, int] = {}
        ids_of: dict[int, frozenset[bytes]] = {}
        for names in {id(names): names for names in wanted.values()}.values():  # many members want the very same
            ids = {topic_id: name for name in names if (topic_id := self._topics.id_of(name)) is not None}
            counts.update((topic_id, self._topics.partition_count(name)) for topic_id, name in ids.items())
            ids_of[id(names)] = frozenset(ids)
        return {member_id: ids_of[id(names)] for member_id, names in wanted.items()}, counts

    # -- journal

    def answer(self, group: Group, records: Records, result: object, failed: object) -> Reply:
        """Write records; the reply is `result` once they are on disk, or `failed`."""
        reply = Reply()
        if not records and not group.is_dirty and not group.owed:
            reply.set(result)
        else:
            self.write(group, records).then(lambda offset: reply.set(result if offset >= 0 else failed))
        return reply

    def write(self, group: Group, records: Records) -> Reply:
        """Append records; after a failure the next write holds the whole group. The reply is an offset, negative if it failed."""
        if group.is_dirty:
            records = records | self.everything(group)
            group.is_dirty = False
        owed, group.owed = group.owed, []
        partition = partition_of(group.group_id, self._journal.partition_count)
        written = self._journal.append(partition, [*owed, *self.encoded(group.group_id, records)])
        group.last_write = written

        def on_written(base_offset: int) -> None:
            if base_offset < 0:
                group.is_dirty, group.owed = True, owed

        written.then(on_written)
        return written

    def encoded(self, group_id: str, records: Records) -> list[JournalRecord]:
        now_ms = self._clock.wall_ms()
        return [
            JournalRecord(
                encode_epoch_key(EpochKey(self.kind, role, group_id, member_id)),
                value.data if isinstance(value, _Encoded) else None if value is None else self.encode_value(value),
                now_ms,
            )
            for (role, member_id), value in records.items()
        ]

    def tombstones(self, group: Group) -> list[JournalRecord]:
        """Return the records that remove a group from the journal."""
        keys: Records = {}
        for member_id in group.members:
            keys |= member_tombstones(member_id)
        keys |= {(role, ""): None for role in KEY_VERSIONS[self.kind] if role not in OF_MEMBERS}
        return self.encoded(group.group_id, keys)

    def everything(self, group: Group) -> Records:
        """Return all records of a group as it is."""
        records: Records = {}
        for member in group.members.values():
            records[Role.MEMBER, member.member_id] = member.metadata
            records[Role.CURRENT, member.member_id] = member.current
        records |= {(Role.TARGET, member_id): share for member_id, share in group.target.items()}
        records[Role.TARGET_EPOCH, ""] = TargetEpochValue(group.assignment_epoch, group.assigned_ms)
        records[Role.GROUP, ""] = self.group_value(group)
        return records | self.own_values(group)

    # -- after a start

    def restore(self, group: Group, values: Mapping[EpochKey, Any]) -> Group:
        """Rebuild a group from the last value of each of its keys; parts of a member without its metadata are left out."""
        of_members: dict[Role, dict[str, Any]] = {role: {} for role in OF_MEMBERS}
        for key, value in values.items():
            if key.role in OF_MEMBERS:
                of_members[key.role][key.member_id] = value
            elif key.role is Role.TARGET_EPOCH:
                group.assignment_epoch, group.assigned_ms = value.epoch, value.timestamp_ms
            else:
                self.restore_value(group, key.role, value)
        for member_id, metadata in of_members[Role.MEMBER].items():
            if self.may_keep(group):
                current = of_members[Role.CURRENT].get(member_id)
                group.add(self.give_timers(group, self.new_member(member_id, metadata, current)))
        group.target = {name: share for name, share in of_members[Role.TARGET].items() if name in group.members}
        return group

    def restore_value(self, group: Group, role: Role, value: Any) -> None:
        """Take the record of the group itself, or one that only this protocol has."""
        group.epoch, group.metadata_hash = value.epoch, value.metadata_hash

    def may_keep(self, group: Group) -> bool:
        """Whether members of a group that was restored can go on."""
        return True

    @abstractmethod
    def new_member(self, member_id: str, metadata: Any, current: Any | None) -> Member:
        """Make a member without timers; without `current` it has nothing."""


def member_tombstones(member_id: str) -> Records:
    return dict.fromkeys((role, member_id) for role in OF_MEMBERS)
