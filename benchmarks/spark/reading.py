"""The topic through the data source, against the same rows from Parquet; an archive against the log."""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks._report import Figure
from benchmarks.streams import option
from logflume.log import TopicPartition, connect
from logflume.log.interfaces import Log
from logflume.streams.spark import OffsetRange, archive_topic
from logflume.streams.spark.archives import ArchiveFile, find_archive, read_history

from .session import Clock, Measured, again, broker, fill, session

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def measure_reading() -> Iterable[Figure]:
    """The topic, and the same rows from Parquet."""
    records = option("records", 1_000_000)
    with broker() as (log, where), tempfile.TemporaryDirectory() as folder, session() as spark:
        fill(log, records, option("partitions", 2))
        names = ("offset", "timestamp_ms", "key", "value")
        schema = "offset BIGINT, timestamp_ms BIGINT, key BINARY, value BINARY"
        topic = spark.read.format("logflume").schema(schema).option("log", where).option("topic", "events").load()
        topic.write.parquet(f"{folder}/rows")
        rows = spark.read.parquet(f"{folder}/rows").select(*names)
        from_parquet, expected = again(partial(looked_at, spark, rows))
        from_topic, found = again(partial(looked_at, spark, topic))
        assert found == expected
        yield Figure("reading a topic, CPU", records / from_topic[1], "records/s")
        yield Figure("  wall", records / from_topic[0], "records/s")
        yield Figure("  CPU over that of the same rows from Parquet", from_topic[1] / from_parquet[1], "x", 1.3, is_upper=True)
        yield Figure("  wall, the same", from_topic[0] / from_parquet[0], "x")


def looked_at(spark: Any, rows: Any) -> Measured:
    """Have Spark look at each value of rows."""
    clock = Clock(spark)
    found = rows.selectExpr("sum(offset + timestamp_ms + length(key) + crc32(value)) AS total").collect()[0].total
    return clock.stop(), float(found)


def measure_archives() -> Iterable[Figure]:
    """Reading the log, and an archive of it, without Spark."""
    records = option("records", 1_000_000)
    with tempfile.TemporaryDirectory() as folder, connect(f"{folder}/log") as log:
        fill(log, records, 1)
        root = f"{folder}/archive"
        begun_s = time.process_time()
        archive_topic(log, "events", root)
        written_s = time.process_time() - begun_s
        files = find_archive(root, ["events"])[TopicPartition("events", 0)]
        whole = OffsetRange("events", 0, 0, files[-1].held.end)
        (first, _), (second, found) = (again(partial(read_all, log, whole, which)) for which in ((), files))
        assert found == records
        size = sum(Path(each.path).stat().st_size for each in files)
        yield Figure("writing an archive, CPU", records / written_s, "records/s")
        yield Figure("  bytes a record", size / records, "B")
        yield Figure("reading an archive, CPU", records / second[1], "records/s")
        yield Figure("  CPU over that of the log", second[1] / first[1], "x")


def read_all(log: Log, whole: OffsetRange, files: Sequence[ArchiveFile]) -> Measured:
    """Read a range; with files from them."""
    begun_s, used_s = time.perf_counter(), time.process_time()
    found = sum(len(chunk) for chunk in read_history(log, whole, files))
    return (time.perf_counter() - begun_s, time.process_time() - used_s), found
