"""CreateTopics, DeleteTopics, CreatePartitions. Each topic of a request succeeds or fails alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

from logflume.log.errors import LogflumeError
from logflume.log.protocol import ErrorCode, KafkaError, detail_of, messages
from logflume.log.protocol.classes import ZERO_UUID

from .access import CLUSTER_NAME, Operation, Resource
from .cluster import Topic
from .config_specs import TOPIC_CONFIGS
from .core import Core
from .internal_topics import require_may_change
from .quotas import MutationQuota
from .seams import RequestContext

BROKER_DEFAULT = UNKNOWN = -1
STRICT_CREATE_VERSION, STRICT_DELETE_VERSION, STRICT_GROW_VERSION = 6, 5, 3
"""From these versions on clients know THROTTLING_QUOTA_EXCEEDED (KIP-599)."""


def create_topics(core: Core, context: RequestContext, request: Any) -> Any:
    """Create topics, or with `validate_only` say whether that would work."""
    response = messages.CreateTopicsResponse()
    quota = core.quotas.mutations(context, is_strict=context.api_version >= STRICT_CREATE_VERSION)
    may_create_all = context.may(Operation.CREATE, Resource.CLUSTER, CLUSTER_NAME)
    times = Counter(topic.name for topic in request.topics)
    problem = _too_many(core, len(times))
    for name, count in times.items():
        answer = response.CreatableTopicResult(name=name, error_message=None)
        response.topics.append(answer)
        asked = next(topic for topic in request.topics if topic.name == name)
        try:
            if problem:
                raise problem
            if count > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"topic {name!r} is named {count} times in one request")
            if not may_create_all:
                context.require(Operation.CREATE, Resource.TOPIC, name)
            require_may_change(context, name)
            configs = _create(core, asked, answer, quota, is_dry=request.validate_only)
        except LogflumeError as error:
            _fail(answer, error)
            continue
        if context.may(Operation.DESCRIBE_CONFIGS, Resource.TOPIC, name):
            answer.configs = _described(core, response, configs)
        else:
            answer.num_partitions = answer.replication_factor = UNKNOWN
            answer.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    _tell_quota(quota, response)
    return response


def _described(core: Core, response: Any, configs: dict[str, str]) -> list[Any]:
    return [
        response.CreatableTopicConfigs(name=name, value=found.value, config_source=found.source)
        for name in TOPIC_CONFIGS
        for found in [core.config.lookup_topic(name, configs)]
    ]


def _create(core: Core, asked: Any, answer: Any, quota: MutationQuota | None, *, is_dry: bool) -> dict[str, str]:
    """Create one topic unless it is dry; return its configs. Raises LogflumeError."""
    partition_count = _partition_count(core, asked)
    if not asked.assignments and asked.replication_factor not in (BROKER_DEFAULT, 1):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {asked.replication_factor}: this cluster has 1 broker; use 1",
        )
    configs = {config.name: _config_value(config) for config in asked.configs}
    core.check_new_topic(asked.name, partition_count, configs)
    if quota is not None:
        quota.take(partition_count)
    if not is_dry:
        answer.topic_id = core.create_topic(asked.name, partition_count, configs).topic_id
    answer.num_partitions, answer.replication_factor = partition_count, 1
    return configs


def _config_value(config: Any) -> str:
    if config.value is None:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"config {config.name} has no value; leave it out for the default")
    value: str = config.value
    return value


def _partition_count(core: Core, asked: Any) -> int:
    if not asked.assignments:
        count: int = asked.num_partitions
        return core.config.number("num.partitions") if count == BROKER_DEFAULT else count
    if asked.num_partitions != BROKER_DEFAULT or asked.replication_factor != BROKER_DEFAULT:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "give either replica assignments or a number of partitions and replicas")
    indexes = sorted(each.partition_index for each in asked.assignments)
    if indexes != list(range(len(indexes))):
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"expected partitions 0 to {len(indexes) - 1}, found {indexes}")
    for each in asked.assignments:
        _check_brokers(core, each.broker_ids)
    return len(indexes)


def _check_brokers(core: Core, broker_ids: list[int]) -> None:
    if broker_ids != [core.node_id]:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"expected replicas [{core.node_id}], the only broker, found {broker_ids}"
        )


def delete_topics(core: Core, context: RequestContext, request: Any) -> Any:
    """Delete topics by name or (version 6) by id."""
    response = messages.DeleteTopicsResponse()
    quota = core.quotas.mutations(context, is_strict=context.api_version >= STRICT_DELETE_VERSION)
    asked = [(each.name, each.topic_id) for each in request.topics] or [(name, ZERO_UUID) for name in request.topic_names]
    problem = _too_many(core, len(asked))
    for name, topic_id in asked:
        answer = response.DeletableTopicResult(name=name, topic_id=topic_id)
        response.responses.append(answer)
        try:
            if problem:
                raise problem
            topic = _deletable(core, context, name, topic_id, answer)
            if not core.config.is_on("delete.topic.enable"):
                raise KafkaError(ErrorCode.TOPIC_DELETION_DISABLED, "delete.topic.enable is false")
            require_may_change(context, topic.name)
            if quota is not None:
                quota.take(topic.partition_count)
            core.delete_topic(topic)
        except LogflumeError as error:
            _fail(answer, error)
            continue
        answer.name, answer.topic_id = topic.name, topic.topic_id
    _tell_quota(quota, response)
    return response


def _deletable(core: Core, context: RequestContext, name: str | None, topic_id: bytes, answer: Any) -> Topic:
    """Return the topic to delete; its name is told only to those who may describe it. Raises KafkaError."""
    may_delete_all = context.may(Operation.DELETE, Resource.CLUSTER, CLUSTER_NAME)
    if topic_id == ZERO_UUID and not may_delete_all:
        context.require(Operation.DESCRIBE, Resource.TOPIC, name or "")
    topic = _existing(core, name, topic_id)
    if not may_delete_all:
        if context.may(Operation.DESCRIBE, Resource.TOPIC, topic.name):
            answer.name = topic.name
        context.require(Operation.DELETE, Resource.TOPIC, topic.name)
    return topic


def _existing(core: Core, name: str | None, topic_id: bytes) -> Topic:
    if topic_id != ZERO_UUID:
        topic = core.cluster.by_id.get(topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        return topic
    topic = core.cluster.topics.get(name or "")
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topic=name)
    return topic


def create_partitions(core: Core, context: RequestContext, request: Any) -> Any:
    """Give topics more partitions, or with `validate_only` say whether that would work (KIP-195)."""
    response = messages.CreatePartitionsResponse()
    quota = core.quotas.mutations(context, is_strict=context.api_version >= STRICT_GROW_VERSION)
    problem = _too_many(core, len(request.topics))
    for asked in request.topics:
        answer = response.CreatePartitionsTopicResult(name=asked.name)
        response.results.append(answer)
        try:
            if problem:
                raise problem
            context.require(Operation.ALTER, Resource.TOPIC, asked.name)
            topic = _existing(core, asked.name, ZERO_UUID)
            require_may_change(context, topic.name)
            core.check_more_partitions(topic, asked.count)
            _check_new_assignments(core, topic, asked)
            if quota is not None:
                quota.take(asked.count - topic.partition_count)
            if not request.validate_only:
                core.add_partitions(topic, asked.count)
        except LogflumeError as error:
            _fail(answer, error)
    _tell_quota(quota, response)
    return response


def _tell_quota(quota: MutationQuota | None, response: Any) -> None:
    """Put into the response for how long the client must be quiet; the shell sees to it."""
    if quota is not None:
        response.throttle_time_ms = quota.wait_ms


def _check_new_assignments(core: Core, topic: Topic, asked: Any) -> None:
    if not asked.assignments:
        return
    new = asked.count - topic.partition_count
    if len(asked.assignments) != new:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"expected assignments of {new} new partitions, found {len(asked.assignments)}"
        )
    for each in asked.assignments:
        _check_brokers(core, each.broker_ids)


def _too_many(core: Core, topics: int) -> KafkaError | None:
    """Return the error of a request with too many topics, None for any other."""
    try:
        core.check_request_size(topics)
    except KafkaError as error:
        return error
    return None


def _fail(answer: Any, error: LogflumeError) -> None:
    answer.error_code = error.number if isinstance(error, KafkaError) else ErrorCode.KAFKA_STORAGE_ERROR
    answer.error_message = detail_of(error)
