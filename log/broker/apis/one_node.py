"""APIs that are about several nodes, answered truthfully by the only one: it leads, it votes, nothing can be moved elsewhere."""

from __future__ import annotations

from typing import TypeVar

from logflume.log.broker.core import LEADER_EPOCH, Core
from logflume.log.broker.requests import RequestContext
from logflume.log.broker.state.features import DOCUMENT as FEATURES
from logflume.log.broker.state.features import SAFE_DOWNGRADE, UPGRADE
from logflume.log.broker.turns.slices import Steps
from logflume.log.errors import LogflumeError
from logflume.log.protocol import ErrorCode, KafkaError, detail_of, messages

from .metadata import address

METADATA_TOPIC, METADATA_PARTITION = "__cluster_metadata", 0
VoterRequest = messages.AddRaftVoterRequest | messages.RemoveRaftVoterRequest
Voted = TypeVar("Voted", messages.AddRaftVoterResponse, messages.RemoveRaftVoterResponse)
ANSWERS_AT_A_TIME = 1_000
"""In one slice of the loop's time."""
METADATA_END = 0
"""The metadata is a file, not a log: there are no offsets, and nobody is behind."""


def alter_replica_log_dirs(core: Core, context: RequestContext, request: messages.AlterReplicaLogDirsRequest) -> Steps:
    """Move replicas to another directory: there is one, in which they are (KIP-113)."""
    response = messages.AlterReplicaLogDirsResponse()
    left = ANSWERS_AT_A_TIME
    for directory in request.dirs:
        for topic in directory.topics:
            result = response.AlterReplicaLogDirTopicResult(topic_name=topic.name)
            response.results.append(result)
            left -= 1
            for index in topic.partitions:
                left -= 1
                if left <= 0:
                    left = ANSWERS_AT_A_TIME
                    yield None
                error = ErrorCode.NONE
                if directory.path != core.data_dir.path:
                    error = ErrorCode.LOG_DIR_NOT_FOUND
                elif core.partition(topic.name, index) is None:
                    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                result.partitions.append(response.AlterReplicaLogDirPartitionResult(partition_index=index, error_code=error))
    return response


def alter_partition_reassignments(
    core: Core, context: RequestContext, request: messages.AlterPartitionReassignmentsRequest
) -> messages.AlterPartitionReassignmentsResponse:
    """Give partitions other replicas: this broker is the only one there is (KIP-455)."""
    response = messages.AlterPartitionReassignmentsResponse(
        error_message=None, allow_replication_factor_change=request.allow_replication_factor_change
    )
    for topic in request.topics:
        result = response.ReassignableTopicResponse(name=topic.name)
        response.responses.append(result)
        for each in topic.partitions:
            answer = response.ReassignablePartitionResponse(partition_index=each.partition_index, error_message=None)
            result.partitions.append(answer)
            if core.partition(topic.name, each.partition_index) is None:
                answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif each.replicas is None:
                answer.error_code = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
            elif each.replicas != [core.node_id]:
                answer.error_code = ErrorCode.INVALID_REPLICA_ASSIGNMENT
                answer.error_message = f"expected replicas [{core.node_id}], the only broker, found {each.replicas[:10]}"
    return response


def describe_quorum(
    core: Core, context: RequestContext, request: messages.DescribeQuorumRequest
) -> messages.DescribeQuorumResponse:
    """Tell who leads and votes on the cluster's metadata: this node alone (KIP-595, KIP-836)."""
    response = messages.DescribeQuorumResponse(error_message=None)
    for topic in request.topics:
        result = response.TopicData(topic_name=topic.topic_name)
        response.topics.append(result)
        for each in topic.partitions:
            answer = response.PartitionData(partition_index=each.partition_index, error_message=None)
            result.partitions.append(answer)
            if (topic.topic_name, each.partition_index) != (METADATA_TOPIC, METADATA_PARTITION):
                answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            now_ms = core.clock.wall_ms()
            answer.leader_id, answer.leader_epoch, answer.high_watermark = core.node_id, LEADER_EPOCH, METADATA_END
            answer.current_voters = [
                response.ReplicaState(
                    replica_id=core.node_id,
                    log_end_offset=METADATA_END,
                    last_fetch_timestamp=now_ms,
                    last_caught_up_timestamp=now_ms,
                )
            ]
    host, port = address(core, context)
    listener = response.Listener(name=context.listener, host=host, port=max(port, 0))
    response.nodes = [response.Node(node_id=core.node_id, listeners=[listener])]
    return response


def unregister_broker(
    core: Core, context: RequestContext, request: messages.UnregisterBrokerRequest
) -> messages.UnregisterBrokerResponse:
    """Forget a broker (KIP-631): others are not known, and this one is at work."""
    response = messages.UnregisterBrokerResponse()
    if request.broker_id == core.node_id:
        response.error_code = ErrorCode.INVALID_REQUEST
        response.error_message = f"broker {core.node_id} is the only one of its cluster; stop it and delete its directory instead"
    else:
        response.error_code = ErrorCode.BROKER_ID_NOT_REGISTERED
        response.error_message = f"broker {request.broker_id} is not known; this cluster has broker {core.node_id} only"
    return response


def add_raft_voter(core: Core, context: RequestContext, request: messages.AddRaftVoterRequest) -> messages.AddRaftVoterResponse:
    """Let a node vote (KIP-853): the voters are fixed."""
    return _refuse_voter(core, request, messages.AddRaftVoterResponse())


def remove_raft_voter(
    core: Core, context: RequestContext, request: messages.RemoveRaftVoterRequest
) -> messages.RemoveRaftVoterResponse:
    """Take a node's vote (KIP-853): the voters are fixed."""
    return _refuse_voter(core, request, messages.RemoveRaftVoterResponse())


def _refuse_voter(core: Core, request: VoterRequest, response: Voted) -> Voted:
    if request.cluster_id is not None and request.cluster_id != core.cluster_id:
        response.error_code = ErrorCode.INCONSISTENT_CLUSTER_ID
    else:
        response.error_code = ErrorCode.UNSUPPORTED_VERSION
        response.error_message = "kraft.version 0: this node is the only voter, and the set of voters cannot be changed"
    return response


def update_features(core: Core, context: RequestContext, request: messages.UpdateFeaturesRequest) -> Steps:
    """Raise or lower features: all of a request or none (KIP-584)."""
    return (yield from core.cluster.in_turn(FEATURES, _update_features(core, context, request)))


def _update_features(core: Core, context: RequestContext, request: messages.UpdateFeaturesRequest) -> Steps:
    response = messages.UpdateFeaturesResponse(error_message=None)
    levels: dict[str, int] = {}
    try:
        for update in request.feature_updates:
            if update.feature in levels:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"feature {update.feature[:100]!r} is named twice in one request")
            upgrade_type = update.upgrade_type
            if context.api_version == 0:
                upgrade_type = SAFE_DOWNGRADE if update.allow_downgrade else UPGRADE
            core.features.check(update.feature, update.max_version_level, upgrade_type)
            levels[update.feature] = update.max_version_level
        if not (context.api_version > 0 and request.validate_only):
            yield from core.features.set_levels(levels)
    except LogflumeError as error:
        response.error_code = error.number if isinstance(error, KafkaError) else ErrorCode.KAFKA_STORAGE_ERROR
        response.error_message = detail_of(error)
    for number, update in enumerate(request.feature_updates, start=1):
        response.results.append(
            response.UpdatableFeatureResult(
                feature=update.feature, error_code=response.error_code, error_message=response.error_message
            )
        )
        if number % ANSWERS_AT_A_TIME == 0:
            yield None
    return response
