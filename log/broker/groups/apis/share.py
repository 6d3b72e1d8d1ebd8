"""ShareGroupHeartbeat and ShareGroupDescribe (KIP-932): messages to the groups' terms and back."""

from __future__ import annotations

from logflume.log.broker.access import Operation, Resource
from logflume.log.broker.groups.epoch_records import by_topic
from logflume.log.broker.groups.heartbeats import heartbeat_response
from logflume.log.broker.groups.share.assignor import SIMPLE
from logflume.log.broker.groups.share.group import ShareGroup, ShareMember
from logflume.log.broker.groups.share.groups import ShareGroups, ShareHeartbeat
from logflume.log.broker.ports import Topics
from logflume.log.broker.replies import Reply
from logflume.log.broker.requests import RequestContext
from logflume.log.protocol import messages
from logflume.log.protocol.errors import ErrorCode

from .described import described_groups


class ShareGroupHandlers:
    """The APIs about members."""

    def __init__(self, groups: ShareGroups, topics: Topics) -> None:
        self._groups, self._topics = groups, topics

    def heartbeat(
        self, context: RequestContext, request: messages.ShareGroupHeartbeatRequest
    ) -> messages.ShareGroupHeartbeatResponse | Reply:
        names = request.subscribed_topic_names
        if not context.may(Operation.READ, Resource.GROUP, request.group_id):
            return _refusal(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if not all(context.may(Operation.DESCRIBE, Resource.TOPIC, name) for name in names or ()):
            return _refusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        beat = ShareHeartbeat(
            group_id=request.group_id,
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            rack_id=request.rack_id,
            topics=None if names is None else tuple(names),
            client_id=context.client_id or "",
            client_host=f"/{context.host}",
        )
        reply = Reply()
        self._groups.heartbeat(beat).then(
            lambda result: reply.set(heartbeat_response(messages.ShareGroupHeartbeatResponse, result))
        )
        return reply

    def describe(
        self, context: RequestContext, request: messages.ShareGroupDescribeRequest
    ) -> messages.ShareGroupDescribeResponse | Reply:
        return described_groups(
            context, request, messages.ShareGroupDescribeResponse, self._groups.get, _topics_of, self._describe, kind="share"
        )

    def _describe(self, group: ShareGroup, operations: int) -> messages.ShareGroupDescribeResponse.DescribedGroup:
        return messages.ShareGroupDescribeResponse.DescribedGroup(
            group_id=group.group_id,
            group_state=group.state,
            group_epoch=group.epoch,
            assignment_epoch=group.assignment_epoch,
            assignor_name=SIMPLE,
            members=[self._describe_member(member) for member in group.members.values()],
            authorized_operations=operations,
        )

    def _describe_member(self, member: ShareMember) -> messages.ShareGroupDescribeResponse.Member:
        response = messages.ShareGroupDescribeResponse
        topics = [
            response.TopicPartitions(topic_id=topic_id, topic_name=name, partitions=indexes)
            for topic_id, indexes in by_topic(member.current.assigned).items()
            if (name := self._topics.name_of(topic_id)) is not None
        ]
        return response.Member(
            member_id=member.member_id,
            rack_id=member.metadata.rack_id,
            member_epoch=member.current.epoch,
            client_id=member.metadata.client_id,
            client_host=member.metadata.client_host,
            subscribed_topic_names=list(member.metadata.topics),
            assignment=response.Assignment(topic_partitions=topics),
        )


def _refusal(error: ErrorCode) -> messages.ShareGroupHeartbeatResponse:
    return messages.ShareGroupHeartbeatResponse(error_code=error, error_message=error.text)


def _topics_of(group: ShareGroup) -> set[str]:
    return {name for member in group.members.values() for name in member.metadata.topics}
