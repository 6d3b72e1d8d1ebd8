"""The group coordinator: every group of this broker, its offsets, and their journal `__consumer_offsets`.

A state machine (architecture, D2): no sockets, files, threads or clocks of its own. Each group lives in one partition of
the journal, chosen as Kafka does. After a crash `load` rebuilds all that was acknowledged: groups that were stable go on without
a rebalance, offsets of open transactions wait for their markers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from logflume.log.broker.ports import (
    Clock,
    GroupSettings,
    InternalTopics,
    Journal,
    JournalRecord,
    Offload,
    ShareStates,
    Timers,
    Topics,
    do_at_once,
)
from logflume.log.broker.replies import Reply
from logflume.log.errors import DecodeError
from logflume.log.internal_topics import OFFSETS_TOPIC
from logflume.log.protocol.errors import ErrorCode

from .classic.group import ClassicGroup, GroupState
from .classic.membership import Membership
from .classic.requests import JoinRequest, JoinResult, SyncRequest, SyncResult
from .config import GroupConfig
from .consumer.classic_members import ClassicMembers
from .consumer.group import ConsumerGroup, ConsumerMember
from .consumer.groups import ConsumerGroups, ConsumerHeartbeat, check_request
from .consumer.migration import fill_classic, may_downgrade, upgraded
from .epoch_records import GroupKind
from .epoch_rules import Records
from .heartbeats import HeartbeatResult
from .journal_records import GroupKey, encode_group_key, encode_group_value
from .offset_commits import (
    Committer,
    NewOffset,
    OffsetCommits,
    Refusal,
    TxnProducer,
    refuse_commit,
    refuse_consumer_commit,
    refuse_streams_commit,
    topics_in_use,
)
from .offsets import Offsets, OffsetStore, TopicPartition
from .refused import Refused
from .removal import Removal
from .replay import Replay
from .share import ShareGroup, ShareGroups
from .streams import StreamsGroup, StreamsGroups, StreamsHeartbeat, StreamsResult
from .streams.groups import MayCreate, TopicsMissing
from .streams.groups import check_request as check_streams_request
from .table import MAX_ID_CHARS, AnyGroup, GroupTable


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
        internal: InternalTopics,
        share_states: ShareStates,
        *,
        new_id: Callable[[], str],
        offload: Offload = do_at_once,
    ) -> None:
        """`new_id` returns text that is never returned twice, also over restarts (a UUID); `offload` computes big assignments."""
        self.config, self._clock, self._journal = config, clock, journal
        self._topics, self.settings = topics, settings
        self._share_states = share_states
        self._groups = GroupTable(config, self._forget_if_nothing)
        self._consumers = ConsumerGroups(config, settings, clock, timers, journal, topics, offload, new_id, self._downgrade)
        self._classic_members = ClassicMembers(config, self._consumers, topics, new_id, self._downgrade_in_place)
        self._streams = StreamsGroups(config, settings, clock, timers, journal, topics, offload, internal)
        self.share = ShareGroups(config, settings, clock, timers, journal, topics, offload, self._groups)
        self._membership = Membership(config, clock, timers, new_id, self._store_group, self._forget_if_nothing)
        self._offsets = OffsetStore()
        self._commits = OffsetCommits(config, clock, journal, topics, self._offsets)
        self.removal = Removal(
            config, clock, timers, topics, self._groups, self._offsets, self._commits, share_states, self._tombstones
        )

    # -- life

    def load(self) -> None:
        """Rebuild everything from the journal and start the timers. Raises DecodeError when a record cannot be read."""
        replay = Replay(self._offsets, self.on_marker)
        for partition in range(self._journal.partition_count):
            for batch in self._journal.replay(partition):
                try:
                    replay.take(partition, batch)
                except DecodeError as error:
                    raise DecodeError(f"{OFFSETS_TOPIC}-{partition}, offset {batch.base_offset}: {error}") from error
        for group_id, value in replay.classic.items():
            group = self._membership.new_group(group_id)
            group.restore(value, lambda member, group=group: self._membership.give_session(group, member))  # type: ignore[misc]
            self._groups.put(group)
            if group.members and value.leader is None:
                # It became a classic group, and was to rebalance.
                self._membership.rebalance(group)
        for group_id, values in replay.of(GroupKind.CONSUMER):
            self._groups.put(self._consumers.restore(ConsumerGroup(group_id), values))
        for group_id, values in replay.of(GroupKind.STREAMS):
            self._groups.put(self._streams.restore(self._streams.new_group(group_id), values))
        for group_id, values in replay.of(GroupKind.SHARE):
            self._groups.put(self.share.restore(ShareGroup(group_id), values))
        for group_id in self._offsets.group_ids() - set(self._groups.ids()):
            self._groups.put(self._membership.new_group(group_id))
        self.removal.begin()

    def close(self) -> None:
        """Stop all timers; nothing is called back any more."""
        self.removal.stop()
        for group in self._groups.all():
            group.cancel_timers()

    # -- groups

    def journal_partition(self, group_id: str) -> int:
        """Return the partition of `__consumer_offsets` that a group lives in."""
        return self._commits.partition_of(group_id)

    def kind_of(self, group_id: str) -> GroupKind | None:
        """Return the protocol of a group, None for one that does not exist."""
        group = self._groups.get(group_id)
        return None if group is None else group.kind

    def group(self, group_id: str) -> ClassicGroup | None:
        group = self._groups.get(group_id)
        return group if isinstance(group, ClassicGroup) else None

    def groups(self) -> Iterable[AnyGroup]:
        """All groups, of every kind."""
        return self._groups.all()

    def consumer_group(self, group_id: str) -> ConsumerGroup | None:
        group = self._groups.get(group_id)
        return group if isinstance(group, ConsumerGroup) else None

    def streams_group(self, group_id: str) -> StreamsGroup | None:
        group = self._groups.get(group_id)
        return group if isinstance(group, StreamsGroup) else None

    def streams_heartbeat(self, beat: StreamsHeartbeat, may_create: MayCreate) -> Reply:
        """Join, stay in or leave a streams group, whose internal topics are made first; the reply is a StreamsResult.

        A group of another kind without members becomes a streams group, with its offsets.
        """
        try:
            return self._streams_heartbeat(beat, None)
        except TopicsMissing as missing:
            reply, made = Reply(), self._streams.make(missing.topics, may_create)
            made.then(lambda problems: self._streams_heartbeat(beat, problems).then(reply.set))
            return reply

    def _streams_heartbeat(self, beat: StreamsHeartbeat, problems: Mapping[str, str] | None) -> Reply:
        """Raises TopicsMissing."""
        try:
            check_streams_request(beat)
            self._groups.check_alive(beat.group_id)
            self._groups.check_room(beat.group_id)
        except Refused as refused:
            return Reply.of(StreamsResult(refused.error, str(refused), beat.member_id))
        group = self._groups.get(beat.group_id)
        if isinstance(group, StreamsGroup):
            return self._streams.heartbeat(group, beat, problems)
        if group is not None and (group.members or beat.member_epoch != 0 or isinstance(group, ShareGroup)):
            text = f"Group {beat.group_id} is not a streams group."
            return Reply.of(StreamsResult(ErrorCode.GROUP_ID_NOT_FOUND, text, beat.member_id))
        if group is None and beat.member_epoch != 0:
            text = f"Streams group {beat.group_id} not found."
            return Reply.of(StreamsResult(ErrorCode.GROUP_ID_NOT_FOUND, text, beat.member_id))
        streams = self._streams.new_group(beat.group_id)
        if group is not None:
            streams.owed = self._tombstones(group)
        reply = self._streams.heartbeat(streams, beat, problems)
        if streams.members:
            self._groups.put(streams)
        return reply

    def consumer_heartbeat(self, beat: ConsumerHeartbeat) -> Reply:
        """Join, stay in or leave a group of the consumer protocol; the reply is a HeartbeatResult.

        A group of another kind without members becomes a consumer group, with its offsets; a classic one with members does
        when its members are consumers (`group.consumer.migration.policy`).
        """
        try:
            self._groups.check_alive(beat.group_id)
            group = self._consumer_group_for(beat)
        except Refused as refused:
            return Reply.of(HeartbeatResult(refused.error, str(refused), beat.member_id))
        is_new = beat.member_epoch == 0 and self._groups.get(beat.group_id) is not group
        reply = self._consumers.heartbeat(group, beat)
        if is_new and group.members:
            self._groups.put(group)
        return reply

    def _consumer_group_for(self, beat: ConsumerHeartbeat) -> ConsumerGroup:
        """Return the group of a heartbeat, a new one when a member may make it. Raises Refused."""
        group = self._groups.get(beat.group_id)
        if isinstance(group, ConsumerGroup):
            return group
        if not beat.group_id:
            raise Refused(ErrorCode.INVALID_REQUEST, "GroupId can't be empty.")
        if beat.member_epoch != 0 or isinstance(group, ShareGroup):
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {beat.group_id} is not a consumer group.")
        check_request(beat)
        if group is None or not group.members:
            self._groups.check_room(beat.group_id)
            return ConsumerGroup(beat.group_id, owed=self._tombstones(group) if group else [])
        if not isinstance(group, ClassicGroup):
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {beat.group_id} is not a consumer group.")
        return self._upgrade(group)

    def _upgrade(self, classic: ClassicGroup) -> ConsumerGroup:
        """Make a consumer group of a classic one with members. Raises Refused."""
        group = upgraded(classic, self._topics, self.config)
        self._consumers.check_room(group)
        for member in group.members.values():
            self._consumers.give_timers(group, member)
        self._membership.dissolve(classic)
        self._groups.put(group)
        # One write with what the member that came changes.
        whole = self._consumers.encoded(group.group_id, self._consumers.everything(group))
        group.owed = [self._tombstone(classic), *whole]
        return group

    def _downgrade_in_place(self, group: ConsumerGroup, records: Records) -> Reply | None:
        """Make a classic group of a consumer group without anybody leaving; what `records` speak of is removed."""
        return self._downgrade(group, (), dict.fromkeys(records))

    def _downgrade(
        self, group: ConsumerGroup, leaving: Collection[ConsumerMember], removals: Records | None = None
    ) -> Reply | None:
        """Make a classic group of a consumer group when only members of the classic protocol stay; None if others do."""
        if not may_downgrade(group, leaving, self.config):
            return None
        staying = [member for member in group.members.values() if member not in leaving]
        # Who stays has what it is to have only if nobody left and all had arrived.
        is_settled = not leaving and all(m.current.epoch == group.epoch and not m.current.state for m in staying)
        classic = self._membership.new_group(group.group_id)
        members = fill_classic(classic, group, staying, self._topics)
        group.cancel_timers()
        for member in members:
            self._membership.give_session(classic, member)
        classic.move_to(GroupState.STABLE, self._clock.wall_ms())
        self._groups.put(classic)
        value = classic.to_stored({member.member_id: member.assignment for member in members})
        if not is_settled:
            # Without a leader: whoever reads this after a crash lets the group rebalance.
            value = replace(value, leader=None)
        record = JournalRecord(encode_group_key(GroupKey(group.group_id)), encode_group_value(value), self._clock.wall_ms())
        written = self._journal.append(
            self.journal_partition(group.group_id),
            [*self._consumers.encoded(group.group_id, removals or {}), *self._consumers.tombstones(group), record],
        )
        classic.last_write = written
        group.members.clear()  # whoever waits for a target in it finds nobody
        if not is_settled:
            self._membership.rebalance(classic)
        return written

    def _tombstones(self, group: AnyGroup) -> list[JournalRecord]:
        """Return the records that remove a group from the journal."""
        if isinstance(group, ConsumerGroup):
            return self._consumers.tombstones(group)
        if isinstance(group, StreamsGroup):
            return self._streams.tombstones(group)
        if isinstance(group, ShareGroup):
            return self.share.tombstones(group)
        return [self._tombstone(group)]

    def _tombstone(self, group: AnyGroup) -> JournalRecord:
        return JournalRecord(encode_group_key(GroupKey(group.group_id)), None, self._clock.wall_ms())

    def join(self, group_id: str, request: JoinRequest) -> Reply:
        """Join a group, making it when a new member names it; the reply is a JoinResult."""
        if not 0 < len(group_id) <= MAX_ID_CHARS:
            return Reply.of(JoinResult(ErrorCode.INVALID_GROUP_ID, request.member_id))
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup) and group.members:
            return self._classic_members.join(group, request)
        if isinstance(group, ShareGroup) or (isinstance(group, StreamsGroup) and group.members):
            return Reply.of(JoinResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id))
        if group is not None and not isinstance(group, ClassicGroup):
            # Without members it may become a classic group; its offsets stay.
            self._groups.drop(group)
            self._journal.append(self.journal_partition(group_id), self._tombstones(group))
            group = None
        if group is None:
            if request.member_id:
                return Reply.of(JoinResult(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id))
            if not self._groups.has_room():
                return Reply.of(JoinResult(ErrorCode.GROUP_MAX_SIZE_REACHED))
            group = self._membership.new_group(group_id)
        reply = self._membership.join(group, request)
        if group.members or group.pending:
            self._groups.put(group)
            if not group.members:
                self._groups.announce(group)
        return reply

    def sync(self, group_id: str, request: SyncRequest) -> Reply:
        """Ask for the assignment; the reply is a SyncResult."""
        if not group_id:
            return Reply.of(SyncResult(ErrorCode.INVALID_GROUP_ID))
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup) and group.members:
            return self._classic_members.sync(group, request)
        if isinstance(group, ClassicGroup):
            return self._membership.sync(group, request)
        return Reply.of(SyncResult(ErrorCode.UNKNOWN_MEMBER_ID))

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return self._classic_members.heartbeat(group, member_id, instance_id, generation)
        if isinstance(group, ClassicGroup):
            return self._membership.heartbeat(group, member_id, instance_id, generation)
        return ErrorCode.UNKNOWN_MEMBER_ID

    def leave(self, group_id: str, leaving: Sequence[tuple[str, str | None]]) -> Reply:
        """Remove members; the reply is a list of ErrorCodes aligned with `leaving`, once an empty group is on disk as such."""
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return self._classic_members.leave(group, leaving)
        if not group_id or not isinstance(group, ClassicGroup):
            error = ErrorCode.UNKNOWN_MEMBER_ID if group_id else ErrorCode.INVALID_GROUP_ID
            return Reply.of([error] * len(leaving))
        results = self._membership.leave(group, leaving)
        if group.state is not GroupState.EMPTY or group.last_write is None:
            return Reply.of(results)
        reply = Reply()
        group.last_write.then(lambda _: reply.set(results))
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
        is_transactional = txn is not None
        group = self._groups.get(group_id)
        if group is None:
            if committer.generation >= 0:
                return Reply.of(dict.fromkeys(offsets, ErrorCode.ILLEGAL_GENERATION))
            if len(group_id) > MAX_ID_CHARS:
                return Reply.of(dict.fromkeys(offsets, ErrorCode.INVALID_GROUP_ID))
            if not self._groups.has_room():
                return Reply.of(dict.fromkeys(offsets, ErrorCode.GROUP_MAX_SIZE_REACHED))
            group = self._membership.new_group(group_id)
            group.state_since_ms = self._clock.wall_ms()
            self._groups.put(group)
        refusal: Refusal
        if isinstance(group, ShareGroup):
            refusal = ErrorCode.GROUP_ID_NOT_FOUND
        elif isinstance(group, StreamsGroup):
            refusal = refuse_streams_commit(group, committer, is_transactional=is_transactional)
        elif isinstance(group, ConsumerGroup):
            refusal = refuse_consumer_commit(group, committer, self._topics, is_transactional=is_transactional)
        elif isinstance(group, ClassicGroup):
            refusal = refuse_commit(group, committer, is_transactional=is_transactional)
            if not refusal and committer.member_id in group.members:
                group.members[committer.member_id].touch()
        return self._commits.commit(group, offsets, refusal=refusal, txn=txn)

    def refuse_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Return why a member of a consumer group may not fetch offsets: it is unknown or its epoch is old (OffsetFetch 9)."""
        group = self._groups.get(group_id)
        if not isinstance(group, ConsumerGroup | StreamsGroup) or (not member_id and member_epoch < 0):
            return ErrorCode.NONE
        member = group.members.get(member_id or "")
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if member.current.epoch == member_epoch:
            return ErrorCode.NONE
        is_classic = isinstance(member, ConsumerMember) and member.is_classic
        return ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH

    def committed_offsets(self, group_id: str) -> Offsets:
        """Return all committed offsets of a group; none for a group that does not exist."""
        return self._offsets.committed(group_id)

    def unstable_partitions(self, group_id: str) -> set[TopicPartition]:
        """Return the partitions of which an open transaction holds an offset."""
        return self._offsets.pending_partitions(group_id)

    def delete_offsets(self, group_id: str, partitions: Sequence[TopicPartition]) -> Reply:
        """Delete offsets; the reply is an ErrorCode for the whole, or a dict of one per partition."""
        group = self._groups.get(group_id)
        if group is None or group.is_dead or isinstance(group, ShareGroup):
            return Reply.of(ErrorCode.GROUP_ID_NOT_FOUND)
        if isinstance(group, ClassicGroup) and group.members and group.protocol_type != "consumer":
            return Reply.of(ErrorCode.NON_EMPTY_GROUP)
        topics = self._topics_in_use(group)
        return self._commits.delete(group, partitions, topics=topics)

    def on_marker(self, partition: int, producer_id: int, *, is_commit: bool) -> None:
        """Hear that a transaction's marker is on disk in a partition of `__consumer_offsets`."""
        groups = [g for g in self._offsets.groups_of_transaction(producer_id) if self.journal_partition(g) == partition]
        self._offsets.end_transaction(producer_id, groups, is_commit=is_commit)

    # -- inside

    def _topics_in_use(self, group: AnyGroup) -> frozenset[str] | None:
        return topics_in_use(group) if isinstance(group, ClassicGroup) else group.topics_in_use(self._topics)

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

    def _forget_if_nothing(self, group: ClassicGroup) -> bool:
        """Drop a group whose joins were all abandoned: without members, offsets and any record."""
        group_id = group.group_id
        has_offsets = self._offsets.committed(group_id) or self._offsets.pending_partitions(group_id)
        is_in_use = group.members or group.pending or group.last_write is not None or has_offsets
        if is_in_use or group.state is not GroupState.EMPTY or group.is_stored:
            return False
        self._groups.drop(group)
        return True
