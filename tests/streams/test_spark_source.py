"""`format("logflume")` without Spark's JVM: where reading begins and ends, columns, filters, micro-batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logflume.log import Chunk, InvalidInput, Log, TopicPartition, UnknownName, connect
from logflume.streams.spark import RangeLost
from logflume.streams.spark.source_options import EARLIEST, LATEST, parse_options
from logflume.streams.spark.tables import quoted, table_class, table_names

pytest.importorskip("pyspark")

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from logflume.streams.spark.source import LogflumeDataSource
from logflume.streams.spark.source_filters import LogflumeTables

NAMES = ("topic", "partition", "offset", "timestamp_ms", "key", "value")
TWO = [TopicPartition("flights", p) for p in range(2)]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    """Two partitions of ten records; the times of the first are 0, 10, ..., of the second they go back at offset 5."""
    with connect(tmp_path_factory.mktemp("source") / "log") as opened:
        opened.admin().create_topic("flights", partitions=2)
        producer = opened.producer()
        for partition in range(2):
            for n in range(10):
                time_ms = 10 * n - (60 if partition and n == 5 else 0)
                headers = (("h", b"%d" % n),) if n == 3 else ()
                producer.send("flights", b"v%d" % n, key=b"k", partition=partition, timestamp_ms=max(time_ms, 0), headers=headers)
        producer.close()
        yield opened


HEADER = StructType([StructField("name", StringType()), StructField("value", BinaryType())])
TYPES = {"topic": StringType(), "partition": IntegerType(), "offset": LongType(), "timestamp_ms": LongType()}


def columns_of(*names: str) -> StructType:
    """A schema, as Spark gives it."""
    types: dict[str, DataType] = {**TYPES, "headers": ArrayType(HEADER)}
    return StructType([StructField(name, types.get(name, BinaryType())) for name in names])


def reader_of(log: Log, *names: str, filters: list[Filter] | None = None, **options: str) -> Any:
    kind = LogflumeDataSource if filters is None else LogflumeTables
    source = kind({"log": log.where, "topic": "flights", **options})
    return source.reader(columns_of(*(names or NAMES)))


def offsets(reader: Any) -> list[list[int]]:
    """Return the offsets that are read of each partition."""
    found: list[list[int]] = [[], []]
    for part in reader.partitions():
        for batch in reader.read(part):
            found[part.offsets.partition] += batch.column("offset").to_pylist()
    return found


ALL = list(range(10))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [ALL, ALL]),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, [ALL, ALL]),
        (
            {"startingoffsets": '{"flights": {"0": 7, "1": -2}}', "endingOffsets": '{"flights": {"0": -1, "1": 2}}'},
            [[7, 8, 9], [0, 1]],
        ),
        ({"startingTimestamp": "75"}, [[8, 9], [8, 9]]),
        ({"endingTimestamp": "15"}, [[0, 1], [0, 1]]),
        ({"startingTimestamp": "1000"}, [[], []]),
        ({"maxRecordsPerPartition": "3"}, [ALL, ALL]),
    ],
)
def test_reading_begins_and_ends_where_the_options_say(log: Log, options: dict[str, str], expected: list[list[int]]) -> None:
    reader = reader_of(log, **options)
    assert offsets(reader) == expected
    if "maxRecordsPerPartition" in options:
        assert len(reader.partitions()) == 8


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingOffsets": "latest"}, "a batch would read nothing"),
        ({"startingOffsets": '{"flights": {"0": 7}}'}, "flights-1 is not named"),
        ({"startingOffsets": '{"flights": {"0": 7, "1": 0, "2": 1}}'}, "flights-2 is named but is not there"),
        (
            {"startingOffsets": '{"flights": {"0": 7, "1": 0}}', "endingOffsets": '{"flights": {"0": 5, "1": 5}}'},
            "cannot end at 5",
        ),
        ({"endingOffsets": '{"flights": {"0": 11, "1": 5}}'}, "ends at offset 10, but the range goes to 11"),
    ],
)
def test_offsets_that_cannot_be_read_are_refused_before_the_job(log: Log, options: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        reader_of(log, **options).partitions()


@pytest.mark.parametrize("name", ["key", "offset", "value"])
def test_a_column_of_another_type_is_refused_before_the_job(log: Log, name: str) -> None:
    schema = StructType([StructField(name, DoubleType())])
    for made in (LogflumeDataSource, LogflumeTables):
        source = made({"log": log.where, "topic": "flights"})
        for reader in (source.reader, source.streamReader):
            with pytest.raises(
                InvalidInput, match=rf"the column {name} is (binary|bigint), the reader's schema says double.*cast"
            ):
                reader(schema)


def test_where_there_is_nothing_spark_reads_a_partition_of_its_own(log: Log) -> None:
    reader = reader_of(log, "offset", endingTimestamp="0")
    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []


def test_what_spark_keeps_of_a_streaming_query_is_no_option_of_ours() -> None:
    ours = {"log": "localhost:9092", "topic": "flights"}
    of_spark = {"queryName": "copier", "checkpointLocation": "/tmp/copier", "path": "copies"}
    assert parse_options(ours | of_spark).topics == ("flights",)
    with pytest.raises(UnknownName, match="unknown option 'querynames'"):
        parse_options(ours | {"queryNames": "copier"})


def test_what_retention_has_taken_is_said(log: Log) -> None:
    log.admin().create_topic("short", partitions=1)
    producer = log.producer()
    for n in range(5):
        producer.send("short", b"%d" % n)
    producer.close()
    log.admin().delete_records({TopicPartition("short", 0): 3})
    with pytest.raises(RangeLost, match="short-0 starts at offset 3, but the range begins at 1"):
        reader_of(log, topic="short", startingOffsets='{"short": {"0": 1}}').partitions()


def test_only_the_columns_that_are_asked_for_are_made(log: Log) -> None:
    reader = reader_of(log, "headers", "offset")
    (batch, *_) = reader.read(reader.partitions()[0])
    assert batch.schema.names == ["headers", "offset"]
    assert batch.column("headers").to_pylist()[2:4] == [[], [{"name": "h", "value": b"3"}]]
    with pytest.raises(InvalidInput, match="no column 'city', only topic, partition"):
        reader_of(log, "city")
    plain, whole = (
        LogflumeDataSource({"log": log.where, "topic": "flights", **more}).schema() for more in ({}, {"INCLUDEHEADERS": "true"})
    )
    assert "headers" not in plain
    assert whole == f"{plain}, headers ARRAY<STRUCT<name: STRING, value: BINARY>>"
    # values of a format are not asked for, nor is its registry, where nobody wants them
    asked = {"value.format": "AVRO", "value.registry": "http://127.0.0.1:1"}
    assert offsets(reader_of(log, "offset", **asked)) == [ALL, ALL]


@pytest.mark.parametrize(
    ("filters", "left", "expected"),
    [
        ([GreaterThanOrEqual(("offset",), 4), LessThan(("offset",), 6)], 0, [[4, 5], [4, 5]]),
        ([GreaterThan(("offset",), 4), LessThanOrEqual(("offset",), 6)], 0, [[5, 6], [5, 6]]),
        ([EqualTo(("offset",), 4), EqualTo(("partition",), 1)], 0, [[], [4]]),
        ([EqualTo(("offset",), 40)], 0, [[], []]),
        ([In(("offset",), (2, 4))], 1, [[2, 3, 4], [2, 3, 4]]),
        ([In(("partition",), (0, 7)), IsNotNull(("partition",))], 0, [ALL, []]),
        ([LessThan(("partition",), 1)], 0, [ALL, []]),
        ([EqualTo(("topic",), "other")], 0, [[], []]),
        ([LessThan(("offset",), -5)], 0, [[], []]),
        ([GreaterThanOrEqual(("timestamp_ms",), 40)], 1, [ALL[4:], ALL[4:]]),
        ([LessThan(("timestamp_ms",), 40), EqualTo(("key",), b"k"), EqualTo(("value", "city"), "x")], 3, [ALL, ALL]),
    ],
)
def test_filters_spare_reading_and_what_is_not_exact_is_left_to_spark(
    log: Log, filters: list[Filter], left: int, expected: list[list[int]]
) -> None:
    reader = reader_of(log, filters=filters)
    assert len(list(reader.pushFilters(filters))) == left
    assert offsets(reader) == expected
    assert offsets(reader_of(log, filters=[])) == [ALL, ALL]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([LessThan(("timestamp_ms",), 40)], [0, 1]),
        ([GreaterThanOrEqual(("timestamp_ms",), -1)], [0, 1]),
        ([EqualTo(("timestamp_ms",), -1)], [0, 1]),
        ([GreaterThan(("timestamp_ms",), (1 << 63) - 1)], [0, 1]),
        ([GreaterThan(("timestamp_ms",), 9), LessThan(("timestamp_ms",), 40)], [1]),
    ],
)
def test_a_time_leaves_out_no_record_without_one(log: Log, filters: list[Filter], expected: list[int]) -> None:
    if not log.admin().find_topics(["untimed"]):
        log.admin().create_topic("untimed", partitions=1)
        with log.producer() as producer:
            for time_ms in (-1, 10):
                producer.send_chunk("untimed", Chunk.from_columns("untimed", [b"k"], [b"v"], [time_ms]), partition=0)
    reader = reader_of(log, filters=filters, topic="untimed")
    list(reader.pushFilters(filters))
    assert offsets(reader)[0] == expected


def stream_of(log: Log, **options: str) -> Any:
    source = LogflumeDataSource({"log": log.where, "topic": "flights", **options})
    return source.streamReader(columns_of(*NAMES))


def test_a_stream_begins_where_it_is_told_and_takes_what_it_may(log: Log) -> None:
    assert stream_of(log).initialOffset() == {"flights-0": 0, "flights-1": 0}
    assert stream_of(log, startingOffsets="latest").initialOffset() == {"flights-0": 10, "flights-1": 10}
    given = f'{{"flights": {{"0": {LATEST}, "1": {EARLIEST}}}}}'
    assert stream_of(log, startingOffsets=given).initialOffset() == {"flights-0": 10, "flights-1": 0}
    assert stream_of(log, startingTimestamp="75").initialOffset() == {"flights-0": 8, "flights-1": 8}
    reader = stream_of(log, maxOffsetsPerTrigger="6")
    assert reader.latestOffset({"flights-0": 0, "flights-1": 0}, None) == {"flights-0": 3, "flights-1": 3}
    with pytest.raises(InvalidInput, match="a stream has no end"):
        stream_of(log, endingTimestamp="1")


def test_what_is_available_now_is_what_was_there_when_it_began(tmp_path: Path) -> None:
    with connect(tmp_path / "log") as log:
        log.admin().create_topic("flights", partitions=2)
        producer = log.producer()
        for partition in (0, 0, 1):
            producer.send("flights", b"", partition=partition)
        producer.flush()
        reader = stream_of(log, maxOffsetsPerTrigger="2")
        reader.prepareForTriggerAvailableNow()
        producer.send("flights", b"", partition=1)
        producer.close()
        at = reader.initialOffset()
        seen = []
        while (following := reader.latestOffset(at, None)) != at:
            seen.append(sum(following.values()) - sum(at.values()))
            at = following
        assert seen == [2, 1]
        assert at == {"flights-0": 2, "flights-1": 1}


def test_a_table_has_its_options_with_its_class_whatever_spark_gives() -> None:
    kind = table_class({"log": "h:1", "topic": "t", "includeHeaders": "true"})
    assert kind({"provider": "x"}).schema().endswith("headers ARRAY<STRUCT<name: STRING, value: BINARY>>")
    assert kind.name() != table_class({"log": "h:1", "topic": "T"}).name()


def test_topics_that_cannot_be_tables_are_left_out_or_refused_before_any_is_made(caplog: pytest.LogCaptureFixture) -> None:
    topics = ["a_1", "b-c", "d.e"]
    assert table_names(topics, is_asked=False) == ["a_1"]
    assert "b-c, d.e: left out" in caplog.text
    with pytest.raises(InvalidInput, match=r"names of letters, digits and _: b-c, d\.e; spark\.read"):
        table_names(topics, is_asked=True)
    with pytest.raises(InvalidInput, match=r"more than case: give topics=\[...\] with one of Sales, sales"):
        table_names(["Sales", "other", "sales"], is_asked=False)


@pytest.mark.parametrize(("text", "literal"), [("a", "'a'"), ("it's", r"'it\'s'"), ("a\\b", r"'a\\b'")])
def test_text_is_a_literal_of_spark(text: str, literal: str) -> None:
    assert quoted(text) == literal
