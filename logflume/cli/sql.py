"""`logflume sql`: the shell; -e and -f run statements; `logflume sql test` runs case files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from logflume.cli.common import Bootstrap, Data, Json, make_app, where
from logflume.log import InvalidInput

app = make_app(
    "SQL over topics. Without -e or -f a shell: statements end with ; and Ctrl-C stops the running query only.\n\n"
    'Example: logflume sql -e "SELECT * FROM flights EMIT CHANGES LIMIT 3;" --bootstrap 127.0.0.1:9092',
    has_default=True,
)


@app.callback(invoke_without_command=True)
def sql(
    context: typer.Context,
    execute: Annotated[str | None, typer.Option("--execute", "-e", metavar="SQL", help="Run these statements and end.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", dir_okay=False, help="Run the statements of a file and end.")
    ] = None,
    data: Data = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Run statements, or the shell."""
    if context.invoked_subcommand is not None:
        return
    if execute is not None and file is not None:
        raise InvalidInput("give either -e SQL or -f FILE, not both")
    address = where(data, bootstrap, may_create=True)
    if execute is None and file is None:
        from logflume.sql.shell import run_shell

        raise typer.Exit(run_shell(address, is_json=as_json))
    from logflume.sql.batch import run_batch

    raise typer.Exit(run_batch(address, text=execute, path=file, is_json=as_json))


@app.command("test")
def run_case_files(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Case files in ksqlDB's JSON form, or folders of them.")],
    name: Annotated[list[str] | None, typer.Option("--name", help="Only cases whose name holds this; may be repeated.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Every case, not only those that fail.")] = False,
    as_json: Json = False,
) -> None:
    """Run case files and close with `N passed, N failed, N skipped`.

    Example: logflume sql test cases/ --name tumbling
    """
    from logflume.sql.testing import run_cases

    raise typer.Exit(run_cases(list(paths), names=name or [], is_json=as_json, is_verbose=verbose))
