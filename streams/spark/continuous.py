"""An application on Spark for good: Structured Streaming's micro-batches are steps (architecture, D11).

Structured Streaming says when there is something new, and stops, restarts and shows the query; what a micro-batch reads follows
from the offsets that the application's group has committed (`batches.py`), so that Spark's own notes of its place are not needed
to go on: they live as long as the query. State is in `state_root`, which all executors share, and in the changelogs.
"""

from __future__ import annotations

import logging
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from logflume.log import LogflumeError, TransportError, connect
from logflume.streams.runtime import EngineOptions, StreamsError
from logflume.streams.runtime.failures import is_fatal
from logflume.streams.seams import Plan

from .batches import BatchDone, Batches, Compute, open_batches
from .executors import equip
from .failures import cause_of, failures_of, is_running, unless_gone
from .membership import RunsElsewhere
from .ranges import reachable
from .runner import SparkRunner
from .session import refuse_speculation
from .source import LogflumeDataSource
from .steps import Progress, StepPlan, StepResult

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LOOK_EVERY_S = 0.2
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.5, 10.0
_log = logging.getLogger("logflume.streams")


def run_continuously(
    load_plan: Callable[[], Plan],
    where: str,
    spark: SparkSession,
    *,
    state_root: Path,
    settings: EngineOptions | None = None,
    every_s: float = 1.0,
    until_end: bool = False,
    stopping: threading.Event | None = None,
    on_batch: Callable[[BatchDone], None] = lambda _: None,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> None:
    """Run an application on Spark until it is told to stop, or another instance of it starts. Blocks.

    What fails on the way (a broker that is away, executors that die) is tried again from what was committed.

    Args:
        state_root: a directory that all executors share.
        every_s: how often it is looked whether there is something new.
        until_end: return once what is in the log when this begins is done.
        stopping: set by whoever wants it to stop; the micro-batch under way is finished first.

    Raises:
        InvalidInput: instances of the application run; or it, or Spark's settings, ask for what a cluster cannot do.
        RunsElsewhere: another instance has started since, and goes on where this one has come to.
        StreamsError: a function of the application, or Spark, has failed.
    """
    stopping, settings = stopping or threading.Event(), settings or EngineOptions()
    refuse_speculation(spark)
    spark.dataSource.register(LogflumeDataSource)
    with connect(where) as log:
        equip(spark, StepPlan(load_plan, reachable(log), {}, {}, {}, str(state_root)))
        compute = _computed_on(spark, reachable(log))

        def take(batches: Batches) -> None:
            _take(batches, on_batch)
            if not until_end:
                _follow(spark, batches, reachable(log), every_s, stopping, on_batch)

        opened = partial(open_batches, log, load_plan, compute, state_root, settings=settings, on_progress=on_progress)
        with unless_stopped(spark, stopping):
            keep_on(opened, take, stopping)


@contextmanager
def unless_stopped(spark: SparkSession, stopping: threading.Event) -> Iterator[None]:
    """Take it for an end that Spark has ended too, once both are told to stop: a signal to all processes does that."""
    try:
        yield
    except StreamsError as error:
        if not stopping.is_set() or is_running(spark):
            raise
        _log.warning("%s; it was told to stop too, and the next start goes on from what was committed", error)


def keep_on(
    opened: Callable[[], AbstractContextManager[Batches]], take: Callable[[Batches], None], stopping: threading.Event
) -> None:
    """Open the micro-batches and take them, anew after what may be gone by the next time."""
    pause_s = _PAUSE_MIN_S
    while not stopping.is_set():
        batches: Batches | None = None
        try:
            with opened() as batches:
                return take(batches)
        except LogflumeError as error:
            if is_fatal(error) or isinstance(error, RunsElsewhere):
                raise
            pause_s = _PAUSE_MIN_S if batches is not None and batches.done else min(2 * pause_s, _PAUSE_MAX_S)
            _log.warning("%s; going on from what was committed in %.1f s", error, pause_s)
            stopping.wait(pause_s)


def _computed_on(spark: SparkSession, where: str) -> Compute:
    """Return what computes steps on executors that are equipped: each task as a whole, which goes on with its stores."""
    runner = SparkRunner(spark, records_per_range=None, slices=1)

    def compute(step: StepPlan, plan: Plan, on_progress: Callable[[Progress], None]) -> StepResult:
        return runner.compute(replace(step, where=where), plan, on_progress)

    return compute


def _take(batches: Batches, on_batch: Callable[[BatchDone], None]) -> None:
    done = batches.step()
    if done is not None:
        on_batch(done)


def _follow(
    spark: SparkSession,
    batches: Batches,
    where: str,
    every_s: float,
    stopping: threading.Event,
    on_batch: Callable[[BatchDone], None],
) -> None:
    """Run micro-batches as Structured Streaming finds something new; raises what ended them."""
    trigger = _Trigger(batches, on_batch)
    stream = spark.readStream.format("logflume").schema("offset BIGINT").option("log", where)
    with tempfile.TemporaryDirectory(prefix="logflume-query-", ignore_cleanup_errors=True) as place:
        writer = stream.option("topic", ",".join(batches.sources)).load().writeStream.foreachBatch(trigger)
        writer = writer.option("checkpointLocation", Path(place).as_uri()).trigger(
            processingTime=f"{int(every_s * 1000)} milliseconds"
        )
        query = writer.queryName(batches.plan.application).start()
        try:
            with failures_of(spark, f"followed {batches.plan.application!r}"):
                while not stopping.wait(_LOOK_EVERY_S) and query.isActive:
                    batches.member.check()
        finally:
            batches.finish()
            with unless_gone():
                query.stop()
    if trigger.error is not None:
        raise trigger.error
    if stopping.is_set():
        return
    failed = query.exception()
    if failed is not None:
        kind = TransportError if is_running(spark) else StreamsError  # nothing of the application runs in it: the log was away
        raise kind(f"Structured Streaming has ended the query: {cause_of(failed)}")


@dataclass(slots=True)
class _Trigger:
    """What Structured Streaming calls; the frame that it gives is not read, so that nobody reads the records twice."""

    batches: Batches
    on_batch: Callable[[BatchDone], None]
    error: BaseException | None = None

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        try:
            _take(self.batches, self.on_batch)
        except BaseException as error:
            self.error = error
            raise
