"""StreamsGroupHeartbeat and StreamsGroupDescribe (KIP-1071): messages to the coordinator's terms and back."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Protocol

from logflume.log.broker.access import CLUSTER_NAME, Operation, Resource
from logflume.log.broker.groups.heartbeats import answer_heartbeat
from logflume.log.broker.groups.streams.assignor import NO_TASKS, Tasks
from logflume.log.broker.groups.streams.configured import Configured
from logflume.log.broker.groups.streams.group import StreamsGroup, StreamsMember
from logflume.log.broker.groups.streams.groups import MayCreate, StreamsHeartbeat, StreamsResult
from logflume.log.broker.groups.streams.records import by_subtopology, task_ids, tasks_of
from logflume.log.broker.groups.streams.topology import InternalTopic, Subtopology, Topology, read_topology
from logflume.log.broker.ports import GroupSettings, Topics
from logflume.log.broker.replies import Reply
from logflume.log.broker.requests import RequestContext
from logflume.log.broker.security.internal_topics import change_refusal
from logflume.log.broker.turns.slices import Steps
from logflume.log.protocol import messages
from logflume.log.protocol.errors import ErrorCode

from .described import described_groups

NOT_SUPPORTED = {
    "instance_id": "Static membership is not yet supported.",
    "task_offsets": "TaskOffsets are not supported yet.",
    "task_end_offsets": "TaskEndOffsets are not supported yet.",
}
"""Fields that Kafka 4.3 knows and refuses, with what it says."""


class Coordinator(Protocol):
    """The group coordinator, as far as these APIs need it."""

    @property
    def settings(self) -> GroupSettings: ...

    def streams_group(self, group_id: str) -> StreamsGroup | None: ...

    def streams_heartbeat(self, beat: StreamsHeartbeat, may_create: MayCreate) -> Reply: ...


class StreamsHandlers:
    """The APIs of streams groups."""

    def __init__(self, coordinator: Coordinator, topics: Topics) -> None:
        self._coordinator, self._topics = coordinator, topics

    # -- heartbeat

    def heartbeat(
        self, context: RequestContext, request: messages.StreamsGroupHeartbeatRequest
    ) -> messages.StreamsGroupHeartbeatResponse | Reply | Steps:
        if not context.may(Operation.READ, Resource.GROUP, request.group_id):
            return _refusal(ErrorCode.GROUP_AUTHORIZATION_FAILED, None)
        problem = _unsupported(request)
        if problem:
            return _refusal(ErrorCode.INVALID_REQUEST, problem)
        topology = None if request.topology is None else read_topology(request.topology)
        if topology is not None and not all(
            context.may(Operation.DESCRIBE, Resource.TOPIC, name) for name in sorted(topology.topics())
        ):
            return _refusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED, None)

        def may_create(topic: str) -> bool:
            if change_refusal(context, topic):
                return False
            return context.may(Operation.CREATE, Resource.CLUSTER, CLUSTER_NAME) or context.may(
                Operation.CREATE, Resource.TOPIC, topic
            )

        return answer_heartbeat(
            partial(_heartbeat, context, request, topology),
            lambda beat: self._coordinator.streams_heartbeat(beat, may_create),
            partial(self._response, request.group_id),
            said=sum(len(ids.partitions) for tasks in (request.active_tasks, request.standby_tasks) for ids in tasks or ()),
        )

    def _response(self, group_id: str, result: StreamsResult) -> messages.StreamsGroupHeartbeatResponse:
        if result.error:
            return _refusal(result.error, result.message)
        response = messages.StreamsGroupHeartbeatResponse
        answer = response(
            member_id=result.member_id,
            member_epoch=result.member_epoch,
            heartbeat_interval_ms=self._coordinator.settings.number("streams.heartbeat.interval.ms", group_id),
            endpoint_information_epoch=result.endpoint_epoch,
            status=[response.Status(status_code=status, status_detail=text) for status, text in result.status],
        )
        if result.tasks is not None:
            answer.active_tasks = task_ids(response.TaskIds, result.tasks.active)
            answer.standby_tasks = task_ids(response.TaskIds, result.tasks.standby)
            answer.warmup_tasks = []
        if result.endpoints is not None:
            group = self._coordinator.streams_group(group_id)
            configured = None if group is None else group.configured
            answer.partitions_by_user_endpoint = [
                response.EndpointToPartitions(
                    user_endpoint=response.Endpoint(host=host, port=port),
                    active_partitions=self._partitions(configured, tasks.active),
                    standby_partitions=self._partitions(configured, tasks.standby),
                )
                for (host, port), tasks in result.endpoints
            ]
        return answer

    def _partitions(
        self, configured: Configured | None, tasks: Iterable[tuple[str, int]]
    ) -> list[messages.StreamsGroupHeartbeatResponse.TopicPartition]:
        """Return the partitions that tasks read, by topic."""
        partition = messages.StreamsGroupHeartbeatResponse.TopicPartition
        if configured is None:
            return []
        inputs = {each.subtopology_id: each.inputs for each in configured.topology.subtopologies}
        return [
            partition(topic=topic, partitions=[i for i in indexes if i < self._topics.partition_count(topic)])
            for subtopology_id, indexes in by_subtopology(tasks).items()
            for topic in inputs.get(subtopology_id, ())
        ]

    # -- describe

    def describe(
        self, context: RequestContext, request: messages.StreamsGroupDescribeRequest
    ) -> messages.StreamsGroupDescribeResponse | Reply:
        return described_groups(
            context,
            request,
            messages.StreamsGroupDescribeResponse,
            self._coordinator.streams_group,
            _topics_of,
            _describe,
            kind="streams",
        )


def _topics_of(group: StreamsGroup) -> Iterable[str]:
    return group.topology.topics() if group.topology else ()


def _unsupported(request: messages.StreamsGroupHeartbeatRequest) -> str | None:
    problem = next((text for name, text in NOT_SUPPORTED.items() if getattr(request, name) is not None), None)
    if problem:
        return problem
    if request.warmup_tasks:
        return "WarmupTasks are not supported yet."
    if request.topology is not None and any(each.source_topic_regex for each in request.topology.subtopologies):
        return "Regular expressions for source topics are not supported yet."
    told = [request.active_tasks, request.standby_tasks, request.warmup_tasks]
    if any(tasks is not None for tasks in told) and any(tasks is None for tasks in told):
        return "If one task-type is non-null, all must be non-null."
    return None


def _heartbeat(
    context: RequestContext, request: messages.StreamsGroupHeartbeatRequest, topology: Topology | None
) -> StreamsHeartbeat:
    owned = None
    if request.active_tasks is not None:
        owned = Tasks(tasks_of(request.active_tasks), tasks_of(request.standby_tasks or ()))
    endpoint = request.user_endpoint
    return StreamsHeartbeat(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topology=topology,
        owned=owned,
        process_id=request.process_id,
        endpoint=None if endpoint is None else (endpoint.host, endpoint.port),
        tags=None if request.client_tags is None else tuple(sorted((tag.key, tag.value) for tag in request.client_tags)),
        endpoint_epoch=request.endpoint_information_epoch,
        is_shutdown=request.shutdown_application,
        client_id=context.client_id or "",
        client_host=f"/{context.host}",
    )


def _refusal(error: ErrorCode, text: str | None) -> messages.StreamsGroupHeartbeatResponse:
    return messages.StreamsGroupHeartbeatResponse(error_code=error, error_message=text, status=[])


def _describe(group: StreamsGroup, operations: int) -> messages.StreamsGroupDescribeResponse.DescribedGroup:
    described = messages.StreamsGroupDescribeResponse.DescribedGroup
    topology = None
    if group.topology is not None:
        topology = messages.StreamsGroupDescribeResponse.Topology(
            epoch=group.topology.epoch,
            subtopologies=[_describe_subtopology(each, group.configured) for each in group.topology.subtopologies],
        )
    return described(
        error_code=ErrorCode.NONE,
        group_id=group.group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        topology=topology,
        members=[_describe_member(group, member) for member in group.members.values()],
        authorized_operations=operations,
    )


def _describe_subtopology(
    subtopology: Subtopology, configured: Configured | None
) -> messages.StreamsGroupDescribeResponse.Subtopology:
    response = messages.StreamsGroupDescribeResponse
    tasks = configured.task_counts.get(subtopology.subtopology_id, 0) if configured else 0

    def infos(topics: tuple[InternalTopic, ...]) -> list[messages.StreamsGroupDescribeResponse.TopicInfo]:
        return [
            response.TopicInfo(
                name=topic.name,
                partitions=topic.partitions or tasks,
                replication_factor=topic.replication_factor,
                topic_configs=[response.KeyValue(key=key, value=text) for key, text in topic.configs],
            )
            for topic in sorted(topics, key=lambda topic: topic.name)
        ]

    return response.Subtopology(
        subtopology_id=subtopology.subtopology_id,
        source_topics=sorted(subtopology.sources),
        repartition_sink_topics=sorted(subtopology.sinks),
        state_changelog_topics=infos(subtopology.changelogs),
        repartition_source_topics=infos(subtopology.repartitions),
    )


def _describe_member(group: StreamsGroup, member: StreamsMember) -> messages.StreamsGroupDescribeResponse.Member:
    response = messages.StreamsGroupDescribeResponse
    metadata = member.metadata

    def assignment(tasks: Tasks) -> messages.StreamsGroupDescribeResponse.Assignment:
        active, standby = task_ids(response.TaskIds, tasks.active), task_ids(response.TaskIds, tasks.standby)
        return response.Assignment(active_tasks=active, standby_tasks=standby)

    return response.Member(
        member_id=member.member_id,
        member_epoch=member.current.epoch,
        rack_id=metadata.rack_id,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        topology_epoch=metadata.topology_epoch,
        process_id=metadata.process_id,
        user_endpoint=None
        if metadata.endpoint is None
        else response.Endpoint(host=metadata.endpoint[0], port=metadata.endpoint[1]),
        client_tags=[response.KeyValue(key=key, value=text) for key, text in metadata.tags],
        assignment=assignment(member.current.assigned),
        target_assignment=assignment(group.target.get(member.member_id, NO_TASKS)),
    )
