"""Everything an engine writes to the log, as one transaction per task commit (or plainly, at least once)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from logflume.log import LogflumeError
from logflume.log.batch.columns import key_partitions
from logflume.log.interfaces import Consumer, OffsetAndMetadata, Producer
from logflume.log.records import Chunk, TopicPartition
from logflume.streams.seams import OutputTopic
from logflume.streams.state import Dirty
from logflume.streams.state.windows import WINDOW_START_BYTES

from .options import EngineOptions, Guarantee
from .problems import DeadLetter


class LogWriter:
    """Collects sends into the open transaction; `commit` ends it. One thread. `partitions`: topic -> number."""

    def __init__(self, producer: Producer, consumer: Consumer, options: EngineOptions, partitions: Mapping[str, int]) -> None:
        self._producer = producer
        self._consumer = consumer
        self._options = options
        self._partitions = partitions
        self._is_transactional = options.guarantee is Guarantee.EXACTLY_ONCE
        self._is_open = False

    def send(self, output: OutputTopic, chunk: Chunk) -> None:
        """Write an output's records, each to the partition of its key (of the inner key for windows)."""
        self._begin()
        if not output.is_windowed:
            self._producer.send_chunk(output.topic, chunk)
            return
        for partition, part in by_inner_key(chunk, self._partitions[output.topic]):
            self._producer.send_chunk(output.topic, part, partition=partition)

    def send_changelog(self, topic: str, partition: int, entries: Dirty) -> None:
        """Write changed entries of a store to the partition of its task."""
        self._begin()
        self._producer.send_chunk(topic, entries.chunk(topic), partition=partition)

    def send_letters(self, letters: Sequence[DeadLetter]) -> None:
        """Write records that could not be processed to the dead letter topic."""
        topic = self._options.dead_letter_topic
        assert topic is not None
        self._begin()
        chunk = Chunk.from_columns(
            topic,
            [letter.key for letter in letters],
            [letter.value for letter in letters],
            [letter.timestamp_ms for letter in letters],
            headers=[letter.headers for letter in letters],
        )
        self._producer.send_chunk(topic, chunk)

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Make all that was sent, and the offsets, durable and visible: together, or (at least once) in this order."""
        failpoint = self._options.failpoint
        if not self._is_transactional:
            self._producer.flush()
            failpoint("after-log-flush")
            self._consumer.commit(offsets)
            return
        self._begin()
        self._producer.send_offsets(offsets, self._consumer.group_metadata())
        failpoint("after-send-offsets")
        self._producer.commit_transaction()
        self._is_open = False

    def abort(self) -> None:
        """Drop the open transaction, as far as the broker can still be told."""
        if self._is_open:
            self._is_open = False
            try:
                self._producer.abort_transaction()
            except LogflumeError:
                return  # fenced or unreachable: the broker aborts it itself

    def _begin(self) -> None:
        if self._is_transactional and not self._is_open:
            self._producer.begin_transaction()
            self._is_open = True


def by_inner_key(chunk: Chunk, partitions: int) -> list[tuple[int, Chunk]]:
    """Split a chunk with windowed keys by the partition of the key without its window start, keeping the order."""
    if partitions == 1:
        return [(0, chunk)]
    inner = chunk.slice(0, len(chunk))
    inner.key_sizes = np.where(chunk.key_sizes >= 0, chunk.key_sizes - WINDOW_START_BYTES, -1).astype(np.int32)
    targets = key_partitions(inner, partitions)
    return [(int(target), take(chunk, np.flatnonzero(targets == target))) for target in np.unique(targets)]


def take(chunk: Chunk, rows: np.typing.NDArray[np.intp]) -> Chunk:
    """Return some records of a chunk, over the same buffer."""
    return Chunk(
        chunk.topic,
        chunk.partition,
        chunk.buffer,
        chunk.offsets[rows],
        chunk.timestamps_ms[rows],
        chunk.key_starts[rows],
        chunk.key_sizes[rows],
        chunk.value_starts[rows],
        chunk.value_sizes[rows],
        chunk.header_starts[rows],
        chunk.header_counts[rows],
        chunk.next_offset,
    )
