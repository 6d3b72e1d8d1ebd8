"""The K largest values, or rows by their largest value."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from logflume.log.schemas import Column, DataType, array, struct

from ..graph import Aggregator
from .aggregate import ORDERED, Aggregate, State, aggregate, first, over_all


def topk_add(k: int, state: State, value: Any) -> State:
    items = [*state[0], value]
    items.sort(reverse=True)
    return (items[:k],)


def topk_distinct_add(k: int, state: State, value: Any) -> State:
    return state if value in state[0] else topk_add(k, state, value)


def topk_rows_add(k: int, state: State, *values: Any) -> State:
    """Rows sorted by the first value, ties in order of arrival; rows without one are left out."""
    if values[0] is None:
        return state
    row = {"sort_col": values[0], **{f"col{i}": v for i, v in enumerate(values[1:])}}
    items = sorted([*state[0], row], key=lambda r: r["sort_col"], reverse=True)
    return (items[:k],)


def topk_merge(k: int, left: State, right: State) -> State:
    return (sorted([*left[0], *right[0]], reverse=True)[:k],)


def topk_distinct_merge(k: int, left: State, right: State) -> State:
    return topk_merge(k, left, ([value for value in right[0] if value not in left[0]],))


def topk_rows_merge(k: int, left: State, right: State) -> State:
    return (sorted([*left[0], *right[0]], key=lambda r: r["sort_col"], reverse=True)[:k],)


def _k(name: str, constants: Sequence[Any]) -> int:
    k = constants[0]
    if not isinstance(k, int) or k < 1:
        raise ValueError(f"{name} needs a number of at least 1, found {k}")
    return k


def _topk(types: Sequence[DataType], constants: Sequence[Any]) -> Aggregator:
    k = _k("TOPK", constants)
    type = array(types[0])
    return Aggregator("TOPK", type, (Column("ITEMS", type),), ([],), partial(topk_add, k), first, partial(topk_merge, k))


def _topk_rows(types: Sequence[DataType], constants: Sequence[Any]) -> Aggregator:
    k = _k("TOPK", constants)
    names = ["sort_col", *(f"col{i}" for i in range(len(types) - 1))]
    type = array(struct(*(Column(n, t) for n, t in zip(names, types, strict=True))))
    return Aggregator(
        "TOPK", type, (Column("ITEMS", type),), ([],), partial(topk_rows_add, k), first,
        partial(topk_rows_merge, k), skips_null=False, is_ordered=True,
    )  # fmt: skip


def _topk_distinct(types: Sequence[DataType], constants: Sequence[Any]) -> Aggregator:
    k = _k("TOPKDISTINCT", constants)
    type = array(types[0])
    add, merge = partial(topk_distinct_add, k), partial(topk_distinct_merge, k)
    return Aggregator("TOPKDISTINCT", type, (Column("ITEMS", type),), ([],), add, first, merge)


FUNCTIONS: tuple[Aggregate, ...] = (
    aggregate(
        "TOPK",
        "The K largest values; with more columns, rows with the K largest values of the first.",
        *(over_all(f"({t}, INTEGER) -> ARRAY<{t}>", _topk, constants=1) for t in ORDERED),
        *(over_all(f"({t}, ANY, ANY..., INTEGER) -> ARRAY<STRUCT>", _topk_rows, constants=1) for t in ORDERED),
    ),
    aggregate(
        "TOPKDISTINCT",
        "The K largest different values.",
        *(over_all(f"({t}, INTEGER) -> ARRAY<{t}>", _topk_distinct, constants=1) for t in ORDERED),
    ),
)
