"""Runs SQL text or files without a prompt: `logflume sql -e` and `-f`. Results go out as they come, errors to stderr."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from logflume.log import LogflumeError, ProgressLine

from .connectors import ConnectorsOf
from .executor import Executor
from .paging import paged
from .render import (
    TABLE_ROWS_MAX,
    RowLines,
    RowText,
    change_json,
    change_text,
    error_text,
    left_out_text,
    names_text,
    print_message,
    print_rows,
    row_csv,
    row_tabbed,
)
from .results import Message, PushQuery, PushRow, Result, Rows
from .script_files import all_statements, read_script
from .scripts import StatementText
from .session import Session

if TYPE_CHECKING:
    from logflume.streams.functions import Library

_FIRST_ROWS = 50
_FIRST_WAIT_S = 0.3


@contextmanager
def open_executor(
    where: str,
    *,
    state_dir: Path | None = None,
    ca: Path | None = None,
    connectors: ConnectorsOf | None = None,
    functions: Library | None = None,
) -> Iterator[Executor]:
    """Open an engine on a log, or where a URL is given a session with that SQL server; close it at the end."""
    if not where.startswith(("http://", "https://")):
        from .opening import open_engine  # what only uses a server has no engine, and perhaps not what that needs

        with open_engine(where, state_dir=state_dir, connectors=connectors, functions=functions) as engine:
            yield engine
        return
    from .client import SqlClient

    with SqlClient(where, ca=ca) as client:
        client.check_reachable()
        yield client


def shown_address(where: str) -> str:
    """Return an address without a password in it.

    >>> shown_address("https://ada:secret@host:8088"), shown_address("./data")
    ('https://host:8088', './data')
    """
    scheme, separator, rest = where.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}" if separator else where


class StatementRunner(ABC):
    """Executes statements one by one and shows what they give; how, is for those who inherit.

    `progress`: where a statement that takes a while says how far it has read; by default stderr.
    """

    def __init__(self, executor: Executor, *, progress: ProgressLine | None = None) -> None:
        self.executor = executor
        self.session = Session()
        self._progress = progress or ProgressLine(sys.stderr)

    def run_text(self, text: str) -> None:
        """Execute a script. Raises LogflumeError at the first statement that fails; those before it stay done."""
        for source in all_statements(text, self.session):
            self.executor.check_reachable()
            self.session.rows_max = self.rows_max()
            for result in self._execute(source):
                if isinstance(result, PushQuery):
                    self.follow(result)
                elif isinstance(result, Rows):
                    self.show_rows(result)
                else:
                    self.show_message(result)

    def _execute(self, source: StatementText) -> list[Result]:
        """Execute a statement; say how far it has read if that takes a while."""
        self._progress.begin()
        self.session.on_read = partial(self._progress.show, "records read:")
        with self._progress:
            return self.executor.execute_one(source, session=self.session)

    @abstractmethod
    def rows_max(self) -> int | None:
        """Return how many rows of a query that ends are asked for; None: all."""

    @abstractmethod
    def show_rows(self, result: Rows) -> None: ...

    @abstractmethod
    def show_message(self, result: Message) -> None: ...

    @abstractmethod
    def follow(self, query: PushQuery) -> None:
        """Show the rows of a running query until its limit, or until it is interrupted, which ends the query only."""


class Runner(StatementRunner):
    """Executes statements and prints what they give. `row_text`: how rows are written, if not for a screen."""

    def __init__(
        self,
        executor: Executor,
        console: Console,
        *,
        is_json: bool = False,
        row_text: RowText | None = None,
        progress: ProgressLine | None = None,
    ) -> None:
        super().__init__(executor, progress=progress)
        self.console, self.is_json, self.row_text = console, is_json, row_text

    def rows_max(self) -> int | None:
        return None if self.is_json or self.row_text else TABLE_ROWS_MAX

    def show_rows(self, result: Rows) -> None:
        with paged(self.console):
            print_rows(self.console, result, is_json=self.is_json, row_text=self.row_text)
        if result.note and self.row_text and not self.is_json:
            print(result.note, file=sys.stderr)

    def show_message(self, result: Message) -> None:
        print_message(self.console, result, is_json=self.is_json)

    def follow(self, query: PushQuery) -> None:
        try:
            for line in self._lines(query):
                if self.row_text:
                    print(line, file=self.console.file, flush=True)
                else:
                    self.console.print(line, markup=False, highlight=False, soft_wrap=True)
        except KeyboardInterrupt:
            if not self.is_json:
                self.console.print("\nquery stopped", style="dim")
        finally:
            query.close()
            if (left_out := left_out_text(query)) and not self.is_json:
                self.console.print(left_out, style="yellow", markup=False, highlight=False)

    def _lines(self, query: PushQuery) -> Iterator[str]:
        if self.is_json:
            for row in query:
                yield change_json(query.columns, row)
            return
        if self.row_text:
            yield names_text(query.columns, self.row_text)
            for row in query:
                yield change_text(query.columns, row, self.row_text)
            return
        lines = RowLines(query.columns, self.console.width)
        if query.limit is None and self.console.is_terminal:
            yield "following from the beginning; Ctrl-C stops the query"
        first: list[PushRow] = []
        wanted = _FIRST_ROWS if query.limit is None else min(query.limit, _FIRST_ROWS)
        while len(first) < wanted:
            early = query.poll(timeout_s=_FIRST_WAIT_S)
            if early is not None:
                first.append(early)
            elif first:
                break
        yield from lines.start(first)
        for row in first:
            yield lines.line(row)
        query.limit = None if query.limit is None else query.limit - len(first)
        for row in query:
            yield lines.line(row)


def run_batch(
    where: str,
    *,
    text: str | None = None,
    path: Path | None = None,
    is_json: bool = False,
    is_csv: bool = False,
    state_dir: Path | None = None,
    ca: Path | None = None,
    console: Console | None = None,
    connectors: ConnectorsOf | None = None,
    functions: Library | None = None,
    errors: Console | None = None,
) -> int:
    """Run a text or a file; return the exit code: 0, or 1 when a statement failed (its error goes to stderr).

    `where` and `ca` as for `run_shell`.
    Queries that the script starts on a log run while this process does, and go on with the next one that opens the log.
    """
    out = console or Console(file=sys.stdout)
    err = errors or Console(file=sys.stderr)
    with open_executor(where, state_dir=state_dir, ca=ca, connectors=connectors, functions=functions) as executor:
        is_piped = console is None and not sys.stdout.isatty()
        runner = Runner(executor, out, is_json=is_json, row_text=row_csv if is_csv else row_tabbed if is_piped else None)
        try:
            if text is not None:
                runner.run_text(text)
            if path is not None:
                runner.run_text(read_script(path))
        except LogflumeError as e:
            err.print(error_text(e), markup=False, highlight=False, soft_wrap=True)
            return 1
        except KeyboardInterrupt:
            return 130
    return 0
