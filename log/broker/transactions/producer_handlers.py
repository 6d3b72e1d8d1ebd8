"""InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn and EndTxn: messages to the coordinator's terms and back.

Clients of before 2.7 know a fenced producer as INVALID_PRODUCER_EPOCH, newer ones as PRODUCER_FENCED.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...internal_topics import OFFSETS_TOPIC
from ...protocol import messages
from ...protocol.errors import ErrorCode
from ..access import CLUSTER_NAME, Operation, Resource
from ..groups.partitioner import partition_of
from ..seams import Reply, RequestContext, TxnPartitions
from .coordinator import ProducerGrant, TransactionCoordinator
from .metadata import TopicPartition

FIRST_FENCED_VERSION = 2
FIRST_FENCED_INIT_VERSION = 4
FIRST_BATCHED_ADD_VERSION = 4
FIRST_BUMPING_END_VERSION = 5

Errors = Mapping[TopicPartition, ErrorCode]


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
        ).then(on_granted)
        return reply

    def add_partitions_to_txn(
        self, context: RequestContext, request: messages.AddPartitionsToTxnRequest
    ) -> messages.AddPartitionsToTxnResponse | Reply:
        reply = Reply()
        response = messages.AddPartitionsToTxnResponse
        if context.api_version < FIRST_BATCHED_ADD_VERSION:
            topics = request.v3_and_below_topics

            def on_added(errors: Errors) -> None:
                known = {p: _known_to(context.api_version, FIRST_FENCED_VERSION, error) for p, error in errors.items()}
                reply.set(response(results_by_topic_v3_and_below=_topic_results(topics, known)))

            self._add_authorized(
                context,
                request.v3_and_below_transactional_id,
                request.v3_and_below_producer_id,
                request.v3_and_below_producer_epoch,
                topics,
            ).then(on_added)
            return reply
        results: dict[int, Any] = {}

        def on_done(index: int, errors: Errors) -> None:
            txn = request.transactions[index]
            results[index] = response.AddPartitionsToTxnResult(
                transactional_id=txn.transactional_id, topic_results=_topic_results(txn.topics, errors)
            )
            if len(results) == len(request.transactions):
                reply.set(response(results_by_transaction=[results[i] for i in range(len(results))]))

        if not context.rights.allows(Operation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER_NAME):
            return response(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        if not request.transactions:
            reply.set(response())
        for index, txn in enumerate(request.transactions):
            added = self._verify(txn) if txn.verify_only else self._add_one(txn)
            added.then(lambda errors, index=index: on_done(index, errors))  # type: ignore[misc]
        return reply

    def _add_one(self, txn: Any) -> Reply:
        return self._add(txn.transactional_id, txn.producer_id, txn.producer_epoch, txn.topics)

    def _add_authorized(
        self, context: RequestContext, transactional_id: str, producer_id: int, producer_epoch: int, topics: Any
    ) -> Reply:
        """As `_add`, for a client: nothing is added if it may not use the transactional id or not write to one of the topics."""
        partitions = _partitions(topics)
        reply = Reply()
        if not _may_write(context, transactional_id):
            reply.set(dict.fromkeys(partitions, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
            return reply
        refused = {topic for topic, _ in partitions if not context.may(Operation.WRITE, Resource.TOPIC, topic)}
        if refused:
            failed, skipped = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.OPERATION_NOT_ATTEMPTED
            reply.set({partition: failed if partition[0] in refused else skipped for partition in partitions})
            return reply
        return self._add(transactional_id, producer_id, producer_epoch, topics)

    def _add(self, transactional_id: str, producer_id: int, producer_epoch: int, topics: Any) -> Reply:
        """Add all partitions or none; the reply is an ErrorCode per partition."""
        partitions = _partitions(topics)
        missing = {partition for partition in partitions if not self._partitions.exists(*partition)}
        reply = Reply()
        if missing:
            unknown, skipped = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED
            reply.set({partition: unknown if partition in missing else skipped for partition in partitions})
            return reply
        self._coordinator.add_to_transaction(transactional_id, producer_id, producer_epoch, partitions).then(
            lambda error: reply.set(dict.fromkeys(partitions, error))
        )
        return reply

    def _verify(self, txn: Any) -> Reply:
        verify, producer = self._coordinator.verify, (txn.transactional_id, txn.producer_id, txn.producer_epoch)
        reply = Reply()
        reply.set({partition: verify(*producer, *partition) for partition in _partitions(txn.topics)})
        return reply

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


def _partitions(topics: Any) -> list[TopicPartition]:
    return [(topic.name, partition) for topic in topics for partition in topic.partitions]


def _topic_results(topics: Any, errors: Errors) -> list[Any]:
    response = messages.AddPartitionsToTxnResponse
    return [
        response.AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                response.AddPartitionsToTxnPartitionResult(
                    partition_index=partition, partition_error_code=errors[topic.name, partition]
                )
                for partition in topic.partitions
            ],
        )
        for topic in topics
    ]


def _known_to(version: int, first_fenced: int, error: ErrorCode) -> ErrorCode:
    """Return the error in a form that a client of this version knows."""
    is_unknown = error is ErrorCode.PRODUCER_FENCED and version < first_fenced
    return ErrorCode.INVALID_PRODUCER_EPOCH if is_unknown else error
