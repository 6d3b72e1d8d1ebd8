"""`logflume streams`: what applications do, what a changed topology would do to their state; dead letters; a new beginning."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logflume.cli.common import Bootstrap, Data, Json, lend_log, log_of, make_app, open_log, print_done, print_rows, seconds

if TYPE_CHECKING:
    from logflume.streams.runtime import Statuses

app = make_app("Watch streams applications, reset them, compare topologies, put dead letters back.")
_COLUMNS = ("instance", "task", "state", "in/s", "out/s", "lag", "lag s", "entries", "disk MB", "dropped")


@app.command()
def top(
    application: Annotated[str, typer.Argument(help="The application's name, which is that of its group.")],
    interval_s: Annotated[
        float, typer.Option("--interval", metavar="S", help="Seconds from one look to the next.", min=0.1, callback=seconds)
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Show it once and end.")] = False,
    nodes: Annotated[bool, typer.Option("--nodes", help="One line per node: rows that leave it.")] = False,
    data: Data = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Show rates, lag and state of all instances that run, task by task, until Ctrl-C; and which partitions nobody answers for.

    Example: logflume streams top delays --once --bootstrap 127.0.0.1:9092
    """
    from logflume.streams.runtime import looks, silent

    with open_log(data, bootstrap) as log:
        before: Statuses = {}
        for look, (now, elapsed_s) in enumerate(looks(log, application, interval_s)):
            if as_json:
                for status in now.values():
                    print(json.dumps(status), flush=True)
            elif look or once:
                _clear()
                _print_summary(application, now)
                rows = _node_rows(before, now, elapsed_s) if nodes else _task_rows(before, now, elapsed_s)
                print_rows(("instance", "node", "rows/s", "rows") if nodes else _COLUMNS, rows, as_json=False)
            for (topic, partition), address in silent(log, application, now).items():
                print(f"{topic}-{partition}: nobody who answers runs it; the last to do so was at {address}", file=sys.stderr)
            before = now
            if once:
                return


def _clear() -> None:
    if sys.stdout.isatty():
        print("\x1b[H\x1b[2J", end="")


def _print_summary(application: str, now: Statuses) -> None:
    lags = [status["lag_records"] for status in now.values()]
    lag = "unknown" if None in lags else f"{sum(lags):,}"
    rate_in, rate_out = (sum(status[f"records_{way}_per_s"] for status in now.values()) for way in ("in", "out"))
    slowest_ms = max((status["commit"]["latency_p50_ms"] for status in now.values()), default=0.0)
    print(
        f"{application}: {len(now)} instances, {rate_in:,.0f} in/s, {rate_out:,.0f} out/s, lag {lag}, "
        f"task commit {slowest_ms:.0f} ms"
    )


def _task_rows(before: Statuses, now: Statuses, elapsed_s: float) -> Iterator[Sequence[str]]:
    for instance, status in sorted(now.items()):
        known = {task["name"]: task for task in before.get(instance, {}).get("tasks", ())}
        for task in status["tasks"]:
            then = known.get(task["name"], task)
            lags = [each["lag_records"] for each in task["inputs"]]
            behind = [each["lag_ms"] for each in task["inputs"] if each["lag_ms"] is not None]
            yield (
                instance,
                task["name"],
                "restoring" if task["is_restoring"] else status["state"],
                f"{(task['records_in'] - then['records_in']) / elapsed_s:,.0f}",
                f"{(task['records_out'] - then['records_out']) / elapsed_s:,.0f}",
                "unknown" if None in lags else f"{sum(lags):,}",
                f"{max(behind) / 1000:,.1f}" if behind else "unknown",
                f"{task['entries_in_memory']:,}",
                f"{task['state_disk_bytes'] / 1e6:,.1f}",
                ", ".join(f"{number:,} {reason}" for reason, number in sorted(task["dropped"].items())) or "none",
            )


def _node_rows(before: Statuses, now: Statuses, elapsed_s: float) -> Iterator[Sequence[str]]:
    from logflume.streams.runtime import rows_by_node

    for instance, status in sorted(now.items()):
        then = rows_by_node(before.get(instance, {}))
        for node, rows in rows_by_node(status).items():
            yield instance, node, f"{(rows - then.get(node, rows)) / elapsed_s:,.0f}", f"{rows:,}"


@app.command()
def replay(
    topic: Annotated[str, typer.Argument(help="The dead letter topic of an application.")],
    limit: Annotated[int | None, typer.Option(help="At most this many.", min=1)] = None,
    data: Data = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Put dead letters back into the topics that they came from, each once; the next replay goes on where this one ended.

    Example: logflume streams replay delays-dead --bootstrap 127.0.0.1:9092
    """
    from logflume.streams.runtime import replay as send_back

    with open_log(data, bootstrap) as log:
        counts = send_back(log, topic, limit=limit)
    print_rows(("topic", "records"), sorted(counts.items()), as_json=as_json)


@app.command()
def reset(
    file: Annotated[Path, typer.Argument(help="The Python file of the application.")],
    state_dir: Annotated[
        Path | None, typer.Option("--state-dir", metavar="DIR", help="Where its state is; by default where the file has it.")
    ] = None,
    data: Data = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Let an application that does not run begin anew: its internal topics, offsets and state are removed, its results stay.

    An lf.App without a log of its own is looked for in the one named here.

    Example: logflume streams reset delays.py --bootstrap 127.0.0.1:9092
    """
    from logflume.streams.runtime import reset_application
    from logflume.streams.spark import app_of

    lend_log(data, bootstrap)
    found = app_of(file)
    with log_of(found) as log:
        topics = reset_application(log, found.plan(), state_dir or Path(found.state_dir))
    text = f"{found.name} begins anew; removed: {', '.join(topics) or 'no topics'}, its offsets and its state"
    print_done(text, as_json=as_json, application=found.name, removed=topics)


@app.command()
def diff(
    old: Annotated[Path, typer.Argument(help="A Python file with the application as it runs.")],
    new: Annotated[Path, typer.Argument(help="A Python file with the application as it shall run.")],
    as_json: Json = False,
) -> None:
    """Say what of an application's state a changed topology keeps, rebuilds or loses; exit code 1 if it loses something.

    Example: logflume streams diff delays_old.py delays.py
    """
    from logflume.streams.changes import Fate, compare, layout_of
    from logflume.streams.spark import app_of

    found = compare(layout_of(app_of(old).topology()), layout_of(app_of(new).topology()))
    rows = [(each.fate.value, each.kind, each.name, each.why) for each in found]
    print_rows(("fate", "what", "name", "why"), rows, as_json=as_json)
    if any(each.fate is Fate.LOST for each in found):
        raise typer.Exit(1)
