"""How heartbeats are answered, and what those of consumer and share groups say back: members of both are given partitions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from logflume.log.broker.replies import Reply
from logflume.log.broker.turns.slices import Steps
from logflume.log.protocol import messages
from logflume.log.protocol.errors import ErrorCode

from .epoch_records import Partition, by_topic

SAID_AT_ONCE = 1_000
"""Partitions or tasks that a member says it has, in a heartbeat that is handled in one turn."""
Beat = TypeVar("Beat")
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


def answer_heartbeat(
    read: Callable[[], Beat], beat: Callable[[Beat], Reply], respond: Callable[[Any], Any], *, said: int
) -> Reply | Steps:
    """Read a heartbeat, have it done, respond; a turn of the loop for each where a member says that it has much."""
    if said > SAID_AT_ONCE:
        return _by_turns(read, beat, respond)
    reply = Reply()
    beat(read()).then(lambda result: reply.set(respond(result)))
    return reply


def _by_turns(read: Callable[[], Beat], beat: Callable[[Beat], Reply], respond: Callable[[Any], Any]) -> Steps:
    told = read()
    yield None
    result = beat(told)
    yield result
    return respond(result.value)


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
