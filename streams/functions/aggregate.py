"""How an aggregate function is declared: a signature, which arguments are constants, and what makes its Aggregator. Data only.

States are tuples of typed columns and are replaced, never changed in place: an uncommitted state may still be read, and restored.
All callables are module-level, partials of such, or instances of frozen classes, so that an aggregator pickles by reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from logflume.log.schemas import DataType

from ..graph import Aggregation, Aggregator
from .signature import Signature, parse_signature

State = tuple[Any, ...]

# (argument types without the constants, the constants' values) -> aggregator
Make = Callable[[Sequence[DataType], Sequence[Any]], Aggregator]

SUMMABLE = ("INTEGER", "BIGINT", "DECIMAL", "DOUBLE")
ORDERED = (*SUMMABLE, "STRING", "BYTES", "DATE", "TIME", "TIMESTAMP")


@dataclass(frozen=True, slots=True)
class AggregateOverload:
    """One form of an aggregate.

    Attributes:
        constants: how many of the last arguments are literals that set the aggregate up; -k: all behind the first k.
        limit_property: a session property whose number is given to `make` as a further constant.
        has_undo: whether it works over tables.
    """

    signature: Signature
    make: Make
    constants: int = 0
    has_undo: bool = False
    limit_property: str | None = None


@dataclass(frozen=True, slots=True)
class Aggregate:
    """An aggregate function: its name as SQL writes it (the DSL uses it in lower case), what it gives, and its forms.

    Attributes:
        example: values that come in, and the result of all of them.
        is_simple: its state is one plain value, in ksqlDB too: what a DELIMITED value could hold.
    """

    name: str
    doc: str
    overloads: tuple[AggregateOverload, ...]
    example: tuple[tuple[Any, ...], Any] | None = None
    is_simple: bool = False


def aggregate(
    name: str,
    doc: str,
    *overloads: AggregateOverload,
    example: tuple[tuple[Any, ...], Any] | None = None,
    is_simple: bool = False,
) -> Aggregate:
    """Declare an aggregate."""
    return Aggregate(name, doc, overloads, example, is_simple)


def over_all(
    signature: str, make: Make, *, constants: int = 0, has_undo: bool = False, limit_property: str | None = None
) -> AggregateOverload:
    """Declare a form from a signature's text."""
    return AggregateOverload(parse_signature(signature), make, constants, has_undo, limit_property)


def first(state: State) -> Any:
    """Return the only part of a state, as its result."""
    return state[0]


def results_of(aggregations: tuple[Aggregation, ...]) -> Callable[[State], State]:
    """Return the function from the state of an aggregate's entry to its result row.

    >>> from logflume.log.schemas import BIGINT
    >>> from .totals import count, mean
    >>> results_of((Aggregation("n", count()), Aggregation("m", mean(BIGINT))))((3, 6, 3))
    (3, 2.0)
    """
    parts: list[tuple[Callable[[State], Any], int, int]] = []
    start = 0
    for aggregation in aggregations:
        stop = start + len(aggregation.aggregator.state_columns)
        parts.append((aggregation.aggregator.result, start, stop))
        start = stop
    if all(aggregation.aggregator.result is first for aggregation in aggregations) and len(parts) == start:
        return tuple  # each state is the result
    return lambda state: tuple([result(state[i:j]) for result, i, j in parts])
