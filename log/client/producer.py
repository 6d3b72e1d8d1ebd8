"""The producer: queues records and chunks, sends them in batches, exactly once; transactions.

States of a transactional producer: new -> (init_transactions) -> idle -> (begin) -> open -> (commit | abort) -> idle. A batch
or an offset commit that fails while it is open makes it `failed`: only `abort_transaction` is allowed then.
A guest has joined a transaction that another producer began: it is open from the start, and ended by that one only. Sequences
count per partition, so each partition is written by one of the producers of a transaction.
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from enum import Enum
from typing import TYPE_CHECKING, Any, Self, TypeVar

from logflume.log.batch import codec_of
from logflume.log.errors import InvalidInput, LogflumeError
from logflume.log.extras import require
from logflume.log.interfaces import GroupMetadata, OffsetAndMetadata, OpenTransaction, RecordMetadata
from logflume.log.records import TopicPartition

from .accumulator import Accumulator
from .batches import Delivery, as_bytes, check_headers, check_partition, check_time
from .cluster import Cluster
from .errors import ClientClosed, ProducerFenced, RecordsRefused, StaleGroupMember, TransactionMustAbort
from .identity import Identity
from .loop import Calls, IoLoop
from .partitioner import StickyPartitioner, partition_of_key
from .sender import Sender, check_acks

if TYPE_CHECKING:
    from logflume.log.records import Chunk, Headers

T = TypeVar("T")

CLOSE_TIMEOUT_S = 30.0
ABORT_TIMEOUT_S = 5.0
"""How long closing waits for the end of an open transaction: brokers end it too, when its producer is there again or in time."""
TXN_TIMEOUT_S = 130.0


class _Txn(Enum):
    NEW = "init_transactions was not called"
    IDLE = "no transaction is open"
    OPEN = "a transaction is open"
    FAILED = "the transaction has failed"


class Producer:
    """See `interfaces.Producer`. Thread-safe. Callbacks of its futures run on the I/O thread and must not block."""

    def __init__(
        self,
        cluster: Cluster,
        loop: IoLoop,
        *,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = 60_000,
        acks: int = -1,
        linger_ms: int = 5,
        batch_size: int = 262_144,
        compression: str = "none",
        client_id: str = "logflume",
        joins: OpenTransaction | None = None,
    ) -> None:
        if joins is not None:
            transactional_id, transaction_timeout_ms = joins.transactional_id, joins.timeout_ms
        codec = codec_of(compression)
        check_acks(acks, is_transactional=transactional_id is not None)
        if batch_size < 1 or linger_ms < 0:
            raise InvalidInput(f"expected batch_size >= 1 and linger_ms >= 0, found {batch_size} and {linger_ms}")
        self._cluster = cluster
        self._loop, self._calls = loop, Calls(loop, "producer")
        self._batch_size = batch_size
        self._random = random.Random()
        self._sticky: dict[str, StickyPartitioner] = {}
        self._sticky_lock = threading.Lock()
        self._is_waking = False
        self._closed = False
        self._txn = _Txn.IDLE if transactional_id is None else _Txn.NEW
        self._is_guest = joins is not None
        if self._is_guest:
            self._txn = _Txn.OPEN
        self._is_taking_records = transactional_id is None or self._is_guest
        self._txn_error: LogflumeError | None = None
        self._transactional_id = transactional_id
        self._accumulator = Accumulator(
            batch_size=batch_size, codec=codec, is_transactional=transactional_id is not None, wake=self._wake
        )

        async def start() -> tuple[Identity, Sender, Any]:
            channel = cluster.transport.channel(client_id)
            identity = Identity(
                cluster,
                channel,
                transactional_id=transactional_id,
                transaction_timeout_ms=transaction_timeout_ms,
                is_idempotent=acks == -1,
            )
            if joins is not None:
                identity.join(joins)
            sender = Sender(
                self._accumulator,
                cluster,
                channel,
                identity,
                acks=acks,
                linger_s=linger_ms / 1000,
                codec=codec,
                on_failed_batch=self._batch_failed,
            )
            return identity, sender, channel

        self._identity, self._sender, self._channel = loop.run(start())

    @property
    def is_closed(self) -> bool:
        return self._closed

    # records

    def can_queue(self, topic: str) -> bool:
        """Return whether `send` and `send_chunk` to this topic would not wait now."""
        return topic in self._cluster.topics and self._accumulator.has_room()

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers = (),
    ) -> Future[RecordMetadata]:
        """Queue one record; blocks only while the buffer is full or the topic is not known yet.

        Partition: given, else murmur2 of the key, else sticky. `timestamp_ms` None: now.

        Raises:
            TypeError: the topic, value, key, partition, time or a header is not of its type; text is encoded by the caller.
            InvalidInput: a time that no record can hold. UnknownName: no such topic or partition.
            ClientClosed, ProducerFenced, TransactionMustAbort: the producer takes no records now.
        """
        if not self._is_taking_records:
            self._check_may_send()
        if (type(value) is not bytes and value is not None) or (type(key) is not bytes and key is not None):
            value, key = as_bytes(value, "value"), as_bytes(key, "key")
        if headers:
            check_headers(headers)
        if timestamp_ms is not None:
            check_time(timestamp_ms)
        info = self._cluster.topics.get(topic)
        count = len(info.partitions) if info is not None else self._find_partition_count(topic)
        if partition is None:
            if key is not None:
                partition = partition_of_key(key, count)
            else:
                partition = self._sticky_partition(topic, len(value or b"") + 21, count)
        else:
            check_partition(partition, topic, count)
        if timestamp_ms is None:
            timestamp_ms = time.time_ns() // 1_000_000
        return self._accumulator.append(topic, partition, key, value, timestamp_ms, headers)

    def send_chunk(self, topic: str, chunk: Chunk, *, partition: int | None = None) -> Future[int]:
        """Queue all records of a chunk in order; the future gives their number once all are acknowledged.

        Partition: given, else per record by the key as in `send`. The chunk's buffer must not be written afterwards.

        Raises: as `send`.
        """
        require("numpy", extra="arrow", what="to send a chunk")
        import numpy as np

        from logflume.log.batch.columns import key_partitions, row_sizes

        self._check_may_send()
        count = self._cluster.partition_count_now(topic) or self._find_partition_count(topic)
        if partition is not None:
            check_partition(partition, topic, count)
        done: Future[int] = Future()
        if len(chunk) == 0:
            done.set_result(0)
            return done
        sizes = row_sizes(chunk)
        if partition is not None:
            groups = [(partition, np.arange(len(chunk)))]
        else:
            chosen = key_partitions(chunk, count)
            if (chosen < 0).any():
                keyless = chosen < 0
                chosen[keyless] = self._sticky_partition(topic, int(sizes[keyless].sum()), count)
            if (chosen == chosen[0]).all():
                groups = [(int(chosen[0]), np.arange(len(chunk)))]
            else:
                order = np.argsort(chosen, kind="stable")
                bounds = np.flatnonzero(np.diff(chosen[order])) + 1
                groups = [(int(chosen[rows[0]]), rows) for rows in np.split(order, bounds)]
        parts = [
            self._accumulator.append_rows(TopicPartition(topic, number), chunk, rows.astype(np.int64), sizes[rows])
            for number, rows in groups
        ]
        _join(parts, done, len(chunk))
        return done

    def flush(self, *, timeout_s: float = 120.0) -> None:
        """Wait until everything queued is acknowledged; raises the first error of a record that was not.

        Raises TransportError: not everything was acknowledged within `timeout_s`; it is still being sent.
        """
        self._accumulator.drain(timeout_s=timeout_s)
        error = self._accumulator.take_error()
        if error is not None:
            raise error

    def hurry(self) -> None:
        """Let what is queued now go without lingering; does not wait."""
        self._accumulator.hurry()

    # transactions

    def init_transactions(self, *, transaction_timeout_ms: int | None = None) -> None:
        """Fence older producers of this transactional id and abort what they left open.

        `transaction_timeout_ms`: of transactions from now on, in place of that which the producer was made with.

        Raises InvalidInput: brokers do not allow so long a transaction; nothing has changed.
        """
        self._check_usable()
        self._need_transactional_id()
        if self._txn in (_Txn.OPEN, _Txn.FAILED):
            raise InvalidInput(f"init_transactions: {self._txn.value}; commit or abort it first")
        self._run(self._identity.renew(transaction_timeout_ms=transaction_timeout_ms))
        self._loop.run(self._reset())
        self._enter(_Txn.IDLE)

    def begin_transaction(self) -> None:
        """Open a transaction; everything sent from now on belongs to it."""
        self._check_usable()
        self._need_transactional_id()
        if self._txn is not _Txn.IDLE:
            raise InvalidInput(f"begin_transaction: {self._txn.value}")
        self._enter(_Txn.OPEN)

    def send_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: GroupMetadata,
        *,
        renewed: Callable[[], GroupMetadata | None] = lambda: None,
    ) -> None:
        """Add a group's offset commit to the open transaction.

        `renewed`: asked once when the group has gone on without this member: who it is by now, None if it must abort.

        Raises:
            TransactionMustAbort: a record failed, or the member is not current any more.
        """
        self._check_open()
        self._need_to_own()
        if not offsets:
            return
        self._accumulator.hurry()
        try:
            try:
                self._run(self._identity.commit_offsets(offsets, group))
            except StaleGroupMember:
                member = renewed()
                if member is None:
                    raise
                self._run(self._identity.commit_offsets(offsets, member))
        except LogflumeError as error:
            self._batch_failed(error)
            raise

    def share_transaction(self) -> OpenTransaction:
        """Return the open transaction for producers that join it, here or in other processes (`Log.join_transaction`).

        The coordinator has to know of it: send offsets or records first. Commit once all who joined have flushed; an abort
        fences those who are still writing where the broker has KIP-890, `init_transactions` after it fences them everywhere.
        """
        self._check_open()
        self._need_to_own()
        if not self._identity.is_started_at_coordinator:
            raise InvalidInput("share_transaction: nothing was sent in this transaction yet; send offsets or records first")
        return self._identity.share()

    def commit_transaction(self) -> None:
        """Flush, then commit; on return all of it is visible to read_committed readers and on disk.

        Raises:
            TransactionMustAbort: a record or an offset commit failed; nothing was committed.
            TransportError: no answer to the commit itself: call again, which repeats the same decision.
        """
        self._check_open()
        self._need_to_own()
        self._accumulator.drain(timeout_s=TXN_TIMEOUT_S)
        self._accumulator.take_error()
        self._check_open()
        try:
            self._run(self._end(is_commit=True))
        except TransactionMustAbort as error:
            self._batch_failed(error)
            raise
        self._enter(_Txn.IDLE)

    def abort_transaction(self) -> None:
        """Give up the open transaction: nothing of it becomes visible to read_committed readers.

        Raises TransportError: the broker did not answer in time; call again.
        """
        self._abort(timeout_s=TXN_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self, *, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Send what is queued or abort an open transaction, and let go. Idempotent.

        After `timeout_s`, as when the brokers are gone, what is left fails. An open transaction is waited for 5 s at most.
        Nothing as Python ends (`Log.close`).
        """
        if self._closed or sys.is_finalizing():
            return
        with contextlib.suppress(LogflumeError):
            if self._txn in (_Txn.OPEN, _Txn.FAILED) and self._transactional_id is not None and not self._is_guest:
                self._abort(timeout_s=min(timeout_s, ABORT_TIMEOUT_S))
            else:
                self._accumulator.drain(timeout_s=timeout_s)
        self._closed, self._is_taking_records = True, False
        self._calls.end()
        error = ClientClosed("the producer was closed")
        self._accumulator.refuse(error)

        async def stop() -> None:
            self._sender.close(error)
            self._channel.close()

        self._loop.run(stop())

    # inside

    def _wake(self) -> None:
        if not self._is_waking:
            self._is_waking = True
            self._loop.call(self._drain)

    def _drain(self) -> None:
        self._is_waking = False
        self._sender.drain()

    def _abort(self, *, timeout_s: float) -> None:
        self._check_usable()
        self._need_transactional_id()
        self._need_to_own()
        if self._txn not in (_Txn.OPEN, _Txn.FAILED):
            raise InvalidInput(f"abort_transaction: {self._txn.value}")
        deadline_s = time.monotonic() + timeout_s
        is_clean = self._txn is _Txn.OPEN
        self._loop.run(self._give_up_queued())
        with contextlib.suppress(LogflumeError):
            self._accumulator.drain(timeout_s=timeout_s)
        is_clean = is_clean and self._txn is _Txn.OPEN
        self._accumulator.take_error()
        self._run(self._end(is_commit=False), timeout_s=deadline_s - time.monotonic())
        if not is_clean and not self._identity.has_transaction_v2:
            self._run(self._identity.renew(), timeout_s=deadline_s - time.monotonic())
            self._loop.run(self._reset())
        self._enter(_Txn.IDLE)

    def _run(self, coroutine: Coroutine[Any, Any, T], *, timeout_s: float = TXN_TIMEOUT_S) -> T:
        try:
            return self._calls.run(coroutine, timeout_s=max(timeout_s, 0.0))
        except ProducerFenced as error:
            self._accumulator.refuse(error)
            raise

    async def _end(self, *, is_commit: bool) -> None:
        await self._identity.end(is_commit=is_commit)
        if self._identity.has_transaction_v2:
            self._sender.reset_sequences()

    async def _reset(self) -> None:
        self._sender.reset_sequences()

    async def _give_up_queued(self) -> None:
        self._sender.give_up_waiting(TransactionMustAbort("the transaction was aborted before the record was sent"))

    def _enter(self, state: _Txn, error: LogflumeError | None = None) -> None:
        self._txn, self._txn_error = state, error
        self._is_taking_records = state is _Txn.OPEN

    def _batch_failed(self, error: LogflumeError) -> None:
        if self._transactional_id is not None and self._txn is _Txn.OPEN:
            self._enter(_Txn.FAILED, error)

    def _check_may_send(self) -> None:
        self._check_usable()
        if self._transactional_id is not None:
            self._check_open()

    def _check_usable(self) -> None:
        if self._closed:
            raise ClientClosed("the producer was closed")
        if self._identity.fence is not None:
            raise self._identity.fence

    def _check_open(self) -> None:
        self._check_usable()
        self._need_transactional_id()
        if self._txn is _Txn.FAILED:
            raise TransactionMustAbort(f"a part of the transaction failed, abort it: {self._txn_error}") from self._txn_error
        if self._txn is not _Txn.OPEN:
            raise InvalidInput(f"expected an open transaction; {self._txn.value}")

    def _need_transactional_id(self) -> None:
        if self._transactional_id is None:
            raise InvalidInput(
                "this producer has no transactional id; give one when it is made: log.producer(transactional_id=...)"
            )

    def _need_to_own(self) -> None:
        if self._is_guest:
            raise InvalidInput(
                f"the producer that began the transaction of {self._transactional_id!r} ends it; this one joined it"
            )

    def _find_partition_count(self, topic: str) -> int:
        return len(self._calls.run(self._cluster.topic(topic), timeout_s=60.0).partitions)

    def _sticky_partition(self, topic: str, size_bytes: int, count: int) -> int:
        if count == 1:
            return 0
        with self._sticky_lock:
            sticky = self._sticky.get(topic)
            if sticky is None:
                sticky = self._sticky[topic] = StickyPartitioner(self._batch_size, self._random)
            return sticky.choose(size_bytes, count)


def _join(parts: list[Delivery], done: Future[int], count: int) -> None:
    """Complete `done` once the fate of all parts is known: with `count`, or with an error."""
    lock = threading.Lock()
    left = [len(parts)]

    def settle(_: Future[Delivery]) -> None:
        with lock:
            left[0] -= 1
            if left[0]:
                return
        errors = [error for part in parts for _, _, error in part.failures]
        if not errors:
            done.set_result(count)
        else:
            done.set_exception(_first(errors))

    for part in parts:
        part.promise.add_done_callback(settle)


def _first(errors: list[LogflumeError]) -> LogflumeError:
    """Return the first error; where records were refused, one with all of them."""
    refused = [error for error in errors if isinstance(error, RecordsRefused)]
    if not refused:
        return errors[0]
    others = next((error for error in errors if not isinstance(error, RecordsRefused)), None)
    return RecordsRefused({row: cause for error in refused for row, cause in error.causes.items()}, others=others)
