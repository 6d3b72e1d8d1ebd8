"""What the commands share: where the log is, how errors are shown, how rows are printed."""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logflume.cli.foreign_words import foreign_words, options_of
from logflume.log import InvalidInput, LogflumeError

if TYPE_CHECKING:
    from logflume.log import Log
    from logflume.streams import App

Data = Annotated[
    str | None, typer.Option("--data", metavar="DIR", help="Data directory: opened here, or joined if it is in use.")
]
Bootstrap = Annotated[
    str | None, typer.Option("--bootstrap", metavar="HOST:PORT", help="A logflume broker or an Apache Kafka cluster.")
]
Functions = Annotated[
    Path | None,
    typer.Option(
        "--functions", metavar="FILE", exists=True, help="Functions in Python that statements may call; a folder: all its files."
    ),
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Let everybody who reaches a listener use it, on any address.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object per line, for pipes.")]


def seconds(value: float | None) -> float | None:
    """Refuse what is no duration in seconds, as an option's callback: its `min` and `max` let NaN through."""
    if value is not None and not 0 <= value <= threading.TIMEOUT_MAX:
        raise typer.BadParameter(f"expected a number of seconds, found {value:g}")
    return value


def make_app(help_text: str, *, has_default: bool = False) -> typer.Typer:
    """Return a typer app in the house style: plain help, no completion options, no pretty stack traces.

    `has_default`: without arguments it does something, instead of showing its help.
    """
    return typer.Typer(
        help=help_text,
        add_completion=False,
        pretty_exceptions_enable=False,
        no_args_is_help=not has_default,
        rich_markup_mode=None,
    )


def run_app(module: str, prog_name: str, args: Sequence[str]) -> int:
    """Run the typer app of `logflume.cli.<module>`; a user's mistake is one line on stderr and exit code 1."""
    app: typer.Typer = importlib.import_module(f"logflume.cli.{module}").app
    try:
        result = app(args=list(args), prog_name=prog_name, standalone_mode=True)
    except SystemExit as stop:
        if stop.code == 2:
            for line in foreign_words(args, options_of(typer.main.get_command(app), args)):
                print(line, file=sys.stderr)
        return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    except LogflumeError as error:
        print("\n  ".join([f"{prog_name}: {error}", *getattr(error, "__notes__", [])]), file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        advice = extra_advice(error, module)
        if advice is None:
            raise
        print(f"{prog_name}: {advice}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    return result if isinstance(result, int) else 0


def extra_advice(error: ModuleNotFoundError, command: str) -> str | None:
    """Return what to install for a command, None where no extra of logflume brings the module."""
    extra = missing_extra(error.name or "", command)
    return None if extra is None else f"needs {error.name}: pip install 'logflume[{extra}]'"


def missing_extra(module: str, command: str) -> str | None:
    """Return the extra of logflume that brings a module to a command, None when none does.

    >>> missing_extra("pyspark", "backfill")
    'spark'
    >>> missing_extra("numpy", "connect")
    'connect'
    """
    top = module.partition(".")[0]
    if top in ("numpy", "pyarrow"):  # several bring them
        return {"archive": "arrow", "backfill": "spark", "connect": "connect", "sql": "sql"}.get(command, "streams")
    by_module = {
        "prompt_toolkit": "sql",
        "starlette": "sql",
        "uvicorn": "registry",
        "grpc_tools": "registry",
        "google": "registry",
        "jsonschema": "registry",
        "referencing": "registry",
        "httpx": "registry",
        "rocksdict": "streams",
        "numba": "streams",
        "cryptography": "tls",
        "sqlalchemy": "connect",
        "pyspark": "spark",
        "pandas": "spark",
    }
    return by_module.get(top)


def place(data: str | None, bootstrap: str | None) -> str:
    """Return where the log is: the option, else the environment, else ./data; whether there is one or not."""
    if data and bootstrap:
        raise InvalidInput("give either --data or --bootstrap, not both")
    if bootstrap or data:
        return bootstrap or os.path.abspath(data or "")
    from logflume.log import default_where

    return default_where()


def where(data: str | None, bootstrap: str | None, *, may_create: bool = False) -> str:
    """Return `place`, which is what `logflume.log.connect` is given; says where that is, unless an option did.

    Only a command that writes (`may_create`) begins a new log, and only in a directory that somebody named.

    Raises:
        InvalidInput: there is no log in the directory.
    """
    found = place(data, bootstrap)
    if bootstrap:
        return found
    if not data:
        print(f"log: {found}", file=sys.stderr)
    if not os.path.isabs(found) or os.path.exists(os.path.join(found, "meta.properties")):
        return found
    if may_create and (data or os.environ.get("LOGFLUME_DATA")):
        return found
    begin = "" if may_create else "; `logflume serve` or `logflume topic create NAME --data DIR` begins one"
    if may_create:
        begin = f"; name the directory to begin one there: --data {os.path.relpath(found)}"
    from logflume.log import default_broker

    broker = default_broker()
    hint = f"; a broker listens on {broker}: --bootstrap {broker}" if broker else ""
    raise InvalidInput(f"there is no log in {found}{hint}{begin}")


def open_log(data: str | None, bootstrap: str | None, *, may_create: bool = False) -> Log:
    """Open or join the log that the options name. Raises as `where`."""
    from logflume.log import connect

    return connect(where(data, bootstrap, may_create=may_create))


def lend_log(data: str | None, bootstrap: str | None) -> None:
    """Have an lf.App without a log of its own, here and in children, use the one that the options name, if they do."""
    found = place(data, bootstrap)
    if bootstrap:
        os.environ["LOGFLUME_BOOTSTRAP"] = found
    elif data:
        os.environ["LOGFLUME_DATA"] = found
        for name in ("LOGFLUME_BOOTSTRAP", "LOGFLUME_PROFILE"):  # which would come first
            os.environ.pop(name, None)


def directory_of(application: App) -> str | None:
    """Return the data directory that an application names, if it names one."""
    found = application.log
    return found if isinstance(found, str) and ("/" in found or found.startswith((".", "~"))) and ":" not in found else None


@contextmanager
def log_of(application: App) -> Iterator[Log]:
    """Open or join the log that an application names, for as long. Raises as `where`."""
    if not isinstance(application.log, str):
        yield application.log
        return
    directory = directory_of(application)
    with open_log(directory, None if directory else application.log) as log:
        yield log


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, as_json: bool) -> None:
    """Print rows as one JSON object per line, or as a table that fits the terminal (tab-separated when piped)."""
    if as_json:
        for row in rows:
            print(json.dumps(dict(zip(columns, row, strict=True)), default=str), flush=True)
        return
    if not sys.stdout.isatty():
        print("\t".join(columns))
        for row in rows:
            print("\t".join("" if cell is None else str(cell) for cell in row))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    Console().print(table)


def print_object(fields: Mapping[str, Any], *, as_json: bool) -> None:
    """Print one object as JSON or as lines of a name and a value."""
    if as_json:
        print(json.dumps(fields, default=str))
        return
    width = max((len(name) for name in fields), default=0)
    for name, value in fields.items():
        print(f"{name:<{width}}  {_in_words(value)}".rstrip())


def _in_words(value: object) -> str:
    """Return a value as one reads it: nothing for None, lists with commas, settings as `name=value`.

    >>> _in_words({"retention.ms": "1000", "cleanup.policy": "compact"})
    'retention.ms=1000, cleanup.policy=compact'
    """
    match value:
        case None:
            return ""
        case Mapping() | list() | tuple() if not value:
            return "none"
        case Mapping():
            return ", ".join(f"{name}={_in_words(each)}" for name, each in value.items())
        case list() | tuple():
            return ", ".join(map(_in_words, value))
    return str(value)


def print_done(text: str, *, as_json: bool, **fields: Any) -> None:
    """Say what a command has changed: a sentence, or its fields as JSON."""
    print(json.dumps(fields, default=str) if as_json else text, flush=True)


def text_of(data: bytes | None) -> str | None:
    """Return bytes as text; what is not UTF-8 is shown as escapes."""
    return None if data is None else data.decode("utf-8", errors="backslashreplace")
