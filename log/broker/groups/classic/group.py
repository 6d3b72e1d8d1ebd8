"""A classic consumer group as data: its members, its state and what follows from them (which protocol all of them share).

What happens on a request or a timeout is in `membership`; what is kept on disk in `journal_records`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from logflume.log.broker.groups.epoch_records import GroupKind
from logflume.log.broker.groups.journal_records import GroupValue, StoredMember
from logflume.log.broker.replies import Reply
from logflume.log.broker.turns.deadline import Deadline

Protocols = tuple[tuple[str, bytes], ...]


class GroupState(StrEnum):
    """The states of a classic group, spelled as clients see them."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(slots=True, eq=False)
class Member:
    """A member. While `join_reply` or `sync_reply` is set it waits for the others and its session does not run out.

    `protocols`: (name, metadata) in the member's order of preference.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    session: Deadline = field(init=False)
    assignment: bytes = b""
    join_reply: Reply | None = None
    sync_reply: Reply | None = None

    def metadata(self, protocol: str | None) -> bytes:
        """Return what the member said for a protocol, b"" when it does not know it."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def touch(self) -> None:
        """Start the session anew."""
        if self.join_reply is None and self.sync_reply is None:
            self.session.set_after(self.session_timeout_ms)


@dataclass(slots=True, eq=False)
class ClassicGroup:
    """A group. Invariants: `static` maps each instance id to a member; a stable group has a leader and a protocol that all
    members share; an empty group has no members.

    `pending`: member ids that were given out and not yet used (MEMBER_ID_REQUIRED), with their deadlines.
    `initial_delay_left_ms`: while a formerly empty group collects its first members, how much longer it may; else None.
    `awaited_syncs`: members of this generation that have not asked for their assignment yet.
    `is_stored`: whether it came from the journal.
    `last_write`: the latest journal write of this group, which later ones are ordered after.
    """

    group_id: str
    join_deadline: Deadline
    sync_deadline: Deadline
    state: GroupState = GroupState.EMPTY
    state_since_ms: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    generation: int = 0
    leader_id: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    static: dict[str, str] = field(default_factory=dict)
    pending: dict[str, Deadline] = field(default_factory=dict)
    awaited_syncs: set[str] = field(default_factory=set)
    initial_delay_left_ms: int | None = None
    has_new_members: bool = False
    is_stored: bool = False
    last_write: Reply | None = None

    kind = GroupKind.CLASSIC

    @property
    def is_dead(self) -> bool:
        return self.state is GroupState.DEAD

    def die(self) -> None:
        """Refuse everything from now on: the group is being deleted."""
        self.state = GroupState.DEAD

    def revive(self) -> None:
        """Go on, as an empty group that could not be deleted."""
        self.state = GroupState.EMPTY

    def cancel_timers(self) -> None:
        sessions = [member.session for member in self.members.values()]
        for deadline in (self.join_deadline, self.sync_deadline, *self.pending.values(), *sessions):
            deadline.cancel()

    @property
    def can_rebalance(self) -> bool:
        return self.state in (GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE)

    @property
    def is_simple(self) -> bool:
        """Whether it only holds offsets: nobody ever joined."""
        return self.state is GroupState.EMPTY and self.protocol_type is None

    @property
    def has_all_joined(self) -> bool:
        return not self.pending and all(member.join_reply is not None for member in self.members.values())

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def move_to(self, state: GroupState, now_ms: int) -> None:
        """Enter a state at a moment of wall time."""
        self.state, self.state_since_ms = state, now_ms

    def add(self, member: Member) -> None:
        assert member.member_id not in self.members, member.member_id
        if not self.members:
            self.leader_id = self.leader_id or member.member_id
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id

    def remove(self, member_id: str) -> Member:
        """Take a member out; a leader that goes is replaced by the oldest member left."""
        member = self.members.pop(member_id)
        member.session.cancel()
        self.awaited_syncs.discard(member_id)
        if member.instance_id is not None and self.static.get(member.instance_id) == member_id:
            del self.static[member.instance_id]
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        return member

    def rename_static(self, member: Member, new_id: str) -> None:
        """Give a static member that came back a new id; it keeps its place, its role and its assignment."""
        assert member.instance_id is not None
        old_id = member.member_id
        member.member_id = new_id
        self.members = {m.member_id: m for m in self.members.values()}
        self.static[member.instance_id] = new_id
        if old_id in self.awaited_syncs:
            self.awaited_syncs.remove(old_id)
            self.awaited_syncs.add(new_id)
        if self.leader_id == old_id:
            self.leader_id = new_id

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member with these protocols can be in the group."""
        if not self.members:
            return bool(protocol_type and protocols)
        return protocol_type == self.protocol_type and not self._shared().isdisjoint(name for name, _ in protocols)

    def select_protocol(self) -> str:
        """Return the protocol that all members share and most put first; between equals the first member decides."""
        shared = self._shared()
        votes = Counter(next(name for name, _ in m.protocols if name in shared) for m in self.members.values())
        first = next(iter(self.members.values()))
        return max((name for name, _ in first.protocols if name in shared), key=lambda name: votes[name])

    def to_stored(self, assignments: Mapping[str, bytes]) -> GroupValue:
        """Return what the journal keeps of the group, with the given assignments (member id -> bytes)."""
        members = tuple(
            StoredMember(
                member_id=m.member_id,
                instance_id=m.instance_id,
                client_id=m.client_id,
                client_host=m.client_host,
                rebalance_timeout_ms=m.rebalance_timeout_ms,
                session_timeout_ms=m.session_timeout_ms,
                subscription=m.metadata(self.protocol_name),
                assignment=assignments.get(m.member_id, b""),
            )
            for m in self.members.values()
        )
        leader, protocol = (self.leader_id, self.protocol_name) if members else (None, None)
        return GroupValue(self.protocol_type or "", self.generation, protocol, leader, self.state_since_ms, members)

    def restore(self, value: GroupValue, give_session: Callable[[Member], None]) -> None:
        """Take over what the journal kept: a group with members is stable, and their sessions begin anew."""
        self.is_stored = True
        self.state = GroupState.STABLE if value.members else GroupState.EMPTY
        self.state_since_ms = value.state_since_ms
        self.protocol_type = value.protocol_type or None
        self.protocol_name, self.generation, self.leader_id = value.protocol, value.generation, value.leader
        for stored in value.members:
            member = Member(
                member_id=stored.member_id,
                instance_id=stored.instance_id,
                client_id=stored.client_id,
                client_host=stored.client_host,
                rebalance_timeout_ms=stored.rebalance_timeout_ms,
                session_timeout_ms=stored.session_timeout_ms,
                protocols=((value.protocol or "", stored.subscription),),
                assignment=stored.assignment,
            )
            give_session(member)
            self.add(member)

    def _shared(self) -> set[str]:
        members = iter(self.members.values())
        shared = {name for name, _ in next(members).protocols}
        for member in members:
            shared.intersection_update(name for name, _ in member.protocols)
        return shared
