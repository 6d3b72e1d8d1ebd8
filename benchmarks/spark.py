"""A filter and a sum per user over a topic's history, as a Spark job: a backfill's job against Spark's own operators.

Run: python -m benchmarks.spark [history|reading|archives] [--records=N] [--partitions=N] [--json]

`history`: both read the same topic through the same data source on local[2], in one session, one after the other, each once to
warm up. Ours is what a backfill computes (changelog records and results included), without the hand-over; Spark's is `from_json`,
filter and aggregate. Their sums must be equal. CPU is that of Spark's JVM and its Python workers; the broker's is left out. The
live engine runs the same application in this process. `reading`: the topic through the data source against the same rows from
Parquet. `archives`: the same records from the log and from an archive, without Spark.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import psutil

from benchmarks._report import Figure, main
from benchmarks._spark_app import load_plan
from benchmarks.broker import running_broker
from logflume.log import TopicPartition, connect, load_kernels
from logflume.log.interfaces import Log
from logflume.log.records import Chunk
from logflume.streams.kernels import kernel_loader
from logflume.streams.runtime import Engine, EngineOptions
from logflume.streams.spark import (
    BackfillPlan,
    LogflumeDataSource,
    OffsetRange,
    SparkRunner,
    SparkSettings,
    archive_topic,
    check_spark,
    open_session,
    plan_backfill,
)
from logflume.streams.spark.archives import ArchiveFile, find_archive, read_history
from logflume.streams.spark.backfill import prepare_topics
from logflume.streams.spark.rows import RowKind
from logflume.streams.spark.runner import RECORDS_PER_RANGE
from logflume.streams.spark.steps import StepPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

USERS = 10_000
BLOCK = 50_000
SCHEMA = "id BIGINT, user STRING, page STRING, ms BIGINT, price DOUBLE, ok BOOLEAN"


def option(name: str, default: int) -> int:
    """Return the number given as --name=N on the command line."""
    found = [word.partition("=")[2] for word in sys.argv[1:] if word.startswith(f"--{name}=")]
    return int(found[-1]) if found else default


def fill(log: Log, records: int, partitions: int) -> None:
    """Write the history."""
    log.admin().create_topic("events", partitions=partitions, configs={"retention.ms": "-1"})
    rng = random.Random(1)
    producer = log.producer()
    for start in range(0, records, BLOCK):
        by_partition: dict[int, tuple[list[bytes], list[bytes], list[int]]] = {}
        for i in range(start, min(start + BLOCK, records)):
            number = rng.randrange(USERS)
            user, ok = f"u{number:05}", "true" if rng.random() < 0.9 else "false"
            rest = f'"page":"p{rng.randrange(100)}","ms":{rng.randrange(1, 501)},"price":{rng.random() * 50:.2f},"ok":{ok}'
            keys, values, times = by_partition.setdefault(number % partitions, ([], [], []))
            keys.append(user.encode())
            values.append(f'{{"id":{i},"user":"{user}",{rest}}}'.encode())
            times.append(1_700_000_000_000 + i)
        for partition, (keys, values, times) in by_partition.items():
            producer.send_chunk(
                "events", Chunk.from_columns("events", keys, values, times, partition=partition), partition=partition
            )
    producer.flush()
    producer.close()


class Clock:
    """Seconds since it was made: on the wall, and of CPU of Spark's JVM and all its Python workers."""

    def __init__(self, spark: Any) -> None:
        self._jvm = psutil.Process(spark.sparkContext._gateway.proc.pid)
        self._wall_s, self._cpu_s = time.perf_counter(), self._used_s()

    def _used_s(self) -> float:
        used = 0.0
        for process in (self._jvm, *self._jvm.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                used += sum_of(process.cpu_times()[:4])
        return used

    def stop(self) -> tuple[float, float]:
        """Return (wall, CPU) seconds."""
        return time.perf_counter() - self._wall_s, self._used_s() - self._cpu_s


Measured = tuple[tuple[float, float], float]
"""(Wall, CPU) seconds, and the sum of all results."""


def ours(spark: Any, backfill: BackfillPlan, partitions: dict[str, int], records_per_range: int | None) -> Measured:
    """Run our job."""
    planned = backfill.load_plan()
    with tempfile.TemporaryDirectory() as root:
        step = StepPlan(backfill.load_plan, backfill.where, backfill.ranges, partitions, {}, root)
        clock = Clock(spark)
        result = SparkRunner(spark, records_per_range, ranges_from_records=0).run(step, planned, lambda _: None)
        seconds = clock.stop()
        total = 0.0
        newest = {
            row.key: row.value for frame in result.frames for row in frame.filter(f"kind = {int(RowKind.SINK)}").toLocalIterator()
        }
        for value in newest.values():
            total += msgspec.json.decode(value)["total"]
        result.release()
    return seconds, total


def sparks(spark: Any, where: str, column: str) -> Measured:
    """Run Spark's own operators."""
    from pyspark.sql import functions as f

    clock = Clock(spark)
    rows = spark.read.format("logflume").option("log", where).option("topic", "events").load()
    events = rows.select("key", f.from_json(rows.value.cast("string"), SCHEMA).alias("e")).select("key", "e.*")
    sums = events.filter("ok AND ms > 100").groupBy("key").agg(f.sum(column).alias("total"))
    found = sums.toArrow()
    return clock.stop(), sum_of(found.column("total").to_pylist())


def sum_of(values: Iterable[float]) -> float:
    """Return the sum."""
    total = 0.0
    for value in values:
        total += value
    return total


@contextlib.contextmanager
def prepared() -> Iterator[tuple[Any, Log, str, int]]:
    """Give a session, a log with the history, where it is and how many records it has."""
    check_spark()
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])
    records = option("records", 1_000_000)
    with tempfile.TemporaryDirectory() as folder, running_broker(folder) as (host, port, _, _):
        where = f"{host}:{port}"
        with connect(where) as log:
            fill(log, records, option("partitions", 2))
            spark = open_session("benchmark", SparkSettings("local[2]", {"spark.driver.memory": "2g"}))
            spark.dataSource.register(LogflumeDataSource)
            yield spark, log, where, records
            spark.stop()


def history() -> Iterable[Figure]:
    """Sums over the history."""
    with prepared() as (spark, log, where, records):
        for column, numbers in (("ms", "integers"), ("price", "floats")):
            backfill = plan_backfill(partial(load_plan, column), where)
            topics = dict(prepare_topics(backfill.load_plan(), log.admin()).partitions)
            peer, expected = again(partial(sparks, spark, where, column))
            yield Figure(f"sum of {numbers}, Spark's own, CPU", records / peer[1], "records/s")
            for way, size in (("by ranges", RECORDS_PER_RANGE // 4), ("record by record", None)):
                if size and numbers == "floats":
                    continue
                seconds, total = again(partial(ours, spark, backfill, topics, size))
                assert abs(total - expected) < 1e-9 * abs(total), (total, expected)
                yield Figure(f"sum of {numbers}, {way}, CPU", records / seconds[1], "records/s")
                yield Figure("  wall", records / seconds[0], "records/s")
                yield Figure(
                    "  CPU of Spark's from_json and aggregate over ours", peer[1] / seconds[1], "x", 8.0 if size else None
                )
                yield Figure("  wall, the same", peer[0] / seconds[0], "x")
                if size is None:
                    live_s = live(log, column)
                    yield Figure("  CPU of the live engine over that of Spark's workers and JVM", live_s / seconds[1], "x", 0.7)


def live(log: Log, column: str) -> float:
    """Return CPU seconds of this process for the same application as a live one, its kernels loaded before."""
    load_kernels()
    kernel_loader().load()
    plan = load_plan(column)
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(plan, log, EngineOptions(state_dir=Path(folder)))
        begun_s = time.process_time()
        engine.start()
        try:
            every = [TopicPartition("events", p) for p in range(option("partitions", 2))]
            ends = log.admin().end_offsets(every, read_committed=True)
            while {tp: at.offset for tp, at in log.admin().group_offsets(plan.application).items()} != ends:
                time.sleep(0.2)
        finally:
            engine.stop()
        return time.process_time() - begun_s


def reading() -> Iterable[Figure]:
    """The topic, and the same rows from Parquet."""
    with prepared() as (spark, _, where, records), tempfile.TemporaryDirectory() as folder:
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


def archives() -> Iterable[Figure]:
    """Reading the log, and an archive of it."""
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


def again(measure: Callable[[], Measured]) -> Measured:
    """Measure twice; return the second."""
    measure()
    return measure()


if __name__ == "__main__":
    main(history, reading, archives)
