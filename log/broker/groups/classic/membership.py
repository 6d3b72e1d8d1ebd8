"""How members join, keep alive, synchronise and leave a classic group: the rebalance protocol of Kafka.

    Empty --join--> PreparingRebalance --all joined or timeout--> CompletingRebalance --leader's sync on disk--> Stable
                          ^---------- a member joins anew, leaves or times out -----------'----------------------'
A generation is complete when the leader's assignments are on disk; only then do members learn them. Follows the protocol guide,
KIP-62 (rebalance timeout), KIP-345 (static members), KIP-394 (MEMBER_ID_REQUIRED), KIP-814 (skipped assignment).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from logflume.log.broker.groups.config import GroupConfig
from logflume.log.broker.groups.subscription import read_assignment, read_subscription, subscribed_topics
from logflume.log.broker.ports import Clock, Timers
from logflume.log.broker.replies import Reply
from logflume.log.broker.turns.deadline import Deadline
from logflume.log.errors import DecodeError
from logflume.log.protocol.errors import ErrorCode

from .group import ClassicGroup, GroupState, Member
from .requests import (
    JoinRequest,
    JoinResult,
    SyncRequest,
    SyncResult,
    check_member,
    join_result,
    sync_refusal,
    sync_result,
)

EMPTY, PREPARING, COMPLETING = GroupState.EMPTY, GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE
STABLE, DEAD = GroupState.STABLE, GroupState.DEAD

PENDING_MAX = 10_000
"""Most member ids of one group that were given out and not yet used."""

StoreGroup = Callable[[ClassicGroup, Mapping[str, bytes]], Reply]
"""Writes the group with these assignments to the journal; the reply is an ErrorCode, NONE once it is on disk."""


class Membership:
    """The rules of joining and leaving, over groups that the coordinator keeps. Holds no state of its own."""

    def __init__(
        self,
        config: GroupConfig,
        clock: Clock,
        timers: Timers,
        new_id: Callable[[], str],
        store: StoreGroup,
        forget: Callable[[ClassicGroup], bool],
    ) -> None:
        """`forget`: drops a group without members of which nothing was ever stored; says whether it did."""
        self._config, self._clock, self._timers = config, clock, timers
        self._new_id, self._store, self._forget = new_id, store, forget

    def new_group(self, group_id: str) -> ClassicGroup:
        """Make an empty group."""
        group: ClassicGroup
        join_deadline = Deadline(self._clock, self._timers, lambda: self._on_join_deadline(group))
        sync_deadline = Deadline(self._clock, self._timers, lambda: self._on_sync_deadline(group))
        group = ClassicGroup(group_id, join_deadline, sync_deadline)
        return group

    def give_session(self, group: ClassicGroup, member: Member) -> None:
        """Give a member a session timer and start it."""
        member.session = Deadline(self._clock, self._timers, lambda: self._on_session_end(group, member))
        member.touch()

    # -- join

    def join(self, group: ClassicGroup, request: JoinRequest) -> Reply:
        """Join; the reply is a JoinResult, at the latest when the rebalance timeout has passed."""
        reply = Reply()
        error = self._refusal(group, request)
        if error:
            reply.set(JoinResult(error, request.member_id))
        elif request.member_id:
            self._join_known(group, request, reply)
        elif request.instance_id is not None:
            self._join_static(group, request, request.instance_id, reply)
        elif request.is_id_required:
            member_id = f"{request.client_id}-{self._new_id()}"
            pending = Deadline(self._clock, self._timers, lambda: self._on_pending_end(group, member_id))
            pending.set_after(request.session_timeout_ms)
            group.pending[member_id] = pending
            reply.set(JoinResult(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        else:
            self._add(group, request, f"{request.client_id}-{self._new_id()}", reply)
        return reply

    def _refusal(self, group: ClassicGroup, request: JoinRequest) -> ErrorCode:
        if not self._config.min_session_timeout_ms <= request.session_timeout_ms <= self._config.max_session_timeout_ms:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if group.state is DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        is_known = request.member_id in group.members or request.instance_id in group.static
        if not is_known and _taken_places(group, request.member_id) >= self._config.max_size:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if not request.member_id and request.instance_id is None and len(group.pending) >= PENDING_MAX:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if not group.supports(request.protocol_type, request.protocols):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.NONE

    def _join_known(self, group: ClassicGroup, request: JoinRequest, reply: Reply) -> None:
        if request.member_id in group.pending and request.instance_id is None:
            group.pending.pop(request.member_id).cancel()
            self._add(group, request, request.member_id, reply)
            return
        error = check_member(group, request.member_id, request.instance_id)
        if error or group.state is EMPTY:
            reply.set(JoinResult(error or ErrorCode.UNKNOWN_MEMBER_ID, request.member_id))
            return
        member = group.members[request.member_id]
        is_same = member.protocols == request.protocols
        is_leader = group.leader_id == member.member_id
        if group.state is COMPLETING and is_same:
            # The member lost the response to its join; it gets the same one again.
            reply.set(join_result(group, member, with_members=is_leader))
        elif group.state is STABLE and is_same and not is_leader:
            reply.set(join_result(group, member, with_members=False))
        else:
            self._update(group, member, request, reply)
            self.rebalance(group)

    def _join_static(self, group: ClassicGroup, request: JoinRequest, instance_id: str, reply: Reply) -> None:
        member_id = f"{instance_id}-{self._new_id()}"
        old_id = group.static.get(instance_id)
        if old_id is None:
            self._add(group, request, member_id, reply)
            return
        member, leader_before, protocols_before = group.members[old_id], group.leader_id, group.members[old_id].protocols
        _fence(member)
        group.rename_static(member, member_id)
        is_quiet = group.state is STABLE and self._keeps_assignment(group, member, request)
        self._update(group, member, request, reply)
        if not is_quiet or group.select_protocol() != group.protocol_name:
            self.rebalance(group)
            return

        def on_stored(error: ErrorCode) -> None:
            if member.join_reply is not reply or group.state is not STABLE:
                return
            member.join_reply = None
            member.touch()
            if error:
                group.rename_static(member, old_id)
                member.protocols = protocols_before
                reply.set(JoinResult(error))
            elif request.can_skip_assignment:
                is_leader = group.leader_id == member_id
                reply.set(replace(join_result(group, member, with_members=is_leader), skip_assignment=is_leader))
            else:
                # An older client must not take itself for the leader, or it would assign in the middle of a generation.
                reply.set(replace(join_result(group, member, with_members=False), leader_id=leader_before or ""))

        self._store(group, {m.member_id: m.assignment for m in group.members.values()}).then(on_stored)

    def _keeps_assignment(self, group: ClassicGroup, member: Member, request: JoinRequest) -> bool:
        """Whether a static member that came back wants the same topics and owes nothing, so that nobody else need hear of it.

        A consumer's metadata also names the partitions it owns (cooperative assignors), which are none after a restart.
        """
        old = member.metadata(group.protocol_name)
        new = next((metadata for name, metadata in request.protocols if name == group.protocol_name), b"")
        topics = subscribed_topics(old) if group.protocol_type == "consumer" else None
        if topics is None or topics != subscribed_topics(new):
            return old == new
        return not _owes(old, member.assignment)

    def _add(self, group: ClassicGroup, request: JoinRequest, member_id: str, reply: Reply) -> None:
        if not group.members:
            group.protocol_type = request.protocol_type
        member = Member(
            member_id=member_id,
            instance_id=request.instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
            protocols=request.protocols,
            join_reply=reply,
        )
        self.give_session(group, member)
        group.add(member)
        group.has_new_members = True
        self.rebalance(group)

    def _update(self, group: ClassicGroup, member: Member, request: JoinRequest, reply: Reply) -> None:
        """Take over what a member says now and let it wait for the generation."""
        if member.join_reply is not None:
            member.join_reply.set(JoinResult(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
        member.protocols = request.protocols
        member.rebalance_timeout_ms, member.session_timeout_ms = request.rebalance_timeout_ms, request.session_timeout_ms
        member.client_id, member.client_host = request.client_id, request.client_host
        member.join_reply = reply
        member.session.cancel()

    # -- rebalance

    def rebalance(self, group: ClassicGroup) -> None:
        """Start a rebalance if none is under way, and complete it if nobody is waited for."""
        if group.can_rebalance:
            self._prepare(group)
        if group.initial_delay_left_ms is None and group.has_all_joined:
            self._complete_join(group)

    def _prepare(self, group: ClassicGroup) -> None:
        self._answer_syncs(group, ErrorCode.REBALANCE_IN_PROGRESS)
        group.sync_deadline.cancel()
        group.awaited_syncs.clear()
        was_empty = group.state is EMPTY
        group.move_to(PREPARING, self._clock.wall_ms())
        delay_ms = self._config.initial_rebalance_delay_ms
        if was_empty and delay_ms > 0:
            group.initial_delay_left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            group.has_new_members = False
            group.join_deadline.set_after(delay_ms)
        else:
            group.join_deadline.cancel()
            group.join_deadline.set_after(group.rebalance_timeout_ms)

    def _on_join_deadline(self, group: ClassicGroup) -> None:
        if group.initial_delay_left_ms and group.has_new_members:
            delay_ms = min(self._config.initial_rebalance_delay_ms, group.initial_delay_left_ms)
            group.initial_delay_left_ms -= delay_ms
            group.has_new_members = False
            group.join_deadline.set_after(delay_ms)
            return
        self._complete_join(group)

    def _complete_join(self, group: ClassicGroup) -> None:
        """Go to the next generation with those that joined; static members that did not are kept until their session ends."""
        group.initial_delay_left_ms = None
        group.join_deadline.cancel()
        for member in [m for m in group.members.values() if m.join_reply is None and m.instance_id is None]:
            group.remove(member.member_id)
        joined = [m for m in group.members.values() if m.join_reply is not None]
        if group.members and not joined:
            group.join_deadline.set_after(group.rebalance_timeout_ms)
            return
        group.generation += 1
        if not group.members:
            self._become_empty(group)
            return
        if group.leader_id not in {m.member_id for m in joined}:
            group.leader_id = joined[0].member_id
        group.protocol_name = group.select_protocol()
        group.move_to(COMPLETING, self._clock.wall_ms())
        group.awaited_syncs = set(group.members)
        group.sync_deadline.set_after(group.rebalance_timeout_ms)
        for member in joined:
            member.assignment = b""
            reply, member.join_reply = member.join_reply, None
            member.touch()
            if reply is not None:
                reply.set(join_result(group, member, with_members=member.member_id == group.leader_id))

    def _become_empty(self, group: ClassicGroup) -> None:
        group.protocol_name = group.leader_id = None
        group.move_to(EMPTY, self._clock.wall_ms())
        if not self._forget(group):
            self._store(group, {})

    # -- sync

    def sync(self, group: ClassicGroup, request: SyncRequest) -> Reply:
        """Ask for the assignment; the reply is a SyncResult, once the leader's assignments are on disk."""
        reply = Reply()
        error = sync_refusal(group, request)
        if error:
            reply.set(SyncResult(error))
            return reply
        member = group.members[request.member_id]
        group.awaited_syncs.discard(member.member_id)
        if group.state is STABLE:
            member.touch()
            reply.set(sync_result(group, member))
            return reply
        if member.sync_reply is not None:
            member.sync_reply.set(SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
        member.sync_reply = reply
        member.session.cancel()
        if group.leader_id == member.member_id:
            generation, assignments = group.generation, dict(request.assignments)
            self._store(group, assignments).then(lambda error: self._on_assigned(group, generation, assignments, error))
        return reply

    def _on_assigned(self, group: ClassicGroup, generation: int, assignments: Mapping[str, bytes], error: ErrorCode) -> None:
        """Hand out the assignments that are on disk, unless the group has moved on meanwhile."""
        if group.state is not COMPLETING or group.generation != generation:
            return
        if error:
            self._answer_syncs(group, error)
            self.rebalance(group)
            return
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        group.move_to(STABLE, self._clock.wall_ms())
        self._answer_syncs(group, ErrorCode.NONE)

    def _answer_syncs(self, group: ClassicGroup, error: ErrorCode) -> None:
        for member in list(group.members.values()):
            reply, member.sync_reply = member.sync_reply, None
            if reply is not None:
                member.touch()
                reply.set(SyncResult(error) if error else sync_result(group, member))

    def _on_sync_deadline(self, group: ClassicGroup) -> None:
        """Remove the members that joined a generation but never asked for their assignment."""
        if group.state not in (COMPLETING, STABLE) or not group.awaited_syncs:
            return
        for member_id in sorted(group.awaited_syncs & group.members.keys()):
            group.remove(member_id)
        self.rebalance(group)

    def dissolve(self, group: ClassicGroup) -> None:
        """Answer everyone who waits and stop all timers: the members go on in a group of another kind."""
        for member in group.members.values():
            join_reply, member.join_reply = member.join_reply, None
            sync_reply, member.sync_reply = member.sync_reply, None
            member.session.cancel()
            if join_reply is not None:
                join_reply.set(JoinResult(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
            if sync_reply is not None:
                sync_reply.set(SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
        for deadline in (group.join_deadline, group.sync_deadline, *group.pending.values()):
            deadline.cancel()
        group.move_to(DEAD, self._clock.wall_ms())

    # -- heartbeat, leave, timeouts

    def heartbeat(self, group: ClassicGroup, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Keep a member alive; REBALANCE_IN_PROGRESS tells it to join again."""
        if group.state is DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = check_member(group, member_id, instance_id)
        if error:
            return error
        if generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        group.members[member_id].touch()
        return ErrorCode.REBALANCE_IN_PROGRESS if group.state is PREPARING else ErrorCode.NONE

    def leave(self, group: ClassicGroup, leaving: Sequence[tuple[str, str | None]]) -> list[ErrorCode]:
        """Remove members: (member id, instance id) each; an empty member id with an instance id means whoever holds it."""
        results = [self._leave_one(group, member_id, instance_id) for member_id, instance_id in leaving]
        if ErrorCode.NONE in results and group.state not in (EMPTY, DEAD):
            self.rebalance(group)
        return results

    def _leave_one(self, group: ClassicGroup, member_id: str, instance_id: str | None) -> ErrorCode:
        pending = group.pending.pop(member_id, None)
        if pending is not None:
            pending.cancel()
            self._forget(group)
            return ErrorCode.NONE
        if instance_id is not None and not member_id:
            member_id = group.static.get(instance_id, "")
        error = check_member(group, member_id, instance_id)
        if not error:
            self._drop(group, group.members[member_id], ErrorCode.UNKNOWN_MEMBER_ID)
        return error

    def _drop(self, group: ClassicGroup, member: Member, error: ErrorCode) -> None:
        """Remove a member, answering what it waits for."""
        group.remove(member.member_id)
        join_reply, member.join_reply = member.join_reply, None
        sync_reply, member.sync_reply = member.sync_reply, None
        if join_reply is not None:
            join_reply.set(JoinResult(error, member.member_id))
        if sync_reply is not None:
            sync_reply.set(SyncResult(error))

    def _on_session_end(self, group: ClassicGroup, member: Member) -> None:
        if group.members.get(member.member_id) is member:
            self._drop(group, member, ErrorCode.UNKNOWN_MEMBER_ID)
            self.rebalance(group)

    def _on_pending_end(self, group: ClassicGroup, member_id: str) -> None:
        if group.pending.pop(member_id, None) is None:
            return
        if group.state is PREPARING:
            self.rebalance(group)
        else:
            self._forget(group)


def _taken_places(group: ClassicGroup, own_id: str) -> int:
    """Count who takes a place of the group; in a rebalance only those that have joined do."""
    joined = sum(group.state is not PREPARING or m.join_reply is not None for m in group.members.values())
    return joined + len(group.pending.keys() - {own_id})


def _fence(member: Member) -> None:
    """Answer what the former holder of an instance id still waits for."""
    join_reply, member.join_reply = member.join_reply, None
    sync_reply, member.sync_reply = member.sync_reply, None
    if join_reply is not None:
        join_reply.set(JoinResult(ErrorCode.FENCED_INSTANCE_ID, member.member_id))
    if sync_reply is not None:
        sync_reply.set(SyncResult(ErrorCode.FENCED_INSTANCE_ID))


def _owes(metadata: bytes, assignment: bytes) -> bool:
    """Whether a member that gives up partitions by joining once more (KIP-429) has not done so: they are nobody's till then."""
    try:
        return not read_subscription(metadata).owned <= read_assignment(assignment)[0]
    except DecodeError:
        return False
