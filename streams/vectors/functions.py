"""Scalar functions over columns: those whose `Function.kernel` names one here, the others by their own form.

Follows what their Python says for plain ASCII.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from logflume.log.schemas import Kind

from .. import expr as e
from .expressions import (
    Kinds,
    Rows,
    Unsupported,
    Vector,
    VectorOf,
    compile_as,
    compile_vector,
    either,
    full,
    merged,
    text_constant,
)

Build = Callable[[e.Call, Kinds], VectorOf]


def compile_call(expr: e.Call, kinds: Kinds) -> tuple[Kind, VectorOf]:
    """Return the kind and the vector of a call. Raises Unsupported: the function, or an argument, is not held."""
    build = _BUILDERS.get(expr.function.kernel or "")
    if build is not None:
        return expr.type.kind, build(expr, kinds)
    from .function_calls import compile_form

    call = compile_form(expr, kinds)

    def found(rows: Rows) -> Vector:
        vector, special = call(rows)
        return vector if special is None else vector._replace(unsure=either(vector.unsure, special))

    return expr.type.kind, found


def _args(expr: e.Call, kinds: Kinds, *wanted: Kind) -> list[VectorOf]:
    if len(expr.args) != len(wanted):
        raise Unsupported(f"{expr.function.name} of {len(expr.args)} arguments")
    return [_argument(arg, kind, kinds) for arg, kind in zip(expr.args, wanted, strict=True)]


def _argument(expr: e.Expr | e.Lambda, wanted: Kind, kinds: Kinds) -> VectorOf:
    if isinstance(expr, e.Lambda):
        raise Unsupported("a lambda")
    return compile_as(expr, wanted, kinds)


def _expect(expr: e.Call, kind: Kind) -> None:
    if expr.type.kind is not kind:
        raise Unsupported(f"{expr.function.name} as {expr.type}")


def _length(expr: e.Call, kinds: Kinds) -> VectorOf:
    (text,) = _args(expr, kinds, Kind.STRING)
    if expr.type.kind not in (Kind.INTEGER, Kind.BIGINT):
        raise Unsupported(f"a length as {expr.type}")

    def length(rows: Rows) -> Vector:
        found = text(rows)
        return Vector(found.sizes, None, found.nulls, found.unsure)

    return length


def _search(what: str) -> Build:
    def build(expr: e.Call, kinds: Kinds) -> VectorOf:
        _expect(expr, Kind.BOOLEAN)
        texts = _args(expr, kinds, Kind.STRING, Kind.STRING) if not _has_constant(expr) else _with_constant(expr, kinds)
        first, second = texts

        def search(rows: Rows) -> Vector:
            a, b = first(rows), second(rows)
            found = np.empty(rows.count, np.bool_)
            rows.texts.search(*rows.spans(a), *rows.spans(b), getattr(rows.texts, what), found)
            return Vector(found, None, either(a.nulls, b.nulls), either(a.unsure, b.unsure))

        return search

    return build


def _has_constant(expr: e.Call) -> bool:
    return len(expr.args) == 2 and isinstance(expr.args[1], e.Literal) and type(expr.args[1].value) is str


def _with_constant(expr: e.Call, kinds: Kinds) -> list[VectorOf]:
    """Return the arguments where the second is a constant: it may be any text, for it is only looked for."""
    literal = expr.args[1]
    assert isinstance(literal, e.Literal)
    return [_argument(expr.args[0], Kind.STRING, kinds), text_constant(literal.value)]


def _shift(first: str, last: str, step: int) -> Build:
    def build(expr: e.Call, kinds: Kinds) -> VectorOf:
        _expect(expr, Kind.STRING)
        (text,) = _args(expr, kinds, Kind.STRING)

        def shift(rows: Rows) -> Vector:
            found = text(rows)
            starts, sizes = rows.spans(found)
            out, begins = np.empty(int(sizes.sum()) + 1, np.uint8), np.empty(rows.count, np.int64)
            rows.texts.shift_case(starts, sizes, ord(first), ord(last), step, out, begins)
            rows.kept.append(out)
            return Vector(begins, sizes, found.nulls, found.unsure)

        return shift

    return build


def _concat(expr: e.Call, kinds: Kinds) -> VectorOf:
    """Null arguments are left out where the function takes nulls, else the whole is null."""
    _expect(expr, Kind.STRING)
    parts = _args(expr, kinds, *[Kind.STRING] * len(expr.args))
    skips_null = expr.function.handles_null

    def concat(rows: Rows) -> Vector:
        vectors = [part(rows) for part in parts]
        starts, sizes = rows.spans(vectors[0])
        nulls, unsure = None if skips_null else vectors[0].nulls, vectors[0].unsure
        for vector in vectors[1:]:
            more, more_sizes = rows.spans(vector)
            out, begins = np.empty(int(sizes.sum() + more_sizes.sum()) + 1, np.uint8), np.empty(rows.count, np.int64)
            rows.texts.join(starts, sizes, more, more_sizes, out, begins)
            rows.kept.append(out)
            starts, sizes, unsure = begins, sizes + more_sizes, either(unsure, vector.unsure)
            if not skips_null:
                nulls = either(nulls, vector.nulls)
        return Vector(starts, sizes if nulls is None else np.where(nulls, 0, sizes), nulls, unsure)

    return concat


def _coalesce(expr: e.Call, kinds: Kinds) -> VectorOf:
    kind = expr.type.kind
    parts = _args(expr, kinds, *[kind] * len(expr.args))

    def coalesce(rows: Rows) -> Vector:
        rest = np.ones(rows.count, np.bool_)
        taken: list[tuple[Any, Vector]] = []
        unsure = None
        for part in parts[:-1]:
            vector = part(rows)
            unsure = either(unsure, vector.unsure)
            here = rest if vector.nulls is None else rest & ~vector.nulls
            taken.append((here, vector))
            rest = rest & ~here
        last = parts[-1](rows)
        found = merged([*taken, (rest, last)], rows.count)
        return found._replace(unsure=either(unsure, last.unsure))

    return coalesce


def _same(expr: e.Call, kinds: Kinds) -> VectorOf:
    (value,) = _args(expr, kinds, expr.type.kind)
    return value


def _nullif(expr: e.Call, kinds: Kinds) -> VectorOf:
    """Null where both are equal; a null second argument equals nothing."""
    if len(expr.args) != 2 or any(isinstance(arg, e.Lambda) for arg in expr.args):
        raise Unsupported("nullif")
    first, second = expr.args
    assert not isinstance(first, e.Lambda)
    assert not isinstance(second, e.Lambda)
    kind, value = compile_vector(first, kinds)
    if kind is not expr.type.kind:
        raise Unsupported(f"nullif of {kind} as {expr.type}")
    _, same = compile_vector(e.Binary(e.BinaryOp.EQ, first, second, expr.type), kinds)

    def nullif(rows: Rows) -> Vector:
        found, equal = value(rows), same(rows)
        nulls = full(equal.data, rows.count, np.bool_) | (False if found.nulls is None else found.nulls)
        sizes = None if found.sizes is None else np.where(nulls, 0, found.sizes)
        return Vector(found.data, sizes, nulls, either(found.unsure, equal.unsure))

    return nullif


def _abs(expr: e.Call, kinds: Kinds) -> VectorOf:
    """The smallest integer has no counterpart: it is unsure."""
    kind = expr.type.kind
    if kind not in (Kind.INTEGER, Kind.BIGINT, Kind.DOUBLE):
        raise Unsupported(f"abs of {kind}")
    (number,) = _args(expr, kinds, kind)
    least = {Kind.INTEGER: -(2**31), Kind.BIGINT: -(2**63)}.get(kind)

    def absolute(rows: Rows) -> Vector:
        found = number(rows)
        data, unsure = np.abs(found.data), found.unsure
        if least is not None:
            far = found.data == least
            if np.any(far):
                unsure = either(unsure, full(far, rows.count, np.bool_))
        return Vector(data, None, found.nulls, unsure)

    return absolute


_BUILDERS: Mapping[str, Build] = MappingProxyType(
    {
        "abs": _abs,
        "coalesce": _coalesce,
        "concat": _concat,
        "contains": _search("CONTAINS"),
        "ends_with": _search("ENDS"),
        "length": _length,
        "lower": _shift("A", "Z", 32),
        "nullif": _nullif,
        "same": _same,
        "starts_with": _search("STARTS"),
        "upper": _shift("a", "z", -32),
    }
)
