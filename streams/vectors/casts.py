"""Casts over columns: those that are exact here, or unsure row by row; the others by the library's form."""

from __future__ import annotations

from typing import Any

import numpy as np

from logflume.log.schemas import Kind

from .. import expr as e
from .expressions import Kinds, Rows, Vector, VectorOf, compile_vector, either, full, wrapped
from .function_casts import function_cast

_INTEGERS = (Kind.INTEGER, Kind.BIGINT)
_INTEGER_TEXT_BYTES = 20
_BITS = {Kind.INTEGER: 31, Kind.BIGINT: 63}
_TRUE = np.frombuffer(b"true", np.uint8)
_FALSE = np.frombuffer(b"false", np.uint8)


def compile_cast(expr: e.Cast, kinds: Kinds) -> tuple[Kind, VectorOf]:
    """Return the kind and the vector of a cast. Raises Unsupported: it is not held."""
    kind, operand = compile_vector(expr.operand, kinds)
    target = expr.type.kind
    if kind is target or (kind is Kind.INTEGER and target is Kind.BIGINT) or {kind, target} == {Kind.BIGINT, Kind.TIMESTAMP}:
        return target, operand
    if kind in _INTEGERS and target is Kind.DOUBLE:
        return target, lambda rows: _changed(operand(rows), lambda data: np.asarray(data).astype(np.float64))
    if kind is Kind.BIGINT and target is Kind.INTEGER:
        return target, lambda rows: _changed(operand(rows), lambda data: wrapped(np.asarray(data), Kind.INTEGER))
    if kind is Kind.DOUBLE and target in _INTEGERS:
        return target, lambda rows: _truncated(operand(rows), rows, _BITS[target])
    if kind is Kind.STRING and target in _INTEGERS:
        return target, lambda rows: _parsed(operand(rows), rows, _BITS[target])
    if kind in _INTEGERS and target is Kind.STRING:
        return target, lambda rows: _integer_text(operand(rows), rows)
    if kind is Kind.BOOLEAN and target is Kind.STRING:
        return target, lambda rows: _boolean_text(operand(rows))
    return target, function_cast(expr, kinds)


def _changed(found: Vector, change: Any) -> Vector:
    return found._replace(data=change(found.data))


def _truncated(found: Vector, rows: Rows, bits: int) -> Vector:
    """Take the integer part; what lies outside of the target's range, or is none, is unsure."""
    is_inside = np.abs(found.data) < 2.0 ** min(bits, 62)
    data = np.where(is_inside, found.data, 0.0).astype(np.int64)
    unsure = found.unsure
    if not np.all(is_inside):
        unsure = either(unsure, full(~is_inside, rows.count, np.bool_))
    return Vector(data, None, found.nulls, unsure)


def _parsed(found: Vector, rows: Rows, bits: int) -> Vector:
    values, unsure = np.empty(rows.count, np.int64), np.empty(rows.count, np.bool_)
    rows.texts.parse_integers(*rows.spans(found), 2**31 if bits == 31 else 2**62, values, unsure)
    if found.nulls is not None:
        unsure &= ~found.nulls
    return Vector(values, None, found.nulls, either(found.unsure, unsure))


def _integer_text(found: Vector, rows: Rows) -> Vector:
    values = full(found.data, rows.count, np.int64)
    out = np.empty(rows.count * _INTEGER_TEXT_BYTES + 1, np.uint8)
    starts, sizes = np.empty(rows.count, np.int64), np.empty(rows.count, np.int64)
    rows.texts.integer_texts(values, out, starts, sizes)
    rows.kept.append(out)
    return Vector(starts, sizes if found.nulls is None else np.where(found.nulls, 0, sizes), found.nulls, found.unsure)


def _boolean_text(found: Vector) -> Vector:
    starts = np.where(found.data, np.int64(_TRUE.ctypes.data), np.int64(_FALSE.ctypes.data))
    sizes = np.where(found.data, np.int64(len(_TRUE)), np.int64(len(_FALSE)))
    return Vector(starts, sizes if found.nulls is None else np.where(found.nulls, 0, sizes), found.nulls, found.unsure)
