"""What runs on Spark for good at the command line, an application or SQL's queries: session, micro-batches, end."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from logflume.cli.common import seconds
from logflume.cli.stopping import Stopping
from logflume.log import ProgressLine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from logflume.streams.runtime import EngineOptions
    from logflume.streams.seams import Plan
    from logflume.streams.spark import BatchDone, SparkSettings

Master = Annotated[
    str | None, typer.Option(help="Spark's master URL; without it what spark-submit or the configuration says, else local[*].")
]
Conf = Annotated[list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark; repeat it.")]
PropertiesFile = Annotated[
    Path | None, typer.Option("--properties-file", metavar="FILE", help="Spark's settings, in place of spark-defaults.conf.")
]
Every = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="On Spark: how often there is a micro-batch (1).", min=0.1, max=3600, callback=seconds),
]
STOPPING = "stopping: the micro-batch under way ends first; once more does not wait for it, and loses nothing"
UntilEnd = Annotated[bool, typer.Option("--until-end", help="On Spark: stop at the end of what is there now.")]


@contextmanager
def session_until_stopped(name: str, settings: SparkSettings, *, as_json: bool) -> Iterator[tuple[SparkSession, threading.Event]]:
    """Give a session, and what Ctrl-C and SIGTERM set, so that the micro-batch under way ends; a second one kills."""
    from logflume.streams.spark import close_session, open_session

    stopping = Stopping()
    spark = open_session(name, settings)

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.set()
        signal.signal(number, signal.SIG_DFL)
        print(json.dumps({"message": STOPPING}) if as_json else f"\n{STOPPING}", file=sys.stderr, flush=True)

    for number in (signal.SIGINT, signal.SIGTERM):  # after Spark has set its own
        signal.signal(number, stop)
    if not as_json:
        print(f"{name}: on Spark ({spark.sparkContext.master}); Ctrl-C stops", file=sys.stderr, flush=True)
    tell_page(spark, as_json=as_json)
    try:
        yield spark, stopping
    finally:
        close_session(spark)


def tell_page(spark: SparkSession, *, as_json: bool) -> None:
    """Say where Spark's page is, if it has one."""
    page = spark.sparkContext.uiWebUrl
    if page:
        print(json.dumps({"spark_page": page}) if as_json else f"Spark's page: {page}", file=sys.stderr, flush=True)


def run_on_spark(
    application: str,
    load_plan: Callable[[], Plan],
    address: str,
    spark_settings: SparkSettings,
    *,
    state_root: Path,
    settings: EngineOptions | None = None,
    every_s: float = 1.0,
    until_end: bool = False,
    as_json: bool = False,
) -> None:
    """Run an application until Ctrl-C or SIGTERM; nothing is lost by a kill.

    Each micro-batch is a line; with `as_json` each is an object.
    """
    from logflume.log import connect
    from logflume.streams.runtime import EngineOptions
    from logflume.streams.spark import checked_plan, run_continuously

    with connect(address) as log:
        checked_plan(log, load_plan, settings or EngineOptions())  # before Spark takes its seconds to start
    with (
        session_until_stopped(application, spark_settings, as_json=as_json) as (spark, stopping),
        ProgressLine(sys.stderr, as_json=as_json) as line,
    ):

        def show(done: BatchDone) -> None:
            line.end()
            print(json.dumps(asdict(done)) if as_json else describe_batch(done), flush=True)

        run_continuously(
            load_plan,
            address,
            spark,
            state_root=state_root.resolve(),
            settings=settings,
            every_s=every_s,
            until_end=until_end,
            stopping=stopping,
            on_batch=show,
            on_progress=lambda at: line.show(at.step, at.done, at.total),
        )


def describe_batch(done: BatchDone) -> str:
    """Return a micro-batch as one line."""
    rate = done.records / done.seconds if done.seconds else 0.0
    left_out = ", ".join(f"{count:,} {reason}" for reason, count in sorted(done.problems.items()))
    behind = "unknown" if done.behind is None else f"{done.behind:,}"
    return (
        f"{done.number}: {done.records:,} records in {done.seconds:.1f} s ({rate:,.0f}/s), {done.results:,} results, "
        f"{done.entries:,} entries, {behind} behind" + (f"; left out: {left_out}" if left_out else "")
    )
