"""A core of Spark beside one of the live engine, and two cores beside one."""

from __future__ import annotations

import heapq
import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks._report import Figure
from benchmarks.streams import PARTITIONS, WITH_KERNELS, fill, fill_pairs, fill_users, option
from logflume.log.interfaces import Log
from logflume.streams.runtime.topics import prepare_topics
from logflume.streams.spark import OffsetRange, SparkRunner, plan_backfill, run_backfill
from logflume.streams.spark.costs import cost_of
from logflume.streams.spark.rows import RowKind
from logflume.streams.spark.steps import StepPlan

from .apps import OPERATORS, load_operator, load_topology
from .session import Clock, broker, session

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

TOPOLOGIES = {"T1": "stateless", "T2": "count", "T3": "windows", "T4": "join", "T5": "pairs"}
TURNS = 3
CORES = 2
USERS = {"join": 100_000}
USERS_ELSE = 10_000


def fill_all(log: Log, records: int, users: int, partitions: int) -> None:
    """Write what the topologies and operators read; nothing of it goes by age."""
    for topic in ("events", "users", "shown", "seen"):
        log.admin().create_topic(topic, partitions=partitions, configs={"retention.ms": "-1"})
    fill(log, "events", records, users)
    fill_users(log, users)
    fill_pairs(log, records)


def measure_topologies() -> Iterable[Figure]:
    """T1 to T5, live and as a backfill with its hand-over.

    Both once started: what a history of all records takes more than one of a quarter of them, the least of TURNS.
    """
    records = option("records", 2_000_000)
    with session() as spark:
        for label, kind in TOPOLOGIES.items():
            with broker() as (log, where), tempfile.TemporaryDirectory() as folder:
                fill_all(log, records, USERS.get(kind, USERS_ELSE), PARTITIONS)
                command = [sys.executable, "-m", "benchmarks.streams", "--child", kind, WITH_KERNELS, where, folder]
                said = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
                backfilled(spark, where, kind, "warm", 4)
                quarter = min(backfilled(spark, where, kind, f"quarter-{turn}", 4) for turn in range(TURNS))
                whole = min(backfilled(spark, where, kind, f"whole-{turn}", 1) for turn in range(TURNS))
                live_s = said["cpu_s"] / said["records"]
                spark_s = (whole - quarter) / (records * 3 / 4)
                yield Figure(f"{label}, live, CPU a record", live_s * 1e6, "us")
                yield Figure("  a backfill once started, CPU a record", spark_s * 1e6, "us")
                yield Figure("  a Spark core over a live core", live_s / spark_s, "x", 0.7)
                yield Figure("  CPU of what a backfill costs whatever its size", quarter - spark_s * records / 4, "s")


def backfilled(spark: Any, where: str, kind: str, name: str, parts: int) -> float:
    """Backfill the first of so many parts of the history, its tables apart; return CPU seconds."""
    plan = plan_backfill(partial(load_topology, kind, f"{kind}-{name}"), where)
    ranges = {
        tp: whole if tp.topic == "users" else OffsetRange(*tp, whole.start, whole.start + len(whole) // parts)
        for tp, whole in plan.ranges.items()
    }
    clock = Clock(spark)
    run_backfill(replace(plan, ranges=ranges), SparkRunner(spark))
    return clock.stop()[1]


def measure_two_cores() -> Iterable[Figure]:
    """How much faster two cores are than one, for each operator, by CPU of the tasks: all of it over that of the busier core.

    With 8 partitions each core takes a task whenever it is free; with 1 partition each takes half of its keys.
    """
    records = option("records", 1_000_000)
    with session() as spark:
        for partitions in (8, 1):
            with broker() as (log, where):
                fill_all(log, records, USERS_ELSE, partitions)
                for kind in OPERATORS:
                    tasks_of(spark, log, where, kind, 1)
                    whole = tasks_of(spark, log, where, kind, 1)
                    split = whole if partitions >= CORES else tasks_of(spark, log, where, kind, CORES)
                    name = f"{kind}, {partitions} partition{'s' if partitions > 1 else ''}: two cores over one"
                    alone = sum(map(sum, whole))
                    yield Figure(name, alone / sum(makespan(stage, CORES) for stage in split), "x", 1.8)
                    yield Figure("  CPU of tasks, a record", alone / records * 1e6, "us")


def tasks_of(spark: Any, log: Log, where: str, kind: str, slices: int) -> list[list[float]]:
    """Compute an operator over the history; return the CPU seconds of each task of each stage, in their order."""
    backfill = plan_backfill(partial(load_operator, kind), where)
    plan = backfill.load_plan()
    partitions = prepare_topics(plan, log.admin()).partitions
    step = StepPlan(backfill.load_plan, where, backfill.ranges, partitions, {})
    result = SparkRunner(spark, slices=slices).run(step, plan, lambda _: None)
    found = []
    for frame in result.frames:
        rows = frame.filter(f"kind = {int(RowKind.COST)}").select("value").collect()
        found.append([cost_of([bytes(row.value)]).cpu_seconds for row in rows])
    result.release()
    return found


def makespan(tasks: Sequence[float], cores: int) -> float:
    """Return when the last task ends, if each core takes the next one when it is free.

    >>> makespan([1.0, 1.0, 1.0], 2)
    2.0
    """
    free = [0.0] * cores
    for seconds in tasks:
        heapq.heapreplace(free, free[0] + seconds)
    return max(free)
