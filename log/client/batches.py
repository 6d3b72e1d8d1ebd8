"""Batches of a producer on their way: open ones taking records, closed ones waiting, sent ones waiting for their ack.

A batch keeps what it was made of until it is acknowledged, so that it can be split when the broker finds it too large.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, SupportsIndex

from logflume.log.batch import encode_batch
from logflume.log.batch.header import NO_PRODUCER_ID, producer_of, seal, stamp_producer
from logflume.log.errors import InvalidInput, LogflumeError
from logflume.log.interfaces import RecordMetadata

if TYPE_CHECKING:
    from logflume.log.records import I64, Chunk, Headers

RECORD_OVERHEAD_BYTES = 21
"""Upper bound of a record's bytes beside key, value and headers: length, attributes, deltas and counts as varints."""

NO_SEQUENCE = -1
NEVER_SENT = -1
_SEQUENCE_MASK = 0x7FFFFFFF
_OBJECTS_FOR_COLUMNS = 64
"""From this many records on the columnar encoder (and with it numpy) is worth loading."""


@dataclass(slots=True)
class Delivery:
    """The fate of the records that were queued together; survives a split of their batch. Known once that of all is known.

    `parts`: (index of the first record, base offset, append time ms or -1) of each acknowledged part.
    `failures`: (index of the first record, number, why) of each part that was given up.
    """

    topic: str
    partition: int
    count: int = 0
    timestamps_ms: Any = ()
    parts: list[tuple[int, int, int]] = field(default_factory=list)
    failures: list[tuple[int, int, LogflumeError]] = field(default_factory=list)
    promise: Future[Delivery] = field(default_factory=Future)
    missing: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def acknowledge(self, start: int, count: int, base_offset: int, append_time_ms: int) -> None:
        """Records start..start+count are on disk from `base_offset` on."""
        self.parts.append((start, base_offset, append_time_ms))
        self._decided(count)

    def fail(self, start: int, count: int, error: LogflumeError) -> None:
        """Records start..start+count were given up."""
        self.failures.append((start, count, error))
        self._decided(count)

    def _decided(self, count: int) -> None:
        self.missing -= count
        if self.missing == 0 and not self.promise.done():
            if self.failures:
                self.promise.set_exception(self.failures[0][2])
            else:
                self.promise.set_result(self)

    def error_of(self, index: int) -> LogflumeError | None:
        """Return why record `index` was given up, None if it is in the log."""
        return next((error for start, count, error in self.failures if start <= index < start + count), None)

    def metadata(self, index: int) -> RecordMetadata:
        """Return where record `index` went; only after the promise was kept."""
        start, base_offset, append_time_ms = max(part for part in self.parts if part[0] <= index)
        timestamp_ms = append_time_ms if append_time_ms >= 0 else int(self.timestamps_ms[index])
        return RecordMetadata(self.topic, self.partition, base_offset + index - start if base_offset >= 0 else -1, timestamp_ms)


class RecordFuture(Future[RecordMetadata]):
    """The future of one record: asks its delivery. It becomes a real one, which costs more than queueing the record, for who
    needs more of it than that (`concurrent.futures.wait`)."""

    def __init__(self, delivery: Delivery, index: int) -> None:
        self._delivery = delivery
        self._index = index

    def cancel(self) -> bool:
        """Return False: what is queued is sent."""
        return False

    def cancelled(self) -> bool:
        return False

    def done(self) -> bool:
        return self._delivery.promise.done()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._delivery.promise.exception(timeout)
        return self._delivery.error_of(self._index)

    def result(self, timeout: float | None = None) -> RecordMetadata:
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self._delivery.metadata(self._index)

    def add_done_callback(self, fn: Callable[[Future[RecordMetadata]], object]) -> None:
        self._delivery.promise.add_done_callback(lambda _: fn(self))

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") or name in ("_delivery", "_index"):
            raise AttributeError(name)
        with self._delivery.lock:
            if "_condition" not in self.__dict__:
                super().__init__()
                self._delivery.promise.add_done_callback(self._settle)
        return object.__getattribute__(self, name)

    def _settle(self, promise: Future[Delivery]) -> None:
        error = self._delivery.error_of(self._index)
        if error is not None:
            self.set_exception(error)
        else:
            self.set_result(self._delivery.metadata(self._index))


class PendingBatch:
    """Records for one partition, from objects (`keys`, `values`...) or from rows of a chunk.

    Invariants: `sequence` is set when the batch is first sent and stays as long as the broker may have it; `order` is the number
    of records of its partition that were sent before it, set then too and never changed.
    """

    __slots__ = (
        "attempts",
        "chunk",
        "count",
        "created_s",
        "delivery",
        "delivery_start",
        "encoded",
        "encoding",
        "headers",
        "is_closed",
        "is_sealed",
        "keys",
        "order",
        "rows",
        "sequence",
        "size_bytes",
        "timestamps_ms",
        "values",
    )

    def __init__(self, delivery: Delivery, *, created_s: float, delivery_start: int = 0) -> None:
        self.delivery = delivery
        self.delivery_start = delivery_start
        self.created_s = created_s
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.timestamps_ms: list[int] = []
        self.headers: list[Headers] | None = None
        self.chunk: Chunk | None = None
        self.rows: I64 | None = None
        self.count = 0
        self.size_bytes = 0
        self.is_closed = False
        self.sequence = NO_SEQUENCE
        self.order = NEVER_SENT
        self.attempts = 0
        self.encoded: bytearray | None = None
        self.is_sealed = True
        self.encoding = threading.Lock()

    @classmethod
    def of_rows(
        cls, delivery: Delivery, chunk: Chunk, rows: I64, size_bytes: int, *, created_s: float, start: int
    ) -> PendingBatch:
        """Make a closed batch of rows of a chunk; `start` is the index of the first of them in the delivery."""
        batch = cls(delivery, created_s=created_s, delivery_start=start)
        batch.chunk, batch.rows = chunk, rows
        batch.count, batch.size_bytes, batch.is_closed = len(rows), size_bytes, True
        return batch

    def add(self, key: bytes | None, value: bytes | None, timestamp_ms: int, headers: Headers, size_bytes: int) -> RecordFuture:
        """Take one more record."""
        self.keys.append(key)
        self.values.append(value)
        self.timestamps_ms.append(timestamp_ms)
        if headers or self.headers is not None:
            if self.headers is None:
                self.headers = [()] * self.count
            self.headers.append(headers)
        index = self.count
        self.count = index + 1
        self.size_bytes += size_bytes
        return RecordFuture(self.delivery, index)

    def close(self) -> None:
        """Take no more records."""
        if not self.is_closed:
            self.is_closed = True
            self.delivery.count = self.delivery.missing = self.count
            self.delivery.timestamps_ms = self.timestamps_ms

    def encode(self, codec: int, *, is_transactional: bool) -> None:
        """Encode, once; without producer id and sequence, which are written by `wire_bytes`. Callable from any thread."""
        with self.encoding:
            if self.encoded is None:
                self.encoded = self._encode(codec, is_transactional)

    def wire_bytes(self, producer_id: int, producer_epoch: int) -> bytearray:
        """Return the encoded batch with producer and sequence filled in.

        What was returned before is left as it is, for it may still be on its way.
        """
        assert self.encoded is not None, "encode before sending"
        if producer_id >= 0:
            before = producer_of(self.encoded)
            fields = (producer_id, producer_epoch, self.sequence)
            if before != fields:
                if before[0] != NO_PRODUCER_ID:
                    self.encoded = bytearray(self.encoded)
                stamp_producer(self.encoded, *fields)
                self.is_sealed = False
        if not self.is_sealed:
            seal(self.encoded, position=0, size_bytes=len(self.encoded))
            self.is_sealed = True
        return self.encoded

    def split(self) -> tuple[PendingBatch, PendingBatch]:
        """Return the two halves; sequences continue, so that batches behind keep theirs."""
        assert self.count > 1, "a single record cannot be split"
        middle = self.count // 2
        return self._part(0, middle), self._part(middle, self.count)

    def sequence_after(self) -> int:
        """Return the sequence of the record that follows this batch; wraps after 2^31-1."""
        return (self.sequence + self.count) & _SEQUENCE_MASK

    def _part(self, start: int, stop: int) -> PendingBatch:
        part = PendingBatch(self.delivery, created_s=self.created_s, delivery_start=self.delivery_start + start)
        if self.rows is not None:
            part.chunk, part.rows = self.chunk, self.rows[start:stop]
        else:
            part.keys, part.values = self.keys[start:stop], self.values[start:stop]
            part.timestamps_ms = self.timestamps_ms[start:stop]
            part.headers = self.headers[start:stop] if self.headers is not None else None
        part.count, part.is_closed, part.attempts = stop - start, True, self.attempts
        part.size_bytes = self.size_bytes * part.count // self.count
        if self.sequence >= 0:
            part.sequence = (self.sequence + start) & _SEQUENCE_MASK
        if self.order >= 0:
            part.order = self.order + start
        return part

    def _encode(self, codec: int, is_transactional: bool) -> bytearray:
        if self.chunk is not None:
            from logflume.log.batch.columns import encode_rows

            self.is_sealed = False
            return encode_rows(self.chunk, rows=self.rows, codec=codec, is_transactional=is_transactional, is_sealed=False)
        if self.count >= _OBJECTS_FOR_COLUMNS:
            from logflume.log.batch.encoding import encode_objects

            return encode_objects(
                self.keys, self.values, self.timestamps_ms, headers=self.headers, codec=codec, is_transactional=is_transactional
            )
        return encode_batch(
            self.keys, self.values, self.timestamps_ms, headers=self.headers, codec=codec, is_transactional=is_transactional
        )


def as_bytes(value: object, what: str) -> bytes | None:
    """Return bytes or None, a copy of another buffer. Raises TypeError for all else: later it would concern other records too."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    hint = f"; send {what}.encode()" if isinstance(value, str) else ""
    raise TypeError(f"expected bytes or None as {what}, found {type(value).__name__}{hint}")


def check_headers(headers: Sequence[tuple[str, bytes | None]]) -> None:
    """Raise TypeError unless these are pairs of a name and bytes or None."""
    for header in headers:
        if not isinstance(header, tuple | list) or len(header) != 2 or not isinstance(header[0], str):
            raise TypeError(f"expected headers as (name, bytes or None) pairs, found {header!r}")
        if header[1] is not None and not isinstance(header[1], bytes):
            raise TypeError(f"expected bytes or None as value of header {header[0]!r}, found {type(header[1]).__name__}")


def check_time(timestamp_ms: object) -> None:
    """Raise TypeError or InvalidInput unless this is a time in milliseconds that a record can hold."""
    if not isinstance(timestamp_ms, int):
        raise TypeError(f"expected whole milliseconds as timestamp_ms, found {type(timestamp_ms).__name__}")
    if not -(2**63) <= timestamp_ms < 2**63:
        raise InvalidInput(f"expected a timestamp_ms of 64 bits, found {timestamp_ms}")


def check_partition(partition: object, topic: str, count: int) -> None:
    """Raise TypeError or InvalidInput unless this is the number of one of the topic's partitions."""
    if not isinstance(partition, SupportsIndex):
        raise TypeError(f"expected a number as partition, found {type(partition).__name__}")
    if not 0 <= partition.__index__() < count:
        raise InvalidInput(f"topic {topic!r} has partitions 0 to {count - 1}, found {partition}")


def headers_size_bytes(headers: Sequence[tuple[str, bytes | None]]) -> int:
    """Return an upper bound of the encoded size of headers."""
    return sum(10 + 4 * len(name) + len(value or b"") for name, value in headers)
