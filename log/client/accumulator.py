"""The producer's buffer: a queue of batches per partition, filled by the caller's threads and emptied by the sender.

Bounded: callers wait while it is full. One lock guards everything in it; it is never held while a batch is encoded.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from logflume.log.errors import LogflumeError, TransportError
from logflume.log.records import TopicPartition

from .batches import RECORD_OVERHEAD_BYTES, Delivery, PendingBatch, RecordFuture, headers_size_bytes

if TYPE_CHECKING:
    from logflume.log.records import I64, Chunk, Headers

BUFFER_BYTES = 64 * 1024 * 1024
MAX_BLOCK_S = 60.0


@dataclass(slots=True)
class PartitionQueue:
    """One partition's batches: `waiting` in the order they must be appended, `in_flight` in order of their sequences.

    `is_recovering`: a batch came back to be sent again; until no such batch is left, one at a time is sent.
    `known_producer_id`: under which a batch was acknowledged last.
    `has_gap`: a batch was given up, so that the broker refuses the sequences behind it.
    `sent_again_for`: why a batch came back last, until one is acknowledged.
    `failing_since_s`, `has_said`: since when that is so, and whether it was said.
    """

    partition: TopicPartition
    waiting: deque[PendingBatch] = field(default_factory=deque)
    in_flight: list[PendingBatch] = field(default_factory=list)
    next_sequence: int = 0
    next_order: int = 0
    not_before_s: float = 0.0
    is_recovering: bool = False
    known_producer_id: int = -1
    has_gap: bool = False
    sent_again_for: LogflumeError | None = None
    failing_since_s: float = 0.0
    has_said: bool = False


class Accumulator:
    """See the module. `wake` is called (from any thread) when the sender has something new to look at."""

    def __init__(
        self,
        *,
        batch_size: int,
        codec: int,
        is_transactional: bool,
        wake: Callable[[], None],
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        self.lock = threading.Lock()
        self.queues: dict[TopicPartition, PartitionQueue] = {}
        self.is_flushing = False
        self._room = threading.Condition(self.lock)
        self._idle = threading.Condition(self.lock)
        self._batch_size = batch_size
        self._codec = codec
        self._is_transactional = is_transactional
        self._wake = wake
        self._buffer_bytes = buffer_bytes
        self._used_bytes = 0
        self._live: set[PendingBatch] = set()
        self._refusal: LogflumeError | None = None
        self._first_error: LogflumeError | None = None

    def has_room(self) -> bool:
        """Return whether at least half of the buffer is free."""
        return self._used_bytes * 2 <= self._buffer_bytes

    def append(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, timestamp_ms: int, headers: Headers
    ) -> RecordFuture:
        """Queue one record; waits while the buffer is full. The hot path of `Producer.send`, hence its few calls.

        Raises:
            TransportError: no room within a minute.
            LogflumeError: the producer was closed or has failed for good.
        """
        size = RECORD_OVERHEAD_BYTES
        if key:
            size += len(key)
        if value:
            size += len(value)
        if headers:
            size += headers_size_bytes(headers)
        with self.lock:
            if self._refusal is not None or self._used_bytes + size > self._buffer_bytes:
                self._wait_for_room(size)
            self._used_bytes += size
            queue: PartitionQueue | None = self.queues.get((topic, partition))  # type: ignore[call-overload]
            waiting = queue.waiting if queue is not None else None
            if waiting:
                batch = waiting[-1]
                if not batch.is_closed and batch.size_bytes + size <= self._batch_size:
                    return batch.add(key, value, timestamp_ms, headers, size)
            future, full = self._append_to_new(TopicPartition(topic, partition), key, value, timestamp_ms, headers, size)
        if full is not None:
            full.encode(self._codec, is_transactional=self._is_transactional)
        self._wake()
        return future

    def append_rows(self, partition: TopicPartition, chunk: Chunk, rows: I64, sizes: I64) -> Delivery:
        """Queue rows of a chunk, in order, as batches of up to the batch size; `sizes` are aligned with `rows`."""
        import numpy as np

        delivery = Delivery(partition.topic, partition.partition, len(rows), chunk.timestamps_ms[rows], missing=len(rows))
        ends = np.cumsum(sizes)
        start = 0
        while start < len(rows):
            taken = int(ends[start - 1]) if start else 0
            stop = len(rows)
            if int(ends[-1]) - taken > self._batch_size:
                stop = max(start + 1, int(np.searchsorted(ends, taken + self._batch_size, side="right")))
            size = int(ends[stop - 1]) - taken
            batch = PendingBatch.of_rows(delivery, chunk, rows[start:stop], size, created_s=time.monotonic(), start=start)
            batch.encode(self._codec, is_transactional=self._is_transactional)
            with self.lock:
                self._wait_for_room(size)
                self._used_bytes += size
                queue = self._queue(partition)
                if queue.waiting:
                    queue.waiting[-1].close()
                queue.waiting.append(batch)
                self._live.add(batch)
            self._wake()
            start = stop
        return delivery

    def drop(self, batch: PendingBatch, parts: Sequence[PendingBatch] = ()) -> None:
        """The batch is done with (or replaced by `parts`); called with the lock held."""
        self._live.discard(batch)
        self._live.update(parts)
        self._used_bytes -= batch.size_bytes - sum(part.size_bytes for part in parts)
        self._room.notify_all()
        if not self._live:
            self._idle.notify_all()

    def note_error(self, error: LogflumeError) -> None:
        """Remember the first error of a record, for `flush`; called with the lock held."""
        if self._first_error is None:
            self._first_error = error

    def take_error(self) -> LogflumeError | None:
        """Return the first error since the last call."""
        with self.lock:
            error, self._first_error = self._first_error, None
            return error

    def refuse(self, error: LogflumeError) -> None:
        """From now on every record is refused with `error`; what waits for room is woken."""
        with self.lock:
            self._refusal = error
            self._room.notify_all()

    def hurry(self) -> None:
        """Let what is queued now go without lingering; does not wait."""
        with self.lock:
            for queue in self.queues.values():
                if queue.waiting:
                    queue.waiting[-1].close()
        self._wake()

    def drain(self, *, timeout_s: float) -> None:
        """Send without lingering and wait until no batch is left.

        Raises TransportError: not within `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        with self.lock:
            self.is_flushing = True
        self._wake()
        try:
            with self.lock:
                while self._live:
                    rest = deadline - time.monotonic()
                    if rest <= 0 or not self._idle.wait(rest):
                        raise TransportError(f"{len(self._live)} batches were not acknowledged within {timeout_s:g} s")
        finally:
            with self.lock:
                self.is_flushing = False

    def _queue(self, partition: TopicPartition) -> PartitionQueue:
        queue = self.queues.get(partition)
        if queue is None:
            queue = self.queues[partition] = PartitionQueue(partition)
        return queue

    def _append_to_new(
        self, partition: TopicPartition, key: bytes | None, value: bytes | None, timestamp_ms: int, headers: Headers, size: int
    ) -> tuple[RecordFuture, PendingBatch | None]:
        """Begin a new batch with this record; the one before it is closed and returned, to be encoded. Lock held."""
        queue = self._queue(partition)
        before = queue.waiting[-1] if queue.waiting else None
        full = before if before is not None and not before.is_closed else None
        if full is not None:
            full.close()
        batch = PendingBatch(Delivery(partition.topic, partition.partition), created_s=time.monotonic())
        queue.waiting.append(batch)
        self._live.add(batch)
        return batch.add(key, value, timestamp_ms, headers, size), full

    def _wait_for_room(self, size_bytes: int) -> None:
        """Wait for room; a record or batch larger than the whole buffer goes when it is empty. Lock held."""
        if self._refusal is not None:
            raise self._refusal
        if self._used_bytes and self._used_bytes + size_bytes > self._buffer_bytes:
            deadline = time.monotonic() + MAX_BLOCK_S
            while self._used_bytes and self._used_bytes + size_bytes > self._buffer_bytes:
                rest = deadline - time.monotonic()
                if rest <= 0 or not self._room.wait(rest):
                    raise TransportError(f"the producer's buffer of {self._buffer_bytes} bytes was full for {MAX_BLOCK_S:g} s")
                if self._refusal is not None:
                    raise self._refusal
