"""`logflume sql fmt` and `logflume sql lint`: scripts laid out, and what is wrong with them, without running them."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logflume.cli.common import Bootstrap, Data, Functions, Json, where
from logflume.log import InvalidInput

if TYPE_CHECKING:
    from logflume.sql.catalog import Catalog
    from logflume.sql.findings import Finding

Scripts = Annotated[list[Path], typer.Argument(metavar="FILE...", help="Scripts; - is what comes in.")]
_PIPE = Path("-")


def _read(path: Path) -> str:
    if path == _PIPE:
        return sys.stdin.read()
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from None


def fmt(
    files: Scripts,
    check: Annotated[bool, typer.Option("--check", help="Change nothing; end with 1 where a script would change.")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Change nothing; show what would change.")] = False,
) -> None:
    """Lay out scripts in place: a clause a line, keywords in capitals; comments stay. What - gives goes out.

    Example: logflume sql fmt migrations/*.sql --check
    """
    from logflume.sql.layout import format_script

    texts = [(path, _read(path)) for path in files]
    changed = 0
    for path, text in texts:
        found = format_script(text)
        changed += found != text
        if diff:
            lines = difflib.unified_diff(text.splitlines(True), found.splitlines(True), str(path), str(path))
            typer.echo("".join(line if line.endswith("\n") else f"{line}\n" for line in lines), nl=False)
        elif path == _PIPE and not check:
            typer.echo(found, nl=False)
        elif found != text:
            typer.echo(f"{path} {'would be' if check else 'is'} laid out")
            if not check:
                path.write_text(found, encoding="utf-8")
    if changed and (check or diff):
        raise typer.Exit(1)


def lint(
    files: Scripts,
    strict: Annotated[bool, typer.Option("--strict", help="End with 1 for warnings too.")] = False,
    registry: Annotated[
        str | None,
        typer.Option("--registry", metavar="URL", help="Where columns that statements do not name are looked up."),
    ] = None,
    functions_path: Functions = None,
    data: Data = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Say what is wrong with scripts, line by line, and what they seldom mean, without running them.

    A script is planned as if nothing existed before it; with --data or --bootstrap, on what exists there.

    Example: logflume sql lint queries.sql --bootstrap 127.0.0.1:9092
    """
    from logflume.sql.findings import Severity

    texts = [(path, _read(path)) for path in files]
    catalog = None if data is None and bootstrap is None else _existing(where(data, bootstrap), functions_path)
    findings = _linter(catalog, registry, functions_path)
    failing = {Severity.ERROR, Severity.WARNING} if strict else {Severity.ERROR}
    is_bad = False
    for path, text in texts:
        for found in findings(text):
            typer.echo(json.dumps({"file": str(path), **asdict(found)}) if as_json else f"{path}:{found}")
            is_bad = is_bad or found.severity in failing
    if is_bad:
        raise typer.Exit(1)


def _linter(catalog: Catalog | None, registry_url: str | None, functions: Path | None) -> Callable[[str], Iterable[Finding]]:
    """Return what looks at a script: its plans too where the engine is installed, else its syntax alone, and says so."""
    if find_spec("rocksdict") is None:
        if functions is not None:
            raise InvalidInput("--functions needs the engine, which plans with them: pip install 'logflume[sql]'")
        if registry_url is not None:
            raise InvalidInput("--registry needs the engine, which looks up columns there: pip install 'logflume[sql]'")
        from logflume.sql.findings import syntax_findings

        print("only the syntax is checked; names, types and plans need the engine: pip install 'logflume[sql]'", file=sys.stderr)
        return syntax_findings
    from logflume.sql.function_files import functions_at
    from logflume.sql.lint import lint_script

    return partial(lint_script, catalog=catalog, registry_url=registry_url, functions=functions_at(functions))


def _existing(address: str, functions: Path | None) -> Catalog:
    """Return what exists on a log; nothing is run there."""
    import tempfile

    from logflume.log import connect_as_owner
    from logflume.sql.engine import SqlEngine
    from logflume.sql.function_files import functions_at

    with (
        tempfile.TemporaryDirectory() as folder,
        connect_as_owner(address) as log,
        SqlEngine(log, Path(folder), runs_queries=False, library=functions_at(functions)) as engine,
    ):
        engine.following.catch_up()
        return engine.catalog
