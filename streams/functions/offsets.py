"""Values by their order: the first or last that came, or the first or last N."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from logflume.log.schemas import BOOLEAN, Column, DataType, array

from ..graph import Aggregator
from .aggregate import Aggregate, Make, State, aggregate, first, over_all


def latest_add(state: State, value: Any) -> State:
    """state: (value, has one)."""
    return (value, True)


def earliest_add(state: State, value: Any) -> State:
    """state: (has one, value)."""
    return state if state[0] else (True, value)


def second(state: State) -> Any:
    return state[1]


def latest_n_add(n: int, state: State, value: Any) -> State:
    return ([*state[0], value][-n:],)


def earliest_n_add(n: int, state: State, value: Any) -> State:
    return state if len(state[0]) >= n else ([*state[0], value],)


def latest_merge(left: State, right: State) -> State:
    """state: (value, has one)."""
    return right if right[1] else left


def earliest_merge(left: State, right: State) -> State:
    return left if left[0] else right


def latest_n_merge(n: int, left: State, right: State) -> State:
    return ([*left[0], *right[0]][-n:],)


def earliest_n_merge(n: int, left: State, right: State) -> State:
    return ([*left[0], *right[0]][:n],)


def _ignores_nulls(constants: Sequence[Any]) -> bool:
    return not (constants and constants[-1] is False)


def _latest(types: Sequence[DataType], constants: Sequence[Any]) -> Aggregator:
    columns = (Column("VALUE", types[0]), Column("HAS", BOOLEAN))
    skips_null = _ignores_nulls(constants)
    return Aggregator(
        "LATEST_BY_OFFSET",
        types[0],
        columns,
        (None, False),
        latest_add,
        first,
        latest_merge,
        skips_null=skips_null,
        is_ordered=True,
    )


def _earliest(types: Sequence[DataType], constants: Sequence[Any]) -> Aggregator:
    columns = (Column("HAS", BOOLEAN), Column("VALUE", types[0]))
    return Aggregator(
        "EARLIEST_BY_OFFSET", types[0], columns, (False, None), earliest_add, second, earliest_merge,
        skips_null=_ignores_nulls(constants), is_ordered=True,
    )  # fmt: skip


def _by_offset_n(name: str, step: Callable[..., State], merge: Callable[..., State]) -> Make:
    def make(types: Sequence[DataType], constants: Sequence[Any]) -> Aggregator:
        n = constants[0]
        if n < 1:
            raise ValueError(f"{'earliestN' if name.startswith('E') else 'latestN'} must be 1 or greater, found {n}")
        type = array(types[0])
        return Aggregator(
            name, type, (Column("ITEMS", type),), ([],), partial(step, n), first, partial(merge, n),
            skips_null=_ignores_nulls(constants[1:]), is_ordered=True,
        )  # fmt: skip

    return make


FUNCTIONS: tuple[Aggregate, ...] = (
    aggregate(
        "LATEST_BY_OFFSET",
        "The last value that came; with N the last N. Nulls do not count unless the last argument is false.",
        over_all("(T) -> T", _latest),
        over_all("(T, BOOLEAN) -> T", _latest, constants=1),
        over_all("(T, INTEGER) -> ARRAY<T>", _by_offset_n("LATEST_BY_OFFSET", latest_n_add, latest_n_merge), constants=1),
        over_all(
            "(T, INTEGER, BOOLEAN) -> ARRAY<T>", _by_offset_n("LATEST_BY_OFFSET", latest_n_add, latest_n_merge), constants=2
        ),
        example=((1, 2, None), 2),
    ),
    aggregate(
        "EARLIEST_BY_OFFSET",
        "The first value that came; with N the first N. Nulls do not count unless the last argument is false.",
        over_all("(T) -> T", _earliest),
        over_all("(T, BOOLEAN) -> T", _earliest, constants=1),
        over_all("(T, INTEGER) -> ARRAY<T>", _by_offset_n("EARLIEST_BY_OFFSET", earliest_n_add, earliest_n_merge), constants=1),
        over_all(
            "(T, INTEGER, BOOLEAN) -> ARRAY<T>", _by_offset_n("EARLIEST_BY_OFFSET", earliest_n_add, earliest_n_merge), constants=2
        ),
        example=((None, 1, 2), 1),
    ),
)
