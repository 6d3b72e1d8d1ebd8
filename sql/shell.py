"""The shell, `logflume sql`: a statement ends with ';' and may take several lines; Ctrl-C stops a query, not the shell."""

from __future__ import annotations

from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output
from rich.console import Console
from rich.text import Text

from logflume.log import LogflumeError, near_matches

from .batch import Runner, open_executor, shown_address
from .completion import SqlCompleter
from .connectors import ConnectorsOf
from .executor import Executor
from .render import error_text
from .scripts import is_complete

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
_PROMPT, _PROMPT_MORE = "logflume> ", "     ...> "


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
    console: Console | None = None,
) -> int:
    """Run the shell until the user leaves; return the exit code.

    `where` is what `logflume.log.connect` takes, or the URL of a SQL server (`ca`: who signed its certificate).
    `prompt_input`, `prompt_output` and `console` are for tests.
    """
    out = console or Console()
    with open_executor(where, state_dir=state_dir, ca=ca, connectors=connectors) as executor:
        Shell(executor, out, where, is_json=is_json).run(_history(history_path), prompt_input, prompt_output)
    return 0


def default_history() -> Path:
    """Return the history file: ~/.local/state/logflume/sql-history."""
    return Path.home() / ".local" / "state" / "logflume" / "sql-history"


def _history(path: Path | None) -> History:
    wanted = path or default_history()
    try:
        wanted.parent.mkdir(parents=True, exist_ok=True)
        wanted.touch(mode=0o600, exist_ok=True)
    except OSError:
        return InMemoryHistory()
    return FileHistory(wanted)


class Shell:
    """One shell over one engine or server."""

    def __init__(self, executor: Executor, console: Console, where: str, *, is_json: bool) -> None:
        self._executor, self._console, self._where = executor, console, where
        self._runner = Runner(executor, console, is_json=is_json)

    def run(self, history: History, prompt_input: Input | None, prompt_output: Output | None) -> None:
        """Read statements and execute them until the end of input or \\q."""
        session: PromptSession[str] = PromptSession(
            history=history,
            completer=SqlCompleter(self._executor),
            key_bindings=_bindings(),
            multiline=True,
            prompt_continuation=lambda width, line, wrapped: _PROMPT_MORE,
            complete_while_typing=False,
            input=prompt_input,
            output=prompt_output,
        )
        self._banner()
        while True:
            try:
                text = session.prompt(_PROMPT).strip()
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


def is_accepted(text: str) -> bool:
    """Tell whether Enter ends the input: a closed statement, a command, or nothing at all."""
    stripped = text.strip()
    if not stripped or stripped.startswith("\\") or stripped.lower() in ("exit", "quit", "help"):
        return True
    return is_complete(text)


def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer: Buffer = event.current_buffer
        if is_accepted(buffer.text):
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    return bindings
