"""Bound expressions and logical plans as text, for EXPLAIN and messages."""

from __future__ import annotations

from typing import Any

from logflume.streams import expr as x
from logflume.streams.graph import CalendarWindow, SessionWindow, TimeWindow

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
            size = "" if window is None else f", {window_text(window)}"
            return f"Aggregate {calls}{size}, emit {emit}"
        case p.Union(parts):
            return f"Union of {len(parts)}"
        case p.JoinTable(_, _, kind, columns):
            return f"Join [{kind} with table] {_named(columns)}"
        case p.JoinStreams(_, _, kind, columns, before_ms, after_ms, grace_ms):
            grace = "" if grace_ms is None else f", grace {grace_ms} ms"
            return f"Join [{kind} of streams, -{before_ms} to +{after_ms} ms{grace}] {_named(columns)}"
        case p.JoinTables(_, _, kind, columns):
            return f"Join [{kind} of tables] {_named(columns)}"
        case p.JoinForeign(_, _, kind, columns, key):
            return f"Join [{kind} of tables on {expr_text(key)}] {_named(columns)}"
        case p.Regroup(_, keys, columns):
            return f"Regroup {_named(keys)}: {_named(columns)}"
    raise AssertionError(operator)


def window_text(window: p.Windows) -> str:
    """Write a window for people."""
    match window:
        case TimeWindow(size_ms, advance_ms, grace_ms):
            return f"window {size_ms} ms by {advance_ms} ms, grace {grace_ms} ms"
        case SessionWindow(gap_ms, grace_ms):
            return f"session of gap {gap_ms} ms, grace {grace_ms} ms"
        case CalendarWindow(unit, zone, grace_ms):
            return f"each {unit} of {zone}, grace {grace_ms} ms"


def plan_text(operator: p.Operator, depth: int = 0) -> str:
    """Draw a plan as an indented tree, the result on top."""
    return "\n".join(["  " * depth + _line(operator), *(plan_text(each, depth + 1) for each in p.inputs(operator))])
