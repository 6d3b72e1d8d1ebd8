"""A filter and a sum per user over a topic's history: a backfill's job against Spark's own operators.

Ours is what a backfill computes (changelog records and results included), without the hand-over; Spark's is `from_json`, filter
and aggregate, over our data source, or over Spark's own Kafka source with `--connector`. Their sums must be equal.
"""

from __future__ import annotations

import tempfile
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from benchmarks._report import Figure
from benchmarks.streams import option
from logflume.log.interfaces import Log
from logflume.streams.spark import BackfillPlan, SparkRunner, plan_backfill
from logflume.streams.spark.backfill import prepare_topics
from logflume.streams.spark.bundles import unpacked
from logflume.streams.spark.rows import RowKind
from logflume.streams.spark.runner import RECORDS_PER_RANGE
from logflume.streams.spark.steps import StepPlan

from .apps import load_sums
from .session import Clock, Measured, again, broker, fill, session, sum_of, text_option

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SCHEMA = "id BIGINT, user STRING, page STRING, ms BIGINT, price DOUBLE, ok BOOLEAN"


def measure_history() -> Iterable[Figure]:
    """Sums over the history, Spark's from our data source."""
    records = option("records", 1_000_000)
    with broker() as (log, where), session() as spark:
        fill(log, records, option("partitions", 2))
        rows = spark.read.format("logflume").option("log", where).option("topic", "events").load()
        for column, numbers in (("ms", "integers"), ("price", "floats")):
            peer, expected = again(partial(sparks, spark, rows, column))
            yield Figure(f"sum of {numbers}, Spark's own, CPU", records / peer[1], "records/s")
            for way, size in (("by ranges", RECORDS_PER_RANGE // 4), ("record by record", None)):
                if size and numbers == "floats":
                    continue
                seconds = ours_as(spark, log, where, column, size, expected)
                yield Figure(f"sum of {numbers}, {way}, CPU", records / seconds[1], "records/s")
                yield Figure("  wall", records / seconds[0], "records/s")
                yield Figure("  CPU of Spark's from_json and aggregate over ours", peer[1] / seconds[1], "x")
                yield Figure("  wall, the same", peer[0] / seconds[0], "x")


def measure_kafka() -> Iterable[Figure]:
    """The same from Spark's own Kafka source; `--connector` says which version of it Spark fetches."""
    connector = text_option("connector")
    if connector is None:
        return
    records = option("records", 1_000_000)
    with broker() as (log, where), session(conf={"spark.jars.packages": connector}) as spark:
        fill(log, records, option("partitions", 2))
        topic = spark.read.format("kafka").option("kafka.bootstrap.servers", where).option("subscribe", "events").load()
        from_kafka, expected = again(partial(sparks, spark, topic, "ms"))
        source = spark.read.format("logflume").schema("key BINARY, value BINARY").option("log", where).option("topic", "events")
        from_ours, found = again(partial(sparks, spark, source.load(), "ms"))
        assert found == expected
        yield Figure("Spark's from_json and aggregate over its Kafka source, CPU", records / from_kafka[1], "records/s")
        yield Figure("  over our data source", records / from_ours[1], "records/s")
        yield Figure("  CPU over the Kafka source, over that over ours", from_kafka[1] / from_ours[1], "x")
        seconds = ours_as(spark, log, where, "ms", None, expected)
        yield Figure("our backfill, CPU", records / seconds[1], "records/s")
        yield Figure("  CPU of Spark's own over ours", from_kafka[1] / seconds[1], "x", 8.0)


def ours_as(spark: Any, log: Log, where: str, column: str, size: int | None, expected: float) -> tuple[float, float]:
    """Run our job; return (wall, CPU) seconds."""
    backfill = plan_backfill(partial(load_sums, column), where)
    topics = dict(prepare_topics(backfill.load_plan(), log.admin()).partitions)
    seconds, total = again(partial(ours, spark, backfill, topics, size))
    assert abs(total - expected) < 1e-9 * abs(total), (total, expected)
    return seconds


def ours(spark: Any, backfill: BackfillPlan, partitions: Mapping[str, int], records_per_range: int | None) -> Measured:
    """Run our job."""
    planned = backfill.load_plan()
    with tempfile.TemporaryDirectory() as root:
        step = StepPlan(backfill.load_plan, backfill.where, backfill.ranges, partitions, {}, root)
        clock = Clock(spark)
        result = SparkRunner(spark, records_per_range, ranges_from_records=0).run(step, planned, lambda _: None)
        seconds = clock.stop()
        total = 0.0
        newest: dict[bytes, bytes] = {}
        for frame in result.frames:
            for row in frame.filter(f"kind = {int(RowKind.SINK)}").toLocalIterator():
                records = unpacked(bytes(row.value))
                newest |= zip(records.column("key").to_pylist(), records.column("value").to_pylist(), strict=True)
        for value in newest.values():
            total += msgspec.json.decode(value)["total"]
        result.release()
    return seconds, total


def sparks(spark: Any, rows: Any, column: str) -> Measured:
    """Run Spark's own operators over a topic's rows."""
    from pyspark.sql import functions as f

    clock = Clock(spark)
    events = rows.select("key", f.from_json(rows.value.cast("string"), SCHEMA).alias("e")).select("key", "e.*")
    sums = events.filter("ok AND ms > 100").groupBy("key").agg(f.sum(column).alias("total"))
    found = sums.toArrow()
    return clock.stop(), sum_of(found.column("total").to_pylist())
