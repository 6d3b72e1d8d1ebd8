"""Reading statements line by line, with nothing but Python: the shell's prompt where prompt-toolkit is not installed."""

from __future__ import annotations

from collections.abc import Callable

from .scripts import is_complete

PROMPT, PROMPT_MORE = "logflume> ", "     ...> "
Reader = Callable[[], str]
"""Returns one input. Raises EOFError: there is no more; KeyboardInterrupt: it was left off."""


def is_accepted(text: str) -> bool:
    """Tell whether Enter ends the input: a closed statement, a command, or nothing at all."""
    stripped = text.strip()
    if not stripped or stripped.startswith("\\") or stripped.lower() in ("exit", "quit", "help"):
        return True
    return is_complete(text)


def plain_reader() -> Reader:
    """Return a reader of standard input, without completion and history."""

    def read() -> str:
        text = input(PROMPT)
        while not is_accepted(text):
            text += "\n" + input(PROMPT_MORE)
        return text

    return read
