"""ListTransactions, DescribeTransactions and WriteTxnMarkers: looking at transactions, and ending one that hangs."""

from __future__ import annotations

from logflume.log.broker.access import Operation, Resource
from logflume.log.broker.patterns import PatternError, compile_pattern
from logflume.log.broker.ports import Clock, TxnPartitions
from logflume.log.broker.replies import Reply
from logflume.log.broker.requests import RequestContext
from logflume.log.broker.transactions.coordinator import TransactionCoordinator
from logflume.log.broker.transactions.metadata import Txn, TxnState
from logflume.log.broker.turns.slices import Steps
from logflume.log.protocol import messages
from logflume.log.protocol.errors import ErrorCode

NO_FILTER = -1
MARKERS_AT_A_TIME, ANSWERS_AT_A_TIME, JUDGED_AT_A_TIME = 20, 2000, 1000
"""In one slice of the loop's time."""


class TransactionAdminHandlers:
    """The APIs that an administrator uses."""

    def __init__(self, coordinator: TransactionCoordinator, partitions: TxnPartitions, clock: Clock) -> None:
        self._coordinator, self._partitions, self._clock = coordinator, partitions, clock

    def list_transactions(self, context: RequestContext, request: messages.ListTransactionsRequest) -> Steps:
        response = messages.ListTransactionsResponse
        labels = {state.label for state in TxnState}
        unknown = [state for state in request.state_filters if state not in labels]
        states = set(request.state_filters) - set(unknown)
        if request.state_filters and not states:
            return response(unknown_state_filters=unknown)
        try:
            text = request.transactional_id_pattern
            pattern = compile_pattern(text) if text else None
        except PatternError:
            return response(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
        producer_ids = set(request.producer_id_filters)
        found: list[messages.ListTransactionsResponse.TransactionState] = []
        for number, txn in enumerate(list(self._coordinator.transactions()), start=1):
            if (
                (not states or txn.state.label in states)
                and (not producer_ids or txn.producer_id in producer_ids)
                and self._runs_longer(txn, request.duration_filter)
                and (pattern is None or pattern.fullmatch(txn.transactional_id))
                and context.may(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, txn.transactional_id)
            ):
                found.append(
                    response.TransactionState(
                        transactional_id=txn.transactional_id,
                        producer_id=txn.producer_id,
                        transaction_state=txn.state.label,
                    )
                )
            if number % JUDGED_AT_A_TIME == 0:
                yield None
        return response(unknown_state_filters=unknown, transaction_states=found)

    def _runs_longer(self, txn: Txn, duration_ms: int) -> bool:
        if duration_ms == NO_FILTER:
            return True
        is_open = txn.state is TxnState.ONGOING or txn.state.is_preparing
        return is_open and self._clock.wall_ms() - txn.start_ms > duration_ms

    def describe_transactions(
        self, context: RequestContext, request: messages.DescribeTransactionsRequest
    ) -> messages.DescribeTransactionsResponse | Reply:
        return messages.DescribeTransactionsResponse(
            transaction_states=[self._describe(context, transactional_id) for transactional_id in request.transactional_ids]
        )

    def _describe(self, context: RequestContext, transactional_id: str) -> messages.DescribeTransactionsResponse.TransactionState:
        response = messages.DescribeTransactionsResponse
        if not context.may(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, transactional_id):
            error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            return response.TransactionState(transactional_id=transactional_id, error_code=error)
        txn = self._coordinator.transaction(transactional_id)
        if txn is None:
            error = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if transactional_id else ErrorCode.INVALID_REQUEST
            return response.TransactionState(transactional_id=transactional_id, error_code=error)
        by_topic: dict[str, list[int]] = {}
        for topic, partition in sorted(txn.partitions):
            if not context.may(Operation.DESCRIBE, Resource.TOPIC, topic):
                continue
            by_topic.setdefault(topic, []).append(partition)
        return response.TransactionState(
            error_code=ErrorCode.NONE,
            transactional_id=transactional_id,
            transaction_state=txn.state.label,
            transaction_timeout_ms=txn.timeout_ms,
            transaction_start_time_ms=txn.start_ms,
            producer_id=txn.producer_id,
            producer_epoch=txn.producer_epoch,
            topics=[response.TopicData(topic=topic, partitions=indexes) for topic, indexes in by_topic.items()],
        )

    def write_txn_markers(self, context: RequestContext, request: messages.WriteTxnMarkersRequest) -> Steps:
        """Write markers as asked: how an administrator aborts a transaction that its coordinator no longer knows."""
        response = messages.WriteTxnMarkersResponse()
        written: dict[tuple[int, str, int], Reply] = {}
        left = MARKERS_AT_A_TIME
        for index, marker in enumerate(request.markers):
            for topic in marker.topics:
                for partition in dict.fromkeys(topic.partition_indexes):
                    if (index, topic.name, partition) not in written:
                        written[index, topic.name, partition] = self._write(marker, topic.name, partition)
                    left -= 1
                    if left <= 0:
                        left = MARKERS_AT_A_TIME
                        yield None
        for reply in written.values():
            if not reply.is_done:
                yield reply
        for index, marker in enumerate(request.markers):
            result = response.WritableTxnMarkerResult(producer_id=marker.producer_id)
            response.markers.append(result)
            for topic in marker.topics:
                answer = response.WritableTxnMarkerTopicResult(name=topic.name)
                result.topics.append(answer)
                for partition in topic.partition_indexes:
                    error = written[index, topic.name, partition].value
                    answer.partitions.append(
                        response.WritableTxnMarkerPartitionResult(partition_index=partition, error_code=error)
                    )
                    left -= 1
                    if left <= 0:
                        left = ANSWERS_AT_A_TIME
                        yield None
        return response

    def _write(self, marker: messages.WriteTxnMarkersRequest.WritableTxnMarker, topic: str, partition: int) -> Reply:
        is_commit = marker.transaction_result
        written = self._partitions.write_marker(
            topic, partition, marker.producer_id, marker.producer_epoch, marker.coordinator_epoch, is_commit=is_commit
        )

        def announce(error: int) -> None:
            if not error:
                self._partitions.announce([(topic, partition)], marker.producer_id, is_commit=is_commit)

        written.then(announce)
        return written
