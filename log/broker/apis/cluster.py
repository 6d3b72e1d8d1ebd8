"""Small questions about the broker: versions, producers, log directories, elections and reassignments (there are none)."""

from __future__ import annotations

from collections.abc import Iterable

from logflume.log.broker.access import Operation, Resource
from logflume.log.broker.core import Core
from logflume.log.broker.requests import RequestContext
from logflume.log.broker.state.features import SUPPORTED, Features
from logflume.log.broker.turns.slices import Steps
from logflume.log.errors import StorageError
from logflume.log.protocol import ErrorCode, messages, tables

PRODUCE = 0
TOPIC_RESOURCE, BROKER_RESOURCE, BROKER_LOGGER_RESOURCE, CLIENT_METRICS_RESOURCE, GROUP_RESOURCE = 2, 4, 8, 16, 32

PARTITIONS_AT_A_TIME = 500
"""Partitions that are measured in one slice of the loop's time."""


def api_versions(handled: Iterable[int], features: Features) -> messages.ApiVersionsResponse:
    """Return the ApiVersions response for a broker that handles these API keys and has these features.

    Produce is advertised from version 0 although 0 to 2 are refused: older librdkafka otherwise turns compression off.
    """
    response = messages.ApiVersionsResponse(finalized_features_epoch=features.epoch)
    for name, most in SUPPORTED.items():
        response.supported_features.append(response.SupportedFeatureKey(name=name, min_version=0, max_version=most))
        level = features.levels[name]
        if level:
            response.finalized_features.append(
                response.FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
            )
    for key in sorted(handled):
        first, last = tables.api(key).versions
        response.api_keys.append(response.ApiVersion(api_key=key, min_version=0 if key == PRODUCE else first, max_version=last))
    return response


def init_idempotent_producer(core: Core) -> messages.InitProducerIdResponse:
    """Return the answer to InitProducerId of a producer without transactions: a new id, epoch 0."""
    response = messages.InitProducerIdResponse()
    try:
        response.producer_id, response.producer_epoch = core.cluster.new_producer_id(), 0
    except StorageError:
        response.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    return response


def describe_log_dirs(core: Core, context: RequestContext, request: messages.DescribeLogDirsRequest) -> Steps:
    """Tell the size of partitions (KIP-113, KIP-827)."""
    response = messages.DescribeLogDirsResponse()
    result = response.DescribeLogDirsResult(log_dir=core.data_dir.path)
    response.results.append(result)
    asked = None if request.topics is None else {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    total_bytes, left = 0, PARTITIONS_AT_A_TIME
    for topic in list(core.cluster.topics.values()):
        answer = response.DescribeLogDirsTopic(name=topic.name)
        left -= topic.partition_count
        if left <= 0:
            left = PARTITIONS_AT_A_TIME
            yield None
        for index in range(topic.partition_count):
            partition = core.partition(topic.name, index)
            if partition is None or (asked is not None and (topic.name, index) not in asked):
                continue
            size_bytes = partition.log.size_bytes
            total_bytes += size_bytes
            answer.partitions.append(response.DescribeLogDirsPartition(partition_index=index, partition_size=size_bytes))
        if answer.partitions:
            result.topics.append(answer)
    free_bytes = core.free_bytes()
    result.usable_bytes, result.total_bytes = free_bytes, free_bytes + total_bytes
    return response


def describe_producers(
    core: Core, context: RequestContext, request: messages.DescribeProducersRequest
) -> messages.DescribeProducersResponse:
    """List what partitions remember of their producers (KIP-664)."""
    response = messages.DescribeProducersResponse()
    for topic in request.topics:
        out = response.TopicResponse(name=topic.name)
        response.topics.append(out)
        for index in topic.partition_indexes:
            answer = response.PartitionResponse(partition_index=index)
            out.partitions.append(answer)
            partition = core.partition(topic.name, index)
            if not context.may(Operation.READ, Resource.TOPIC, topic.name):
                answer.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                continue
            if partition is None:
                answer.error_code = core.missing(topic.name, index)
                continue
            answer.active_producers = [
                response.ProducerState(
                    producer_id=producer_id,
                    producer_epoch=state.epoch,
                    last_sequence=state.batches[-1].last_sequence if state.batches else -1,
                    last_timestamp=state.last_timestamp_ms,
                    coordinator_epoch=state.coordinator_epoch,
                    current_txn_start_offset=state.txn_first_offset,
                )
                for producer_id, state in partition.log.producers().items()
            ]
    return response


def elect_leaders(core: Core, context: RequestContext, request: messages.ElectLeadersRequest) -> messages.ElectLeadersResponse:
    """Answer that no election is needed: the one broker leads everything (KIP-183, KIP-460)."""
    response = messages.ElectLeadersResponse()
    asked = request.topic_partitions
    if asked is None:
        return response
    for topic in asked:
        result = response.ReplicaElectionResult(topic=topic.topic)
        response.replica_election_results.append(result)
        for index in topic.partitions:
            is_there = core.partition(topic.topic, index) is not None
            error = ErrorCode.ELECTION_NOT_NEEDED if is_there else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            result.partition_result.append(
                response.PartitionResult(partition_id=index, error_code=error, error_message=error.text)
            )
    return response


def list_partition_reassignments(
    core: Core, context: RequestContext, request: messages.ListPartitionReassignmentsRequest
) -> messages.ListPartitionReassignmentsResponse:
    """Answer that nothing is being reassigned (KIP-455)."""
    return messages.ListPartitionReassignmentsResponse(error_message=None)


def list_config_resources(
    core: Core, context: RequestContext, request: messages.ListConfigResourcesRequest
) -> messages.ListConfigResourcesResponse:
    """List what has configs: topics, the broker, groups and client metrics subscriptions with their own (KIP-1142).

    Version 0 knows client metrics subscriptions only (KIP-1000).
    """
    response = messages.ListConfigResourcesResponse()
    names: dict[int, Iterable[str]] = {
        CLIENT_METRICS_RESOURCE: core.client_metrics.configs,
        TOPIC_RESOURCE: core.cluster.topics,
        BROKER_RESOURCE: (str(core.node_id),),
        BROKER_LOGGER_RESOURCE: (str(core.node_id),),
        GROUP_RESOURCE: core.cluster.group_configs,
    }
    wanted = {CLIENT_METRICS_RESOURCE} if context.api_version == 0 else set(request.resource_types or names)
    if not wanted <= names.keys():
        response.error_code = ErrorCode.UNSUPPORTED_VERSION
        return response
    response.config_resources = [
        response.ConfigResource(resource_name=name, resource_type=resource)
        for resource, own in names.items()
        if resource in wanted
        for name in own
    ]
    return response
