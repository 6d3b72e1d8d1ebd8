"""Reads `__consumer_offsets` back: offsets into their store, and the last value of each key of each group.

Of two kinds of group with one id the later in the journal is the group: when it changed its kind, all of the older one is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from logflume.log.broker.ports import JournalRecord, ReplayedBatch

from .epoch_records import EpochKey, GroupKind, Role, decode_epoch_key
from .epoch_values import decode_epoch_value
from .journal_records import GroupKey, GroupValue, OffsetKey, decode_group_value, decode_key, decode_offset_value
from .offsets import CommittedOffset, OffsetStore

Values = dict[EpochKey, Any]


class Replay:
    """What the batches taken so far amount to. `classic`: the classic groups by id; no id is of groups of two kinds."""

    def __init__(self, offsets: OffsetStore, on_marker: Callable[..., None]) -> None:
        self._offsets, self._on_marker = offsets, on_marker
        self.classic: dict[str, GroupValue] = {}
        self._epochs: dict[GroupKind, dict[str, Values]] = {}

    def of(self, kind: GroupKind) -> Iterator[tuple[str, Values]]:
        """Yield the groups of a protocol with epochs: id, last value of each key."""
        yield from self._epochs.get(kind, {}).items()

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
                self._take_epoch(record)

    def _take_classic(self, group_id: str, data: bytes | None) -> None:
        if data is None:
            self.classic.pop(group_id, None)
        else:
            self.classic[group_id] = decode_group_value(data)
            self._forget_others(group_id, GroupKind.CLASSIC)

    def _take_epoch(self, record: JournalRecord) -> None:
        key = decode_epoch_key(record.key)
        if key is None:
            return
        groups = self._epochs.setdefault(key.kind, {})
        values = groups.setdefault(key.group_id, {})
        if record.value is None:
            values.pop(key, None)
        else:
            values[key] = decode_epoch_value(key, record.value)
            if key.role is Role.GROUP:
                self.classic.pop(key.group_id, None)
                self._forget_others(key.group_id, key.kind)
        if not values:
            del groups[key.group_id]

    def _forget_others(self, group_id: str, kind: GroupKind) -> None:
        for other, groups in self._epochs.items():
            if other is not kind:
                groups.pop(group_id, None)

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
