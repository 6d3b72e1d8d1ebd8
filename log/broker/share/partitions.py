"""All share partitions of the broker, over the journal `__share_group_state`."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial

from logflume.log.broker.partitioner import partition_of
from logflume.log.broker.ports import Clock, GroupSettings, Journal, JournalRecord, Timers
from logflume.log.broker.replies import Reply
from logflume.log.errors import DecodeError
from logflume.log.internal_topics import SHARE_STATE_TOPIC
from logflume.log.protocol.errors import ErrorCode

from .config import limits_of
from .in_flight import InFlight
from .share_partition import SharePartition
from .state_records import (
    SNAPSHOT,
    ShareKey,
    ShareSnapshot,
    ShareUpdate,
    decode_state_key,
    decode_state_value,
    encode_snapshot,
    encode_state_key,
    restored_runs,
    updated,
)

LEADER_EPOCH = 0
LAST_SNAPSHOT_EPOCH = 2**31 - 1


class SharePartitions:
    """See the module. Invariant: a share partition is here from its start offset on, until its topic or group is gone."""

    def __init__(self, clock: Clock, timers: Timers, journal: Journal, settings: GroupSettings) -> None:
        self._clock, self._timers, self._journal, self._settings = clock, timers, journal, settings
        self._by_group: dict[str, dict[ShareKey, SharePartition]] = {}
        self._heads: dict[ShareKey, ShareSnapshot] = {}

    def load(self) -> None:
        """Rebuild everything from the journal. Raises DecodeError when a record cannot be read."""
        for partition in range(self._journal.partition_count):
            for batch in self._journal.replay(partition):
                try:
                    for record in batch.records:
                        self._replay(record)
                except DecodeError as error:
                    raise DecodeError(f"{SHARE_STATE_TOPIC}-{partition}, offset {batch.base_offset}: {error}") from error
        for key, snapshot in self._heads.items():
            if snapshot.start_offset >= 0:
                self._put(key, InFlight(snapshot.start_offset, restored_runs(snapshot)))
            self._heads[key] = replace(snapshot, batches=())

    def _replay(self, record: JournalRecord) -> None:
        key, version = decode_state_key(record.key)
        if record.value is None:
            if version == SNAPSHOT:
                self._heads.pop(key, None)
            return
        value = decode_state_value(version, record.value)
        if isinstance(value, ShareUpdate):
            self._heads[key] = updated(self._heads.get(key, ShareSnapshot(max(value.start_offset, 0))), value)
        else:
            self._heads[key] = value

    def get(self, key: ShareKey) -> SharePartition | None:
        return self._by_group.get(key.group_id, {}).get(key)

    def of_group(self, group_id: str) -> list[SharePartition]:
        return list(self._by_group.get(group_id, {}).values())

    def begin(self, key: ShareKey, start_offset: int) -> SharePartition:
        """Make a share partition that begins here; it is ready when that is on disk."""
        assert self.get(key) is None, key
        partition = self._put(key, InFlight(start_offset))
        partition.begin(lambda: self._drop(partition))
        return partition

    def set_start(self, starts: Mapping[ShareKey, int]) -> dict[ShareKey, Reply]:
        """Begin share partitions anew at given offsets; each reply is an ErrorCode once that is on disk.

        What was known of their records is forgotten. Only for groups without members.
        """
        replies = {}
        for key, start_offset in starts.items():
            old = self._take(key)
            partition = self._put(key, InFlight(start_offset))
            head = self._head(key)
            self._heads[key] = replace(head, state_epoch=head.state_epoch + 1)
            replies[key] = _as_error(self._write(partition))
            if old is not None:
                old.wake()
        return replies

    def delete(self, keys: Iterable[ShareKey]) -> Reply:
        """Forget share partitions; the reply is an ErrorCode once that is on disk. After a failure it can be asked again."""
        by_partition: dict[int, list[ShareKey]] = {}
        for key in keys:
            partition = self._take(key)
            if partition is not None:
                partition.wake()
            by_partition.setdefault(self._journal_partition(key), []).append(key)
        return _all_of([self._write_tombstones(index, gone) for index, gone in by_partition.items()])

    def delete_group(self, group_id: str) -> Reply:
        """Forget all of a group; the reply is an ErrorCode once that is on disk."""
        return self.delete(self.keys(group_id=group_id))

    def _write_tombstones(self, index: int, keys: list[ShareKey]) -> Reply:
        now_ms = self._clock.wall_ms()
        heads = {key: head for key in keys if (head := self._heads.pop(key, None)) is not None}
        records = [JournalRecord(encode_state_key(key), None, now_ms) for key in heads]
        if not records:
            return _all_of([])
        written = self._journal.append(index, records)

        def on_written(offset: int) -> None:
            if offset < 0:
                self._heads = heads | self._heads

        written.then(on_written)
        return _as_error(written)

    def keys(self, *, group_id: str | None = None, topic_ids: Collection[bytes] | None = None) -> list[ShareKey]:
        """Return the share partitions that the journal holds, of a group, of topics, or all."""
        return [
            key
            for key in self._heads
            if (group_id is None or key.group_id == group_id) and (topic_ids is None or key.topic_id in topic_ids)
        ]

    def topic_ids(self) -> set[bytes]:
        """Return the topics that have share partitions."""
        return {key.topic_id for key in self._heads}

    def close(self) -> None:
        """Stop all timers."""
        for partitions in self._by_group.values():
            for partition in partitions.values():
                partition.close()

    def _put(self, key: ShareKey, state: InFlight) -> SharePartition:
        limits = partial(limits_of, self._settings, key.group_id)
        partition = SharePartition(key, state, self._clock, self._timers, limits, self._write)
        self._by_group.setdefault(key.group_id, {})[key] = partition
        return partition

    def _take(self, key: ShareKey) -> SharePartition | None:
        partitions = self._by_group.get(key.group_id, {})
        partition = partitions.pop(key, None)
        if partition is None:
            return None
        if not partitions:
            del self._by_group[key.group_id]
        partition.close()
        return partition

    def _drop(self, partition: SharePartition) -> None:
        if self.get(partition.key) is partition:
            self._take(partition.key)

    def _head(self, key: ShareKey) -> ShareSnapshot:
        return self._heads.get(key) or ShareSnapshot(-1, snapshot_epoch=-1, created_ms=self._clock.wall_ms())

    def _write(self, partition: SharePartition) -> Reply:
        """Append the state of a share partition as it is now."""
        key, now_ms = partition.key, self._clock.wall_ms()
        if partition.is_gone:
            reply = Reply()
            reply.set(-int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            return reply
        head = self._head(key)
        start_offset, batches = partition.state.to_store()
        epoch = head.snapshot_epoch + 1 if head.snapshot_epoch < LAST_SNAPSHOT_EPOCH else 0
        self._heads[key] = replace(head, snapshot_epoch=epoch, start_offset=start_offset)
        complete_count = sum(run.size for run in batches if run.is_done)
        snapshot = replace(self._heads[key], batches=tuple(batches), complete_count=complete_count, written_ms=now_ms)
        record = JournalRecord(encode_state_key(key), encode_snapshot(snapshot, leader_epoch=LEADER_EPOCH), now_ms)
        return self._journal.append(self._journal_partition(key), [record])

    def _journal_partition(self, key: ShareKey) -> int:
        """Return the partition of the journal that a share partition lives in, as Kafka chooses it."""
        topic = base64.urlsafe_b64encode(key.topic_id).decode().rstrip("=")
        return partition_of(f"{key.group_id}:{topic}:{key.partition}", self._journal.partition_count)


def _as_error(written: Reply) -> Reply:
    reply = Reply()
    written.then(lambda offset: reply.set(ErrorCode.NONE if offset >= 0 else ErrorCode.COORDINATOR_NOT_AVAILABLE))
    return reply


def _all_of(replies: list[Reply]) -> Reply:
    """Return a reply that is the first error of all, or NONE."""
    reply, errors = Reply(), list[ErrorCode]()

    def on_done(error: ErrorCode) -> None:
        errors.append(error)
        if len(errors) == len(replies):
            reply.set(next((each for each in errors if each), ErrorCode.NONE))

    if not replies:
        reply.set(ErrorCode.NONE)
    for each in replies:
        each.then(on_done)
    return reply
