"""Syntax tree -> text of the dialect, in one canonical form: what messages show, and what is stored and parsed again."""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from logflume.log.schemas import java_double_text

from . import ast
from .words import RESERVED

_PLAIN_NAME = re.compile(r"[A-Z_][A-Z0-9_@]*\Z")


def name_text(name: str) -> str:
    """Write a name, in backquotes unless it would be read the same without."""
    if _PLAIN_NAME.match(name) and name not in RESERVED:
        return name
    return "`" + name.replace("`", "``") + "`"


def string_text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _unary(op: str, operand: str) -> str:
    if op.startswith("IS"):
        return f"({operand} {op})"
    if op == "NOT":
        return f"({op} {operand})"
    return f"{op} {operand}" if operand.startswith(op) else f"{op}{operand}"  # -- would begin a comment


def expression_text(e: ast.Expression) -> str:
    """Write an expression; operators in full parentheses.

    >>> from logflume.sql.parser import parse_expression
    >>> expression_text(parse_expression("a + 2 * b"))
    '(A + (2 * B))'
    """
    text = expression_text
    match e:
        case ast.Name(name, source):
            return name_text(name) if not source else f"{name_text(source)}.{name_text(name)}"
        case ast.StringLiteral(value):
            return string_text(value)
        case ast.IntegerLiteral(value):
            return str(value)
        case ast.DecimalLiteral(digits):
            return digits
        case ast.DoubleLiteral(value):
            shown = java_double_text(value)
            return shown if "E" in shown else f"{shown}E0"
        case ast.BooleanLiteral(value):
            return "true" if value else "false"
        case ast.NullLiteral():
            return "null"
        case ast.Unary(op, operand):
            return _unary(op, text(operand))
        case ast.Binary(op, left, right):
            return f"({text(left)} {op} {text(right)})"
        case ast.Between(operand, low, high, negated):
            return f"({text(operand)} {_not(negated)}BETWEEN {text(low)} AND {text(high)})"
        case ast.InList(operand, items, negated):
            return f"({text(operand)} {_not(negated)}IN ({_texts(items)}))"
        case ast.Like(operand, pattern, escape, negated, ignores_case):
            tail = "" if escape is None else f" ESCAPE {string_text(escape)}"
            return f"({text(operand)} {_not(negated)}{'I' if ignores_case else ''}LIKE {text(pattern)}{tail})"
        case ast.SimpleCase(operand, whens, default):
            return f"(CASE {text(operand)}{_whens(whens, default)} END)"
        case ast.SearchedCase(whens, default):
            return f"(CASE{_whens(whens, default)} END)"
        case ast.Cast(operand, type):
            return f"CAST({text(operand)} AS {type_text(type)})"
        case ast.MakeArray(items):
            return f"ARRAY[{_texts(items)}]"
        case ast.MakeMap(entries):
            return "MAP(" + ", ".join(f"{text(k)}:={text(v)}" for k, v in entries) + ")"
        case ast.MakeStruct(entries):
            return "STRUCT(" + ", ".join(f"{name_text(k)}:={text(v)}" for k, v in entries) + ")"
        case ast.Subscript(operand, index):
            return f"{text(operand)}[{text(index)}]"
        case ast.Dereference(operand, name):
            return f"{text(operand)}->{name_text(name)}"
        case ast.Call(name, args, is_star, is_distinct):
            return f"{name_text(name)}({'DISTINCT ' if is_distinct else ''}{'*' if is_star else _texts(args)})"
        case ast.Lambda(params, body):
            return f"{params[0] if len(params) == 1 else '(' + ', '.join(params) + ')'} => {text(body)}"
        case ast.Over(call, partition_by, order_by):
            parts = [f"PARTITION BY {_texts(partition_by)}"] if partition_by else []
            parts += [f"ORDER BY {', '.join(map(_order_item, order_by))}"] if order_by else []
            return f"{text(call)} OVER ({' '.join(parts)})"
        case ast.AtTimeZone(operand, zone):
            return f"{text(operand)} AT TIME ZONE {string_text(zone)}"
    raise AssertionError(e)


def _not(is_negated: bool) -> str:
    return "NOT " if is_negated else ""


def _texts(items: Iterable[ast.Expression]) -> str:
    return ", ".join(map(expression_text, items))


def _whens(whens: Iterable[ast.When], default: ast.Expression | None) -> str:
    shown = "".join(f" WHEN {expression_text(w.condition)} THEN {expression_text(w.result)}" for w in whens)
    return shown + ("" if default is None else f" ELSE {expression_text(default)}")


def type_text(type: ast.TypeName) -> str:
    """Write a type name."""
    if type.name == "STRUCT":
        return "STRUCT<" + ", ".join(f"{name_text(n)} {type_text(t)}" for n, t in type.fields) + ">"
    if type.elements:
        return f"{type.name}<{', '.join(map(type_text, type.elements))}>"
    return name_text(type.name) + (f"({', '.join(type.parameters)})" if type.parameters else "")


def query_text(q: ast.Query) -> str:
    """Write a query on one line."""
    distinct = "DISTINCT " if q.is_distinct else ""
    parts = [f"SELECT {distinct}{', '.join(map(_item, q.select))} FROM {_source(q.source)}"]
    for join in q.joins:
        within = "" if join.within is None else f" {_within(join.within)}"
        parts.append(f"{join.kind} JOIN {_source(join.source)}{within} ON {expression_text(join.on)}")
    if q.window:
        parts.append(f"WINDOW {_window(q.window)}")
    if q.where:
        parts.append(f"WHERE {expression_text(q.where)}")
    if q.group_by is not None:
        parts.append(f"GROUP BY {_texts(q.group_by) or '()'}")
    if q.partition_by is not None:
        parts.append(f"PARTITION BY {_texts(q.partition_by) or '()'}")
    if q.having:
        parts.append(f"HAVING {expression_text(q.having)}")
    if q.qualify:
        parts.append(f"QUALIFY {expression_text(q.qualify)}")
    parts += [f"UNION ALL {query_text(part)}" for part in q.unions]
    if q.order_by:
        parts.append(f"ORDER BY {', '.join(map(_order_item, q.order_by))}")
    if q.emit:
        parts.append(f"EMIT {q.emit}")
    if q.limit is not None:
        parts.append(f"LIMIT {q.limit}" + (f" OFFSET {q.offset}" if q.offset else ""))
    return " ".join(parts)


def _item(item: ast.SelectItem) -> str:
    if item.kind == "all":
        return "*"
    if item.kind == "source":
        return f"{name_text(item.source or '')}.*"
    assert item.expression is not None
    shown = expression_text(item.expression)
    if item.kind == "struct":
        return f"{shown}->*"
    return shown if item.alias is None else f"{shown} AS {name_text(item.alias)}"


def _order_item(item: ast.OrderItem) -> str:
    shown = expression_text(item.expression)
    return f"{shown}{' DESC' if item.is_descending else ''}{' NULLS FIRST' if item.has_nulls_first else ''}"


def _source(source: ast.SourceRef) -> str:
    if source.query is not None:
        return f"({query_text(source.query)}) {name_text(source.alias)}"
    as_of = "" if source.as_of is None else f" AS OF {_as_of(source.as_of)}"
    return name_text(source.name) + as_of + ("" if source.alias == source.name else f" {name_text(source.alias)}")


def _as_of(point: ast.AsOf) -> str:
    if point.time is None:
        return f"OFFSET ({', '.join(map(str, point.offsets))})"
    return f"TIMESTAMP {string_text(point.time) if isinstance(point.time, str) else point.time}"


def _duration(duration: ast.Duration) -> str:
    return f"{duration.amount} {duration.unit}"


def _within(within: ast.Within) -> str:
    grace = "" if within.grace is None else f" GRACE PERIOD {_duration(within.grace)}"
    return f"WITHIN ({_duration(within.before)}, {_duration(within.after)}){grace}"


def _window(window: ast.Window | ast.CalendarWindow) -> str:
    if isinstance(window, ast.CalendarWindow):
        kind, parts = "CALENDAR", [window.unit, f"ZONE {string_text(window.zone)}"]
        advance = None
    else:
        kind, advance = window.kind, window.advance
        parts = [_duration(window.size) if window.kind == "SESSION" else f"SIZE {_duration(window.size)}"]
    if advance:
        parts.append(f"ADVANCE BY {_duration(advance)}")
    if window.retention:
        parts.append(f"RETENTION {_duration(window.retention)}")
    if window.grace:
        parts.append(f"GRACE PERIOD {_duration(window.grace)}")
    return f"{kind} ({', '.join(parts)})"


def _properties(properties: Iterable[ast.Property]) -> str:
    shown = ", ".join(f"{name_text(p.name)}={_value(p.value)}" for p in properties)
    return f" WITH ({shown})" if shown else ""


def _value(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, Decimal):
        return format(value, "f")
    return str(value) if isinstance(value, int | float) else string_text(str(value))


def _element(element: ast.ColumnElement) -> str:
    constraint = f" {element.constraint}" if element.constraint else ""
    if element.constraint == "HEADER":
        constraint = f" HEADER({string_text(element.header_key or '')})"
    return f"{name_text(element.name)} {type_text(element.type)}{constraint}"


def _create(s: ast.CreateSource | ast.CreateAs) -> str:
    source = "SOURCE " if isinstance(s, ast.CreateSource) and s.is_source else ""
    exists = "IF NOT EXISTS " if s.if_not_exists else ""
    return f"CREATE {'OR REPLACE ' if s.or_replace else ''}{source}{_kind(s.is_table)} {exists}{name_text(s.name)}"


def _kind(is_table: bool) -> str:
    return "TABLE" if is_table else "STREAM"


def statement_text(s: ast.Statement) -> str:
    """Write a statement on one line, without ';'.

    Raises:
        ValueError: a statement that has no text form (one without meaning here).
    """
    match s:
        case ast.QueryStatement(query):
            return query_text(query)
        case ast.CreateSource():
            elements = f" ({', '.join(map(_element, s.elements))})" if s.elements else ""
            return f"{_create(s)}{elements}{_properties(s.properties)}"
        case ast.CreateAs():
            return f"{_create(s)}{_properties(s.properties)} AS {query_text(s.query)}"
        case ast.InsertQuery(target, query, properties):
            return f"INSERT INTO {name_text(target)}{_properties(properties)} {query_text(query)}"
        case ast.InsertValues(target, columns, rows):
            shown = f" ({', '.join(map(name_text, columns))})" if columns else ""
            return f"INSERT INTO {name_text(target)}{shown} VALUES {', '.join(f'({_texts(row)})' for row in rows)}"
        case ast.Drop(name, is_table, if_exists, delete_topic):
            tail = " DELETE TOPIC" if delete_topic else ""
            return f"DROP {_kind(is_table)} {'IF EXISTS ' if if_exists else ''}{name_text(name)}{tail}"
        case ast.AlterSource(name, is_table, columns):
            return f"ALTER {_kind(is_table)} {name_text(name)} " + ", ".join(
                f"ADD COLUMN {name_text(c)} {type_text(t)}" for c, t in columns
            )
        case ast.CreateType(name, type, if_not_exists):
            return f"CREATE TYPE {'IF NOT EXISTS ' if if_not_exists else ''}{name_text(name)} AS {type_text(type)}"
        case ast.DropType(name, if_exists):
            return f"DROP TYPE {'IF EXISTS ' if if_exists else ''}{name_text(name)}"
        case ast.CreateConnector(name, is_source, properties, if_not_exists):
            exists = "IF NOT EXISTS " if if_not_exists else ""
            options = ", ".join(f"{string_text(p.written)}={_value(p.value)}" for p in properties)
            return f"CREATE {'SOURCE' if is_source else 'SINK'} CONNECTOR {exists}{name_text(name)} WITH ({options})"
        case ast.DropConnector(name, if_exists):
            return f"DROP CONNECTOR {'IF EXISTS ' if if_exists else ''}{name_text(name)}"
        case ast.AlterSystem(name, value):
            return f"ALTER SYSTEM {string_text(name)} = {string_text(value)}"
        case ast.Explain(statement, query_id, is_analyzed):
            what = name_text(query_id or "") if statement is None else statement_text(statement)
            return f"EXPLAIN {'ANALYZE ' if is_analyzed else ''}{what}"
        case ast.QueryControl(verb, query_id):
            return f"{verb} {'ALL' if query_id is None else name_text(query_id)}"
        case ast.Show(what, is_extended, is_all):
            return f"SHOW {'ALL ' if is_all else ''}{what}{' EXTENDED' if is_extended else ''}"
        case ast.SetProperty(name, value):
            return f"SET {string_text(name)} = {string_text(value)}"
        case ast.UnsetProperty(name):
            return f"UNSET {string_text(name)}"
        case ast.Define(name, value):
            return f"DEFINE {name_text(name)} = {string_text(value)}"
        case ast.Undefine(name):
            return f"UNDEFINE {name_text(name)}"
    raise ValueError(f"{s.__class__.__name__} has no text form")
