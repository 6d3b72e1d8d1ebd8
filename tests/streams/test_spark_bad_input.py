"""What goes wrong under a backfill: topics that change, retention that overtakes it, a disk without room, what does not travel.

Each is a clear error, and nothing is left behind. Java and the master that are not there: `test_spark_backfill.py`,
`test_spark_cluster.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import logflume.streams as lf
from logflume.log import InvalidInput, Log, LogflumeError, TopicPartition, UnknownName, connect
from logflume.streams.runtime import EngineOptions, OnProblem, StreamsError
from logflume.streams.seams import Plan
from logflume.streams.spark import AppFile, LocalRunner, OffsetRange, RangeLost, plan_backfill, plan_together, run_backfill
from logflume.streams.spark.batches import open_batches
from logflume.streams.spark.executors import pickled
from logflume.streams.spark.failures import cause_of
from logflume.streams.spark.probe import Probe
from logflume.streams.spark.ranges import read_range

from ..end_to_end._command import run
from ..end_to_end._delays import DELAYS
from ..log._server_process import ServerProcess
from ._spark_apps import ORDERS, PARTITIONS, create_inputs, loader, make_plan, own_topics, send_orders

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with connect(tmp_path / "log") as opened:
        create_inputs(opened)
        send_orders(opened, 200, seed=1, start_ms=5_000_000)
        yield opened


def refused(log: Log, change: Callable[[Log], None], *, when: str, kind: str = "direct") -> LogflumeError:
    """Return what a backfill says whose inputs change before it begins or once it computes; nothing of it must be left."""
    backfill = plan_backfill(loader("batch", kind), log.where)
    before = own_topics(log)
    changed = threading.Event()

    def at_once(*_: object) -> None:
        if not changed.is_set():
            changed.set()
            change(log)

    if when == "before":
        at_once()
    with pytest.raises(LogflumeError) as raised:
        run_backfill(backfill, LocalRunner(), on_progress=at_once)
    assert changed.is_set()
    assert not log.admin().group_offsets("batch")
    assert own_topics(log) <= before
    return raised.value


TOPICS = pytest.mark.parametrize(("topic", "kind"), [("orders", "direct"), ("items", "global")])


@pytest.mark.parametrize("when", ["before", "while"])
@TOPICS
def test_a_topic_that_gains_partitions(log: Log, topic: str, kind: str, when: str) -> None:
    said = refused(log, lambda log: log.admin().create_partitions(topic, PARTITIONS + 1), when=when, kind=kind)
    assert isinstance(said, InvalidInput)
    assert f"topic '{topic}' has 4 partitions, it had 3 when the cut was made" in str(said)


@pytest.mark.parametrize("when", ["before", "while"])
@TOPICS
def test_a_topic_that_is_deleted(log: Log, topic: str, kind: str, when: str) -> None:
    said = refused(log, lambda log: log.admin().delete_topic(topic), when=when, kind=kind)
    assert isinstance(said, UnknownName)
    assert f"'{topic}'" in str(said)


def test_a_global_table_of_which_retention_takes_rows_before_it_is_read(log: Log) -> None:
    log.admin().alter_topic_configs("items", {"cleanup.policy": "delete"})
    ends = log.admin().end_offsets([TopicPartition("items", p) for p in range(PARTITIONS)])
    said = refused(log, lambda log: log.admin().delete_records(ends), when="before", kind="global")
    assert isinstance(said, RangeLost)


STRICT = """
import msgspec
import logflume as lf
from logflume import col


class Order(msgspec.Struct):
    item: str
    amount: int


def asked(problem):
    return "skip" if problem.offset < 0 else "stop"


app = lf.App("strict", {said})
app.stream("orders", Order).group_by(col.item).aggregate(orders=lf.count()).to("strict")
if __name__ == "__main__":
    app.run()
"""


@pytest.mark.parametrize("records_per_range", [None, 50])
@pytest.mark.parametrize("said", ['on_problem="stop"', 'on_decode="stop"', "on_problem=asked"])
def test_an_application_that_stops_at_a_broken_record_is_not_handed_over(
    log: Log, said: str, records_per_range: int | None, tmp_path: Path
) -> None:
    producer = log.producer()
    producer.send("orders", b"{broken", timestamp_ms=6_000_000)
    producer.flush()
    file = tmp_path / "strict.py"
    file.write_text(STRICT.format(said=said))
    before = own_topics(log)
    with pytest.raises(StreamsError, match=r"cannot process orders-\d offset \d+ \(decode\).*on_problem='skip'"):
        run_backfill(plan_backfill(AppFile(str(file)), log.where), LocalRunner(records_per_range))
    assert own_topics(log) == before
    assert not log.admin().group_offsets("strict")
    file.write_text(STRICT.format(said='on_problem="skip"'))
    assert run_backfill(plan_backfill(AppFile(str(file)), log.where), LocalRunner(records_per_range)).problems["decode"] >= 1


def test_a_file_is_run_once_for_all_that_a_plan_of_it_asks(log: Log, tmp_path: Path) -> None:
    runs, file = tmp_path / "runs", tmp_path / "strict.py"
    file.write_text(f"open({str(runs)!r}, 'a').write('run ')\n" + STRICT.format(said='on_problem="stop"'))
    load = AppFile(str(file))
    kept = str(tmp_path / "kept")
    for make in (lambda: plan_backfill(load, log.where), lambda: plan_together([load], log.where, keep=kept)[0]):
        planned = make()
        assert runs.read_text() == "run "
        assert planned.handlers.decode is OnProblem.STOP
        runs.unlink()


class Ticking(lf.Processor):
    """Wants to be called as time goes on."""

    def init(self, context: lf.Context) -> None:
        super().init(context)
        context.schedule(1_000, lambda now_ms: None, time=lf.Time.WALL_CLOCK)

    def process(self, record: lf.Record) -> None:
        self.context.forward(record)


def ticking() -> Plan:
    app = lf.App("ticking")
    app.stream("orders", str).process(Ticking).to("ticked")
    return app.plan()


def test_a_schedule_by_the_wall_clock(log: Log, tmp_path: Path) -> None:
    before, said = own_topics(log), r"a schedule by the wall clock has no meaning in a backfill or on Spark.*by stream time"
    with pytest.raises(InvalidInput, match=said):
        run_backfill(plan_backfill(ticking, log.where), LocalRunner())
    assert own_topics(log) == before
    with (
        open_batches(log, ticking, LocalRunner().run, tmp_path / "stores", settings=EngineOptions()) as batches,
        pytest.raises(InvalidInput, match=said),
    ):
        batches.step()
    assert not log.admin().group_offsets("ticking")


def test_retention_that_overtakes_the_job_while_it_reads(log: Log) -> None:
    end = log.admin().end_offsets(ORDERS, read_committed=True)[ORDERS[0]]
    reading = read_range(log, OffsetRange("orders", 0, 0, end))
    assert len(next(reading))
    log.admin().delete_records({ORDERS[0]: 5})
    with pytest.raises(RangeLost, match=r"orders-0 starts at offset 5, but the range begins at 0.*retention"):
        list(reading)


def test_a_callable_that_does_not_pickle() -> None:
    lock = threading.Lock()

    def load() -> Plan:
        with lock:
            return make_plan("batch", "direct")

    pytest.importorskip("pyspark")
    with pytest.raises(InvalidInput, match=r"cannot be sent to executors, it does not pickle: .*lock"):
        pickled(load)


def needs_what_is_not_there() -> None:
    import module_that_is_nowhere  # type: ignore[import-not-found]  # noqa: F401


def needs_what_cannot_be_loaded() -> None:
    raise ImportError("IMPORTANT\n\na page of advice") from ImportError("x.so: failed to map segment from shared object")


def test_what_an_executor_lacks_is_said_in_words(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    work = pickled(needs_what_is_not_there)  # type: ignore[arg-type]
    (said,) = Probe(work, "", None, None)(0)
    assert "has no module module_that_is_nowhere (Python 3." in said
    assert "install it there, or send it (--conf spark.submit.pyFiles=FILES)" in said
    (said,) = Probe(pickled(needs_what_cannot_be_loaded), "", None, None)(0)  # type: ignore[arg-type]
    assert "cannot import what is needed (x.so: failed to map segment from shared object): are versions as here" in said
    (said,) = Probe(pickled(partial(make_plan, "x", "direct")), "127.0.0.1:1", None, None)(0)
    assert "does not reach the log at 127.0.0.1:1" in said
    (said,) = Probe(pickled(partial(make_plan, "x", "direct")), "profile:not-here", None, None)(0)
    assert "unknown profile 'not-here'; an executor finds profiles in its own user's .config/logflume/config.toml, or in" in said
    said = next(iter(Probe(b"", "", str(tmp_path / "shared" / "marker"), None)(0)))
    assert (
        f"does not see {tmp_path}/shared: what is kept between batches or runs needs a directory that all executors share" in said
    )


def test_the_cause_of_an_executor_is_the_line_that_says_it() -> None:
    of_python = (
        "Job aborted\nTraceback (most recent call last):\n  File x\nPySparkRuntimeError: [PYTHON_VERSION_MISMATCH] 3.11, 3.12\n"
    )
    assert cause_of(Exception(of_python)) == "PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] 3.11, 3.12"
    assert cause_of(Exception("An error\n: java.io.IOException: No space left on device\n\tat x")) == (
        "java.io.IOException: No space left on device"
    )
    assert len(cause_of(Exception("x" * 10_000))) == 500
    of_a_writer = (
        "An error\n: a.SparkException: [TASK_WRITE_FAILED] not written.\n\tat x\nCaused by: java.io.IOException: No space\n\tat y"
    )
    assert cause_of(Exception(of_a_writer)) == "a.SparkException: [TASK_WRITE_FAILED] not written: java.io.IOException: No space"


@pytest.mark.parametrize(
    ("said", "setting"),
    [
        ("An error\n: a.SparkException: Lost task 1.6: java.lang.OutOfMemoryError: Java heap space\n\tat x", "executor.memory"),
        (
            "An error\n: a.SparkException: not written.\nCaused by: java.lang.OutOfMemoryError: Cannot reserve\n\tat y",
            "executor.memory",
        ),
        ("An error\n: a.SparkException: ExecutorLostFailure Reason: Command exited with code 52\n\tat x", "executor.memory"),
        ("Job aborted\nTraceback (most recent call last):\n  File x\nMemoryError\n", "executor.pyspark.memory"),
    ],
)
def test_who_has_too_little_memory_is_told_what_to_set(said: str, setting: str) -> None:
    assert f"--conf spark.{setting}=" in cause_of(Exception(said))
    assert "memory" not in cause_of(Exception("An error\n: java.io.IOException: No space left\n\tat x"))


def test_of_a_worker_that_crashed_it_is_told_what_may_be() -> None:
    said = cause_of(Exception("An error\n: a.SparkException: Python worker exited unexpectedly (crashed).\n\tat x"))
    assert "it crashed, or had too little memory: where spark.executor.pyspark.memory is set" in said


WITHOUT_ROOM = f"""
import resource, sys
from logflume.log import LogflumeError
from logflume.streams.spark import AppFile, LocalRunner, plan_backfill, run_backfill
from tests.streams._spark_apps import loader
resource.setrlimit(resource.RLIMIT_FSIZE, ({256 << 10}, resource.RLIM_INFINITY))
try:
    run_backfill(plan_backfill(loader("batch", "direct"), sys.argv[1]), LocalRunner())
except LogflumeError as error:
    print(type(error).__name__, error)
"""
"""The limit is on what one file may hold: the state's write-ahead log, for one."""


def test_a_disk_without_room_for_the_state_of_a_task(tmp_path: Path) -> None:
    server = ServerProcess(str(tmp_path / "log"))
    try:
        with connect(server.address) as log:
            create_inputs(log)
            producer = log.producer()
            for number in range(2000):
                shop = f"{number:04}" + "x" * 1000
                value = json.dumps({"shop": shop, "item": "i", "amount": 50}).encode()
                producer.send("orders", value, key=shop.encode(), timestamp_ms=number)
            producer.close()
            before = own_topics(log)
            command = [sys.executable, "-c", WITHOUT_ROOM, server.address]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
            assert "cannot write state to" in done.stdout, done.stderr
            assert "free space" in done.stdout
            assert own_topics(log) == before
            assert not log.admin().group_offsets("batch")
    finally:
        server.stop()


def test_topics_that_are_not_there_are_named_before_spark_starts(tmp_path: Path) -> None:
    server = ServerProcess(str(tmp_path / "log"))
    try:
        on_spark = ("run", str(DELAYS), "--engine", "spark", "--bootstrap", server.address)
        refused = run(*on_spark, "--master", "spark://127.0.0.1:1", "--state-dir", str(tmp_path), code=1)
        assert "unknown topic 'airlines'" in refused.stderr
        assert "park" not in refused.stderr, "who waits for Spark first waits in vain"
        with connect(server.address) as log:
            assert not log.admin().list_topics(), "nor is anything made"
    finally:
        server.stop()
