"""Requests about many things as several about some: each entry is answered by itself, so a slice takes as many as it may.

For APIs whose answer is a list of answers to the entries of a list, or of lists (partitions of topics). The handler knows nothing
of it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from types import GeneratorType
from typing import Any

from logflume.log.broker.replies import Reply
from logflume.log.broker.requests import Handler, RequestContext
from logflume.log.protocol import ErrorCode, MessageBase

from .slices import Steps


@dataclass(frozen=True, slots=True)
class Split:
    """Where an API's entries are in its request and its response, and how many make a slice.

    With `inner` the entries are those of a list in each element of the outer list: (in the request, in the response).
    """

    at_a_time: int
    asked: str
    answered: str
    inner: tuple[str, str] | None = None


_PARTITIONS = ("partitions", "partitions")
SPLITS = {
    "ListOffsets": Split(200, "topics", "topics", _PARTITIONS),
    "OffsetForLeaderEpoch": Split(500, "topics", "topics", _PARTITIONS),
    "DeleteRecords": Split(20, "topics", "topics", _PARTITIONS),
    "DescribeProducers": Split(100, "topics", "topics", ("partition_indexes", "partitions")),
    "OffsetDelete": Split(500, "topics", "topics", _PARTITIONS),
    "OffsetCommit": Split(500, "topics", "topics", _PARTITIONS),
    "TxnOffsetCommit": Split(500, "topics", "topics", _PARTITIONS),
    "ElectLeaders": Split(500, "topic_partitions", "replica_election_results", ("partitions", "partition_result")),
    "DescribeQuorum": Split(500, "topics", "topics", _PARTITIONS),
    "LeaveGroup": Split(200, "members", "members"),
    "DescribeGroups": Split(20, "groups", "groups"),
    "ConsumerGroupDescribe": Split(1, "group_ids", "groups"),
    "ShareGroupDescribe": Split(1, "group_ids", "groups"),
    "StreamsGroupDescribe": Split(1, "group_ids", "groups"),
    "DeleteGroups": Split(10, "groups_names", "results"),
    "DescribeShareGroupOffsets": Split(20, "groups", "groups"),
    "AlterShareGroupOffsets": Split(100, "topics", "responses", _PARTITIONS),
    "DeleteShareGroupOffsets": Split(100, "topics", "responses"),
    "OffsetFetch": Split(20, "groups", "groups"),
    "FindCoordinator": Split(500, "coordinator_keys", "coordinators"),
    "DescribeTransactions": Split(100, "transactional_ids", "transaction_states"),
}


def in_slices(handler: Handler, split: Split) -> Handler:
    """Return a handler that gives the handler so many entries at a time."""

    def handle(context: RequestContext, request: MessageBase) -> Any:
        outer = getattr(request, split.asked)
        if outer and isinstance(outer[0], str):  # who is named twice is told once: an answer may be a thousand times its question
            setattr(request, split.asked, list(dict.fromkeys(outer)))
        if _is_small(request, split):
            return handler(context, request)
        return _handle_parts(handler, split, context, request)

    return handle


def _is_small(request: MessageBase, split: Split) -> bool:
    outer = getattr(request, split.asked) or ()
    if split.inner is None:
        return len(outer) <= split.at_a_time
    left, name = split.at_a_time, split.inner[0]
    for element in outer:
        left -= 1 + len(getattr(element, name) or ())
        if left < 0:
            return False
    return True


def _handle_parts(handler: Handler, split: Split, context: RequestContext, request: MessageBase) -> Steps:
    response: Any = None
    for part, goes_on in _parts(request, split):
        answer = handler(context, part)
        if isinstance(answer, GeneratorType):
            answer = yield from answer
        if isinstance(answer, Reply):
            if not answer.is_done:
                yield answer
            answer = answer.value
        if not hasattr(answer, split.answered):  # CLOSE_CONNECTION
            return answer
        if getattr(answer, "error_code", ErrorCode.NONE):  # refused as a whole
            return answer
        if response is None:
            response = answer
        else:
            _join(getattr(response, split.answered), getattr(answer, split.answered), split, goes_on=goes_on)
        yield None
    return response


def _parts(request: MessageBase, split: Split) -> Iterator[tuple[MessageBase, bool]]:
    """Yield requests of one slice each, and whether the first element of its outer list goes on with the last one before."""

    def part(elements: list[Any]) -> MessageBase:
        made = copy.copy(request)
        setattr(made, split.asked, elements)
        return made

    outer = getattr(request, split.asked)
    if split.inner is None:
        for start in range(0, len(outer), split.at_a_time):
            yield part(outer[start : start + split.at_a_time]), False
        return
    name = split.inner[0]
    elements: list[Any] = []
    left, goes_on = split.at_a_time, False
    for element in outer:
        entries = getattr(element, name) or []
        start, is_begun = 0, False
        while True:
            piece = copy.copy(element)
            setattr(piece, name, entries[start : start + left])
            if is_begun and not elements:
                goes_on = True
            elements.append(piece)
            taken = min(left, len(entries) - start)
            start, left, is_begun = start + taken, left - max(taken, 1), True
            if left <= 0:
                yield part(elements), goes_on
                elements, left, goes_on = [], split.at_a_time, False
            if start >= len(entries):
                break
    if elements:
        yield part(elements), goes_on


def _join(answers: list[Any], more: list[Any], split: Split, *, goes_on: bool) -> None:
    if goes_on and split.inner is not None and answers and more:
        getattr(answers[-1], split.inner[1]).extend(getattr(more[0], split.inner[1]))
        more = more[1:]
    answers.extend(more)
