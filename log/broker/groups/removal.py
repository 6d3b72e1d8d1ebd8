"""Removing groups and their offsets: on request, by age, with their topics. Never much in one turn of the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from logflume.log.broker.ports import Clock, JournalRecord, ShareStates, Timers, Topics
from logflume.log.broker.replies import Reply
from logflume.log.broker.turns.deadline import Deadline
from logflume.log.protocol.errors import ErrorCode

from .classic.group import ClassicGroup, GroupState
from .config import GroupConfig
from .offset_commits import OffsetCommits, topics_in_use, write_error
from .offsets import OffsetStore, TopicPartition
from .share import ShareGroup
from .table import AnyGroup, GroupTable

LOOKED_AT_A_TIME = 5_000
"""Groups and offsets that are looked at for their age in one turn of the loop."""
DELETIONS_AT_A_TIME = 500
"""Offsets of a group that is deleted, removed in one turn of the loop."""


class Removal:
    """Takes groups and offsets out of the coordinator's tables and journal."""

    def __init__(
        self,
        config: GroupConfig,
        clock: Clock,
        timers: Timers,
        topics: Topics,
        groups: GroupTable,
        offsets: OffsetStore,
        commits: OffsetCommits,
        share_states: ShareStates,
        records_of: Callable[[AnyGroup], list[JournalRecord]],
    ) -> None:
        """`records_of` returns the records that remove a group from the journal."""
        self._config, self._clock, self._topics = config, clock, topics
        self._groups, self._offsets, self._commits = groups, offsets, commits
        self._share_states, self._records_of = share_states, records_of
        self._expiry = Deadline(clock, timers, self._on_expiry)
        self._expiring: list[str] = []
        """Groups that this round has not looked at yet."""

    def begin(self) -> None:
        """Look for what is old from now on."""
        self._expiry.set_after(self._config.offsets_retention_check_interval_ms)

    def stop(self) -> None:
        """Look no more."""
        self._expiry.cancel()

    def delete(self, group_id: str) -> Reply:
        """Delete an empty group and its offsets; the reply is an ErrorCode, once that is on disk."""
        reply = Reply()
        group = self._groups.get(group_id)
        if group is None or group.state != GroupState.EMPTY:
            reply.set(ErrorCode.NON_EMPTY_GROUP if group else ErrorCode.GROUP_ID_NOT_FOUND)
            return reply
        if group.last_write is not None and not group.last_write.is_done:
            # Offsets on their way to disk must be there before they are removed.
            group.last_write.then(lambda _: self.delete(group_id).then(reply.set))
            return reply
        group.die()
        # What a share group has of partitions goes first: a group may be there without it, but not the other way round.
        stated = self._share_states.delete_group(group_id) if isinstance(group, ShareGroup) else Reply.of(ErrorCode.NONE)
        stated.then(lambda error: self._delete_rest(group, error, reply))
        return reply

    def _delete_rest(self, group: AnyGroup, error: ErrorCode, reply: Reply) -> None:
        """Remove the offsets and the records of a group that is dead, unless there was an error before."""
        if error:
            group.revive()
            reply.set(error)
            return
        committed = [*self._offsets.committed(group.group_id).keys() | self._offsets.pending_partitions(group.group_id)]
        self._delete_from(0, group, committed, reply)

    def _delete_from(self, start: int, group: AnyGroup, committed: Sequence[TopicPartition], reply: Reply) -> None:
        """Remove some offsets of a group that is dead; the others when that is on disk, and the group with the last."""
        end = start + DELETIONS_AT_A_TIME
        is_last = end >= len(committed)

        def on_written(base_offset: int) -> None:
            if base_offset < 0:
                group.revive()
                reply.set(write_error(base_offset))
                return
            self._offsets.forget(group.group_id, committed[start:end])
            if not is_last:
                self._delete_from(end, group, committed, reply)
                return
            self._groups.drop(group)
            reply.set(ErrorCode.NONE)

        more = self._records_of(group) if is_last else ()
        self._commits.write_tombstones(group, committed[start:end], more=more).then(on_written)

    def _on_expiry(self) -> None:
        """Remove offsets past their retention and groups that nothing is left of; some in one turn of the loop."""
        if not self._expiring:
            self._expiring = list(self._groups.ids())
        left = LOOKED_AT_A_TIME
        while self._expiring and left > 0:
            group = self._groups.get(self._expiring.pop())
            if group is not None:
                left -= 1 + len(self._offsets.committed(group.group_id))
                left -= self._expire_offsets(group) * LOOKED_AT_A_TIME // DELETIONS_AT_A_TIME
        self._expiry.set_after(0 if self._expiring else self._config.offsets_retention_check_interval_ms)

    def _expire_offsets(self, group: AnyGroup) -> int:
        """Remove offsets of a group that are old, and the group if nothing is left; return how many."""
        old = self._expired(group)
        if len(old) > DELETIONS_AT_A_TIME:
            old = old[:DELETIONS_AT_A_TIME]
            self._expiring.append(group.group_id)
        if old:
            self._commits.write_tombstones(group, old)
            self._offsets.forget(group.group_id, old)
        has_offsets = self._offsets.committed(group.group_id) or self._offsets.pending_partitions(group.group_id)
        # Nothing but a request removes a share group.
        is_awaited = isinstance(group, ShareGroup) or (isinstance(group, ClassicGroup) and group.pending)
        if group.state == GroupState.EMPTY and not has_offsets and not is_awaited:
            self.delete(group.group_id)
        return len(old)

    def _expired(self, group: AnyGroup) -> list[TopicPartition]:
        """Return the offsets that expire: all old ones of an empty group since it is empty, else those nobody reads."""
        limit_ms = self._clock.wall_ms() - self._config.offsets_retention_ms
        old = self._offsets.older_than(group.group_id, limit_ms)
        if not isinstance(group, ClassicGroup):
            in_use = group.topics_in_use(self._topics)
            return [partition for partition in old if partition[0] not in in_use]
        if group.is_simple:
            return old
        if group.state is GroupState.EMPTY:
            return old if group.state_since_ms <= limit_ms else []
        topics = topics_in_use(group) if group.state is GroupState.STABLE else None
        return [] if topics is None else [partition for partition in old if partition[0] not in topics]

    def drop_topics(self, topics: Iterable[str]) -> None:
        """Remove the offsets of topics that are gone."""
        names = frozenset(topics)
        for group in list(self._groups.all()):
            gone = [partition for partition in self._offsets.committed(group.group_id) if partition[0] in names]
            if gone:
                self._commits.write_tombstones(group, gone)
                self._offsets.forget(group.group_id, gone)
