"""The committed offsets of all groups, and those that wait for the end of their transaction.

Only what is on disk is ever read. An offset of a transaction is pending until the marker of its transaction reaches the
partition of `__consumer_offsets`; on its way to the disk it makes its partition unstable already, so that a reader with
require_stable does not miss it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """An offset (the next one to read), the text beside it, and where in the journal it stands."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    journal_offset: int


Offsets = Mapping[TopicPartition, CommittedOffset]


class OffsetStore:
    """Offsets by group. Invariant: of two commits of a partition the one later in the journal wins, whatever the order of
    their arrival or of the ends of their transactions."""

    def __init__(self) -> None:
        self._committed: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._pending: dict[int, dict[str, dict[TopicPartition, CommittedOffset]]] = {}
        self._on_the_way: dict[str, Counter[TopicPartition]] = {}

    def group_ids(self) -> set[str]:
        """Return the groups that have an offset, committed or pending."""
        return self._committed.keys() | {group_id for by_group in self._pending.values() for group_id in by_group}

    def committed(self, group_id: str) -> Offsets:
        return self._committed.get(group_id, {})

    def pending_partitions(self, group_id: str) -> set[TopicPartition]:
        """Return the partitions of which an open transaction holds an offset, on disk or on its way there."""
        held = {partition for by_group in self._pending.values() for partition in by_group.get(group_id, ())}
        return held | self._on_the_way.get(group_id, Counter()).keys()

    def commit(self, group_id: str, offsets: Offsets) -> None:
        """Take over offsets that are on disk."""
        committed = self._committed.setdefault(group_id, {})
        for partition, new in offsets.items():
            old = committed.get(partition)
            if old is None or new.journal_offset >= old.journal_offset:
                committed[partition] = new

    def expect(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Note that offsets of a transaction are on their way to the disk."""
        self._on_the_way.setdefault(group_id, Counter()).update(list(partitions))

    def arrive(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Note that they are there, or will never be."""
        counts = self._on_the_way[group_id]
        counts.subtract(list(partitions))
        self._on_the_way[group_id] = +counts
        if not self._on_the_way[group_id]:
            del self._on_the_way[group_id]

    def hold(self, producer_id: int, group_id: str, offsets: Offsets) -> None:
        """Keep offsets of a transaction that are on disk until its end."""
        self._pending.setdefault(producer_id, {}).setdefault(group_id, {}).update(offsets)

    def end_transaction(self, producer_id: int, groups: Iterable[str], *, is_commit: bool) -> None:
        """Commit or drop what a transaction holds for these groups (those of the partition that the marker reached)."""
        by_group = self._pending.get(producer_id, {})
        for group_id in [g for g in groups if g in by_group]:
            offsets = by_group.pop(group_id)
            if is_commit:
                self.commit(group_id, offsets)
        if not by_group:
            self._pending.pop(producer_id, None)

    def groups_of_transaction(self, producer_id: int) -> tuple[str, ...]:
        return tuple(self._pending.get(producer_id, ()))

    def forget(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Remove offsets, also those that open transactions hold: what a tombstone in the journal means."""
        gone = set(partitions)
        committed = self._committed.get(group_id, {})
        for partition in gone:
            committed.pop(partition, None)
        if not committed:
            self._committed.pop(group_id, None)
        for producer_id, by_group in list(self._pending.items()):
            held = by_group.get(group_id, {})
            for partition in gone & held.keys():
                del held[partition]
            if group_id in by_group and not held:
                self.end_transaction(producer_id, [group_id], is_commit=False)

    def older_than(self, group_id: str, limit_ms: int) -> list[TopicPartition]:
        """Return partitions committed before a moment and not part of an open transaction."""
        pending = self.pending_partitions(group_id)
        committed = self._committed.get(group_id, {})
        return [p for p, c in committed.items() if c.commit_timestamp_ms <= limit_ms and p not in pending]
