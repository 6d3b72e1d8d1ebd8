"""The standard aggregate functions, for the DSL and SQL, and plain callables as aggregate functions.

States are tuples and are replaced, never changed in place. All callables are module-level or instances of classes here, so that
an aggregator pickles by reference (with the user's callables in it).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from logflume.log import InvalidInput
from logflume.log.schemas import ANY, BIGINT, DOUBLE, Column, DataType, Kind

from .graph import Aggregation, Aggregator

State = tuple[Any, ...]
NUMERIC = (Kind.INTEGER, Kind.BIGINT, Kind.DECIMAL, Kind.DOUBLE)


def count() -> Aggregator:
    """Number of records; with an argument, of those where it is not null. State: the number."""
    return Aggregator(
        "count", BIGINT, (Column("count", BIGINT),), (0,), _count, first, merge=_plus, undo=_uncount, kernel="count"
    )


def total(type: DataType) -> Aggregator:
    """Sum of a numeric type, 0 of nothing; integers are summed as BIGINT and wrap. State: the sum."""
    _check_numeric("sum", type)
    result = BIGINT if type.kind is Kind.INTEGER else type
    return Aggregator(
        "sum", result, (Column("sum", result),), (_zero(result),), Add(result), first, merge=Merge(result), undo=Subtract(result),
        kernel="sum" if result.kind in (Kind.BIGINT, Kind.DOUBLE) else None,
    )  # fmt: skip


def mean(type: DataType) -> Aggregator:
    """Arithmetic mean as DOUBLE, null of nothing. State: sum (BIGINT for integers, else DOUBLE) and number."""
    _check_numeric("mean", type)
    sums = BIGINT if type.kind in (Kind.INTEGER, Kind.BIGINT) else DOUBLE
    columns = (Column("sum", sums), Column("count", BIGINT))
    kernel = "mean" if type.kind in (Kind.INTEGER, Kind.BIGINT, Kind.DOUBLE) else None
    undo = SubtractMean(sums)
    return Aggregator(
        "mean", DOUBLE, columns, (_zero(sums), 0), AddMean(sums), mean_of, merge=MergeMean(sums), undo=undo, kernel=kernel
    )


def least(type: DataType) -> Aggregator:
    """Smallest value, null of nothing. State: the value."""
    _check_ordered("min", type)
    kernel = "min" if type.kind in (Kind.INTEGER, Kind.BIGINT, Kind.DOUBLE) else None
    return Aggregator("min", type, (Column("min", type),), (None,), _min, first, merge=_merge_min, kernel=kernel)


def greatest(type: DataType) -> Aggregator:
    """Largest value, null of nothing. State: the value."""
    _check_ordered("max", type)
    kernel = "max" if type.kind in (Kind.INTEGER, Kind.BIGINT, Kind.DOUBLE) else None
    return Aggregator("max", type, (Column("max", type),), (None,), _max, first, merge=_merge_max, kernel=kernel)


def fold(
    init: Any,
    add: Callable[..., Any],
    *,
    merge: Callable[[Any, Any], Any] | None = None,
    subtract: Callable[..., Any] | None = None,
) -> Aggregator:
    """An arbitrary aggregate: `add(aggregate, *args)` from `init` (a value, or a callable giving a fresh one).

    A result of None deletes the aggregate; the next record starts from `init` again. `merge` combines two partial aggregates,
    `subtract(aggregate, *args)` takes out again what was added (aggregates of tables).
    """
    return Aggregator(
        "aggregate", ANY, (Column("state", ANY),), (None,), Fold(init, add), first,
        merge=None if merge is None else MergeObjects(merge), undo=None if subtract is None else Fold(init, subtract),
        start=Start(init),
        skips_null=False,
    )  # fmt: skip


def reduction(function: Callable[..., Any], *, subtract: Callable[..., Any] | None = None) -> Aggregator:
    """A reducer: the first value is the aggregate, then `function(aggregate, value)`; `subtract` takes a value out again."""
    return Aggregator(
        "reduce", ANY, (Column("state", ANY),), (None,), Reduce(function), first, merge=MergeObjects(function),
        undo=None if subtract is None else Reduce(subtract), skips_null=False,
    )  # fmt: skip


def _check_numeric(name: str, type: DataType) -> None:
    if type.kind not in NUMERIC and type.kind is not Kind.ANY:
        raise InvalidInput(f"{name}() needs a number, found {type}")


def _check_ordered(name: str, type: DataType) -> None:
    if type.kind in (Kind.ARRAY, Kind.MAP, Kind.STRUCT):
        raise InvalidInput(f"{name}() needs values with an order, found {type}")


def _zero(type: DataType) -> Any:
    if type.kind is Kind.DOUBLE:
        return 0.0
    return Decimal(0).scaleb(-type.scale) if type.kind is Kind.DECIMAL else 0


def first(state: State) -> Any:
    """Return the only part of a state, as its result."""
    return state[0]


def _count(state: State, *args: Any) -> State:
    return (state[0] + 1,)


def _uncount(state: State, *args: Any) -> State:
    return (state[0] - 1,)


def _plus(left: State, right: State) -> State:
    return (left[0] + right[0],)


def _min(state: State, value: Any) -> State:
    return (value,) if state[0] is None or value < state[0] else state


def _max(state: State, value: Any) -> State:
    return (value,) if state[0] is None or value > state[0] else state


def _merge_min(left: State, right: State) -> State:
    return left if right[0] is None else _min(left, right[0])


def _merge_max(left: State, right: State) -> State:
    return left if right[0] is None else _max(left, right[0])


def mean_of(state: State) -> float | None:
    """Return sum / count, None of nothing."""
    return state[0] / state[1] if state[1] else None


def plus(left: Any, right: Any, type: DataType) -> Any:
    """Return left + right as the sum state of `type` has it: BIGINT wraps, DECIMAL must fit."""
    result = left + right
    if type.kind is Kind.BIGINT and not -(2**63) <= result < 2**63:
        return (result + 2**63) % 2**64 - 2**63
    if type.kind is Kind.DECIMAL and result.adjusted() + 1 > type.precision - type.scale and result != 0:
        raise ArithmeticError(f"the sum {result} does not fit {type}")
    return result


@dataclass(frozen=True, slots=True)
class Add:
    """(sum,) + value."""

    type: DataType

    def __call__(self, state: State, value: Any) -> State:
        return (plus(state[0], value, self.type),)


@dataclass(frozen=True, slots=True)
class Subtract:
    """(sum,) - value."""

    type: DataType

    def __call__(self, state: State, value: Any) -> State:
        return (plus(state[0], -value, self.type),)


@dataclass(frozen=True, slots=True)
class Merge:
    """(sum,) + (sum,)."""

    type: DataType

    def __call__(self, left: State, right: State) -> State:
        return (plus(left[0], right[0], self.type),)


@dataclass(frozen=True, slots=True)
class AddMean:
    """(sum, count) with one more value."""

    type: DataType

    def __call__(self, state: State, value: Any) -> State:
        number = value if self.type.kind is Kind.BIGINT else float(value)
        return (plus(state[0], number, self.type), state[1] + 1)


@dataclass(frozen=True, slots=True)
class SubtractMean:
    """(sum, count) with one value less."""

    type: DataType

    def __call__(self, state: State, value: Any) -> State:
        number = value if self.type.kind is Kind.BIGINT else float(value)
        return (plus(state[0], -number, self.type), state[1] - 1)


@dataclass(frozen=True, slots=True)
class MergeMean:
    """(sum, count) of both."""

    type: DataType

    def __call__(self, left: State, right: State) -> State:
        return (plus(left[0], right[0], self.type), left[1] + right[1])


@dataclass(frozen=True, slots=True)
class Start:
    """A state of one object that nothing has been added to."""

    init: Any

    def __call__(self) -> State:
        return (self.init() if callable(self.init) else copy.copy(self.init),)


@dataclass(frozen=True, slots=True)
class Fold:
    """A plain `add(aggregate, *args)` over a state of one object."""

    init: Any
    add: Callable[..., Any]

    def __call__(self, state: State, *args: Any) -> State:
        current = state[0] if state[0] is not None else Start(self.init)()[0]
        return (self.add(current, *args),)


@dataclass(frozen=True, slots=True)
class Reduce:
    """A plain `function(aggregate, value)` over a state of one object, the first value unchanged."""

    function: Callable[..., Any]

    def __call__(self, state: State, value: Any) -> State:
        return (value,) if state[0] is None else (self.function(state[0], value),)


@dataclass(frozen=True, slots=True)
class MergeObjects:
    """A plain merge of two aggregates, None being the empty one."""

    function: Callable[[Any, Any], Any]

    def __call__(self, left: State, right: State) -> State:
        if left[0] is None or right[0] is None:
            return right if left[0] is None else left
        return (self.function(left[0], right[0]),)


def results_of(aggregations: tuple[Aggregation, ...]) -> Callable[[State], State]:
    """Return the function from the state of an aggregate's entry to its result row.

    >>> from logflume.streams.graph import Aggregation
    >>> results_of((Aggregation("n", count()), Aggregation("m", mean(BIGINT))))((3, 6, 3))
    (3, 2.0)
    """
    parts: list[tuple[Callable[[State], Any], int, int]] = []
    start = 0
    for aggregation in aggregations:
        stop = start + len(aggregation.aggregator.state_columns)
        parts.append((aggregation.aggregator.result, start, stop))
        start = stop
    return lambda state: tuple([result(state[i:j]) for result, i, j in parts])
