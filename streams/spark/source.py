"""The Spark data source `format("logflume")`: reads exact offset ranges as Arrow, in batches and as a stream, and writes.

    spark.dataSource.register(LogflumeDataSource)
    spark.read.format("logflume").option("log", "127.0.0.1:9092").option("topic", "flights").load()

Options (text; names in any case, those of Spark's Kafka source where it has one that means the same):
    log                     HOST:PORT of a broker, or a data directory that a running process holds
    topic                   one topic, or several separated by commas
    startingOffsets         earliest (default), latest (streams), or JSON {topic: {partition: offset}}, -2 earliest, -1 latest
    startingTimestamp       instead: the first record of this time (ms) or later in each partition
    endingOffsets           batches: latest (default: what is committed when the job is planned), or JSON as above
    endingTimestamp         instead: up to the first record of this time or later
    maxRecordsPerPartition  Spark partitions per topic partition are cut so that none has more offsets (default 1,000,000)
    maxOffsetsPerTrigger    streams: at most so many offsets a micro-batch (default: no bound)
    includeHeaders          true: a column of headers (default false)
    value.format            AVRO, PROTOBUF or JSON_SR: `value` is what their registered schema says (`values.py`), not bytes
    value.registry          the schema registry (default: $LOGFLUME_REGISTRY, else that of `logflume serve` on this machine)
    value.subject           the subject whose newest schema gives the type (default: <topic>-value)
    value.full.name         the message of a Protobuf schema with several
    value.errors            fail (default), or column: what cannot be read is told in `value_error`, its bytes in `value_bytes`
    compression             writing: none (default), gzip, snappy, lz4, zstd

Columns read: topic, partition, offset, timestamp_ms, key, value and, with includeHeaders, headers. A reader that is given a
schema (`.schema("key BINARY, offset BIGINT")`) makes these columns alone: values that nobody asks for are not decoded. Columns
written: key, value, and if present partition and timestamp_ms. Only committed records are read. A write is one transaction per
Spark task, committed by the task when its rows are all sent: Spark may run a task twice, so writes are at least once; a failed
task leaves nothing visible. Exactly once: `exactly_once` (`stream_sink.py`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from logflume.log import Chunk, InvalidInput, Log, TopicPartition, connect

from .archives import header_column
from .ranges import OffsetRange, check_available, read_range, split
from .source_options import LATEST, Edge, SourceOptions, check_columns, check_read, offsets_at, parse_options
from .values import ValueForm, ValueReader

SCHEMA = "topic STRING, partition INT, offset BIGINT, timestamp_ms BIGINT, key BINARY, {value}"
HEADERS = "headers ARRAY<STRUCT<name: STRING, value: BINARY>>"


class LogflumeDataSource(DataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        return "logflume"

    def schema(self) -> str:
        options = parse_options(self.options)
        form = options.value_form()
        columns = SCHEMA.format(value="value BINARY" if form is None else form.ddl())
        return f"{columns}, {HEADERS}" if options.has_headers else columns

    def reader(self, schema: StructType) -> DataSourceReader:
        return RangeReader(*self.asked(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(*self.asked(schema))

    def asked(self, schema: StructType) -> tuple[SourceOptions, list[str]]:
        """Return the options and the columns that are asked for. Raises InvalidInput where one is of another type."""
        options, types = parse_options(self.options), _types(schema)
        check_read(types, is_decoded=types.get("value", "binary") != "binary" and options.value_form() is not None)
        return options, schema.fieldNames()

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        if overwrite:
            raise InvalidInput('a log only grows: use .mode("append")')
        check_columns(_types(schema))
        return LogWriter(parse_options(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        check_columns(_types(schema))
        return LogStreamWriter(parse_options(self.options))


def _types(schema: StructType) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in schema.fields}


class RangePartition(InputPartition):
    """One offset range, for one Spark task."""

    def __init__(self, offsets: OffsetRange) -> None:
        super().__init__((offsets.topic, offsets.partition, offsets.start, offsets.end))

    @property
    def offsets(self) -> OffsetRange:
        return OffsetRange(*self.value)


def partitions_of(log: Log, topics: Sequence[str]) -> list[TopicPartition]:
    """Return all partitions of the topics; raises UnknownName for a topic that does not exist."""
    described = log.admin().describe_topics(list(topics))
    return [TopicPartition(topic, p) for topic in topics for p in range(described[topic].partitions)]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a task makes of a range: which columns, and how values are read."""

    where: str
    columns: tuple[str, ...]
    form: ValueForm | None

    @classmethod
    def of(cls, options: SourceOptions, columns: Sequence[str]) -> Wanted:
        """Return it; asks the registry where values are asked for.

        Raises:
            InvalidInput: a column that there is not.
        """
        form = options.value_form() if any(name.startswith("value") for name in columns) else None
        values = ("value",) if form is None else form.names()
        known = ("topic", "partition", "offset", "timestamp_ms", "key", *values, "headers")
        for name in columns:
            if name not in known:
                raise InvalidInput(f"the logflume data source has no column {name!r}, only {', '.join(known)}")
        return cls(options.where, tuple(columns), form)

    def read(self, offsets: OffsetRange) -> Iterator[Any]:
        """Read a range as Arrow batches."""
        reader = None if self.form is None else ValueReader(self.form)
        with connect(self.where) as log:
            for chunk in read_range(log, offsets):
                yield arrow_batch(chunk, reader, self.columns)


class RangeReader(DataSourceReader):
    """Batch reading: from one edge to another, as they are when the job is planned."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        if options.start == Edge(LATEST):
            raise InvalidInput('option "startingOffsets" is latest: a batch would read nothing; earliest, or offsets')
        self.options, self._wanted = options, Wanted.of(options, columns)

    def partitions(self) -> Sequence[InputPartition]:
        return [RangePartition(part) for whole in self.ranges() for part in split(whole, self.options.records_per_partition)]

    def ranges(self) -> list[OffsetRange]:
        """Return what is to be read of each partition."""
        with connect(self.options.where) as log:
            every = partitions_of(log, self.options.topics)
            starts = offsets_at(log, self.options.start, every, "startingOffsets")
            ends = offsets_at(log, self.options.end, every, "endingOffsets")
            for tp in every:
                if starts[tp] > ends[tp]:
                    raise InvalidInput(f"{tp.topic}-{tp.partition}: reading from offset {starts[tp]} cannot end at {ends[tp]}")
            ranges = [OffsetRange(*tp, starts[tp], ends[tp]) for tp in every]
            check_available(log, {each.topic_partition: each for each in ranges})
        return ranges

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, RangePartition):  # where there is none Spark has one of its own read
            yield from self._wanted.read(partition.offsets)


def arrow_batch(chunk: Chunk, reader: ValueReader | None, columns: Sequence[str]) -> Any:
    """Return these columns of a chunk as a pyarrow.RecordBatch; `reader` makes those of values, None: as bytes."""
    import pyarrow as pa

    count, narrow = len(chunk), chunk.to_arrow()
    made: dict[str, Any] = {}
    if reader is not None:
        arrays, names = reader.arrays(chunk)
        made = dict(zip(names, arrays, strict=True))
    ways: dict[str, Callable[[], Any]] = {
        "topic": lambda: pa.array([chunk.topic] * count, pa.string()),
        "partition": lambda: pa.array([chunk.partition] * count, pa.int32()),
        "offset": lambda: narrow.column("offset"),
        "timestamp_ms": lambda: narrow.column("timestamp_ms"),
        "key": lambda: narrow.column("key").cast(pa.binary()),
        "value": lambda: narrow.column("value").cast(pa.binary()),
        "headers": lambda: header_column(chunk),
    }
    return pa.RecordBatch.from_arrays([made[name] if name in made else ways[name]() for name in columns], names=list(columns))


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streaming. Spark's offsets are {"topic-partition": offset}; a micro-batch ends at the last stable offsets, or earlier."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        if options.end != Edge(LATEST):
            raise InvalidInput('options "endingOffsets" and "endingTimestamp" are for batches: a stream has no end')
        self.options, self._wanted = options, Wanted.of(options, columns)
        self._target: Mapping[str, int] | None = None

    def initialOffset(self) -> dict[str, int]:
        with connect(self.options.where) as log:
            every = partitions_of(log, self.options.topics)
            first = offsets_at(log, self.options.start, every, "startingOffsets")
        return {_name(tp): first[tp] for tp in every}

    def prepareForTriggerAvailableNow(self) -> None:
        with connect(self.options.where) as log:
            self._target = self._ends(log, partitions_of(log, self.options.topics))

    def _ends(self, log: Log, every: Sequence[TopicPartition]) -> dict[str, int]:
        ends = log.admin().end_offsets(every, read_committed=True)
        return {_name(tp): ends[tp] for tp in every}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        found = self._target
        if found is None:
            with connect(self.options.where) as log:
                found = self._ends(log, [_partition(name) for name in start])
        ends = {name: max(found.get(name, at), at) for name, at in start.items()}
        return bounded(start, ends, self.options.records_per_trigger)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        ranges = [OffsetRange(*_partition(name), start[name], end[name]) for name in end if end[name] > start[name]]
        return [RangePartition(part) for whole in ranges for part in split(whole, self.options.records_per_partition)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, RangePartition)
        yield from self._wanted.read(partition.offsets)

    def commit(self, end: dict[str, int]) -> None:
        """Nothing to do: Spark's checkpoint holds the offsets."""

    def stop(self) -> None:
        """Nothing to do: connections live for one call."""


def bounded(start: Mapping[str, int], end: Mapping[str, int], records_max: int | None) -> dict[str, int]:
    """Return end offsets with at most `records_max` offsets in all, shared over the partitions in proportion to their lag.

    >>> bounded({"t-0": 0, "t-1": 0}, {"t-0": 30, "t-1": 10}, 20)
    {'t-0': 15, 't-1': 5}
    """
    lags = {name: end[name] - start[name] for name in end}
    total = sum(lags.values())
    if records_max is None or total <= records_max:
        return dict(end)
    shares = {name: lag * records_max // total for name, lag in lags.items()}
    left = records_max - sum(shares.values())
    for name in sorted(lags, key=lambda name: -(lags[name] * records_max % total))[:left]:
        shares[name] += 1
    return {name: start[name] + shares[name] for name in end}


def _name(tp: TopicPartition) -> str:
    return f"{tp.topic}-{tp.partition}"


def _partition(name: str) -> TopicPartition:
    topic, _, partition = name.rpartition("-")
    return TopicPartition(topic, int(partition))


@dataclass
class Written(WriterCommitMessage):
    """How many records a task wrote."""

    records: int


def write_batches(options: SourceOptions, batches: Iterator[Any]) -> Written:
    """Send Arrow batches in one transaction; on any error nothing of it becomes visible."""
    if len(options.topics) != 1:
        raise InvalidInput(f'writing needs one topic in option "topic", found {len(options.topics)}: {", ".join(options.topics)}')
    topic = options.topics[0]
    count = 0
    with connect(options.where) as log:
        log.admin().describe_topics([topic])
        with log.producer(transactional_id=f"logflume-spark-{uuid.uuid4()}", compression=options.compression) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            for batch in batches:
                columns = batch.to_pydict()
                times = columns.get("timestamp_ms") or [None] * batch.num_rows
                partitions = columns.get("partition") or [None] * batch.num_rows
                keys = columns.get("key") or [None] * batch.num_rows
                for key, value, time_ms, partition in zip(keys, columns["value"], times, partitions, strict=True):
                    producer.send(topic, _bytes(value), key=_bytes(key), timestamp_ms=time_ms, partition=partition)
                count += batch.num_rows
            producer.commit_transaction()
    return Written(count)


def _bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


class LogWriter(DataSourceArrowWriter):
    """Batch writing."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return write_batches(self.options, iterator)


class LogStreamWriter(DataSourceStreamArrowWriter):
    """Streaming writing; each task of each micro-batch is one transaction."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return write_batches(self.options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to do: each task has committed its own transaction."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to do: a failed task's transaction was aborted."""
