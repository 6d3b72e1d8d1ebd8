"""Values collected: as a list, a set, counts by text, or the one that all share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from logflume.log.schemas import BIGINT, STRING, Column, DataType, array, map_of, struct

from ..graph import Aggregator
from .aggregate import Aggregate, State, aggregate, first, over_all
from .collections import freeze

LIST_MAX_ITEMS = 2**31 - 1
HISTOGRAM_MAX_KEYS = 1_000


def collect_list_add(limit: int, state: State, value: Any) -> State:
    return ([*state[0], value],) if len(state[0]) < limit else state


def collect_list_merge(limit: int, left: State, right: State) -> State:
    return ([*left[0], *right[0]][:limit],)


def collect_list_undo(state: State, value: Any) -> State:
    """Takes the last equal item out."""
    items = list(state[0])
    for index in range(len(items) - 1, -1, -1):
        if items[index] == value:
            del items[index]
            break
    return (items,)


def collect_set_add(limit: int, state: State, value: Any) -> State:
    if len(state[0]) >= limit or any(freeze(value) == freeze(item) for item in state[0]):
        return state
    return ([*state[0], value],)


def collect_set_merge(limit: int, left: State, right: State) -> State:
    for value in right[0]:
        left = collect_set_add(limit, left, value)
    return left


def _collect_list(types: Sequence[DataType], constants: Sequence[Any]) -> Aggregator:
    type = array(types[0])
    limit = constants[0] if constants else LIST_MAX_ITEMS
    return Aggregator(
        "COLLECT_LIST", type, (Column("ITEMS", type),), ([],), partial(collect_list_add, limit), first,
        partial(collect_list_merge, limit), collect_list_undo, skips_null=False, is_ordered=True,
    )  # fmt: skip


def _collect_set(types: Sequence[DataType], constants: Sequence[Any]) -> Aggregator:
    type = array(types[0])
    limit = constants[0] if constants else LIST_MAX_ITEMS
    return Aggregator(
        "COLLECT_SET", type, (Column("ITEMS", type),), ([],), partial(collect_set_add, limit), first,
        partial(collect_set_merge, limit), skips_null=False, is_ordered=True,
    )  # fmt: skip


def histogram_add(state: State, value: str) -> State:
    counts = state[0]
    if value not in counts and len(counts) >= HISTOGRAM_MAX_KEYS:
        return state
    return ({**counts, value: counts.get(value, 0) + 1},)


def histogram_undo(state: State, value: str) -> State:
    counts = dict(state[0])
    left = counts.get(value, 0) - 1
    if left > 0:
        counts[value] = left
    else:
        counts.pop(value, None)
    return (counts,)


def histogram_merge(left: State, right: State) -> State:
    """Counts of both; texts beyond the limit are those of the right that the left has not."""
    counts = dict(left[0])
    for value, count in right[0].items():
        if value in counts or len(counts) < HISTOGRAM_MAX_KEYS:
            counts[value] = counts.get(value, 0) + count
    return (counts,)


def _histogram(types: Sequence[DataType], constants: Sequence[Any]) -> Aggregator:
    type = map_of(STRING, BIGINT)
    return Aggregator(
        "HISTOGRAM",
        type,
        (Column("COUNTS", type),),
        ({},),
        histogram_add,
        first,
        histogram_merge,
        histogram_undo,
        is_ordered=True,
    )


def attr_add(state: State, value: Any) -> State:
    """state: entries {VALUE, COUNT} in order of first appearance."""
    entries = [dict(e) for e in state[0]]
    for entry in entries:
        if freeze(entry["VALUE"]) == freeze(value):
            entry["COUNT"] += 1
            return (entries,)
    return ([*entries, {"VALUE": value, "COUNT": 1}],)


def attr_merge(left: State, right: State) -> State:
    entries = [dict(e) for e in left[0]]
    for other in right[0]:
        same = next((e for e in entries if freeze(e["VALUE"]) == freeze(other["VALUE"])), None)
        if same is None:
            entries.append(dict(other))
        else:
            same["COUNT"] += other["COUNT"]
    return (entries,)


def attr_undo(state: State, value: Any) -> State:
    entries = [{**e, "COUNT": e["COUNT"] - (freeze(e["VALUE"]) == freeze(value))} for e in state[0]]
    return ([e for e in entries if e["COUNT"] > 0],)


def attr_result(state: State) -> Any:
    return state[0][0]["VALUE"] if len(state[0]) == 1 else None


def _attr(types: Sequence[DataType], constants: Sequence[Any]) -> Aggregator:
    type = array(struct(Column("VALUE", types[0]), Column("COUNT", BIGINT)))
    return Aggregator(
        "ATTR", types[0], (Column("ENTRIES", type),), ([],), attr_add, attr_result, attr_merge, attr_undo, skips_null=False
    )


FUNCTIONS: tuple[Aggregate, ...] = (
    aggregate(
        "COLLECT_LIST",
        "All values in order, nulls too.",
        over_all("(T) -> ARRAY<T>", _collect_list, has_undo=True, limit_property="ksql.functions.collect_list.limit"),
        example=((1, None, 1), [1, None, 1]),
    ),
    aggregate(
        "COLLECT_SET",
        "Each value once, in order of appearance.",
        over_all("(T) -> ARRAY<T>", _collect_set, limit_property="ksql.functions.collect_set.limit"),
        example=((1, 2, 1), [1, 2]),
    ),
    aggregate(
        "HISTOGRAM",
        f"How often each text occurs; of at most {HISTOGRAM_MAX_KEYS} texts.",
        over_all("(STRING) -> MAP<STRING, BIGINT>", _histogram, has_undo=True),
        example=(("a", "b", "a"), {"a": 2, "b": 1}),
    ),
    aggregate("ATTR", "The value if all are equal, else null.", over_all("(T) -> T", _attr, has_undo=True), example=((1, 1), 1)),
)
