"""Expressions in a reader's notation: for descriptions, not for a parser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import expr as e

_SYMBOLS = {"AND": "and", "OR": "or", "=": "==", "<>": "!=", "true /": "/", "floor %": "%"}


def expression_text(expr: Any) -> str:
    """Return an expression as short text; a plain callable is its name."""
    match expr:
        case e.ColumnRef():
            return "value" if expr.name == e.WHOLE else expr.name.removeprefix(e.TABLE_PREFIX)
        case e.Literal():
            return "null" if expr.value is None else repr(expr.value)
        case e.Unary():
            return _unary(expr)
        case e.Binary():
            return f"{_operand(expr.left)} {_SYMBOLS.get(expr.op.value, expr.op.value)} {_operand(expr.right)}"
        case e.Call():
            return f"{expr.function.name.lower()}({_list(expr.args)})"
        case e.Cast():
            return f"cast({expression_text(expr.operand)} as {expr.type})"
        case e.Case():
            branches = "".join(f"when {expression_text(c)} then {expression_text(v)} " for c, v in expr.branches)
            return f"{branches}else {expression_text(expr.default)}"
        case e.FieldAccess():
            whole = isinstance(expr.operand, e.ColumnRef) and expr.operand.name in ("value", e.WHOLE)
            return expr.name if whole else f"{expression_text(expr.operand)}.{expr.name}"
        case e.Index():
            return f"{expression_text(expr.operand)}[{expression_text(expr.index)}]"
        case e.MakeArray():
            return f"[{_list(expr.items)}]"
        case e.MakeMap():
            return "{" + ", ".join(f"{expression_text(k)}: {expression_text(v)}" for k, v in expr.items) + "}"
        case e.MakeStruct():
            return "{" + ", ".join(f"{name}: {expression_text(v)}" for name, v in expr.items) + "}"
        case e.Lambda():
            return f"({', '.join(expr.params)}) => {expression_text(expr.body)}"
        case e.LambdaParam():
            return expr.name
        case e.PyCall():
            return f"{function_name(expr.function)}({_list(expr.args) or 'value'})"
    return function_name(expr)


def function_name(function: Callable[..., Any]) -> str:
    """Return the name of a callable, of the one inside where it is wrapped."""
    inner = getattr(function, "function", None) or getattr(function, "add", None)
    if inner is not None and callable(inner):
        return function_name(inner)
    return str(getattr(function, "__name__", type(function).__name__)).replace("<lambda>", "lambda")


def _unary(expr: e.Unary) -> str:
    inner = _operand(expr.operand)
    match expr.op:
        case e.UnaryOp.NEG:
            return f"-{inner}"
        case e.UnaryOp.NOT | e.UnaryOp.IS_NOT_TRUE:
            return f"not {inner}"
    return f"{inner} {expr.op.value.lower()}"


def _operand(expr: e.Expr) -> str:
    text = expression_text(expr)
    return f"({text})" if isinstance(expr, e.Binary | e.Case) else text


def _list(items: Any) -> str:
    return ", ".join(expression_text(item) for item in items)
