"""Source offsets, kept in the log: the compacted topic `connect-offsets`, written in the same transaction as the records.

A key is JSON `[connector name, source partition]`, a value the JSON offset, as in Kafka Connect. All offsets of a connector
are in one partition, so that only that partition is read when it starts, and only its own transactions can hold the reader
up.
"""

from __future__ import annotations

import contextlib
import logging
import zlib
from collections.abc import Callable, Iterator, Mapping

import msgspec

from logflume.log import Log, Producer, TopicPartition, TransportError

from .api import Offset, Partition

OFFSETS_TOPIC = "connect-offsets"
_PARTITIONS = 8
_log = logging.getLogger("logflume.connect")
_READ_TIMEOUT_S = 90.0
"""Longer than the transaction timeout: a transaction that a killed worker left open ends by then."""


class OffsetStore:
    """The kept offsets of one connector: read once, then followed as they are written by this task."""

    def __init__(self, log: Log, connector: str) -> None:
        self._log = log
        self._connector = connector
        topic = log.admin().ensure_topic(OFFSETS_TOPIC, partitions=_PARTITIONS, configs={"cleanup.policy": "compact"})
        self._partition = TopicPartition(OFFSETS_TOPIC, zlib.crc32(connector.encode()) % topic.partitions)
        self._offsets: dict[bytes, Offset] = {}
        self.left_out = 0
        """Records of the partition that are not offsets."""

    def read(self, *, clock_s: Callable[[], float]) -> None:
        """Read all offsets that are committed; call it after `init_transactions`, which ends what a killed task left open.

        Waits for open transactions of other tasks, because an own offset may lie behind them.

        Raises:
            TransportError: the end was not reached in time.
        """
        self._offsets.clear()
        for key, value in committed(self._log, self._partition, clock_s):
            self._take(key, value)

    def get(self, partition: Partition) -> Offset | None:
        """Return the kept offset of a source partition."""
        return self._offsets.get(self._key(partition))

    def all(self) -> list[tuple[dict[str, str], Offset]]:
        """Return every source partition of this connector with its offset."""
        return [(msgspec.json.decode(key)[1], offset) for key, offset in self._offsets.items()]

    def send(self, producer: Producer, partition: Partition, offset: Offset | None) -> None:
        """Write an offset in the producer's open transaction; None: that there is none."""
        producer.send(
            OFFSETS_TOPIC,
            None if offset is None else msgspec.json.encode(offset, order="sorted"),
            key=self._key(partition),
            partition=self._partition.partition,
        )

    def keep(self, partition: Partition, offset: Offset) -> None:
        """Take note of an offset whose transaction was committed."""
        self._offsets[self._key(partition)] = dict(offset)

    def _key(self, partition: Mapping[str, str]) -> bytes:
        return msgspec.json.encode([self._connector, dict(partition)], order="sorted")

    def _take(self, key: bytes | None, value: bytes | None) -> None:
        if key is None:
            return
        try:
            connector, partition = msgspec.json.decode(key)
            if connector != self._connector:
                return
            offset = None if value is None else msgspec.json.decode(value)
            if not isinstance(partition, dict) or not isinstance(offset, dict | None):
                raise TypeError("expected JSON objects")
        except (ValueError, TypeError) as error:
            self.left_out += 1
            _log.warning(
                "%s: left out a record that is not an offset of a connector (%s), %d so far",
                self._partition,
                error,
                self.left_out,
            )
            return
        if offset is None:
            self._offsets.pop(key, None)
        else:
            self._offsets[key] = offset


def kept_connectors(log: Log, *, clock_s: Callable[[], float]) -> list[str]:
    """Return the names of the sources that have kept offsets, sorted."""
    admin = log.admin()
    if OFFSETS_TOPIC not in admin.list_topics(include_internal=True):
        return []
    names: dict[bytes, str] = {}
    for partition in range(admin.describe_topics([OFFSETS_TOPIC])[OFFSETS_TOPIC].partitions):
        for key, value in committed(log, TopicPartition(OFFSETS_TOPIC, partition), clock_s):
            if key is not None and value is None:
                names.pop(key, None)
            elif key is not None:
                with contextlib.suppress(ValueError, TypeError):  # what is no offset is told of where it is read
                    names[key], _ = msgspec.json.decode(key)
    return sorted(set(names.values()))


def committed(log: Log, partition: TopicPartition, clock_s: Callable[[], float]) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Yield keys and values of a partition, committed ones, up to its end.

    Raises:
        TransportError: the end was not reached in time.
    """
    end = log.admin().end_offsets([partition])[partition]
    consumer = log.consumer(read_committed=True, client_id="connect-offsets")
    try:
        consumer.assign([partition])
        consumer.seek(partition, log.admin().start_offsets([partition])[partition])
        give_up_s = clock_s() + _READ_TIMEOUT_S
        while consumer.position(partition) < end:
            if clock_s() > give_up_s:
                raise TransportError(f"the offsets of connectors in {partition} could not be read within {_READ_TIMEOUT_S:g} s")
            for chunk in consumer.poll(timeout_s=0.5):
                yield from zip(chunk.keys(), chunk.values(), strict=True)
    finally:
        consumer.close()
