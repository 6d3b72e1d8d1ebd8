"""An application or a query that runs on Spark for good, at the command line: its session, its micro-batches, its end."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from logflume.log import ProgressLine

if TYPE_CHECKING:
    from logflume.streams.runtime import EngineOptions
    from logflume.streams.seams import Plan
    from logflume.streams.spark import BatchDone, SparkSettings


def run_on_spark(
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
    """Run until Ctrl-C or SIGTERM, which let the micro-batch under way end; a second one kills, and nothing is lost by that.

    Each micro-batch is a line; with `as_json` each is an object.
    """
    from logflume.streams.spark import open_session, run_continuously

    name, stopping = load_plan().application, threading.Event()
    spark = open_session(name, spark_settings)

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):  # after Spark has set its own
        signal.signal(number, stop)
    if not as_json:
        print(f"{name}: on Spark ({spark.sparkContext.master}); Ctrl-C stops", file=sys.stderr, flush=True)
        if spark.sparkContext.uiWebUrl:
            print(f"Spark's page: {spark.sparkContext.uiWebUrl}", file=sys.stderr, flush=True)
    try:
        with ProgressLine(sys.stderr) as line:

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
    finally:
        spark.stop()


def describe_batch(done: BatchDone) -> str:
    """Return a micro-batch as one line."""
    rate = done.records / done.seconds if done.seconds else 0.0
    left_out = ", ".join(f"{count:,} {reason}" for reason, count in sorted(done.problems.items()))
    behind = "unknown" if done.behind is None else f"{done.behind:,}"
    return (
        f"{done.number}: {done.records:,} records in {done.seconds:.1f} s ({rate:,.0f}/s), {done.results:,} results, "
        f"{done.entries:,} entries, {behind} behind" + (f"; left out: {left_out}" if left_out else "")
    )
