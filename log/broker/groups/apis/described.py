"""What the three APIs that describe groups with epochs have in common: who may know of a group, and which there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from logflume.log.broker.access import Operation, Resource
from logflume.log.broker.requests import RequestContext
from logflume.log.protocol import MessageBase, messages
from logflume.log.protocol.errors import ErrorCode

from .admin import operations_on

Request = messages.ConsumerGroupDescribeRequest | messages.ShareGroupDescribeRequest | messages.StreamsGroupDescribeRequest
HIDDEN = "The group has described topic(s) that the client is not authorized to describe."
_Group = TypeVar("_Group")
_Response = TypeVar(
    "_Response",
    messages.ConsumerGroupDescribeResponse,
    messages.ShareGroupDescribeResponse,
    messages.StreamsGroupDescribeResponse,
)


def described_groups(
    context: RequestContext,
    request: Request,
    response: type[_Response],
    find: Callable[[str], _Group | None],
    topics_of: Callable[[_Group], Iterable[str]],
    describe: Callable[[_Group, int], MessageBase],
    *,
    kind: str,
) -> _Response:
    """Return the answer, of class `response`: each group described, or why it is not.

    `topics_of` are the topics that a description would tell of; `kind` is what such a group is called.
    """
    refused = response.DescribedGroup
    groups: list[Any] = []
    for group_id in request.group_ids:
        if not context.may(Operation.DESCRIBE, Resource.GROUP, group_id):
            groups.append(refused(group_id=group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED))
            continue
        group = find(group_id)
        if group is None:
            text = f"Group {group_id} is not a {kind} group."
            groups.append(
                refused(group_id=group_id, error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message=text, group_state="Dead")
            )
        elif all(context.may(Operation.DESCRIBE, Resource.TOPIC, name) for name in topics_of(group)):
            operations = operations_on(context, group_id, is_wanted=request.include_authorized_operations)
            groups.append(describe(group, operations))
        else:
            groups.append(refused(group_id=group_id, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, error_message=HIDDEN))
    return response(groups=groups)
