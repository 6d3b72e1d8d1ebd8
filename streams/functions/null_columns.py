"""Functions of nulls over columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from .columns import NotHeld, is_column, numbers, size_of, valid_in


def coalesce_columns(*arguments: Any) -> tuple[Any, ...]:
    """The first that is not null, row by row; numbers by numpy, the rest by Arrow."""
    count = size_of(arguments)
    is_numpy = isinstance(next(a for a in arguments if is_column(a))[0], np.ndarray)
    found: Any = None
    valid = np.zeros(count, np.bool_)
    for argument in arguments:
        if argument is None:
            continue
        here = valid_in(argument, count)
        values = argument[0] if is_column(argument) else argument
        found = values if found is None else _chosen(valid, found, values, is_numpy=is_numpy)
        valid = valid | here
    if not is_column(next(a for a in arguments if a is not None)) or (is_numpy and not isinstance(found, np.ndarray)):
        raise NotHeld("a constant before every column")
    return found, None if valid.all() else valid


def _chosen(taken: Any, found: Any, values: Any, *, is_numpy: bool) -> Any:
    if is_numpy:
        return np.where(taken, found, values)
    import pyarrow as pa
    import pyarrow.compute as pc

    other = values if isinstance(values, pa.Array) else pa.scalar(values, found.type)
    return pc.if_else(pa.array(taken), found, other)


def nullif_columns(value: Any, other: Any) -> tuple[Any, ...]:
    """Null where both are equal; a null second argument equals nothing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not is_column(value):
        raise NotHeld("a constant")
    values, valid = value
    if other is None:
        return values, valid
    count = len(values)
    others = other[0] if is_column(other) else other
    if isinstance(values, np.ndarray):
        equal = values == others
    elif pa.types.is_nested(values.type):
        raise NotHeld("nested values")
    else:
        equal = numbers(pc.equal(values, others if is_column(other) else pa.scalar(others, values.type)), np.bool_)
    differs = ~(equal & valid_in(other, count))
    kept = differs if valid is None else differs & valid
    return values, None if kept.all() else kept
