"""`logflume sql`: the shell; -e and -f run statements; `logflume sql test` runs case files."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logflume.cli.common import Bootstrap, Data, Functions, Insecure, Json, make_app, where
from logflume.cli.registry import parse_listen, parse_tls
from logflume.cli.sql_migrate import app as migrate
from logflume.cli.sql_on_spark import on_spark
from logflume.cli.sql_scripts import fmt, lint
from logflume.cli.stopping import stop_on_signals
from logflume.log import InvalidInput
from logflume.log.children import end_with_parent

if TYPE_CHECKING:
    from logflume.sql.connectors import ConnectorsOf
    from logflume.streams.functions import Library

SERVER_VARIABLE = "LOGFLUME_SQL_SERVER"

app = make_app(
    "SQL over topics. Without -e or -f a shell: statements end with ; and Ctrl-C stops the running query only.\n\n"
    'Example: logflume sql -e "SELECT * FROM flights EMIT CHANGES LIMIT 3;" --bootstrap 127.0.0.1:9092',
    has_default=True,
)
app.add_typer(migrate, name="migrate")
app.command("fmt")(fmt)
app.command("lint")(lint)
app.command("on-spark")(on_spark)


@app.callback(invoke_without_command=True)
def sql(
    context: typer.Context,
    execute: Annotated[str | None, typer.Option("--execute", "-e", metavar="SQL", help="Run these statements and end.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", dir_okay=False, help="Run the statements of a file and end.")
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar=SERVER_VARIABLE,
            help="A SQL server, http(s)://[USER:PASSWORD@]HOST:PORT; users also by $LOGFLUME_SQL_AUTH.",
        ),
    ] = None,
    ca: Annotated[
        Path | None, typer.Option(metavar="FILE", dir_okay=False, help="Who signed the server's certificate (PEM).")
    ] = None,
    functions_path: Functions = None,
    data: Data = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Rows as CSV, with the columns' names.")] = False,
) -> None:
    """Run statements, or the shell."""
    if context.invoked_subcommand is not None:
        return
    if execute is not None and file is not None:
        raise InvalidInput("give either -e SQL or -f FILE, not both")
    if as_csv and (as_json or (execute is None and file is None)):
        raise InvalidInput("--csv is for -e and -f, and excludes --json")
    address, connectors = place_of(server, data, bootstrap)
    own = own_functions(functions_path, server)
    if execute is None and file is None:
        from logflume.sql.shell import run_shell

        raise typer.Exit(run_shell(address, ca=ca, is_json=as_json, connectors=connectors, functions=own))
    from logflume.sql.batch import run_batch

    raise typer.Exit(
        run_batch(address, text=execute, path=file, ca=ca, is_json=as_json, is_csv=as_csv, connectors=connectors, functions=own)
    )


def own_functions(path: Path | None, server: str | None = None) -> Library | None:
    """Return `functions_at` a path, for statements that go to no server. Raises InvalidInput: they do."""
    if path is None:  # nothing is loaded then
        return None
    if server is not None:
        raise InvalidInput("functions run where the queries do: start the server with --functions, not what asks it")
    from logflume.sql.function_files import functions_at

    return functions_at(path)


def place_of(server: str | None, data: str | None, bootstrap: str | None) -> tuple[str, ConnectorsOf | None]:
    """Return where statements go, and who runs the connectors that they make. Raises InvalidInput."""
    if server is not None and (data is not None or bootstrap is not None):
        raise InvalidInput("give either --server, or --data or --bootstrap: statements go to a server or to a log")
    if server is not None and not server.startswith(("http://", "https://")):
        raise InvalidInput(f"--server is a URL such as http://127.0.0.1:8088, found {server!r}")
    connectors: ConnectorsOf | None = None
    if server is None:  # else connectors are the server's, and so is all that they need
        from logflume.cli.sql_connectors import SqlConnectors

        connectors = SqlConnectors
    return server or where(data, bootstrap, may_create=True), connectors


@app.command()
def serve(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where programs connect; port 0: a free one.")
    ] = "127.0.0.1:8088",
    queries: Annotated[
        bool, typer.Option("--queries/--no-queries", help="Run persistent queries here, or leave them to workers.")
    ] = True,
    state_dir: Annotated[
        Path | None, typer.Option("--state-dir", metavar="DIR", help="Where the state of queries is kept.")
    ] = None,
    service: Annotated[str, typer.Option(help="Servers of one service share streams, tables and queries.")] = "logflume-sql",
    users: Annotated[
        Path | None,
        typer.Option(
            "--users", metavar="FILE", dir_okay=False, help="Users, own or the cluster's, and their rights by topic (TOML)."
        ),
    ] = None,
    tls_certificate: Annotated[Path | None, typer.Option(metavar="FILE", help="Speak HTTPS with this certificate (PEM).")] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="The certificate's key (PEM).")] = None,
    functions_path: Functions = None,
    insecure: Insecure = False,
    data: Data = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Serve SQL over HTTP (ksqlDB's REST interface) beside any Kafka cluster, until stopped; `logflume serve` has one of its own.

    Example: logflume sql serve --bootstrap 127.0.0.1:9092 --listen 127.0.0.1:8088

    On a broker with logins somebody who may make topics of services is needed: logflume sql serve --profile local-admin
    """
    from logflume.cli.sql_connectors import SqlConnectors
    from logflume.log.client import check_login
    from logflume.log.registry import UserFile
    from logflume.sql.rest import run_server

    tls = parse_tls(tls_certificate, tls_key, None)
    end_with_parent(signal.SIGTERM)
    host, port = parse_listen(listen, option="--listen")
    address = where(data, bootstrap, may_create=True)
    known = None if users is None else UserFile(users, login=partial(check_login, address))
    run_server(
        address,
        stop_on_signals,
        host=host,
        port=port,
        state_dir=state_dir,
        runs_queries=queries,
        service=service,
        users=known,
        tls=tls,
        is_insecure=insecure,
        connectors=SqlConnectors,
        functions=own_functions(functions_path),
    )


@app.command()
def functions() -> None:
    """Print the reference of all functions as Markdown.

    Example: logflume sql functions > functions.md
    """
    from logflume.sql.reference import functions_page
    from logflume.streams.functions import builtin_library

    typer.echo(functions_page(builtin_library()), nl=False)


@app.command("test")
def run_case_files(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Case files in ksqlDB's JSON form, or folders of them.")],
    name: Annotated[list[str] | None, typer.Option("--name", help="Only cases whose name holds this; may be repeated.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Every case, not only those that fail.")] = False,
    functions_path: Functions = None,
    as_json: Json = False,
) -> None:
    """Run case files and close with `N passed, N failed, N skipped`.

    Example: logflume sql test cases/ --name tumbling
    """
    from logflume.sql.testing import run_cases

    raise typer.Exit(run_cases(list(paths), names=name or [], is_json=as_json, is_verbose=verbose, functions=functions_path))
