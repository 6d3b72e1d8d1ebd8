"""A run of rows read from a file: typed columns, where each row ends, which are broken. Data, shared by the formats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from logflume.connect.api import I64, Broken
from logflume.log.schemas import Column


@dataclass(frozen=True, slots=True)
class BrokenAt:
    """A broken row and the number of good rows of the block before it."""

    rows_before: int
    broken: Broken


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """N good rows as columns.

    Attributes:
        columns: one list of N row values each, aligned with the reader's columns.
        ends: int64[N], position in the file behind each row (bytes; rows for Parquet).
        lines: int64[N], line (row) number of each row, from 1; next_lines: that of what begins at `ends`.
        broken: in the order of the file.
        end, end_line: position and line number behind the block; line numbers count from 1.
    """

    columns: list[list[Any]]
    ends: I64
    lines: I64
    next_lines: I64
    broken: tuple[BrokenAt, ...]
    end: int
    end_line: int

    def __len__(self) -> int:
        return len(self.ends)


@dataclass(frozen=True, slots=True)
class Start:
    """Where to begin: position (bytes or rows) and the number of the line that begins there."""

    position: int = 0
    line: int = 1


class FileReader(Protocol):
    """Reads one open file from a position on. Owns the file."""

    @property
    def columns(self) -> tuple[Column, ...]: ...

    def blocks(self, start: Start) -> Iterator[Block]:
        """Yield the rows from `start` to the present end; incomplete last lines are left when more may follow.

        Raises:
            SourceChanged: the file shrank under the reader.
        """
        ...

    def size(self) -> int:
        """Return the present size in the unit of positions."""
        ...

    def identity(self, position: int) -> dict[str, Any]:
        """Return the JSON-ready fingerprint to be kept with a position."""
        ...

    def check(self, position: int, kept: Mapping[str, Any]) -> None:
        """Check the file against a kept fingerprint. Raises SourceChanged."""
        ...

    def is_replaced(self) -> bool:
        """Return whether the path now names another file."""
        ...

    def close(self) -> None: ...
