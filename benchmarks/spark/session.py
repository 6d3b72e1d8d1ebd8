"""A session of Spark to measure in, a log beside it, and clocks of CPU."""

from __future__ import annotations

import contextlib
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from benchmarks.broker import running_broker
from logflume.log import connect
from logflume.log.interfaces import Log
from logflume.log.records import Chunk
from logflume.streams.spark import LogflumeDataSource, SparkSettings, check_spark, open_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

USERS = 10_000
BLOCK = 50_000
Measured = tuple[tuple[float, float], float]
"""(Wall, CPU) seconds, and the sum of all results."""


def text_option(name: str) -> str | None:
    """Return what is given as --name=TEXT on the command line."""
    found = [word.partition("=")[2] for word in sys.argv[1:] if word.startswith(f"--{name}=")]
    return found[-1] if found else None


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
    """Seconds since it was made: on the wall, and of CPU of Spark's JVM and all its Python workers.

    `has_driver` false: without the driver's JVM, which local masters compute in.
    """

    def __init__(self, spark: Any, *, has_driver: bool = True) -> None:
        self._has_driver = has_driver
        self._jvm = psutil.Process(spark.sparkContext._gateway.proc.pid)
        self._wall_s, self._cpu_s = time.perf_counter(), self._used_s()

    def _used_s(self) -> float:
        used = 0.0
        for process in (*([self._jvm] if self._has_driver else []), *self._jvm.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                used += sum_of(process.cpu_times()[:4])  # those of children that have ended too
        return used

    def stop(self) -> tuple[float, float]:
        """Return (wall, CPU) seconds."""
        return time.perf_counter() - self._wall_s, self._used_s() - self._cpu_s


def sum_of(values: Iterable[float]) -> float:
    """Return the sum."""
    total = 0.0
    for value in values:
        total += value
    return total


@contextlib.contextmanager
def session(master: str = "local[2]", conf: Mapping[str, str] | None = None) -> Iterator[Any]:
    """Give a session whose workers find this package."""
    check_spark()
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    spark = open_session("benchmark", SparkSettings(master, {"spark.driver.memory": "2g"} | dict(conf or {})))
    try:
        spark.dataSource.register(LogflumeDataSource)
        yield spark
    finally:
        spark.stop()


@contextlib.contextmanager
def broker() -> Iterator[tuple[Log, str]]:
    """Give a fresh log, and where it is."""
    with tempfile.TemporaryDirectory() as folder, running_broker(folder) as (host, port, _, _):
        where = f"{host}:{port}"
        with connect(where) as log:
            yield log, where


def again(measure: Callable[[], Measured]) -> Measured:
    """Measure twice; return the second."""
    measure()
    return measure()
