"""`logflume sql migrate`: scripts that are run once each, in order, and what is known of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logflume.cli.common import Bootstrap, Data, Functions, Json, make_app, where

if TYPE_CHECKING:
    from logflume.sql.migrations import Migration, Migrations

app = make_app("Numbered scripts of a folder, each run once, in order.\n\nExample: logflume sql migrate new add_orders")

Folder = Annotated[Path, typer.Option("--folder", metavar="DIR", file_okay=False, help="Where the scripts are.")]
DEFAULT = Path("migrations")


@contextmanager
def _opened(folder: Path, data: str | None, bootstrap: str | None, functions: Path | None = None) -> Iterator[Migrations]:
    from logflume.sql.function_files import functions_at
    from logflume.sql.migrations import Migrations, read_folder
    from logflume.sql.opening import open_engine

    read_folder(folder)
    with open_engine(where(data, bootstrap, may_create=True), functions=functions_at(functions)) as engine:
        yield Migrations(engine, folder)


@app.command()
def new(name: Annotated[str, typer.Argument(help="What it does.")], folder: Folder = DEFAULT) -> None:
    """Make an empty script with the next version.

    Example: logflume sql migrate new add_orders
    """
    from logflume.sql.migrations import new_migration

    typer.echo(new_migration(folder, name))


@app.command()
def apply(
    folder: Folder = DEFAULT,
    until: Annotated[int | None, typer.Option(metavar="VERSION", help="The last version to run; all without it.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Run a version from its start that a process ended within.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be run.")] = False,
    functions: Functions = None,
    data: Data = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Run the scripts that were not run yet.

    Example: logflume sql migrate apply --bootstrap 127.0.0.1:9092
    """
    with _opened(folder, data, bootstrap, functions) as migrations:
        if dry_run:
            for each in migrations.pending():
                if until is None or each.version <= until:
                    _tell(each, "would be run", as_json=as_json)
            return
        count = 0
        for each in migrations.apply(until=until, runs_again=again):
            _tell(each, "is done", as_json=as_json)
            count += 1
        if not as_json:
            typer.echo(f"{count} run" if count else "nothing to run")


def _tell(script: Migration, what: str, *, as_json: bool) -> None:
    found = {"version": script.version, "name": script.name, "state": what}
    typer.echo(json.dumps(found) if as_json else f"version {script.version} ({script.name}) {what}")


@app.command()
def info(folder: Folder = DEFAULT, data: Data = None, bootstrap: Bootstrap = None, as_json: Json = False) -> None:
    """Show every version with its state.

    Example: logflume sql migrate info --bootstrap 127.0.0.1:9092
    """
    from rich.console import Console

    from logflume.sql.render import print_rows, row_tabbed

    with _opened(folder, data, bootstrap) as migrations:
        console = Console()
        print_rows(console, migrations.info(), is_json=as_json, row_text=None if console.is_terminal else row_tabbed)


@app.command()
def validate(folder: Folder = DEFAULT, data: Data = None, bootstrap: Bootstrap = None) -> None:
    """Say whether the scripts that were run are still as they were; ends with 1 when not.

    Example: logflume sql migrate validate --bootstrap 127.0.0.1:9092
    """
    with _opened(folder, data, bootstrap) as migrations:
        problems = migrations.problems()
    for each in problems:
        typer.echo(each, err=True)
    if problems:
        raise typer.Exit(1)
    typer.echo("the scripts that were run are as they were")
