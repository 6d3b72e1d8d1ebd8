"""Casts over columns: those of `casts.py` that numpy or Arrow give exactly, or are unsure of row by row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from logflume.log.schemas import DataType, Kind

from ..java_time import DAY_MS
from .columns import numbers
from .time_columns import format_date_columns, format_time_columns, format_timestamp_columns

ColumnCast = Callable[[Any], tuple[Any, ...]]

_WHOLE = (Kind.INTEGER, Kind.BIGINT)
_BOUNDS = {Kind.INTEGER: 2.0**31, Kind.BIGINT: 2.0**63}
_SAFE_DAYS = 100_000_000
# What every reader of numbers takes alike; anything else is for the exact form.
_PLAIN_INTEGER = r"\A-?[0-9]{1,9}\z"
_PLAIN_BIGINT = r"\A-?[0-9]{1,18}\z"
_PLAIN_DOUBLE = r"\A-?[0-9]{1,15}(\.[0-9]{1,15})?\z"


def cast_columns(source: DataType, target: DataType) -> ColumnCast | None:
    """Return the form over columns of a cast: a pair to (values, valid) or (values, valid, unsure); None: only the exact form."""
    pair = (source.kind, target.kind)
    if pair[0] is Kind.STRING and pair[1] in _PARSED:
        pattern, kind = _PARSED[pair[1]]
        return lambda column: _parsed(column, pattern, kind)
    return _CASTS.get(pair)


def _same(column: Any) -> tuple[Any, ...]:
    values, valid = column
    return values, valid


def _to_double(column: Any) -> tuple[Any, ...]:
    return column[0].astype(np.float64), column[1]


def _narrowed(column: Any) -> tuple[Any, ...]:
    """BIGINT to INTEGER wraps."""
    return column[0].astype(np.int32).astype(np.int64), column[1]


def _truncated_integer(column: Any) -> tuple[Any, ...]:
    return _truncated(column, _BOUNDS[Kind.INTEGER])


def _truncated_bigint(column: Any) -> tuple[Any, ...]:
    return _truncated(column, _BOUNDS[Kind.BIGINT])


def _truncated(column: Any, bound: float) -> tuple[Any, ...]:
    """The integer part; what lies beyond the range, or is none, is unsure."""
    values = np.trunc(column[0])
    inside = np.abs(values) < bound
    return np.where(inside, values, 0.0).astype(np.int64), column[1], ~inside


def _parsed(column: Any, pattern: str, dtype: Any) -> tuple[Any, ...]:
    import pyarrow as pa
    import pyarrow.compute as pc

    values, valid = column
    plain = pc.fill_null(pc.match_substring_regex(values, pattern), False)
    readable = pc.if_else(plain, values, "0")
    target = pa.float64() if dtype is np.float64 else pa.int64()
    return numbers(readable.cast(target), dtype), valid, ~numbers(plain, np.bool_)


def _whole_text(column: Any) -> tuple[Any, ...]:
    import pyarrow as pa

    return pa.array(column[0]).cast(pa.string()), column[1]


def _boolean_text(column: Any) -> tuple[Any, ...]:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.if_else(pa.array(column[0]), "true", "false"), column[1]


def _date_text(column: Any) -> tuple[Any, ...]:
    values, _, unsure = format_date_columns(column, "yyyy-MM-dd")
    return values, column[1], unsure


def _time_text(column: Any) -> tuple[Any, ...]:
    values, _, unsure = format_time_columns(column, "HH:mm:ss")
    return values, column[1], unsure


def _timestamp_text(column: Any) -> tuple[Any, ...]:
    values, _, unsure = format_timestamp_columns(column, "yyyy-MM-dd'T'HH:mm:ss.SSS")
    return values, column[1], unsure


def _to_date(column: Any) -> tuple[Any, ...]:
    return column[0] // DAY_MS, column[1]


def _to_time(column: Any) -> tuple[Any, ...]:
    return column[0] % DAY_MS, column[1]


def _from_date(column: Any) -> tuple[Any, ...]:
    days = column[0]
    unsure = np.abs(days) > _SAFE_DAYS
    return np.where(unsure, 0, days) * DAY_MS, column[1], unsure


def _text_boolean(column: Any) -> tuple[Any, ...]:
    """The usual words; other texts are unsure."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values, valid = column
    yes = numbers(pc.is_in(values, pa.array(["true", "TRUE", "True", "t", "T", "yes", "y"])), np.bool_)
    no = numbers(pc.is_in(values, pa.array(["false", "FALSE", "False", "f", "F", "no", "n"])), np.bool_)
    return yes, valid, ~(yes | no)


_PARSED: dict[Kind, tuple[str, Any]] = {
    Kind.INTEGER: (_PLAIN_INTEGER, np.int64),
    Kind.BIGINT: (_PLAIN_BIGINT, np.int64),
    Kind.DOUBLE: (_PLAIN_DOUBLE, np.float64),
}
_CASTS: dict[tuple[Kind, Kind], ColumnCast] = {
    (Kind.INTEGER, Kind.BIGINT): _same,
    (Kind.BIGINT, Kind.TIMESTAMP): _same,
    (Kind.TIMESTAMP, Kind.BIGINT): _same,
    (Kind.INTEGER, Kind.DOUBLE): _to_double,
    (Kind.BIGINT, Kind.DOUBLE): _to_double,
    (Kind.BIGINT, Kind.INTEGER): _narrowed,
    (Kind.DOUBLE, Kind.INTEGER): _truncated_integer,
    (Kind.DOUBLE, Kind.BIGINT): _truncated_bigint,
    (Kind.INTEGER, Kind.STRING): _whole_text,
    (Kind.BIGINT, Kind.STRING): _whole_text,
    (Kind.BOOLEAN, Kind.STRING): _boolean_text,
    (Kind.STRING, Kind.BOOLEAN): _text_boolean,
    (Kind.DATE, Kind.STRING): _date_text,
    (Kind.TIME, Kind.STRING): _time_text,
    (Kind.TIMESTAMP, Kind.STRING): _timestamp_text,
    (Kind.TIMESTAMP, Kind.DATE): _to_date,
    (Kind.TIMESTAMP, Kind.TIME): _to_time,
    (Kind.DATE, Kind.TIMESTAMP): _from_date,
}
