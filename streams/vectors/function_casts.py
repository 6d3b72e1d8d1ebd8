"""Casts by the library's own forms over columns: vectors become pairs of values and validity, results vectors.

Texts are copied into one Arrow array; one that is unsure or null goes in empty. A text that comes out and that JSON would not
write as it is makes its row unsure, as everywhere in vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from logflume.log.schemas import DataType, Kind

from .. import expr as e
from ..functions.cast_columns import cast_columns
from ..functions.columns import NotHeld, dtype_of, is_column, text_buffers
from .expressions import KINDS, Kinds, Mask, Rows, Unsupported, Vector, VectorOf, compile_vector, either, full

Form = Callable[[list[Any]], tuple[Any, Any, Any]]

_TYPES = {kind: DataType(kind) for kind in KINDS}

# Bytes that JSON does not write as they are, or that are not ASCII.
_ODD = np.array([b < 0x20 or b >= 0x7F or b in b'"\\' for b in range(256)], np.bool_)


def function_cast(expr: e.Cast, kinds: Kinds) -> VectorOf:
    """Return the vector of a cast by its form over columns. Raises Unsupported: there is none."""
    form = cast_columns(expr.operand.type, expr.type)
    if form is None or expr.type.kind not in KINDS:
        raise Unsupported(f"cast of {expr.operand.type} to {expr.type}")

    def cast(given: list[Any]) -> tuple[Any, Any, Any]:
        values, valid, *rest = form(given[0])
        return values, valid, rest[0] if rest else None

    return _vector_of(expr, [_argument(expr.operand, kinds)], cast)


def _argument(arg: e.Expr | e.Lambda, kinds: Kinds) -> Any:
    """Return a constant, or (kind, vector) of a column."""
    if isinstance(arg, e.Lambda):
        raise Unsupported("a lambda")
    if isinstance(arg, e.Literal):
        return arg.value
    kind, vector = compile_vector(arg, kinds)
    if kind is not arg.type.kind:
        raise Unsupported(f"{kind} where {arg.type} is expected")
    return kind, vector


def _vector_of(expr: e.Cast, arguments: list[Any], form: Form) -> VectorOf:
    if not any(is_column(a) for a in arguments):
        raise Unsupported("constants only")
    _try_once(arguments, form)
    is_text = expr.type.kind is Kind.STRING

    def compute(rows: Rows) -> Vector:
        given: list[Any] = []
        unsure: Mask | None = None
        for argument in arguments:
            if not is_column(argument):
                given.append(argument)
                continue
            kind, vector = argument
            found = vector(rows)
            unsure = either(unsure, found.unsure)
            given.append(_pair(kind, found, rows))
        try:
            values, valid, more = form(given)
        except NotHeld:
            return Vector(np.int64(0), np.int64(0) if is_text else None, None, np.ones(rows.count, np.bool_))
        nulls = None if valid is None else ~valid
        unsure = either(unsure, more)
        return _texts(values, nulls, unsure, rows) if is_text else Vector(values, None, nulls, unsure)

    return compute


def _try_once(arguments: list[Any], form: Form) -> None:
    """Ask the form whether it is for these constants."""
    import pyarrow as pa

    row = [
        a if not is_column(a) else (pa.array(["a"]) if a[0] is Kind.STRING else np.zeros(1, dtype_of(_TYPES[a[0]])), None)
        for a in arguments
    ]
    try:
        form(row)
    except NotHeld as cause:
        raise Unsupported(str(cause)) from None


def _pair(kind: Kind, found: Vector, rows: Rows) -> tuple[Any, Any]:
    import pyarrow as pa

    valid = None if found.nulls is None else ~found.nulls
    if kind is not Kind.STRING:
        return full(found.data, rows.count, dtype_of(_TYPES[kind])), valid
    starts, sizes = rows.spans(found)
    for absent in (found.nulls, found.unsure):
        if absent is not None:
            sizes = np.where(absent, 0, sizes)
    out, begins = np.empty(int(sizes.sum()) + 1, np.uint8), np.empty(rows.count, np.int64)
    rows.texts.join(starts, sizes, starts, np.zeros(rows.count, np.int64), out, begins)
    offsets = np.zeros(rows.count + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    return pa.StringArray.from_buffers(rows.count, pa.py_buffer(offsets), pa.py_buffer(out)), valid


def _texts(array: Any, nulls: Mask | None, unsure: Mask | None, rows: Rows) -> Vector:
    offsets, data = text_buffers(array)
    rows.kept.append(array)
    odd = _ODD[data[offsets[0] : offsets[-1]]]
    if odd.any():
        counts = np.concatenate(([0], np.cumsum(odd)))
        ends = counts[offsets - offsets[0]]
        unsure = either(unsure, ends[1:] != ends[:-1])
    sizes = np.diff(offsets).astype(np.int64)
    return Vector(
        offsets[:-1].astype(np.int64) + data.ctypes.data, sizes if nulls is None else np.where(nulls, 0, sizes), nulls, unsure
    )
