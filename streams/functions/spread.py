"""How values spread: sample variance and deviation, correlation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from logflume.log.schemas import BIGINT, DOUBLE, Column, DataType

from ..graph import Aggregator
from .aggregate import SUMMABLE, Aggregate, Make, State, aggregate, over_all


def spread_add(state: State, value: Any) -> State:
    """state: (count, sum, sum of squared distances from the mean), updated incrementally."""
    count, total, squares = state
    number = float(value)
    if count:
        difference = (count + 1) * number - (total + number)
        squares += difference * difference / (count * (count + 1))
    return (count + 1, total + number, squares)


def spread_undo(state: State, value: Any) -> State:
    count, total, squares = state
    number = float(value)
    if count > 1:
        difference = count * number - total
        squares -= difference * difference / (count * (count - 1))
    return (count - 1, total - number, squares)


def spread_merge(left: State, right: State) -> State:
    """As Chan, Golub and LeVeque add the squares of two parts (Updating Formulae, 1979)."""
    (n, total, squares), (m, other, more) = left, right
    if not n or not m:
        return right if not n else left
    distance = m / n * total - other
    return (n + m, total + other, squares + more + n / (m * (n + m)) * distance * distance)


def correlation_merge(left: State, right: State) -> State:
    return tuple(a + b for a, b in zip(left, right, strict=True))


def variance_result(state: State) -> float:
    return state[2] / (state[0] - 1) if state[0] > 1 else 0.0


def deviation_result(state: State) -> float:
    return math.sqrt(max(variance_result(state), 0.0))


def _spread(name: str, result: Callable[[State], float]) -> Make:
    columns = (Column("COUNT", BIGINT), Column("SUM", DOUBLE), Column("SQUARES", DOUBLE))

    def make(types: Sequence[DataType], constants: Sequence[Any]) -> Aggregator:
        return Aggregator(name, DOUBLE, columns, (0, 0.0, 0.0), spread_add, result, spread_merge, spread_undo)

    return make


def correlation_add(state: State, x: Any, y: Any) -> State:
    """state: (count, sum x, sum y, sum xx, sum yy, sum xy)."""
    a, b = float(x), float(y)
    n, sx, sy, sxx, syy, sxy = state
    return (n + 1, sx + a, sy + b, sxx + a * a, syy + b * b, sxy + a * b)


def correlation_undo(state: State, x: Any, y: Any) -> State:
    a, b = float(x), float(y)
    n, sx, sy, sxx, syy, sxy = state
    return (n - 1, sx - a, sy - b, sxx - a * a, syy - b * b, sxy - a * b)


def correlation_result(state: State) -> float:
    n, sx, sy, sxx, syy, sxy = state
    if n < 1:
        return math.nan
    spread = (n * sxx - sx * sx) * (n * syy - sy * sy)
    return (n * sxy - sx * sy) / math.sqrt(spread) if spread > 0 else math.nan


def _correlation(types: Sequence[DataType], constants: Sequence[Any]) -> Aggregator:
    columns = (Column("COUNT", BIGINT), *(Column(name, DOUBLE) for name in ("X", "Y", "XX", "YY", "XY")))
    initial = (0, 0.0, 0.0, 0.0, 0.0, 0.0)
    return Aggregator(
        "CORRELATION", DOUBLE, columns, initial, correlation_add, correlation_result,
        correlation_merge, correlation_undo,
    )  # fmt: skip


FUNCTIONS: tuple[Aggregate, ...] = (
    aggregate(
        "STDDEV_SAMP",
        "The sample variance, as ksqlDB's function of this name has it.",
        *(over_all(f"({t}) -> DOUBLE", _spread("STDDEV_SAMP", variance_result), has_undo=True) for t in SUMMABLE),
        example=((1.0, 3.0), 2.0),
    ),
    aggregate(
        "STDDEV_SAMPLE",
        "The sample standard deviation.",
        *(over_all(f"({t}) -> DOUBLE", _spread("STDDEV_SAMPLE", deviation_result), has_undo=True) for t in SUMMABLE),
        example=((1.0, 1.0), 0.0),
    ),
    aggregate(
        "CORRELATION", "Pearson's correlation of two values.", over_all("(DOUBLE, DOUBLE) -> DOUBLE", _correlation, has_undo=True)
    ),
)
