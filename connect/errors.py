"""The errors of connect; all are `LogflumeError`s.

InvalidInput
+-- ConfigErrors       a connector's configuration, every problem in one error
+-- BrokenRow          a row of a source that cannot be a record (file, line, column, reason)
+-- SourceChanged      a source was truncated, rewritten or rotated under an offset
LogflumeError
+-- TargetRefused      a target of a sink cannot take the records as they are
+-- TargetConflict     another task wrote to the target; this one goes on from what the target holds
+-- TaskFenced         another worker runs the same task; this one must not go on
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from logflume.log import InvalidInput, LogflumeError


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with one key of a configuration."""

    key: str
    message: str

    def __str__(self) -> str:
        return f"{self.key}: {self.message}"


class ConfigErrors(InvalidInput):
    """Everything that is wrong with one connector's configuration; nothing was started."""

    code = "CONNECTOR_CONFIG"

    def __init__(self, where: str, problems: Sequence[Problem]) -> None:
        self.where = where
        self.problems = tuple(problems)
        count = f"{len(problems)} problem{'' if len(problems) == 1 else 's'}"
        lines = "".join(f"\n  {problem}" for problem in problems)
        super().__init__(f"{where}: {count}, nothing was started{lines}")


class BrokenRow(InvalidInput):
    """A row that cannot be turned into a record. `line` counts from 1 (0: the format has no lines)."""

    code = "BROKEN_ROW"

    def __init__(self, file: str, line: int, column: str | None, reason: str) -> None:
        self.file, self.line, self.column, self.reason = file, line, column, reason
        at_line = f", line {line}" if line else ""
        at_column = f", column {column}" if column else ""
        super().__init__(
            f"{file}{at_line}{at_column}: {reason}; correct the row, or "
            'set errors.tolerance = "all" to keep such rows in the dead-letter topic and go on'
        )


class SourceChanged(InvalidInput):
    """The source is no longer what the kept offset belongs to."""

    code = "SOURCE_CHANGED"


class TargetRefused(LogflumeError):
    """The target cannot take the records as they are; trying again does not help."""

    code = "TARGET_REFUSED"


class TargetConflict(LogflumeError):
    """Another task of the same connector wrote to the target; nothing of this one's was, and it begins again from the target."""

    code = "TARGET_CONFLICT"
    is_retriable = True


class TaskFenced(LogflumeError):
    """Another worker runs the same task and has moved on; this one has stopped."""

    code = "TASK_FENCED"
