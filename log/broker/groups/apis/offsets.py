"""OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete: messages to the coordinator's terms and back.

From version 10 on OffsetCommit and OffsetFetch name topics by id.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from logflume.log.broker.access import Operation, Resource
from logflume.log.broker.groups.coordinator import GroupCoordinator
from logflume.log.broker.groups.offset_commits import Committer, NewOffset, TxnProducer
from logflume.log.broker.groups.offsets import Offsets, TopicPartition
from logflume.log.broker.ports import Topics, TxnAdmission
from logflume.log.broker.replies import Reply
from logflume.log.broker.requests import RequestContext
from logflume.log.broker.turns.slices import Steps, at_once
from logflume.log.internal_topics import OFFSETS_TOPIC
from logflume.log.protocol import MessageBase, messages
from logflume.log.protocol.errors import ErrorCode

FIRST_TOPIC_ID_VERSION = 10
FIRST_EPOCH_VERSION = 9
FIRST_BATCHED_FETCH_VERSION = 8
FIRST_TXN_ADD_VERSION = 5
NO_OFFSET = -1
FETCHED_AT_A_TIME = 2_000
"""Offsets told in one slice of the loop's time."""

Errors = Mapping[TopicPartition, ErrorCode]
FetchTopic = messages.OffsetFetchRequest.OffsetFetchRequestTopic | messages.OffsetFetchRequest.OffsetFetchRequestTopics
CommittedTopic = (
    messages.OffsetCommitRequest.OffsetCommitRequestTopic | messages.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
)
Fetched = TypeVar(
    "Fetched",
    messages.OffsetFetchResponse.OffsetFetchResponsePartition,
    messages.OffsetFetchResponse.OffsetFetchResponsePartitions,
)
Answered = TypeVar(
    "Answered",
    messages.OffsetCommitResponse.OffsetCommitResponsePartition,
    messages.TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition,
    messages.OffsetDeleteResponse.OffsetDeleteResponsePartition,
)


class _HasIndex(Protocol):
    partition_index: int


class OffsetHandlers:
    """The four APIs of committed offsets."""

    def __init__(self, coordinator: GroupCoordinator, topics: Topics, admission: TxnAdmission) -> None:
        self._coordinator, self._topics, self._admission = coordinator, topics, admission

    # -- commit

    def offset_commit(
        self, context: RequestContext, request: messages.OffsetCommitRequest
    ) -> messages.OffsetCommitResponse | Reply:
        by_id = context.api_version >= FIRST_TOPIC_ID_VERSION
        named = [(self._topics.name_of(bytes(t.topic_id)) if by_id else t.name, t) for t in request.topics]
        committer = Committer(
            request.generation_id_or_member_epoch,
            request.member_id,
            request.group_instance_id,
            knows_epochs=context.api_version >= FIRST_EPOCH_VERSION,
        )
        response = messages.OffsetCommitResponse
        topic, partition = response.OffsetCommitResponseTopic, response.OffsetCommitResponsePartition

        offsets, refused = _refuse_offsets(context, request.group_id, _new_offsets(named))

        def respond(errors: Errors) -> messages.OffsetCommitResponse:
            return response(
                topics=[
                    topic(
                        name=t.name,
                        topic_id=t.topic_id,
                        partitions=_partition_errors(name, t.partitions, {**errors, **refused}, partition),
                    )
                    for name, t in named
                ]
            )

        if refused and not offsets:
            return respond({})
        return _mapped(self._coordinator.commit_offsets(request.group_id, committer, offsets), respond)

    def txn_offset_commit(self, context: RequestContext, request: messages.TxnOffsetCommitRequest) -> Reply:
        offsets = _new_offsets((t.name, t) for t in request.topics)
        if context.may(Operation.WRITE, Resource.TRANSACTIONAL_ID, request.transactional_id):
            offsets, refused = _refuse_offsets(context, request.group_id, offsets)
        else:
            offsets, refused = {}, dict.fromkeys(offsets, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        committer = Committer(request.generation_id, request.member_id, request.group_instance_id)
        producer = TxnProducer(request.producer_id, request.producer_epoch)
        response = messages.TxnOffsetCommitResponse
        topic, partition = response.TxnOffsetCommitResponseTopic, response.TxnOffsetCommitResponsePartition
        reply = Reply()

        def respond(errors: Errors) -> None:
            topics = [
                topic(name=t.name, partitions=_partition_errors(t.name, t.partitions, {**errors, **refused}, partition))
                for t in request.topics
            ]
            reply.set(response(topics=topics))

        def commit(error: ErrorCode, added: Reply) -> None:
            if error:
                respond(dict.fromkeys(offsets, error))
                return
            committed = self._coordinator.commit_offsets(request.group_id, committer, offsets, txn=producer)
            committed.then(
                lambda errors: added.then(lambda problem: respond(dict.fromkeys(offsets, problem) if problem else errors))
            )

        if refused and not offsets:
            respond({})
            return reply
        admission = self._admission.admit(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            OFFSETS_TOPIC,
            self._coordinator.journal_partition(request.group_id),
            can_add=context.api_version >= FIRST_TXN_ADD_VERSION,
        )
        added = admission.added or Reply.of(ErrorCode.NONE)
        if admission.is_first_added:
            added.then(lambda error: commit(error, added))
        else:
            commit(admission.error, added)
        return reply

    # -- fetch

    def offset_fetch(self, context: RequestContext, request: messages.OffsetFetchRequest) -> Any:
        if context.api_version >= FIRST_BATCHED_FETCH_VERSION:
            steps = self._fetch_groups(context, request)
            is_long = any(self._is_long(group.group_id, group.topics) for group in request.groups)
        else:
            steps = self._fetch_one_group(context, request)
            is_long = self._is_long(request.group_id, request.topics)
        return steps if is_long else at_once(steps)

    def _is_long(self, group_id: str, topics: Sequence[FetchTopic] | None) -> bool:
        if topics is None:
            return len(self._coordinator.committed_offsets(group_id)) > FETCHED_AT_A_TIME
        return sum(len(topic.partition_indexes) for topic in topics) > FETCHED_AT_A_TIME

    def _fetch_groups(self, context: RequestContext, request: messages.OffsetFetchRequest) -> Steps:
        by_id = context.api_version >= FIRST_TOPIC_ID_VERSION
        response = messages.OffsetFetchResponse()
        for group in request.groups:
            found = yield from self._fetch_group(context, group, request.require_stable, by_id=by_id)
            response.groups.append(found)
        return response

    def _fetch_one_group(self, context: RequestContext, request: messages.OffsetFetchRequest) -> Steps:
        response = messages.OffsetFetchResponse
        wanted = None if request.topics is None else [(t.name, t.partition_indexes) for t in request.topics]
        topic, partition = response.OffsetFetchResponseTopic, response.OffsetFetchResponsePartition
        is_refused = not context.may(Operation.DESCRIBE, Resource.GROUP, request.group_id)
        if is_refused:
            error = ErrorCode.GROUP_AUTHORIZATION_FAILED
            topics = [(name, [_no_offset(partition, p, error) for p in indexes]) for name, indexes in wanted or ()]
        else:
            error = ErrorCode.NONE
            topics = yield from self._fetch(context, request.group_id, wanted, request.require_stable, partition)
        return response(error_code=error, topics=[topic(name=name, partitions=partitions) for name, partitions in topics])

    def _fetch_group(
        self,
        context: RequestContext,
        group: messages.OffsetFetchRequest.OffsetFetchRequestGroup,
        require_stable: bool,
        *,
        by_id: bool,
    ) -> Steps:
        response = messages.OffsetFetchResponse
        topic, partition = response.OffsetFetchResponseTopics, response.OffsetFetchResponsePartitions
        refusal = ErrorCode.GROUP_AUTHORIZATION_FAILED
        if context.may(Operation.DESCRIBE, Resource.GROUP, group.group_id):
            refusal = self._coordinator.refuse_fetch(group.group_id, group.member_id, group.member_epoch)
        if refusal:
            return response.OffsetFetchResponseGroup(group_id=group.group_id, error_code=refusal)
        wanted = None
        unknown: list[messages.OffsetFetchResponse.OffsetFetchResponseTopics] = []
        if group.topics is not None:
            wanted = []
            for t in group.topics:
                name = self._topics.name_of(bytes(t.topic_id)) if by_id else t.name
                if name is None:
                    missing = [_no_offset(partition, p, ErrorCode.UNKNOWN_TOPIC_ID) for p in t.partition_indexes]
                    unknown.append(topic(topic_id=t.topic_id, partitions=missing))
                else:
                    wanted.append((name, t.partition_indexes))
        found = []
        for name, partitions in (yield from self._fetch(context, group.group_id, wanted, require_stable, partition)):
            topic_id = self._topics.id_of(name) if by_id else None
            if not by_id:
                found.append(topic(name=name, partitions=partitions))
            elif topic_id is not None:
                found.append(topic(topic_id=topic_id, partitions=partitions))
        return response.OffsetFetchResponseGroup(group_id=group.group_id, topics=found + unknown)

    def _fetch(
        self,
        context: RequestContext,
        group_id: str,
        wanted: list[tuple[str, list[int]]] | None,
        require_stable: bool,
        partition: type[Fetched],
    ) -> Generator[None, None, list[tuple[str, list[Fetched]]]]:
        """Return per topic what is committed for the wanted partitions; None wants all that have an offset.

        Of topics that who asks may not describe nothing is told.
        """
        committed = self._coordinator.committed_offsets(group_id)
        unstable = self._coordinator.unstable_partitions(group_id) if require_stable else set()
        if wanted is None:
            by_topic: dict[str, list[int]] = {}
            for name, index in sorted(committed.keys() | unstable):
                by_topic.setdefault(name, []).append(index)
            wanted = [each for each in by_topic.items() if context.may(Operation.DESCRIBE, Resource.TOPIC, each[0])]
        found = []
        left = FETCHED_AT_A_TIME
        for name, indexes in wanted:
            answers: list[Fetched] = []
            found.append((name, answers))
            may_describe = context.may(Operation.DESCRIBE, Resource.TOPIC, name)
            for index in indexes:
                if may_describe:
                    answers.append(_fetched(partition, (name, index), committed, unstable))
                else:
                    answers.append(_no_offset(partition, index, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
                left -= 1
                if left == 0:
                    left = FETCHED_AT_A_TIME
                    yield None
        return found

    # -- delete

    def offset_delete(
        self, context: RequestContext, request: messages.OffsetDeleteRequest
    ) -> messages.OffsetDeleteResponse | Reply:
        response = messages.OffsetDeleteResponse
        if not context.may(Operation.DELETE, Resource.GROUP, request.group_id):
            return response(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
        partitions = [(t.name, p.partition_index) for t in request.topics for p in t.partitions]
        refused = {
            each: ErrorCode.TOPIC_AUTHORIZATION_FAILED
            for each in partitions
            if not context.may(Operation.READ, Resource.TOPIC, each[0])
        }
        partitions = [each for each in partitions if each not in refused]
        topic, partition = response.OffsetDeleteResponseTopic, response.OffsetDeleteResponsePartition

        def respond(errors: ErrorCode | Errors) -> messages.OffsetDeleteResponse:
            if isinstance(errors, ErrorCode):
                return response(error_code=errors)
            return response(
                topics=[
                    topic(name=t.name, partitions=_partition_errors(t.name, t.partitions, {**errors, **refused}, partition))
                    for t in request.topics
                ]
            )

        if refused and not partitions:
            return respond({})
        return _mapped(self._coordinator.delete_offsets(request.group_id, partitions), respond)


def _refuse_offsets(
    context: RequestContext, group_id: str, offsets: dict[TopicPartition, NewOffset]
) -> tuple[dict[TopicPartition, NewOffset], dict[TopicPartition, ErrorCode]]:
    """Split offsets into those that who asks may commit and the errors of the others: all of them if not for the group."""
    if not context.may(Operation.READ, Resource.GROUP, group_id):
        return {}, dict.fromkeys(offsets, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    refused = {
        partition: ErrorCode.TOPIC_AUTHORIZATION_FAILED
        for partition in offsets
        if not context.may(Operation.READ, Resource.TOPIC, partition[0])
    }
    return ({p: offset for p, offset in offsets.items() if p not in refused} if refused else offsets), refused


def _mapped(reply: Reply, respond: Callable[[Any], MessageBase]) -> Reply:
    mapped = Reply()
    reply.then(lambda value: mapped.set(respond(value)))
    return mapped


def _new_offsets(topics: Iterable[tuple[str | None, CommittedTopic]]) -> dict[TopicPartition, NewOffset]:
    """Collect the offsets of the topics that exist."""
    return {
        (name, p.partition_index): NewOffset(p.committed_offset, p.committed_leader_epoch, p.committed_metadata or "")
        for name, topic in topics
        if name is not None
        for p in topic.partitions
    }


def _partition_errors(name: str | None, partitions: Iterable[_HasIndex], errors: Errors, make: type[Answered]) -> list[Answered]:
    return [
        make(
            partition_index=p.partition_index,
            error_code=ErrorCode.UNKNOWN_TOPIC_ID if name is None else errors[name, p.partition_index],
        )
        for p in partitions
    ]


def _fetched(make: type[Fetched], partition: TopicPartition, committed: Offsets, unstable: set[TopicPartition]) -> Fetched:
    if partition in unstable:
        return _no_offset(make, partition[1], ErrorCode.UNSTABLE_OFFSET_COMMIT)
    offset = committed.get(partition)
    if offset is None:
        return _no_offset(make, partition[1], ErrorCode.NONE)
    return make(
        partition_index=partition[1],
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
        error_code=ErrorCode.NONE,
    )


def _no_offset(make: type[Fetched], index: int, error: ErrorCode) -> Fetched:
    return make(partition_index=index, committed_offset=NO_OFFSET, committed_leader_epoch=-1, metadata="", error_code=error)
