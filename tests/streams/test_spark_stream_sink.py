"""Streams written exactly once: what is refused before anything is written; without Java."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from logflume.log import GroupMetadata, InvalidInput, OffsetAndMetadata, TopicPartition, connect
from logflume.streams.spark.ranges import reachable
from logflume.streams.spark.source_options import parse_options
from logflume.streams.spark.stream_sink import exactly_once

from ..log._server_process import ServerProcess

pytest.importorskip("pyspark")

from pyspark.sql.types import BinaryType, DataType, IntegerType, LongType, StructField, StructType, TimestampType

from logflume.streams.spark.source import LogflumeDataSource, write_batches

TYPES: dict[str, DataType] = {each.simpleString(): each for each in (BinaryType(), IntegerType(), LongType(), TimestampType())}


def batch_of(query_id: str | None, *columns: str) -> Any:
    """A micro-batch of a query, of which nothing but its columns (and their types, behind a colon) can be had."""
    context = SimpleNamespace(getLocalProperty={"sql.streaming.queryId": query_id}.get)
    types = [(name, kind or "binary") for name, _, kind in (column.partition(":") for column in columns)]
    return SimpleNamespace(columns=[name for name, _ in types], dtypes=types, sparkSession=SimpleNamespace(sparkContext=context))


def test_a_name_belongs_to_one_checkpoint_also_when_it_has_written_one_batch(tmp_path: Path) -> None:
    with connect(tmp_path / "log") as log:
        log.admin().create_topic("copy", partitions=1)
        write = exactly_once(reachable(log), "copy", name="copier")
        with log.producer(transactional_id="copier-batches") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            said = {TopicPartition("copy", 0): OffsetAndMetadata(1, metadata="the-first")}
            producer.send_offsets(said, GroupMetadata("copier", -1, ""))
            producer.commit_transaction()
        write(batch_of("the-first", "value"), 0)  # written before: nothing to do
        for query_id, batch_id in (("another", 0), (None, 0), ("another", 1)):
            with pytest.raises(InvalidInput, match="'copier' has written 1 batches to copy, this query is at its batch"):
                write(batch_of(query_id, "value"), batch_id)


@pytest.mark.parametrize("columns", [("value", "headers"), ("value", "timestamp")])
def test_columns_that_would_be_lost_are_refused(columns: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput, match=f"{columns[1]} would be lost"):
        exactly_once("127.0.0.1:1", "copy", name="copier")(batch_of("q", *columns), 0)


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (("value:bigint",), r"takes the column value as binary or string, found bigint: cast it.*CAST\(value AS string\)"),
        (("value", "key:int"), "takes the column key as binary or string, found int"),
        (("value", "timestamp_ms:timestamp"), r"column timestamp_ms as .*bigint, found timestamp: cast it.*AS bigint\)"),
        (("key",), "a write needs a column value"),
    ],
)
def test_what_cannot_be_written_is_refused_before_the_job_whichever_way_it_is_written(
    columns: tuple[str, ...], says: str
) -> None:
    batch = batch_of("q", *columns)
    with pytest.raises(InvalidInput, match=says):
        exactly_once("127.0.0.1:1", "copy", name="copier")(batch, 0)
    schema = StructType([StructField(name, TYPES[kind]) for name, kind in batch.dtypes])
    source = LogflumeDataSource({"log": "127.0.0.1:1", "topic": "copy"})
    for writer in (source.writer, source.streamWriter):
        with pytest.raises(InvalidInput, match=says):
            writer(schema, False)


def test_a_write_that_cannot_begin_says_what_the_log_said(tmp_path: Path) -> None:
    broker = ServerProcess(str(tmp_path / "log"), ["transaction.max.timeout.ms=1000"])
    try:
        with connect(broker.address) as log:
            log.admin().create_topic("copy")
        options = parse_options({"log": broker.address, "topic": "copy"})
        with pytest.raises(InvalidInput, match=r"more than the broker's transaction.max.timeout.ms"):
            write_batches(options, iter(()))
    finally:
        broker.stop()
