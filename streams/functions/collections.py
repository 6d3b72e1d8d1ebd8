"""Functions of arrays and maps, and those that take lambdas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from logflume.log.schemas import Column as Col
from logflume.log.schemas import DataType, Kind, array, java_double_text, struct

from .collection_columns import array_length_columns
from .scalar import Scalar, gives, over, scalar

_JOINED = (Kind.BOOLEAN, Kind.INTEGER, Kind.BIGINT, Kind.DOUBLE, Kind.DECIMAL, Kind.STRING)
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


def array_join(items: list[Any] | None, separator: str | None, type: DataType) -> str | None:
    """Items as text with a separator; nulls as `null`. Raises ValueError: an item that is no text, number or boolean."""
    return None if items is None else (separator or "").join(_item_text(item, type) for item in items)


def array_join_commas(items: list[Any] | None, type: DataType) -> str | None:
    return array_join(items, ",", type)


def _item_text(value: Any, type: DataType) -> str:
    if value is None:
        return "null"
    if type.kind not in _JOINED:
        raise ValueError(f"ARRAY_JOIN takes texts, numbers and booleans, found an item of type {type}")
    if isinstance(value, bool):
        return "true" if value else "false"
    return (
        java_double_text(value) if isinstance(value, float) else format(value, "f") if hasattr(value, "quantize") else str(value)
    )


def _item_type(types: Sequence[DataType], result: DataType) -> tuple[Any, ...]:
    return (types[0].element,)


def slice_array(items: list[Any] | None, first: int | None, last: int | None) -> list[Any] | None:
    """Items first..last, both included, from 1; null bounds are the ends, and beyond them there is nothing: null."""
    if items is None:
        return None
    start = 0 if first is None else first - 1
    stop = len(items) if last is None else last
    return items[start:stop] if 0 <= start <= stop <= len(items) else None


def as_map(keys: list[str], values: list[Any]) -> dict[str, Any]:
    """A map; keys beyond the values have null."""
    return {key: values[n] if n < len(values) else None for n, key in enumerate(keys)}


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
    """The items that are kept. Raises ValueError: the lambda gives null."""
    return [item for item in items if _decided(keep(item))]


def filter_map(pairs: dict[str, Any], keep: Callable[[Any, Any], Any]) -> dict[str, Any]:
    """The entries that are kept. Raises ValueError: the lambda gives null, or a value that is kept is null."""
    return {key: _present(value) for key, value in pairs.items() if _decided(keep(key, value))}


def _decided(answer: Any) -> Any:
    if answer is None:
        raise ValueError("true or false is expected of the lambda, found null")
    return answer


def _present(value: Any) -> Any:
    if value is None:
        raise ValueError("a map made by a lambda cannot hold null")
    return value


def transform_array(items: list[Any], change: Callable[[Any], Any]) -> list[Any]:
    return [change(item) for item in items]


def transform_map(
    pairs: dict[str, Any], new_key: Callable[[Any, Any], Any], new_value: Callable[[Any, Any], Any]
) -> dict[str, Any]:
    """Both lambdas see the old key and value. Raises ValueError when two entries get one key, or one gets a null value."""
    out: dict[str, Any] = {}
    for key, value in pairs.items():
        made = new_key(key, value)
        if made in out:
            raise ValueError(f"two entries were given the key {made!r}")
        out[made] = _present(new_value(key, value))
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


FUNCTIONS: tuple[Scalar, ...] = (
    scalar(
        "ARRAY_CONCAT",
        "Both arrays in a row.",
        gives([1, 2, 2], [1, 2], [2]),
        over("(ARRAY<T>, ARRAY<T>) -> ARRAY<T>", array_concat, handles_null=True),
    ),
    scalar(
        "ARRAY_CONTAINS",
        "Whether an item is in an array.",
        gives(True, [1, 2], 2),
        over("(ARRAY<T>, T) -> BOOLEAN", array_contains, handles_null=True),
    ),
    scalar("ARRAY_DISTINCT", "Each item once.", gives([1, 2], [1, 2, 1]), over("(ARRAY<T>) -> ARRAY<T>", array_distinct)),
    scalar(
        "ARRAY_EXCEPT",
        "Distinct items of the first array that are not in the second.",
        gives([1, 3], [1, 2, 3], [2]),
        over("(ARRAY<T>, ARRAY<T>) -> ARRAY<T>", array_except),
    ),
    scalar(
        "ARRAY_INTERSECT",
        "Distinct items that are in both arrays.",
        gives([2], [1, 2, 2], [2, 3]),
        over("(ARRAY<T>, ARRAY<T>) -> ARRAY<T>", array_intersect),
    ),
    scalar(
        "ARRAY_UNION",
        "Distinct items of either array.",
        gives([1, 2, 3], [1, 2], [2, 3]),
        over("(ARRAY<T>, ARRAY<T>) -> ARRAY<T>", array_union),
    ),
    scalar(
        "ARRAY_REMOVE",
        "Without every equal item.",
        gives([1], [1, 2, 2], 2),
        over("(ARRAY<T>, T) -> ARRAY<T>", array_remove, handles_null=True),
    ),
    scalar(
        "ARRAY_LENGTH",
        "The number of items.",
        gives(2, ["a", "b"]),
        over("(ARRAY<T>) -> INTEGER", array_length, columns=array_length_columns),
    ),
    scalar("ARRAY_MAX", "The largest item; nulls do not count.", gives(3, [1, None, 3]), over("(ARRAY<T>) -> T", array_max)),
    scalar("ARRAY_MIN", "The smallest item; nulls do not count.", gives(1, [1, None, 3]), over("(ARRAY<T>) -> T", array_min)),
    scalar(
        "ARRAY_SORT",
        "Sorted, nulls last; ASC or DESC.",
        gives([2, 1, None], [2, None, 1], "DESC"),
        over("(ARRAY<T>) -> ARRAY<T>", array_sort),
        over("(ARRAY<T>, STRING) -> ARRAY<T>", array_sort),
    ),
    scalar(
        "ARRAY_JOIN",
        "Items (texts, numbers or booleans) as text with a separator, a comma unless said otherwise.",
        gives("1-2", [1, 2], "-"),
        over("(ARRAY<T>) -> STRING", array_join_commas, handles_null=True, extra=_item_type),
        over("(ARRAY<T>, STRING) -> STRING", array_join, handles_null=True, extra=_item_type),
    ),
    scalar(
        "SLICE",
        "Items from a first to a last position, both included, from 1.",
        gives(["b", "c"], ["a", "b", "c", "d"], 2, 3),
        over("(ARRAY<T>, INTEGER, INTEGER) -> ARRAY<T>", slice_array, handles_null=True),
    ),
    scalar(
        "AS_MAP",
        "A map of keys and values.",
        gives({"a": 1}, ["a"], [1]),
        over("(ARRAY<STRING>, ARRAY<T>) -> MAP<STRING, T>", as_map),
    ),
    scalar("MAP_KEYS", "The keys of a map.", gives(["a"], {"a": 1}), over("(MAP<STRING, T>) -> ARRAY<STRING>", map_keys)),
    scalar("MAP_VALUES", "The values of a map.", gives([1], {"a": 1}), over("(MAP<STRING, T>) -> ARRAY<T>", map_values)),
    scalar(
        "MAP_UNION",
        "The entries of both maps; the second wins.",
        gives({"a": 1, "b": 3}, {"a": 1, "b": 2}, {"b": 3}),
        over("(MAP<STRING, T>, MAP<STRING, T>) -> MAP<STRING, T>", map_union, handles_null=True),
    ),
    scalar(
        "ENTRIES",
        "The entries of a map as STRUCT<K, V>, sorted by key or not.",
        gives([{"K": "a", "V": 1}], {"a": 1}, True),
        over("(MAP<STRING, T>, BOOLEAN) -> ARRAY<STRUCT>", entries, result_type=_entries_type),
    ),
    scalar(
        "GENERATE_SERIES",
        "The numbers from first to last, by a step.",
        gives([5, 3, 1], 5, 1, -2),
        over("(INTEGER, INTEGER) -> ARRAY<INTEGER>", generate_series),
        over("(INTEGER, INTEGER, INTEGER) -> ARRAY<INTEGER>", generate_series),
        over("(BIGINT, BIGINT) -> ARRAY<BIGINT>", generate_series),
        over("(BIGINT, BIGINT, INTEGER) -> ARRAY<BIGINT>", generate_series),
    ),
    scalar(
        "FILTER",
        "The items or entries for which a lambda is true; null where it gives null, or keeps an entry of null.",
        gives([3], [1, 3], lambda x: x > 1, sql="FILTER(ARRAY[1, 3], X => X > 1)"),
        over("(ARRAY<T>, (T) => BOOLEAN) -> ARRAY<T>", filter_array),
        over("(MAP<K, V>, (K, V) => BOOLEAN) -> MAP<K, V>", filter_map),
    ),
    scalar(
        "TRANSFORM",
        "Each item changed by a lambda, or each entry by two (key, value); null where a key comes twice, or a null value.",
        gives([2, 4], [1, 3], lambda x: x + 1, sql="TRANSFORM(ARRAY[1, 3], X => X + 1)"),
        over("(ARRAY<T>, (T) => R) -> ARRAY<R>", transform_array),
        over("(MAP<K, V>, (K, V) => R, (K, V) => S) -> MAP<R, S>", transform_map),
    ),
    scalar(
        "REDUCE",
        "The items or entries folded into a state by a lambda.",
        gives(14, [1, 3], 10, lambda s, x: s + x, sql="REDUCE(ARRAY[1, 3], 10, (S, X) => S + X)"),
        over("(ARRAY<T>, S, (S, T) => S) -> S", reduce_array, handles_null=True),
        over("(MAP<K, V>, S, (S, K, V) => S) -> S", reduce_map, handles_null=True),
    ),
)
