"""Aggregates as a user writes them: `lf.count()`, `lf.mean(col.dep_delay)`; `bind_aggregate` makes the compilers' of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from logflume.log import InvalidInput
from logflume.log.schemas import ANY, DataType

from .. import aggregators
from ..expr import WHOLE, ColumnRef, Expr, Side
from ..graph import Aggregation, Aggregator
from .binding import Scope, bind
from .callables import expect_arguments
from .fields import Value, lift


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """A deferred aggregate: a function of the argument's type, over one value (or none)."""

    name: str
    make: Callable[[DataType], Aggregator]
    argument: Value | None = None


@dataclass(frozen=True, slots=True)
class FoldCall:
    """A deferred aggregate of plain functions over whole values."""

    aggregator: Aggregator
    takes_key: bool


AnyAggregate = AggregateCall | FoldCall


def count(value: Any = None) -> AggregateCall:
    """Number of records; with a value, of those where it is not null."""
    return AggregateCall("count", lambda _: aggregators.count(), None if value is None else lift(value))


def sum(value: Any) -> AggregateCall:
    """Sum of a number, nulls left out; 0 of nothing. Integers wrap at 64 bits."""
    return AggregateCall("sum", aggregators.total, lift(value))


def mean(value: Any) -> AggregateCall:
    """Arithmetic mean as a float, nulls left out; null of nothing."""
    return AggregateCall("mean", aggregators.mean, lift(value))


def min(value: Any) -> AggregateCall:
    """Smallest value, nulls left out; null of nothing."""
    return AggregateCall("min", aggregators.least, lift(value))


def max(value: Any) -> AggregateCall:
    """Largest value, nulls left out; null of nothing."""
    return AggregateCall("max", aggregators.greatest, lift(value))


def aggregate(
    init: Any,
    add: Callable[..., Any],
    *,
    merge: Callable[[Any, Any], Any] | None = None,
    subtract: Callable[..., Any] | None = None,
) -> FoldCall:
    """An aggregate of your own: `add(aggregate, value)` or `add(aggregate, value, key)` returns the next one.

    `init`: the aggregate of nothing, or a callable that makes it (`list`). None as a result deletes it. `merge(a, b)` combines
    two partial ones: session windows need it, and with it a Spark backfill can aggregate in parallel. `subtract`, which takes
    what `add` does, takes a row out again: aggregates of tables need it.
    """
    arguments = expect_arguments(add, (2, 3), 2, "aggregate()")
    if subtract is not None and expect_arguments(subtract, (2, 3), arguments, "aggregate(subtract=...)") != arguments:
        raise InvalidInput("aggregate(): add and subtract take the same arguments, (aggregate, value) or (aggregate, value, key)")
    return FoldCall(aggregators.fold(init, add, merge=merge, subtract=subtract), arguments == 3)


def reduce(function: Callable[..., Any], *, subtract: Callable[..., Any] | None = None) -> FoldCall:
    """An aggregate of the values themselves: the first is kept, then `function(aggregate, value)`.

    `subtract(aggregate, value)` takes a value out again: aggregates of tables need it.
    """
    expect_arguments(function, (2,), 2, "reduce()")
    if subtract is not None:
        expect_arguments(subtract, (2,), 2, "reduce(subtract=...)")
    return FoldCall(aggregators.reduction(function, subtract=subtract), False)


def bind_aggregate(name: str, call: Any, scope: Scope) -> Aggregation:
    """Return an aggregate bound to the schema of its input."""
    if isinstance(call, FoldCall):
        whole: tuple[Expr, ...] = (ColumnRef(Side.VALUE, WHOLE, ANY),)
        return Aggregation(name, call.aggregator, (*whole, ColumnRef(Side.KEY, WHOLE, ANY)) if call.takes_key else whole)
    if not isinstance(call, AggregateCall):
        raise InvalidInput(
            f"{name}={call!r} is not an aggregate: use lf.count(), lf.sum(col.x), lf.mean(col.x), lf.aggregate(...)"
        )
    if call.argument is None:
        return Aggregation(name, call.make(ANY))
    argument = bind(call.argument, scope)
    return Aggregation(name, call.make(argument.type), (argument,))
