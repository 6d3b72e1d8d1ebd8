"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup: messages to the coordinator's terms and back."""

from __future__ import annotations

from logflume.log.broker.access import Operation, Resource
from logflume.log.broker.groups.classic.requests import JoinRequest, JoinResult, SyncRequest, SyncResult
from logflume.log.broker.groups.coordinator import GroupCoordinator
from logflume.log.broker.replies import Reply
from logflume.log.broker.requests import RequestContext
from logflume.log.protocol import messages
from logflume.log.protocol.errors import ErrorCode

FIRST_REBALANCE_TIMEOUT_VERSION = 1
FIRST_REQUIRED_ID_VERSION = 4
FIRST_NULLABLE_PROTOCOL_VERSION = 7
FIRST_SKIPPED_ASSIGNMENT_VERSION = 9
FIRST_BATCHED_LEAVE_VERSION = 3


class MembershipHandlers:
    """The four APIs of group membership."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    def join_group(self, context: RequestContext, request: messages.JoinGroupRequest) -> messages.JoinGroupResponse | Reply:
        if _is_refused(context, request.group_id):
            refused = JoinResult(ErrorCode.GROUP_AUTHORIZATION_FAILED, member_id=request.member_id)
            return _join_response(refused, context.api_version)
        has_rebalance_timeout = context.api_version >= FIRST_REBALANCE_TIMEOUT_VERSION
        join = JoinRequest(
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            client_id=context.client_id or "",
            client_host=f"/{context.host}",
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms if has_rebalance_timeout else request.session_timeout_ms,
            protocol_type=request.protocol_type,
            protocols=tuple((p.name, bytes(p.metadata)) for p in request.protocols),
            is_id_required=context.api_version >= FIRST_REQUIRED_ID_VERSION,
            can_skip_assignment=context.api_version >= FIRST_SKIPPED_ASSIGNMENT_VERSION,
        )
        reply = Reply()
        joined = self._coordinator.join(request.group_id, join)
        joined.then(lambda result: reply.set(_join_response(result, context.api_version)))
        return reply

    def sync_group(self, context: RequestContext, request: messages.SyncGroupRequest) -> messages.SyncGroupResponse | Reply:
        if _is_refused(context, request.group_id):
            return _sync_response(SyncResult(ErrorCode.GROUP_AUTHORIZATION_FAILED))
        sync = SyncRequest(
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            generation=request.generation_id,
            assignments={a.member_id: bytes(a.assignment) for a in request.assignments},
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
        )
        reply = Reply()
        self._coordinator.sync(request.group_id, sync).then(lambda result: reply.set(_sync_response(result)))
        return reply

    def heartbeat(self, context: RequestContext, request: messages.HeartbeatRequest) -> messages.HeartbeatResponse | Reply:
        if _is_refused(context, request.group_id):
            return messages.HeartbeatResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
        error = self._coordinator.heartbeat(request.group_id, request.member_id, request.group_instance_id, request.generation_id)
        return messages.HeartbeatResponse(error_code=error)

    def leave_group(self, context: RequestContext, request: messages.LeaveGroupRequest) -> messages.LeaveGroupResponse | Reply:
        if _is_refused(context, request.group_id):
            return messages.LeaveGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
        is_batched = context.api_version >= FIRST_BATCHED_LEAVE_VERSION
        leaving: list[tuple[str, str | None]] = [(request.member_id, None)]
        if is_batched:
            leaving = [(m.member_id, m.group_instance_id) for m in request.members]
        reply = Reply()
        left = self._coordinator.leave(request.group_id, leaving)
        left.then(lambda errors: reply.set(_leave_response(leaving, errors, is_batched=is_batched)))
        return reply


def _is_refused(context: RequestContext, group_id: str) -> bool:
    """Whether who asks may not be a member of the group."""
    return not context.may(Operation.READ, Resource.GROUP, group_id)


def _join_response(result: JoinResult, version: int) -> messages.JoinGroupResponse:
    no_protocol = None if version >= FIRST_NULLABLE_PROTOCOL_VERSION else ""
    member = messages.JoinGroupResponse.JoinGroupResponseMember
    return messages.JoinGroupResponse(
        error_code=result.error,
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        protocol_name=no_protocol if result.protocol_name is None else result.protocol_name,
        leader=result.leader_id,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=[member(member_id=m.member_id, group_instance_id=m.instance_id, metadata=m.metadata) for m in result.members],
    )


def _sync_response(result: SyncResult) -> messages.SyncGroupResponse:
    return messages.SyncGroupResponse(
        error_code=result.error,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        assignment=result.assignment,
    )


def _leave_response(
    leaving: list[tuple[str, str | None]], errors: list[ErrorCode], *, is_batched: bool
) -> messages.LeaveGroupResponse:
    if not is_batched:
        return messages.LeaveGroupResponse(error_code=errors[0])
    if ErrorCode.INVALID_GROUP_ID in errors:
        return messages.LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    member = messages.LeaveGroupResponse.MemberResponse
    return messages.LeaveGroupResponse(
        members=[
            member(member_id=member_id, group_instance_id=instance_id, error_code=error)
            for (member_id, instance_id), error in zip(leaving, errors, strict=True)
        ]
    )
