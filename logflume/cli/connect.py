"""`logflume connect`: run and check connectors, tell where they are, let them begin anew."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logflume.cli.common import Bootstrap, Data, Json, make_app, open_log, print_done, print_rows
from logflume.cli.stopping import stop_on_signals

if TYPE_CHECKING:
    from logflume.connect import ConnectorStatus, Place

app = make_app(
    "Run, check, pause and reset connectors; one TOML or JSON file each.\n\n"
    "Example: logflume connect run examples/flights/airlines.toml --once --bootstrap 127.0.0.1:9092"
)


@app.command()
def run(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Connector files.")],
    once: Annotated[bool, typer.Option("--once", help="Stop at the end of what is there now.")] = False,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Replace a key of every file.")] = None,
    data: Data = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Run connectors until they end or Ctrl-C; all files are checked before anything starts.

    Example: logflume connect run airlines.toml --once --bootstrap 127.0.0.1:9092
    """
    from logflume.cli.topic import parse_configs
    from logflume.connect import load_connector, run_connectors
    from logflume.log.children import end_with_parent

    end_with_parent(signal.SIGTERM)
    overrides = parse_configs(set_ or [])
    for path in files:
        load_connector(path, overrides=overrides)
    show = show_json if as_json else show_lines
    failed: set[str] = set()

    def report(statuses: Sequence[ConnectorStatus]) -> None:
        failed.update(each.name for each in statuses if each.state == "FAILED")
        show(statuses)

    with open_log(data, bootstrap, may_create=True) as log:
        stop = stop_on_signals()
        try:
            run_connectors(log, files, overrides=overrides, is_once=once, report=report, should_stop=stop.is_set)
        except Exception:
            if failed:  # said when it happened, as the others may have gone on for long
                raise typer.Exit(1) from None
            raise


def show_lines(statuses: Sequence[ConnectorStatus]) -> None:
    """Print one line per connector on stderr. What makes one fail for good is told once, when it does, by its task."""
    for status in statuses:
        records = sum(task.records for task in status.tasks)
        rate = sum(task.rate for task in status.tasks)
        broken = sum(task.broken for task in status.tasks)
        parts = [f"{status.name}: {status.state}", f"{records:,} record{'s' * (records != 1)}"]
        if status.state == "RUNNING":
            parts.append(f"{rate:,.0f}/s")
        if status.state == "PAUSED":
            parts.append(f"`logflume connect resume {status.name}` lets it go on")
        if status.state == "COMPLETED" and not records:
            parts.append(f"nothing new since it ran last: `logflume connect reset {status.name}` lets it begin anew")
        if broken:
            parts.append(f"{broken} broken, kept in the dead-letter topic")
        if status.eta_s:
            parts.append(f"{status.eta_s:.0f} s to go")
        parts += [f"task {task.task}: {task.cause}" for task in status.tasks if task.cause and task.state != "FAILED"]
        print(", ".join(parts), file=sys.stderr, flush=True)


def show_json(statuses: Sequence[ConnectorStatus]) -> None:
    """Print one JSON object per connector on stdout."""
    for status in statuses:
        fields = {
            "name": status.name,
            "connector": status.connector,
            "state": status.state,
            "guarantee": status.guarantee,
            "records": sum(task.records for task in status.tasks),
            "broken": sum(task.broken for task in status.tasks),
            "rate": round(sum(task.rate for task in status.tasks), 1),
            "causes": [task.cause for task in status.tasks if task.cause],
        }
        print(json.dumps(fields), flush=True)


@app.command()
def status(
    name: Annotated[str | None, typer.Argument(help="A connector; without it all.")] = None,
    data: Data = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Show where connectors are: what they have committed, running or not, and which of them are paused.

    Example: logflume connect status --bootstrap 127.0.0.1:9092
    """
    from logflume.connect import Place, paused_connectors, places

    with open_log(data, bootstrap) as log:
        paused, found = paused_connectors(log), places(log)
    found += [Place(each, "", "", "") for each in sorted(paused - {place.connector for place in found})]
    print_places([place for place in found if name in (None, place.connector)], paused, as_json=as_json)


@app.command()
def pause(name: str, data: Data = None, bootstrap: Bootstrap = None, as_json: Json = False) -> None:
    """Let a connector rest after its present batch, wherever it runs, until `connect resume`; a restart does not end that.

    Example: logflume connect pause airlines --bootstrap 127.0.0.1:9092
    """
    from logflume.connect import pause_connector

    with open_log(data, bootstrap) as log:
        pause_connector(log, name)
    print_done(f"{name} rests after its present batch; logflume connect resume {name}", as_json=as_json, paused=name)


@app.command()
def resume(name: str, data: Data = None, bootstrap: Bootstrap = None, as_json: Json = False) -> None:
    """Let a paused connector go on where it was.

    Example: logflume connect resume airlines --bootstrap 127.0.0.1:9092
    """
    from logflume.connect import resume_connector

    with open_log(data, bootstrap) as log:
        resume_connector(log, name)
    print_done(f"{name} goes on", as_json=as_json, resumed=name)


@app.command()
def reset(name: str, data: Data = None, bootstrap: Bootstrap = None, as_json: Json = False) -> None:
    """Forget where a connector is: its next run begins anew. A source that runs stops; a sink must not run.

    Records that a source has written stay, and are written again. A target that keeps the place itself (sql-sink, parquet-sink)
    has to be emptied too.

    Example: logflume connect reset airlines --bootstrap 127.0.0.1:9092
    """
    from logflume.connect import reset_connector

    with open_log(data, bootstrap) as log:
        print_places(reset_connector(log, name), as_json=as_json)


def print_places(found: Sequence[Place], paused: Collection[str] = (), *, as_json: bool) -> None:
    rows = []
    for each in found:
        part, at = (each.part, each.at) if as_json else (readable(each.part), readable(each.at))
        state = "paused" if each.connector in paused else None
        rows.append((each.connector, each.kind, part, at, each.end, each.members or None, state))
    print_rows(("connector", "kind", "part", "at", "end", "tasks", "state"), rows, as_json=as_json)


def readable(place: str) -> str:
    """Return what people want to know of a source's place, which is kept as JSON: its plain fields.

    >>> readable('{"file": {"head": "dcaa"}, "line": 5, "position": 122}'), readable("7")
    ('line 5, position 122', '7')
    """
    fields = json.loads(place) if place.startswith("{") else None
    if not isinstance(fields, dict):
        return place
    plain = {
        name: value for name, value in fields.items() if isinstance(value, int) or (name == "file" and isinstance(value, str))
    }
    return ", ".join(f"{name} {value}" for name, value in plain.items())


@app.command()
def check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Connector files.")], as_json: Json = False
) -> None:
    """Check connector files and show every setting with its value; secrets are masked. Starts nothing.

    Example: logflume connect check airlines.toml
    """
    from logflume.connect import load_connector

    for path in files:
        connector = load_connector(path)
        rows = [(path.name, name, value) for name, value in connector.config.shown().items()]
        print_rows(("file", "option", "value"), rows, as_json=as_json)


@app.command()
def columns(topic: str, data: Data = None, bootstrap: Bootstrap = None, as_json: Json = False) -> None:
    """Print the columns of a topic's first records (JSON objects), as `value.columns` of a sink takes them.

    Example: logflume connect columns flights --bootstrap 127.0.0.1:9092
    """
    from logflume.connect import columns_text, found_columns

    with open_log(data, bootstrap) as log:
        found = found_columns(log, topic)
    if as_json:
        print_rows(("column", "type"), [(column.name, str(column.type)) for column in found], as_json=True)
    else:
        print(f"value.columns = {json.dumps(columns_text(found))}")


@app.command("list")
def list_connectors(as_json: Json = False) -> None:
    """List the connectors that are installed.

    Example: logflume connect list
    """
    from logflume.connect import connector_names, find_connector

    rows = [(name, find_connector(name).kind, find_connector(name).doc) for name in connector_names()]
    print_rows(("connector", "kind", "what it does"), rows, as_json=as_json)


@app.command()
def describe(connector: str, as_json: Json = False) -> None:
    """Show the options of a connector: type, default and meaning.

    Example: logflume connect describe file-source
    """
    from logflume.connect import connector_spec

    rows = [
        (option.name, option.type, "required" if option.is_required else option.shown_default(), option.doc)
        for option in connector_spec(connector).options
    ]
    print_rows(("option", "type", "default", "meaning"), rows, as_json=as_json)
