"""`logflume sql on-spark`: runs the queries of the SQL catalog that are to run on Spark."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logflume.cli.common import Bootstrap, Data, Functions, Json, where
from logflume.cli.on_spark import Conf, Every, Master, PropertiesFile, UntilEnd, describe_batch, session_until_stopped

if TYPE_CHECKING:
    from logflume.streams.runtime import EngineStatus
    from logflume.streams.seams import Plan
    from logflume.streams.spark import BatchDone


def on_spark(
    master: Master = None,
    state_dir: Annotated[
        Path | None,
        typer.Option("--state-dir", metavar="DIR", help="Where the state is between micro-batches; all executors see it."),
    ] = None,
    conf: Conf = None,
    properties_file: PropertiesFile = None,
    every: Every = None,
    until_end: UntilEnd = False,
    functions_path: Functions = None,
    data: Data = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Run the queries that were made or resumed under SET 'engine' = 'spark', each in micro-batches, until stopped.

    PAUSE, SET 'engine', and RESUME move a query to Spark and back; TERMINATE ends it here too.

    Example: logflume sql on-spark --master spark://master:7077 --state-dir /shared/sql --bootstrap broker:9092
    """
    from logflume.sql.function_files import functions_at
    from logflume.sql.on_spark import drive_queries
    from logflume.streams.runtime import EngineOptions
    from logflume.streams.spark import SparkSettings, parse_conf, run_continuously

    settings = SparkSettings(master, parse_conf(conf or []), properties_file)
    functions = functions_at(functions_path)
    address, printing = where(data, bootstrap), threading.Lock()
    told: dict[str, str] = {}

    def tell(status: Mapping[str, EngineStatus]) -> None:
        for query_id, each in status.items():
            if each.error and told.get(query_id) != each.error:
                print(f"{query_id}: {each.error}", file=sys.stderr, flush=True)
            told[query_id] = each.error or ""

    with session_until_stopped("SQL", settings, as_json=as_json) as (spark, stopping):

        def run(
            load_plan: Callable[[], Plan],
            state_root: Path,
            stopping: threading.Event,
            on_batch: Callable[[BatchDone], None],
            dead_letter_topic: str | None,
        ) -> None:
            name = load_plan().application

            def show(done: BatchDone) -> None:
                on_batch(done)
                with printing:
                    said = json.dumps({"query": name, **asdict(done)}) if as_json else f"{name} {describe_batch(done)}"
                    print(said, flush=True)

            run_continuously(
                load_plan,
                address,
                spark,
                state_root=state_root.resolve(),
                settings=EngineOptions(dead_letter_topic=dead_letter_topic),
                every_s=every or 1.0,
                until_end=until_end,
                stopping=stopping,
                on_batch=show,
            )

        drive_queries(address, run, stopping, state_dir=state_dir, functions=functions, until_end=until_end, on_status=tell)
