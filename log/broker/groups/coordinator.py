"""The group coordinator: every group of this broker, its offsets, and their journal `__consumer_offsets`.

A state machine (architecture, D2): no sockets, files, threads or clocks of its own. Each group lives in one partition of
the journal, chosen as Kafka does. After a crash `load` rebuilds all that was acknowledged: groups that were stable go on without
a rebalance, offsets of open transactions wait for their markers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ...errors import DecodeError
from ...protocol.errors import ErrorCode
from ..deadline import Deadline
from ..seams import Clock, Journal, JournalRecord, ReplayedBatch, Reply, Timers
from .classic_group import ClassicGroup, GroupState
from .config import GroupConfig
from .consumer_group import ConsumerGroup
from .consumer_groups import ConsumerGroups, ConsumerHeartbeat, HeartbeatResult, restore
from .consumer_records import ConsumerKey, ConsumerValue, decode_consumer_key, decode_consumer_value
from .journal_records import (
    GroupKey,
    GroupValue,
    OffsetKey,
    decode_group_value,
    decode_key,
    decode_offset_value,
    encode_group_key,
    encode_group_value,
)
from .membership import JoinRequest, JoinResult, Membership, SyncRequest, SyncResult
from .offset_commits import (
    Committer,
    NewOffset,
    OffsetCommits,
    TxnProducer,
    refuse_commit,
    refuse_consumer_commit,
    topics_in_use,
    write_error,
)
from .offsets import CommittedOffset, Offsets, OffsetStore, TopicPartition
from .partitioner import partition_of
from .ports import GroupSettings, Topics

OFFSETS_TOPIC = "__consumer_offsets"


class GroupCoordinator:
    """All groups of one broker. Every method runs on the broker's thread; replies are set there too."""

    def __init__(
        self,
        config: GroupConfig,
        clock: Clock,
        timers: Timers,
        journal: Journal,
        topics: Topics,
        settings: GroupSettings,
        *,
        new_id: Callable[[], str],
    ) -> None:
        """`new_id` returns text that is never returned twice, also over restarts (a UUID)."""
        self.config, self._clock, self._journal = config, clock, journal
        self._topics, self.settings = topics, settings
        self._groups: dict[str, ClassicGroup] = {}
        self._consumer_groups: dict[str, ConsumerGroup] = {}
        self._consumer_rules = ConsumerGroups(config, settings, clock, timers, journal, topics, new_id)
        self._membership = Membership(config, clock, timers, new_id, self._store_group)
        self._offsets = OffsetStore()
        self._commits = OffsetCommits(config, clock, journal, topics, self._offsets)
        self._expiry = Deadline(clock, timers, self._on_expiry)

    # -- life

    def load(self) -> None:
        """Rebuild everything from the journal and start the timers. Raises DecodeError when a record cannot be read."""
        values: dict[str, GroupValue | None] = {}
        consumer_values: dict[ConsumerKey, ConsumerValue] = {}
        for partition in range(self._journal.partition_count):
            for batch in self._journal.replay(partition):
                try:
                    self._replay(partition, batch, values, consumer_values)
                except DecodeError as error:
                    raise DecodeError(f"{OFFSETS_TOPIC}-{partition}, offset {batch.base_offset}: {error}") from error
        for group_id, value in values.items():
            if value is not None:
                group = self._group_or_new(group_id)
                group.restore(value, lambda member, group=group: self._membership.give_session(group, member))  # type: ignore[misc]
        self._restore_consumer_groups(consumer_values)
        for group_id in self._offsets.group_ids() - self._consumer_groups.keys():
            self._group_or_new(group_id)
        self._expiry.set_after(self.config.offsets_retention_check_interval_ms)

    def _restore_consumer_groups(self, values: dict[ConsumerKey, ConsumerValue]) -> None:
        by_group: dict[str, dict[ConsumerKey, ConsumerValue]] = {}
        for key, value in values.items():
            by_group.setdefault(key.group_id, {})[key] = value
        for group_id, own in by_group.items():
            group = self._consumer_groups[group_id] = ConsumerGroup(group_id)
            restore(group, own, lambda member, group=group: self._consumer_rules.give_timers(group, member))  # type: ignore[misc]

    def _replay(
        self,
        partition: int,
        batch: ReplayedBatch,
        values: dict[str, GroupValue | None],
        consumer_values: dict[ConsumerKey, ConsumerValue],
    ) -> None:
        if batch.marker is not None:
            self.on_marker(partition, batch.producer_id, is_commit=batch.marker)
            return
        for record in batch.records:
            key = decode_key(record.key)
            if isinstance(key, GroupKey):
                values[key.group_id] = None if record.value is None else decode_group_value(record.value)
            elif isinstance(key, OffsetKey):
                self._replay_offset(key, record.value, batch)
            else:
                _replay_consumer_record(record, consumer_values)

    def _replay_offset(self, key: OffsetKey, data: bytes | None, batch: ReplayedBatch) -> None:
        where = (key.topic, key.partition)
        if data is None:
            self._offsets.forget(key.group_id, [where])
            return
        value = decode_offset_value(data)
        offset = CommittedOffset(value.offset, value.leader_epoch, value.metadata, value.commit_timestamp_ms, batch.base_offset)
        if batch.is_transactional:
            self._offsets.hold(batch.producer_id, key.group_id, {where: offset})
        else:
            self._offsets.commit(key.group_id, {where: offset})

    def close(self) -> None:
        """Stop all timers; nothing is called back any more."""
        self._expiry.cancel()
        for group in self._groups.values():
            group.join_deadline.cancel()
            group.sync_deadline.cancel()
            for deadline in [*group.pending.values(), *(member.session for member in group.members.values())]:
                deadline.cancel()
        for consumer_group in self._consumer_groups.values():
            for consumer in consumer_group.members.values():
                consumer.session.cancel()
                consumer.revocation.cancel()

    # -- groups

    def journal_partition(self, group_id: str) -> int:
        """Return the partition of `__consumer_offsets` that a group lives in."""
        return partition_of(group_id, self._journal.partition_count)

    def group(self, group_id: str) -> ClassicGroup | None:
        return self._groups.get(group_id)

    def groups(self) -> Iterable[ClassicGroup]:
        return self._groups.values()

    def consumer_group(self, group_id: str) -> ConsumerGroup | None:
        return self._consumer_groups.get(group_id)

    def consumer_groups(self) -> Iterable[ConsumerGroup]:
        return self._consumer_groups.values()

    def consumer_heartbeat(self, beat: ConsumerHeartbeat) -> Reply:
        """Join, stay in or leave a group of the consumer protocol; the reply is a HeartbeatResult.

        A classic group without members becomes one of the consumer protocol, with its offsets.
        """
        group = self._consumer_groups.get(beat.group_id)
        if group is not None:
            return self._consumer_rules.heartbeat(group, beat)
        classic = self._groups.get(beat.group_id)
        if not beat.group_id:
            return _now(HeartbeatResult(ErrorCode.INVALID_REQUEST, "GroupId can't be empty.", beat.member_id))
        if beat.member_epoch != 0 or (classic is not None and classic.state is not GroupState.EMPTY):
            text = f"Group {beat.group_id} is not a consumer group."
            return _now(HeartbeatResult(ErrorCode.GROUP_ID_NOT_FOUND, text, beat.member_id))
        group = ConsumerGroup(beat.group_id)
        reply = self._consumer_rules.heartbeat(group, beat)
        if group.members:
            self._consumer_groups[beat.group_id] = group
            if classic is not None:
                self._retire(classic)
        return reply

    def _retire(self, classic: ClassicGroup) -> None:
        """Forget an empty classic group whose id goes on as a consumer group; its offsets stay."""
        del self._groups[classic.group_id]
        for deadline in classic.pending.values():
            deadline.cancel()
        if not classic.is_simple:
            tombstone = JournalRecord(encode_group_key(GroupKey(classic.group_id)), None, self._clock.wall_ms())
            self._journal.append(self.journal_partition(classic.group_id), [tombstone])

    def join(self, group_id: str, request: JoinRequest) -> Reply:
        """Join a group, making it when a new member names it; the reply is a JoinResult."""
        if not group_id:
            return _now(JoinResult(ErrorCode.INVALID_GROUP_ID, request.member_id))
        consumer_group = self._consumer_groups.get(group_id)
        if consumer_group is not None:
            if consumer_group.members:
                return _now(JoinResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id))
            # Without members it may become a classic group again; its offsets stay.
            del self._consumer_groups[group_id]
            self._journal.append(self.journal_partition(group_id), self._consumer_rules.tombstones(consumer_group))
        group = self._groups.get(group_id)
        if group is None:
            if request.member_id:
                return _now(JoinResult(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id))
            group = self._membership.new_group(group_id)
        reply = self._membership.join(group, request)
        if group.members or group.pending:
            self._groups[group_id] = group
        return reply

    def sync(self, group_id: str, request: SyncRequest) -> Reply:
        """Ask for the assignment; the reply is a SyncResult."""
        if not group_id:
            return _now(SyncResult(ErrorCode.INVALID_GROUP_ID))
        group = self._groups.get(group_id)
        return self._membership.sync(group, request) if group else _now(SyncResult(ErrorCode.UNKNOWN_MEMBER_ID))

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self._groups.get(group_id)
        return self._membership.heartbeat(group, member_id, instance_id, generation) if group else ErrorCode.UNKNOWN_MEMBER_ID

    def leave(self, group_id: str, leaving: Sequence[tuple[str, str | None]]) -> Reply:
        """Remove members; the reply is a list of ErrorCodes aligned with `leaving`, once an empty group is on disk as such."""
        group = self._groups.get(group_id)
        if not group_id or group is None:
            error = ErrorCode.UNKNOWN_MEMBER_ID if group_id else ErrorCode.INVALID_GROUP_ID
            return _now([error] * len(leaving))
        results = self._membership.leave(group, leaving)
        if group.state is not GroupState.EMPTY or group.last_write is None:
            return _now(results)
        reply = Reply()
        group.last_write.then(lambda _: reply.set(results))
        return reply

    def delete_group(self, group_id: str) -> Reply:
        """Delete an empty group and its offsets; the reply is an ErrorCode, once that is on disk."""
        reply = Reply()
        group = self._holder(group_id)
        if group is None or group.state != GroupState.EMPTY:
            reply.set(ErrorCode.NON_EMPTY_GROUP if group else ErrorCode.GROUP_ID_NOT_FOUND)
            return reply
        if group.last_write is not None and not group.last_write.is_done:
            # Offsets on their way to disk must be there before they are removed.
            group.last_write.then(lambda _: self.delete_group(group_id).then(reply.set))
            return reply
        committed = self._offsets.committed(group_id)
        if isinstance(group, ConsumerGroup):
            group.is_dead, tombstones = True, self._consumer_rules.tombstones(group)
        else:
            group.state = GroupState.DEAD
            tombstones = [JournalRecord(encode_group_key(GroupKey(group_id)), None, self._clock.wall_ms())]

        def on_written(base_offset: int) -> None:
            if base_offset < 0:
                _revive(group)
                reply.set(write_error(base_offset))
                return
            self._offsets.forget(group_id, list(committed))
            self._offsets.forget_pending(group_id)
            self._forget(group)
            reply.set(ErrorCode.NONE)

        self._commits.write_tombstones(group, self.journal_partition(group_id), committed, more=tombstones).then(on_written)
        return reply

    def _forget(self, group: ClassicGroup | ConsumerGroup) -> None:
        if isinstance(group, ConsumerGroup):
            if self._consumer_groups.get(group.group_id) is group:
                del self._consumer_groups[group.group_id]
            return
        if self._groups.get(group.group_id) is group:
            del self._groups[group.group_id]
        for deadline in group.pending.values():
            deadline.cancel()

    # -- offsets

    def commit_offsets(
        self,
        group_id: str,
        committer: Committer,
        offsets: Mapping[TopicPartition, NewOffset],
        *,
        txn: TxnProducer | None = None,
    ) -> Reply:
        """Commit offsets; the reply is an ErrorCode per partition. A group that only holds offsets is made on the way."""
        is_transactional = txn is not None
        group = self._holder(group_id)
        if group is None:
            if committer.generation >= 0:
                return _now(dict.fromkeys(offsets, ErrorCode.ILLEGAL_GENERATION))
            group = self._membership.new_group(group_id)
            group.state_since_ms = self._clock.wall_ms()
            self._groups[group_id] = group
        if isinstance(group, ConsumerGroup):
            refusal = refuse_consumer_commit(group, committer, is_transactional=is_transactional)
        else:
            refusal = refuse_commit(group, committer, is_transactional=is_transactional)
            if not refusal and committer.member_id in group.members:
                group.members[committer.member_id].touch()
        return self._commits.commit(group, self.journal_partition(group_id), offsets, refusal=refusal, txn=txn)

    def refuse_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Return why a member of a consumer group may not fetch offsets: it is unknown or its epoch is old (OffsetFetch 9)."""
        group = self._consumer_groups.get(group_id)
        if group is None or (not member_id and member_epoch < 0):
            return ErrorCode.NONE
        member = group.members.get(member_id or "")
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if member.current.epoch == member_epoch else ErrorCode.STALE_MEMBER_EPOCH

    def committed_offsets(self, group_id: str) -> Offsets:
        """Return all committed offsets of a group; none for a group that does not exist."""
        return self._offsets.committed(group_id)

    def unstable_partitions(self, group_id: str) -> set[TopicPartition]:
        """Return the partitions of which an open transaction holds an offset."""
        return self._offsets.pending_partitions(group_id)

    def delete_offsets(self, group_id: str, partitions: Sequence[TopicPartition]) -> Reply:
        """Delete offsets; the reply is an ErrorCode for the whole, or a dict of one per partition."""
        group = self._holder(group_id)
        if group is None or group.is_dead:
            return _now(ErrorCode.GROUP_ID_NOT_FOUND)
        if isinstance(group, ClassicGroup) and group.members and group.protocol_type != "consumer":
            return _now(ErrorCode.NON_EMPTY_GROUP)
        topics = self._topics_in_use(group)
        return self._commits.delete(group, self.journal_partition(group_id), partitions, topics=topics)

    def on_marker(self, partition: int, producer_id: int, *, is_commit: bool) -> None:
        """Hear that a transaction's marker is on disk in a partition of `__consumer_offsets`."""
        groups = [g for g in self._offsets.groups_of_transaction(producer_id) if self.journal_partition(g) == partition]
        self._offsets.end_transaction(producer_id, groups, is_commit=is_commit)

    def on_topics_deleted(self, topics: Iterable[str]) -> None:
        """Remove the offsets of topics that are gone."""
        names = frozenset(topics)
        for group in self._holders():
            gone = [partition for partition in self._offsets.committed(group.group_id) if partition[0] in names]
            if gone:
                self._commits.write_tombstones(group, self.journal_partition(group.group_id), gone)
                self._offsets.forget(group.group_id, gone)

    # -- inside

    def _group_or_new(self, group_id: str) -> ClassicGroup:
        if group_id not in self._groups:
            self._groups[group_id] = self._membership.new_group(group_id)
        return self._groups[group_id]

    def _holder(self, group_id: str) -> ClassicGroup | ConsumerGroup | None:
        return self._consumer_groups.get(group_id) or self._groups.get(group_id)

    def _holders(self) -> list[ClassicGroup | ConsumerGroup]:
        return [*self._groups.values(), *self._consumer_groups.values()]

    def _topics_in_use(self, group: ClassicGroup | ConsumerGroup) -> frozenset[str] | None:
        return group.topics_in_use(self._topics) if isinstance(group, ConsumerGroup) else topics_in_use(group)

    def _store_group(self, group: ClassicGroup, assignments: Mapping[str, bytes]) -> Reply:
        """Write a group to the journal; the reply is an ErrorCode."""
        record = JournalRecord(
            encode_group_key(GroupKey(group.group_id)),
            encode_group_value(group.to_stored(assignments)),
            self._clock.wall_ms(),
        )
        group.last_write = self._journal.append(self.journal_partition(group.group_id), [record])
        reply = Reply()
        group.last_write.then(lambda offset: reply.set(ErrorCode.COORDINATOR_NOT_AVAILABLE if offset < 0 else ErrorCode.NONE))
        return reply

    def _on_expiry(self) -> None:
        """Remove offsets past their retention and groups that nothing is left of."""
        self._expiry.set_after(self.config.offsets_retention_check_interval_ms)
        for group in self._holders():
            old = self._expired(group)
            if old:
                self._commits.write_tombstones(group, self.journal_partition(group.group_id), old)
                self._offsets.forget(group.group_id, old)
            has_offsets = self._offsets.committed(group.group_id) or self._offsets.pending_partitions(group.group_id)
            is_awaited = isinstance(group, ClassicGroup) and group.pending
            if group.state == GroupState.EMPTY and not has_offsets and not is_awaited:
                self.delete_group(group.group_id)

    def _expired(self, group: ClassicGroup | ConsumerGroup) -> list[TopicPartition]:
        """Return the offsets that expire: all old ones of an empty group since it is empty, else those nobody reads."""
        limit_ms = self._clock.wall_ms() - self.config.offsets_retention_ms
        old = self._offsets.older_than(group.group_id, limit_ms)
        if isinstance(group, ConsumerGroup):
            in_use = group.topics_in_use(self._topics)
            return [partition for partition in old if partition[0] not in in_use]
        if group.is_simple:
            return old
        if group.state is GroupState.EMPTY:
            return old if group.state_since_ms <= limit_ms else []
        topics = topics_in_use(group) if group.state is GroupState.STABLE else None
        return [] if topics is None else [partition for partition in old if partition[0] not in topics]


def _revive(group: ClassicGroup | ConsumerGroup) -> None:
    if isinstance(group, ConsumerGroup):
        group.is_dead = False
    else:
        group.state = GroupState.EMPTY


def _replay_consumer_record(record: JournalRecord, values: dict[ConsumerKey, ConsumerValue]) -> None:
    key = decode_consumer_key(record.key)
    if key is None:
        return
    if record.value is None:
        values.pop(key, None)
    else:
        values[key] = decode_consumer_value(key.kind, record.value)


def _now(value: object) -> Reply:
    reply = Reply()
    reply.set(value)
    return reply
