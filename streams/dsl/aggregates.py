"""Aggregates as a user writes them: `lf.count()`, `lf.mean(col.dep_delay)`; `bind_aggregate` makes the graph's of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from logflume.log import InvalidInput
from logflume.log.schemas import ANY, DataType

from ..expr import WHOLE, ColumnRef, Expr, Literal, Side
from ..functions import Aggregate, folds, ranking, totals
from ..functions.lookup import choose
from ..functions.signature import fill, is_concrete
from ..graph import Aggregation, Aggregator, is_bare
from .binding import Scope, bind
from .callables import expect_arguments, refuse_in_place
from .calls import cast_to, narrow
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


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """A deferred aggregate of the library, its form chosen by the types of its arguments."""

    function: Aggregate
    args: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class TopCall:
    """A deferred ranking of whole rows."""

    count: int
    by: Value
    is_largest: bool


AnyAggregate = AggregateCall | FoldCall | LibraryCall | TopCall


def count(value: Any = None) -> AggregateCall:
    """Number of records; with a value, of those where it is not null."""
    return AggregateCall("count", lambda _: totals.count(), None if value is None else lift(value))


def sum(value: Any) -> AggregateCall:
    """Sum of a number, nulls left out; 0 of nothing. Integers wrap at 64 bits."""
    return AggregateCall("sum", totals.total, lift(value))


def mean(value: Any) -> AggregateCall:
    """Arithmetic mean as a float, nulls left out; null of nothing."""
    return AggregateCall("mean", totals.mean, lift(value))


def min(value: Any) -> AggregateCall:
    """Smallest value, nulls left out; null of nothing."""
    return AggregateCall("min", totals.least, lift(value))


def max(value: Any) -> AggregateCall:
    """Largest value, nulls left out; null of nothing."""
    return AggregateCall("max", totals.greatest, lift(value))


def top_n(n: int, by: Any, *, largest: bool = True) -> TopCall:
    """The `n` rows with the largest (or smallest) values of `by`, as a list of rows, the first first; see `Grouped.top_n`."""
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise InvalidInput(f"top_n() needs a number of rows of at least 1, found {n!r}")
    return TopCall(n, lift(by), largest)


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
    refuse_in_place(add, "aggregate()")
    arguments = expect_arguments(add, (2, 3), 2, "aggregate()")
    if subtract is not None and expect_arguments(subtract, (2, 3), arguments, "aggregate(subtract=...)") != arguments:
        raise InvalidInput("aggregate(): add and subtract take the same arguments, (aggregate, value) or (aggregate, value, key)")
    return FoldCall(folds.fold(init, add, merge=merge, subtract=subtract), arguments == 3)


def reduce(function: Callable[..., Any], *, subtract: Callable[..., Any] | None = None) -> FoldCall:
    """An aggregate of the values themselves: the first is kept, then `function(aggregate, value)`.

    `subtract(aggregate, value)` takes a value out again: aggregates of tables need it.
    """
    refuse_in_place(function, "reduce()")
    expect_arguments(function, (2,), 2, "reduce()")
    if subtract is not None:
        expect_arguments(subtract, (2,), 2, "reduce(subtract=...)")
    return FoldCall(folds.reduction(function, subtract=subtract), False)


def bind_aggregate(name: str, call: Any, scope: Scope, *, is_undone: bool = False) -> Aggregation:
    """Return an aggregate bound to the schema of its input; `is_undone`: rows are taken out again."""
    if isinstance(call, TopCall):
        return _bind_top(name, call, scope, is_undone=is_undone)
    if isinstance(call, FoldCall):
        whole: tuple[Expr, ...] = (ColumnRef(Side.VALUE, WHOLE, ANY),)
        return Aggregation(name, call.aggregator, (*whole, ColumnRef(Side.KEY, WHOLE, ANY)) if call.takes_key else whole)
    if isinstance(call, LibraryCall):
        return _bind_library(name, call, scope)
    if not isinstance(call, AggregateCall):
        raise InvalidInput(
            f"{name}={call!r} is not an aggregate: use lf.count(), lf.sum(col.x), lf.mean(col.x), lf.aggregate(...)"
        )
    if call.argument is None:
        return Aggregation(name, call.make(ANY))
    argument = bind(call.argument, scope)
    return Aggregation(name, call.make(argument.type), (argument,))


def _bind_top(name: str, call: TopCall, scope: Scope, *, is_undone: bool) -> Aggregation:
    columns = () if is_bare(scope.schema) else tuple(column.name for column in scope.schema.value)
    parts: tuple[Expr, ...] = tuple(ColumnRef(Side.VALUE, c.name, c.type) for c in scope.schema.value if columns)
    aggregator = ranking.ranking(call.count, columns, is_largest=call.is_largest, is_undone=is_undone)
    return Aggregation(name, aggregator, (bind(call.by, scope), *(parts or (ColumnRef(Side.VALUE, WHOLE, ANY),))))


def _bind_library(name: str, call: LibraryCall, scope: Scope) -> Aggregation:
    """Choose the form of an aggregate; its last arguments may be constants that set it up."""
    bound = [bind(arg, scope) for arg in call.args]
    types = [narrow(b) for b in bound]
    index, variables = choose(call.function.name.lower(), [o.signature for o in call.function.overloads], types)
    form = call.function.overloads[index]
    patterns = form.signature.expand(len(bound)) or ()
    count = len(bound) - form.constants if form.constants >= 0 else -form.constants
    constants = []
    for expr in bound[count:]:
        if not isinstance(expr, Literal):
            raise InvalidInput(f"{name}: the last arguments of {call.function.name.lower()} are constants, found a column")
        constants.append(expr.value)
    args = [
        cast_to(b, fill(p, variables, [t]) if is_concrete(p) else t)
        for b, t, p in zip(bound[:count], types[:count], patterns[:count], strict=True)
    ]
    try:
        aggregator = form.make([a.type for a in args], constants)
    except ValueError as error:
        raise InvalidInput(f"{name}: {error}") from None
    return Aggregation(name, aggregator, tuple(args))
