"""Sends the producer's batches: up to five requests in flight per broker, in order, each record exactly once.

Runs on the I/O loop. Sequences (KIP-98) are given when a batch is first sent. A batch that failed in a way a retry can mend
goes back to the front of its queue with its sequence; those in flight behind it are refused by the broker (out of order) and
come back too; then they are sent one at a time until all of them are through. A batch given up leaves a gap: what was refused
behind it gets new sequences under a new producer id, once no batch with an old one is left anywhere.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from logflume.log.errors import InvalidInput, LogflumeError, TransportError, UnknownName
from logflume.log.protocol import ErrorCode, KafkaError, messages
from logflume.log.records import TopicPartition

from .accumulator import Accumulator, PartitionQueue
from .batches import NO_SEQUENCE, PendingBatch
from .cluster import Cluster
from .errors import RecordsRefused, unforeseen
from .identity import Identity
from .retry import backoff_s
from .transport import Channel

if TYPE_CHECKING:
    _Answer = messages.ProduceResponse.PartitionProduceResponse

MAX_IN_FLIGHT = 5
REQUEST_MAX_BYTES = 4 * 1024 * 1024
REQUEST_TIMEOUT_S = 30.0
DELIVERY_TIMEOUT_S = 120.0
SAY_AFTER_S = 5.0
"""Records that are sent again and again for so long are worth a word: whoever waits for them would only seem slow."""

_FENCED = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED)
_OF_RECORDS = (
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.INVALID_RECORD,
    ErrorCode.POLICY_VIOLATION,
)
"""Refusals that are about single records: the batch is split until each of those stands alone."""
_NOT_APPENDED = (ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
_log = logging.getLogger("logflume.client")


class Sender:
    """See the module. `on_failed_batch(error)` is told of each batch given up (a transaction must then abort)."""

    def __init__(
        self,
        accumulator: Accumulator,
        cluster: Cluster,
        channel: Channel,
        identity: Identity,
        *,
        acks: int,
        linger_s: float,
        codec: int,
        on_failed_batch: Callable[[LogflumeError], None],
    ) -> None:
        self._accumulator = accumulator
        self._cluster = cluster
        self._channel = channel
        self._identity = identity
        self._acks = acks
        self._linger_s = linger_s
        self._codec = codec
        self._on_failed_batch = on_failed_batch
        self._loop = asyncio.get_running_loop()
        self._in_flight: dict[int, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._preparing: asyncio.Task[None] | None = None
        self._missing_topics: dict[str, asyncio.Task[None]] = {}
        self._settled: list[tuple[PendingBatch, LogflumeError | tuple[int, int]]] = []
        self._is_closed = False

    def drain(self) -> None:
        """Send whatever may be sent now; come back by itself when something will become ready."""
        if self._is_closed:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wait_s: float | None = None
        requests: dict[int, list[tuple[PartitionQueue, PendingBatch]]] = {}
        while True:
            with self._accumulator.lock:
                if self._is_prepared():
                    requests, wait_s = self._collect(time.monotonic())
            if not requests:
                break
            for node, batches in requests.items():
                self._in_flight[node] = self._in_flight.get(node, 0) + 1
                self._start(self._send(node, batches))
            requests = {}
        self._settle()
        if wait_s is not None:
            self._timer = self._loop.call_later(max(wait_s, 0.001), self.drain)

    def close(self, error: LogflumeError) -> None:
        """Give up everything that is left."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in [*self._tasks, *self._missing_topics.values(), *([self._preparing] if self._preparing else [])]:
            task.cancel()
        with self._accumulator.lock:
            for queue in self._accumulator.queues.values():
                for batch in [*queue.in_flight, *queue.waiting]:
                    batch.close()
                    self._settled.append((batch, error))
                queue.in_flight.clear()
                queue.waiting.clear()
        self._settle()

    def reset_sequences(self) -> None:
        """Start every partition at sequence 0: the producer id or epoch is new and nothing is in flight."""
        with self._accumulator.lock:
            for queue in self._accumulator.queues.values():
                assert not queue.in_flight, "sequences are reset only between transactions"
                queue.next_sequence, queue.is_recovering, queue.has_gap = 0, False, False
                for batch in queue.waiting:
                    batch.sequence = NO_SEQUENCE

    # choosing

    def _is_prepared(self) -> bool:
        """Whether there is a usable producer id; starts getting one if not. Lock held."""
        if self._identity.is_ready:
            return True
        if self._identity.is_stale:
            queues = self._accumulator.queues.values()
            if any(q.in_flight or any(b.sequence >= 0 for b in q.waiting) for q in queues):
                return True
        if self._preparing is None and any(q.waiting for q in self._accumulator.queues.values()):
            self._preparing = self._loop.create_task(self._prepare())
        return False

    async def _prepare(self) -> None:
        try:
            await self._identity.renew()
            self.reset_sequences()
        except LogflumeError as error:
            self.give_up_waiting(error)
        except Exception as error:  # the boundary, as in `_send`  # noqa: BLE001
            self.give_up_waiting(unforeseen("the record was not sent", error))
        finally:
            self._preparing = None
        self.drain()

    def _collect(self, now_s: float) -> tuple[dict[int, list[tuple[PartitionQueue, PendingBatch]]], float | None]:
        """Take the batches to send now, by broker, and how long to wait for the next that will be ready. Lock held.

        A batch whose linger is over takes along those that linger for the same broker: one request, not one per partition. One
        that is full does not, for the others would stay small.
        """
        requests: dict[int, list[tuple[PartitionQueue, PendingBatch]]] = {}
        sizes: dict[int, int] = {}
        lingering: list[PartitionQueue] = []
        leaving: set[int] = set()
        wait_s: float | None = None
        for queue in self._accumulator.queues.values():
            if not queue.waiting:
                continue
            due_s = self._due_in(queue, now_s)
            if due_s > 0:
                wait_s = due_s if wait_s is None else min(wait_s, due_s)
                if queue.not_before_s <= now_s:
                    lingering.append(queue)
                continue
            batch = queue.waiting[0]
            if self._may_send(queue, batch) and now_s - batch.created_s > DELIVERY_TIMEOUT_S:
                self._give_up(queue, batch, TransportError(f"not acknowledged within {DELIVERY_TIMEOUT_S:g} s{_because(queue)}"))
                wait_s = 0.0
                continue
            has_lingered = not batch.is_closed
            node = self._board(queue, requests, sizes)
            if node is not None and has_lingered:
                leaving.add(node)
        for queue in lingering if leaving else ():
            if self._cluster.leader_now(queue.partition) in leaving:
                self._board(queue, requests, sizes)
        return requests, wait_s

    def _board(
        self, queue: PartitionQueue, requests: dict[int, list[tuple[PartitionQueue, PendingBatch]]], sizes: dict[int, int]
    ) -> int | None:
        """Put the first batch of a queue into the request to its leader, and return that; None if it cannot go. Lock held."""
        batch = queue.waiting[0]
        if not self._may_send(queue, batch):
            return None
        node = self._cluster.leader_now(queue.partition)
        if node < 0:
            self._look_for(queue.partition.topic)
            return None
        if not self._identity.has_partition(queue.partition):
            self._start_once(self._add_partitions())
            return None
        is_full = node in requests and sizes[node] + batch.size_bytes > REQUEST_MAX_BYTES
        if is_full or self._in_flight.get(node, 0) >= MAX_IN_FLIGHT:
            return None
        sizes[node] = sizes.get(node, 0) + batch.size_bytes
        requests.setdefault(node, []).append((queue, self._take(queue)))
        return node

    def _due_in(self, queue: PartitionQueue, now_s: float) -> float:
        """Seconds until the first batch of the queue may go: backoff first, else what is left of its linger."""
        if queue.not_before_s > now_s:
            return queue.not_before_s - now_s
        batch = queue.waiting[0]
        if batch.is_closed or len(queue.waiting) > 1 or self._accumulator.is_flushing:
            return 0.0
        return batch.created_s + self._linger_s - now_s

    def _may_send(self, queue: PartitionQueue, batch: PendingBatch) -> bool:
        if queue.in_flight and (queue.is_recovering or not self._is_known(queue)):
            return False
        if self._identity.is_stale and batch.sequence < 0:
            return False
        return len(queue.in_flight) < MAX_IN_FLIGHT

    def _is_known(self, queue: PartitionQueue) -> bool:
        """Whether the broker refuses what has overtaken a batch: of a producer that it does not know it takes any sequence."""
        return not self._identity.is_idempotent or queue.known_producer_id == self._identity.producer_id

    def _take(self, queue: PartitionQueue) -> PendingBatch:
        batch = queue.waiting.popleft()
        batch.close()
        if batch.sequence < 0 and self._identity.is_idempotent:
            batch.sequence = queue.next_sequence
            queue.next_sequence = batch.sequence_after()
        if batch.order < 0:
            batch.order = queue.next_order
            queue.next_order += batch.count
        batch.attempts += 1
        queue.in_flight.append(batch)
        return batch

    # sending

    async def _send(self, node: int, batches: list[tuple[PartitionQueue, PendingBatch]]) -> None:
        try:
            response = await self._channel.request(self._request(batches), node=node, timeout_s=REQUEST_TIMEOUT_S)
            self._answered(batches, response)
        except LogflumeError as error:
            self._failed(batches, error)
        except Exception as error:  # the boundary: whoever waits for these records must hear of it  # noqa: BLE001
            self._failed(batches, unforeseen("the record was not sent", error))
        finally:
            self._in_flight[node] -= 1
        self.drain()

    def _request(self, batches: list[tuple[PartitionQueue, PendingBatch]]) -> messages.ProduceRequest:
        topic_class = messages.ProduceRequest.TopicProduceData
        partition_class = messages.ProduceRequest.PartitionProduceData
        topics: dict[str, list[messages.ProduceRequest.PartitionProduceData]] = {}
        is_transactional = self._identity.transactional_id is not None
        self._identity.is_started_at_coordinator = is_transactional
        for queue, batch in batches:
            batch.encode(self._codec, is_transactional=is_transactional)
            records = batch.wire_bytes(self._identity.producer_id, self._identity.producer_epoch)
            topics.setdefault(queue.partition.topic, []).append(partition_class(index=queue.partition.partition, records=records))
        return messages.ProduceRequest(
            transactional_id=self._identity.transactional_id,
            acks=self._acks,
            timeout_ms=int(REQUEST_TIMEOUT_S * 1000),
            topic_data=[topic_class(name=name, partition_data=data) for name, data in topics.items()],
        )

    def _failed(self, batches: list[tuple[PartitionQueue, PendingBatch]], error: LogflumeError) -> None:
        """The request as a whole failed; with a TransportError the broker may have it or not."""
        with self._accumulator.lock:
            for queue, batch in batches:
                if batch not in queue.in_flight:
                    continue
                if error.is_retriable:
                    self._cluster.forget_topic(queue.partition.topic)
                    self._put_back(queue, batch, error)
                else:
                    queue.in_flight.remove(batch)
                    self._give_up(queue, batch, error)
        self._settle()

    def _answered(self, batches: list[tuple[PartitionQueue, PendingBatch]], response: messages.ProduceResponse | None) -> None:
        answers: dict[tuple[str, int], _Answer] = {}
        if response is not None:
            answers = {(t.name, p.index): p for t in response.responses for p in t.partition_responses}
        with self._accumulator.lock:
            for queue, batch in batches:
                if batch not in queue.in_flight:
                    continue
                answer = answers.get((queue.partition.topic, queue.partition.partition))
                if response is None:
                    self._acknowledge(queue, batch, -1, -1)
                elif answer is None:
                    self._put_back(queue, batch, TransportError("the broker's answer leaves the partition out"))
                elif answer.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                    self._acknowledge(queue, batch, answer.base_offset, answer.log_append_time_ms)
                else:
                    self._refused(queue, batch, answer)
        self._settle()

    def _acknowledge(self, queue: PartitionQueue, batch: PendingBatch, base_offset: int, append_time_ms: int) -> None:
        queue.in_flight.remove(batch)
        queue.sent_again_for, queue.has_said, queue.known_producer_id = None, False, self._identity.producer_id
        if queue.is_recovering and not queue.in_flight:
            queue.is_recovering = bool(queue.waiting and queue.waiting[0].sequence >= 0)
        self._settled.append((batch, (base_offset, append_time_ms)))

    def _refused(self, queue: PartitionQueue, batch: PendingBatch, answer: _Answer) -> None:
        """The broker has not appended the batch and says why. Lock held."""
        error = KafkaError(
            answer.error_code, answer.error_message, topic=queue.partition.topic, partition=queue.partition.partition
        )
        if error.error in _OF_RECORDS and batch.count > 1 and not self._is_told_which(answer):
            self._split(queue, batch)
        elif error.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self._has_predecessor(queue, batch):
            self._put_back(queue, batch, queue.sent_again_for or error)
        elif self._may_renumber(queue, error):
            self._renumber(queue, batch, error)
        elif error.error in _FENCED and self._identity.transactional_id is not None:
            queue.in_flight.remove(batch)
            self._give_up(queue, batch, self._identity.fenced(error))
        elif error.is_retriable:
            self._cluster.forget_topic(queue.partition.topic)
            self._put_back(queue, batch, error)
        else:
            queue.in_flight.remove(batch)
            self._give_up(queue, batch, _refusal(batch, error, answer) if error.error in _OF_RECORDS else error)

    def _is_told_which(self, answer: _Answer) -> bool:
        """Whether the broker names the records, and the others go with the transaction, so that there is nothing to find out."""
        return bool(answer.record_errors) and self._identity.transactional_id is not None

    def _has_predecessor(self, queue: PartitionQueue, batch: PendingBatch) -> bool:
        """Whether a batch with a lower sequence is still to be acknowledged."""
        others = [b for b in queue.in_flight if b is not batch] + [b for b in queue.waiting if b.sequence >= 0]
        return any(_is_before(other.sequence, batch.sequence) for other in others)

    def _may_renumber(self, queue: PartitionQueue, error: KafkaError) -> bool:
        """Whether the batch is certainly not in the log and may go under a new producer id (outside of transactions)."""
        if self._identity.transactional_id is not None or not self._identity.is_idempotent:
            return False
        if error.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            return queue.has_gap
        return error.error in _NOT_APPENDED or error.error in _FENCED

    def _renumber(self, queue: PartitionQueue, batch: PendingBatch, error: KafkaError) -> None:
        """Send the batch, and those behind it (refused for the same gap or not sent yet), under a new producer id."""
        self._put_back(queue, batch, error)
        for waiting in queue.waiting:
            if waiting.order >= batch.order:
                waiting.sequence = NO_SEQUENCE
        self._identity.renew_soon()

    def _put_back(self, queue: PartitionQueue, batch: PendingBatch, error: LogflumeError) -> None:
        """Back into the queue, to be sent again after a pause; what lasts is said once until the next success. Lock held."""
        queue.in_flight.remove(batch)
        _insert(queue, batch)
        now_s = time.monotonic()
        if queue.sent_again_for is None:
            queue.failing_since_s = now_s
        queue.is_recovering, queue.sent_again_for = self._identity.is_idempotent, error
        queue.not_before_s = now_s + backoff_s(batch.attempts)
        failing_s = now_s - queue.failing_since_s
        if not queue.has_said and failing_s > SAY_AFTER_S:
            queue.has_said = True
            _log.warning("%s-%d takes no records for %.0f s now; trying again: %s", *queue.partition, failing_s, error)

    def _split(self, queue: PartitionQueue, batch: PendingBatch) -> None:
        queue.in_flight.remove(batch)
        parts = batch.split()
        self._accumulator.drop(batch, parts)
        for part in parts:
            _insert(queue, part)
        queue.is_recovering = self._identity.is_idempotent

    def _give_up(self, queue: PartitionQueue, batch: PendingBatch, error: LogflumeError) -> None:
        """The batch is lost to the caller, who is told. It is in no list but perhaps first in `waiting`. Lock held."""
        if queue.waiting and queue.waiting[0] is batch:
            queue.waiting.popleft()
        batch.close()
        self._accumulator.note_error(error)
        self._settled.append((batch, error))
        if self._identity.is_idempotent and batch.sequence >= 0:
            queue.has_gap = True
            self._identity.renew_soon()
        if queue.is_recovering and not queue.in_flight:
            queue.is_recovering = bool(queue.waiting and queue.waiting[0].sequence >= 0)
        self._on_failed_batch(error)

    def _settle(self) -> None:
        """Tell the callers what became of their records, then let go of them. Without the lock: callbacks may send more."""
        settled, self._settled = self._settled, []
        for batch, outcome in settled:
            if isinstance(outcome, LogflumeError):
                batch.delivery.fail(batch.delivery_start, batch.count, outcome)
            else:
                batch.delivery.acknowledge(batch.delivery_start, batch.count, *outcome)
        if settled:
            with self._accumulator.lock:
                for batch, _ in settled:
                    self._accumulator.drop(batch)

    def give_up_waiting(self, error: LogflumeError) -> None:
        """Give up everything that is not in flight."""
        with self._accumulator.lock:
            for queue in self._accumulator.queues.values():
                while queue.waiting:
                    self._give_up(queue, queue.waiting[0], error)
        self._settle()

    # what must be known or done before sending

    def _look_for(self, topic: str) -> None:
        if topic not in self._missing_topics:
            self._missing_topics[topic] = self._loop.create_task(self._find(topic))

    async def _find(self, topic: str) -> None:
        try:
            await self._cluster.topic(topic)
        except UnknownName as error:
            self._fail_topic(topic, error)
        except LogflumeError:
            await asyncio.sleep(backoff_s(5))
        except Exception as error:  # the boundary, as in `_send`  # noqa: BLE001
            self._fail_topic(topic, unforeseen("the record was not sent", error))
        finally:
            self._missing_topics.pop(topic, None)
        self.drain()

    def _fail_topic(self, topic: str, error: LogflumeError) -> None:
        with self._accumulator.lock:
            for queue in self._accumulator.queues.values():
                while queue.partition.topic == topic and queue.waiting:
                    self._give_up(queue, queue.waiting[0], error)
        self._settle()

    def _start_once(self, coroutine: Any) -> None:
        if self._preparing is None:
            self._preparing = self._loop.create_task(coroutine)
        else:
            coroutine.close()

    async def _add_partitions(self) -> None:
        """Tell the transaction coordinator of the partitions with something to send (before KIP-890)."""
        with self._accumulator.lock:
            wanted: list[TopicPartition] = [q.partition for q in self._accumulator.queues.values() if q.waiting]
        try:
            await self._identity.add_partitions(wanted)
        except LogflumeError as error:
            self.give_up_waiting(error)
        except Exception as error:  # the boundary, as in `_send`  # noqa: BLE001
            self.give_up_waiting(unforeseen("the record was not sent", error))
        finally:
            self._preparing = None
        self.drain()

    def _start(self, coroutine: Any) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _because(queue: PartitionQueue) -> str:
    """Return why the records of a partition were sent again, to go behind that it was in vain."""
    return f"; the last answer: {queue.sent_again_for}" if queue.sent_again_for is not None else ""


def _refusal(batch: PendingBatch, error: KafkaError, answer: _Answer) -> RecordsRefused:
    """Return the error that names the refused records of a batch: those that the broker named, else all."""
    named = [each.batch_index for each in answer.record_errors or () if 0 <= each.batch_index < batch.count]
    places = named or range(batch.count)
    if batch.rows is not None:
        return RecordsRefused(dict.fromkeys(batch.rows[list(places)].tolist(), error))
    return RecordsRefused({batch.delivery_start + place: error for place in places})


def _insert(queue: PartitionQueue, batch: PendingBatch) -> None:
    """Put a batch that was sent before back among the waiting ones, in the order of the first sending.

    Behind one that lost its sequence it loses its own: it cannot be in the log, whose sequences have no gaps.
    """
    position = 0
    for waiting in queue.waiting:
        if waiting.order < 0 or waiting.order > batch.order:
            break
        position += 1
        if waiting.sequence < 0:
            batch.sequence = NO_SEQUENCE
    queue.waiting.insert(position, batch)


def _is_before(a: int, b: int) -> bool:
    """Whether sequence `a` comes before `b`; sequences wrap after 2^31-1."""
    return a != b and ((b - a) & 0x7FFFFFFF) < 0x40000000


def check_acks(acks: int, *, is_transactional: bool) -> None:
    """Raise InvalidInput unless `acks` is -1 (all), 1 or 0; a transaction needs all."""
    if acks not in (-1, 0, 1):
        raise InvalidInput(f"expected acks of -1 (all), 1 or 0, found {acks}")
    if is_transactional and acks != -1:
        raise InvalidInput(f"a transactional producer needs acks=-1 (all), found {acks}")
