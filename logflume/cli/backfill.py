"""`logflume backfill`: compute the history of a query or an application on Spark and hand it to the live one."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logflume.cli.backfill_estimate import fields_of, print_estimate
from logflume.cli.common import Bootstrap, Data, Functions, Json, make_app, print_rows, where
from logflume.cli.on_spark import Conf, Master, PropertiesFile, tell_page
from logflume.cli.stopping import Interrupts
from logflume.log import InvalidInput, ProgressLine

if TYPE_CHECKING:
    from logflume.streams.runtime import EngineOptions
    from logflume.streams.seams import Plan
    from logflume.streams.spark import BackfillPlan, BackfillReport, SparkSettings
    from logflume.streams.spark.steps import StageDone, StepRunner

app = make_app("")
INTERRUPTED = "interrupted: taking back what was made; once more leaves that to --abort"
CORES_ASSUMED = 8
"""For an estimate, where the settings do not say how many the cluster gives."""


class Where(StrEnum):
    """Where the history is computed."""

    SPARK = "spark"
    LOCAL = "local"


@app.command()
def backfill(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE]...", help="Python files that make an lf.App and end with app.run(); read together."),
    ] = None,
    execute: Annotated[
        list[str] | None,
        typer.Option("--execute", "-e", metavar="SQL", help="A CREATE ... AS SELECT; several are read together."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan, the cut and what each stage will cost; change nothing.")
    ] = False,
    engine: Annotated[Where, typer.Option(help="spark, or local for a history one core can take.")] = Where.SPARK,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Where finished stages are kept, so that a later run goes on after the driver has died; all executors see it.",
        ),
    ] = None,
    replaces: Annotated[
        str | None,
        typer.Option(
            "--replace",
            metavar="APPLICATION",
            help="Take the place of this application, in its result topics too; it runs until you are told to stop it.",
        ),
    ] = None,
    abort: Annotated[bool, typer.Option("--abort", help="Take back what backfills that were killed have left.")] = False,
    history: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="An archive (logflume archive) for what the log does not have any more; s3://... too."),
    ] = None,
    master: Master = None,
    conf: Conf = None,
    properties_file: PropertiesFile = None,
    functions: Functions = None,
    data: Data = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Freeze a cut, compute [start, cut) as a batch job, install the result in one step; the live query goes on there.

    Example: logflume backfill -e "CREATE TABLE n AS SELECT carrier, COUNT(*) AS n FROM flights GROUP BY carrier;" --dry-run
    """
    if bool(files) == bool(execute):
        raise InvalidInput("give either Python files or -e SQL")
    check_names(files or [])
    from logflume.log import connect_as_owner
    from logflume.streams.spark import SparkSettings, parse_conf

    settings = SparkSettings(master, parse_conf(conf or []), properties_file)
    address = where(data, bootstrap)
    with Interrupts(INTERRUPTED) as interrupts, connect_as_owner(address) as log, ExitStack() as stack:
        jobs = [stack.enter_context(opened(log, file, None, functions)) for file in files or []]
        jobs += [stack.enter_context(opened(log, None, text, functions)) for text in execute or []]
        if abort:
            take_back([job.load_plan for job in jobs], address, checkpoint, as_json)
            return
        if len(jobs) > 1:
            run_all(jobs, address, engine, settings, dry_run, checkpoint, replaces, history, as_json, interrupts)
            return
        (job,) = jobs
        from logflume.streams.spark import plan_backfill

        if job.is_done and not dry_run:
            say(f"its history was handed over by a run that ended then; {job.start()}", as_json)
            return
        taken = replaces or job.replaces
        planned = plan_backfill(job.load_plan, address, history=history, keep=checkpoint, replaces=taken, settings=job.settings)
        if dry_run:
            show_estimates([planned], engine, settings, as_json)
            return
        show_plan(planned, as_json)
        run([planned], engine, settings, [job], as_json, interrupts)


def say(message: str, as_json: bool) -> None:
    """Print how it ended."""
    print(json.dumps({"message": message}) if as_json else message)


def check_names(files: Sequence[Path]) -> None:
    """Raise InvalidInput for files of one name: executors get each by its name."""
    if len({file.name for file in files}) < len(files):
        raise InvalidInput("two files have the same name: executors could not tell them apart; rename one")


def take_back(loads: Sequence[Callable[[], Plan]], address: str, checkpoint: str | None, as_json: bool) -> None:
    """Take back what is left of one or several, and say of which something was."""
    from logflume.streams.spark import abort_backfill, abort_together

    if len(loads) == 1:
        abort_backfill(loads[0], address, keep=checkpoint)
        print(json.dumps({"taken_back": True}) if as_json else "taken back: nothing of it is left")
        return
    for application, is_taken_back in sorted(abort_together(loads, address, keep=checkpoint).items()):
        if as_json:
            print(json.dumps({"application": application, "taken_back": is_taken_back}))
        else:
            print(f"{application}: {'taken back, nothing of it is left' if is_taken_back else 'it has no unfinished backfill'}")


def run_all(
    jobs: Sequence[Job],
    address: str,
    engine: Where,
    settings: SparkSettings,
    dry_run: bool,
    checkpoint: str | None,
    replaces: str | None,
    history: str | None,
    as_json: bool,
    interrupts: Interrupts,
) -> None:
    """Compute several in one job, or show what that would be."""
    from logflume.streams.spark import plan_together

    if replaces is not None or any(job.replaces or job.is_done for job in jobs):
        raise InvalidInput(
            "what takes the place of an application or a query is given alone: one takes the place of one, which has to be "
            "stopped in the middle of its hand-over"
        )
    loads, options = [job.load_plan for job in jobs], [job.settings for job in jobs]
    planned = plan_together(loads, address, history=history, keep=checkpoint, settings=options)
    if dry_run:
        show_estimates(planned, engine, settings, as_json)
        return
    for each in planned:
        show_plan(each, as_json)
    run(planned, engine, settings, jobs, as_json, interrupts)


@dataclass(frozen=True, slots=True)
class Job:
    """What is computed, and what follows.

    Attributes:
        start: starts the live query, and says so.
        settings: what it runs with; None: as its file says.
        replaces: the application of the query whose place it takes.
        stop_old: stops that one.
        is_done: it has been handed over, and only what follows is left.
    """

    load_plan: Callable[[], Plan]
    start: Callable[[], str]
    settings: EngineOptions | None = None
    replaces: str | None = None
    stop_old: Callable[[], None] = lambda: None
    is_done: bool = False


@contextmanager
def opened(log: Any, file: Path | None, execute: str | None, functions: Path | None = None) -> Iterator[Job]:
    """Give what is computed; a query that was stopped for it goes on if that fails."""
    if file is not None:
        from logflume.streams.spark import AppFile

        yield Job(AppFile(str(file.resolve())), lambda: f"hand-over done: logflume run {file} goes on at the cut")
        return
    from logflume.sql import SqlEngine
    from logflume.sql.function_files import functions_at
    from logflume.streams.runtime import EngineOptions
    from logflume.streams.spark import is_handed_over, is_replaced

    assert execute is not None
    with (
        tempfile.TemporaryDirectory() as scratch,
        SqlEngine(log, Path(scratch), runs_queries=False, library=functions_at(functions)) as engine,
    ):
        prepared = engine.prepare(execute)
        settings, old = EngineOptions(dead_letter_topic=prepared.dead_letter_topic), prepared.replaces
        if old is None:
            is_done = is_handed_over(log, prepared.application)  # the catalog does not know it
            yield Job(prepared.compile, lambda: engine.start(prepared).text, settings, is_done=is_done)
            return
        replaced = engine.application_of(old)
        if is_replaced(log, replaced, prepared.application):
            yield Job(prepared.compile, lambda: engine.start(prepared).text, settings, is_done=True)
            return
        stopped: list[str] = []

        def stop_old() -> None:
            stopped.append(old)
            list(engine.execute(f"PAUSE `{old}`;"))

        try:
            yield Job(prepared.compile, lambda: engine.start(prepared).text, settings, replaced, stop_old)
        except BaseException:
            for query_id in stopped:
                list(engine.execute(f"RESUME `{query_id}`;"))
            raise


def run(
    planned: Sequence[BackfillPlan],
    engine: Where,
    settings: SparkSettings,
    jobs: Sequence[Job],
    as_json: bool,
    interrupts: Interrupts,
) -> None:
    """Run the job and say where it is; start each query, and report, as soon as it is handed over."""
    from logflume.streams.spark import LocalRunner, SparkRunner, close_session, open_session, run_together

    def finish(number: int, report: BackfillReport) -> None:
        message = jobs[number].start()
        line.end()
        show_report(report, message, as_json)

    with ExitStack() as stack:
        runner: StepRunner = LocalRunner()
        if engine is Where.SPARK:
            spark = open_session(f"backfill {', '.join(each.application for each in planned)}", settings)
            stack.callback(close_session, spark)
            interrupts.install(spark.sparkContext.cancelAllJobs)  # Spark has set its own
            tell_page(spark, as_json=as_json)
            runner = SparkRunner(spark)
        line = stack.enter_context(ProgressLine(sys.stderr, as_json=as_json))
        run_together(
            planned,
            runner,
            on_done=finish,
            on_stopping=jobs[0].stop_old,  # what takes another's place is alone
            on_progress=lambda at: line.show(at.step, at.done, at.total),
        )


def planned_cores(engine: Where, settings: SparkSettings) -> int | None:
    """Return how many cores there will be, as far as that is known; None: no Spark."""
    from logflume.streams.spark import cores_of

    return None if engine is Where.LOCAL else cores_of(settings) or CORES_ASSUMED


def show_estimates(planned: Sequence[BackfillPlan], engine: Where, settings: SparkSettings, as_json: bool) -> None:
    """Print what will be read and written, what each stage will cost, and what is read once for several."""
    from logflume.streams.spark import cores_of, estimate_together

    estimates, shared = estimate_together(planned, cores=planned_cores(engine, settings))
    for each, found in zip(planned, estimates, strict=True):
        show_plan(each, as_json, fields_of(found))
        if not as_json:
            print_estimate(found, is_assumed=cores_of(settings) is None)
    for once in shared:
        if as_json:
            print(json.dumps({"read_once": once.topics, "applications": once.applications}))
        else:
            print(f"read once    {', '.join(once.topics)} for {', '.join(once.applications)}; it counts with the first")


def show_plan(planned: BackfillPlan, as_json: bool, more: Mapping[str, Any] | None = None) -> None:
    """Print what will be read and written."""
    held = {tp: files[-1].held.end for tp, files in planned.archive.items()}
    rows = [
        (tp.topic, tp.partition, each.start, max(held.get(tp, each.start), each.start), each.end, len(each))
        for tp, each in sorted(planned.ranges.items())
    ]
    if as_json:
        fields = {
            "application": planned.application,
            "stores": planned.stores,
            "results": planned.result_topics,
            "dead_letters": planned.dead_letter_topic,
            "cut": [{"topic": t, "partition": p, "start": a, "archived": x, "cut": b} for t, p, a, x, b, _ in rows],
        }
        print(json.dumps(fields | dict(more or {})))
        return
    print(f"application  {planned.application}")
    print(f"stores       {', '.join(planned.stores) or 'none'}")
    print(f"results      {', '.join(planned.result_topics) or 'none'}")
    if planned.dead_letter_topic is not None:
        print(f"dead letters {planned.dead_letter_topic}")
    print(f"history      {planned.records:,} offsets")
    print_rows(("topic", "partition", "start", "archived to", "cut", "offsets"), rows, as_json=False)


def stage_fields(stage: StageDone) -> dict[str, Any]:
    """Return a stage that is done as JSON can hold it."""
    told = {"subtopology": stage.subtopology, "way": stage.way, "tasks": stage.tasks, "seconds": stage.seconds}
    return told | {"rows": stage.cost.rows, "out_bytes": stage.cost.out_bytes, "cpu_seconds": stage.cost.cpu_seconds}


def stage_cells(stage: StageDone) -> tuple[Any, ...]:
    """Return a stage that is done as a row."""
    cost = stage.cost
    size, cpu = f"{cost.out_bytes / 1e6:,.1f}", f"{cost.cpu_seconds:.1f}"
    return (stage.subtopology, stage.way, stage.tasks, f"{cost.rows:,}", size, cpu, f"{stage.seconds:.1f}")


def show_report(report: BackfillReport, message: str, as_json: bool) -> None:
    """Print what was done."""
    fields = {
        "records": report.records,
        "results": report.results,
        "entries": report.entries,
        "left_out": report.problems,
        "left_out_places": [asdict(place) for place in report.left_out],
        "cores": report.cores,
        "seconds": report.seconds,
        "stages": [stage_fields(stage) for stage in report.stages],
        "hand_over_seconds": report.hand_over_seconds,
        "other_seconds": report.other_seconds,
        "message": message,
    }
    if as_json:
        print(json.dumps(fields))
        return
    left_out = ", ".join(f"{count:,} {reason}" for reason, count in sorted(report.problems.items())) or "none"
    print(f"computed     {report.records:,} records; left out: {left_out}")
    print(f"installed    {report.entries:,} store entries, {report.results:,} results, offsets = the cut, in one step")
    for place in report.left_out:
        print(f"left out     {place}: {place.first}")
    print(f"took         {report.seconds:.1f} s on {report.cores} cores")
    rows = [stage_cells(stage) for stage in report.stages]
    alone = {"hand-over": report.hand_over_seconds, "claim, executors that start, waiting": report.other_seconds}
    rows += [(what, *[""] * 5, f"{seconds:.1f}") for what, seconds in alone.items()]
    print_rows(
        ("stage", "computed", "tasks", "rows out", "MB out", "CPU s", "seconds"),
        rows,
        as_json=False,
    )
    print(message)
