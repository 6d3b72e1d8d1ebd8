"""Topics as Spark's own tables, filters, streams written exactly once: in a session as a notebook has one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logflume.log import InvalidInput, Log, TopicPartition, connect

from ..log._server_process import ServerProcess
from ._spark_apps import ORDERS, PARTITIONS, create_inputs, send_orders
from ._spark_session import NEEDS_JAVA, SPARK_WAIT_S, spark_session


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with spark_session("logflume-tables", "local[2]") as session:
        yield session


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    process = ServerProcess(str(tmp_path / "log"))
    with connect(process.address) as opened:
        create_inputs(opened)
        yield opened
    process.stop()


@pytest.mark.spark
@pytest.mark.slow
@NEEDS_JAVA
def test_topics_are_tables_and_a_stream_is_written_exactly_once(log: Log, spark: Any, tmp_path: Path) -> None:
    from logflume.streams.spark import exactly_once, use_logflume

    send_orders(log, 200, seed=7, start_ms=5_000_000)
    log.admin().create_topic("copy", partitions=PARTITIONS)
    assert use_logflume(spark, log.where, includeHeaders="true") == ["copy", "items", "orders"]
    spark.sql("CREATE TABLE logflume.mine (x INT) USING parquet")
    log.admin().create_topic("mine", partitions=1)
    with pytest.raises(InvalidInput, match=r"logflume\.mine is there and is no topic \(provider 'parquet'\)"):
        use_logflume(spark, log.where)
    spark.sql("DROP TABLE logflume.mine")
    log.admin().delete_topic("mine")
    log.admin().create_topic("left-out", partitions=1)
    assert use_logflume(spark, log.where, includeHeaders="true") == ["copy", "items", "orders"], "made anew"
    shown = spark.sql("SHOW TABLES IN logflume").where("NOT isTemporary").collect()
    assert sorted(row.tableName for row in shown) == ["copy", "items", "orders"]
    orders = spark.table("logflume.orders")
    assert orders.count() == 200
    assert orders.where("partition = 9").count() == 0, "nothing is left to be read"
    jvm = spark._jvm
    folder = jvm.java.io.File(jvm.java.net.URI(spark.catalog.getDatabase("logflume").locationUri))
    assert jvm.org.apache.spark.util.ShutdownHookManager.hasShutdownDeleteDir(folder), "Spark removes it when it ends"
    ends = log.admin().end_offsets(ORDERS, read_committed=True)
    few = spark.sql("SELECT partition, offset, headers FROM logflume.orders WHERE offset >= 10 AND offset < 13 AND partition > 0")
    assert few.rdd.getNumPartitions() == 2, "the partition that a filter leaves out is not read"
    assert sorted((row.partition, row.offset) for row in few.collect()) == [(p, n) for p in (1, 2) for n in (10, 11, 12)]
    stream = (
        spark.readStream.format("logflume")
        .option("log", log.where)
        .option("topic", "orders")
        .option("maxOffsetsPerTrigger", "70")
    )
    write = exactly_once(log.where, "copy", name="copier")
    batches = []

    def twice(frame: Any, batch_id: int) -> None:
        batches.append(batch_id)
        for _ in range(2):
            write(frame, batch_id)

    query = stream.load().writeStream.foreachBatch(twice).trigger(availableNow=True)
    started = query.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    assert started.awaitTermination(SPARK_WAIT_S)
    assert log.admin().group_offsets("copier")[TopicPartition("copy", 0)].metadata == started.id
    assert len(batches) == -(-sum(ends.values()) // 70)
    columns = ("key", "value", "timestamp_ms", "partition")
    rows = [
        sorted(map(tuple, spark.table(f"logflume.{name}").select(*columns).collect()), key=repr) for name in ("orders", "copy")
    ]
    assert rows[0] == rows[1]
    with pytest.raises(InvalidInput, match=r"'copier' has written \d+ batches to copy, this query is at its batch 0"):
        write(spark.createDataFrame([("x",)], "value STRING"), 0)
    with pytest.raises(InvalidInput, match=r"a write needs a column value"):
        exactly_once(log.where, "copy", name="other")(spark.createDataFrame([("x",)], "key STRING"), 0)
