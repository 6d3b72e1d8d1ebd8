"""Aggregate functions. State is a tuple of typed columns; each step is a plain function of (state, *arguments) -> state.

Steps never change a state in place: an uncommitted state may still be read, and restored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from typing import Any

from logflume.log.schemas import ANY, BIGINT, BOOLEAN, DOUBLE, STRING, Column, DataType, Kind, array, map_of, struct
from logflume.streams.aggregators import first
from logflume.streams.graph import Aggregator

from .aggregate_spec import AggregateOverload, Make, aggregate
from .collections import freeze
from .distinct import distinct_add, distinct_count, distinct_merge, distinct_start

State = tuple[Any, ...]
LIST_MAX_ITEMS = 2**31 - 1
HISTOGRAM_MAX_KEYS = 1_000


# ------------------------------------------------------------------------------------------------ count, sum, avg


def count_rows_add(state: State) -> State:
    return (state[0] + 1,)


def count_rows_undo(state: State) -> State:
    return (state[0] - 1,)


def count_add(state: State, value: Any) -> State:
    return (state[0] + 1,)


def count_undo(state: State, value: Any) -> State:
    return (state[0] - 1,)


def add_first(left: State, right: State) -> State:
    return (left[0] + right[0],)


def sum_add(state: State, value: Any) -> State:
    return (state[0] + value,)


def sum_undo(state: State, value: Any) -> State:
    return (state[0] - value,)


def sum_integer_add(state: State, value: int) -> State:
    return (_exact(state[0] + value, 31),)


def sum_bigint_add(state: State, value: int) -> State:
    return (_exact(state[0] + value, 63),)


def sum_integer_merge(left: State, right: State) -> State:
    return (_exact(left[0] + right[0], 31),)


def sum_bigint_merge(left: State, right: State) -> State:
    return (_exact(left[0] + right[0], 63),)


def _exact(value: int, bits: int) -> int:
    """Wrap at 32 or 64 bits, as addition does everywhere else in the dialect."""
    span = 1 << bits
    return (value + span) % (2 * span) - span


def sum_list_add(state: State, items: list[Any]) -> State:
    return (state[0] + sum(i for i in items if i is not None),)


def sum_list_undo(state: State, items: list[Any]) -> State:
    return (state[0] - sum(i for i in items if i is not None),)


def average_add(state: State, value: Any) -> State:
    return (state[0] + float(value), state[1] + 1)


def average_undo(state: State, value: Any) -> State:
    return (state[0] - float(value), state[1] - 1)


def average_merge(left: State, right: State) -> State:
    return (left[0] + right[0], left[1] + right[1])


def average_result(state: State) -> float | None:
    return state[0] / state[1] if state[1] else 0.0


def _count_rows(types: Sequence[DataType], constants: Sequence[Any]) -> Aggregator:
    return Aggregator(
        "COUNT", BIGINT, (Column("COUNT", BIGINT),), (0,), count_rows_add, first, add_first, count_rows_undo, kernel="count"
    )


def _count(types: Sequence[DataType], constants: Sequence[Any]) -> Aggregator:
    return Aggregator("COUNT", BIGINT, (Column("COUNT", BIGINT),), (0,), count_add, first, add_first, count_undo, kernel="count")


def _sum(types: Sequence[DataType], constants: Sequence[Any]) -> Aggregator:
    type = types[0]
    columns = (Column("SUM", type),)
    if type.kind is Kind.INTEGER:
        return Aggregator("SUM", type, columns, (0,), sum_integer_add, first, sum_integer_merge, sum_undo, kernel="sum")
    if type.kind is Kind.BIGINT:
        return Aggregator("SUM", type, columns, (0,), sum_bigint_add, first, sum_bigint_merge, sum_undo, kernel="sum")
    zero: Any = Decimal(0).scaleb(-type.scale) if type.kind is Kind.DECIMAL else 0.0
    merge = add_first if type.kind is Kind.DECIMAL else None
    return Aggregator("SUM", type, columns, (zero,), sum_add, first, merge, sum_undo, kernel="sum" if merge is None else None)


def _sum_list(types: Sequence[DataType], constants: Sequence[Any]) -> Aggregator:
    type = types[0].element or ANY
    zero: Any = Decimal(0).scaleb(-type.scale) if type.kind is Kind.DECIMAL else 0.0 if type.kind is Kind.DOUBLE else 0
    return Aggregator("SUM_LIST", type, (Column("SUM", type),), (zero,), sum_list_add, first, None, sum_list_undo)


def _average(types: Sequence[DataType], constants: Sequence[Any]) -> Aggregator:
    columns = (Column("SUM", DOUBLE), Column("COUNT", BIGINT))
    return Aggregator("AVG", DOUBLE, columns, (0.0, 0), average_add, average_result, None, average_undo, kernel="mean")


# ------------------------------------------------------------------------------------------------ min, max


def max_add(state: State, value: Any) -> State:
    return (value,) if state[0] is None or value > state[0] else state


def min_add(state: State, value: Any) -> State:
    return (value,) if state[0] is None or value < state[0] else state


def max_merge(left: State, right: State) -> State:
    return left if right[0] is None else max_add(left, right[0])


def min_merge(left: State, right: State) -> State:
    return left if right[0] is None else min_add(left, right[0])


def _max(types: Sequence[DataType], constants: Sequence[Any]) -> Aggregator:
    return Aggregator("MAX", types[0], (Column("MAX", types[0]),), (None,), max_add, first, max_merge, kernel="max")


def _min(types: Sequence[DataType], constants: Sequence[Any]) -> Aggregator:
    return Aggregator("MIN", types[0], (Column("MIN", types[0]),), (None,), min_add, first, min_merge, kernel="min")


# ------------------------------------------------------------------------------------------------ spread


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


def variance_result(state: State) -> float:
    return state[2] / (state[0] - 1) if state[0] > 1 else 0.0


def deviation_result(state: State) -> float:
    return math.sqrt(max(variance_result(state), 0.0))


def _spread(name: str, result: Callable[[State], float]) -> Make:
    columns = (Column("COUNT", BIGINT), Column("SUM", DOUBLE), Column("SQUARES", DOUBLE))

    def make(types: Sequence[DataType], constants: Sequence[Any]) -> Aggregator:
        return Aggregator(name, DOUBLE, columns, (0, 0.0, 0.0), spread_add, result, None, spread_undo)

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
    spread = (sxx - sx * sx / n) * (syy - sy * sy / n)
    return (sxy - sx * sy / n) / math.sqrt(spread) if spread > 0 else math.nan


def _correlation(types: Sequence[DataType], constants: Sequence[Any]) -> Aggregator:
    columns = (Column("COUNT", BIGINT), *(Column(name, DOUBLE) for name in ("X", "Y", "XX", "YY", "XY")))
    initial = (0, 0.0, 0.0, 0.0, 0.0, 0.0)
    return Aggregator("CORRELATION", DOUBLE, columns, initial, correlation_add, correlation_result, None, correlation_undo)


# ------------------------------------------------------------------------------------------------ collections


def collect_list_add(limit: int, state: State, value: Any) -> State:
    return ([*state[0], value],) if len(state[0]) < limit else state


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


def _collect_list(types: Sequence[DataType], constants: Sequence[Any]) -> Aggregator:
    type = array(types[0])
    add = partial(collect_list_add, constants[0] if constants else LIST_MAX_ITEMS)
    return Aggregator(
        "COLLECT_LIST", type, (Column("ITEMS", type),), ([],), add, first, None, collect_list_undo, skips_null=False
    )


def _collect_set(types: Sequence[DataType], constants: Sequence[Any]) -> Aggregator:
    type = array(types[0])
    add = partial(collect_set_add, constants[0] if constants else LIST_MAX_ITEMS)
    return Aggregator("COLLECT_SET", type, (Column("ITEMS", type),), ([],), add, first, skips_null=False)


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


def _histogram(types: Sequence[DataType], constants: Sequence[Any]) -> Aggregator:
    type = map_of(STRING, BIGINT)
    return Aggregator("HISTOGRAM", type, (Column("COUNTS", type),), ({},), histogram_add, first, None, histogram_undo)


def attr_add(state: State, value: Any) -> State:
    """state: entries {VALUE, COUNT} in order of first appearance."""
    entries = [dict(e) for e in state[0]]
    for entry in entries:
        if freeze(entry["VALUE"]) == freeze(value):
            entry["COUNT"] += 1
            return (entries,)
    return ([*entries, {"VALUE": value, "COUNT": 1}],)


def attr_undo(state: State, value: Any) -> State:
    entries = [{**e, "COUNT": e["COUNT"] - (freeze(e["VALUE"]) == freeze(value))} for e in state[0]]
    return ([e for e in entries if e["COUNT"] > 0],)


def attr_result(state: State) -> Any:
    return state[0][0]["VALUE"] if len(state[0]) == 1 else None


def _attr(types: Sequence[DataType], constants: Sequence[Any]) -> Aggregator:
    type = array(struct(Column("VALUE", types[0]), Column("COUNT", BIGINT)))
    return Aggregator(
        "ATTR", types[0], (Column("ENTRIES", type),), ([],), attr_add, attr_result, None, attr_undo, skips_null=False
    )


def _count_distinct(types: Sequence[DataType], constants: Sequence[Any]) -> Aggregator:
    from logflume.log.schemas import BYTES

    columns = (Column("SKETCH", BYTES),)
    return Aggregator(
        "COUNT_DISTINCT", BIGINT, columns, (distinct_start(),), distinct_add, distinct_count, distinct_merge, skips_null=True
    )


# ------------------------------------------------------------------------------------------------ by offset


def latest_add(state: State, value: Any) -> State:
    return (value,)


def earliest_add(state: State, value: Any) -> State:
    """state: (has one, value)."""
    return state if state[0] else (True, value)


def second(state: State) -> Any:
    return state[1]


def latest_n_add(n: int, state: State, value: Any) -> State:
    return ([*state[0], value][-n:],)


def earliest_n_add(n: int, state: State, value: Any) -> State:
    return state if len(state[0]) >= n else ([*state[0], value],)


def _ignores_nulls(constants: Sequence[Any]) -> bool:
    return not (constants and constants[-1] is False)


def _latest(types: Sequence[DataType], constants: Sequence[Any]) -> Aggregator:
    columns = (Column("VALUE", types[0]),)
    return Aggregator("LATEST_BY_OFFSET", types[0], columns, (None,), latest_add, first, skips_null=_ignores_nulls(constants))


def _earliest(types: Sequence[DataType], constants: Sequence[Any]) -> Aggregator:
    columns = (Column("HAS", BOOLEAN), Column("VALUE", types[0]))
    return Aggregator(
        "EARLIEST_BY_OFFSET", types[0], columns, (False, None), earliest_add, second, skips_null=_ignores_nulls(constants)
    )


def _by_offset_n(name: str, step: Callable[..., State]) -> Make:
    def make(types: Sequence[DataType], constants: Sequence[Any]) -> Aggregator:
        n = constants[0]
        if n < 1:
            raise ValueError(f"{name} must aggregate over at least one value, found {n}")
        type = array(types[0])
        return Aggregator(
            name, type, (Column("ITEMS", type),), ([],), partial(step, n), first, skips_null=_ignores_nulls(constants[1:])
        )

    return make


# ------------------------------------------------------------------------------------------------ top k


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


def _k(name: str, constants: Sequence[Any]) -> int:
    k = constants[0]
    if not isinstance(k, int) or k < 1:
        raise ValueError(f"{name} needs a number of at least 1, found {k}")
    return k


def _topk(types: Sequence[DataType], constants: Sequence[Any]) -> Aggregator:
    k = _k("TOPK", constants)
    type = array(types[0])
    return Aggregator("TOPK", type, (Column("ITEMS", type),), ([],), partial(topk_add, k), first)


def _topk_rows(types: Sequence[DataType], constants: Sequence[Any]) -> Aggregator:
    k = _k("TOPK", constants)
    names = ["sort_col", *(f"col{i}" for i in range(len(types) - 1))]
    type = array(struct(*(Column(n, t) for n, t in zip(names, types, strict=True))))
    return Aggregator("TOPK", type, (Column("ITEMS", type),), ([],), partial(topk_rows_add, k), first, skips_null=False)


def _topk_distinct(types: Sequence[DataType], constants: Sequence[Any]) -> Aggregator:
    k = _k("TOPKDISTINCT", constants)
    type = array(types[0])
    return Aggregator("TOPKDISTINCT", type, (Column("ITEMS", type),), ([],), partial(topk_distinct_add, k), first)


_SUMMABLE = ("INTEGER", "BIGINT", "DECIMAL", "DOUBLE")
_ORDERED = (*_SUMMABLE, "STRING", "BYTES", "DATE", "TIME", "TIMESTAMP")

AGGREGATES: tuple[AggregateOverload, ...] = (
    aggregate("COUNT", "() -> BIGINT", _count_rows, has_undo=True, doc="The number of records, or of values that are not null."),
    aggregate("COUNT", "(T) -> BIGINT", _count, has_undo=True),
    *(aggregate("SUM", f"({t}) -> {t}", _sum, has_undo=True, doc="The sum, of the same type.") for t in _SUMMABLE),
    *(aggregate("AVG", f"({t}) -> DOUBLE", _average, has_undo=True, doc="The mean.") for t in _SUMMABLE),
    *(aggregate("MIN", f"({t}) -> {t}", _min, doc="The smallest value.") for t in _ORDERED),
    *(aggregate("MAX", f"({t}) -> {t}", _max, doc="The largest value.") for t in _ORDERED),
    *(
        aggregate(
            "STDDEV_SAMP", f"({t}) -> DOUBLE", _spread("STDDEV_SAMP", variance_result), has_undo=True, doc="The sample variance."
        )
        for t in _SUMMABLE
    ),
    *(
        aggregate("STDDEV_SAMPLE", f"({t}) -> DOUBLE", _spread("STDDEV_SAMPLE", deviation_result), has_undo=True, doc="Its root.")
        for t in _SUMMABLE
    ),
    aggregate(
        "CORRELATION", "(DOUBLE, DOUBLE) -> DOUBLE", _correlation, has_undo=True, doc="Pearson's correlation of two values."
    ),
    *(
        aggregate("SUM_LIST", f"(ARRAY<{t}>) -> {t}", _sum_list, has_undo=True, doc="The sum of all items.")
        for t in ("INTEGER", "BIGINT", "DECIMAL", "DOUBLE")
    ),
    aggregate(
        "COLLECT_LIST",
        "(T) -> ARRAY<T>",
        _collect_list,
        has_undo=True,
        doc="All values in order.",
        limit_property="ksql.functions.collect_list.limit",
    ),
    aggregate(
        "COLLECT_SET",
        "(T) -> ARRAY<T>",
        _collect_set,
        doc="Each value once.",
        limit_property="ksql.functions.collect_set.limit",
    ),
    aggregate("HISTOGRAM", "(STRING) -> MAP<STRING, BIGINT>", _histogram, has_undo=True, doc="How often each text occurs."),
    aggregate("ATTR", "(T) -> T", _attr, has_undo=True, doc="The value if all are equal, else null."),
    aggregate("COUNT_DISTINCT", "(T) -> BIGINT", _count_distinct, doc="An estimate of how many different values there are."),
    aggregate("LATEST_BY_OFFSET", "(T) -> T", _latest, doc="The last value that came; with N the last N."),
    aggregate("LATEST_BY_OFFSET", "(T, BOOLEAN) -> T", _latest, constants=1),
    aggregate("LATEST_BY_OFFSET", "(T, INTEGER) -> ARRAY<T>", _by_offset_n("LATEST_BY_OFFSET", latest_n_add), constants=1),
    aggregate(
        "LATEST_BY_OFFSET", "(T, INTEGER, BOOLEAN) -> ARRAY<T>", _by_offset_n("LATEST_BY_OFFSET", latest_n_add), constants=2
    ),
    aggregate("EARLIEST_BY_OFFSET", "(T) -> T", _earliest, doc="The first value that came; with N the first N."),
    aggregate("EARLIEST_BY_OFFSET", "(T, BOOLEAN) -> T", _earliest, constants=1),
    aggregate("EARLIEST_BY_OFFSET", "(T, INTEGER) -> ARRAY<T>", _by_offset_n("EARLIEST_BY_OFFSET", earliest_n_add), constants=1),
    aggregate(
        "EARLIEST_BY_OFFSET", "(T, INTEGER, BOOLEAN) -> ARRAY<T>", _by_offset_n("EARLIEST_BY_OFFSET", earliest_n_add), constants=2
    ),
    *(aggregate("TOPK", f"({t}, INTEGER) -> ARRAY<{t}>", _topk, constants=1, doc="The K largest values.") for t in _ORDERED),
    *(
        aggregate(
            "TOPK",
            f"({t}, ANY, ANY..., INTEGER) -> ARRAY<STRUCT>",
            _topk_rows,
            constants=1,
            doc="Rows with the K largest values.",
        )
        for t in _ORDERED
    ),
    *(
        aggregate("TOPKDISTINCT", f"({t}, INTEGER) -> ARRAY<{t}>", _topk_distinct, constants=1, doc="The K largest.")
        for t in _ORDERED
    ),
)
