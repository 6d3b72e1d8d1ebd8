"""Bound expressions and logical plans as text, for EXPLAIN and messages."""

from __future__ import annotations

from typing import Any

from logflume.streams import expr as x

from . import plan as p
from .format import string_text
from .types import show_type


def expr_text(e: x.Expr | x.Lambda) -> str:
    """Write a bound expression."""
    text = expr_text
    match e:
        case x.ColumnRef(_, name, _):
            return name
        case x.Literal(value, _):
            return "null" if value is None else string_text(value) if isinstance(value, str) else str(value)
        case x.Unary(op, operand, _):
            return f"({text(operand)} {op})" if op.startswith("IS") else f"({op} {text(operand)})"
        case x.Binary(op, left, right, _):
            return f"({text(left)} {op} {text(right)})"
        case x.Call(function, args, _):
            return f"{function.name}({', '.join(map(text, args))})"
        case x.Cast(operand, type):
            return f"CAST({text(operand)} AS {show_type(type)})"
        case x.Case(branches, default, _):
            whens = " ".join(f"WHEN {text(c)} THEN {text(r)}" for c, r in branches)
            return f"CASE {whens} ELSE {text(default)} END"
        case x.FieldAccess(operand, name, _):
            return f"{text(operand)}->{name}"
        case x.Index(operand, index, _):
            return f"{text(operand)}[{text(index)}]"
        case x.MakeArray(items, _):
            return f"ARRAY[{', '.join(map(text, items))}]"
        case x.MakeMap(entries, _):
            return f"MAP({', '.join(f'{text(k)}:={text(v)}' for k, v in entries)})"
        case x.MakeStruct(fields, _):
            return f"STRUCT({', '.join(f'{n}:={text(v)}' for n, v in fields)})"
        case x.Lambda(params, body):
            return f"({', '.join(params)}) => {text(body)}"
        case x.LambdaParam(name, _):
            return name
        case x.PyCall(function, args, _):
            return f"{function.__name__}({', '.join(map(text, args))})"
    raise AssertionError(e)


def _named(columns: Any) -> str:
    return ", ".join(expr_text(c[1]) + (f" AS {c[0]}" if expr_text(c[1]) != c[0] else "") for c in columns)


def _line(operator: p.Operator) -> str:
    match operator:
        case p.Scan(source):
            return f"Scan {source.kind} {source.name} (topic {source.topic}, {source.value_format.name})"
        case p.Filter(_, predicate, name):
            return f"Filter [{name}] {expr_text(predicate)}"
        case p.Rekey(_, keys, name):
            return f"Rekey [{name}] {_named(keys)}"
        case p.Select(_, columns, _):
            return f"Select {_named(columns)}"
        case p.Explode(_, columns):
            return f"Explode {_named(columns)}"
        case p.Aggregate(_, aggregations, window, emit):
            calls = ", ".join(
                f"{a.aggregator.name}({', '.join(map(expr_text, a.args)) or '*'}) AS {a.name}" for a in aggregations
            )
            size = "" if window is None else f", window {window.size_ms} ms by {window.advance_ms} ms, grace {window.grace_ms} ms"
            return f"Aggregate {calls}{size}, emit {emit}"
        case p.JoinTable(_, _, kind, columns):
            return f"Join [{kind} with table] {_named(columns)}"
        case p.JoinAny(_, _, kind, what):
            return f"Join [{kind}: {what}]"
    raise AssertionError(operator)


def plan_text(operator: p.Operator, depth: int = 0) -> str:
    """Draw a plan as an indented tree, the result on top."""
    return "\n".join(["  " * depth + _line(operator), *(plan_text(each, depth + 1) for each in p.inputs(operator))])
