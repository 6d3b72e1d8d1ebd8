"""What can be wrong with a statement. The tree follows who is to blame and when it shows:

SqlError                    anything about SQL
+-- StatementError          a statement that cannot be run: position, cause and fix; nothing has changed
|   +-- UnknownSource       no stream or table of that name
|   +-- NoColumns           a stream or table is declared without columns
|   +-- SyntaxFault         the text is not of the dialect (ksqlDB's parse error)
|   +-- NotSupported        of the dialect, but without meaning here yet
+-- QueryFailed             a running query stopped
"""

from __future__ import annotations

from logflume.log import InvalidInput, LogflumeError

from .ast import NOWHERE, Span


class SqlError(InvalidInput):
    """Root of the errors of SQL."""

    code = "SQL_ERROR"


class StatementError(SqlError):
    """A statement is refused.

    Attributes:
        reason: what is wrong and what to do, without the position.
        span: the characters of `text` at fault.
        text: the failing statement alone (empty until a stage that has it calls `locate`).
        line, column: position of the fault in the script, from 1; 0 while unknown.
    """

    code = "SQL_STATEMENT"

    def __init__(self, reason: str, span: Span = NOWHERE) -> None:
        super().__init__(reason)
        self.reason, self.span = reason, span
        self.text = ""
        self.line = self.column = 0

    def within(self, what: str) -> StatementError:
        """Say before the reason what was being done; return self."""
        self.reason = f"{what}{self.reason}"
        self.args = (self.reason,)
        return self

    def locate(self, text: str, *, first_line: int = 1, first_column: int = 1) -> StatementError:
        """Fill in the statement's text and the position, once; return self."""
        if not self.text:
            self.text = text
            before = text[: self.span.start]
            lines = before.count("\n")
            self.line = first_line + lines
            self.column = len(before) - (before.rfind("\n") + 1) + (first_column if lines == 0 else 1)
        return self

    def __str__(self) -> str:
        if not self.text:
            return self.reason
        return f"line {self.line}, column {self.column}: {self.reason}"

    def pointer(self) -> str:
        """Return the line at fault with a caret line below it; empty while the text is unknown."""
        if not self.text:
            return ""
        start = self.text.rfind("\n", 0, self.span.start) + 1
        end = self.text.find("\n", self.span.start)
        line = self.text[start : end if end >= 0 else len(self.text)]
        width = max(1, min(self.span.stop, start + len(line)) - self.span.start)
        return f"{line}\n{' ' * (self.span.start - start)}{'^' * width}"


class UnknownSource(StatementError):
    """There is no stream or table `name`."""

    def __init__(self, name: str, reason: str, span: Span = NOWHERE) -> None:
        super().__init__(reason, span)
        self.name = name


class NoColumns(StatementError):
    """The statement declares `name` over a topic, and no columns."""

    def __init__(self, name: str, topic: str, what: str, span: Span = NOWHERE) -> None:
        key = "KEY" if what == "STREAM" else "PRIMARY KEY"
        example = f"CREATE {what} {what[0]} (ID BIGINT {key}, NAME STRING) WITH (...)"
        super().__init__(f"The statement does not define any columns. Name them, as in {example}", span)
        self.name, self.topic, self.what = name, topic, what


class SyntaxFault(StatementError):
    """The text is not a statement of the dialect."""

    code = "SQL_SYNTAX"


class NotSupported(StatementError):
    """The dialect has it, logflume does not yet."""

    code = "SQL_NOT_SUPPORTED"

    def __init__(self, what: str, span: Span = NOWHERE) -> None:
        super().__init__(f"{what} is not supported yet", span)


def for_tests_only(what: str, span: Span) -> StatementError:
    """Return the error for an assertion that only tools know which run test scripts, here as in ksqlDB."""
    return StatementError(
        f"{what} is for tools that run test scripts, as in ksqlDB; SELECT and DESCRIBE tell what is there, and ASSERT TOPIC or "
        "SCHEMA waits for it",
        span,
    )


class QueryFailed(LogflumeError):
    """A running query stopped; the message names query and cause."""

    code = "SQL_QUERY_FAILED"
