"""Acknowledgements as requests carry them: checked in form, by partition."""

from __future__ import annotations

from collections.abc import Iterable

from logflume.log.protocol import ErrorCode, messages

from .in_flight import Ack, AckType
from .sessions import TopicPartitionId
from .share_partition import AckResult

Topic = messages.ShareFetchRequest.FetchTopic | messages.ShareAcknowledgeRequest.AcknowledgeTopic
Batch = messages.ShareFetchRequest.AcknowledgementBatch | messages.ShareAcknowledgeRequest.AcknowledgementBatch
FIRST_RENEW_VERSION = 2


class InvalidAcks(Exception):
    """Acknowledgements that no state of the records could fit."""


def has_acks(topics: Iterable[Topic]) -> bool:
    """Whether a request acknowledges anything."""
    return any(partition.acknowledgement_batches for topic in topics for partition in topic.partitions)


def acks_by_partition(
    topics: Iterable[Topic], *, version: int, is_renewing: bool
) -> tuple[dict[TopicPartitionId, list[Ack]], dict[TopicPartitionId, AckResult]]:
    """Return the acknowledgements of a request by partition, and an error for each partition where they make no sense."""
    found: dict[TopicPartitionId, list[Ack]] = {}
    errors: dict[TopicPartitionId, AckResult] = {}
    for topic in topics:
        for partition in topic.partitions:
            key = (bytes(topic.topic_id), partition.partition_index)
            try:
                found[key] = _checked(partition.acknowledgement_batches, version=version, is_renewing=is_renewing)
            except InvalidAcks as error:
                errors[key] = (ErrorCode.INVALID_REQUEST, str(error))
    return found, errors


def _checked(batches: Iterable[Batch], *, version: int, is_renewing: bool) -> list[Ack]:
    acks: list[Ack] = []
    most = AckType.RENEW if version >= FIRST_RENEW_VERSION else AckType.REJECT
    for batch in batches:
        first, last, types = batch.first_offset, batch.last_offset, batch.acknowledge_types
        if not 0 <= first <= last:
            raise InvalidAcks(f"A batch goes from offset {first} to {last}.")
        if acks and first < acks[-1].last:
            raise InvalidAcks(f"A batch begins at offset {first}, the one before ends at {acks[-1].last}.")
        if not types or (len(types) > 1 and len(types) != last - first + 1):
            raise InvalidAcks(f"{len(types)} acknowledge types for offsets {first} to {last}; expected 1, or one for each.")
        if min(types) < 0 or max(types) > most:
            raise InvalidAcks(f"Acknowledge types go from 0 to {int(most)}, found {min(types)} to {max(types)}.")
        if AckType.RENEW in types and not is_renewing:
            raise InvalidAcks("IsRenewAck must be set when a record is renewed.")
        acks.append(Ack(first, last, tuple(map(AckType, types))))
    return acks
