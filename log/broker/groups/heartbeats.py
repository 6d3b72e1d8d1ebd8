"""What the heartbeats of consumer and share groups say back: members of both are given partitions of topics."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from logflume.log.protocol import messages
from logflume.log.protocol.errors import ErrorCode

from .epoch_records import Partition, by_topic

Response = TypeVar("Response", messages.ConsumerGroupHeartbeatResponse, messages.ShareGroupHeartbeatResponse)


@dataclass(frozen=True, slots=True)
class HeartbeatResult:
    """The answer; `assigned` is None when nothing changed."""

    error: ErrorCode
    message: str | None = None
    member_id: str = ""
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assigned: frozenset[Partition] | None = None

    def failed(self) -> HeartbeatResult:
        """Return what is said if this does not reach the disk."""
        return replace(self, error=ErrorCode.COORDINATOR_NOT_AVAILABLE, assigned=None)


def heartbeat_response(response: type[Response], result: HeartbeatResult) -> Response:
    """Return a result as a message of its protocol."""
    if result.error:
        return response(error_code=result.error, error_message=result.message)
    answer = response(
        member_id=result.member_id,
        member_epoch=result.member_epoch,
        heartbeat_interval_ms=result.heartbeat_interval_ms,
    )
    if result.assigned is not None:
        topics = by_topic(result.assigned).items()
        answer.assignment = response.Assignment(
            topic_partitions=[response.TopicPartitions(topic_id=topic_id, partitions=indexes) for topic_id, indexes in topics]
        )
    return answer
