"""What is found in a script without running it; and what its syntax alone tells, which needs no engine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from logflume.log import InvalidInput

from . import ast
from .errors import StatementError
from .parser import parse_statement
from .scripts import StatementText, split_script

_USED = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class Severity(StrEnum):
    """How bad it is: `error`: it cannot run; `warning`: it runs, and seldom does what was meant; `note`: it was not looked at."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing, at a place of the script (from 1). `code`: what warnings are told apart by."""

    line: int
    column: int
    severity: Severity
    code: str
    message: str

    def __str__(self) -> str:
        return f"{self.line}:{self.column}: {self.severity}: {self.message} [{self.code}]"


def at(source: StatementText, span: ast.Span, severity: Severity, code: str, message: str) -> Finding:
    """Return a finding at a place of a statement."""
    place = StatementError(message, span).locate(source.text, first_line=source.line, first_column=source.column)
    return Finding(place.line, place.column, severity, code, message)


def used_variables(source: StatementText) -> set[str]:
    """Return the names of the variables that a statement has, in capitals."""
    return {name.upper() for name in _USED.findall(source.text)}


def undefined(source: StatementText, variables: Mapping[str, str]) -> Finding | None:
    """Return a note where a statement has variables that its script has not defined: it is not looked at then."""
    missing = used_variables(source) - {name.upper() for name in variables}
    if not missing:
        return None
    shown = ", ".join(f"${{{name}}}" for name in sorted(missing))
    return at(source, ast.NOWHERE, Severity.NOTE, "not-checked", f"{shown} is not defined in this script")


def refusal(error: InvalidInput, source: StatementText) -> Finding:
    """Return why a statement is refused, at its place in the script."""
    if isinstance(error, StatementError):
        error.locate(source.text, first_line=source.line, first_column=source.column)
        return Finding(error.line, error.column, Severity.ERROR, error.code, error.reason)
    return at(source, ast.NOWHERE, Severity.ERROR, error.code, str(error))


def syntax_findings(text: str) -> Iterator[Finding]:
    """Yield the statements of a script that are none, in order.

    >>> [str(found) for found in syntax_findings("SHOW TABLES;\\nSELECT * FORM s;")][0][:19]
    '2:10: error: Syntax'
    """
    variables: dict[str, str] = {}
    for source in split_script(text):
        if missing := undefined(source, variables):
            yield missing
            continue
        try:
            statement = parse_statement(source, variables=variables)
            if isinstance(statement, ast.Define):
                variables[statement.name] = statement.value
        except InvalidInput as error:
            yield refusal(error, source)
