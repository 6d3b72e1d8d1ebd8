"""Functions of arrays and maps, and those that take lambdas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from logflume.log.schemas import Column as Col
from logflume.log.schemas import DataType, array, java_double_text, struct

from .signature import Overload, overload

SERIES_MAX_ITEMS = 1_000_000


def _distinct(items: list[Any]) -> list[Any]:
    """Unique items in order of first appearance; equality by value, for lists and maps too."""
    seen: set[Any] = set()
    out: list[Any] = []
    for item in items:
        mark = freeze(item)
        if mark not in seen:
            seen.add(mark)
            out.append(item)
    return out


def freeze(value: Any) -> Any:
    """Return a hashable stand-in that is equal when the values are; True and 1 differ."""
    if isinstance(value, list):
        return ("list", *map(freeze, value))
    if isinstance(value, dict):
        return ("dict", frozenset((k, freeze(v)) for k, v in value.items()))
    return (type(value), value) if isinstance(value, bool) else value


def array_concat(left: list[Any] | None, right: list[Any] | None) -> list[Any] | None:
    if left is None or right is None:
        return right if left is None else left
    return left + right


def array_contains(items: list[Any] | None, sought: Any) -> bool:
    return items is not None and sought in items


def array_distinct(items: list[Any]) -> list[Any]:
    return _distinct(items)


def array_except(left: list[Any], right: list[Any]) -> list[Any]:
    marks = {freeze(item) for item in right}
    return [item for item in _distinct(left) if freeze(item) not in marks]


def array_intersect(left: list[Any], right: list[Any]) -> list[Any]:
    marks = {freeze(item) for item in right}
    return [item for item in _distinct(left) if freeze(item) in marks]


def array_union(left: list[Any], right: list[Any]) -> list[Any]:
    return _distinct(left + right)


def array_remove(items: list[Any] | None, unwanted: Any) -> list[Any] | None:
    return None if items is None else [item for item in items if item != unwanted or (item is None) != (unwanted is None)]


def array_length(items: list[Any]) -> int:
    return len(items)


def array_max(items: list[Any]) -> Any:
    return max((i for i in items if i is not None), default=None)


def array_min(items: list[Any]) -> Any:
    return min((i for i in items if i is not None), default=None)


def array_sort(items: list[Any], direction: str = "ASC") -> list[Any] | None:
    """Sorted, nulls last; direction ASC, ASCENDING, DESC or DESCENDING, null for anything else."""
    word = direction.upper()
    if word not in ("ASC", "ASCENDING", "DESC", "DESCENDING"):
        return None
    present = sorted((i for i in items if i is not None), reverse=word.startswith("DESC"))
    return present + [None] * (len(items) - len(present))


def array_join(items: list[Any] | None, separator: str | None = ",") -> str | None:
    """Items as text with a separator; nulls as `null`."""
    return None if items is None else (separator or "").join(map(_item_text, items))


def _item_text(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return (
        java_double_text(value) if isinstance(value, float) else format(value, "f") if hasattr(value, "quantize") else str(value)
    )


def slice_array(items: list[Any], first: int | None, last: int | None) -> list[Any] | None:
    """Items first..last, both included, from 1; null bounds are the ends."""
    start = 1 if first is None else first
    stop = len(items) if last is None else last
    return items[max(start, 1) - 1 : max(stop, 0)] if start <= stop else None


def as_map(keys: list[str], values: list[Any]) -> dict[str, Any]:
    return dict(zip(keys, values, strict=False))


def map_keys(entries: dict[str, Any]) -> list[str]:
    return list(entries)


def map_values(entries: dict[str, Any]) -> list[Any]:
    return list(entries.values())


def map_union(left: dict[str, Any] | None, right: dict[str, Any] | None) -> dict[str, Any] | None:
    if left is None or right is None:
        return right if left is None else left
    return {**left, **right}


def entries(pairs: dict[str, Any], is_sorted: bool) -> list[dict[str, Any]]:
    keys = sorted(pairs) if is_sorted else list(pairs)
    return [{"K": key, "V": pairs[key]} for key in keys]


def generate_series(start: int, stop: int, step: int | None = None) -> list[int]:
    """start..stop inclusive; the step defaults to 1 or -1. Raises ValueError for a step of 0 or of the wrong sign."""
    by = (1 if stop >= start else -1) if step is None else step
    if by == 0:
        raise ValueError("GENERATE_SERIES step cannot be zero")
    if (stop - start) * by < 0:
        raise ValueError("GENERATE_SERIES step has the wrong sign")
    if abs(stop - start) // abs(by) >= SERIES_MAX_ITEMS:
        raise ValueError(f"GENERATE_SERIES of more than {SERIES_MAX_ITEMS} items")
    return list(range(start, stop + (1 if by > 0 else -1), by))


def filter_array(items: list[Any], keep: Callable[[Any], Any]) -> list[Any]:
    return [item for item in items if keep(item)]


def filter_map(pairs: dict[str, Any], keep: Callable[[Any, Any], Any]) -> dict[str, Any]:
    return {key: value for key, value in pairs.items() if keep(key, value)}


def transform_array(items: list[Any], change: Callable[[Any], Any]) -> list[Any]:
    return [change(item) for item in items]


def transform_map(
    pairs: dict[str, Any], new_key: Callable[[Any, Any], Any], new_value: Callable[[Any, Any], Any]
) -> dict[str, Any]:
    """Both lambdas see the old key and value. Raises ValueError when two entries get one key."""
    out: dict[str, Any] = {}
    for key, value in pairs.items():
        made = new_key(key, value)
        if made in out:
            raise ValueError(f"two entries were given the key {made!r}")
        out[made] = new_value(key, value)
    return out


def reduce_array(items: list[Any] | None, state: Any, step: Callable[[Any, Any], Any]) -> Any:
    if state is None:
        return None
    for item in items or ():
        state = step(state, item)
    return state


def reduce_map(pairs: dict[str, Any] | None, state: Any, step: Callable[[Any, Any, Any], Any]) -> Any:
    if state is None:
        return None
    for key, value in (pairs or {}).items():
        state = step(state, key, value)
    return state


def _entries_type(types: Sequence[DataType]) -> DataType:
    pairs = types[0]
    assert pairs.key is not None
    assert pairs.element is not None
    return array(struct(Col("K", pairs.key), Col("V", pairs.element)))


OVERLOADS: tuple[Overload, ...] = (
    overload("ARRAY_CONCAT", "(ARRAY<T>, ARRAY<T>) -> ARRAY<T>", array_concat, handles_null=True, doc="Both arrays in a row."),
    overload(
        "ARRAY_CONTAINS", "(ARRAY<T>, T) -> BOOLEAN", array_contains, handles_null=True, doc="Whether an item is in an array."
    ),
    overload("ARRAY_DISTINCT", "(ARRAY<T>) -> ARRAY<T>", array_distinct, doc="Each item once."),
    overload(
        "ARRAY_EXCEPT", "(ARRAY<T>, ARRAY<T>) -> ARRAY<T>", array_except, doc="Distinct items of the first not in the second."
    ),
    overload("ARRAY_INTERSECT", "(ARRAY<T>, ARRAY<T>) -> ARRAY<T>", array_intersect, doc="Distinct items of both."),
    overload("ARRAY_UNION", "(ARRAY<T>, ARRAY<T>) -> ARRAY<T>", array_union, doc="Distinct items of either."),
    overload("ARRAY_REMOVE", "(ARRAY<T>, T) -> ARRAY<T>", array_remove, handles_null=True, doc="Without every equal item."),
    overload("ARRAY_LENGTH", "(ARRAY<T>) -> INTEGER", array_length, doc="The number of items."),
    overload("ARRAY_MAX", "(ARRAY<T>) -> T", array_max, doc="The largest item; nulls do not count."),
    overload("ARRAY_MIN", "(ARRAY<T>) -> T", array_min, doc="The smallest item; nulls do not count."),
    overload("ARRAY_SORT", "(ARRAY<T>) -> ARRAY<T>", array_sort, doc="Sorted, nulls last; ASC or DESC."),
    overload("ARRAY_SORT", "(ARRAY<T>, STRING) -> ARRAY<T>", array_sort),
    overload("ARRAY_JOIN", "(ARRAY<T>) -> STRING", array_join, handles_null=True, doc="Items as text with a separator."),
    overload("ARRAY_JOIN", "(ARRAY<T>, STRING) -> STRING", array_join, handles_null=True),
    overload("SLICE", "(ARRAY<T>, INTEGER, INTEGER) -> ARRAY<T>", slice_array, doc="Items from a first to a last position."),
    overload("AS_MAP", "(ARRAY<STRING>, ARRAY<T>) -> MAP<STRING, T>", as_map, doc="A map of keys and values."),
    overload("MAP_KEYS", "(MAP<STRING, T>) -> ARRAY<STRING>", map_keys, doc="The keys of a map."),
    overload("MAP_VALUES", "(MAP<STRING, T>) -> ARRAY<T>", map_values, doc="The values of a map."),
    overload(
        "MAP_UNION",
        "(MAP<STRING, T>, MAP<STRING, T>) -> MAP<STRING, T>",
        map_union,
        handles_null=True,
        doc="The second map wins.",
    ),
    overload(
        "ENTRIES", "(MAP<STRING, T>, BOOLEAN) -> ARRAY<STRUCT>", entries, result_type=_entries_type, doc="Entries, sorted or not."
    ),
    overload("GENERATE_SERIES", "(INTEGER, INTEGER) -> ARRAY<INTEGER>", generate_series, doc="The numbers from first to last."),
    overload("GENERATE_SERIES", "(INTEGER, INTEGER, INTEGER) -> ARRAY<INTEGER>", generate_series),
    overload("GENERATE_SERIES", "(BIGINT, BIGINT) -> ARRAY<BIGINT>", generate_series),
    overload("GENERATE_SERIES", "(BIGINT, BIGINT, INTEGER) -> ARRAY<BIGINT>", generate_series),
    overload(
        "FILTER", "(ARRAY<T>, (T) => BOOLEAN) -> ARRAY<T>", filter_array, doc="Items or entries for which a lambda is true."
    ),
    overload("FILTER", "(MAP<K, V>, (K, V) => BOOLEAN) -> MAP<K, V>", filter_map),
    overload("TRANSFORM", "(ARRAY<T>, (T) => R) -> ARRAY<R>", transform_array, doc="Each item or entry changed by lambdas."),
    overload("TRANSFORM", "(MAP<K, V>, (K, V) => R, (K, V) => S) -> MAP<R, S>", transform_map),
    overload("REDUCE", "(ARRAY<T>, S, (S, T) => S) -> S", reduce_array, handles_null=True, doc="Items folded into a state."),
    overload("REDUCE", "(MAP<K, V>, S, (S, K, V) => S) -> S", reduce_map, handles_null=True),
)
