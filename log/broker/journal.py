"""Internal topics for the coordinators: a journal of compacted records, and the reach into data partitions for markers."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

from logflume.log.batch import check_crc, decode_records, encode_batch, parse_marker
from logflume.log.errors import LogflumeError
from logflume.log.protocol import ErrorCode
from logflume.log.storage import PartitionLog

from .apis.topic_changes import make_own
from .core import LEADER_EPOCH, Core
from .ports import JournalRecord, OpenInPartition, ReplayedBatch
from .replies import Reply
from .turns.slices import Steps

COMPACTED = {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": str(100 * 1024**2)}
APPENDS_AT_A_TIME = 100
"""Of those that waited for the topic, in one slice."""
_log = logging.getLogger("logflume.broker")


class TopicJournal:
    """A `Journal` over an internal topic, which is made when it is first written to.

    Appends of one partition become durable in order; replies come on the broker's thread. Invariant: while `_waiting` is not
    empty the topic is being made, or what waited for it is being appended; whoever comes then waits as well.
    """

    def __init__(self, core: Core, topic: str, *, partition_count: int) -> None:
        """`partition_count` counts only until the topic exists."""
        self._core, self._topic, self._configured_count = core, topic, partition_count
        self._waiting: deque[Callable[[LogflumeError | None], None]] = deque()

    @property
    def partition_count(self) -> int:
        topic = self._core.cluster.topics.get(self._topic)
        return topic.partition_count if topic else self._configured_count

    def append(
        self, partition: int, records: Sequence[JournalRecord], *, producer_id: int = -1, producer_epoch: int = -1
    ) -> Reply:
        """Append as one batch; see `Journal`."""
        reply = Reply()

        def append(problem: LogflumeError | None) -> None:
            if problem is None:
                self._append(partition, records, producer_id, producer_epoch, reply)
            else:
                reply.set(-_code(problem))

        if self._waiting:
            self._waiting.append(append)
        elif self._topic in self._core.cluster.topics:
            append(None)
        else:
            self._waiting.append(append)
            self._make_topic()
        return reply

    def _append(
        self, partition: int, records: Sequence[JournalRecord], producer_id: int, producer_epoch: int, reply: Reply
    ) -> None:
        found = self._core.partition(self._topic, partition)
        assert found is not None, (self._topic, partition)
        now_ms = self._core.clock.wall_ms()
        try:
            batch = encode_batch(
                [record.key for record in records],
                [record.value for record in records],
                [record.timestamp_ms if record.timestamp_ms >= 0 else now_ms for record in records],
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                is_transactional=producer_id >= 0,
            )
            info = found.log.append(batch, leader_epoch=LEADER_EPOCH, now_ms=now_ms, is_client=False)
        except LogflumeError as error:
            reply.set(-_code(error))
            return
        self._core.flush(found, lambda error: reply.set(info.first_offset if error is None else -ErrorCode.KAFKA_STORAGE_ERROR))

    def _make_topic(self) -> None:
        """Make the topic, off the loop, then do what waits for it."""

        def done(errors: Mapping[str, LogflumeError]) -> None:
            problem = errors.get(self._topic)
            if problem is not None:
                _log.error("cannot make %s: %s", self._topic, problem)
            self._core.slices.run(self._go_on(problem))

        wanted = {self._topic: (self._configured_count, COMPACTED)}
        make_own(self._core, wanted).then(done)

    def _go_on(self, problem: LogflumeError | None) -> Steps:
        """Do what waits for the topic."""
        done = 0
        while self._waiting:
            try:
                self._waiting[0](problem)
            finally:
                self._waiting.popleft()
            done += 1
            if done % APPENDS_AT_A_TIME == 0:
                yield None

    def replay(self, partition: int) -> Iterator[ReplayedBatch]:
        """Yield what the partition holds; nothing if the topic was never written to. Raises StorageError, CorruptBatch."""
        found = self._core.partition(self._topic, partition)
        if found is None:
            return
        for header, batch in found.log.headers(found.log.log_start_offset):
            data = batch.read()
            check_crc(data, header)
            if header.is_control:
                marker = parse_marker(data)
                is_commit = marker.is_commit if marker else None
                records: tuple[JournalRecord, ...] = ()
            else:
                is_commit = None
                records = tuple(JournalRecord(r.key or b"", r.value, r.timestamp_ms) for r in decode_records(data))
            yield ReplayedBatch(
                header.base_offset, header.producer_id, header.producer_epoch, header.is_transactional, is_commit, records
            )


class DataPartitions:
    """`TxnPartitions` over the broker's own partitions."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.marker_listeners: list[Callable[[str, int, int, bool], None]] = []
        """Called with (topic, partition, producer id, is commit) when an end is announced."""

    def exists(self, topic: str, partition: int) -> bool:
        return self._core.has_partition(topic, partition)

    def write_marker(
        self,
        topic: str,
        partition: int,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        *,
        is_commit: bool,
        is_bumped: bool = False,
    ) -> Reply:
        """Append a control batch; see `TxnPartitions`. A partition that is gone needs no marker: UNKNOWN_TOPIC_OR_PARTITION.

        One that is offline, or that is being made, does: KAFKA_STORAGE_ERROR, and it is written once it is there.
        """
        reply = Reply()
        found = self._core.partition(topic, partition)
        if found is None:
            is_coming = topic in self._core.topic_rules.busy
            reply.set(int(ErrorCode.KAFKA_STORAGE_ERROR if is_coming else self._core.missing(topic, partition)))
            return reply
        state = found.log.producer(producer_id)
        first_offset = state.txn_first_offset if state else -1
        if is_bumped and state and first_offset >= 0 and state.epoch >= producer_epoch:
            reply.set(0)
            return reply
        try:
            found.log.append_marker(
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                coordinator_epoch=coordinator_epoch,
                is_commit=is_commit,
                leader_epoch=LEADER_EPOCH,
                now_ms=self._core.clock.wall_ms(),
            )
        except LogflumeError as error:
            reply.set(_code(error))
            return reply
        if first_offset >= 0:
            found.log.hold(producer_id, first_offset)
        self._core.flush(found, lambda error: reply.set(0 if error is None else int(ErrorCode.KAFKA_STORAGE_ERROR)))
        return reply

    def announce(self, ended: Sequence[tuple[str, int]], producer_id: int, *, is_commit: bool) -> None:
        found = [partition for where in ended if (partition := self._core.partition(*where)) is not None]
        for partition in found:
            partition.log.release(producer_id)
        for topic, index in ended:
            for listener in self.marker_listeners:
                listener(topic, index, producer_id, is_commit)
        for partition in found:  # whoever wakes up looks at all of them
            partition.wake()

    def producer_epoch(self, topic: str, partition: int, producer_id: int) -> int | None:
        found = self._core.partition(topic, partition)
        if found is None or found.log.has_failed:
            return None if self._core.has_partition(topic, partition) else -1
        state = found.log.producer(producer_id)
        return state.epoch if state else -1

    def open_transactions(self) -> Iterator[OpenInPartition]:
        for partition in list(self._core.partitions.values()):
            yield from open_in(partition.log)


def open_in(log: PartitionLog) -> Iterator[OpenInPartition]:
    """Yield the producers with an open transaction in a partition."""
    for producer_id in log.open_transactions():
        state = log.producer(producer_id)
        assert state is not None, "who has a transaction is known"
        yield OpenInPartition(log.topic, log.partition, producer_id, state.epoch)


def _code(error: LogflumeError) -> int:
    return int(getattr(error, "error_code", ErrorCode.KAFKA_STORAGE_ERROR))
