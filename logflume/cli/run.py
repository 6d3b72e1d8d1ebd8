"""`logflume run app.py`: run a Python file that defines a topology and calls `app.run()`, in one process or in several."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logflume.cli.common import Bootstrap, Data, Json, directory_of, lend_log, make_app
from logflume.cli.on_spark import Conf, Every, Master, PropertiesFile, UntilEnd, run_on_spark
from logflume.log import InvalidInput
from logflume.log.children import end_with_parent

if TYPE_CHECKING:
    from logflume.streams.spark import SparkSettings

app = make_app("")


class EngineName(StrEnum):
    """What runs an application."""

    LIVE = "live"
    SPARK = "spark"


@app.command()
def run(
    file: Annotated[Path, typer.Argument(help="A Python file that makes an lf.App and ends with app.run().")],
    workers: Annotated[
        int, typer.Option("--workers", metavar="N", help="Processes that share the work, one per core.", min=1, max=64)
    ] = 1,
    state_dir: Annotated[
        Path | None, typer.Option("--state-dir", metavar="DIR", help="Where the state of the topology is kept.")
    ] = None,
    engine: Annotated[
        EngineName, typer.Option(help="live, or spark: micro-batches on a cluster, from where the application has come to.")
    ] = EngineName.LIVE,
    master: Master = None,
    conf: Conf = None,
    properties_file: PropertiesFile = None,
    every: Every = None,
    until_end: UntilEnd = False,
    data: Data = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Run a topology; an lf.App without a log of its own uses the one named here. Ctrl-C stops it cleanly.

    Example: logflume run examples/delays.py --workers 2 --bootstrap 127.0.0.1:9092
    """
    end_with_parent(signal.SIGTERM)
    if not file.is_file():
        raise InvalidInput(f"no file {file}; expected a Python file such as examples/delays.py")
    lend_log(data, bootstrap)
    if state_dir is not None:
        os.environ["LOGFLUME_STATE_DIR"] = str(state_dir)
    if engine is EngineName.SPARK:
        if workers > 1:
            raise InvalidInput("--workers is for the live engine: how many cores Spark uses, its master and --conf say")
        from logflume.streams.spark import SparkSettings, parse_conf

        _run_on_spark(file, SparkSettings(master, parse_conf(conf or []), properties_file), every or 1.0, until_end, as_json)
        return
    if master or conf or properties_file or every is not None or until_end or as_json:
        raise InvalidInput("--master, --conf, --properties-file, --every, --until-end and --json of run are for --engine spark")
    if workers > 1:
        _supervise(file, workers)
        return
    _run_here(file)


def _run_here(file: Path) -> None:
    """Run the file as a script.

    Raises:
        InvalidInput: nothing in the file has run an application.
    """
    from logflume.streams import App
    from logflume.streams.dsl.mistakes import run_script

    made: list[str] = []
    original = App.run

    def counted(self: App, **options: Any) -> Any:
        made.append(self.name)
        return original(self, **options)

    App.run = counted  # type: ignore[method-assign]
    try:
        run_script(file)
    finally:
        App.run = original  # type: ignore[method-assign]
    if not made:
        raise InvalidInput(f"{file} has run no application: expected an lf.App and, at the end of the file, app.run()")


def _run_on_spark(file: Path, spark_settings: SparkSettings, every_s: float, until_end: bool, as_json: bool) -> None:
    """Run the application of a file on Spark; its state is beside that of the live engine, which it does not share."""
    from logflume.log import connect_as_owner
    from logflume.streams.spark import AppFile, app_of

    made = app_of(file)
    options = made.settings()
    folder = options.state_dir / f"{made.name}-on-spark"
    if not isinstance(made.log, str):
        raise InvalidInput(f"{file}: an application on Spark needs the address of its log, not a log that is open in the file")
    where = made.log
    with connect_as_owner(where):
        run_on_spark(
            made.name,
            AppFile(str(file.resolve())),
            where,
            spark_settings,
            state_root=folder,
            settings=options,
            every_s=every_s,
            until_end=until_end,
            as_json=as_json,
        )


def _supervise(file: Path, workers: int) -> None:
    """Keep `workers` processes running; each is an instance with its own part of the partitions and its own state.

    Raises:
        LogflumeError: the topology is not one, before anything is started.
    """
    from logflume.cli.supervisor import Child, Supervisor
    from logflume.log import connect
    from logflume.streams.spark import app_of

    made = app_of(file)
    made.plan()
    supervisor = Supervisor(lambda name, line: print(f"{name}: {line}" if name else line, file=sys.stderr, flush=True))
    for stop_signal in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop_signal, lambda *_: supervisor.stop())
    # A log in a directory has one process that writes to it: this one, so that a worker's end is not that of the others.
    directory = directory_of(made)
    holder: Any = connect(directory) if directory else nullcontext()
    with holder:
        for number in range(workers):
            supervisor.add(Child(f"worker-{number}", [sys.executable, "-m", "logflume", "run", str(file)]))
        print(f"{made.name}: {workers} workers; Ctrl-C stops", file=sys.stderr, flush=True)
        supervisor.run()
