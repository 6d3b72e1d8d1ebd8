"""Committing, fetching and deleting offsets: who may, what is refused, and the reply only once it is on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from logflume.log.broker.partitioner import partition_of
from logflume.log.broker.ports import Clock, Journal, JournalRecord, Topics
from logflume.log.broker.replies import Reply
from logflume.log.protocol.errors import ErrorCode

from .classic.group import ClassicGroup, GroupState
from .classic.requests import check_member
from .config import GroupConfig
from .consumer.group import ConsumerGroup
from .journal_records import OffsetKey, OffsetValue, encode_offset_key, encode_offset_value
from .offsets import CommittedOffset, OffsetStore, TopicPartition
from .streams import StreamsGroup
from .subscription import subscribed_topics


@dataclass(frozen=True, slots=True)
class NewOffset:
    """An offset as a client commits it."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class Committer:
    """Who commits: a member of a generation, or (generation -1, no ids) an administrator or a consumer without a group."""

    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None
    knows_epochs: bool = True
    """Whether the request is of a version that has member epochs (OffsetCommit 9)."""

    @property
    def is_member(self) -> bool:
        return self.generation >= 0 or bool(self.member_id) or self.instance_id is not None


@dataclass(frozen=True, slots=True)
class TxnProducer:
    """The producer whose transaction the offsets belong to."""

    producer_id: int
    producer_epoch: int


Errors = dict[TopicPartition, ErrorCode]
Refusal = ErrorCode | Callable[[TopicPartition], ErrorCode]
"""Why a committer may not commit, for all partitions or for each; NONE if it may."""


class OffsetHolder(Protocol):
    """A group of any kind, as far as its offsets are concerned."""

    last_write: Reply | None

    @property
    def group_id(self) -> str: ...

    @property
    def is_dead(self) -> bool: ...


class OffsetCommits:
    """The rules of offset commits over the coordinator's store and journal."""

    def __init__(self, config: GroupConfig, clock: Clock, journal: Journal, topics: Topics, store: OffsetStore) -> None:
        self._config, self._clock, self._journal, self._topics, self._store = config, clock, journal, topics, store

    def partition_of(self, group_id: str) -> int:
        """Return the partition of `__consumer_offsets` that a group lives in."""
        return partition_of(group_id, self._journal.partition_count)

    def commit(
        self,
        group: OffsetHolder,
        offsets: Mapping[TopicPartition, NewOffset],
        *,
        refusal: Refusal,
        txn: TxnProducer | None = None,
    ) -> Reply:
        """Commit offsets of a group; the reply is an ErrorCode per partition, once they are on disk.

        `refusal`: why they may not be committed. With `txn` they stay pending until the transaction's marker
        comes. Good partitions are committed beside bad ones.
        """
        reply = Reply()
        errors = {
            partition: (refusal if isinstance(refusal, ErrorCode) else refusal(partition)) or self._refusal_of(partition, new)
            for partition, new in offsets.items()
        }
        good = {partition: offsets[partition] for partition, error in errors.items() if not error}
        if not good:
            reply.set(errors)
            return reply
        now_ms = self._clock.wall_ms()
        records = [_record(group.group_id, partition, new, now_ms) for partition, new in good.items()]
        producer_id, producer_epoch = (txn.producer_id, txn.producer_epoch) if txn else (-1, -1)
        if txn:
            self._store.expect(group.group_id, good)
        written = self._journal.append(
            self.partition_of(group.group_id), records, producer_id=producer_id, producer_epoch=producer_epoch
        )
        group.last_write = written

        def on_written(base_offset: int) -> None:
            if txn:
                self._store.arrive(group.group_id, good)
            if base_offset < 0:
                errors.update(dict.fromkeys(good, write_error(base_offset)))
            elif txn:
                self._store.hold(producer_id, group.group_id, _committed(good, now_ms, base_offset))
            elif not group.is_dead:
                self._store.commit(group.group_id, _committed(good, now_ms, base_offset))
            reply.set(errors)

        written.then(on_written)
        return reply

    def _refusal_of(self, partition: TopicPartition, new: NewOffset) -> ErrorCode:
        if len(new.metadata.encode()) > self._config.offset_metadata_max_bytes:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        if not self._topics.exists(*partition):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NONE

    def delete(
        self,
        group: OffsetHolder,
        partitions: Iterable[TopicPartition],
        *,
        topics: frozenset[str] | None,
    ) -> Reply:
        """Delete committed offsets; the reply is an ErrorCode per partition.

        `topics`: those that members read, which are refused; None when it is not known.
        """
        reply = Reply()
        errors: Errors = {}
        there = self._store.committed(group.group_id).keys() | self._store.pending_partitions(group.group_id)
        for partition in partitions:
            if topics is None or partition[0] in topics:
                errors[partition] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            elif not self._topics.exists(*partition) and partition not in there:
                errors[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                errors[partition] = ErrorCode.NONE
        gone = [partition for partition, error in errors.items() if not error and partition in there]
        if not gone:
            reply.set(errors)
            return reply

        def on_written(base_offset: int) -> None:
            if base_offset < 0:
                errors.update(dict.fromkeys(gone, write_error(base_offset)))
            else:
                self._store.forget(group.group_id, gone)
            reply.set(errors)

        self.write_tombstones(group, gone).then(on_written)
        return reply

    def write_tombstones(
        self,
        group: OffsetHolder,
        partitions: Iterable[TopicPartition],
        *,
        more: Sequence[JournalRecord] = (),
    ) -> Reply:
        """Append the removal of these offsets (and `more`) to the journal; the reply is its base offset or an error."""
        now_ms = self._clock.wall_ms()
        records = [
            JournalRecord(encode_offset_key(OffsetKey(group.group_id, topic, partition)), None, now_ms)
            for topic, partition in partitions
        ]
        group.last_write = self._journal.append(self.partition_of(group.group_id), [*records, *more])
        return group.last_write


def refuse_commit(group: ClassicGroup, committer: Committer, *, is_transactional: bool) -> ErrorCode:
    """Return why this committer may not commit for the group, or NONE."""
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if committer.generation < 0 and group.state is GroupState.EMPTY:
        return ErrorCode.NONE
    if committer.is_member:
        error = check_member(group, committer.member_id, committer.instance_id)
        if error:
            return error
        if committer.generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
    elif not is_transactional:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.REBALANCE_IN_PROGRESS if group.state is GroupState.COMPLETING_REBALANCE else ErrorCode.NONE


def refuse_consumer_commit(group: ConsumerGroup, committer: Committer, topics: Topics, *, is_transactional: bool) -> Refusal:
    """Return why this committer may not commit for a group of the consumer protocol.

    With an epoch from before the present one it may still commit for what it has had since then (KIP-1251).
    """
    if group.is_dead:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if committer.generation < 0 and not group.members:
        return ErrorCode.NONE
    if not committer.is_member and is_transactional:
        return ErrorCode.NONE
    member = group.members.get(committer.member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if not is_transactional and not member.is_classic and not committer.knows_epochs:
        return ErrorCode.UNSUPPORTED_VERSION
    current, epoch = member.current, committer.generation
    if epoch == current.epoch:
        return ErrorCode.NONE
    stale = ErrorCode.ILLEGAL_GENERATION if member.is_classic or is_transactional else ErrorCode.STALE_MEMBER_EPOCH
    if epoch > current.epoch:
        return stale

    def refuse(partition: TopicPartition) -> ErrorCode:
        held = (topics.id_of(partition[0]) or b"", partition[1])
        if held not in member.held:
            return stale
        return ErrorCode.NONE if epoch >= current.epochs.get(held, current.epoch) else stale

    return refuse


def refuse_streams_commit(group: StreamsGroup, committer: Committer, *, is_transactional: bool) -> Refusal:
    """Return why this committer may not commit for a streams group; as in a consumer group, by the tasks that it has."""
    if group.is_dead:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if (committer.generation < 0 and not group.members) or (not committer.is_member and is_transactional):
        return ErrorCode.NONE
    member = group.members.get(committer.member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if not is_transactional and not committer.knows_epochs:
        return ErrorCode.UNSUPPORTED_VERSION
    current, epoch, topology = member.current, committer.generation, group.topology
    if epoch == current.epoch:
        return ErrorCode.NONE
    stale = ErrorCode.ILLEGAL_GENERATION if is_transactional else ErrorCode.STALE_MEMBER_EPOCH
    if epoch > current.epoch or topology is None:
        return stale
    readers = {name: each.subtopology_id for each in topology.subtopologies for name in each.inputs}

    def refuse(partition: TopicPartition) -> ErrorCode:
        task = (readers.get(partition[0], ""), partition[1])
        return ErrorCode.NONE if epoch >= current.epochs.get(task, current.epoch) else stale

    return refuse


def topics_in_use(group: ClassicGroup) -> frozenset[str] | None:
    """Return the topics the members read; None when that cannot be known (members of another protocol)."""
    topics: set[str] = set()
    for member in group.members.values():
        wanted = subscribed_topics(member.metadata(group.protocol_name)) if group.protocol_type == "consumer" else None
        if wanted is None:
            return None
        topics |= wanted
    return frozenset(topics)


def write_error(base_offset: int) -> ErrorCode:
    """Return what a client hears when the journal answers with this negative code."""
    if -base_offset in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_FETCH_SIZE):
        return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    if -base_offset == ErrorCode.INVALID_PRODUCER_EPOCH:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return ErrorCode.COORDINATOR_NOT_AVAILABLE


def _record(group_id: str, partition: TopicPartition, new: NewOffset, now_ms: int) -> JournalRecord:
    key = encode_offset_key(OffsetKey(group_id, *partition))
    return JournalRecord(key, encode_offset_value(OffsetValue(new.offset, new.leader_epoch, new.metadata, now_ms)), now_ms)


def _committed(
    offsets: Mapping[TopicPartition, NewOffset], now_ms: int, journal_offset: int
) -> dict[TopicPartition, CommittedOffset]:
    return {
        partition: CommittedOffset(new.offset, new.leader_epoch, new.metadata, now_ms, journal_offset)
        for partition, new in offsets.items()
    }
