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
from logflume.streams.spark import BackfillPlan, OffsetRange, SparkRunner, plan_backfill, run_backfill
from logflume.streams.spark.costs import cost_of
from logflume.streams.spark.rows import RowKind
from logflume.streams.spark.steps import StepPlan

from .apps import OPERATORS, load_operator, load_topology
from .session import Clock, broker, session, text_option

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
    plan = first_part(plan_backfill(partial(load_topology, kind, f"{kind}-{name}"), where), parts)
    clock = Clock(spark)
    run_backfill(plan, SparkRunner(spark))
    return clock.stop()[1]


def first_part(plan: BackfillPlan, parts: int) -> BackfillPlan:
    """Return the plan over the first of so many parts of the history, its tables apart."""
    ranges = {
        tp: whole if tp.topic == "users" else OffsetRange(*tp, whole.start, whole.start + len(whole) // parts)
        for tp, whole in plan.ranges.items()
    }
    return replace(plan, ranges=ranges)


def measure_two_cores() -> Iterable[Figure]:
    """How much faster two cores are than one, for each operator, by CPU of the tasks: one core's over that of the busier of two.

    With 8 partitions each core takes a task whenever it is free. 1 partition is cut: by keys, or by ranges, as one of 5 M offsets
    and more is. Once started, as in `measure_topologies`: what all records take more than half of them; then all in all.
    `--only=count` limits it to operators with that in their names, `--partitions=1` to these.
    """
    records, only = option("records", 4_000_000), text_option("only") or ""
    with session() as spark:
        for partitions in (8, 1) if text_option("partitions") is None else (option("partitions", 1),):
            with broker() as (log, where):
                fill_all(log, records, USERS_ELSE, partitions)
                for kind in (each for each in OPERATORS if only in each):
                    name = f"{kind}, {partitions} partition{'s' if partitions > 1 else ''}: two cores over one"
                    one, two = (started(spark, log, where, kind, cores) for cores in (1, CORES))
                    once_started = [(whole - half) / (records / 2) for whole, half in (one, two)]
                    yield Figure(name, once_started[0] / once_started[1], "x", 1.8)
                    yield Figure("  CPU a record, one core", once_started[0] * 1e6, "us")
                    yield Figure("  CPU whatever the size, one core", 2 * one[1] - one[0], "s")
                    yield Figure("  the same, the busier one of two", 2 * two[1] - two[0], "s")
                    yield Figure(f"  two cores over one, all in all, {records:,} records", one[0] / two[0], "x")


def started(spark: Any, log: Log, where: str, kind: str, cores: int) -> tuple[float, float]:
    """Return the CPU seconds of the busiest core over the whole history and over half of it, the least of TURNS, once warm."""
    busy_s = [
        [sum(makespan(stage, cores) for stage in tasks_of(spark, log, where, kind, cores, parts)) for parts in (1, 2)]
        for _ in range(1 + TURNS)
    ]
    whole, half = map(min, zip(*busy_s[1:], strict=True))
    return whole, half


def tasks_of(spark: Any, log: Log, where: str, kind: str, cores: int, parts: int) -> list[list[float]]:
    """Compute an operator over the first part of the history; return the CPU seconds of the tasks of each stage, in order."""
    backfill = first_part(plan_backfill(partial(load_operator, kind), where), parts)
    plan = backfill.load_plan()
    partitions = prepare_topics(plan, log.admin()).partitions
    step = StepPlan(backfill.load_plan, where, backfill.ranges, partitions, {})
    result = SparkRunner(spark, cores=cores, ranges_from_records=0).run(step, plan, lambda _: None)
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
