"""Entries that an aggregate makes of a range of its input by itself, and their merging into those of the ranges before.

Such an entry is that of an aggregate that has seen the range alone. One of a window has the number of its records as its last
state column: the ranges before may make it late as a whole, and then so many records are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .. import graph as g
from ..functions.totals import count
from ..seams import State
from ..state.codec import EntryCodec
from .folding import state_fields

Merge = Callable[[State, State], State]


def partial_node(node: g.Aggregate) -> g.Aggregate:
    """Return what makes the entries of a range."""
    if node.window is None:
        return node
    name = "records"
    while any(aggregation.name == name for aggregation in node.aggregations):
        name += "_"
    return replace(node, aggregations=(*node.aggregations, g.Aggregation(name, count())))


def partial_codec(node: g.Aggregate) -> EntryCodec:
    """Return what decodes the entries of a range of an aggregate."""
    return EntryCodec(state_fields(partial_node(node)))


def merge_of(aggregations: tuple[g.Aggregation, ...]) -> Merge:
    """Return the function from the state of an entry and that of a partial entry to the state of both.

    >>> merge_of((g.Aggregation("n", count()), g.Aggregation("m", count())))((1, 2), (10, 20))
    (11, 22)
    """
    parts: list[tuple[Merge, int, int]] = []
    start = 0
    for aggregation in aggregations:
        stop = start + len(aggregation.aggregator.state_columns)
        assert aggregation.aggregator.merge is not None
        parts.append((aggregation.aggregator.merge, start, stop))
        start = stop

    def merged(state: State, partial: State) -> State:
        found: tuple[Any, ...] = ()
        for merge, i, j in parts:
            found += merge(state[i:j], partial[i:j])
        return found

    return parts[0][0] if len(parts) == 1 else merged
