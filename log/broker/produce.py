"""Produce: checks each partition's batch, appends it, answers when it is on disk and can be read (architecture, D8).

Exactly one batch per partition (KIP-98); the storage checks header, CRC, size, timestamps and the producer's sequence. The
records are views of the connection's receive buffer: nothing here keeps them once `produce` has returned.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from logflume.log.batch import BatchTooLarge, CorruptBatch, UnsupportedMagic, parse_header
from logflume.log.batch.header import TRANSACTIONAL_BIT
from logflume.log.batch.keys import null_keys
from logflume.log.errors import LogflumeError
from logflume.log.protocol import ErrorCode, KafkaError, detail_of, messages
from logflume.log.storage import AppendRefused, PartitionLog

from .access import UNRESTRICTED, Operation, Resource
from .compression import recompress
from .core import LEADER_EPOCH, Core, Partition
from .groups import TxnAdmission
from .internal_topics import require_may_change
from .seams import CLOSE_CONNECTION, NO_RESPONSE, Reply, RequestContext
from .turns import Turns

ADDS_PARTITIONS_FROM_VERSION = 12
"""From this version on Produce itself adds partitions to the transaction (KIP-890)."""
TOPIC_IDS_FROM_VERSION = 13
ACKS_NONE = 0

_CODEC_OFFSET = 22
_ZSTD = 4
_Response = messages.message_class("ProduceResponse")
_TopicResponse = _Response.TopicProduceResponse
_PartitionResponse = _Response.PartitionProduceResponse
_RecordError = _Response.BatchIndexAndErrorMessage


class ProduceHandler:
    """Handles Produce. `admission` says whether a transactional producer may write to a partition."""

    def __init__(self, core: Core, admission: TxnAdmission | None = None) -> None:
        self._core, self._admission = core, admission
        self._turns = Turns()

    def produce(self, context: RequestContext, request: Any) -> Any:
        if request.acks not in (-1, 0, 1):
            return self._all_failed(request, ErrorCode.INVALID_REQUIRED_ACKS)
        if request.transactional_id is not None and not _may_use_transaction(context, request):
            return self._all_failed(request, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        run = _Run(request.acks)
        for topic in request.topic_data:
            answers = []
            for data in topic.partition_data:
                answer = _PartitionResponse(index=data.index, error_message=None)
                answers.append(answer)
                try:
                    self._write(run, answer, self._partition(topic, data.index, context), data.records, request, context)
                except LogflumeError as error:
                    run.fail(answer, error)
            run.response.responses.append(_TopicResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=answers))
        return run.outcome()

    def _write(self, run: _Run, answer: Any, partition: Partition, records: Any, request: Any, context: RequestContext) -> None:
        """Append, at once or when the transaction coordinator lets it. Raises LogflumeError."""
        if not records:
            raise AppendRefused(ErrorCode.INVALID_RECORD, "expected one record batch, found none")
        if context.api_version < 7 and len(records) > _CODEC_OFFSET and records[_CODEC_OFFSET] & 7 == _ZSTD:
            raise AppendRefused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7 or later (KIP-110)")
        if len(records) > _CODEC_OFFSET and records[_CODEC_OFFSET] & TRANSACTIONAL_BIT:
            self._write_in_turn(run, answer, partition, records, request.transactional_id, context)
        else:
            self._append(run, answer, partition, records)

    def _write_in_turn(
        self, run: _Run, answer: Any, partition: Partition, records: Any, transactional_id: str | None, context: RequestContext
    ) -> None:
        """Append once the transaction coordinator lets it, behind the partition's batches that still wait for that."""
        log = partition.log
        key = (log.topic, log.partition)
        is_behind = self._turns.is_waiting(key)
        admitted = None if is_behind else self._admit(log, records, transactional_id, context)
        if is_behind or (isinstance(admitted, Reply) and not admitted.is_done):
            kept = bytes(records)  # the buffer is used again before the coordinator answers
            run.left += 1
            act = partial(self._write_admitted, run, answer, partition, kept)
            if isinstance(admitted, Reply):
                self._turns.wait(key, admitted, act)
            else:
                self._turns.queue(key, partial(self._ask_again, log, kept, transactional_id, context), act)
            return
        error = admitted.value if isinstance(admitted, Reply) else admitted
        if error:
            raise KafkaError(error, topic=log.topic, partition=log.partition)
        self._append(run, answer, partition, records)

    def _ask_again(self, log: PartitionLog, records: bytes, transactional_id: str | None, context: RequestContext) -> int | Reply:
        try:
            return self._admit(log, records, transactional_id, context)
        except LogflumeError as error:
            return _error_code(error)

    def _write_admitted(self, run: _Run, answer: Any, partition: Partition, records: bytes, error: int) -> None:
        try:
            if error:
                raise KafkaError(error, topic=partition.log.topic, partition=partition.log.partition)
            self._append(run, answer, partition, records)
        except LogflumeError as failure:
            run.fail(answer, failure)
        run.one_done()

    def _append(self, run: _Run, answer: Any, partition: Partition, records: Any) -> None:
        """Check what the storage does not, append, ask for the flush. Raises LogflumeError."""
        log = partition.log
        self._core.disk_space.require_room(len(records))
        if log.config.is_compacted:
            _check_keys(records)
        if partition.compression_type != "producer":
            records = recompress(records, partition.compression_type)
        info = log.append(records, leader_epoch=LEADER_EPOCH, now_ms=self._core.clock.wall_ms())
        answer.base_offset, answer.log_append_time_ms = info.first_offset, info.log_append_time_ms
        answer.log_start_offset = log.log_start_offset
        if run.acks != ACKS_NONE:
            run.left += 1
            self._core.flush(partition, partial(run.flushed, answer))
        else:
            self._core.flush(partition, _ignore)

    def _admit(self, log: PartitionLog, records: Any, transactional_id: str | None, context: RequestContext) -> int | Reply:
        """Ask whether the partition belongs to the producer's ongoing transaction (KIP-890)."""
        header = parse_header(records)
        if transactional_id is None:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, "a transactional batch came without a transactional id")
        if self._admission is None:
            return ErrorCode.NONE
        return self._admission.admit(
            transactional_id,
            header.producer_id,
            header.producer_epoch,
            log.topic,
            log.partition,
            can_add=context.api_version >= ADDS_PARTITIONS_FROM_VERSION,
        )

    def _partition(self, topic: Any, index: int, context: RequestContext) -> Partition:
        name = topic.name
        if context.api_version >= TOPIC_IDS_FROM_VERSION:
            found = self._core.cluster.by_id.get(topic.topic_id)
            if found is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
            name = found.name
        if context.rights is not UNRESTRICTED:
            context.require(Operation.WRITE, Resource.TOPIC, name)
        partition = self._core.partition(name, index)
        if partition is None:
            raise KafkaError(self._core.missing(name, index), topic=name, partition=index)
        require_may_change(context, name)
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


class _Run:
    """One request under way. `left` counts what has to happen before it is answered; the loop over the partitions is one."""

    __slots__ = ("acks", "has_failed", "left", "reply", "response")

    def __init__(self, acks: int) -> None:
        self.acks, self.response = acks, _Response()
        self.left, self.has_failed = 1, False
        self.reply: Reply | None = None

    def fail(self, answer: Any, error: LogflumeError) -> None:
        self.has_failed = True
        answer.base_offset = -1
        answer.error_code, answer.error_message = _error_code(error), detail_of(error)
        if isinstance(error, _NullKeys):
            answer.record_errors = [
                _RecordError(batch_index=index, batch_index_error_message="a record of a compacted topic must have a key")
                for index in error.indexes
            ]

    def flushed(self, answer: Any, error: Exception | None) -> None:
        if error is not None:
            answer.error_code, answer.error_message = ErrorCode.KAFKA_STORAGE_ERROR, detail_of(error)
            answer.base_offset = -1
        self.one_done()

    def one_done(self) -> None:
        self.left -= 1
        if self.left == 0 and self.reply is not None:
            self.reply.set(self._result())

    def outcome(self) -> Any:
        """Return the answer, or a reply if something is still to happen."""
        self.left -= 1
        if self.left == 0:
            return self._result()
        self.reply = Reply()
        return self.reply

    def _result(self) -> Any:
        if self.acks == ACKS_NONE:
            return CLOSE_CONNECTION if self.has_failed else NO_RESPONSE
        return self.response


def _may_use_transaction(context: RequestContext, request: Any) -> bool:
    """Whether who asks may write with this transactional id; a request without transactional batches does not use it."""
    if context.may(Operation.WRITE, Resource.TRANSACTIONAL_ID, request.transactional_id):
        return True
    batches = (data.records for topic in request.topic_data for data in topic.partition_data)
    return not any(b and len(b) > _CODEC_OFFSET and b[_CODEC_OFFSET] & TRANSACTIONAL_BIT for b in batches)


def _ignore(error: Exception | None) -> None:
    """Nobody waits for this flush; `Core.flush` logs its errors."""


def _check_keys(records: memoryview) -> None:
    """Refuse null keys in a compacted topic, naming each record (KIP-467)."""
    bad = null_keys(records)
    if bad:
        raise _NullKeys(bad)


class _NullKeys(AppendRefused):
    def __init__(self, indexes: list[int]) -> None:
        super().__init__(ErrorCode.INVALID_RECORD, "One or more records have been rejected: a compacted topic needs keys")
        self.indexes = indexes


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
