"""Reads `__consumer_offsets` back: offsets into their store, and the last value of each key of each group.

Of two kinds of group with one id the later in the journal is the group: when it changed its kind, all of the older one is gone.
"""

from __future__ import annotations

from collections.abc import Callable

from ..seams import JournalRecord, ReplayedBatch
from .consumer_records import ConsumerKey, ConsumerKeyKind, ConsumerValue, decode_consumer_key, decode_consumer_value
from .journal_records import GroupKey, GroupValue, OffsetKey, decode_group_value, decode_key, decode_offset_value
from .offsets import CommittedOffset, OffsetStore
from .streams.records import StreamsKey, StreamsKeyKind, StreamsValue, decode_streams_key, decode_streams_value


class Replay:
    """What the batches taken so far amount to.

    `classic`, `consumer`, `streams`: the groups of each kind, by id; no id is in two of them.
    """

    def __init__(self, offsets: OffsetStore, on_marker: Callable[..., None]) -> None:
        self._offsets, self._on_marker = offsets, on_marker
        self.classic: dict[str, GroupValue] = {}
        self.consumer: dict[str, dict[ConsumerKey, ConsumerValue]] = {}
        self.streams: dict[str, dict[StreamsKey, StreamsValue]] = {}

    def take(self, partition: int, batch: ReplayedBatch) -> None:
        """Take the next batch of a partition. Raises DecodeError when a record cannot be read."""
        if batch.marker is not None:
            self._on_marker(partition, batch.producer_id, is_commit=batch.marker)
            return
        for record in batch.records:
            key = decode_key(record.key)
            if isinstance(key, GroupKey):
                self._take_classic(key.group_id, record.value)
            elif isinstance(key, OffsetKey):
                self._take_offset(key, record.value, batch)
            else:
                self._take_consumer(record)

    def _take_classic(self, group_id: str, data: bytes | None) -> None:
        if data is None:
            self.classic.pop(group_id, None)
        else:
            self.classic[group_id] = decode_group_value(data)
            self.consumer.pop(group_id, None)
            self.streams.pop(group_id, None)

    def _take_consumer(self, record: JournalRecord) -> None:
        key = decode_consumer_key(record.key)
        if key is None:
            self._take_streams(record)
            return
        values = self.consumer.setdefault(key.group_id, {})
        if record.value is None:
            values.pop(key, None)
        else:
            values[key] = decode_consumer_value(key.kind, record.value)
            if key.kind is ConsumerKeyKind.GROUP:
                self.classic.pop(key.group_id, None)
                self.streams.pop(key.group_id, None)
        if not values:
            del self.consumer[key.group_id]

    def _take_streams(self, record: JournalRecord) -> None:
        key = decode_streams_key(record.key)
        if key is None:
            return
        values = self.streams.setdefault(key.group_id, {})
        if record.value is None:
            values.pop(key, None)
        else:
            values[key] = decode_streams_value(key.kind, record.value)
            if key.kind is StreamsKeyKind.GROUP:
                self.classic.pop(key.group_id, None)
                self.consumer.pop(key.group_id, None)
        if not values:
            del self.streams[key.group_id]

    def _take_offset(self, key: OffsetKey, data: bytes | None, batch: ReplayedBatch) -> None:
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
