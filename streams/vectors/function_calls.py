"""Scalar functions by their forms over columns (`functions.scalar`): vectors to pairs of values and validity, and back.

Texts are handed over as Arrow arrays, copied once; whatever is in them is certain there. A result of texts is spans of what the
form made; which of them are not plain is said apart (see `columns.column`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from logflume.log.schemas import Kind

from .. import expr as e
from ..functions import NotHeld, apply_columns
from ..functions.columns import text_buffers
from .expressions import KINDS, Kinds, Mask, Rows, Unsupported, Vector, compile_vector, either, full

Formed = Callable[[Rows], tuple[Vector, Mask | None]]


def compile_form(expr: e.Call, kinds: Kinds) -> Formed:
    """Return the function that gives the vector of a call, and which of its texts are not plain.

    Raises:
        Unsupported: the function has no form over columns, or a type that no vector holds.
    """
    function = expr.function
    if function.columns is None or expr.type.kind not in KINDS:
        raise Unsupported(f"the function {function.name}")
    parts: list[Any] = []
    for arg in expr.args:
        if isinstance(arg, e.Literal):
            parts.append(arg.value)
            continue
        if isinstance(arg, e.Lambda):
            raise Unsupported("a lambda")
        kind, found = compile_vector(arg, kinds)
        if kind is not arg.type.kind:
            raise Unsupported(f"{kind} where {arg.type} is expected")
        parts.append(_Part(found, kind, isinstance(arg, e.ColumnRef)))
    if not any(isinstance(part, _Part) for part in parts):
        raise Unsupported("a call of constants")
    is_text = expr.type.kind is Kind.STRING

    def call(rows: Rows) -> tuple[Vector, Mask | None]:
        unsure: Mask | None = None
        arguments = []
        for part in parts:
            if not isinstance(part, _Part):
                arguments.append(part)
                continue
            vector = part.vector(rows)
            if not (part.is_column and part.kind is Kind.STRING):
                unsure = either(unsure, vector.unsure)
            arguments.append(_pair(vector, part.kind, rows))
        try:
            values, valid, more = apply_columns(function, arguments)
        except NotHeld:
            return Vector(_nothing(expr), np.int64(0) if is_text else None, None, np.ones(rows.count, np.bool_)), None
        nulls = None if valid is None else ~valid
        unsure = either(unsure, more)
        if not is_text:
            return Vector(values, None, nulls, unsure), None
        return _spans(values, nulls, unsure, rows)

    return call


class _Part:
    """An argument that varies."""

    __slots__ = ("is_column", "kind", "vector")

    def __init__(self, vector: Callable[[Rows], Vector], kind: Kind, is_column: bool) -> None:
        self.vector, self.kind, self.is_column = vector, kind, is_column


def _nothing(expr: e.Call) -> Any:
    return {Kind.BOOLEAN: np.bool_(False), Kind.DOUBLE: np.float64(0)}.get(expr.type.kind, np.int64(0))


def _pair(vector: Vector, kind: Kind, rows: Rows) -> tuple[Any, Any]:
    valid = None if vector.nulls is None else ~full(vector.nulls, rows.count, np.bool_)
    if kind is not Kind.STRING:
        dtype = {Kind.BOOLEAN: np.bool_, Kind.DOUBLE: np.float64}.get(kind, np.int64)
        return full(vector.data, rows.count, dtype), valid
    import pyarrow as pa

    starts, sizes = rows.spans(vector)
    bounds = np.zeros(rows.count + 1, np.int64)
    np.cumsum(sizes, out=bounds[1:])
    if bounds[-1] > 2**31 - 1:
        raise NotHeld("texts of more than 2 GiB")
    data = np.empty(int(bounds[-1]) + 1, np.uint8)
    rows.texts.copy_texts(starts, sizes, data)
    buffers = [None, pa.py_buffer(bounds.astype(np.int32)), pa.py_buffer(data)]
    return pa.StringArray.from_buffers(rows.count, buffers[1], buffers[2]), valid


def _spans(values: Any, nulls: Mask | None, unsure: Mask | None, rows: Rows) -> tuple[Vector, Mask | None]:
    if hasattr(values, "combine_chunks"):
        values = values.combine_chunks()
    if values.null_count:
        nulls = either(nulls, values.is_null().to_numpy(zero_copy_only=False))
    offsets, data = text_buffers(values)
    rows.kept.append((offsets, data, values))
    starts = offsets[:-1].astype(np.int64) + data.ctypes.data
    sizes = np.diff(offsets).astype(np.int64)
    if nulls is not None:
        sizes = np.where(nulls, 0, sizes)
    if unsure is not None:
        sizes = np.where(unsure, 0, sizes)
    special = np.empty(rows.count, np.bool_)
    return Vector(starts, sizes, nulls, unsure), special if rows.texts.find_special(starts, sizes, special) else None
