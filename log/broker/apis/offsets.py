"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords: questions and cuts by offset."""

from __future__ import annotations

from logflume.log.broker.access import CLUSTER_NAME, Operation, Resource
from logflume.log.broker.core import LEADER_EPOCH, Core, Partition
from logflume.log.broker.requests import RequestContext
from logflume.log.broker.security.internal_topics import change_refusal
from logflume.log.errors import LogflumeError
from logflume.log.protocol import ErrorCode, messages
from logflume.log.storage import OffsetOutOfRange

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
READ_COMMITTED = 1
TO_THE_END = -1


def list_offsets(core: Core, context: RequestContext, request: messages.ListOffsetsRequest) -> messages.ListOffsetsResponse:
    """Find offsets by time or by a special timestamp (KIP-79, KIP-734)."""
    response = messages.ListOffsetsResponse()
    for topic in request.topics:
        out = response.ListOffsetsTopicResponse(name=topic.name)
        response.topics.append(out)
        is_allowed = context.may(Operation.DESCRIBE, Resource.TOPIC, topic.name)
        for each in topic.partitions:
            answer = response.ListOffsetsPartitionResponse(partition_index=each.partition_index)
            out.partitions.append(answer)
            if not is_allowed:
                answer.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                continue
            partition = core.partition(topic.name, each.partition_index)
            answer.error_code = _refusal(core, topic.name, each.partition_index, each.current_leader_epoch)
            if partition is None or answer.error_code:
                continue
            is_committed = request.isolation_level == READ_COMMITTED
            try:
                answer.timestamp, answer.offset, answer.leader_epoch = _find(partition, each.timestamp, is_committed=is_committed)
            except LogflumeError:
                answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
                continue
            if answer.timestamp == _UNKNOWN_QUESTION:
                answer.error_code, answer.timestamp = ErrorCode.UNSUPPORTED_VERSION, -1
    return response


_UNKNOWN_QUESTION = -(2**40)


def _find(partition: Partition, timestamp: int, *, is_committed: bool) -> tuple[int, int, int]:
    """Return (timestamp, offset, leader epoch), offset -1 for none."""
    log = partition.log
    end = log.last_stable_offset if is_committed else log.durable_offset
    if timestamp == LATEST:
        return -1, end, LEADER_EPOCH
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return -1, log.log_start_offset, LEADER_EPOCH
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return -1, -1, -1
    if timestamp < 0 and timestamp != MAX_TIMESTAMP:
        return _UNKNOWN_QUESTION, -1, -1
    found = log.max_timestamp() if timestamp == MAX_TIMESTAMP else log.offset_for_time(timestamp)
    if found is None or found.offset >= end:
        return -1, -1, -1
    return found.timestamp_ms, found.offset, max(found.leader_epoch, LEADER_EPOCH)


def _refusal(core: Core, topic: str, index: int, leader_epoch: int) -> ErrorCode:
    if core.partition(topic, index) is None:
        return core.missing(topic, index)
    return ErrorCode.UNKNOWN_LEADER_EPOCH if leader_epoch > LEADER_EPOCH else ErrorCode.NONE


def offset_for_leader_epoch(
    core: Core, context: RequestContext, request: messages.OffsetForLeaderEpochRequest
) -> messages.OffsetForLeaderEpochResponse:
    """Tell where an epoch ended, for truncation detection (KIP-320)."""
    response = messages.OffsetForLeaderEpochResponse()
    is_broker = context.rights.allows(Operation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER_NAME)
    for topic in request.topics:
        out = response.OffsetForLeaderTopicResult(topic=topic.topic)
        response.topics.append(out)
        is_allowed = is_broker or context.may(Operation.DESCRIBE, Resource.TOPIC, topic.topic)
        for each in topic.partitions:
            answer = response.EpochEndOffset(partition=each.partition)
            out.partitions.append(answer)
            if not is_allowed:
                answer.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                continue
            partition = core.partition(topic.topic, each.partition)
            answer.error_code = _refusal(core, topic.topic, each.partition, each.current_leader_epoch)
            if partition is None or answer.error_code:
                continue
            if each.leader_epoch == LEADER_EPOCH:
                answer.leader_epoch, answer.end_offset = LEADER_EPOCH, partition.log.durable_offset
            else:
                answer.leader_epoch, answer.end_offset = partition.log.end_offset_for_epoch(each.leader_epoch)
    return response


def delete_records(core: Core, context: RequestContext, request: messages.DeleteRecordsRequest) -> messages.DeleteRecordsResponse:
    """Move log start offsets up (KIP-107). Offset -1 means the high watermark."""
    response = messages.DeleteRecordsResponse()
    for topic in request.topics:
        out = response.DeleteRecordsTopicResult(name=topic.name)
        response.topics.append(out)
        foreign = change_refusal(context, topic.name)
        for each in topic.partitions:
            answer = response.DeleteRecordsPartitionResult(partition_index=each.partition_index, low_watermark=-1)
            out.partitions.append(answer)
            partition = core.partition(topic.name, each.partition_index)
            if not context.may(Operation.DELETE, Resource.TOPIC, topic.name):
                answer.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif partition is None:
                answer.error_code = core.missing(topic.name, each.partition_index)
            elif foreign:
                answer.error_code = foreign
            elif partition.log.config.is_compacted and not partition.log.config.is_deleted:
                answer.error_code = ErrorCode.POLICY_VIOLATION
            else:
                _delete_before(partition, each.offset, answer)
    return response


def _delete_before(
    partition: Partition, offset: int, answer: messages.DeleteRecordsResponse.DeleteRecordsPartitionResult
) -> None:
    log = partition.log
    try:
        if offset < TO_THE_END:
            raise OffsetOutOfRange(f"offset {offset} is negative")
        log.delete_records_before(log.durable_offset if offset == TO_THE_END else max(offset, log.log_start_offset))
    except OffsetOutOfRange:
        answer.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
        return
    except LogflumeError:
        answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return
    answer.low_watermark = log.log_start_offset
    partition.wake()
