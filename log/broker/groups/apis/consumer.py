"""ConsumerGroupHeartbeat and ConsumerGroupDescribe (KIP-848): messages to the coordinator's terms and back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat

from logflume.log.broker.access import UNRESTRICTED, Operation, Resource, Rights
from logflume.log.broker.groups.consumer.group import ConsumerGroup, ConsumerMember, may_see_all
from logflume.log.broker.groups.consumer.groups import ConsumerHeartbeat
from logflume.log.broker.groups.coordinator import GroupCoordinator
from logflume.log.broker.groups.epoch_records import Partition, by_topic
from logflume.log.broker.groups.heartbeats import answer_heartbeat, heartbeat_response
from logflume.log.broker.ports import Topics
from logflume.log.broker.replies import Reply
from logflume.log.broker.requests import RequestContext
from logflume.log.broker.turns.slices import Steps
from logflume.log.protocol import messages
from logflume.log.protocol.errors import ErrorCode

from .described import described_groups

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1
"""Types of members of a consumer group (KIP-1099)."""


@dataclass(frozen=True, slots=True)
class MaySee:
    """Whether who has these rights may know of a topic. Not noted where it is denied: an expression names no topic."""

    rights: Rights

    def __call__(self, topic: str) -> bool:
        return self.rights.allows(Operation.DESCRIBE, Resource.TOPIC, topic)


class ConsumerHandlers:
    """The APIs of the consumer protocol."""

    def __init__(self, coordinator: GroupCoordinator, topics: Topics) -> None:
        self._coordinator, self._topics = coordinator, topics

    def heartbeat(
        self, context: RequestContext, request: messages.ConsumerGroupHeartbeatRequest
    ) -> messages.ConsumerGroupHeartbeatResponse | Reply | Steps:
        if not context.may(Operation.READ, Resource.GROUP, request.group_id):
            return _refusal(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if not all(context.may(Operation.DESCRIBE, Resource.TOPIC, name) for name in request.subscribed_topic_names or ()):
            return _refusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        response, said = messages.ConsumerGroupHeartbeatResponse, request.topic_partitions or ()
        return answer_heartbeat(
            partial(_read, context, request),
            self._coordinator.consumer_heartbeat,
            partial(heartbeat_response, response),
            said=sum(len(topic.partitions) for topic in said),
        )

    def describe(
        self, context: RequestContext, request: messages.ConsumerGroupDescribeRequest
    ) -> messages.ConsumerGroupDescribeResponse | Reply:
        return described_groups(
            context,
            request,
            messages.ConsumerGroupDescribeResponse,
            self._coordinator.consumer_group,
            self._topics_of,
            self._describe,
            kind="consumer",
        )

    def _topics_of(self, group: ConsumerGroup) -> set[str]:
        """Return the topics that a description of a group tells of."""
        topics = set()
        for member in group.members.values():
            partitions = (*member.current.assigned, *group.target.get(member.member_id, ()))
            topics |= {self._topics.name_of(topic_id) for topic_id in by_topic(partitions)}
            topics.update(member.metadata.topics)
        return {name for name in topics if name is not None}

    def _describe(self, group: ConsumerGroup, operations: int) -> messages.ConsumerGroupDescribeResponse.DescribedGroup:
        return messages.ConsumerGroupDescribeResponse.DescribedGroup(
            error_code=ErrorCode.NONE,
            group_id=group.group_id,
            group_state=group.state,
            group_epoch=group.epoch,
            assignment_epoch=group.assignment_epoch,
            assignor_name=group.assignor(),
            members=[self._describe_member(group, member) for member in group.members.values()],
            authorized_operations=operations,
        )

    def _describe_member(self, group: ConsumerGroup, member: ConsumerMember) -> messages.ConsumerGroupDescribeResponse.Member:
        return messages.ConsumerGroupDescribeResponse.Member(
            member_id=member.member_id,
            instance_id=member.metadata.instance_id,
            rack_id=member.metadata.rack_id,
            member_epoch=member.current.epoch,
            client_id=member.metadata.client_id,
            client_host=member.metadata.client_host,
            subscribed_topic_names=list(member.metadata.topics),
            subscribed_topic_regex=member.metadata.regex or "",
            assignment=self._assignment(member.current.assigned),
            target_assignment=self._assignment(group.target.get(member.member_id, frozenset())),
            member_type=CLASSIC_MEMBER if member.is_classic else CONSUMER_MEMBER,
        )

    def _assignment(self, partitions: Iterable[Partition]) -> messages.ConsumerGroupDescribeResponse.Assignment:
        response = messages.ConsumerGroupDescribeResponse
        topics = [
            response.TopicPartitions(topic_id=topic_id, topic_name=name, partitions=indexes)
            for topic_id, indexes in by_topic(partitions).items()
            if (name := self._topics.name_of(topic_id)) is not None
        ]
        return response.Assignment(topic_partitions=topics)


def _read(context: RequestContext, request: messages.ConsumerGroupHeartbeatRequest) -> ConsumerHeartbeat:
    owned = None
    if request.topic_partitions is not None:
        owned = frozenset(chain.from_iterable(zip(repeat(bytes(t.topic_id)), t.partitions) for t in request.topic_partitions))
    names = request.subscribed_topic_names
    return ConsumerHeartbeat(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topics=None if names is None else frozenset(names),
        regex=request.subscribed_topic_regex,
        assignor=request.server_assignor,
        owned=owned,
        client_id=context.client_id or "",
        client_host=f"/{context.host}",
        may_see=may_see_all if context.rights is UNRESTRICTED else MaySee(context.rights),
    )


def _refusal(error: ErrorCode) -> messages.ConsumerGroupHeartbeatResponse:
    return messages.ConsumerGroupHeartbeatResponse(error_code=error, error_message=error.text)
