"""Who the producer is to the brokers: its id and epoch, and in a transaction the coordinator's side of it.

Follows KIP-98 and KIP-447, and KIP-890 where the broker has it (feature transaction.version 2): then brokers add partitions
to the transaction themselves and each transaction ends with a new epoch. Runs on the I/O loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from logflume.log.errors import InvalidInput, LogflumeError
from logflume.log.interfaces import NO_TIMEOUT_MS, GroupMetadata, OffsetAndMetadata, OpenTransaction
from logflume.log.protocol import ErrorCode, KafkaError, MessageBase, messages
from logflume.log.records import TopicPartition

from .cluster import GROUP, TRANSACTION, Cluster
from .errors import ProducerFenced, StaleGroupMember, TransactionMustAbort
from .offsets import by_topic, offset_entries
from .retry import with_retries
from .transport import Channel
from .versions import TRANSACTION_V2

TIMEOUT_S = 60.0

_FENCED = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
_STALE_MEMBER = (
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.STALE_MEMBER_EPOCH,
)


class Identity:
    """Producer id and epoch. Invariant: `fence` set means every further use is refused with it."""

    def __init__(
        self,
        cluster: Cluster,
        channel: Channel,
        *,
        transactional_id: str | None,
        transaction_timeout_ms: int,
        is_idempotent: bool,
    ) -> None:
        self.transactional_id = transactional_id
        self.is_idempotent = is_idempotent
        self.producer_id = -1
        self.producer_epoch = -1
        self.is_stale = False
        self.fence: ProducerFenced | None = None
        self.has_transaction_v2 = False
        self.is_started_at_coordinator = False
        self._cluster = cluster
        self._channel = channel
        self._transaction_timeout_ms = transaction_timeout_ms
        self._partitions: set[TopicPartition] = set()
        self._groups: set[str] = set()

    @property
    def is_ready(self) -> bool:
        return not self.is_idempotent or (self.producer_id >= 0 and not self.is_stale)

    def renew_soon(self) -> None:
        """A gap in the sequences: get a new producer id before anything new is sent. In a transaction its end does that."""
        if self.transactional_id is None:
            self.is_stale = True

    def share(self) -> OpenTransaction:
        """Return the transaction that the coordinator knows as open."""
        assert self.transactional_id is not None
        return OpenTransaction(
            self.transactional_id, self.producer_id, self.producer_epoch, self._transaction_timeout_ms, self.has_transaction_v2
        )

    def join(self, transaction: OpenTransaction) -> None:
        """Be the producer that began the transaction."""
        self.producer_id, self.producer_epoch = transaction.producer_id, transaction.producer_epoch
        self.has_transaction_v2 = transaction.has_v2

    def has_partition(self, partition: TopicPartition) -> bool:
        """Whether data may be sent to the partition now; with KIP-890 sending is what adds it."""
        if self.transactional_id is None:
            return True
        return self.has_transaction_v2 or partition in self._partitions

    def fenced(self, error: KafkaError) -> ProducerFenced:
        """Make the producer unusable; returns the error to raise from now on."""
        if self.fence is None:
            self.fence = ProducerFenced(
                error.number,
                f"transactional id {self.transactional_id!r} was taken over by another producer, or its transaction was open "
                f"longer than {self._transaction_timeout_ms} ms; this producer cannot be used any more, make a new one",
            )
        return self.fence

    async def renew(self, *, transaction_timeout_ms: int | None = None) -> None:
        """Get a new producer id (or, with a transactional id, a new epoch that fences older producers).

        `transaction_timeout_ms`: of its transactions from now on, if the brokers allow it; None: as before.
        """
        timeout_ms = self._transaction_timeout_ms if transaction_timeout_ms is None else transaction_timeout_ms
        if timeout_ms <= 0:
            raise InvalidInput(f"transaction_timeout_ms expects a number of milliseconds above 0, found {timeout_ms}")
        request = messages.InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=self.producer_id if self.transactional_id is not None else -1,
            producer_epoch=self.producer_epoch if self.transactional_id is not None else -1,
        )
        if self.transactional_id is None:
            response = await with_retries(lambda: self._ask_any(request), timeout_s=TIMEOUT_S)
        else:
            response = await self._ask_coordinator(TRANSACTION, self.transactional_id, request, lambda r: r.error_code)
            node = await self._cluster.coordinator(TRANSACTION, self.transactional_id)
            features = await self._channel.features(node=node)
            self.has_transaction_v2 = features.get(TRANSACTION_V2, 0) >= 2
        self.producer_id, self.producer_epoch, self.is_stale = response.producer_id, response.producer_epoch, False
        self._transaction_timeout_ms = timeout_ms
        self._forget_transaction()

    async def add_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """Add partitions to the open transaction at the coordinator."""
        wanted = [tp for tp in partitions if tp not in self._partitions]
        topic_class = messages.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        request = messages.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id or "",
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.producer_epoch,
            v3_and_below_topics=[
                topic_class(name=topic, partitions=[tp.partition for tp in tps]) for topic, tps in by_topic(wanted).items()
            ],
        )

        def first_error(response: messages.AddPartitionsToTxnResponse) -> int:
            codes = [p.partition_error_code for t in response.results_by_topic_v3_and_below for p in t.results_by_partition]
            return next((c for c in codes if c and c != ErrorCode.OPERATION_NOT_ATTEMPTED), next((c for c in codes if c), 0))

        self.is_started_at_coordinator = True
        assert self.transactional_id is not None
        await self._ask_coordinator(TRANSACTION, self.transactional_id, request, first_error)
        self._partitions.update(wanted)

    async def commit_offsets(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata) -> None:
        """Add a group's offsets to the open transaction.

        Raises TransactionMustAbort: the group member is stale, its partitions may belong to another one.
        """
        assert self.transactional_id is not None
        if not self.has_transaction_v2 and group.group_id not in self._groups:
            addition = messages.AddOffsetsToTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                group_id=group.group_id,
            )
            self.is_started_at_coordinator = True
            await self._ask_coordinator(TRANSACTION, self.transactional_id, addition, lambda r: r.error_code)
            self._groups.add(group.group_id)
        self.is_started_at_coordinator = True
        request = self._offset_commit(offsets, group)
        await self._ask_coordinator(
            GROUP,
            group.group_id,
            request,
            lambda r: next((p.error_code for t in r.topics for p in t.partitions if p.error_code), 0),
        )

    async def end(self, *, is_commit: bool) -> None:
        """End the transaction at the coordinator, if it knows of it; on return its decision is on disk."""
        assert self.transactional_id is not None
        if self.is_started_at_coordinator:
            request = messages.EndTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                committed=is_commit,
            )
            response = await self._ask_coordinator(TRANSACTION, self.transactional_id, request, lambda r: r.error_code)
            if response.producer_id >= 0:
                self.producer_id, self.producer_epoch = response.producer_id, response.producer_epoch
        self._forget_transaction()

    def _forget_transaction(self) -> None:
        self._partitions.clear()
        self._groups.clear()
        self.is_started_at_coordinator = False

    def _offset_commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata
    ) -> messages.TxnOffsetCommitRequest:
        request_class = messages.TxnOffsetCommitRequest
        return request_class(
            transactional_id=self.transactional_id or "",
            group_id=group.group_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            generation_id=group.generation,
            member_id=group.member_id,
            group_instance_id=group.instance_id,
            topics=offset_entries(
                request_class.TxnOffsetCommitRequestTopic, request_class.TxnOffsetCommitRequestPartition, offsets
            ),
        )

    async def _ask_any(self, request: MessageBase) -> Any:
        response = await self._channel.request(request)
        if response.error_code:
            raise KafkaError(response.error_code)
        return response

    async def _ask_coordinator(self, kind: int, key: str, request: MessageBase, error_of: Callable[[Any], int]) -> Any:
        """Ask until the answer is neither "wait" nor "not here"; fencing and stale members become errors of their own."""

        async def attempt() -> Any:
            node = await self._cluster.coordinator(kind, key)
            response = await self._channel.request(request, node=node)
            number = error_of(response)
            if number:
                raise self._classified(KafkaError(number), request)
            return response

        def forget(error: LogflumeError) -> None:
            if error.code != ErrorCode.CONCURRENT_TRANSACTIONS.name:
                self._cluster.forget_coordinator(kind, key)

        return await with_retries(attempt, timeout_s=TIMEOUT_S, on_failure=forget)

    def _classified(self, error: KafkaError, request: MessageBase) -> LogflumeError:
        if error.error in _FENCED:
            return self.fenced(error)
        if error.error in _STALE_MEMBER:
            return StaleGroupMember(
                f"the group member whose offsets were to be committed is not current any more ({error.code}): its partitions "
                "may belong to another member now; abort the transaction and poll again"
            )
        if error.error in (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE):
            return TransactionMustAbort(f"the transaction must be aborted: {error}")
        if error.error is ErrorCode.INVALID_TRANSACTION_TIMEOUT and isinstance(request, messages.InitProducerIdRequest):
            if request.transaction_timeout_ms == NO_TIMEOUT_MS:
                return InvalidInput(
                    "transactions without a time-out take the broker's transaction.two.phase.commit.enable=true and the right "
                    f"TWO_PHASE_COMMIT to the transactional id {request.transactional_id!r}"
                )
            return InvalidInput(
                f"transaction_timeout_ms={request.transaction_timeout_ms} is more than the broker's transaction.max.timeout.ms"
            )
        return error
