"""What forms over columns share: pairs of values and validity, text as bytes, Arrow to numpy, and one way to call a form.

See `scalar.py` for what a form takes and gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from logflume.log.schemas import DataType, Kind

from ..expr import Function

Pair = tuple[Any, Any]
Found = tuple[Any, Any, Any]

_DTYPES: dict[Kind, Any] = {
    Kind.BOOLEAN: np.bool_,
    Kind.DOUBLE: np.float64,
    **dict.fromkeys((Kind.INTEGER, Kind.BIGINT, Kind.DATE, Kind.TIME, Kind.TIMESTAMP), np.int64),
}


class NotHeld(Exception):
    """A form over columns is not for these arguments: the exact form computes every row."""


def dtype_of(type: DataType) -> Any:
    """Return the numpy dtype of a column of a type, None when it is an Arrow array."""
    return _DTYPES.get(type.kind)


def arrow_type(type: DataType) -> Any:
    """Return the Arrow type of a column's values.

    Raises:
        NotHeld: there is none (ANY, a DECIMAL of more than 76 digits).
    """
    import pyarrow as pa

    match type.kind:
        case Kind.STRING:
            return pa.string()
        case Kind.BYTES:
            return pa.binary()
        case Kind.DECIMAL if type.precision <= 76:
            return (
                pa.decimal128(type.precision, type.scale) if type.precision <= 38 else pa.decimal256(type.precision, type.scale)
            )
        case Kind.ARRAY if type.element is not None:
            return pa.list_(arrow_type(type.element))
        case Kind.MAP if type.key is not None and type.element is not None:
            return pa.map_(arrow_type(type.key), arrow_type(type.element))
        case Kind.STRUCT:
            return pa.struct([(f.name, arrow_type(f.type)) for f in type.fields])
        case Kind.BOOLEAN:
            return pa.bool_()
        case Kind.DOUBLE:
            return pa.float64()
        case Kind.INTEGER | Kind.BIGINT | Kind.DATE | Kind.TIME | Kind.TIMESTAMP:
            return pa.int64()
    raise NotHeld(str(type))


def to_pair(values: Sequence[Any], type: DataType) -> Pair:
    """Return row values (None for null) as a pair of a type. Raises NotHeld."""
    import pyarrow as pa

    dtype = dtype_of(type)
    absent = np.fromiter((v is None for v in values), np.bool_, len(values))
    valid = ~absent if absent.any() else None
    if dtype is not None:
        return np.array([0 if v is None else v for v in values], dtype), valid
    plain = [list(v.items()) if isinstance(v, dict) else v for v in values] if type.kind is Kind.MAP else list(values)
    return pa.array(plain, arrow_type(type)), valid


def from_pair(pair: Pair, type: DataType) -> list[Any]:
    """Return the row values of a pair, None for null: Python values of the type."""
    values, valid = pair
    if isinstance(values, np.ndarray):
        rows = values.tolist()
    else:
        rows = values.to_pylist()
        if type.kind is Kind.MAP:
            rows = [None if row is None else dict(row) for row in rows]
    return rows if valid is None else [row if ok else None for row, ok in zip(rows, valid.tolist(), strict=True)]


def is_column(argument: Any) -> bool:
    """Tell whether an argument of a form is a column, not a constant."""
    return argument.__class__ is tuple


def constant(argument: Any) -> Any:
    """Return an argument that has to be a constant. Raises NotHeld: it is a column."""
    if is_column(argument):
        raise NotHeld("an argument that varies")
    return argument


def size_of(arguments: Sequence[Any]) -> int:
    """Return the number of rows of the columns among arguments."""
    return next(len(a[0]) for a in arguments if is_column(a))


def both(left: Any, right: Any) -> Any:
    """Return where both are valid; None stands for everywhere."""
    if left is None or right is None:
        return right if left is None else left
    return left & right


def either(left: Any, right: Any) -> Any:
    """Return where either is unsure; None stands for nowhere."""
    if left is None or right is None:
        return right if left is None else left
    return left | right


def apply_columns(function: Function, arguments: Sequence[Any]) -> Found:
    """Return (values, valid, unsure) of a function over columns and constants; `unsure` rows are for the exact form.

    Raises:
        NotHeld: the function has no form over columns, or not for these arguments.
    """
    if function.columns is None:
        raise NotHeld(function.name)
    valid = None
    if not function.handles_null:
        for argument in arguments:
            if argument is None:
                raise NotHeld("a null constant")
            if is_column(argument):
                valid = both(valid, argument[1])
    with np.errstate(all="ignore"):
        values, more, *rest = function.columns(*arguments)
    unsure = rest[0] if rest else None
    valid = both(valid, more)
    if unsure is not None and not function.handles_null and valid is not None:
        unsure = unsure & _arguments_valid(arguments)
    if unsure is not None and not unsure.any():
        unsure = None
    return values, valid, unsure


def _arguments_valid(arguments: Sequence[Any]) -> Any:
    valid = None
    for argument in arguments:
        if is_column(argument):
            valid = both(valid, argument[1])
    return True if valid is None else valid


def exact_rows(function: Function, arguments: Sequence[Sequence[Any]]) -> list[Any]:
    """Return what the exact form gives for rows of argument values. What it raises is raised."""
    impl = function.impl
    if function.handles_null:
        return [impl(*row) for row in zip(*arguments, strict=True)]
    return [None if None in row else impl(*row) for row in zip(*arguments, strict=True)]


# ------------------------------------------------------------------------------------------------ numpy and Arrow


def numbers(array: Any, dtype: Any) -> Any:
    """Return an Arrow array of numbers or booleans as numpy; nulls as 0."""
    filled = array.fill_null(False if dtype is np.bool_ else 0) if array.null_count else array
    return np.asarray(filled.to_numpy(zero_copy_only=False)).astype(dtype, copy=False)


def text_buffers(array: Any) -> tuple[Any, Any]:
    """Return (offsets of N + 1 items, all bytes from the first offset's buffer) of a text or bytes array."""
    import pyarrow as pa

    is_large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    dtype = np.dtype(np.int64 if is_large else np.int32)
    _, offsets, data = array.buffers()
    if offsets is None:
        return np.zeros(len(array) + 1, dtype), np.empty(0, np.uint8)
    starts = np.frombuffer(offsets, dtype, len(array) + 1, array.offset * dtype.itemsize)
    return starts, np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)


def text_bytes(array: Any) -> Any:
    """Return the bytes of all texts in a row, as numpy."""
    offsets, data = text_buffers(array)
    return data[offsets[0] : offsets[-1]]


def is_ascii(array: Any) -> bool:
    """Tell whether no text of an array has a character beyond ASCII."""
    data = text_bytes(array)
    return len(data) == 0 or int(data.max()) < 0x80


def has_wide(array: Any) -> Any:
    """Return where a text has a character beyond ASCII."""
    import pyarrow.compute as pc

    return numbers(pc.not_equal(pc.binary_length(array), pc.utf8_length(array)), np.bool_)


def texts_of_matrix(matrix: Any) -> Any:
    """Return the rows of an (N, width) matrix of ASCII bytes as an Arrow text array."""
    import pyarrow as pa

    count, width = matrix.shape
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(width)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(matrix)))


def texts_in(argument: Any) -> Any:
    """Return a text argument for an Arrow function: the array, or the constant as a scalar."""
    import pyarrow as pa

    return argument[0] if is_column(argument) else pa.scalar(argument)


def as_numbers(argument: Any) -> Any:
    """Return a number argument for a numpy function: the array, or the constant."""
    return argument[0] if is_column(argument) else argument


def valid_in(argument: Any, count: int) -> Any:
    """Return where an argument is not null, as an array of `count`."""
    if is_column(argument):
        return np.ones(count, np.bool_) if argument[1] is None else argument[1]
    return np.full(count, argument is not None)
