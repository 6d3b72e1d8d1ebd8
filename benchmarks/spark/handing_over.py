"""The state of many keys, handed over: how fast executors write it, and how much memory that takes."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from benchmarks._report import Figure
from benchmarks.broker import running_broker
from benchmarks.streams import option
from logflume.log import connect
from logflume.log.interfaces import Log
from logflume.log.records import Chunk
from logflume.streams.spark import SparkRunner, plan_backfill, run_backfill

from .apps import load_counts
from .session import BLOCK, Clock, session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

EXECUTORS = 2
PARTITIONS = 4
GB = 1e9


def measure_state() -> Iterable[Figure]:
    """The state of `--keys` keys, on two executors of a core each."""
    import pyspark

    keys = option("keys", 1_000_000)
    with (
        tempfile.TemporaryDirectory() as folder,
        running_broker(f"{folder}/log") as (host, port, process, _),
        connect(where := f"{host}:{port}") as log,
    ):
        os.environ |= {"SPARK_HOME": str(Path(str(pyspark.__file__)).parent), "SPARK_WORKER_DIR": folder}
        conf = {"spark.executor.memory": "512m", "spark.driver.memory": "512m", "spark.local.dir": folder}
        fill_keys(log, keys)
        with session(f"local-cluster[{EXECUTORS},1,512]", conf) as spark:
            ordinary, at_once = SparkRunner(spark, at_once_records=0), SparkRunner(spark)
            for runner in (ordinary, at_once):
                run_backfill(plan_backfill(partial(load_counts, f"warm-{runner.at_once_records}"), where), runner)
            marks = Marks(spark, process)
            with Memory(spark) as memory:
                report = run_backfill(plan_backfill(partial(load_counts, "counts"), where), ordinary, failpoint=marks)
            assert report.entries == keys, report
            wall_s, used_s, executors_s, broker_s = (
                after - before for before, after in zip(marks.at["after-job"], marks.at["after-changelogs"], strict=True)
            )
            label = f"state of {keys:,} keys, entries written, two cores by the CPU of Spark"
            yield Figure(label, EXECUTORS * keys / used_s, "entries/s", 5e5)
            yield Figure("  a core, by the CPU of executors alone", keys / executors_s, "entries/s", 2.5e5)
            yield Figure("  a core, by the CPU of the broker, which none of these has", keys / broker_s, "entries/s")
            yield Figure("  wall", keys / wall_s, "entries/s")
            yield Figure("  computed before, CPU", keys / marks.at["after-job"][1], "records/s")
            yield from memory.figures()
            clock = Clock(spark)
            with Memory(spark) as memory:
                report = run_backfill(plan_backfill(partial(load_counts, "counts-at-once"), where), at_once)
            assert report.entries == keys, report
            yield Figure("  computed and written at once, two cores by CPU", EXECUTORS * keys / clock.stop()[1], "entries/s")
            yield from memory.figures()


def fill_keys(log: Log, keys: int) -> None:
    """Write a record for each key."""
    log.admin().create_topic("keys", partitions=PARTITIONS)
    producer = log.producer()
    for start in range(0, keys, BLOCK):
        ids = range(start, min(start + BLOCK, keys))
        values = [b'{"id":%d,"user":"u","page":"p","ms":1,"price":0.5,"ok":true}' % i for i in ids]
        producer.send_chunk("keys", Chunk.from_columns("keys", [b"key-%09d" % i for i in ids], values, [*ids]))
    producer.flush()
    producer.close()


class Marks:
    """A failpoint that notes what is used so far by name, in the driver; what is sent to executors does nothing.

    That is seconds on the wall, of CPU of Spark as a whole, of its executors, of the broker.
    """

    def __init__(self, spark: Any, broker: psutil.Process) -> None:
        self._clock, self._executors = Clock(spark), Clock(spark, has_driver=False)
        self._broker = broker
        self.at: dict[str, tuple[float, float, float, float]] = {}

    def __call__(self, name: str) -> None:
        self.at[name] = (*self._clock.stop(), self._executors.stop()[1], float(sum(self._broker.cpu_times()[:2])))

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Callable[[str], None]]]:
        return partial, (_pass_by,)


def _pass_by(_: str) -> None:
    """Do nothing."""


class Memory:
    """While it is entered, the most memory (bytes, own to the processes) of the driver and of the largest executor."""

    def __init__(self, spark: Any) -> None:
        self._jvm = psutil.Process(spark.sparkContext._gateway.proc.pid)
        self._done = threading.Event()
        self._watcher = threading.Thread(target=self._watch)
        self.driver = self.executor = 0

    def figures(self) -> Iterable[Figure]:
        """Return what was found."""
        yield Figure("  memory of the driver, Python and JVM", self.driver / GB, "GB", 1.0, is_upper=True)
        yield Figure("  memory of an executor, JVM and its Python workers", self.executor / GB, "GB", 1.5, is_upper=True)

    def __enter__(self) -> Memory:
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._watcher.join()

    def _watch(self) -> None:
        while not self._done.wait(0.5):
            self.driver = max(self.driver, _own_bytes(psutil.Process()) + _own_bytes(self._jvm))
            for child in self._jvm.children():
                every = [child, *child.children(recursive=True)]
                self.executor = max(self.executor, sum(map(_own_bytes, every)))


def _own_bytes(process: psutil.Process) -> int:
    """Return what would be free without the process; 0 if it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return int(process.memory_full_info().uss)
    return 0
