"""What a classic member asks and is told: joins and syncs, and their answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from logflume.log.protocol.errors import ErrorCode

from .group import ClassicGroup, GroupState, Member, Protocols


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A wish to be a member. `is_id_required`: a new dynamic member is first told its id (JoinGroup 4 and newer);
    `can_skip_assignment`: the client understands that a returning leader need not assign (JoinGroup 9)."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    is_id_required: bool = True
    can_skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class JoinedMember:
    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinResult:
    """The answer to a join; `members` is filled for the leader only."""

    error: ErrorCode
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """A wish for the assignment. `assignments` (member id -> bytes) comes from the leader only; `protocol_type` and
    `protocol_name` are compared when they are given (SyncGroup 5)."""

    member_id: str
    instance_id: str | None
    generation: int
    assignments: Mapping[str, bytes]
    protocol_type: str | None = None
    protocol_name: str | None = None


@dataclass(frozen=True, slots=True)
class SyncResult:
    error: ErrorCode
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol_name: str | None = None


def join_result(group: ClassicGroup, member: Member, *, with_members: bool) -> JoinResult:
    """Return what a member of the group's generation is told."""
    members = tuple(
        JoinedMember(m.member_id, m.instance_id, m.metadata(group.protocol_name))
        for m in (group.members.values() if with_members else ())
    )
    return JoinResult(
        error=ErrorCode.NONE,
        member_id=member.member_id,
        generation=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader_id=group.leader_id or "",
        members=members,
    )


def sync_result(group: ClassicGroup, member: Member) -> SyncResult:
    """Return what a member is told once the assignments are on disk."""
    return SyncResult(ErrorCode.NONE, member.assignment, group.protocol_type, group.protocol_name)


def check_member(group: ClassicGroup, member_id: str, instance_id: str | None) -> ErrorCode:
    """Return FENCED_INSTANCE_ID when another member took the instance id over, UNKNOWN_MEMBER_ID for a stranger."""
    if instance_id is not None:
        holder = group.static.get(instance_id)
        if holder is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if holder == member_id else ErrorCode.FENCED_INSTANCE_ID
    return ErrorCode.NONE if member_id in group.members else ErrorCode.UNKNOWN_MEMBER_ID


def sync_refusal(group: ClassicGroup, request: SyncRequest) -> ErrorCode:
    """Return why a sync is refused, NONE if it is not."""
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    error = check_member(group, request.member_id, request.instance_id)
    if error:
        return error
    if request.generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    for given, actual in ((request.protocol_type, group.protocol_type), (request.protocol_name, group.protocol_name)):
        if given is not None and given != actual:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.REBALANCE_IN_PROGRESS if group.state is GroupState.PREPARING_REBALANCE else ErrorCode.NONE
