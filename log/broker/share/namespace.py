"""One namespace of group ids: share groups beside the groups of the other coordinator, in the APIs that are about both.

A wrapper around the handlers of the group coordinator: what names a share group is answered here, all else goes through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from ...protocol import messages
from ...protocol.errors import ErrorCode
from ..access import CLUSTER_NAME, Operation, Resource
from ..groups.group_admin_handlers import GROUPS_AT_A_TIME
from ..seams import Handler, Reply, RequestContext
from ..slices import Steps
from .membership import ShareGroups
from .partitions import SharePartitions

SHARE_TYPE, SHARE_PROTOCOL = "Share", "share"


def _refuse_join(request: Any) -> Any:
    return messages.JoinGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id=request.member_id)


def _refuse_consumer(request: Any) -> Any:
    text = f"Group {request.group_id} is not a consumer group."
    return messages.ConsumerGroupHeartbeatResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message=text)


def _refuse_streams(request: Any) -> Any:
    text = f"Group {request.group_id} is not a streams group."
    return messages.StreamsGroupHeartbeatResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message=text)


def _refuse_offsets(request: Any) -> Any:
    response = messages.OffsetCommitResponse
    topic_class, partition_class = response.OffsetCommitResponseTopic, response.OffsetCommitResponsePartition
    return response(
        topics=[
            topic_class(name=topic.name, topic_id=topic.topic_id, partitions=_not_found(topic, partition_class))
            for topic in request.topics
        ]
    )


def _refuse_txn_offsets(request: Any) -> Any:
    response = messages.TxnOffsetCommitResponse
    topic_class, partition_class = response.TxnOffsetCommitResponseTopic, response.TxnOffsetCommitResponsePartition
    return response(
        topics=[topic_class(name=topic.name, partitions=_not_found(topic, partition_class)) for topic in request.topics]
    )


def _not_found(topic: Any, partition_class: Any) -> list[Any]:
    error = ErrorCode.GROUP_ID_NOT_FOUND
    return [partition_class(partition_index=each.partition_index, error_code=error) for each in topic.partitions]


REFUSALS: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        "JoinGroup": _refuse_join,
        "ConsumerGroupHeartbeat": _refuse_consumer,
        "StreamsGroupHeartbeat": _refuse_streams,
        "OffsetCommit": _refuse_offsets,
        "TxnOffsetCommit": _refuse_txn_offsets,
    }
)
"""What an API answers that is not for share groups."""


class GroupNamespace:
    """Handlers of APIs that name groups of any kind."""

    def __init__(self, inner: Mapping[str, Handler], groups: ShareGroups, partitions: SharePartitions) -> None:
        self._inner, self._groups, self._partitions = inner, groups, partitions

    def handlers(self) -> dict[str, Handler]:
        """Return the inner handlers with those that know of share groups in place of some."""
        refusing = {name: partial(self._refuse, name) for name in REFUSALS if name in self._inner}
        return {**self._inner, **refusing, "ListGroups": self._list_groups, "DeleteGroups": self._delete_groups}

    def _refuse(self, api: str, context: RequestContext, request: Any) -> Any:
        """Refuse what names a share group; whoever may not read it learns nothing from that."""
        is_share = self._groups.get(request.group_id) is not None
        if is_share and context.may(Operation.READ, Resource.GROUP, request.group_id):
            return REFUSALS[api](request)
        return self._inner[api](context, request)

    def _list_groups(self, context: RequestContext, request: Any) -> Steps:
        response = yield from self._inner["ListGroups"](context, request)
        states = {state.lower() for state in request.states_filter}
        types = {name.lower() for name in request.types_filter}
        may_see_all = context.may(Operation.DESCRIBE, Resource.CLUSTER, CLUSTER_NAME)
        if types and SHARE_TYPE.lower() not in types:
            return response
        for number, group in enumerate(list(self._groups.all()), start=1):
            group_id, state = group.group_id, group.state
            is_asked_for = not states or state.lower() in states
            if is_asked_for and (may_see_all or context.may(Operation.DESCRIBE, Resource.GROUP, group_id)):
                response.groups.append(
                    response.ListedGroup(
                        group_id=group_id, protocol_type=SHARE_PROTOCOL, group_state=state, group_type=SHARE_TYPE
                    )
                )
            if number % GROUPS_AT_A_TIME == 0:
                yield None
        return response

    def _delete_groups(self, context: RequestContext, request: Any) -> Any:
        names = list(request.groups_names)
        known = [name for name in names if self._groups.get(name) is not None]
        own = [name for name in known if context.may(Operation.DELETE, Resource.GROUP, name)]
        if not own:
            return self._inner["DeleteGroups"](context, request)
        errors: dict[str, ErrorCode] = {}
        reply = Reply()
        request.groups_names = [name for name in names if name not in own]

        def finish() -> None:
            if all(name in errors for name in names):
                result = messages.DeleteGroupsResponse.DeletableGroupResult
                results = [result(group_id=name, error_code=errors[name]) for name in names]
                reply.set(messages.DeleteGroupsResponse(results=results))

        def on_others(response: Any) -> None:
            errors.update((each.group_id, each.error_code) for each in response.results)
            finish()

        def on_deleted(name: str, error: ErrorCode) -> None:
            errors[name] = error
            finish()

        for name in dict.fromkeys(own):
            self.delete(name).then(lambda error, name=name: on_deleted(name, error))  # type: ignore[misc]
        if request.groups_names:
            others = self._inner["DeleteGroups"](context, request)
            others.then(on_others) if isinstance(others, Reply) else on_others(others)
        return reply

    def delete(self, group_id: str) -> Reply:
        """Delete a share group without members, its state first; the reply is an ErrorCode."""
        reply = Reply()
        group = self._groups.get(group_id)
        if group is None or group.members:
            reply.set(ErrorCode.NON_EMPTY_GROUP if group else ErrorCode.GROUP_ID_NOT_FOUND)
            return reply
        keys = self._partitions.keys(group_id=group_id)

        def on_deleted(error: ErrorCode) -> None:
            if error:
                reply.set(error)
            else:
                self._groups.delete(group_id).then(reply.set)

        self._partitions.delete(keys).then(on_deleted)
        return reply
