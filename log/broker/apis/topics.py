"""CreateTopics, DeleteTopics, CreatePartitions. Each topic of a request succeeds or fails alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from logflume.log.broker.access import CLUSTER_NAME, Operation, Resource
from logflume.log.broker.core import Core
from logflume.log.broker.quotas import MutationQuota
from logflume.log.broker.replies import refuse
from logflume.log.broker.requests import RequestContext
from logflume.log.broker.security.internal_topics import require_may_change
from logflume.log.broker.settings.table import TOPIC_CONFIGS
from logflume.log.broker.state.metadata import Topic
from logflume.log.broker.turns.slices import Steps
from logflume.log.errors import LogflumeError, StorageError
from logflume.log.protocol import ErrorCode, KafkaError, messages
from logflume.log.protocol.classes import ZERO_UUID

from .topic_changes import create_all, delete_all, extend_all

Asked = messages.CreateTopicsRequest.CreatableTopic
Created = messages.CreateTopicsResponse.CreatableTopicResult
Setting = messages.CreateTopicsResponse.CreatableTopicConfigs
Deleted = messages.DeleteTopicsResponse.DeletableTopicResult
Extended = messages.CreatePartitionsResponse.CreatePartitionsTopicResult
Response = messages.CreateTopicsResponse | messages.DeleteTopicsResponse | messages.CreatePartitionsResponse
BROKER_DEFAULT = UNKNOWN = -1
CHECKS_AT_A_TIME, ANSWERS_AT_A_TIME = 100, 20
"""Topics in one slice of the loop's time."""
STRICT_CREATE_VERSION, STRICT_DELETE_VERSION, STRICT_GROW_VERSION = 6, 5, 3
"""From these versions on clients know THROTTLING_QUOTA_EXCEEDED (KIP-599)."""


def create_topics(core: Core, context: RequestContext, request: messages.CreateTopicsRequest) -> Steps:
    """Create topics, or with `validate_only` say whether that would work."""
    response = messages.CreateTopicsResponse()
    quota = core.quotas.mutations(context, is_strict=context.api_version >= STRICT_CREATE_VERSION)
    may_create_all = context.may(Operation.CREATE, Resource.CLUSTER, CLUSTER_NAME)
    times = Counter(topic.name for topic in request.topics)
    problem = _too_many(core, len(times))
    wanted: dict[str, tuple[Created, Topic]] = {}
    partitions = 0
    for number, asked in enumerate({topic.name: topic for topic in request.topics}.values(), start=1):
        answer = Created(name=asked.name, error_message=None)
        response.topics.append(answer)
        try:
            if problem:
                raise problem
            if times[asked.name] > 1:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, f"topic {asked.name!r} is named {times[asked.name]} times in one request"
                )
            if not may_create_all:
                context.require(Operation.CREATE, Resource.TOPIC, asked.name)
            require_may_change(context, asked.name)
            topic = _checked(core, asked, partitions)
            if quota is not None:
                quota.take(topic.partition_count)
            wanted[asked.name] = answer, topic
            partitions += topic.partition_count
        except LogflumeError as error:
            refuse(answer, error)
        if number % CHECKS_AT_A_TIME == 0:
            yield None
    if not request.validate_only:
        yield from _make(core, wanted)
    for number, (answer, topic) in enumerate(wanted.values(), start=1):
        _tell(core, context, answer, topic, is_made=not request.validate_only)
        if number % ANSWERS_AT_A_TIME == 0:
            yield None
    _tell_quota(quota, response)
    return response


def _make(core: Core, wanted: dict[str, tuple[Created, Topic]]) -> Steps:
    """Make the topics; those that could not be are answered so and left out."""
    for name, (answer, topic) in list(wanted.items()):
        try:  # again, for somebody else may have been faster
            core.topic_rules.check_new(name, topic.partition_count, {})
        except LogflumeError as error:
            refuse(answer, error)
            del wanted[name]
    errors = yield from create_all(core, [topic for _, topic in wanted.values()])
    for name, problem in errors.items():
        refuse(wanted.pop(name)[0], problem)


def _tell(core: Core, context: RequestContext, answer: Created, topic: Topic, *, is_made: bool) -> None:
    if is_made:
        answer.topic_id = topic.topic_id
    answer.num_partitions, answer.replication_factor = topic.partition_count, 1
    if context.may(Operation.DESCRIBE_CONFIGS, Resource.TOPIC, topic.name):
        answer.configs = _described(core, topic.configs)
    else:
        answer.num_partitions = answer.replication_factor = UNKNOWN
        answer.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def _described(core: Core, configs: Mapping[str, str]) -> list[Setting]:
    return [
        Setting(name=name, value=found.value, config_source=found.source)
        for name in TOPIC_CONFIGS
        for found in [core.config.lookup_topic(name, configs)]
    ]


def _checked(core: Core, asked: Asked, others: int) -> Topic:
    """Return the topic that is asked for, beside so many partitions of others. Raises LogflumeError."""
    partition_count = _partition_count(core, asked)
    if not asked.assignments and asked.replication_factor not in (BROKER_DEFAULT, 1):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {asked.replication_factor}: this cluster has 1 broker; use 1",
        )
    configs = {config.name: _config_value(config) for config in asked.configs}
    core.topic_rules.check_new(asked.name, partition_count, configs, others=others)
    return core.new_topic(asked.name, partition_count, configs)


def _config_value(config: messages.CreateTopicsRequest.CreatableTopicConfig) -> str:
    if config.value is None:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"config {config.name} has no value; leave it out for the default")
    return config.value


def _partition_count(core: Core, asked: Asked) -> int:
    if not asked.assignments:
        return core.config.number("num.partitions") if asked.num_partitions == BROKER_DEFAULT else asked.num_partitions
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


def delete_topics(core: Core, context: RequestContext, request: messages.DeleteTopicsRequest) -> Steps:
    """Delete topics by name or (version 6) by id."""
    response = messages.DeleteTopicsResponse()
    quota = core.quotas.mutations(context, is_strict=context.api_version >= STRICT_DELETE_VERSION)
    asked = [(each.name, each.topic_id) for each in request.topics] or [(name, ZERO_UUID) for name in request.topic_names]
    problem = _too_many(core, len(asked))
    wanted: dict[bytes, tuple[Deleted, Topic]] = {}
    for number, (name, topic_id) in enumerate(asked, start=1):
        answer = Deleted(name=name, topic_id=topic_id)
        response.responses.append(answer)
        try:
            if problem:
                raise problem
            topic = _deletable(core, context, name, topic_id, answer)
            if not core.config.is_on("delete.topic.enable"):
                raise KafkaError(ErrorCode.TOPIC_DELETION_DISABLED, "delete.topic.enable is false")
            require_may_change(context, topic.name)
            if topic.topic_id in wanted:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic.name} is named before in this request")
            if quota is not None:
                quota.take(topic.partition_count)
            wanted[topic.topic_id] = answer, topic
        except LogflumeError as error:
            refuse(answer, error)
        if number % CHECKS_AT_A_TIME == 0:
            yield None
    yield from _unmake(core, wanted)
    _tell_quota(quota, response)
    return response


def _unmake(core: Core, wanted: dict[bytes, tuple[Deleted, Topic]]) -> Steps:
    for topic_id, (answer, topic) in list(wanted.items()):
        try:  # again, for somebody else may have been faster
            _existing(core, None, topic_id)
            core.topic_rules.check_not_busy(topic.name)
        except LogflumeError as error:
            refuse(answer, error)
            del wanted[topic_id]
    try:
        errors: Mapping[str, LogflumeError] = yield from delete_all(core, [topic for _, topic in wanted.values()])
    except StorageError as error:
        errors = {topic.name: error for _, topic in wanted.values()}
    for answer, topic in wanted.values():
        if topic.name in errors:
            refuse(answer, errors[topic.name])
        else:
            answer.name, answer.topic_id = topic.name, topic.topic_id


def _deletable(core: Core, context: RequestContext, name: str | None, topic_id: bytes, answer: Deleted) -> Topic:
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


def create_partitions(core: Core, context: RequestContext, request: messages.CreatePartitionsRequest) -> Steps:
    """Give topics more partitions, or with `validate_only` say whether that would work (KIP-195)."""
    response = messages.CreatePartitionsResponse()
    quota = core.quotas.mutations(context, is_strict=context.api_version >= STRICT_GROW_VERSION)
    problem = _too_many(core, len(request.topics))
    wanted: dict[str, tuple[Extended, int]] = {}
    more = 0
    for number, asked in enumerate(request.topics, start=1):
        answer = Extended(name=asked.name)
        response.results.append(answer)
        try:
            if problem:
                raise problem
            context.require(Operation.ALTER, Resource.TOPIC, asked.name)
            topic = _existing(core, asked.name, ZERO_UUID)
            require_may_change(context, topic.name)
            if asked.name in wanted:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"topic {asked.name!r} is named twice in one request")
            core.topic_rules.check_more_partitions(topic, asked.count, others=more)
            _check_new_assignments(core, topic, asked)
            if quota is not None:
                quota.take(asked.count - topic.partition_count)
            wanted[asked.name] = answer, asked.count
            more += asked.count - topic.partition_count
        except LogflumeError as error:
            refuse(answer, error)
        if number % CHECKS_AT_A_TIME == 0:
            yield None
    if not request.validate_only:
        yield from _extend(core, wanted)
    _tell_quota(quota, response)
    return response


def _extend(core: Core, wanted: dict[str, tuple[Extended, int]]) -> Steps:
    for name, (answer, count) in list(wanted.items()):
        try:  # again, for somebody else may have been faster
            core.topic_rules.check_more_partitions(_existing(core, name, ZERO_UUID), count)
        except LogflumeError as error:
            refuse(answer, error)
            del wanted[name]
    errors = yield from extend_all(core, {name: count for name, (_, count) in wanted.items()})
    for name, problem in errors.items():
        refuse(wanted[name][0], problem)


def _tell_quota(quota: MutationQuota | None, response: Response) -> None:
    """Put into the response for how long the client must be quiet; the shell sees to it."""
    if quota is not None:
        response.throttle_time_ms = quota.wait_ms


def _check_new_assignments(core: Core, topic: Topic, asked: messages.CreatePartitionsRequest.CreatePartitionsTopic) -> None:
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
        core.topic_rules.check_request_size(topics)
    except KafkaError as error:
        return error
    return None
