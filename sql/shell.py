"""The shell, `logflume sql`: a statement ends with ';' and may take several lines; Ctrl-C stops a query, not the shell."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from logflume.log import LogflumeError, near_matches

from .batch import Runner, open_executor, shown_address
from .connectors import ConnectorsOf
from .executor import Executor
from .plain_input import Reader, plain_reader
from .render import error_text

if TYPE_CHECKING:
    from prompt_toolkit.input import Input
    from prompt_toolkit.output import Output

    from logflume.streams.functions import Library

HELP = """\
A statement ends with ';'. Some to begin with:

  SHOW TOPICS;  SHOW STREAMS;  SHOW TABLES;  SHOW QUERIES;  SHOW FUNCTIONS;
  CREATE STREAM s (id INT KEY, v DOUBLE) WITH (KAFKA_TOPIC='s', PARTITIONS=1, VALUE_FORMAT='JSON');
  INSERT INTO s VALUES (1, 2.5);
  SELECT * FROM s;                     what is there now, then done
  SELECT * FROM s EMIT CHANGES;        from the beginning, then follows; Ctrl-C stops the query
  CREATE TABLE t AS SELECT id, COUNT(*) AS n FROM s GROUP BY id;
  DESCRIBE t EXTENDED;  EXPLAIN SELECT ...;  DESCRIBE FUNCTION ROUND;

  \\help   this text          \\q   leave (also Ctrl-D)
  \\json   rows as JSON       \\box rows as boxes
  RUN SCRIPT 'file.sql';     run a file
"""
_COMMANDS = ("\\help", "\\?", "\\q", "\\quit", "\\json", "\\box")


def run_shell(
    where: str,
    *,
    state_dir: Path | None = None,
    ca: Path | None = None,
    is_json: bool = False,
    history_path: Path | None = None,
    prompt_input: Input | None = None,
    prompt_output: Output | None = None,
    connectors: ConnectorsOf | None = None,
    functions: Library | None = None,
    console: Console | None = None,
) -> int:
    """Run the shell until the user leaves; return the exit code.

    `where` is what `logflume.log.connect` takes, or the URL of a SQL server (`ca`: who signed its certificate).
    `prompt_input`, `prompt_output` and `console` are for tests.
    """
    out = console or Console()
    with open_executor(where, state_dir=state_dir, ca=ca, connectors=connectors, functions=functions) as executor:
        if find_spec("prompt_toolkit") is None:
            read = plain_reader()
        else:
            from .prompt import prompt_reader

            read = prompt_reader(executor, history_path or default_history(), prompt_input, prompt_output)
        Shell(executor, out, where, is_json=is_json).run(read)
    return 0


def default_history() -> Path:
    """Return the history file: ~/.local/state/logflume/sql-history."""
    return Path.home() / ".local" / "state" / "logflume" / "sql-history"


class Shell:
    """One shell over one engine or server."""

    def __init__(self, executor: Executor, console: Console, where: str, *, is_json: bool) -> None:
        self._executor, self._console, self._where = executor, console, where
        self._runner = Runner(executor, console, is_json=is_json)

    def run(self, read: Reader) -> None:
        """Read statements and execute them until the end of input or \\q."""
        self._banner()
        while True:
            try:
                text = read().strip()
            except KeyboardInterrupt:
                continue
            except EOFError:
                return
            if text and not self.execute(text):
                return

    def _banner(self) -> None:
        self._console.print(Text(f"logflume SQL on {shown_address(self._where)}", style="bold"))
        first, *warnings = self._executor.about()
        self._console.print(
            Text(f"{first} Reads start at the beginning (earliest) unless told otherwise. \\help helps, \\q leaves.")
        )
        for warning in warnings:
            self._console.print(Text(warning, style="yellow"))

    def execute(self, text: str) -> bool:
        """Execute what was entered; False: leave."""
        if text.startswith("\\") or text.rstrip(";").lower() in ("exit", "quit", "help"):
            return self._command(text if text.startswith("\\") else "\\" + text.rstrip(";").lower().replace("exit", "q"))
        try:
            self._runner.run_text(text)
        except LogflumeError as e:
            self._console.print(Text(error_text(e), style="red"), soft_wrap=True)
        except KeyboardInterrupt:
            self._console.print(Text("stopped", style="dim"))
        return True

    def _command(self, text: str) -> bool:
        match text.split()[0].lower():
            case "\\q" | "\\quit":
                return False
            case "\\help" | "\\?":
                self._console.print(HELP, markup=False, highlight=False)
            case "\\json":
                self._runner.is_json = True
            case "\\box":
                self._runner.is_json = False
            case unknown:
                near = near_matches(unknown, _COMMANDS)
                hint = f"; did you mean {near[0]}?" if near else "; \\help lists what there is"
                self._console.print(Text(f"unknown command {unknown}{hint}", style="red"))
        return True
