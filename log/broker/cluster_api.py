"""Small questions: ApiVersions, InitProducerId without a transaction, DescribeLogDirs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from logflume.log.errors import StorageError
from logflume.log.protocol import ErrorCode, messages, tables

from .core import Core
from .seams import RequestContext

PRODUCE = 0
FEATURES = {"group.version": 1, "transaction.version": 2}
"""Features by name with their level. group.version 1: the consumer protocol (KIP-848); transaction.version 2: an epoch of
its own for each transaction (KIP-890)."""


def api_versions(handled: Iterable[int]) -> Any:
    """Return the ApiVersions response for a broker that handles these API keys.

    Produce is advertised from version 0 although 0 to 2 are refused: older librdkafka otherwise turns compression off.
    """
    response = messages.ApiVersionsResponse(finalized_features_epoch=0)
    for name, level in FEATURES.items():
        response.supported_features.append(response.SupportedFeatureKey(name=name, min_version=0, max_version=level))
        response.finalized_features.append(
            response.FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
        )
    for key in sorted(handled):
        first, last = tables.api(key).versions
        response.api_keys.append(response.ApiVersion(api_key=key, min_version=0 if key == PRODUCE else first, max_version=last))
    return response


def init_idempotent_producer(core: Core) -> Any:
    """Return the answer to InitProducerId of a producer without transactions: a new id, epoch 0."""
    response = messages.InitProducerIdResponse()
    try:
        response.producer_id, response.producer_epoch = core.cluster.new_producer_id(), 0
    except StorageError:
        response.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    return response


def describe_log_dirs(core: Core, context: RequestContext, request: Any) -> Any:
    """Tell the size of partitions (KIP-113, KIP-827)."""
    response = messages.DescribeLogDirsResponse()
    result = response.DescribeLogDirsResult(log_dir=core.data_dir.path)
    response.results.append(result)
    asked = None if request.topics is None else {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    total_bytes = 0
    for topic in core.cluster.topics.values():
        answer = response.DescribeLogDirsTopic(name=topic.name)
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
