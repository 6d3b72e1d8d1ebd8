"""The rows of a stream or table as its topic has them: from the start to the end as it is when the read begins, bounded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from logflume.log import DecodeError, TopicPartition
from logflume.log.interfaces import Log
from logflume.log.records import Record
from logflume.log.schemas import FormatSpec, framed_by_headers, serde
from logflume.streams import expr as x
from logflume.streams.windows import bounds_of_key, key_suffix_bytes

from .as_of import Until
from .binding.sources import timestamp_expression
from .catalog import SourceInfo, WindowInfo
from .errors import SqlError
from .table_state import ValueRow, value_of

# No tool reads a topic without a limit.
SCAN_MAX_RECORDS = 2_000_000
_SCAN_IDLE_S = 30
_SLICE_RECORDS = 1_000
OnRead = Callable[[int, int], object]  # (records read, records in all)


class Skipped:
    """Counts records that could not be decoded, and keeps the first cause."""

    def __init__(self) -> None:
        self.count = 0
        self.first = ""

    def add(self, topic: str, partition: int, offset: int, cause: object) -> None:
        self.count += 1
        self.first = self.first or f"{topic}[{partition}] offset {offset}: {cause}"

    def note(self) -> str:
        return f"; {self.count} record(s) left out, the first {self.first}" if self.count else ""


def topic_rows(
    source: SourceInfo, log: Log, skipped: Skipped, *, until: Until | None = None, on_read: OnRead | None = None
) -> Iterator[ValueRow]:
    """Read a topic once: all records of a stream, the latest of each key of a table in the order of partitions and keys."""
    key_format = source.key_format if source.key else FormatSpec("NONE")
    decode_key, decode_value = serde(key_format, source.key).decode, serde(source.value_format, source.value).decode
    time = timestamp_expression(source)
    window = source.window
    latest: dict[bytes, ValueRow | None] = {}
    for record in topic_records(source.topic, log, until=until, on_read=on_read):
        try:
            data, start, end = _key_and_window(record.key, window)
            key, value = decode_key(data), decode_value(_framed(record, source.value_format))
        except DecodeError as e:
            skipped.add(record.topic, record.partition, record.offset, e)
            continue
        if value is None:
            if source.is_table and record.key is not None:
                latest[record.key] = None
            continue
        row: ValueRow = {(x.Side.META, "ROWTIME"): record.timestamp_ms}
        row[x.Side.META, "ROWPARTITION"], row[x.Side.META, "ROWOFFSET"] = record.partition, record.offset
        row[x.Side.META, "HEADERS"] = [{"KEY": k, "VALUE": v} for k, v in record.headers]
        row |= {(x.Side.KEY, c.name): v for c, v in zip(source.key, key or (None,) * len(source.key), strict=True)}
        row |= {(x.Side.VALUE, c.name): v for c, v in zip(source.value, value, strict=True)}
        if window is not None and start is not None:
            row[x.Side.META, "WINDOWSTART"], row[x.Side.META, "WINDOWEND"] = start, end
        if time is not None:
            row[x.Side.META, "ROWTIME"] = value_of(time, row)
        if source.is_table:
            if record.key is not None:
                latest[record.key] = row
        else:
            yield row
    kept = [(row[x.Side.META, "ROWPARTITION"], key, row) for key, row in latest.items() if row is not None]
    yield from (row for _, _, row in sorted(kept, key=lambda each: each[:2]))


def _framed(record: Record, format: FormatSpec) -> bytes | None:
    """Return a value, behind the frame that a schema id in its headers stands for."""
    return framed_by_headers(record.value, record.headers, "value", format.registry) if format.registry else record.value


def _key_and_window(data: bytes | None, window: WindowInfo | None) -> tuple[bytes | None, int | None, int | None]:
    """Return the record key and its window's start and end. Raises DecodeError: the key has no place for them."""
    if window is None or data is None:
        return data, None, None
    kind = window.of_key()
    suffix = key_suffix_bytes(kind)
    if len(data) < suffix:
        raise DecodeError(f"expected a key with {suffix} bytes for its window at its end, found {len(data)} bytes")
    return data[:-suffix], *bounds_of_key(kind, data)


def topic_records(
    topic: str, log: Log, *, records_max: int = SCAN_MAX_RECORDS, until: Until | None = None, on_read: OnRead | None = None
) -> Iterator[Record]:
    """Yield the records of a topic up to its end as it is now, or to a point before it, each partition in order.

    Raises:
        SqlError: more records than the limit, or a point that does not fit the topic.
    """
    until = until or Until()
    admin = log.admin()
    count = admin.describe_topics([topic])[topic].partitions
    partitions = [TopicPartition(topic, n) for n in range(count)]
    starts, ends = admin.start_offsets(partitions), admin.end_offsets(partitions, read_committed=True)
    if until.offsets:
        if len(until.offsets) != count:
            raise SqlError(
                f"AS OF OFFSET: topic {topic} has {count} partition(s), found {len(until.offsets)} offset(s); write one for "
                f"each, as in AS OF OFFSET ({', '.join(str(ends[tp]) for tp in partitions)}), which is its end"
            )
        ends = {tp: min(ends[tp], until.offsets[tp.partition]) for tp in partitions}
    last_ms = math.inf if until.time_ms is None else until.time_ms
    total = sum(max(ends[tp] - starts[tp], 0) for tp in partitions)
    if total > records_max:
        raise SqlError(
            f"topic {topic} has about {total:,} records, a pull query reads at most {records_max:,}; "
            "make a table with GROUP BY, or follow it with EMIT CHANGES"
        )
    left = {tp: ends[tp] for tp in partitions if ends[tp] > starts[tp]}
    consumer = log.consumer()
    try:
        consumer.assign(left)
        for tp in left:
            consumer.seek(tp, starts[tp])
        idle, read = 0, dict.fromkeys(left, 0)
        while left:
            chunks = consumer.poll(timeout_s=1.0)
            idle = 0 if chunks else idle + 1
            if idle > _SCAN_IDLE_S:
                raise SqlError(f"topic {topic} gave no records for {_SCAN_IDLE_S} s before its end")
            for chunk in chunks:
                tp = TopicPartition(chunk.topic, chunk.partition)
                end = left.get(tp)
                if end is None:
                    continue
                for start in range(0, len(chunk), _SLICE_RECORDS):  # a chunk may hold all that was fetched
                    for record in chunk.slice(start, start + _SLICE_RECORDS).records():
                        if record.offset < end and record.timestamp_ms <= last_ms:
                            yield record
                if chunk.next_offset >= end:
                    del left[tp]
                read[tp] = min(chunk.next_offset, end) - starts[tp]
                if on_read is not None:
                    on_read(sum(read.values()), total)
    finally:
        consumer.close()
