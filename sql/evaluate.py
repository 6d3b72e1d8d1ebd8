"""Evaluates bound expressions one row at a time, straight from the tree: for INSERT VALUES, pull queries and as a second
opinion on the operators. The meaning is that of `streams/expr.py`; an error is raised, the caller decides what it means.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from logflume.log.schemas import DataType, Kind
from logflume.streams import expr as x
from logflume.streams.functions import (
    attempt,
    convert,
    decimal_operator,
    divide_doubles,
    divide_integers,
    remainder_doubles,
    remainder_integers,
    wrap32,
    wrap64,
)

# (side, name) -> value
Row = Mapping[tuple[x.Side, str], Any]

_COMPARE: Mapping[x.BinaryOp, Callable[[Any, Any], bool]] = {
    x.BinaryOp.EQ: operator.eq,
    x.BinaryOp.NE: operator.ne,
    x.BinaryOp.LT: operator.lt,
    x.BinaryOp.LE: operator.le,
    x.BinaryOp.GT: operator.gt,
    x.BinaryOp.GE: operator.ge,
}
_SIMPLE: Mapping[x.BinaryOp, Callable[[Any, Any], Any]] = {
    x.BinaryOp.ADD: operator.add,
    x.BinaryOp.SUB: operator.sub,
    x.BinaryOp.MUL: operator.mul,
}
_DOUBLE: Mapping[x.BinaryOp, Callable[[Any, Any], float]] = {
    **_SIMPLE,
    x.BinaryOp.DIV: divide_doubles,
    x.BinaryOp.MOD: remainder_doubles,
}


def evaluate(e: x.Expr, row: Row, params: Mapping[str, Any] | None = None, *, is_strict: bool = False) -> Any:
    """Return the value of an expression over a row.

    `is_strict`: an item of a constructor that fails, or an argument that may be null, fails the whole instead of being null.

    Raises:
        ArithmeticError, ValueError, ...: what the expression cannot compute.
    """
    return _Evaluation(row, params or {}, is_strict).value(e)


@dataclass(frozen=True, slots=True)
class _Evaluation:
    row: Row
    params: Mapping[str, Any]
    is_strict: bool

    def value(self, e: x.Expr) -> Any:
        value = self.value
        match e:
            case x.ColumnRef(side, name, _):
                return self.row[side, name]
            case x.Literal(constant, _):
                return constant
            case x.LambdaParam(name, _):
                return self.params[name]
            case x.Unary():
                return _unary(e, value)
            case x.Binary():
                return _binary(e, value)
            case x.Cast(operand, type):
                return convert(value(operand), operand.type, type)
            case x.Case(branches, default, _):
                for condition, result in branches:
                    if value(condition) is True:
                        return value(result)
                return value(default)
            case x.FieldAccess(operand, name, _):
                inner = value(operand)
                return None if inner is None else inner[name]
            case x.Index(operand, index, _):
                container = value(operand)
                return None if container is None else _index(container, value(index))
            case x.MakeArray(items, _):
                return [self._part(i) for i in items]
            case x.MakeMap(entries, _):
                return {self._part(k): self._part(v) for k, v in entries}
            case x.MakeStruct(fields, _):
                return {name: self._part(v) for name, v in fields}
            case x.Call():
                return self._call(e)
            case x.PyCall(function, args, _):
                return function(*(value(a) for a in args))
        raise AssertionError(e)

    def _part(self, e: x.Expr) -> Any:
        """An item of a constructor, or an argument that may be null."""
        return self.value(e) if self.is_strict else attempt(lambda: self.value(e))

    def _call(self, e: x.Call) -> Any:
        args: list[Any] = []
        for arg in e.args:
            if isinstance(arg, x.Lambda):
                args.append(self._closure(arg))
            elif e.function.handles_null:
                args.append(self._part(arg))
            else:
                args.append(self.value(arg))
                if args[-1] is None:
                    return None
        return e.function.impl(*args)

    def _closure(self, e: x.Lambda) -> Callable[..., Any]:
        return lambda *values: replace(self, params={**self.params, **dict(zip(e.params, values, strict=True))}).value(e.body)


def _unary(e: x.Unary, value: Callable[[x.Expr], Any]) -> Any:
    operand = value(e.operand)
    match e.op:
        case x.UnaryOp.IS_NULL:
            return operand is None
        case x.UnaryOp.IS_NOT_NULL:
            return operand is not None
        case x.UnaryOp.IS_NOT_TRUE:
            return operand is not True
        case x.UnaryOp.NOT:
            return None if operand is None else operand is not True
    return None if operand is None else _fit(-operand, e.type)


def _binary(e: x.Binary, value: Callable[[x.Expr], Any]) -> Any:
    left = value(e.left)
    if e.op in (x.BinaryOp.AND, x.BinaryOp.OR):
        decides = e.op is x.BinaryOp.OR
        if left is decides or (right := value(e.right)) is decides:
            return decides
        return None if left is None or right is None else not decides
    if e.op is x.BinaryOp.IS_DISTINCT:
        right = value(e.right)
        return (left is None) != (right is None) or (left is not None and left != right)
    right = None if left is None else value(e.right)
    if e.op in _COMPARE:
        return left is not None and right is not None and bool(_COMPARE[e.op](left, right))
    if left is None or right is None:
        return None
    return _arithmetic(e.op, left, right, e.type)


def _arithmetic(op: x.BinaryOp, left: Any, right: Any, type: DataType) -> Any:
    if type.kind is Kind.DECIMAL:
        return decimal_operator(op.value, type)(left, right)
    if type.kind is Kind.DOUBLE:
        return _DOUBLE[op](float(left), float(right))
    if op is x.BinaryOp.DIV:
        return _fit(divide_integers(left, right), type)
    if op is x.BinaryOp.MOD:
        return remainder_integers(left, right)
    return _fit(_SIMPLE[op](left, right), type)


def _fit(value: Any, type: DataType) -> Any:
    """Wrap integers to the width of their type."""
    if type.kind is Kind.INTEGER:
        return wrap32(value)
    return wrap64(value) if type.kind is Kind.BIGINT else value


def _index(container: Any, index: Any) -> Any:
    if index is None:
        return None
    if isinstance(container, dict):
        return container.get(index)
    if index > 0:
        return container[index - 1] if index <= len(container) else None
    return container[index] if index != 0 and -index <= len(container) else None
