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
from .offset_commits import Committer, NewOffset, OffsetCommits, TxnProducer, topics_in_use, write_error
from .offsets import CommittedOffset, Offsets, OffsetStore, TopicPartition
from .partitioner import partition_of
from .ports import Topics

OFFSETS_TOPIC = "__consumer_offsets"


class GroupCoordinator:
    """All groups of one broker. Every method runs on the broker's thread; replies are set there too."""

    def __init__(
        self, config: GroupConfig, clock: Clock, timers: Timers, journal: Journal, topics: Topics, *, new_id: Callable[[], str]
    ) -> None:
        """`new_id` returns text that is never returned twice, also over restarts (a UUID)."""
        self._config, self._clock, self._journal = config, clock, journal
        self._groups: dict[str, ClassicGroup] = {}
        self._membership = Membership(config, clock, timers, new_id, self._store_group)
        self._offsets = OffsetStore()
        self._commits = OffsetCommits(config, clock, journal, topics, self._offsets)
        self._expiry = Deadline(clock, timers, self._on_expiry)

    # -- life

    def load(self) -> None:
        """Rebuild everything from the journal and start the timers. Raises DecodeError when a record cannot be read."""
        values: dict[str, GroupValue | None] = {}
        for partition in range(self._journal.partition_count):
            for batch in self._journal.replay(partition):
                try:
                    self._replay(partition, batch, values)
                except DecodeError as error:
                    raise DecodeError(f"{OFFSETS_TOPIC}-{partition}, offset {batch.base_offset}: {error}") from error
        for group_id, value in values.items():
            if value is not None:
                group = self._group_or_new(group_id)
                group.restore(value, lambda member, group=group: self._membership.give_session(group, member))  # type: ignore[misc]
        for group_id in self._offsets.group_ids():
            self._group_or_new(group_id)
        self._expiry.set_after(self._config.offsets_retention_check_interval_ms)

    def _replay(self, partition: int, batch: ReplayedBatch, values: dict[str, GroupValue | None]) -> None:
        if batch.marker is not None:
            self.on_marker(partition, batch.producer_id, is_commit=batch.marker)
            return
        for record in batch.records:
            key = decode_key(record.key)
            if isinstance(key, GroupKey):
                values[key.group_id] = None if record.value is None else decode_group_value(record.value)
            elif isinstance(key, OffsetKey):
                self._replay_offset(key, record.value, batch)

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

    # -- groups

    def journal_partition(self, group_id: str) -> int:
        """Return the partition of `__consumer_offsets` that a group lives in."""
        return partition_of(group_id, self._journal.partition_count)

    def group(self, group_id: str) -> ClassicGroup | None:
        return self._groups.get(group_id)

    def groups(self) -> Iterable[ClassicGroup]:
        return self._groups.values()

    def join(self, group_id: str, request: JoinRequest) -> Reply:
        """Join a group, making it when a new member names it; the reply is a JoinResult."""
        if not group_id:
            return _now(JoinResult(ErrorCode.INVALID_GROUP_ID, request.member_id))
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
        group = self._groups.get(group_id)
        if group is None or group.state is not GroupState.EMPTY:
            reply.set(ErrorCode.NON_EMPTY_GROUP if group else ErrorCode.GROUP_ID_NOT_FOUND)
            return reply
        if group.last_write is not None and not group.last_write.is_done:
            # Offsets on their way to disk must be there before they are removed.
            group.last_write.then(lambda _: self.delete_group(group_id).then(reply.set))
            return reply
        committed = self._offsets.committed(group_id)
        group.state = GroupState.DEAD
        tombstone = JournalRecord(encode_group_key(GroupKey(group_id)), None, self._clock.wall_ms())

        def on_written(base_offset: int) -> None:
            if base_offset < 0:
                group.state = GroupState.EMPTY
                reply.set(write_error(base_offset))
                return
            self._offsets.forget(group_id, list(committed))
            self._offsets.forget_pending(group_id)
            if self._groups.get(group_id) is group:
                del self._groups[group_id]
            for deadline in group.pending.values():
                deadline.cancel()
            reply.set(ErrorCode.NONE)

        self._commits.write_tombstones(group, self.journal_partition(group_id), committed, more=(tombstone,)).then(on_written)
        return reply

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
        group = self._groups.get(group_id)
        if group is None:
            if committer.generation >= 0:
                return _now(dict.fromkeys(offsets, ErrorCode.ILLEGAL_GENERATION))
            group = self._membership.new_group(group_id)
            group.state_since_ms = self._clock.wall_ms()
            self._groups[group_id] = group
        return self._commits.commit(group, self.journal_partition(group_id), committer, offsets, txn=txn)

    def committed_offsets(self, group_id: str) -> Offsets:
        """Return all committed offsets of a group; none for a group that does not exist."""
        return self._offsets.committed(group_id)

    def unstable_partitions(self, group_id: str) -> set[TopicPartition]:
        """Return the partitions of which an open transaction holds an offset."""
        return self._offsets.pending_partitions(group_id)

    def delete_offsets(self, group_id: str, partitions: Sequence[TopicPartition]) -> Reply:
        """Delete offsets; the reply is an ErrorCode for the whole, or a dict of one per partition."""
        group = self._groups.get(group_id)
        if group is None or group.state is GroupState.DEAD:
            return _now(ErrorCode.GROUP_ID_NOT_FOUND)
        if group.members and group.protocol_type != "consumer":
            return _now(ErrorCode.NON_EMPTY_GROUP)
        return self._commits.delete(group, self.journal_partition(group_id), partitions)

    def on_marker(self, partition: int, producer_id: int, *, is_commit: bool) -> None:
        """Hear that a transaction's marker is on disk in a partition of `__consumer_offsets`."""
        groups = [g for g in self._offsets.groups_of_transaction(producer_id) if self.journal_partition(g) == partition]
        self._offsets.end_transaction(producer_id, groups, is_commit=is_commit)

    def on_topics_deleted(self, topics: Iterable[str]) -> None:
        """Remove the offsets of topics that are gone."""
        names = frozenset(topics)
        for group in list(self._groups.values()):
            gone = [partition for partition in self._offsets.committed(group.group_id) if partition[0] in names]
            if gone:
                self._commits.write_tombstones(group, self.journal_partition(group.group_id), gone)
                self._offsets.forget(group.group_id, gone)

    # -- inside

    def _group_or_new(self, group_id: str) -> ClassicGroup:
        if group_id not in self._groups:
            self._groups[group_id] = self._membership.new_group(group_id)
        return self._groups[group_id]

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
        self._expiry.set_after(self._config.offsets_retention_check_interval_ms)
        for group in list(self._groups.values()):
            old = self._expired(group)
            if old:
                self._commits.write_tombstones(group, self.journal_partition(group.group_id), old)
                self._offsets.forget(group.group_id, old)
            has_offsets = self._offsets.committed(group.group_id) or self._offsets.pending_partitions(group.group_id)
            if group.state is GroupState.EMPTY and not has_offsets and not group.pending:
                self.delete_group(group.group_id)

    def _expired(self, group: ClassicGroup) -> list[TopicPartition]:
        """Return the offsets that expire: all old ones of an empty group since it is empty, else those nobody reads."""
        limit_ms = self._clock.wall_ms() - self._config.offsets_retention_ms
        old = self._offsets.older_than(group.group_id, limit_ms)
        if group.is_simple:
            return old
        if group.state is GroupState.EMPTY:
            return old if group.state_since_ms <= limit_ms else []
        topics = topics_in_use(group) if group.state is GroupState.STABLE else None
        return [] if topics is None else [partition for partition in old if partition[0] not in topics]


def _now(value: object) -> Reply:
    reply = Reply()
    reply.set(value)
    return reply
