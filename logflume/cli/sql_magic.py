"""The magic of notebooks: `%%sql` is a cell of statements, `%sql` a line of one; as `logflume sql -e`, results as tables."""

from __future__ import annotations

import argparse
import concurrent.futures.thread  # noqa: F401  before `SqlCells`, see there
import keyword
import math
import os
import shlex
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from logflume.cli.common import extra_advice
from logflume.cli.sql import SERVER_VARIABLE, own_functions, place_of
from logflume.log import InvalidInput, LogflumeError

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from logflume.sql.function_files import FunctionFile
    from logflume.sql.notebook import NotebookRunner


class CellFailed(Exception):
    """A cell fails: said as the shell says it, without a traceback, and the cells below do not run."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class SqlCells:
    """The magic of one notebook. What it has opened stays so until the notebook ends: its queries run meanwhile."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._opened = ExitStack()
        self._runners: dict[str, NotebookRunner] = {}
        self._functions: dict[str, tuple[FunctionFile, ...]] = {}  # of each session, as they were when it was opened
        self._last_place: str | None = None
        # As pools of threads do, and before them (the last one first): what `atexit` has comes when no engine can work any more.
        threading._register_atexit(self.close)  # type: ignore[attr-defined]

    def close(self) -> None:
        """End all sessions. Idempotent."""
        self._runners.clear()
        self._functions.clear()
        self._last_place = None
        self._opened.close()

    def sql(self, line: str, cell: str | None = None) -> None:
        if cell is None:
            given, text = _arguments().parse(""), _statement(line)
        else:
            # What stands in the magic's line is the cell's first line, so places are those of the cell.
            given, text = _arguments().parse(line), "\n" + cell
        try:
            runner = self._runner(given)
            kept = runner.run_cell(text, rows_max=given.rows, live_s=given.seconds, is_kept=given.name is not None)
        except LogflumeError as error:
            from logflume.sql.render import error_text

            raise CellFailed(error_text(error)) from None
        except ModuleNotFoundError as error:
            advice = extra_advice(error, "sql")
            if advice is None:
                raise
            raise CellFailed(advice) from None
        except KeyboardInterrupt:
            raise CellFailed("stopped") from None
        if given.name is not None:
            self._shell.user_ns[given.name] = kept

    def _runner(self, given: argparse.Namespace) -> NotebookRunner:
        """Return the session with what a cell names, else with that of the cell before it."""
        is_named = any(each is not None for each in (given.server, given.data, given.bootstrap))
        server = given.server or os.environ.get(SERVER_VARIABLE)
        if not is_named and self._last_place is not None:
            address, connectors = self._last_place, None
        else:
            address, connectors = place_of(server, given.data, given.bootstrap)
        if address in self._runners:
            if given.functions is not None and self._functions[address] != _files_at(given.functions):
                raise InvalidInput(
                    f"the session with {address} was not opened with these functions as they are now; "
                    "%reload_ext logflume ends it, the next cell opens one with --functions"
                )
        else:
            from logflume.sql.batch import open_executor
            from logflume.sql.notebook import NotebookRunner

            own = own_functions(given.functions, server)
            self._functions[address] = _files_at(given.functions)
            opened = self._opened.enter_context(open_executor(address, ca=given.ca, connectors=connectors, functions=own))
            self._runners[address] = NotebookRunner(opened)
        self._last_place = address
        return self._runners[address]


def _files_at(path: Path | None) -> tuple[FunctionFile, ...]:
    """Return the files with functions, by their full names: a notebook's directory may change between two cells."""
    from logflume.sql.function_files import function_files

    return () if path is None else tuple(function_files(path.resolve()))


class _Parser(argparse.ArgumentParser):
    def parse(self, line: str) -> argparse.Namespace:
        """Return what a magic's line says. Raises UsageError."""
        try:
            words = shlex.split(line)
        except ValueError as error:
            self.error(f"{error}: {line}")
        return self.parse_args(words)

    def error(self, message: str) -> NoReturn:
        from IPython.core.error import UsageError

        raise UsageError(f"{message}; %%sql? says what it takes")


def _statement(line: str) -> str:
    """Return what stands behind `%sql`. Raises UsageError if that is no statement."""
    from IPython.core.error import UsageError

    if not line.strip():
        raise UsageError("%sql takes a statement, such as %sql SHOW STREAMS; a cell of several begins with %%sql")
    if line.lstrip().startswith("--"):
        raise UsageError(f"%sql takes a statement alone; options stand in the first line of a cell: %%sql {line.strip()}")
    return line


def _name(text: str) -> str:
    if not text.isidentifier() or keyword.iskeyword(text):
        raise argparse.ArgumentTypeError(f"expected a name of Python, found {text!r}")
    return text


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number of seconds above 0, found {text!r}")
    return found


def _rows(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of rows of 1 or more, found {text!r}")
    return int(text)


def _arguments() -> _Parser:
    from logflume.sql.notebook import ROWS_SHOWN

    parser = _Parser(prog="%%sql", add_help=False, allow_abbrev=False, description="Statements of a cell, each ended by ;")
    parser.add_argument("name", nargs="?", type=_name, help="where the last rows are kept (DataFrame, else Arrow table)")
    parser.add_argument("--server", metavar="URL", help="a SQL server; else $LOGFLUME_SQL_SERVER")
    parser.add_argument("--ca", metavar="FILE", type=Path, help="who signed the server's certificate (PEM)")
    parser.add_argument("--data", metavar="DIR", help="data directory: opened here, or joined if it is in use")
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="a logflume broker or an Apache Kafka cluster")
    parser.add_argument("--functions", metavar="PATH", type=Path, help="a file or folder with functions of your own")
    parser.add_argument("--rows", metavar="N", type=_rows, default=ROWS_SHOWN, help="rows that are shown (%(default)s)")
    parser.add_argument("--seconds", metavar="N", type=_seconds, default=math.inf, help="how long a query that goes on is shown")
    return parser


def load(shell: InteractiveShell) -> None:
    """Give a notebook the magic."""
    from IPython.core.magic import no_var_expand

    SqlCells.sql.__doc__ = _arguments().format_help()
    no_var_expand(SqlCells.sql)
    shell.magics_manager.register_function(SqlCells(shell).sql, "line_cell")


def unload(shell: InteractiveShell) -> None:
    """Take the magic from a notebook, and end its sessions."""
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("sql").__self__.close()
