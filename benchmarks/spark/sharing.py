"""Several queries over one topic in one pass, against a pass for each, in the same session."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks._report import Figure
from benchmarks.streams import option
from logflume.streams.runtime.topics import prepare_topics
from logflume.streams.spark import SparkRunner, plan_together
from logflume.streams.spark.steps import StepPlan

from .apps import load_filtered
from .session import Clock, broker, fill, session

if TYPE_CHECKING:
    from collections.abc import Iterable

QUERIES = 4
ROUNDS = 3


def measure_sharing() -> Iterable[Figure]:
    """`--queries` sums of the same topic, computed together and one after another; the hand-over apart."""
    records, queries = option("records", 1_000_000), option("queries", QUERIES)
    with broker() as (log, where), session() as spark:
        fill(log, records, option("partitions", 2))
        plans = plan_together([partial(load_filtered, number) for number in range(queries)], where)
        jobs = []
        for backfill in plans:
            plan = backfill.load_plan()
            partitions = prepare_topics(plan, log.admin()).partitions
            jobs.append((StepPlan(backfill.load_plan, where, backfill.ranges, partitions, {}), plan))
        together, apart = (min(_seconds(spark, each) for _ in range(ROUNDS)) for each in ([jobs], [[job] for job in jobs]))
        yield Figure(f"{queries} queries in one pass, CPU", queries * records / together[1], "records/s")
        yield Figure(f"  CPU of {queries} passes over that of one", apart[1] / together[1], "x")
        yield Figure("  wall, the same", apart[0] / together[0], "x")


def _seconds(spark: Any, passes: list[list[tuple[StepPlan, Any]]]) -> tuple[float, float]:
    """Return (wall, CPU) seconds."""
    clock = Clock(spark)
    for jobs in passes:
        for result in SparkRunner(spark).run_together(jobs, lambda _: None):
            result.release()
    return clock.stop()
