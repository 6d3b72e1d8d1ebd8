"""What an aggregate and the two ways to keep its entries say to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from logflume.log.records import I64, Chunk
from logflume.log.schemas import Column as Field

from ..columns import Bytes, Column
from ..seams import State
from ..vectors.expressions import Mask
from .operator import Reporter
from .rows import nulls_of, state_columns


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """Rows on their way into entries: keys, times and arguments of N rows; P pairs of a row and a window start.

    rows: int64[P]; None: every row once. starts: int64[P]; None: no windows.
    """

    keys: Bytes
    times: I64
    args: list[Column]
    rows: I64 | None
    starts: I64 | None

    @property
    def count(self) -> int:
        return len(self.times) if self.rows is None else len(self.rows)

    def pair(self, place: int) -> Change:
        """Return one of the pairs."""
        assert self.starts is not None
        rows = np.array([place]) if self.rows is None else self.rows[place : place + 1]
        return Change(self.keys, self.times, self.args, rows, self.starts[place : place + 1])


@dataclass(frozen=True, slots=True, eq=False)
class States:
    """States of entries, one column per state column; `gone`: where there is none, None: nowhere."""

    columns: list[Column]
    gone: Mask | None

    @classmethod
    def of(cls, states: Sequence[State | None], fields: Sequence[Field]) -> States:
        """Make them of state tuples."""
        found = state_columns(list(states), [(str(place), field.type.kind) for place, field in enumerate(fields)])
        return cls(list(found.values()), nulls_of(states))


@dataclass(frozen=True, slots=True, eq=False)
class Updated:
    """Entries as they are after changes: keys with the window start, times of the results, states, those before if wanted.

    pairs: which pairs of the change changed something; None: all, or it is no single change.
    """

    keys: Bytes
    times: I64
    starts: I64 | None
    states: States
    before: States | None
    pairs: I64 | None = None


class Entries(Protocol):
    """The entries of one store of one task."""

    def open(self) -> None:
        """Called before stream time moves and before the first update."""
        ...

    def update(self, change: Change, report: Reporter, *, is_traced: bool) -> Updated | None:
        """Change the entries; `is_traced`: return each as it was after each pair."""
        ...

    def absorb(self, partials: Chunk) -> int:
        """Merge the entries of a range; return how many of their records are late. See `Work.absorb`."""
        ...

    def changed(self) -> Updated:
        """Return the entries changed since the last commit, in order of their first change."""
        ...

    def closed(self) -> Updated:
        """Return the entries of windows that have closed since they were asked for last, in order of (start, key)."""
        ...
