"""DescribeGroups, ListGroups, DeleteGroups and FindCoordinator."""

from __future__ import annotations

from collections.abc import Callable

from logflume.log.broker.access import CLUSTER_NAME, Operation, Resource
from logflume.log.broker.groups.classic.group import ClassicGroup, GroupState
from logflume.log.broker.groups.coordinator import GroupCoordinator
from logflume.log.broker.replies import Reply
from logflume.log.broker.requests import RequestContext
from logflume.log.broker.turns.slices import Steps
from logflume.log.protocol import messages
from logflume.log.protocol.errors import ErrorCode

FIRST_NOT_FOUND_VERSION = 6
FIRST_BATCHED_FIND_VERSION = 4
COORDINATOR_KEY_TYPES = {
    0: (Operation.DESCRIBE, Resource.GROUP),
    1: (Operation.DESCRIBE, Resource.TRANSACTIONAL_ID),
    2: (Operation.CLUSTER_ACTION, Resource.CLUSTER),  # share partitions: asked by brokers
}
"""Key type -> the right that the question needs."""
NOT_ASKED = -(1 << 31)
GROUPS_AT_A_TIME = 1_000
"""Listed in one slice of the loop's time."""

NodeOf = Callable[[RequestContext], tuple[int, str, int]]
"""Returns (node id, host, port) under which the asking client reaches this broker."""


class GroupAdminHandlers:
    """The APIs that look at groups from outside."""

    def __init__(self, coordinator: GroupCoordinator, node_of: NodeOf) -> None:
        self._coordinator, self._node_of = coordinator, node_of

    def describe_groups(
        self, context: RequestContext, request: messages.DescribeGroupsRequest
    ) -> messages.DescribeGroupsResponse | Reply:
        described = messages.DescribeGroupsResponse.DescribedGroup
        groups = []
        for group_id in request.groups:
            if not context.may(Operation.DESCRIBE, Resource.GROUP, group_id):
                groups.append(described(group_id=group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED))
                continue
            operations = operations_on(context, group_id, is_wanted=request.include_authorized_operations)
            group = self._coordinator.group(group_id)
            if group is not None:
                groups.append(_describe(group, operations))
                continue
            is_error = context.api_version >= FIRST_NOT_FOUND_VERSION
            groups.append(
                described(
                    error_code=ErrorCode.GROUP_ID_NOT_FOUND if is_error else ErrorCode.NONE,
                    error_message=f"Group {group_id} not found." if is_error else None,
                    group_id=group_id,
                    group_state=GroupState.DEAD.value,
                    authorized_operations=operations,
                )
            )
        return messages.DescribeGroupsResponse(groups=groups)

    def list_groups(self, context: RequestContext, request: messages.ListGroupsRequest) -> Steps:
        """Tell the groups that there are when it begins."""
        states = {state.lower() for state in request.states_filter}
        types = {name.lower() for name in request.types_filter}
        listed = messages.ListGroupsResponse.ListedGroup
        may_see_all = context.may(Operation.DESCRIBE, Resource.CLUSTER, CLUSTER_NAME)
        response = messages.ListGroupsResponse()
        for number, group in enumerate(list(self._coordinator.groups()), start=1):
            group_id, state, kind = group.group_id, str(group.state), group.kind
            if (
                (not states or state.lower() in states)
                and (not types or kind.lower() in types)
                and (may_see_all or context.may(Operation.DESCRIBE, Resource.GROUP, group_id))
            ):
                protocol_type = group.protocol_type or ""
                response.groups.append(listed(group_id=group_id, protocol_type=protocol_type, group_state=state, group_type=kind))
            if number % GROUPS_AT_A_TIME == 0:
                yield None
        return response

    def delete_groups(self, context: RequestContext, request: messages.DeleteGroupsRequest) -> Reply:
        reply = Reply()
        names = list(request.groups_names)
        errors: dict[int, ErrorCode] = {}
        result = messages.DeleteGroupsResponse.DeletableGroupResult

        def on_deleted(index: int, error: ErrorCode) -> None:
            errors[index] = error
            if len(errors) == len(names):
                results = [result(group_id=name, error_code=errors[i]) for i, name in enumerate(names)]
                reply.set(messages.DeleteGroupsResponse(results=results))

        if not names:
            reply.set(messages.DeleteGroupsResponse())
        for index, name in enumerate(names):
            if not context.may(Operation.DELETE, Resource.GROUP, name):
                on_deleted(index, ErrorCode.GROUP_AUTHORIZATION_FAILED)
                continue
            self._coordinator.removal.delete(name).then(lambda error, index=index: on_deleted(index, error))  # type: ignore[misc]
        return reply

    def find_coordinator(
        self, context: RequestContext, request: messages.FindCoordinatorRequest
    ) -> messages.FindCoordinatorResponse | Reply:
        """This broker coordinates every group and transaction."""
        response = messages.FindCoordinatorResponse
        if context.api_version < FIRST_BATCHED_FIND_VERSION:
            error, text, (node_id, host, port) = self._find(context, request.key_type, request.key)
            return response(error_code=error, error_message=text, node_id=node_id, host=host, port=port)
        found = [(key, *self._find(context, request.key_type, key)) for key in request.coordinator_keys]
        return response(
            coordinators=[
                response.Coordinator(key=key, node_id=node_id, host=host, port=port, error_code=error, error_message=text)
                for key, error, text, (node_id, host, port) in found
            ]
        )

    def _find(self, context: RequestContext, key_type: int, key: str) -> tuple[ErrorCode, str | None, tuple[int, str, int]]:
        """Return error, its text, and the node; who asks must be allowed to describe what the coordinator is for."""
        nobody = (-1, "", -1)
        if key_type not in COORDINATOR_KEY_TYPES:
            text = f"unknown coordinator key type {key_type}; expected 0 (group), 1 or 2"
            return ErrorCode.INVALID_REQUEST, text, nobody
        operation, resource = COORDINATOR_KEY_TYPES[key_type]
        name = CLUSTER_NAME if resource is Resource.CLUSTER else key
        if not context.may(operation, resource, name):
            return resource.refusal, resource.refusal.text, nobody
        return ErrorCode.NONE, None, self._node_of(context)


def operations_on(context: RequestContext, group_id: str, *, is_wanted: bool) -> int:
    """Return the operations that who asks may do with a group, if the request wants to know."""
    return context.operations_on(Resource.GROUP, group_id) if is_wanted else NOT_ASKED


def _describe(group: ClassicGroup, operations: int) -> messages.DescribeGroupsResponse.DescribedGroup:
    """Describe a group; only a stable one tells metadata and assignments."""
    is_stable = group.state is GroupState.STABLE
    member = messages.DescribeGroupsResponse.DescribedGroupMember
    return messages.DescribeGroupsResponse.DescribedGroup(
        error_code=ErrorCode.NONE,
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol_name or "") if is_stable else "",
        members=[
            member(
                member_id=m.member_id,
                group_instance_id=m.instance_id,
                client_id=m.client_id,
                client_host=m.client_host,
                member_metadata=m.metadata(group.protocol_name) if is_stable else b"",
                member_assignment=m.assignment if is_stable else b"",
            )
            for m in group.members.values()
        ],
        authorized_operations=operations,
    )
