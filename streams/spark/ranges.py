"""Offset ranges: what a Spark task reads, and the reading itself. No Spark here.

A range is [start, end) of one partition. Reading is read_committed and exact: every record of the range that a committed
reader may see, in offset order, and an error, never silence, when retention has taken a part of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from logflume.log import Chunk, InvalidInput, Log, LogflumeError, TopicPartition, TransportError, local_data
from logflume.streams.seams import Plan

READ_TIMEOUT_S = 60.0


class RangeLost(LogflumeError):
    """A part of an offset range is not in the log any more (retention, compaction of the head, or deleted records)."""

    code = "RANGE_LOST"


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets start <= offset < end of one partition."""

    topic: str
    partition: int
    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise InvalidInput(f"an offset range needs 0 <= start <= end, found [{self.start}, {self.end}) of {self.topic}")

    def __len__(self) -> int:
        return self.end - self.start

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def up_to(self, end: int) -> OffsetRange:
        """Return the range with another end; empty if that is before its start."""
        return OffsetRange(self.topic, self.partition, self.start, max(self.start, end))


def split(whole: OffsetRange, records_max: int) -> list[OffsetRange]:
    """Return a range cut into consecutive ranges of nearly equal length, none longer than `records_max` offsets.

    >>> [(r.start, r.end) for r in split(OffsetRange("t", 0, 0, 10), 4)]
    [(0, 3), (3, 6), (6, 10)]
    """
    if records_max < 1:
        raise InvalidInput(f"records per range must be at least 1, found {records_max}")
    count = -(-len(whole) // records_max)
    edges = [whole.start + len(whole) * i // max(count, 1) for i in range(count + 1)]
    return [OffsetRange(whole.topic, whole.partition, a, b) for a, b in pairwise(edges)]


def inputs_of(plan: Plan, ranges: Mapping[TopicPartition, OffsetRange]) -> dict[TopicPartition, OffsetRange]:
    """Return the ranges of which the application's group keeps a position: all but those of global tables."""
    tables = frozenset[str]().union(*(sub.global_topics for sub in plan.subtopologies))
    return {tp: whole for tp, whole in ranges.items() if tp.topic not in tables}


def check_available(log: Log, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
    """Raise RangeLost unless the log still holds the start and already holds the end of each range."""
    admin = log.admin()
    starts, ends = admin.start_offsets(ranges), admin.end_offsets(ranges, read_committed=True)
    for tp, wanted in ranges.items():
        if len(wanted) and wanted.start < starts[tp]:
            raise RangeLost(
                f"{tp.topic}-{tp.partition} starts at offset {starts[tp]}, but the range begins at {wanted.start}: the records "
                "between are gone by retention; choose a later start, or keep more (retention.ms, retention.bytes)"
            )
        if wanted.end > ends[tp]:
            raise InvalidInput(f"{tp.topic}-{tp.partition} ends at offset {ends[tp]}, but the range goes to {wanted.end}")


def check_partitions(log: Log, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
    """Raise InvalidInput unless the topics of the ranges still have their partitions, and no more: keys go elsewhere then.

    Raises:
        UnknownName: a topic was deleted.
    """
    planned = Counter(tp.topic for tp in ranges)
    for topic, found in log.admin().describe_topics(sorted(planned)).items():
        if found.partitions != planned[topic]:
            raise InvalidInput(
                f"topic {topic!r} has {found.partitions} partitions, it had {planned[topic]} when the cut was made: keys may "
                "be in others now than their history; start again"
            )


def reachable(log: Log) -> str:
    """Return where the processes of a job find a log that is open here: never a directory, which another one would make."""
    if not Path(log.where).is_dir():
        return log.where
    data = local_data(log)
    if data is None:
        raise InvalidInput(
            f"{log.where} is open in a process without a Unix socket: run `logflume serve` on it and give --bootstrap"
        )
    return data.address


def with_records(log: Log, ranges: Iterable[OffsetRange]) -> list[str]:
    """Return the partitions that hold committed records in a range: offsets alone may be of what was aborted."""
    return [f"{each.topic}-{each.partition}" for each in ranges if any(map(len, read_range(log, each)))]


def read_range(log: Log, wanted: OffsetRange) -> Iterator[Chunk]:
    """Yield the committed records of a range as chunks, in offset order; the last chunk's `next_offset` may be beyond the end.

    Raises:
        RangeLost: retention has taken a part of the range, before or while it was read (so what was yielded is void).
        TransportError: nothing came for 60 s.
    """
    if not len(wanted):
        return
    tp = wanted.topic_partition
    check_available(log, {tp: wanted})
    consumer = log.consumer(read_committed=True, client_id="logflume-spark")
    try:
        consumer.assign([tp])
        consumer.seek(tp, wanted.start)
        while consumer.position(tp) < wanted.end:
            before = consumer.position(tp)
            chunks = consumer.poll(timeout_s=READ_TIMEOUT_S)
            if not chunks and consumer.position(tp) == before:
                raise TransportError(f"no record of {tp.topic}-{tp.partition} at offset {before} within {READ_TIMEOUT_S:g} s")
            for chunk in chunks:
                inside = int(chunk.offsets.searchsorted(wanted.end))
                if inside:
                    yield chunk if inside == len(chunk) else chunk.slice(0, inside)
        check_available(log, {tp: wanted})
    finally:
        consumer.close()
