"""Backfills against a real server: batch-then-live equals live, on Spark and without, through kills at each step of it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from logflume.log import InvalidInput, Log, TopicPartition, connect
from logflume.log.registry import RegistryServer
from logflume.log.schemas import BIGINT, STRING, TIMESTAMP, Column, FormatSpec, array, of_topic, serde
from logflume.streams.runtime import Engine, EngineOptions, StreamsError
from logflume.streams.spark import (
    BackfillPlan,
    BatchDone,
    LocalRunner,
    Progress,
    RangeLost,
    SparkRunner,
    SparkUnavailable,
    check_spark,
    plan_backfill,
    run_backfill,
)
from logflume.streams.spark.ranges import OffsetRange, read_range
from logflume.streams.spark.runner import _KEPT

from ..end_to_end._command import LOGFLUME, run
from ..end_to_end._delays import DELAYS, flight, load, send, wait_for
from ..log._server_process import ServerProcess
from . import _letter_apps as dead_letters
from ._kills import KillOnce
from ._replace_apps import expected, maker, sell, table
from ._spark_apps import (
    ORDERS,
    PARTITIONS,
    WAIT_S,
    Once,
    create_inputs,
    final_results,
    loader,
    make_plan,
    own_topics,
    run_live,
    send_orders,
)
from ._spark_session import NEEDS_JAVA, ROOT, SPARK_WAIT_S, spark_session
from .running import until


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with spark_session("logflume-tests", "local[2,4]") as session:  # a task is tried four times, as on a cluster
        yield session


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(str(tmp_path / "log"))
    yield process
    process.stop()


@pytest.fixture
def log(server: ServerProcess) -> Iterator[Log]:
    with connect(server.address) as opened:
        create_inputs(opened)
        yield opened


def added(a: dict[str, int], b: dict[str, int]) -> dict[str, int]:
    return {reason: a.get(reason, 0) + b.get(reason, 0) for reason in a.keys() | b.keys()}


def check_batch_then_live_equals_live(log: Log, runner: Any, kind: str, tmp_path: Path) -> None:
    now_ms = send_orders(log, 1500, seed=1, start_ms=5_000_000)
    plan = plan_backfill(loader("batch", kind), log.where)
    assert plan.records == 1500 + (8 if kind in ("repartition", "foreign", "global") else 0)
    report = run_backfill(plan, runner)
    inputs = plan.records - (8 if kind == "global" else 0)
    assert report.records == inputs, "each record of the inputs counts once, however many stages it goes through"
    assert report.results > 0
    assert report.entries > 0
    assert {stage.subtopology for stage in report.stages} == {sub.name for sub in make_plan("batch", kind).subtopologies}
    assert all(stage.way and stage.tasks > 0 for stage in report.stages)
    assert sum(stage.seconds for stage in report.stages) > 0 < report.hand_over_seconds
    send_orders(log, 500, seed=2, start_ms=now_ms)
    later = run_live(log, "batch", kind, tmp_path / "batch")
    live = run_live(log, "live", kind, tmp_path / "live")
    assert added(report.problems, later) == live
    assert (live.get("late", 0) > 0) is (kind not in ("grouped", "merged", "foreign"))
    assert live["decode"] > 0
    results = final_results(log, "batch-out")
    assert results == final_results(log, "live-out")
    assert len(results) > (5 if kind in ("grouped", "merged", "foreign") else 50)


@pytest.mark.parametrize(
    ("kind", "records_per_range"),
    [
        ("direct", None),
        ("repartition", None),
        ("repartition", 90),
        ("counted", 70),
        ("grouped", 110),
        ("merged", 60),
        ("foreign", None),
        ("global", None),
        ("global", 90),
    ],
)
def test_batch_then_live_equals_live_without_spark(log: Log, kind: str, records_per_range: int | None, tmp_path: Path) -> None:
    check_batch_then_live_equals_live(log, LocalRunner(records_per_range), kind, tmp_path)


@pytest.mark.spark
@pytest.mark.slow
@NEEDS_JAVA
@pytest.mark.parametrize(
    ("kind", "slices"),
    [("repartition", None), ("repartition", 2), ("counted", None), ("grouped", None), ("foreign", 1), ("global", 2)],
)
def test_spark_then_live_equals_live(log: Log, spark: Any, kind: str, slices: int | None, tmp_path: Path) -> None:
    size = 100 if slices is None else None
    runner = SparkRunner(spark, records_per_range=size, cores=8, ranges_from_records=0, slices=slices)
    check_batch_then_live_equals_live(log, runner, kind, tmp_path)


def keys_as_they_came(log: Log, topic: str) -> list[list[tuple[bytes | None, bytes | None, int]]]:
    """Return what each partition of a topic holds, in its order."""
    found = []
    for tp, end in settled(log, topic).items():
        rows = chain.from_iterable(chunk.records() for chunk in read_range(log, OffsetRange(*tp, 0, end)))
        found.append([(row.key, row.value, row.timestamp_ms) for row in rows])
    return found


def settled(log: Log, topic: str) -> dict[TopicPartition, int]:
    every = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    return log.admin().end_offsets(every, read_committed=True)


@pytest.mark.spark
@pytest.mark.slow
@NEEDS_JAVA
@pytest.mark.parametrize(("kind", "slices"), [("direct", None), ("repartition", None), ("repartition", 2)])
def test_results_are_the_same_written_from_where_they_are_and_through_a_shuffle(
    log: Log, spark: Any, kind: str, slices: int | None
) -> None:
    send_orders(log, 1500, seed=1, start_ms=5_000_000)
    written = []
    for name, least in (("here", 0), ("shuffled", 1 << 40)):
        runner = SparkRunner(spark, records_per_range=None, slices=slices, in_place_from_rows=least, at_once_records=0)
        report = run_backfill(plan_backfill(loader(name, kind), log.where), runner)
        written.append(keys_as_they_came(log, f"{name}-out"))
        assert sum(map(len, written[-1])) == report.results > 0
    assert written[0] == written[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "failpoint",
    [
        "after-claim",
        "after-job",
        "writing-ahead",
        "after-send-offsets",
        "writing",
        "after-write",
        "after-commit",
    ],
)
def test_a_kill_at_any_step_of_the_hand_over_loses_and_doubles_nothing(log: Log, failpoint: str, tmp_path: Path) -> None:
    send_orders(log, 600, seed=3, start_ms=5_000_000)
    marker = str(tmp_path / "killed")
    command = [sys.executable, "-m", "tests.streams._backfill_process", log.where, "batch", "repartition", failpoint, marker]
    killed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    if failpoint == "after-commit":
        with pytest.raises(InvalidInput, match="has begun already"):
            plan_backfill(loader("batch", "repartition"), log.where)
    else:
        assert final_results(log, "batch-out") == {}
        with pytest.raises(InvalidInput, match=r"'batch' is being computed from its history: start it when that is done"):
            Engine(make_plan("batch", "repartition"), log, EngineOptions(state_dir=tmp_path / "early")).start()
        run_backfill(plan_backfill(loader("batch", "repartition"), log.where), LocalRunner())
    run_live(log, "batch", "repartition", tmp_path / "batch")
    run_live(log, "live", "repartition", tmp_path / "live")
    assert final_results(log, "batch-out") == final_results(log, "live-out") != {}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "at_once"), [("repartition", False), ("direct", True)])
def test_a_broker_killed_at_every_step_of_the_hand_over_loses_and_doubles_nothing(
    server: ServerProcess, log: Log, kind: str, at_once: bool, tmp_path: Path
) -> None:
    send_orders(log, 600, seed=11, start_ms=5_000_000)
    steps = {"after-claim", "writing-ahead", "after-send-offsets", "writing", "after-write", "after-commit"}
    steps -= {"writing-ahead"} if at_once else set()
    killed: set[str] = set()

    def kill_the_broker(reached: str) -> None:
        if reached in steps - killed:
            killed.add(reached)
            assert reached == "after-commit" or final_results(log, "batch-out") == {}
            server.kill()
            server.start()

    report = run_backfill(plan_backfill(loader("batch", kind), log.where), LocalRunner(), failpoint=kill_the_broker)
    assert killed == steps
    assert {stage.way.endswith("written at once") for stage in report.stages} == {at_once}
    assert report.results > 0
    run_live(log, "batch", kind, tmp_path / "batch")
    run_live(log, "live", kind, tmp_path / "live")
    assert final_results(log, "batch-out") == final_results(log, "live-out") != {}


@pytest.mark.spark
@pytest.mark.slow
@NEEDS_JAVA
@pytest.mark.parametrize(("step", "writes"), [("writing", [1, 2]), ("writing-ahead", [1])])
def test_an_executor_killed_while_it_writes_loses_and_doubles_nothing(
    log: Log, spark: Any, step: str, writes: list[int], tmp_path: Path
) -> None:
    send_orders(log, 600, seed=12, start_ms=5_000_000)
    marker = tmp_path / "killed"
    tries: list[int] = []

    def on_progress(at: Progress) -> None:
        if at.step == "hand-over: writing, try":
            tries.append(at.done)

    kill = KillOnce(log.where, "batch", step, str(marker))
    plan = plan_backfill(loader("batch", "repartition"), log.where)
    report = run_backfill(plan, SparkRunner(spark), on_progress=on_progress, failpoint=kill)
    assert marker.exists()
    assert tries == writes
    assert report.results > 0
    run_live(log, "batch", "repartition", tmp_path / "batch")
    run_live(log, "live", "repartition", tmp_path / "live")
    assert final_results(log, "batch-out") == final_results(log, "live-out") != {}


@pytest.mark.spark
@pytest.mark.slow
@NEEDS_JAVA
def test_an_executor_killed_while_it_writes_at_once_loses_and_doubles_nothing(log: Log, spark: Any, tmp_path: Path) -> None:
    send_orders(log, 600, seed=15, start_ms=5_000_000)
    marker, said = tmp_path / "killed", list[str]()
    kill = KillOnce(log.where, "batch", "writing", str(marker))
    plan = plan_backfill(loader("batch", "direct"), log.where)
    report = run_backfill(plan, SparkRunner(spark), on_progress=lambda at: said.append(at.step), failpoint=kill)
    assert marker.exists()
    assert [step for step in said if step == "hand-over: writing, try"], "it was computed first, then written"
    undisturbed = run_backfill(plan_backfill(loader("alone", "direct"), log.where), SparkRunner(spark))
    assert [stage.way for stage in undisturbed.stages] == ["record by record, written at once"]
    assert (report.records, report.results, report.entries) == (undisturbed.records, undisturbed.results, undisturbed.entries)
    run_live(log, "batch", "direct", tmp_path / "batch")
    assert keys_as_they_came(log, "batch-out") == keys_as_they_came(log, "alone-out")
    assert final_results(log, "batch-out") != {}


@pytest.mark.spark
@pytest.mark.slow
@NEEDS_JAVA
def test_spark_keeps_what_is_left_out_once_though_an_executor_is_killed(log: Log, spark: Any, tmp_path: Path) -> None:
    dead_letters.create_topics(log, "chain", "ranged", "chain-alone", "ranged-alone")
    dead_letters.sell(log, 0, 300)
    settings = EngineOptions(dead_letter_topic="letters")

    def run(name: str, kind: str, runner: Any, failpoint: Any = lambda _: None) -> Any:
        plan = plan_backfill(dead_letters.maker(name, kind), log.where, settings=settings)
        run_backfill(plan, runner, failpoint=failpoint)
        return dead_letters.letters_of(log, "letters", name)

    for name, kind, runner in (("chain", "chain", SparkRunner(spark)), ("ranged", "summed", SparkRunner(spark, 40, 16))):
        kill = KillOnce(log.where, name, "writing", str(tmp_path / name))
        found = run(name, kind, runner, kill)
        assert (tmp_path / name).exists()
        assert found == run(f"{name}-alone", kind, LocalRunner()) != {}


@pytest.mark.spark
@pytest.mark.slow
@NEEDS_JAVA
def test_what_is_kept_is_written_and_read_back_in_pieces_that_fit_an_executor(spark: Any, tmp_path: Path) -> None:
    digests = "transform(sequence(1, 1 << 14), number -> sha2(string(id << 20 | number), 256))"
    bundles = spark.range(0, 48, 1, 1).selectExpr(f"concat_ws('', {digests}) AS value")
    bundles.write.options(**_KEPT).parquet(str(tmp_path / "kept"))
    (file,) = (tmp_path / "kept").glob("*.parquet")
    footer = pq.read_metadata(file)
    sizes = [footer.row_group(number).total_byte_size for number in range(footer.num_row_groups)]
    assert sum(sizes) > 48 << 20
    assert max(sizes) < 32 << 20


@pytest.mark.spark
@pytest.mark.slow
@NEEDS_JAVA
def test_spark_goes_on_with_what_it_has_kept(log: Log, spark: Any, tmp_path: Path) -> None:
    send_orders(log, 300, seed=13, start_ms=5_000_000)

    def planned() -> BackfillPlan:
        return plan_backfill(loader("batch", "repartition"), log.where, keep=str(tmp_path / "kept"))

    def fail() -> None:
        raise InvalidInput("stopped here")

    with pytest.raises(InvalidInput, match="stopped here"):
        run_backfill(planned(), SparkRunner(spark), failpoint=Once("after-changelogs", fail))
    report = run_backfill(planned(), SparkRunner(spark))
    assert {stage.way.endswith(", kept") for stage in report.stages} == {True}
    alone = run_backfill(plan_backfill(loader("alone", "repartition"), log.where), LocalRunner())
    assert (report.records, report.results, report.entries) == (alone.records, alone.results, alone.entries)
    assert final_results(log, "batch-out") == final_results(log, "alone-out") != {}


@pytest.mark.spark
@pytest.mark.slow
@NEEDS_JAVA
@pytest.mark.parametrize("is_spark_first", [False, True])
def test_what_another_runner_has_kept_is_computed_again(log: Log, spark: Any, is_spark_first: bool, tmp_path: Path) -> None:
    send_orders(log, 300, seed=14, start_ms=5_000_000)
    runners: list[Any] = [SparkRunner(spark, None), LocalRunner()]
    first, second = runners if is_spark_first else reversed(runners)

    def planned() -> BackfillPlan:
        return plan_backfill(loader("batch", "direct"), log.where, keep=str(tmp_path / "kept"))

    def fail() -> None:
        raise InvalidInput("stopped here")

    with pytest.raises(InvalidInput, match="stopped here"):
        run_backfill(planned(), first, failpoint=Once("after-changelogs", fail))
    report = run_backfill(planned(), second)
    assert {stage.way.endswith(", kept") for stage in report.stages} == {False}
    alone = run_backfill(plan_backfill(loader("alone", "direct"), log.where), LocalRunner())
    assert (report.records, report.results, report.entries) == (alone.records, alone.results, alone.entries)
    assert final_results(log, "batch-out") == final_results(log, "alone-out") != {}


@pytest.mark.spark
@pytest.mark.slow
@NEEDS_JAVA
def test_spark_takes_the_place_of_an_application(log: Log, spark: Any) -> None:
    log.admin().create_topic("sales", partitions=2)
    sell(log, 0, 40)
    run_backfill(plan_backfill(maker("old"), log.where), LocalRunner())
    planned = plan_backfill(maker("new", "table", 5), log.where, replaces="old")
    assert b"e" in table(log)
    run_backfill(planned, SparkRunner(spark))
    assert table(log) == expected(40)


@pytest.mark.spark
@pytest.mark.slow
@NEEDS_JAVA
def test_a_job_that_fails_on_spark_says_why_and_leaves_nothing_behind(log: Log, spark: Any) -> None:
    send_orders(log, 300, seed=15, start_ms=5_000_000)
    before, held = own_topics(log), spark.sparkContext._jsc.getPersistentRDDs().size()

    def overtake(reached: str) -> None:
        if reached == "after-topics":
            log.admin().delete_records({ORDERS[0]: 5})

    with pytest.raises(
        StreamsError, match=r"Spark has not computed 'batch': .*RangeLost: orders-0 starts at offset 5.*retention"
    ):
        run_backfill(plan_backfill(loader("batch", "repartition"), log.where), SparkRunner(spark), failpoint=overtake)
    assert own_topics(log) == before
    logging = spark.sparkContext._jvm.org.apache.logging.log4j.LogManager
    twice = ("executor.Executor", "sql.execution.streaming.runtime.MicroBatchExecution")
    assert not any(logging.getLogger(f"org.apache.spark.{name}").isErrorEnabled() for name in twice), "stack traces beside ours"
    assert logging.getLogger("org.apache.spark.scheduler.TaskSchedulerImpl").isErrorEnabled(), "executors that are lost"
    assert log.admin().group_offsets("batch") == {}
    assert spark.sparkContext._jsc.getPersistentRDDs().size() == held


def test_a_failed_backfill_leaves_nothing_behind(log: Log) -> None:
    send_orders(log, 50, seed=4, start_ms=5_000_000)
    before = set(log.admin().list_topics(include_internal=True))

    def fail(reached: str) -> None:
        if reached == "after-write":
            raise InvalidInput("stopped here")

    with pytest.raises(InvalidInput, match="stopped here"):
        run_backfill(plan_backfill(loader("batch", "direct"), log.where), LocalRunner(), failpoint=fail)
    assert {topic for topic in log.admin().list_topics(include_internal=True) if not topic.startswith("__")} == {
        topic for topic in before if not topic.startswith("__")
    }
    assert log.admin().group_offsets("batch") == {}


def test_a_cut_beyond_retention_is_an_error(log: Log) -> None:
    send_orders(log, 300, seed=5, start_ms=5_000_000)
    plan = plan_backfill(loader("batch", "direct"), log.where)
    log.admin().delete_records({ORDERS[0]: 5})
    with pytest.raises(RangeLost, match=r"orders-0 starts at offset 5, but the range begins at 0.*retention"):
        run_backfill(plan, LocalRunner())
    assert log.admin().group_offsets("batch") == {}


def test_a_running_application_is_not_backfilled(log: Log, tmp_path: Path) -> None:
    send_orders(log, 20, seed=6, start_ms=5_000_000)
    engine = Engine(make_plan("batch", "direct"), log, EngineOptions(state_dir=tmp_path, commit_interval_ms=50))
    engine.start()
    try:
        until(lambda: log.admin().group_offsets("batch"), engine, timeout_s=WAIT_S)
        with pytest.raises(InvalidInput, match="is running"):
            plan_backfill(loader("batch", "direct"), log.where)
    finally:
        engine.stop()


def test_without_java_the_error_names_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(SparkUnavailable, match=r"Java 17 or newer, found none.*apt-get install"):
        check_spark()


@pytest.mark.spark
@pytest.mark.slow
@NEEDS_JAVA
def test_the_data_source_reads_ranges_writes_and_streams(log: Log, spark: Any, tmp_path: Path) -> None:
    from logflume.streams.spark import LogflumeDataSource

    send_orders(log, 400, seed=7, start_ms=5_000_000)
    spark.dataSource.register(LogflumeDataSource)
    reader = spark.read.format("logflume").option("log", log.where).option("topic", "orders")
    whole = reader.option("maxRecordsPerPartition", "50").load()
    assert whole.rdd.getNumPartitions() >= 8
    assert whole.count() == 400
    start, end = ({"orders": dict(zip("012", offsets, strict=True))} for offsets in ((3, -1, -2), (9, -1, 4)))
    reader = reader.option("startingOffsets", json.dumps(start)).option("endingOffsets", json.dumps(end))
    rows = reader.schema("offset BIGINT, partition INT").load().orderBy("partition", "offset").collect()
    assert [(row.partition, row.offset) for row in rows] == [(0, n) for n in range(3, 9)] + [(2, n) for n in range(4)]
    log.admin().create_topic("copy", partitions=PARTITIONS)
    assert spark.read.format("logflume").option("log", log.where).option("topic", "copy").load().count() == 0
    columns = ("key", "value", "timestamp_ms")
    whole.select(*columns).write.format("logflume").option("log", log.where).option("topic", "copy").mode("append").save()
    copy = spark.read.format("logflume").option("log", log.where).option("topic", "copy").load()
    copied = [Counter(map(tuple, frame.select(*columns).collect())) for frame in (whole, copy)]
    assert copied[0] == copied[1]  # in any order: tasks write beside each other
    stream = spark.readStream.format("logflume").option("log", log.where).option("topic", "orders").load()
    writer = stream.select("key", "value", "offset").writeStream.format("memory").queryName("seen").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    assert query.awaitTermination(SPARK_WAIT_S)
    assert spark.sql("SELECT count(*) FROM seen").collect()[0][0] == 400


@pytest.mark.spark
@pytest.mark.slow
@NEEDS_JAVA
def test_the_data_source_decodes_registered_values(log: Log, spark: Any, tmp_path: Path) -> None:
    from logflume.streams.spark import LogflumeDataSource

    columns = (Column("user", STRING), Column("cents", BIGINT), Column("at", TIMESTAMP), Column("tags", array(STRING)))
    log.admin().create_topic("sold", partitions=2)
    spark.dataSource.register(LogflumeDataSource)
    with RegistryServer(str(tmp_path / "registry"), port=0) as registry:
        encode = serde(of_topic(FormatSpec("AVRO"), "sold", "value", registry.address), columns).encode
        producer = log.producer()
        for i in range(300):
            value = encode((f"u{i % 3}", i, 1_700_000_000_000 + i, [str(i)] * (i % 2))) if i % 10 else None
            producer.send("sold", value, key=str(i).encode())
        producer.close()
        options = {"log": log.where, "topic": "sold", "value.format": "AVRO", "value.registry": registry.address}
        frame = spark.read.format("logflume").options(**options).load()
        sums = frame.groupBy("value.user").sum("value.cents").collect()
        rows = frame.select("value.*").where("value IS NOT NULL").orderBy("cents").limit(2).collect()
    expected = {f"u{n}": sum(i for i in range(n, 300, 3) if i % 10) for n in range(3)}
    assert {row[0]: row[1] for row in sums if row[0] is not None} == expected
    assert [(row.user, row.cents, row.at.microsecond, row.tags) for row in rows] == [("u1", 1, 1000, ["1"]), ("u2", 2, 2000, [])]


@pytest.mark.spark
@pytest.mark.slow
@NEEDS_JAVA
def test_structured_streaming_equals_live_also_after_a_restart(log: Log, spark: Any, tmp_path: Path) -> None:
    from logflume.streams.spark import run_continuously

    now_ms, stopping = send_orders(log, 500, seed=8, start_ms=5_000_000), threading.Event()
    done: list[BatchDone] = []

    def on_batch(batch: BatchDone) -> None:
        nonlocal now_ms
        done.append(batch)
        now_ms = send_orders(log, 100, seed=10 + len(done), start_ms=now_ms, at_once=True)
        if len(done) == 4:
            stopping.set()

    load, state = loader("batch", "repartition"), tmp_path / "state"
    run_continuously(load, log.where, spark, state_root=state, until_end=True, on_batch=on_batch)
    run_live(log, "batch", "repartition", tmp_path / "batch")
    now_ms = send_orders(log, 100, seed=9, start_ms=now_ms, at_once=True)
    run_continuously(load, log.where, spark, state_root=state, every_s=0.1, stopping=stopping, on_batch=on_batch)
    run_live(log, "batch", "repartition", tmp_path / "batch")
    run_live(log, "live", "repartition", tmp_path / "live")
    assert final_results(log, "batch-out") == final_results(log, "live-out") != {}
    assert [each.records for each in done] == [500 + 8, 100, 100, 100], "what came after the first and the last was taken live"


@pytest.mark.spark
@pytest.mark.slow
@NEEDS_JAVA
def test_the_command_computes_an_application_on_spark(server: ServerProcess) -> None:
    load(server.address)
    done = run("backfill", str(DELAYS), "--master", "local[2]", "--json", "--bootstrap", server.address, timeout_s=SPARK_WAIT_S)
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["message"].endswith("goes on at the cut")
    assert all(stage["tasks"] > 0 and stage["seconds"] > 0 for stage in report["stages"])
    wait_for(server.address, {"United": 15, "Delta": 15})


@pytest.mark.spark
@pytest.mark.slow
@NEEDS_JAVA
def test_the_command_runs_an_application_on_spark_and_it_goes_on_live(server: ServerProcess, tmp_path: Path) -> None:
    load(server.address)
    common = (str(DELAYS), "--state-dir", str(tmp_path / "state"), "--bootstrap", server.address)
    on_spark = ("run", *common, "--engine", "spark", "--master", "local[2]", "--until-end", "--json")
    done = run(*on_spark, "--conf", "spark.ui.enabled=true", "--conf", "spark.ui.port=0", timeout_s=SPARK_WAIT_S)
    told = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert [each for each in told if each.keys() == {"spark_page"}], "what is told on the way is objects too"
    batch = json.loads(done.stdout.splitlines()[-1])
    assert (batch["number"], batch["records"], batch["behind"], batch["problems"]) == (1, 62, 0, {})
    wait_for(server.address, {"United": 15, "Delta": 15})
    live = subprocess.Popen([*LOGFLUME, "run", *common])
    try:
        send(server.address, "flights", [flight(n) for n in range(4)])
        wait_for(server.address, {"United": 16, "Delta": 16})
        refused = run(*on_spark, code=1, timeout_s=SPARK_WAIT_S)
        assert "application 'delays' is running" in refused.stderr
    finally:
        live.send_signal(signal.SIGINT)
        assert live.wait(60) == 0
