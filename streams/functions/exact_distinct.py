"""Counting distinct values exactly: the state keeps each as text with how often it is there, so that one can be taken back."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from logflume.log.schemas import BIGINT, STRING, Column, map_of

from ..graph import Aggregator
from .aggregate import State

DISTINCT_MAX = 100_000
"""Values per group: a state is copied when it changes. COUNT_DISTINCT estimates any number in constant space."""


def count_distinct() -> Aggregator:
    """Return the aggregator of COUNT(DISTINCT ...), over one or more arguments; rows with a null among them do not count."""
    columns = (Column("COUNTS", map_of(STRING, BIGINT)),)
    return Aggregator("count_distinct_exact", BIGINT, columns, ({},), _add, _result, _merge, _undo)


def _add(state: State, *args: Any) -> State:
    counts, text = state[0], _text(args)
    found = counts.get(text, 0)
    if not found and len(counts) >= DISTINCT_MAX:
        raise ValueError(f"COUNT(DISTINCT ...) keeps at most {DISTINCT_MAX:,} values of a group; COUNT_DISTINCT estimates more")
    return ({**counts, text: found + 1},)


def _undo(state: State, *args: Any) -> State:
    counts, text = dict(state[0]), _text(args)
    left = counts.pop(text, 0) - 1
    if left > 0:
        counts[text] = left
    return (counts,)


def _merge(left: State, right: State) -> State:
    counts = dict(left[0])
    for text, count in right[0].items():
        counts[text] = counts.get(text, 0) + count
    return (counts,)


def _result(state: State) -> int:
    return len(state[0])


def _text(value: Any) -> str:
    """Return a text that is the same for equal values of one type, and for no others."""
    match value:
        case list() | tuple():
            return f"[{','.join(map(_text, value))}]"
        case dict():
            return f"{{{','.join(f'{k!r}:{_text(v)}' for k, v in sorted(value.items()))}}}"
        case Decimal():
            return str(value.normalize()) if value else "0"
        case float():
            return repr(value + 0.0)  # -0.0 equals 0.0
    return repr(value)
