"""The rows with the largest or smallest values: a ranking that is kept in order."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Any

from logflume.log.schemas import ANY, Column

from ..graph import Aggregator
from .aggregate import State


def ranking(count: int, columns: tuple[str, ...], *, is_largest: bool, is_undone: bool) -> Aggregator:
    """The `count` rows that come first, as a list: dicts of `columns`, without names the values themselves.

    The state is a list of [value, row], in order. With `is_undone` it holds all rows, for one that is taken out lets another in.
    """
    kept = None if is_undone else count
    rank = Rank(columns, kept, is_largest)
    return Aggregator(
        "top_n", ANY, (Column("ranking", ANY),), ([],), rank, First(count), merge=MergeRanks(kept, is_largest),
        undo=Unrank(columns, is_largest) if is_undone else None, skips_null=False,
    )  # fmt: skip


def _row(columns: tuple[str, ...], parts: tuple[Any, ...]) -> Any:
    return dict(zip(columns, parts, strict=True)) if columns else parts[0]


def _place(ranks: list[Any], value: Any, *, is_largest: bool) -> int:
    """Return where a value goes: behind those equal to it."""
    if not is_largest:
        return bisect_right(ranks, value, key=_value)
    return len(ranks) - bisect_left(ranks[::-1], value, key=_value)


def _value(rank: Any) -> Any:
    return rank[0]


@dataclass(frozen=True, slots=True)
class Rank:
    """Adds a row; `count` None: all are kept."""

    columns: tuple[str, ...]
    count: int | None
    is_largest: bool

    def __call__(self, state: State, value: Any, *parts: Any) -> State:
        if value is None or value != value:
            return state
        ranks = state[0]
        place = _place(ranks, value, is_largest=self.is_largest)
        if self.count is not None and place >= self.count:
            return state
        return ([*ranks[:place], [value, _row(self.columns, parts)], *ranks[place:]][: self.count],)


@dataclass(frozen=True, slots=True)
class Unrank:
    """Takes a row out again."""

    columns: tuple[str, ...]
    is_largest: bool

    def __call__(self, state: State, value: Any, *parts: Any) -> State:
        gone = [value, _row(self.columns, parts)]
        ranks = list(state[0])
        if gone in ranks:
            ranks.remove(gone)
        return (ranks,)


@dataclass(frozen=True, slots=True)
class MergeRanks:
    """Two rankings as one; of equal values those of the first come first."""

    count: int | None
    is_largest: bool

    def __call__(self, left: State, right: State) -> State:
        return (sorted([*left[0], *right[0]], key=_value, reverse=self.is_largest)[: self.count],)


@dataclass(frozen=True, slots=True)
class First:
    """The rows of a ranking."""

    count: int

    def __call__(self, state: State) -> list[Any]:
        return [row for _, row in state[0][: self.count]]
