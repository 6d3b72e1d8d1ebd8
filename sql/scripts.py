"""Scripts: text -> statements, split at ';' outside quotes and comments; and `${name}` substitution. Knows no grammar."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .ast import Span
from .errors import SyntaxFault

# What a ';' may hide in. An open quote or comment runs to the end of the text.
_OPAQUE = re.compile(r"'(?:[^']|'')*(?:'|\Z)|\"(?:[^\"]|\"\")*(?:\"|\Z)|`(?:[^`]|``)*(?:`|\Z)|--[^\n]*|/\*[\s\S]*?(?:\*/|\Z)|;")
_BLANK = re.compile(r"(?:\s|--[^\n]*(?:\n|\Z)|/\*[\s\S]*?\*/)*")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_@]*\Z|`[^`]+`\Z|\"[^\"]+\"\Z")

# Scripts beyond this are refused: a parser needs memory in proportion.
SCRIPT_MAX_CHARS = 4_000_000


@dataclass(frozen=True, slots=True)
class StatementText:
    """One statement of a script, without its ';': its text and the line and column (from 1) where it starts.

    `is_complete` is False for a last statement that no ';' closes.
    """

    text: str
    line: int
    column: int
    is_complete: bool


def split_script(text: str) -> Iterator[StatementText]:
    """Yield the statements of a script in order; blank ones and leading comments are left out.

    >>> [s.text for s in split_script("SHOW TOPICS; -- all; of them\\nSHOW TABLES")]
    ['SHOW TOPICS', 'SHOW TABLES']
    """
    check_length(text)
    start = 0
    for match in _OPAQUE.finditer(text):
        if match.group() == ";":
            yield from _statement(text, start, match.start(), is_complete=True)
            start = match.end()
    yield from _statement(text, start, len(text), is_complete=False)


def check_length(text: str) -> None:
    """Refuse a script that is too long to be read. Raises SyntaxFault."""
    if len(text) > SCRIPT_MAX_CHARS:
        raise SyntaxFault(f"a script may have {SCRIPT_MAX_CHARS:,} characters, this one has {len(text):,}; split it")


def _statement(text: str, start: int, stop: int, *, is_complete: bool) -> Iterator[StatementText]:
    blank = _BLANK.match(text, start, stop)
    begin = blank.end() if blank else start
    body = text[begin:stop].rstrip()
    if body:
        line = text.count("\n", 0, begin) + 1
        yield StatementText(body, line, begin - (text.rfind("\n", 0, begin) + 1) + 1, is_complete)


def is_complete(text: str) -> bool:
    """Tell whether an input line ends a statement: nothing but blanks after the last ';', no open quote or comment."""
    return all(s.is_complete for s in split_script(text))


def substitute(text: str, variables: Mapping[str, str]) -> str:
    """Return `text` with each `${name}` that is defined replaced; undefined ones stay.

    Inside a quoted string a single quote of the value is doubled. Outside, the value must be a name, a number, a boolean or a
    quoted string, so that a variable can never add syntax.

    Raises:
        SyntaxFault: a value that may not stand where it is used.
    """
    if "${" not in text or not variables:
        return text
    folded = {k.upper(): v for k, v in variables.items()}
    quoted = [m.span() for m in _OPAQUE.finditer(text) if m.group()[0] == "'"]

    def replace(match: re.Match[str]) -> str:
        value = folded.get(match.group(1).upper())
        if value is None:
            return match.group()
        if any(a < match.start() < b for a, b in quoted):
            return value.replace("'", "''")
        if _IDENTIFIER.match(value) or re.fullmatch(r"-?\d+(\.\d+)?|'(?:[^']|'')*'", value):
            return value
        raise SyntaxFault(
            f"Illegal argument at line: {value!r} cannot stand for ${{{match.group(1)}}} here; "
            "expected a name, a number, a boolean or a quoted string",
            Span(match.start(), match.end()),
        )

    return _VARIABLE.sub(replace, text)
