"""State between micro-batches: our stores, beside Spark's own through `transformWithState` and through Spark SQL's `groupBy`.

A count and a sum per key, then per key and minute, over one topic in micro-batches of BATCH records. Ours is `--engine spark`
whole, with its transaction of results, changelogs and offsets; Spark's read the topic through our data source, keep their
state in the RocksDB provider, give their results to the driver, write them nowhere, and never let go of a window. All must end
with the same rows.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from benchmarks._report import Figure
from benchmarks.streams import option
from logflume.log import TopicPartition
from logflume.log.interfaces import Log
from logflume.log.records import Chunk
from logflume.streams.spark import OffsetRange, run_continuously
from logflume.streams.spark.ranges import read_range

from .apps import load_totals
from .session import Clock, broker, session

if TYPE_CHECKING:
    from logflume.streams.spark import BatchDone

BATCH = 100_000
WARM = 2
"""Micro-batches before what is counted."""
PARTITIONS = 2
WINDOW_MS = 60_000
ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.shuffle.partitions": str(PARTITIONS),
    "spark.python.authenticate.socketTimeout": "300s",
}
COLUMNS = "key STRING, start BIGINT, n BIGINT, total BIGINT"
Totals = dict[tuple[str, int], tuple[int, int]]
"""(Key, start of the window) -> (records, sum)."""


def measure_stores() -> Iterable[Figure]:
    """`--records` of `--keys` keys."""
    records, keys = option("records", 1_000_000), option("keys", 100_000)
    batches = WARM + max(records // BATCH, 1)
    counted = (batches - WARM) * BATCH
    with broker() as (log, where):
        for topic, label in (("totals", "per key"), ("windows", "per key and minute")):
            log.admin().create_topic(topic, partitions=PARTITIONS, configs={"retention.ms": "-1"})
            with session(conf=ROCKSDB) as spark:
                meter = Meter(spark, batches)
                ours = totals_of_ours(log, where, spark, topic, partial(write_block, log, topic, keys), meter)
                own_s = meter.cpu_s
            yield Figure(f"{label}: our stores, results and changelogs, CPU", own_s / counted * 1e6, "us/record")
            for name, way in (("groupBy", grouped), ("transformWithState", with_state)):
                with session(conf=ROCKSDB) as spark:  # of its own: workers that another has left may end meanwhile
                    meter = Meter(spark, batches)
                    assert totals_of_sparks(spark, where, topic, way, meter) == ours
                yield Figure(f"  Spark's, {name}, CPU", meter.cpu_s / counted * 1e6, "us/record")
                yield Figure("    over ours", meter.cpu_s / own_s, "x")


def write_block(log: Log, topic: str, keys: int, number: int) -> None:
    """Write what a micro-batch takes: each key comes as often as any, a minute's records are BATCH."""
    ids = range(number * BATCH, (number + 1) * BATCH)
    values = [b'{"id":%d,"user":"u","page":"p","ms":%d,"price":0.5,"ok":true}' % (i, i % 500) for i in ids]
    names = [b"key-%09d" % (i * 7_919 % 1_000_003 % keys) for i in ids]
    times = [i * WINDOW_MS // BATCH for i in ids]
    with log.producer() as producer:
        producer.send_chunk(topic, Chunk.from_columns(topic, names, values, times))
        producer.flush()


@dataclass(slots=True)
class Meter:
    """CPU of Spark and of this process, from the end of the last micro-batch of WARM to that of the last one."""

    spark: Any
    batches: int
    done: int = 0
    cpu_s: float = 0.0
    _clock: Clock | None = None
    _driver_s: float = 0.0

    def __call__(self) -> bool:
        """Note that a micro-batch has ended; return whether it was the last."""
        self.done += 1
        if self.done == WARM:
            self._clock, self._driver_s = Clock(self.spark), time.process_time()
        if self.done == self.batches:
            assert self._clock is not None
            self.cpu_s += self._clock.stop()[1] + time.process_time() - self._driver_s
        return self.done == self.batches

    def without(self, work: Callable[[], None]) -> None:
        """Do something in this process that does not count."""
        begun_s = time.process_time()
        work()
        self._driver_s += time.process_time() - begun_s


def totals_of_ours(log: Log, where: str, spark: Any, topic: str, block: Callable[[int], None], meter: Meter) -> Totals:
    """Run the application as what it reads is written, a micro-batch at a time; return its results."""
    stopping = threading.Event()

    def follow(_: BatchDone) -> None:
        if meter():
            stopping.set()
        else:
            meter.without(partial(block, meter.done))

    block(0)
    with tempfile.TemporaryDirectory() as folder:
        run_continuously(
            partial(load_totals, topic), where, spark, state_root=Path(folder), every_s=0.1, stopping=stopping, on_batch=follow
        )
    return totals_in(log, f"{topic}-out")


def totals_in(log: Log, topic: str) -> Totals:
    """Return the newest result of each key (and window)."""
    suffix_bytes = 8 if topic.startswith("windows") else 0
    every = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    found: Totals = {}
    for tp, end in log.admin().end_offsets(every, read_committed=True).items():
        for chunk in read_range(log, OffsetRange(*tp, 0, end)):
            for key, value in zip(chunk.keys(), chunk.values(), strict=True):
                name, start = key[: len(key) - suffix_bytes], key[len(key) - suffix_bytes :]
                row = msgspec.json.decode(value)
                found[name.decode(), int.from_bytes(start, "big")] = row["n"], row["total"]
    return found


def totals_of_sparks(spark: Any, where: str, topic: str, way: Callable[[Any], Any], meter: Meter) -> Totals:
    """Run a streaming query over the topic; return its results."""
    from pyspark.sql import functions as f

    found: Totals = {}

    def take(frame: Any, _: int) -> None:
        rows = frame.toArrow().to_pydict()
        found.update(zip(zip(rows["key"], rows["start"], strict=True), zip(rows["n"], rows["total"], strict=True), strict=True))
        meter()

    source = spark.readStream.format("logflume").schema("key BINARY, value BINARY, timestamp_ms BIGINT").option("log", where)
    read = source.option("topic", topic).option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", BATCH).load()
    start = f.expr(f"timestamp_ms - timestamp_ms % {WINDOW_MS}" if topic == "windows" else "0L").alias("start")
    values = f.from_json(read.value.cast("string"), "ms BIGINT").ms.alias("ms")
    events = read.select(read.key.cast("string").alias("key"), start, values)
    with tempfile.TemporaryDirectory() as folder:
        writer = way(events).writeStream.outputMode("update").foreachBatch(take).option("checkpointLocation", folder)
        writer.trigger(availableNow=True).start().awaitTermination()
    return found


def grouped(events: Any) -> Any:
    """Return totals by Spark SQL's own operators."""
    from pyspark.sql import functions as f

    return events.groupBy("key", "start").agg(f.count("*").alias("n"), f.sum("ms").alias("total"))


def with_state(events: Any) -> Any:
    """Return totals by a processor in Python."""
    return events.groupBy("key", "start").transformWithState(Totalling(), COLUMNS, "Update", "None")


class Totalling(StatefulProcessor):  # type: ignore[misc]
    """Counts and sums in a value of the state."""

    def init(self, handle: Any) -> None:
        self._state = handle.getValueState("totals", "n BIGINT, total BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        n, total = self._state.get() or (0, 0)
        for row in rows:
            n, total = n + 1, total + row.ms
        self._state.update((n, total))
        yield Row(key=key[0], start=key[1], n=n, total=total)

    def close(self) -> None:
        """Nothing is open."""
