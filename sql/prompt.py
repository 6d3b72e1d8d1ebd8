"""What reads the shell's lines at a terminal: several lines, completion, a history that outlives it (prompt-toolkit)."""

from __future__ import annotations

from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output

from .completion import SqlCompleter
from .executor import Executor
from .plain_input import PROMPT, PROMPT_MORE, Reader, is_accepted


def prompt_reader(executor: Executor, history: Path, prompt_input: Input | None, prompt_output: Output | None) -> Reader:
    """Return what reads one input. `prompt_input`, `prompt_output`: None: the terminal."""
    session: PromptSession[str] = PromptSession(
        history=_history(history),
        completer=SqlCompleter(executor),
        key_bindings=_bindings(),
        multiline=True,
        prompt_continuation=lambda width, line, wrapped: PROMPT_MORE,
        complete_while_typing=False,
        input=prompt_input,
        output=prompt_output,
    )
    return lambda: session.prompt(PROMPT)


def _history(path: Path) -> History:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600, exist_ok=True)
    except OSError:
        return InMemoryHistory()
    return FileHistory(path)


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
