"""Metadata, DescribeTopicPartitions, DescribeCluster: what there is and where. One broker, which leads everything."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from typing import Any

from logflume.log.broker.access import CLUSTER_NAME, Operation, Resource
from logflume.log.broker.core import LEADER_EPOCH, Core
from logflume.log.broker.replies import Reply
from logflume.log.broker.requests import RequestContext
from logflume.log.broker.security.internal_topics import change_refusal
from logflume.log.broker.state.metadata import Topic
from logflume.log.broker.topic_rules import check_topic_name
from logflume.log.broker.turns.slices import Steps
from logflume.log.errors import LogflumeError
from logflume.log.protocol import ErrorCode, KafkaError, messages
from logflume.log.protocol.classes import ZERO_UUID

from .topic_changes import create_all

NOT_ASKED = -(2**31)
BROKER_ENDPOINTS = 1
PARTITIONS_AT_A_TIME = 500
"""Partitions, and topics, that are described in one slice of the loop's time."""
NULL_NAME_FROM_VERSION = 12


def metadata(core: Core, context: RequestContext, request: messages.MetadataRequest) -> Steps:
    """Describe topics, all of them for null; creates missing ones if the client and the broker allow it."""
    response = messages.MetadataResponse(cluster_id=core.cluster_id, controller_id=core.node_id)
    host, port = address(core, context)
    response.brokers.append(response.MetadataResponseBroker(node_id=core.node_id, host=host, port=port, rack=rack(core)))
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = _cluster_operations(context)
    is_asked = request.include_topic_authorized_operations
    asked: Iterable[Any]
    if request.topics is None or (context.api_version == 0 and not request.topics):
        topics = list(core.cluster.topics.values())
        asked = (topic for topic in topics if context.may(Operation.DESCRIBE, Resource.TOPIC, topic.name))
        failed: dict[str, LogflumeError] = {}
    else:
        asked = {(each.name, each.topic_id): each for each in request.topics}.values()
        failed = yield from _create_missing(core, context, request, response)
    left = PARTITIONS_AT_A_TIME
    for each in asked:
        try:
            topic = each if isinstance(each, Topic) else _find(core, context, each, failed)
        except LogflumeError as error:
            name = each.name or "" if context.api_version < NULL_NAME_FROM_VERSION else each.name
            answer = response.MetadataResponseTopic(name=name, topic_id=each.topic_id)
            answer.error_code = error.number if isinstance(error, KafkaError) else ErrorCode.KAFKA_STORAGE_ERROR
            left -= 1
        else:
            answer = _describe(core, topic, _topic_operations(context, topic.name, is_asked))
            left -= 1 + topic.partition_count
        response.topics.append(answer)
        if left <= 0:
            left = PARTITIONS_AT_A_TIME
            yield None
    return response


def _topic_operations(context: RequestContext, topic: str, is_asked: bool) -> int:
    return context.operations_on(Resource.TOPIC, topic) if is_asked else NOT_ASKED


def _cluster_operations(context: RequestContext) -> int:
    if not context.may(Operation.DESCRIBE, Resource.CLUSTER, CLUSTER_NAME):
        return 0
    return context.operations_on(Resource.CLUSTER, CLUSTER_NAME)


def address(core: Core, context: RequestContext) -> tuple[str, int]:
    """Return the host and port of this broker for clients of the listener that the request came by."""
    found = core.addresses.get(context.listener)
    return (found.host, found.port) if found else ("", -1)


def rack(core: Core) -> str | None:
    """Return the rack of this broker, None without one."""
    return core.config.text("broker.rack") or None


def _find(
    core: Core, context: RequestContext, asked: messages.MetadataRequest.MetadataRequestTopic, failed: Mapping[str, LogflumeError]
) -> Topic:
    """Return the topic; whether it exists is told only to those who may describe it. Raises LogflumeError."""
    if asked.topic_id != ZERO_UUID:
        topic = core.cluster.by_id.get(asked.topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        context.require(Operation.DESCRIBE, Resource.TOPIC, topic.name)
        return topic
    if asked.name is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a topic without a name and without an id")
    context.require(Operation.DESCRIBE, Resource.TOPIC, asked.name)
    topic = core.cluster.topics.get(asked.name)
    if topic is None:
        check_topic_name(asked.name)
        raise failed.get(asked.name) or KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topic=asked.name)
    return topic


def _create_missing(
    core: Core, context: RequestContext, request: messages.MetadataRequest, response: messages.MetadataResponse
) -> Generator[Reply | None, None, dict[str, LogflumeError]]:
    """Create the topics that are asked for by name and missing, if client and broker allow it; return why some could not be."""
    asked = request.topics or []
    missing = {each.name for each in asked if each.topic_id == ZERO_UUID and each.name is not None}
    missing -= core.cluster.topics.keys()
    is_small = len(asked) <= core.config.number("logflume.request.max.topics")
    quota = core.quotas.mutations(context, is_strict=False)
    failed: dict[str, LogflumeError] = {}
    wanted: list[Topic] = []
    if missing and is_small and request.allow_auto_topic_creation and core.config.is_on("auto.create.topics.enable"):
        partition_count = core.config.number("num.partitions")
        for number, name in enumerate(sorted(missing), start=1):
            if number % PARTITIONS_AT_A_TIME == 0:
                yield None
            if change_refusal(context, name):
                continue
            try:
                context.require(Operation.DESCRIBE, Resource.TOPIC, name)
                if not context.may(Operation.CREATE, Resource.CLUSTER, CLUSTER_NAME):
                    context.require(Operation.CREATE, Resource.TOPIC, name)
                core.topic_rules.check_new(name, partition_count, {}, others=partition_count * len(wanted))
                if quota is not None:
                    quota.take(partition_count)
                wanted.append(core.new_topic(name, partition_count, {}))
            except LogflumeError as error:
                failed[name] = error
        failed |= yield from create_all(core, wanted)
    response.throttle_time_ms = 0 if quota is None else quota.wait_ms
    return failed


def _describe(core: Core, topic: Topic, operations: int) -> messages.MetadataResponse.MetadataResponseTopic:
    response = messages.MetadataResponse
    return response.MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        topic_authorized_operations=operations,
        partitions=[
            response.MetadataResponsePartition(partition_index=index, **_replicas(core, topic.name, index))
            for index in range(topic.partition_count)
        ],
    )


def _replicas(core: Core, topic: str, index: int) -> dict[str, Any]:
    """Return the fields that say where a partition is: on this node; one that is offline has no leader."""
    node = core.node_id
    if core.partition(topic, index) is None:
        error = ErrorCode.LEADER_NOT_AVAILABLE
        return {"error_code": error, "leader_id": -1, "replica_nodes": [node], "isr_nodes": [], "offline_replicas": [node]}
    return {"leader_id": node, "leader_epoch": LEADER_EPOCH, "replica_nodes": [node], "isr_nodes": [node]}


def describe_topic_partitions(
    core: Core, context: RequestContext, request: messages.DescribeTopicPartitionsRequest
) -> messages.DescribeTopicPartitionsResponse | Reply:
    """Describe topics by name in pages of at most `response_partition_limit` partitions (KIP-966)."""
    response = messages.DescribeTopicPartitionsResponse()
    names = sorted(each.name for each in request.topics) or sorted(
        name for name in core.cluster.topics if context.may(Operation.DESCRIBE, Resource.TOPIC, name)
    )
    left = max(1, min(request.response_partition_limit, core.config.number("max.request.partition.size.limit")))
    cursor = request.cursor
    for name in names:
        first = 0
        if cursor is not None:
            if name < cursor.topic_name:
                continue
            first = cursor.partition_index if name == cursor.topic_name else 0
        if left <= 0:
            response.next_cursor = response.Cursor(topic_name=name, partition_index=0)
            return response
        answer = response.DescribeTopicPartitionsResponseTopic(name=name)
        response.topics.append(answer)
        if not context.may(Operation.DESCRIBE, Resource.TOPIC, name):
            answer.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            continue
        topic = core.cluster.topics.get(name)
        if topic is None:
            answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            continue
        answer.topic_id, answer.is_internal = topic.topic_id, topic.is_internal
        answer.topic_authorized_operations = context.operations_on(Resource.TOPIC, name)
        last = min(topic.partition_count, first + left)
        answer.partitions = [_describe_partition(core, topic.name, index) for index in range(first, last)]
        left -= last - first
        if last < topic.partition_count:
            response.next_cursor = response.Cursor(topic_name=name, partition_index=last)
            return response
    return response


def _describe_partition(
    core: Core, topic: str, index: int
) -> messages.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition:
    return messages.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition(
        partition_index=index, eligible_leader_replicas=[], last_known_elr=[], **_replicas(core, topic, index)
    )


def describe_cluster(
    core: Core, context: RequestContext, request: messages.DescribeClusterRequest
) -> messages.DescribeClusterResponse | Reply:
    """Describe the cluster: this broker (KIP-700)."""
    response = messages.DescribeClusterResponse(
        cluster_id=core.cluster_id, controller_id=core.node_id, endpoint_type=request.endpoint_type
    )
    if request.endpoint_type != BROKER_ENDPOINTS:
        response.error_code = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        response.error_message = "this node answers as a broker; ask for endpoint type 1"
        return response
    host, port = address(core, context)
    response.brokers.append(response.DescribeClusterBroker(broker_id=core.node_id, host=host, port=port, rack=rack(core)))
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = _cluster_operations(context)
    return response
