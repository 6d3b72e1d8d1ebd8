"""InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn and EndTxn: messages to the coordinator's terms and back.

Clients of before 2.7 know a fenced producer as INVALID_PRODUCER_EPOCH, newer ones as PRODUCER_FENCED.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import NamedTuple

from logflume.log.broker.access import CLUSTER_NAME, Operation, Resource
from logflume.log.broker.partitioner import partition_of
from logflume.log.broker.ports import TxnPartitions
from logflume.log.broker.replies import Reply
from logflume.log.broker.requests import RequestContext
from logflume.log.broker.transactions.coordinator import ProducerGrant, TransactionCoordinator
from logflume.log.broker.transactions.metadata import TopicPartition
from logflume.log.broker.turns.slices import Steps
from logflume.log.interfaces import NO_TIMEOUT_MS
from logflume.log.internal_topics import OFFSETS_TOPIC
from logflume.log.protocol import messages
from logflume.log.protocol.errors import ErrorCode

FIRST_FENCED_VERSION = 2
FIRST_FENCED_INIT_VERSION = 4
FIRST_BATCHED_ADD_VERSION = 4
FIRST_BUMPING_END_VERSION = 5

PARTITIONS_AT_A_TIME = 1_000
"""Added, and told of, in one slice of the loop's time."""

ErrorOf = Callable[[str, int], ErrorCode]
"""Returns the error of a topic's partition."""
Topics = Iterable[messages.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic]
Adding = Generator[Reply | None, None, ErrorOf]


class _Producer(NamedTuple):
    transactional_id: str
    producer_id: int
    producer_epoch: int


class ProducerHandlers:
    """The APIs that a transactional producer uses."""

    def __init__(self, coordinator: TransactionCoordinator, partitions: TxnPartitions, offsets_partition_count: int) -> None:
        self._coordinator, self._partitions = coordinator, partitions
        self._offsets_partition_count = offsets_partition_count

    def init_producer_id(
        self, context: RequestContext, request: messages.InitProducerIdRequest
    ) -> messages.InitProducerIdResponse | Reply:
        if not _may_write(context, request.transactional_id):
            return messages.InitProducerIdResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        reply = Reply()

        def on_granted(grant: ProducerGrant) -> None:
            error = _known_to(context.api_version, FIRST_FENCED_INIT_VERSION, grant.error)
            reply.set(
                messages.InitProducerIdResponse(
                    error_code=error, producer_id=grant.producer_id, producer_epoch=grant.producer_epoch
                )
            )

        self._coordinator.init_producer(
            request.transactional_id or "",
            request.transaction_timeout_ms,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            may_be_unlimited=request.transaction_timeout_ms == NO_TIMEOUT_MS
            and context.may(Operation.TWO_PHASE_COMMIT, Resource.TRANSACTIONAL_ID, request.transactional_id or ""),
        ).then(on_granted)
        return reply

    def add_partitions_to_txn(self, context: RequestContext, request: messages.AddPartitionsToTxnRequest) -> Steps:
        """Add all partitions of a transaction or none; a request of a broker is about several transactions."""
        response = messages.AddPartitionsToTxnResponse
        if context.api_version < FIRST_BATCHED_ADD_VERSION:
            producer = _Producer(
                request.v3_and_below_transactional_id, request.v3_and_below_producer_id, request.v3_and_below_producer_epoch
            )
            error = yield from self._add_authorized(context, producer, request.v3_and_below_topics)
            topics = yield from _topic_results(request.v3_and_below_topics, error, context.api_version)
            return response(results_by_topic_v3_and_below=topics)
        if not context.rights.allows(Operation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER_NAME):
            return response(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        results = []
        for txn in request.transactions:
            producer = _Producer(txn.transactional_id, txn.producer_id, txn.producer_epoch)
            error = (
                partial(self._coordinator.verify, *producer) if txn.verify_only else (yield from self._add(producer, txn.topics))
            )
            topics = yield from _topic_results(txn.topics, error, context.api_version)
            results.append(response.AddPartitionsToTxnResult(transactional_id=txn.transactional_id, topic_results=topics))
        return response(results_by_transaction=results)

    def _add_authorized(self, context: RequestContext, producer: _Producer, topics: Topics) -> Adding:
        """As `_add`, for a client: nothing is added if it may not use the transactional id or not write to one of the topics."""
        if not _may_write(context, producer.transactional_id):
            return lambda topic, index: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        refused = {topic.name for topic in topics if not context.may(Operation.WRITE, Resource.TOPIC, topic.name)}
        if refused:
            failed, skipped = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.OPERATION_NOT_ATTEMPTED
            return lambda topic, index: failed if topic in refused else skipped
        return (yield from self._add(producer, topics))

    def _add(self, producer: _Producer, topics: Topics) -> Adding:
        """Add all partitions or none; returns what gives the error of each."""
        partitions: set[TopicPartition] = set()
        missing: set[TopicPartition] = set()
        for topic in topics:
            for start in range(0, len(topic.partitions), PARTITIONS_AT_A_TIME):
                some = [(topic.name, index) for index in topic.partitions[start : start + PARTITIONS_AT_A_TIME]]
                partitions.update(some)
                missing.update(each for each in some if not self._partitions.exists(*each))
                if len(partitions) > PARTITIONS_AT_A_TIME:
                    yield None
        if missing:
            unknown, skipped = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED
            return lambda topic, index: unknown if (topic, index) in missing else skipped
        added = self._coordinator.add_to_transaction(*producer, partitions)
        if not added.is_done:
            yield added
        return lambda topic, index: added.value

    def add_offsets_to_txn(
        self, context: RequestContext, request: messages.AddOffsetsToTxnRequest
    ) -> messages.AddOffsetsToTxnResponse | Reply:
        if not _may_write(context, request.transactional_id):
            return messages.AddOffsetsToTxnResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if not context.may(Operation.READ, Resource.GROUP, request.group_id):
            return messages.AddOffsetsToTxnResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
        reply = Reply()

        def on_added(error: ErrorCode) -> None:
            known = _known_to(context.api_version, FIRST_FENCED_VERSION, error)
            reply.set(messages.AddOffsetsToTxnResponse(error_code=known))

        partition = partition_of(request.group_id, self._offsets_partition_count)
        self._coordinator.add_to_transaction(
            request.transactional_id, request.producer_id, request.producer_epoch, [(OFFSETS_TOPIC, partition)]
        ).then(on_added)
        return reply

    def end_txn(self, context: RequestContext, request: messages.EndTxnRequest) -> messages.EndTxnResponse | Reply:
        if not _may_write(context, request.transactional_id):
            return messages.EndTxnResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        reply = Reply()
        is_bumping = context.api_version >= FIRST_BUMPING_END_VERSION

        def on_ended(grant: ProducerGrant) -> None:
            error = _known_to(context.api_version, FIRST_FENCED_VERSION, grant.error)
            response = messages.EndTxnResponse(error_code=error)
            if is_bumping and not error:
                response.producer_id, response.producer_epoch = grant.producer_id, grant.producer_epoch
            reply.set(response)

        self._coordinator.end(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            is_commit=request.committed,
            is_bumping=is_bumping,
        ).then(on_ended)
        return reply


def _may_write(context: RequestContext, transactional_id: str | None) -> bool:
    return context.may(Operation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id or "")


def _topic_results(
    topics: Topics, error: ErrorOf, version: int
) -> Generator[None, None, list[messages.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult]]:
    response = messages.AddPartitionsToTxnResponse
    results, left = [], PARTITIONS_AT_A_TIME
    for topic in topics:
        result = response.AddPartitionsToTxnTopicResult(name=topic.name)
        results.append(result)
        for index in topic.partitions:
            known = _known_to(version, FIRST_FENCED_VERSION, error(topic.name, index))
            result.results_by_partition.append(
                response.AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=known)
            )
            left -= 1
            if left == 0:
                left = PARTITIONS_AT_A_TIME
                yield None
    return results


def _known_to(version: int, first_fenced: int, error: ErrorCode) -> ErrorCode:
    """Return the error in a form that a client of this version knows."""
    is_unknown = error is ErrorCode.PRODUCER_FENCED and version < first_fenced
    return ErrorCode.INVALID_PRODUCER_EPOCH if is_unknown else error
