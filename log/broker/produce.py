"""Produce: checks each partition's batch, appends it, answers when it is as durable as `acks` asks (architecture, D8).

Exactly one batch per partition (KIP-98); the storage checks header, CRC, size, timestamps and the producer's sequence. The
records are views of the connection's receive buffer: nothing here keeps them once `produce` has returned.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from logflume.log.batch import BatchTooLarge, CorruptBatch, UnsupportedMagic, decode_records, parse_header
from logflume.log.batch.header import TRANSACTIONAL_BIT
from logflume.log.errors import LogflumeError
from logflume.log.protocol import ErrorCode, KafkaError, messages
from logflume.log.storage import AppendInfo, AppendRefused, PartitionLog

from .cluster import INTERNAL_TOPICS
from .compression import recompress
from .core import LEADER_EPOCH, Core, Partition
from .seams import CLOSE_CONNECTION, NO_RESPONSE, Reply, RequestContext, TxnVerifier

ADDS_PARTITIONS_FROM_VERSION = 12
"""From this version on Produce itself adds partitions to the transaction (KIP-890)."""

_CODEC_OFFSET = 22
_ZSTD = 4
_Response = messages.message_class("ProduceResponse")
_TopicResponse = _Response.TopicProduceResponse
_PartitionResponse = _Response.PartitionProduceResponse
_RecordError = _Response.BatchIndexAndErrorMessage


class ProduceHandler:
    """Handles Produce. `verifier` says whether a transactional producer may write to a partition."""

    def __init__(self, core: Core, verifier: TxnVerifier | None = None) -> None:
        self._core, self._verifier = core, verifier

    def produce(self, context: RequestContext, request: Any) -> Any:
        if request.acks not in (-1, 0, 1):
            return self._all_failed(request, ErrorCode.INVALID_REQUIRED_ACKS)
        if request.transactional_id is not None and context.api_version >= ADDS_PARTITIONS_FROM_VERSION and self._verifier:
            return self._add_then_append(self._verifier, context, request)
        return self._append_all(context, request)

    def _add_then_append(self, verifier: TxnVerifier, context: RequestContext, request: Any) -> Any:
        """Add the partitions to the transaction (KIP-890 part 2), then append.

        The records are copied if that takes a while, as their buffer is used again.
        """
        partitions, producer = [], (-1, -1)
        for topic in request.topic_data:
            for data in topic.partition_data:
                try:
                    header = parse_header(data.records or b"")
                    partitions.append((self._name(topic, context.api_version), data.index))
                except LogflumeError:
                    continue
                producer = header.producer_id, header.producer_epoch
        added = verifier.add_partitions(request.transactional_id, *producer, partitions)
        if not added.is_done:
            for topic in request.topic_data:
                for data in topic.partition_data:
                    data.records = None if data.records is None else bytes(data.records)
        reply = Reply()

        def go_on(error: int) -> None:
            outcome = self._all_failed(request, error) if error else self._append_all(context, request)
            if isinstance(outcome, Reply):
                outcome.then(reply.set)
            else:
                reply.set(outcome)

        added.then(go_on)
        return reply

    def _append_all(self, context: RequestContext, request: Any) -> Any:
        dirty: list[tuple[Partition, Any]] = []
        responses = []
        has_failed = False
        for topic in request.topic_data:
            partition_responses = []
            for data in topic.partition_data:
                answer = _PartitionResponse(index=data.index)
                partition_responses.append(answer)
                try:
                    name = self._name(topic, context.api_version)
                    partition = self._partition(name, data.index)
                    info = self._append(partition, data, request, context)
                except LogflumeError as error:
                    _fail(answer, error)
                    has_failed = True
                else:
                    answer.base_offset, answer.log_append_time_ms = info.first_offset, info.log_append_time_ms
                    answer.log_start_offset = partition.log.log_start_offset
                    dirty.append((partition, answer))
            responses.append(_TopicResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=partition_responses))
        response = _Response(responses=responses)
        if request.acks == -1 and dirty:
            return self._when_durable(dirty, response)
        for partition, _ in dirty:
            self._core.flush(partition, _ignore)
        if request.acks == 0:
            return CLOSE_CONNECTION if has_failed else NO_RESPONSE
        return response

    def _when_durable(self, dirty: list[tuple[Partition, Any]], response: Any) -> Any:
        """Return the response, or a reply that is set once every partition is flushed."""
        reply = Reply()
        left = len(dirty)

        def done(answer: Any, error: Exception | None) -> None:
            nonlocal left
            if error is not None:
                answer.error_code, answer.error_message = ErrorCode.KAFKA_STORAGE_ERROR, str(error)
                answer.base_offset = -1
            left -= 1
            if left == 0:
                reply.set(response)

        for partition, answer in dirty:
            self._core.flush(partition, partial(done, answer))
        return response if reply.is_done else reply

    def _append(self, partition: Partition, data: Any, request: Any, context: RequestContext) -> AppendInfo:
        log, records = partition.log, data.records
        if not records:
            raise AppendRefused(ErrorCode.INVALID_RECORD, "expected one record batch, found none")
        if context.api_version < 7 and len(records) > _CODEC_OFFSET and records[_CODEC_OFFSET] & 7 == _ZSTD:
            raise AppendRefused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7 or later (KIP-110)")
        if log.config.is_compacted:
            _check_keys(records)
        if partition.compression_type != "producer":
            records = recompress(records, partition.compression_type)
        if len(records) > _CODEC_OFFSET and records[_CODEC_OFFSET] & TRANSACTIONAL_BIT:
            self._verify(log, records, request.transactional_id)
        return log.append(records, leader_epoch=LEADER_EPOCH, now_ms=self._core.clock.wall_ms())

    def _verify(self, log: PartitionLog, records: memoryview, transactional_id: str | None) -> None:
        """Refuse a transactional batch on a partition that is not part of the producer's ongoing transaction (KIP-890)."""
        header = parse_header(records)
        if transactional_id is None:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, "a transactional batch came without a transactional id")
        if self._verifier is not None:
            error = self._verifier.verify(transactional_id, header.producer_id, header.producer_epoch, log.topic, log.partition)
            if error:
                raise KafkaError(error, topic=log.topic, partition=log.partition)

    def _name(self, topic: Any, version: int) -> str:
        if version < 13:
            name: str = topic.name
            return name
        found = self._core.cluster.by_id.get(topic.topic_id)
        if found is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        return found.name

    def _partition(self, name: str, index: int) -> Partition:
        partition = self._core.partition(name, index)
        if partition is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topic=name, partition=index)
        if name in INTERNAL_TOPICS:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "clients may not write to an internal topic", topic=name)
        return partition

    def _all_failed(self, request: Any, error: int) -> Any:
        if request.acks == 0:
            return CLOSE_CONNECTION
        return _Response(
            responses=[
                _TopicResponse(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partition_responses=[
                        _PartitionResponse(index=data.index, error_code=error, base_offset=-1) for data in topic.partition_data
                    ],
                )
                for topic in request.topic_data
            ]
        )


def _ignore(error: Exception | None) -> None:
    """Nobody waits for this flush; `Core.flush` logs its errors."""


def _check_keys(records: memoryview) -> None:
    """Refuse null keys in a compacted topic, naming each record (KIP-467)."""
    bad = [index for index, record in enumerate(decode_records(records)) if record.key is None]
    if bad:
        raise _NullKeys(bad)


class _NullKeys(AppendRefused):
    def __init__(self, indexes: list[int]) -> None:
        super().__init__(ErrorCode.INVALID_RECORD, "One or more records have been rejected: a compacted topic needs keys")
        self.indexes = indexes


def _fail(answer: Any, error: LogflumeError) -> None:
    answer.base_offset = -1
    answer.error_code, answer.error_message = _error_code(error), str(error)
    if isinstance(error, _NullKeys):
        answer.record_errors = [
            _RecordError(batch_index=index, batch_index_error_message="a record of a compacted topic must have a key")
            for index in error.indexes
        ]


def _error_code(error: LogflumeError) -> int:
    if isinstance(error, KafkaError):
        return error.number
    if isinstance(error, UnsupportedMagic):
        return ErrorCode.INVALID_RECORD
    if isinstance(error, BatchTooLarge):
        return ErrorCode.MESSAGE_TOO_LARGE
    if isinstance(error, CorruptBatch):
        return ErrorCode.CORRUPT_MESSAGE
    code = getattr(error, "error_code", ErrorCode.KAFKA_STORAGE_ERROR)
    assert isinstance(code, int)
    return code
