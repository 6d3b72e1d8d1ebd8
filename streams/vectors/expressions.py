"""Expressions over columns: numpy and kernels do for all rows at once what the exact form does row by row.

Follows the meaning in `streams.expr`. `compile_vector` says by `Unsupported` what it does not hold exactly; what follows then
stays with the exact form. A row whose value is not certain is `unsure`, and only rows where the exact form would evaluate
the expression too can make the whole unsure (a CASE takes no interest in the branch not taken).

A vector without nulls or unsure rows says so with None, which is the usual case and costs nothing further on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from logflume.log.schemas import Kind

from .. import expr as e

KINDS: Mapping[Kind, int] = MappingProxyType(
    {
        Kind.BOOLEAN: 0, Kind.INTEGER: 1, Kind.DATE: 1, Kind.BIGINT: 2, Kind.TIMESTAMP: 2, Kind.DOUBLE: 3, Kind.STRING: 4,
    }
)  # fmt: skip
"""Kinds that a column can hold -> their numbers in the kernels."""

Mask = npt.NDArray[np.bool_]
ColumnId = tuple[e.Side, str]

_ARITHMETIC = (Kind.INTEGER, Kind.BIGINT)
_WHOLE = (*_ARITHMETIC, Kind.TIMESTAMP, Kind.DATE)
_EXACT = 2**53
_COMPARE: Mapping[e.BinaryOp, Callable[[Any, Any], Any]] = MappingProxyType(
    {
        e.BinaryOp.EQ: np.equal,
        e.BinaryOp.NE: np.not_equal,
        e.BinaryOp.LT: np.less,
        e.BinaryOp.LE: np.less_equal,
        e.BinaryOp.GT: np.greater,
        e.BinaryOp.GE: np.greater_equal,
    }
)
_COMPUTE: Mapping[e.BinaryOp, Callable[[Any, Any], Any]] = MappingProxyType(
    {e.BinaryOp.ADD: np.add, e.BinaryOp.SUB: np.subtract, e.BinaryOp.MUL: np.multiply}
)


class Unsupported(Exception):
    """Something that has no form over columns; the message names it."""


class Vector(NamedTuple):
    """A column of N rows.

    Attributes:
        data: bool, int64 or float64 [N], or one scalar of these for all rows. Strings: addresses of spans (`json_rows`).
        sizes: of strings, bytes; 0 where null, so that a span can be read in any row. Like data an array or a scalar.
        nulls: [N], None: no row is null. What data has in a row that is null means nothing.
        unsure: [N], rows of which nothing here is certain; None: none.
    """

    data: Any
    sizes: Any = None
    nulls: Mask | None = None
    unsure: Mask | None = None


@dataclass(slots=True, eq=False)
class Rows:
    """N decoded rows. `kept`: the memory that their strings point into."""

    count: int
    columns: dict[ColumnId, Vector]
    texts: ModuleType
    kept: list[Any] = field(default_factory=list)

    def with_columns(self, columns: dict[ColumnId, Vector]) -> Rows:
        """Return the same rows with other columns."""
        return Rows(self.count, columns, self.texts, self.kept)

    def spans(self, vector: Vector) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the addresses and sizes of strings as arrays [N]."""
        return full(vector.data, self.count, np.int64), full(vector.sizes, self.count, np.int64)


VectorOf = Callable[[Rows], Vector]
Kinds = Mapping[ColumnId, Kind]


def full(data: Any, count: int, dtype: Any) -> npt.NDArray[Any]:
    """Return data as a contiguous array of `count` items."""
    return np.ascontiguousarray(np.broadcast_to(np.asarray(data, dtype), (count,)))


def either(first: Mask | None, second: Mask | None) -> Mask | None:
    """Return where one or the other is set."""
    if first is None:
        return second
    return first if second is None else first | second


def both(first: Mask | None, second: Any) -> Mask | None:
    """Return where both are set; `second` may be a scalar."""
    return None if first is None else first & second


def compile_vector(expr: e.Expr | e.Lambda, kinds: Kinds) -> tuple[Kind, VectorOf]:
    """Return the kind of an expression and the function that gives its vector.

    Raises:
        Unsupported: it, or a part of it, is not held.
    """
    match expr:
        case e.ColumnRef():
            return _column(expr, kinds)
        case e.Literal():
            return _literal(expr)
        case e.Unary():
            return _unary(expr, kinds)
        case e.Binary():
            return _binary(expr, kinds)
        case e.Cast():
            from .casts import compile_cast

            return compile_cast(expr, kinds)
        case e.Case():
            return _case(expr, kinds)
        case e.Call():
            from .functions import compile_call

            return compile_call(expr, kinds)
    raise Unsupported(type(expr).__name__)


def _compile_logical(expr: e.Expr, kinds: Kinds) -> VectorOf:
    kind, condition = compile_vector(expr, kinds)
    if kind is not Kind.BOOLEAN:
        raise Unsupported(f"a condition of type {kind}")
    return condition


def compile_truth(expr: e.Expr, kinds: Kinds) -> VectorOf:
    """Return the function that gives, without nulls, where a condition is True: False where it is False or null."""
    condition = _compile_logical(expr, kinds)

    def truth(rows: Rows) -> Vector:
        found = condition(rows)
        return found if found.nulls is None else Vector(found.data & ~found.nulls, unsure=found.unsure)

    return truth


def compile_as(expr: e.Expr, wanted: Kind, kinds: Kinds) -> VectorOf:
    """Return the function of an expression that must be of this kind, or the constant null.

    Raises:
        Unsupported: it is not held, or of another kind.
    """
    if isinstance(expr, e.Literal) and expr.value is None:
        if wanted not in KINDS:
            raise Unsupported(f"a null of type {wanted}")
        sizes = np.int64(0) if wanted is Kind.STRING else None
        data: Any = np.zeros((), {Kind.BOOLEAN: np.bool_, Kind.DOUBLE: np.float64}.get(wanted, np.int64))[()]
        return lambda rows: Vector(data, sizes, np.ones(rows.count, np.bool_))
    kind, found = compile_vector(expr, kinds)
    if kind is not wanted and not (kind is Kind.INTEGER and wanted is Kind.BIGINT):
        raise Unsupported(f"{kind} where {wanted} is expected")
    return found


def _column(expr: e.ColumnRef, kinds: Kinds) -> tuple[Kind, VectorOf]:
    column = (expr.side, expr.name)
    if column not in kinds:
        raise Unsupported(f"column {expr.name}")
    return kinds[column], lambda rows: rows.columns[column]


def text_constant(text: str) -> VectorOf:
    """Return the vector of a text, whatever is in it: to be compared with, not to be put out."""
    data = np.frombuffer(text.encode("utf-8", "surrogatepass") or b" ", np.uint8)
    vector = Vector(np.int64(data.ctypes.data), np.int64(len(text.encode("utf-8", "surrogatepass"))))

    def constant(rows: Rows) -> Vector:
        assert data is not None  # the closure keeps the bytes where the vector points
        return vector

    return constant


def is_plain(text: str) -> bool:
    """Return whether JSON writes a text as it is."""
    return text == "" or (text.isascii() and text.isprintable() and '"' not in text and "\\" not in text)


def _literal(expr: e.Literal) -> tuple[Kind, VectorOf]:
    value, kind = expr.value, expr.type.kind
    if kind is Kind.STRING and type(value) is str and is_plain(value):
        return kind, text_constant(value)
    expected: type | None = {Kind.BOOLEAN: bool, Kind.DOUBLE: float}.get(kind, int if kind in _WHOLE else None)
    if expected is None or type(value) is not expected or (isinstance(value, int) and not -(2**63) <= value < 2**63):
        raise Unsupported(f"the constant {value!r}")
    vector = Vector(np.asarray(value, {bool: np.bool_, int: np.int64, float: np.float64}[expected])[()])
    return kind, lambda rows: vector


def _unary(expr: e.Unary, kinds: Kinds) -> tuple[Kind, VectorOf]:
    if expr.op in (e.UnaryOp.NOT, e.UnaryOp.IS_NOT_TRUE):
        compile_negated = compile_truth if expr.op is e.UnaryOp.IS_NOT_TRUE else _compile_logical
        condition = compile_negated(expr.operand, kinds)

        def negated(rows: Rows) -> Vector:
            found = condition(rows)
            return found._replace(data=~found.data)

        return Kind.BOOLEAN, negated
    kind, operand = compile_vector(expr.operand, kinds)
    if expr.op in (e.UnaryOp.IS_NULL, e.UnaryOp.IS_NOT_NULL):
        is_null = expr.op is e.UnaryOp.IS_NULL

        def nullity(rows: Rows) -> Vector:
            found = operand(rows)
            nulls = np.bool_(False) if found.nulls is None else found.nulls
            return Vector(nulls if is_null else ~nulls, unsure=found.unsure)

        return Kind.BOOLEAN, nullity
    if expr.type.kind is not kind or kind not in (*_ARITHMETIC, Kind.DOUBLE):
        raise Unsupported(f"minus {kind}")

    def minus(rows: Rows) -> Vector:
        found = operand(rows)
        return found._replace(data=wrapped(-found.data, kind))

    return kind, minus


def wrapped(data: Any, kind: Kind) -> Any:
    """Bring INTEGER results back to 32 bits; 64-bit ones have wrapped by themselves."""
    return data.astype(np.int32).astype(np.int64) if kind is Kind.INTEGER else data


def _binary(expr: e.Binary, kinds: Kinds) -> tuple[Kind, VectorOf]:
    op = expr.op
    if op in (e.BinaryOp.AND, e.BinaryOp.OR):
        return Kind.BOOLEAN, _connective(op is e.BinaryOp.AND, expr, kinds)
    left_kind, left = _operand(expr.left, kinds)
    right_kind, right = _operand(expr.right, kinds)
    if op in _COMPARE or op is e.BinaryOp.IS_DISTINCT:
        are_columns = all(isinstance(x, e.ColumnRef | e.Literal) for x in (expr.left, expr.right))
        return Kind.BOOLEAN, _comparison(op, (left_kind, left), (right_kind, right), are_columns=are_columns)
    numbers = (*_ARITHMETIC, Kind.DOUBLE)
    if left_kind not in numbers or right_kind not in numbers:
        raise Unsupported(f"{left_kind} {op} {right_kind}")
    kind = expr.type.kind
    compute = _arithmetic(op, kind, left_kind, right_kind)

    def calculate(rows: Rows) -> Vector:
        a, b = left(rows), right(rows)
        nulls, unsure = either(a.nulls, b.nulls), either(a.unsure, b.unsure)
        data, bad = compute(a.data, b.data)
        if bad is not None and np.any(bad):
            unsure = either(unsure, full(bad, rows.count, np.bool_) if nulls is None else bad & ~nulls)
        return Vector(data, None, nulls, unsure)

    return kind, calculate


def _operand(expr: e.Expr, kinds: Kinds) -> tuple[Kind, VectorOf]:
    """Return an operand; a text constant may be any text, since what is computed from it is no text."""
    if isinstance(expr, e.Literal) and type(expr.value) is str and expr.type.kind is Kind.STRING:
        return Kind.STRING, text_constant(expr.value)
    return compile_vector(expr, kinds)


def _connective(is_and: bool, expr: e.Binary, kinds: Kinds) -> VectorOf:
    first, second = _compile_logical(expr.left, kinds), _compile_logical(expr.right, kinds)

    def connect(rows: Rows) -> Vector:
        a, b = first(rows), second(rows)
        if a.nulls is None and b.nulls is None:
            reached = a.data if is_and else ~a.data
            return Vector(a.data & b.data if is_and else a.data | b.data, unsure=either(a.unsure, both(b.unsure, reached)))
        a_true, a_false = _decided(a)
        b_true, b_false = _decided(b)
        is_true = a_true & b_true if is_and else a_true | b_true
        is_false = a_false | b_false if is_and else a_false & b_false
        unsure = either(a.unsure, both(b.unsure, ~a_false if is_and else ~a_true))
        return Vector(is_true, nulls=~(is_true | is_false), unsure=unsure)

    return connect


def _decided(found: Vector) -> tuple[Any, Any]:
    """Return where a condition is True, and where it is False."""
    if found.nulls is None:
        return found.data, ~found.data
    return found.data & ~found.nulls, ~(found.data | found.nulls)


def _comparison(op: e.BinaryOp, left: tuple[Kind, VectorOf], right: tuple[Kind, VectorOf], *, are_columns: bool) -> VectorOf:
    (left_kind, first), (right_kind, second) = left, right
    is_distinct = op is e.BinaryOp.IS_DISTINCT
    compare = np.not_equal if is_distinct else _COMPARE[op]
    is_text = left_kind is right_kind is Kind.STRING
    numbers = (*_WHOLE, Kind.DOUBLE)
    is_mixed = (left_kind is Kind.DOUBLE) != (right_kind is Kind.DOUBLE)
    if not (is_text or left_kind is right_kind is Kind.BOOLEAN or (left_kind in numbers and right_kind in numbers)):
        raise Unsupported(f"{left_kind} {op} {right_kind}")

    def test(rows: Rows) -> Vector:
        a, b = first(rows), second(rows)
        nulls, unsure = either(a.nulls, b.nulls), either(a.unsure, b.unsure)
        if is_text and are_columns:
            unsure = None  # what is not plain in a column is still its bytes
        if is_text:
            found = compare(_order(rows, a, b, is_equality=compare in (np.equal, np.not_equal)), 0)
        else:
            found = compare(a.data, b.data)
        if is_mixed:
            whole = b.data if left_kind is Kind.DOUBLE else a.data
            far = (whole > _EXACT) | (whole < -_EXACT)
            if np.any(far):
                unsure = either(unsure, full(far, rows.count, np.bool_) if nulls is None else far & ~nulls)
        if nulls is None:
            return Vector(found, unsure=unsure)
        if not is_distinct:
            return Vector(found & ~nulls, unsure=unsure)
        none = np.zeros(rows.count, np.bool_)
        one, other = (none if a.nulls is None else a.nulls), (none if b.nulls is None else b.nulls)
        return Vector(np.where(nulls, one != other, found), unsure=unsure)

    return test


def _order(rows: Rows, a: Vector, b: Vector, *, is_equality: bool) -> Any:
    """Return int8[N]: below 0, 0 or above 0 as the first text comes before, is or comes after the second one."""
    order = np.empty(rows.count, np.int8)
    one, same = (b, a) if np.ndim(a.data) == np.ndim(a.sizes) == 0 else (a, b)
    if is_equality and np.ndim(same.data) == np.ndim(same.sizes) == 0:
        rows.texts.differ_from(*rows.spans(one), int(same.data), int(same.sizes), order)
    else:
        rows.texts.compare(*rows.spans(a), *rows.spans(b), order)
    return order


def _arithmetic(op: e.BinaryOp, kind: Kind, left: Kind, right: Kind) -> Callable[[Any, Any], tuple[Any, Any]]:
    """Return the function of two operands that gives the result and where it is not certain (None: nowhere)."""
    is_double = Kind.DOUBLE in (left, right)
    if op is e.BinaryOp.TRUE_DIV or (op is e.BinaryOp.DIV and is_double):
        if kind is not Kind.DOUBLE:
            raise Unsupported(f"{left} {op} {right} as {kind}")
        return _divide_doubles
    if is_double:
        if kind is not Kind.DOUBLE or op not in _COMPUTE:
            raise Unsupported(f"{left} {op} {right} as {kind}")
        calculate = _COMPUTE[op]
        return lambda a, b: (calculate(a, b), None)
    if kind not in _ARITHMETIC or (kind is Kind.INTEGER and Kind.BIGINT in (left, right)):
        raise Unsupported(f"{left} {op} {right} as {kind}")
    if op in _COMPUTE:
        calculate = _COMPUTE[op]
        return lambda a, b: (wrapped(calculate(a, b), kind), None)
    divide = _DIVIDE.get(op)
    if divide is None:
        raise Unsupported(f"{left} {op} {right}")

    def integers(a: Any, b: Any) -> tuple[Any, Any]:
        bad = (b == 0) | ((b == -1) & (a == np.iinfo(np.int64).min))
        return wrapped(divide(a, np.where(bad, np.int64(1), b)), kind), bad

    return integers


def _divide_doubles(a: Any, b: Any) -> tuple[Any, Any]:
    is_zero = b == 0
    return np.true_divide(a, np.where(is_zero, np.float64(1), b)), is_zero


def _quotient(a: Any, b: Any) -> Any:
    """Divide towards zero."""
    floor = np.floor_divide(a, b)
    return floor + ((floor * b != a) & ((a < 0) != (b < 0)))


def _remainder(a: Any, b: Any) -> Any:
    return a - _quotient(a, b) * b


_DIVIDE: Mapping[e.BinaryOp, Callable[[Any, Any], Any]] = MappingProxyType(
    {
        e.BinaryOp.DIV: _quotient,
        e.BinaryOp.MOD: _remainder,
        e.BinaryOp.FLOOR_DIV: np.floor_divide,
        e.BinaryOp.FLOOR_MOD: np.remainder,
    }
)


def _case(expr: e.Case, kinds: Kinds) -> tuple[Kind, VectorOf]:
    kind = expr.type.kind
    branches = [(compile_truth(condition, kinds), compile_as(result, kind, kinds)) for condition, result in expr.branches]
    default = compile_as(expr.default, kind, kinds)

    def choose(rows: Rows) -> Vector:
        rest = np.ones(rows.count, np.bool_)
        taken: list[tuple[Any, Vector]] = []
        unsure: Mask | None = None
        for condition, result in branches:
            test = condition(rows)
            unsure = either(unsure, both(test.unsure, rest))
            here = rest & test.data
            rest = rest & ~here
            taken.append((here, result(rows)))
        taken.append((rest, default(rows)))
        found = merged(taken, rows.count)
        return found._replace(unsure=either(unsure, found.unsure))

    return kind, choose


def merged(parts: list[tuple[Any, Vector]], count: int) -> Vector:
    """Return the vector that has in each row the value of the one part whose mask is set there."""
    data, sizes = parts[-1][1].data, parts[-1][1].sizes
    for mask, vector in reversed(parts[:-1]):
        data = np.where(mask, vector.data, data)
        sizes = None if sizes is None else np.where(mask, vector.sizes, sizes)
    nulls: Mask | None = None
    unsure: Mask | None = None
    for mask, vector in parts:
        nulls, unsure = either(nulls, both(vector.nulls, mask)), either(unsure, both(vector.unsure, mask))
    return Vector(data, sizes, nulls, unsure)
