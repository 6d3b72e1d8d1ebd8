"""The Spark data source `format("logflume")`: reads exact offset ranges as Arrow, in batches and as a stream, and writes.

    spark.dataSource.register(LogflumeDataSource)
    spark.read.format("logflume").option("log", "127.0.0.1:9092").option("topic", "flights").load()

Options (all text):
    log                        HOST:PORT of a broker, or a data directory that a running process holds
    topic                      one topic, or several separated by commas
    ranges                     JSON {topic: {partition: [start, end)}}; default: log start to last stable offset at planning time
    max.records.per.partition  Spark partitions per topic partition are cut so that none has more offsets (default 1,000,000)
    starting.offsets           streaming: earliest (default), latest, or JSON {topic: {partition: offset}}
    max.records.per.trigger    streaming: at most so many offsets a micro-batch (default: no bound)
    value.format               AVRO, PROTOBUF or JSON_SR: `value` is what their registered schema says (`values.py`), not bytes
    value.registry             the schema registry (default: $LOGFLUME_REGISTRY, else that of `logflume serve` on this machine)
    value.subject              the subject whose newest schema gives the type (default: <topic>-value)
    value.full.name            the message of a Protobuf schema with several
    value.errors               fail (default), or column: what cannot be read is told in `value_error`, its bytes in `value_bytes`
    compression                writing: none (default), gzip, snappy, lz4, zstd

Columns read: topic, partition, offset, timestamp_ms, key, value, headers. Columns written: key, value, and if present
partition and timestamp_ms. Only committed records are read. A write is one transaction per Spark task, committed by the task
when its rows are all sent: Spark may run a task twice, so writes are at least once; a failed task leaves nothing visible.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
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
from pyspark.sql.types import StructType

from logflume.log import Chunk, InvalidInput, Log, TopicPartition, UnknownName, connect

from .ranges import OffsetRange, check_available, read_range, split
from .values import VALUE_OPTIONS, ValueForm, ValueReader, value_form

SCHEMA = (
    "topic STRING, partition INT, offset BIGINT, timestamp_ms BIGINT, key BINARY, {value}, "
    "headers ARRAY<STRUCT<name: STRING, value: BINARY>>"
)
OPTIONS = (
    "log",
    "topic",
    "ranges",
    "max.records.per.partition",
    "starting.offsets",
    "max.records.per.trigger",
    "compression",
    *VALUE_OPTIONS,
)
DEFAULT_RECORDS_PER_PARTITION = 1_000_000


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options, checked."""

    where: str
    topics: tuple[str, ...]
    ranges: Mapping[str, Mapping[str, Sequence[int]]] | None
    records_per_partition: int
    starting_offsets: str
    records_per_trigger: int | None
    compression: str
    given: Mapping[str, str]

    def value_form(self) -> ValueForm | None:
        """Return how values are read, None as bytes. Asks the registry; raises as `values.value_form`."""
        return value_form(self.given, self.topics)


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Return the options; raises InvalidInput or UnknownName for what cannot be right."""
    lower = {name.lower(): value for name, value in given.items()}
    for name in lower:
        if name not in OPTIONS and name != "path":
            raise UnknownName("option of the logflume data source", name, OPTIONS)
    for name in ("log", "topic"):
        if not lower.get(name):
            raise InvalidInput(f'the logflume data source needs option "{name}", for example .option("{name}", "flights")')
    return SourceOptions(
        where=lower["log"],
        topics=tuple(topic.strip() for topic in lower["topic"].split(",") if topic.strip()),
        ranges=_json_option(lower, "ranges"),
        records_per_partition=_count(lower, "max.records.per.partition") or DEFAULT_RECORDS_PER_PARTITION,
        starting_offsets=lower.get("starting.offsets", "earliest"),
        records_per_trigger=_count(lower, "max.records.per.trigger"),
        compression=lower.get("compression", "none"),
        given=lower,
    )


def _count(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise InvalidInput(f'option "{name}" expects a whole number of at least 1, found {text!r}')
    return int(text)


def _json_option(options: Mapping[str, str], name: str) -> Any:
    text = options.get(name)
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidInput(f'option "{name}" expects JSON, found {text[:80]!r}: {error}') from None
    if not isinstance(value, dict):
        raise InvalidInput(f'option "{name}" expects a JSON object by topic, found {text[:80]!r}')
    return value


class LogflumeDataSource(DataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        return "logflume"

    def schema(self) -> str:
        form = parse_options(self.options).value_form()
        return SCHEMA.format(value="value BINARY" if form is None else form.ddl())

    def reader(self, schema: StructType) -> DataSourceReader:
        return RangeReader(parse_options(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(parse_options(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        if overwrite:
            raise InvalidInput('a log only grows: use .mode("append")')
        return LogWriter(parse_options(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return LogStreamWriter(parse_options(self.options))


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


class RangeReader(DataSourceReader):
    """Batch reading: ranges given, or all that is committed when the job is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self._options, self._form = options, options.value_form()

    def partitions(self) -> Sequence[InputPartition]:
        with connect(self._options.where) as log:
            if self._options.ranges is None:
                every = partitions_of(log, self._options.topics)
                starts, ends = log.admin().start_offsets(every), log.admin().end_offsets(every, read_committed=True)
                ranges = [OffsetRange(*tp, starts[tp], max(starts[tp], ends[tp])) for tp in every]
            else:
                ranges = [
                    OffsetRange(topic, int(partition), int(start), int(end))
                    for topic, by_partition in self._options.ranges.items()
                    for partition, (start, end) in by_partition.items()
                ]
                check_available(log, {r.topic_partition: r for r in ranges})
        return [RangePartition(part) for whole in ranges for part in split(whole, self._options.records_per_partition)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, RangePartition)
        yield from arrow_batches(self._options.where, partition.offsets, self._form)


def arrow_batches(where: str, offsets: OffsetRange, form: ValueForm | None) -> Iterator[Any]:
    """Read a range as Arrow batches."""
    reader = None if form is None else ValueReader(form)
    with connect(where) as log:
        for chunk in read_range(log, offsets):
            yield arrow_batch(chunk, reader)


def arrow_batch(chunk: Chunk, reader: ValueReader | None) -> Any:
    """Return a chunk as a pyarrow.RecordBatch with the columns of SCHEMA."""
    import pyarrow as pa

    narrow = chunk.to_arrow()
    values, names = ([narrow.column("value").cast(pa.binary())], ["value"]) if reader is None else reader.arrays(chunk)
    count = len(chunk)
    header_type = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
    if chunk.header_counts.any():
        rows = [[{"name": name, "value": value} for name, value in headers] for headers in chunk.headers()]
        headers = pa.array(rows, header_type)
    else:
        empty = pa.array([], header_type.value_type)
        headers = pa.ListArray.from_arrays(pa.array([0] * (count + 1), pa.int32()), empty)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([chunk.topic] * count, pa.string()),
            pa.array([chunk.partition] * count, pa.int32()),
            narrow.column("offset"),
            narrow.column("timestamp_ms"),
            narrow.column("key").cast(pa.binary()),
            *values,
            headers,
        ],
        names=["topic", "partition", "offset", "timestamp_ms", "key", *names, "headers"],
    )


class StreamReader(DataSourceStreamReader):
    """Streaming. Spark's offsets are {"topic-partition": offset}; a micro-batch ends at the last stable offsets, or earlier."""

    def __init__(self, options: SourceOptions) -> None:
        self._options, self._form = options, options.value_form()

    def initialOffset(self) -> dict[str, int]:
        with connect(self._options.where) as log:
            every = partitions_of(log, self._options.topics)
            admin = log.admin()
            match self._options.starting_offsets:
                case "earliest":
                    first = admin.start_offsets(every)
                case "latest":
                    first = admin.end_offsets(every, read_committed=True)
                case _:
                    given = _json_option({"starting.offsets": self._options.starting_offsets}, "starting.offsets")
                    first = {tp: int(given[tp.topic][str(tp.partition)]) for tp in every}
        return {_name(tp): first[tp] for tp in every}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        every = [_partition(name) for name in start]
        with connect(self._options.where) as log:
            ends = log.admin().end_offsets(every, read_committed=True)
        found = {_name(tp): max(ends[tp], start[_name(tp)]) for tp in every}
        return bounded(start, found, self._options.records_per_trigger)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        ranges = [OffsetRange(*_partition(name), start[name], end[name]) for name in end if end[name] > start[name]]
        return [RangePartition(part) for whole in ranges for part in split(whole, self._options.records_per_partition)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, RangePartition)
        yield from arrow_batches(self._options.where, partition.offsets, self._form)

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
        producer = log.producer(transactional_id=f"logflume-spark-{uuid.uuid4()}", compression=options.compression)
        try:
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
        except BaseException:
            producer.abort_transaction()
            raise
        finally:
            producer.close()
    return Written(count)


def _bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


class LogWriter(DataSourceArrowWriter):
    """Batch writing."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return write_batches(self._options, iterator)


class LogStreamWriter(DataSourceStreamArrowWriter):
    """Streaming writing; each task of each micro-batch is one transaction."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return write_batches(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to do: each task has committed its own transaction."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to do: a failed task's transaction was aborted."""
