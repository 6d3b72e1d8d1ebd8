"""Expressions over columns: numpy does what the reference tier does row by row, or marks the row.

Follows the meaning in `streams.expr`. `compile_column` says by `Unsupported` what it does not hold exactly; the topology then
stays on the reference tier. Nothing here fails on a row, so that a marked row can be evaluated like all others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from logflume.log.schemas import Kind

from .. import expr as e

KINDS: Mapping[Kind, int] = MappingProxyType(
    {Kind.BOOLEAN: 0, Kind.INTEGER: 1, Kind.BIGINT: 2, Kind.TIMESTAMP: 2, Kind.DOUBLE: 3, Kind.STRING: 4}
)
"""Kinds that a column can hold -> their numbers in `rows`."""

_INTEGERS = (Kind.INTEGER, Kind.BIGINT)
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
_DIVIDE = (e.BinaryOp.DIV, e.BinaryOp.TRUE_DIV)


class Unsupported(Exception):
    """Something that only the reference tier holds; the message names it."""


class Values(NamedTuple):
    """A column of N rows. `data`: bool, int64 or float64 [N]; for strings the positions of spans, `sizes` their lengths.

    What `data` has where `nulls` is True means nothing.
    """

    nulls: npt.NDArray[np.bool_]
    data: npt.NDArray[Any]
    sizes: npt.NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """N decoded rows. `marks`: bool[N], set by expressions that are not certain of a row."""

    buffer: npt.NDArray[np.uint8]
    columns: Mapping[tuple[e.Side, str], Values]
    marks: npt.NDArray[np.bool_]
    kernels: ModuleType

    def full(self, value: object, dtype: Any) -> Values:
        """Return a column of one constant."""
        return Values(np.zeros(len(self.marks), np.bool_), np.full(len(self.marks), value, dtype))


Column = Callable[[Rows], Values]
Environment = Mapping[tuple[e.Side, str], tuple[Kind, Column]]


def compile_column(expr: e.Expr, environment: Environment) -> tuple[Kind, Column]:
    """Return the kind of an expression and the function that gives its column.

    Raises:
        Unsupported: it, or a part of it, is not held.
    """
    match expr:
        case e.ColumnRef():
            if (expr.side, expr.name) not in environment:
                raise Unsupported(f"column {expr.name}")
            return environment[expr.side, expr.name]
        case e.Literal():
            return _literal(expr)
        case e.Unary():
            return _unary(expr, environment)
        case e.Binary():
            return _binary(expr, environment)
        case e.Cast():
            return _cast(expr, environment)
    raise Unsupported(type(expr).__name__)


def truth(expr: e.Expr, environment: Environment) -> Callable[[Rows], npt.NDArray[np.bool_]]:
    """Return the function that gives bool[N]: True where the condition is True, False where it is False or null."""
    kind, column = compile_column(expr, environment)
    if kind is not Kind.BOOLEAN:
        raise Unsupported(f"a condition of type {kind}")

    def is_true(rows: Rows) -> npt.NDArray[np.bool_]:
        values = column(rows)
        found: npt.NDArray[np.bool_] = values.data & ~values.nulls
        return found

    return is_true


def _literal(expr: e.Literal) -> tuple[Kind, Column]:
    value = expr.value
    kind = expr.type.kind
    expected: type | None = {Kind.BOOLEAN: bool, Kind.INTEGER: int, Kind.BIGINT: int, Kind.DOUBLE: float}.get(kind)
    if expected is None or type(value) is not expected or (isinstance(value, int) and not -(2**63) <= value < 2**63):
        raise Unsupported(f"the constant {value!r}")
    dtype = {bool: np.bool_, int: np.int64, float: np.float64}[expected]
    return kind, lambda rows: rows.full(value, dtype)


def _boolean(data: npt.NDArray[Any]) -> Values:
    return Values(np.zeros(len(data), np.bool_), data)


def _unary(expr: e.Unary, environment: Environment) -> tuple[Kind, Column]:
    if expr.op is e.UnaryOp.NOT:
        is_true = truth(expr.operand, environment)
        return Kind.BOOLEAN, lambda rows: _boolean(~is_true(rows))
    kind, operand = compile_column(expr.operand, environment)
    if expr.op is e.UnaryOp.IS_NULL:
        return Kind.BOOLEAN, lambda rows: _boolean(operand(rows).nulls)
    if expr.op is e.UnaryOp.IS_NOT_NULL:
        return Kind.BOOLEAN, lambda rows: _boolean(~operand(rows).nulls)
    if expr.type.kind is not kind or kind not in (*_INTEGERS, Kind.DOUBLE):
        raise Unsupported(f"minus {kind}")

    def negate(rows: Rows) -> Values:
        values = operand(rows)
        return Values(values.nulls, _wrapped(-values.data, kind))

    return kind, negate


def _wrapped(data: npt.NDArray[Any], kind: Kind) -> npt.NDArray[Any]:
    """Bring INTEGER results back to 32 bits; 64-bit ones have wrapped by themselves."""
    return data.astype(np.int32).astype(np.int64) if kind is Kind.INTEGER else data


def _binary(expr: e.Binary, environment: Environment) -> tuple[Kind, Column]:
    op = expr.op
    if op in (e.BinaryOp.AND, e.BinaryOp.OR):
        first, second = truth(expr.left, environment), truth(expr.right, environment)
        if op is e.BinaryOp.AND:
            return Kind.BOOLEAN, lambda rows: _boolean(first(rows) & second(rows))
        return Kind.BOOLEAN, lambda rows: _boolean(first(rows) | second(rows))
    for one, other in ((expr.left, expr.right), (expr.right, expr.left)):
        if isinstance(other, e.Literal) and type(other.value) is str and op in (e.BinaryOp.EQ, e.BinaryOp.NE):
            return Kind.BOOLEAN, _compare_text(one, other.value, op is e.BinaryOp.NE, environment)
    left_kind, left = compile_column(expr.left, environment)
    right_kind, right = compile_column(expr.right, environment)
    numbers = (*_INTEGERS, Kind.DOUBLE)
    if left_kind not in numbers or right_kind not in numbers:
        raise Unsupported(f"{left_kind} {op} {right_kind}")
    is_mixed = (left_kind is Kind.DOUBLE) != (right_kind is Kind.DOUBLE)

    def operands(rows: Rows) -> tuple[npt.NDArray[np.bool_], npt.NDArray[Any], npt.NDArray[Any]]:
        a, b = left(rows), right(rows)
        nulls = a.nulls | b.nulls
        if is_mixed:
            whole = b.data if left_kind is Kind.DOUBLE else a.data
            np.logical_or(rows.marks, ~nulls & ((whole > _EXACT) | (whole < -_EXACT)), out=rows.marks)
        return nulls, a.data, b.data

    if op in _COMPARE:
        compare = _COMPARE[op]

        def test(rows: Rows) -> Values:
            nulls, a, b = operands(rows)
            return _boolean(compare(a, b) & ~nulls)

        return Kind.BOOLEAN, test
    kind = expr.type.kind
    if op in _DIVIDE and kind is Kind.DOUBLE and Kind.DOUBLE in (left_kind, right_kind):

        def divide(rows: Rows) -> Values:
            nulls, a, b = operands(rows)
            is_zero = b == 0
            np.logical_or(rows.marks, ~nulls & is_zero, out=rows.marks)
            return Values(nulls, a / np.where(is_zero, 1, b))

        return kind, divide
    wants = Kind.DOUBLE if Kind.DOUBLE in (left_kind, right_kind) else None
    if op not in _COMPUTE or (kind is not wants if wants else kind not in _INTEGERS):
        raise Unsupported(f"{left_kind} {op} {right_kind}")
    if kind is Kind.INTEGER and Kind.BIGINT in (left_kind, right_kind):
        raise Unsupported("BIGINT arithmetic narrowed to INTEGER")
    compute_data = _COMPUTE[op]

    def compute(rows: Rows) -> Values:
        nulls, a, b = operands(rows)
        return Values(nulls, _wrapped(compute_data(a, b), kind))

    return kind, compute


def _compare_text(expr: e.Expr, text: str, is_negated: bool, environment: Environment) -> Column:
    kind, operand = compile_column(expr, environment)
    if kind is not Kind.STRING:
        raise Unsupported(f"{kind} compared with text")
    wanted = np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)

    def test(rows: Rows) -> Values:
        values = operand(rows)
        assert values.sizes is not None
        found = np.empty(len(values.nulls), np.bool_)
        sizes = np.where(values.nulls, -1, values.sizes)
        rows.kernels.equals_text(rows.buffer, np.ascontiguousarray(values.data), sizes, wanted, found)
        return _boolean((~found & ~values.nulls) if is_negated else found)

    return test


def _cast(expr: e.Cast, environment: Environment) -> tuple[Kind, Column]:
    kind, operand = compile_column(expr.operand, environment)
    target = expr.type.kind
    if kind is target or (kind is Kind.INTEGER and target is Kind.BIGINT):
        return target, operand
    if kind in _INTEGERS and target is Kind.DOUBLE:

        def convert(rows: Rows) -> Values:
            values = operand(rows)
            return Values(values.nulls, values.data.astype(np.float64))

        return target, convert
    raise Unsupported(f"cast of {kind} to {target}")
