"""Produce: checks each partition's batch, appends it, answers when it is on disk and can be read (architecture, D8).

Exactly one batch per partition (KIP-98). `incoming` says what is checked of it; the storage checks the producer's sequence. The
records are views of the connection's receive buffer: what has to wait is copied.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from logflume.log.batch import BatchHeader, BatchTooLarge, CorruptBatch, UnsupportedMagic, parse_header
from logflume.log.batch.header import CODEC_MASK, TRANSACTIONAL_BIT, attributes_of
from logflume.log.broker.access import UNRESTRICTED, Operation, Resource
from logflume.log.broker.core import LEADER_EPOCH, Core, Partition
from logflume.log.broker.incoming import (
    QUICK_BYTES,
    RowsRefused,
    Rules,
    check_header,
    check_records,
    is_quick,
    max_unpacked_bytes,
)
from logflume.log.broker.ports import Admission, TxnAdmission
from logflume.log.broker.replies import Reply, as_reply
from logflume.log.broker.requests import CLOSE_CONNECTION, NO_RESPONSE, CloseConnection, RequestContext
from logflume.log.broker.schema_ids import Found, find_schemas
from logflume.log.broker.security.internal_topics import require_may_change
from logflume.log.broker.turns.order import Turns
from logflume.log.broker.turns.slices import Steps
from logflume.log.errors import LogflumeError
from logflume.log.protocol import ErrorCode, KafkaError, detail_of, messages
from logflume.log.storage import AppendRefused

ADDS_PARTITIONS_FROM_VERSION = 12
"""From this version on Produce itself adds partitions to the transaction (KIP-890)."""
TOPIC_IDS_FROM_VERSION = 13
ACKS_NONE = 0
PARTITIONS_AT_A_TIME = 200
QUICK_REQUEST_BYTES = 1024 * 1024
"""So much of one request is checked at once, unpacked; what is more is checked off the broker's thread."""

_log = logging.getLogger("logflume.broker")
_ZSTD = 4
_Response = messages.ProduceResponse
_TopicResponse = _Response.TopicProduceResponse
_PartitionResponse = _Response.PartitionProduceResponse
_RecordError = _Response.BatchIndexAndErrorMessage

Outcome = messages.ProduceResponse | Reply | CloseConnection | None
"""What Produce answers; None with acks=0."""


class ProduceHandler:
    """Handles Produce. `admission` says whether a transactional producer may write to a partition."""

    def __init__(self, core: Core, admission: TxnAdmission | None = None) -> None:
        self._core, self._admission = core, admission
        self._turns = Turns()

    def produce(self, context: RequestContext, request: messages.ProduceRequest) -> Outcome | Steps:
        if request.acks not in (-1, 0, 1):
            return self._all_failed(request, ErrorCode.INVALID_REQUIRED_ACKS)
        if request.transactional_id is not None and not _may_use_transaction(context, request):
            return self._all_failed(request, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if len(request.topic_data) > 1 or (request.topic_data and len(request.topic_data[0].partition_data) > 1):
            partitions = sum(len(topic.partition_data) for topic in request.topic_data)
            if len(request.topic_data) + partitions > PARTITIONS_AT_A_TIME:
                return self._produce_in_slices(context, request)
        run = _Run(request.acks)
        for topic in request.topic_data:
            answers = run.answers_of(topic)
            for data in topic.partition_data:
                self._write_one(run, answers, topic, data, request, context)
        return run.outcome()

    def _produce_in_slices(self, context: RequestContext, request: messages.ProduceRequest) -> Steps:
        """Handle a request of very many partitions. Its records are copied at once: they are views."""
        for topic in request.topic_data:
            for data in topic.partition_data:
                data.records = data.records and bytes(data.records)
        run, done = _Run(request.acks), 0
        for topic in request.topic_data:
            answers = run.answers_of(topic)
            for each in (None, *topic.partition_data):
                if each is not None:
                    self._write_one(run, answers, topic, each, request, context)
                done += 1
                if done % PARTITIONS_AT_A_TIME == 0:
                    yield None
        outcome = run.outcome()
        if isinstance(outcome, Reply):
            yield outcome
            outcome = outcome.value
        return outcome

    def _write_one(
        self,
        run: _Run,
        answers: list[_PartitionResponse],
        topic: messages.ProduceRequest.TopicProduceData,
        data: messages.ProduceRequest.PartitionProduceData,
        request: messages.ProduceRequest,
        context: RequestContext,
    ) -> None:
        answer = _PartitionResponse(index=data.index, error_message=None)
        answers.append(answer)
        try:
            self._write(run, answer, self._partition(topic, data.index, context), data.records, request, context)
        except LogflumeError as error:
            run.fail(answer, error)

    def _write(
        self,
        run: _Run,
        answer: _PartitionResponse,
        partition: Partition,
        records: Any,
        request: messages.ProduceRequest,
        context: RequestContext,
    ) -> None:
        """Append, at once or when the transaction coordinator and the check of the records let it. Raises LogflumeError."""
        if not records:
            raise AppendRefused(ErrorCode.INVALID_RECORD, "expected one record batch, found none")
        if context.api_version < 7 and attributes_of(records) & CODEC_MASK == _ZSTD:
            raise AppendRefused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7 or later (KIP-110)")
        rules = self._rules(partition)
        header = check_header(records, rules)
        batch = _Batch(run, answer, partition, records, header, rules, request.transactional_id, context)
        key = (partition.log.topic, partition.log.partition)
        if self._turns.is_waiting(key):
            self._turns.queue(key, partial(self._prepare, batch.kept()), partial(self._write_late, batch))
            return
        prepared = self._prepare(batch)
        if isinstance(prepared, Reply):
            self._turns.wait(key, prepared, partial(self._write_late, batch.kept()))
        else:
            self._append(batch, prepared, rules.now_ms)

    def _prepare(self, batch: _Batch) -> Any:
        """Return the bytes to append or the error, or a reply with either; the records are kept for as long as that takes."""
        if not batch.header.is_transactional:
            return self._check(batch)
        try:
            admission = self._admit(batch)
        except LogflumeError as error:
            return error
        if admission.added is None or not admission.is_first_added:
            batch.added = admission.added
            return self._check_admitted(batch, admission.error)
        kept, prepared = batch.kept(), Reply()
        admission.added.then(lambda error: as_reply(self._check_admitted(kept, error)).then(prepared.set))
        return prepared

    def _check_admitted(self, batch: _Batch, error: int) -> Any:
        if error:
            return KafkaError(error, topic=batch.partition.log.topic, partition=batch.partition.log.partition)
        return self._check(batch)

    def _check(self, batch: _Batch) -> Any:
        """Check the records: at once if that is quick, and off this thread if it is not. Returns as `_prepare`."""
        rules = self._rules(batch.partition) if batch.is_kept else batch.rules
        if batch.partition.demands:
            return self._check_schemas(batch.kept(), rules)
        try:
            if batch.run.may_check(batch.header, rules):
                return check_records(batch.records, batch.header, rules, max_bytes=QUICK_BYTES)
        except BatchTooLarge:
            pass
        except LogflumeError as error:
            return error
        kept = batch.kept()
        check = partial(check_records, kept.records, kept.header, rules, max_bytes=max_unpacked_bytes(rules))
        return self._core.offload(check)

    def _check_schemas(self, batch: _Batch, rules: Rules) -> Reply:
        """Check the records, and that their schemas are those of the topic. Returns as `_prepare`."""
        checked, max_bytes = Reply(), max_unpacked_bytes(rules)

        def check() -> tuple[Any, Found]:
            prepared = check_records(batch.records, batch.header, rules, max_bytes=max_bytes)
            return prepared, find_schemas(batch.records, batch.header, batch.partition.demands, max_bytes=max_bytes)

        def judge(outcome: Any) -> None:
            if isinstance(outcome, Exception):
                checked.set(outcome)
            else:
                prepared, found = outcome
                self._core.schemas.judge(found).then(lambda error: checked.set(error or prepared))

        self._core.offload(check).then(judge)
        return checked

    def _write_late(self, batch: _Batch, prepared: Any) -> None:
        log = batch.partition.log
        try:
            if self._core.partition(log.topic, log.partition) is not batch.partition:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topic=log.topic, partition=log.partition)
            self._append(batch, prepared, self._core.clock.wall_ms())
        except LogflumeError as failure:
            batch.run.fail(batch.answer, failure)
        except Exception:  # the boundary: nobody above a callback would answer  # noqa: BLE001
            _log.exception("a batch for %s-%d", log.topic, log.partition)
            batch.run.has_crashed = True
        batch.run.one_done()

    def _append(self, batch: _Batch, prepared: Any, now_ms: int) -> None:
        """Append what was prepared, ask for the flush. Raises what was prepared if it is an error, else LogflumeError."""
        if isinstance(prepared, Exception):
            raise prepared
        run, answer, partition, log = batch.run, batch.answer, batch.partition, batch.partition.log
        self._core.disk_space.require_room(len(prepared))
        header = batch.header if prepared is batch.records else parse_header(prepared)
        info = log.append(prepared, leader_epoch=LEADER_EPOCH, now_ms=now_ms, checked=header)
        answer.base_offset, answer.log_append_time_ms = info.first_offset, info.log_append_time_ms
        answer.log_start_offset = log.log_start_offset
        if run.acks != ACKS_NONE:
            run.left += 1
            self._core.flush(partition, partial(run.flushed, answer))
            if batch.added is not None:
                run.left += 1
                batch.added.then(partial(run.added, answer))
        else:
            self._core.flush(partition, _ignore)

    def _rules(self, partition: Partition) -> Rules:
        return Rules(partition.log.config, partition.forced_codec, self._core.clock.wall_ms())

    def _admit(self, batch: _Batch) -> Admission:
        """Ask whether the partition belongs to the producer's ongoing transaction (KIP-890). Raises LogflumeError."""
        log, header = batch.partition.log, batch.header
        if batch.transactional_id is None:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, "a transactional batch came without a transactional id")
        if self._admission is None:
            return Admission()
        can_add = batch.context.api_version >= ADDS_PARTITIONS_FROM_VERSION
        if can_add and header.base_sequence > 0 and log.producer(header.producer_id) is None:
            # Each transaction has an epoch of its own, so what it wrote here would be remembered: this batch overtook the first.
            raise AppendRefused(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id}, epoch {header.producer_epoch}: expected sequence 0, the first of a transaction "
                f"in a partition, found {header.base_sequence}",
            )
        return self._admission.admit(
            batch.transactional_id, header.producer_id, header.producer_epoch, log.topic, log.partition, can_add=can_add
        )

    def _partition(self, topic: messages.ProduceRequest.TopicProduceData, index: int, context: RequestContext) -> Partition:
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

    def _all_failed(self, request: messages.ProduceRequest, error: int) -> Outcome:
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


class _Batch:
    """A batch on its way into a partition. `records` is a view of a buffer that is used again, unless it is `kept`.

    `added`: what has to be on disk beside it before it is acknowledged.
    """

    __slots__ = ("added", "answer", "context", "header", "is_kept", "partition", "records", "rules", "run", "transactional_id")

    def __init__(
        self,
        run: _Run,
        answer: _PartitionResponse,
        partition: Partition,
        records: Any,
        header: BatchHeader,
        rules: Rules,
        transactional_id: str | None,
        context: RequestContext,
    ) -> None:
        self.run, self.answer, self.partition, self.rules = run, answer, partition, rules
        self.records, self.header, self.is_kept = records, header, False
        self.transactional_id, self.context = transactional_id, context
        self.added: Reply | None = None

    def kept(self) -> _Batch:
        """Copy the records, for something has to happen before they are appended; it counts as work left of the request."""
        if not self.is_kept:
            self.records, self.is_kept = bytes(self.records), True
            self.run.left += 1
            self.run.held_bytes += len(self.records)
        return self


class _Run:
    """One request under way. `left` counts what has to happen before it is answered; the loop over the partitions is one.

    `quick_left_bytes`: how much more of its records may be checked at once.
    """

    __slots__ = ("acks", "has_crashed", "has_failed", "held_bytes", "left", "quick_left_bytes", "reply", "response")

    def __init__(self, acks: int) -> None:
        self.acks, self.response = acks, _Response()
        self.left, self.has_failed, self.has_crashed = 1, False, False
        self.quick_left_bytes, self.held_bytes = QUICK_REQUEST_BYTES, 0
        self.reply: Reply | None = None

    def answers_of(self, topic: messages.ProduceRequest.TopicProduceData) -> list[_PartitionResponse]:
        """Return the list for the answers about a topic's partitions, which is in the response already."""
        answers: list[_PartitionResponse] = []
        self.response.responses.append(_TopicResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=answers))
        return answers

    def may_check(self, header: BatchHeader, rules: Rules) -> bool:
        """Whether a batch may be checked at once; counts it if so."""
        if not is_quick(header, rules) or self.quick_left_bytes <= 0:
            return False
        self.quick_left_bytes -= QUICK_BYTES if header.codec else header.size_bytes
        return True

    def fail(self, answer: _PartitionResponse, error: LogflumeError) -> None:
        self.has_failed = True
        answer.base_offset = -1
        answer.error_code, answer.error_message = _error_code(error), detail_of(error)
        if isinstance(error, RowsRefused):
            answer.record_errors = [_RecordError(batch_index=row, batch_index_error_message=error.each) for row in error.rows]

    def flushed(self, answer: _PartitionResponse, error: Exception | None) -> None:
        if error is not None:
            answer.error_code, answer.error_message = ErrorCode.KAFKA_STORAGE_ERROR, detail_of(error)
            answer.base_offset = -1
        self.one_done()

    def added(self, answer: _PartitionResponse, error: int) -> None:
        """The partition was added to the transaction, or could not be."""
        if error:
            self.fail(answer, KafkaError(error))
        self.one_done()

    def one_done(self) -> None:
        self.left -= 1
        if self.left == 0 and self.reply is not None:
            self.reply.set(self._result())

    def outcome(self) -> Outcome:
        """Return the answer, or a reply if something is still to happen."""
        self.left -= 1
        if self.left == 0:
            return self._result()
        self.reply = Reply()
        self.reply.held_bytes = self.held_bytes
        return self.reply

    def _result(self) -> Outcome:
        if self.has_crashed:
            return CLOSE_CONNECTION
        if self.acks == ACKS_NONE:
            return CLOSE_CONNECTION if self.has_failed else NO_RESPONSE
        return self.response


def _may_use_transaction(context: RequestContext, request: messages.ProduceRequest) -> bool:
    """Whether who asks may write with this transactional id; a request without transactional batches does not use it."""
    if context.may(Operation.WRITE, Resource.TRANSACTIONAL_ID, request.transactional_id or ""):
        return True
    batches = (data.records for topic in request.topic_data for data in topic.partition_data)
    return not any(b and attributes_of(b) & TRANSACTIONAL_BIT for b in batches)


def _ignore(error: Exception | None) -> None:
    """Nobody waits for this flush; `Core.flush` logs its errors."""


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
