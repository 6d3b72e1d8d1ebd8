"""Internal topics for the coordinators: a journal of compacted records, and the reach into data partitions for markers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from logflume.log.batch import check_crc, decode_records, encode_batch, parse_marker
from logflume.log.errors import LogflumeError
from logflume.log.protocol import ErrorCode

from .core import LEADER_EPOCH, Core, Partition
from .ports import JournalRecord, ReplayedBatch
from .replies import Reply

COMPACTED = {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": str(100 * 1024**2)}


class TopicJournal:
    """A `Journal` over an internal topic, which is made when it is first written to.

    Appends of one partition become durable in order; replies come on the broker's thread.
    """

    def __init__(self, core: Core, topic: str, *, partition_count: int) -> None:
        """`partition_count` counts only until the topic exists."""
        self._core, self._topic, self._configured_count = core, topic, partition_count

    @property
    def partition_count(self) -> int:
        topic = self._core.cluster.topics.get(self._topic)
        return topic.partition_count if topic else self._configured_count

    def append(
        self, partition: int, records: Sequence[JournalRecord], *, producer_id: int = -1, producer_epoch: int = -1
    ) -> Reply:
        """Append as one batch; see `Journal`."""
        reply = Reply()
        now_ms = self._core.clock.wall_ms()
        try:
            found = self._partition(partition)
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
            return reply
        self._core.flush(found, lambda error: reply.set(info.first_offset if error is None else -ErrorCode.KAFKA_STORAGE_ERROR))
        return reply

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

    def ensure_topic(self) -> None:
        """Make the topic if it is missing. Raises StorageError."""
        if self._topic not in self._core.cluster.topics:
            self._core.create_topic(self._topic, self._configured_count, COMPACTED)

    def _partition(self, index: int) -> Partition:
        self.ensure_topic()
        found = self._core.partition(self._topic, index)
        assert found is not None, (self._topic, index)
        return found


class DataPartitions:
    """`TxnPartitions` over the broker's own partitions."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.marker_listeners: list[Callable[[str, int, int, bool], None]] = []
        """Called with (topic, partition, producer id, is commit) once a marker is durable."""

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
    ) -> Reply:
        """Append a control batch; see `TxnPartitions`. A partition that is gone needs no marker: UNKNOWN_TOPIC_OR_PARTITION.

        One that is offline does: KAFKA_STORAGE_ERROR, and it is written once it is back.
        """
        reply = Reply()
        found = self._core.partition(topic, partition)
        if found is None:
            reply.set(int(self._core.missing(topic, partition)))
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

        def done(error: Exception | None) -> None:
            if error is None:
                for listener in self.marker_listeners:
                    listener(topic, partition, producer_id, is_commit)
            reply.set(0 if error is None else int(ErrorCode.KAFKA_STORAGE_ERROR))

        self._core.flush(found, done)
        return reply


def _code(error: LogflumeError) -> int:
    return int(getattr(error, "error_code", ErrorCode.KAFKA_STORAGE_ERROR))
