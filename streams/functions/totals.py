"""Count, sum, mean, minimum and maximum: for the DSL by type, for SQL by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from logflume.log import InvalidInput
from logflume.log.schemas import BIGINT, DOUBLE, Column, DataType, Kind

from ..graph import Aggregator
from .aggregate import ORDERED, SUMMABLE, Aggregate, State, aggregate, first, over_all
from .arithmetic import wrap32, wrap64
from .types import NUMERIC


def count() -> Aggregator:
    """Number of records; with an argument, of those where it is not null. State: the number."""
    return Aggregator(
        "count", BIGINT, (Column("count", BIGINT),), (0,), _count, first, merge=_plus, undo=_uncount, kernel="count"
    )


def total(type: DataType, *, is_widened: bool = True) -> Aggregator:
    """Sum of a numeric type, 0 of nothing; integers wrap, INTEGER is summed as BIGINT when `is_widened`. State: the sum."""
    _check_numeric("sum", type)
    result = BIGINT if type.kind is Kind.INTEGER and is_widened else type
    return Aggregator(
        "sum", result, (Column("sum", result),), (_zero(result),), Add(result), first, merge=Merge(result), undo=Subtract(result),
        kernel="sum" if result.kind in (Kind.INTEGER, Kind.BIGINT, Kind.DOUBLE) else None,
    )  # fmt: skip


def mean(type: DataType, *, result: Callable[[State], Any] | None = None) -> Aggregator:
    """Arithmetic mean as DOUBLE, of nothing null (or what `result` says). State: sum (BIGINT of integers), number."""
    _check_numeric("mean", type)
    sums = BIGINT if type.kind in (Kind.INTEGER, Kind.BIGINT) else DOUBLE
    columns = (Column("sum", sums), Column("count", BIGINT))
    kernel = "mean" if type.kind in (Kind.INTEGER, Kind.BIGINT, Kind.DOUBLE) else None
    undo = SubtractMean(sums)
    return Aggregator(
        "mean",
        DOUBLE,
        columns,
        (_zero(sums), 0),
        AddMean(sums),
        result or mean_of,
        merge=MergeMean(sums),
        undo=undo,
        kernel=kernel,
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
    """Return left + right as the sum state of `type` has it: INTEGER and BIGINT wrap, DECIMAL must fit."""
    result = left + right
    if type.kind is Kind.INTEGER and not -(2**31) <= result < 2**31:
        return wrap32(result)
    if type.kind is Kind.BIGINT and not -(2**63) <= result < 2**63:
        return wrap64(result)
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


def mean_or_zero(state: State) -> float:
    """Return sum / count, 0.0 of nothing."""
    return state[0] / state[1] if state[1] else 0.0


# ------------------------------------------------------------------------------------------------ as SQL names them


def _count_of(types: Sequence[DataType], constants: Sequence[Any]) -> Aggregator:
    return replace(count(), name="COUNT")


def _sum_of(types: Sequence[DataType], constants: Sequence[Any]) -> Aggregator:
    return replace(total(types[0], is_widened=False), name="SUM")


def _average_of(types: Sequence[DataType], constants: Sequence[Any]) -> Aggregator:
    return replace(mean(types[0], result=mean_or_zero), name="AVG")


def _least_of(types: Sequence[DataType], constants: Sequence[Any]) -> Aggregator:
    return replace(least(types[0]), name="MIN")


def _greatest_of(types: Sequence[DataType], constants: Sequence[Any]) -> Aggregator:
    return replace(greatest(types[0]), name="MAX")


@dataclass(frozen=True, slots=True)
class AddItems:
    """(sum,) + or - all items of an array."""

    type: DataType
    sign: int

    def __call__(self, state: State, items: list[Any]) -> State:
        total_of_items = sum(i for i in items if i is not None)
        return (plus(state[0], total_of_items * self.sign, self.type),)


def _sum_list_of(types: Sequence[DataType], constants: Sequence[Any]) -> Aggregator:
    assert types[0].element is not None
    type = types[0].element
    columns = (Column("SUM", type),)
    return Aggregator("SUM_LIST", type, columns, (_zero(type),), AddItems(type, 1), first, Merge(type), AddItems(type, -1))


FUNCTIONS: tuple[Aggregate, ...] = (
    aggregate(
        "COUNT",
        "The number of records, or of values that are not null.",
        over_all("() -> BIGINT", _count_of, has_undo=True),
        over_all("(T) -> BIGINT", _count_of, has_undo=True),
        is_simple=True,
        example=((3, None, 4), 2),
    ),
    aggregate(
        "SUM",
        "The sum, of the same type; nulls do not count.",
        *(over_all(f"({t}) -> {t}", _sum_of, has_undo=True) for t in SUMMABLE),
        is_simple=True,
        example=((3, None, 4), 7),
    ),
    aggregate(
        "AVG",
        "The mean; nulls do not count.",
        *(over_all(f"({t}) -> DOUBLE", _average_of, has_undo=True) for t in SUMMABLE),
        example=((3, None, 4), 3.5),
    ),
    aggregate(
        "MIN",
        "The smallest value; nulls do not count.",
        *(over_all(f"({t}) -> {t}", _least_of) for t in ORDERED),
        is_simple=True,
        example=((3, None, 4), 3),
    ),
    aggregate(
        "MAX",
        "The largest value; nulls do not count.",
        *(over_all(f"({t}) -> {t}", _greatest_of) for t in ORDERED),
        is_simple=True,
        example=((3, None, 4), 4),
    ),
    aggregate(
        "SUM_LIST",
        "The sum of all items of arrays.",
        *(over_all(f"(ARRAY<{t}>) -> {t}", _sum_list_of, has_undo=True) for t in SUMMABLE),
        is_simple=True,
        example=(([1, 2], None, [3]), 6),
    ),
)
