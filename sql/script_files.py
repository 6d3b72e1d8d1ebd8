"""RUN SCRIPT: the statements of a script, those of the files that it names among them, read where whoever executes them is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from logflume.log import InvalidInput

from . import ast
from .errors import StatementError
from .parser import parse_statement
from .scripts import StatementText, split_script
from .session import Session

# Scripts that run scripts: deeper is a loop.
DEPTH_MAX = 10


def all_statements(text: str, user: Session, *, depth: int = 0) -> Iterator[StatementText]:
    """Yield the statements of a script in order, in place of each RUN SCRIPT those of its file.

    Each is parsed only when it is asked for, with what `user` has defined by then.

    Raises:
        StatementError: a text of no statement; scripts that run each other. InvalidInput: a file cannot be read.
    """
    for source in split_script(text):
        statement = parse_statement(source, variables=user.variables)
        if isinstance(statement, ast.RunScript):
            path = Path(statement.path)
            if depth == DEPTH_MAX:
                raise StatementError(f"{path}: scripts run each other {depth + 1} deep; at most {DEPTH_MAX} are allowed")
            yield from all_statements(read_script(path), user, depth=depth + 1)
        else:
            yield source


def read_script(path: Path) -> str:
    """Return the text of a script. Raises InvalidInput."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise InvalidInput(f"cannot read the script {path}: {e}") from None
