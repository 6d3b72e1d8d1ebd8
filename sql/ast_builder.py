"""Parse tree -> syntax tree: one method per rule of grammar.lark, bottom-up. Folds names, reads literals, checks nothing else."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from lark import Token, Transformer, v_args

from logflume.streams.java_time import UNITS_MS

from . import ast
from .ast import Span
from .errors import SyntaxFault
from .words import RESERVED

CHAIN_MAX = 32
"""Operands of AND, OR and || in a row that are grouped from the left."""

SOURCES_MAX = 100
"""Sources that a query may read once the names of its WITH clause are filled in: each mention is a reading of its own."""

WHENS_MAX = 500
"""Branches of a CASE: each is code within that of the one before."""

INT64 = range(-(2**63), 2**63)
"""The whole numbers that a BIGINT holds."""

_DECIMAL = re.compile(r"-?([0-9]+\.?[0-9]*|\.[0-9]+)")
_CALENDAR = ("WEEK", "MONTH", "QUARTER", "YEAR")


def _span(meta: Any) -> Span:
    return ast.NOWHERE if meta.empty else Span(meta.start_pos, meta.end_pos)


def _token_span(token: Token) -> Span:
    return Span(token.start_pos or 0, token.end_pos or 0)


def _whole(token: Token) -> int:
    digits = token.lstrip("0") or "0"
    if len(digits) > len(str(INT64.stop)) or int(digits) not in INT64:
        raise SyntaxFault("Invalid numeric literal: this number does not fit a BIGINT (64 bits)", _token_span(token))
    return int(digits)


def unquote(text: str) -> str:
    """Return what a quoted string or name stands for ('it''s' -> it's)."""
    quote = text[0]
    return text[1:-1].replace(quote * 2, quote)


def _binary(op: str) -> Callable[..., ast.Binary]:
    def build(self: AstBuilder, meta: Any, children: list[Any]) -> ast.Binary:
        return ast.Binary(op, children[0], children[-1], span=_span(meta))

    return build


def _chain(op: str) -> Callable[..., ast.Expression]:
    """Build chains of an operator that may be grouped in any way: from the left, long ones in groups, so that none is deep."""

    def joined(items: Sequence[ast.Expression]) -> ast.Expression:
        if len(items) > CHAIN_MAX:
            return joined([joined(items[i : i + CHAIN_MAX]) for i in range(0, len(items), CHAIN_MAX)])
        found = items[0]
        for item in items[1:]:
            found = ast.Binary(op, found, item, span=ast.Span(found.span.start, item.span.stop))
        return found

    def build(self: AstBuilder, meta: Any, children: list[Any]) -> ast.Expression:
        return joined(children)

    return build


def _check_whens(whens: Sequence[Any], span: Span) -> None:
    if len(whens) > WHENS_MAX:
        raise SyntaxFault(f"CASE has {len(whens)} branches; at most {WHENS_MAX} are possible: join a table instead", span)


def _unary(op: str) -> Callable[..., ast.Unary]:
    def build(self: AstBuilder, meta: Any, children: list[Any]) -> ast.Unary:
        return ast.Unary(op, children[0], span=_span(meta))

    return build


def _show(what: str) -> Callable[..., ast.Show]:
    def build(self: AstBuilder, meta: Any, children: list[Any]) -> ast.Show:
        words = {str(c).upper() for c in children if c is not None}
        return ast.Show(what, is_extended="EXTENDED" in words, is_all="ALL" in words, span=_span(meta))

    return build


def _assert_in_test(what: str) -> Callable[..., ast.AssertInTest]:
    def build(self: AstBuilder, meta: Any, children: list[Any]) -> ast.AssertInTest:
        return ast.AssertInTest(what, span=_span(meta))

    return build


def _name_or_string(token: Any) -> str:
    return str(token) if isinstance(token, _Ident) else unquote(token)


class _Ident(str):
    """A folded name that still knows where it stood."""

    __slots__ = ("span",)
    span: Span


def _ident(text: str, span: Span) -> _Ident:
    name = _Ident(text)
    name.span = span
    return name


class _Clause(tuple[str, Any]):
    """(clause name, content) with its span, so that `query` can take its clauses in any order."""

    __slots__ = ()


class _Named(list[tuple[str, ast.Query]]):
    """The queries of a WITH clause by name, in order."""

    __slots__ = ()


def _with_named(query: ast.Query, named: _Named, span: Span) -> ast.Query:
    """Put the queries of WITH where they are named; each may name those before it."""
    known: dict[str, ast.Query] = {}
    sizes: dict[str, int] = {}
    for name, each in [*named, ("", query)]:
        if name in known:
            raise SyntaxFault(f"WITH names {name} twice", span)
        sizes[name] = sum(sizes.get(ref.name, 1) for ref in _named_sources(each))
        if sizes[name] > SOURCES_MAX:
            raise SyntaxFault(f"the query reads more than {SOURCES_MAX} sources; make a stream or table of a part of it", span)
        known[name] = _filled(each, known)
    return known[""]


def _named_sources(query: ast.Query) -> Iterator[ast.SourceRef]:
    for ref in (query.source, *(join.source for join in query.joins)):
        if ref.query is None:
            yield ref
        else:
            yield from _named_sources(ref.query)
    for part in query.unions:
        yield from _named_sources(part)


def _filled(query: ast.Query, known: Mapping[str, ast.Query]) -> ast.Query:
    def source(ref: ast.SourceRef) -> ast.SourceRef:
        if ref.query is not None:
            return replace(ref, query=_filled(ref.query, known))
        return replace(ref, name=ref.alias, query=known[ref.name]) if ref.name in known else ref

    joins = tuple(replace(join, source=source(join.source)) for join in query.joins)
    unions = tuple(_filled(part, known) for part in query.unions)
    return replace(query, source=source(query.source), joins=joins, unions=unions)


@v_args(meta=True)
class AstBuilder(Transformer[Token, Any]):
    """Has no state of its own; one instance serves any number of statements."""

    # -------------------------------------------------------------------------------------------- names

    def identifier(self, meta: Any, children: list[Any]) -> _Ident:
        token = children[0]
        if isinstance(token, _Ident):
            return token
        span = _token_span(token)
        if token.type == "QUOTED":
            return _ident(unquote(token), span)
        upper = str(token).upper()
        if upper in RESERVED and token.type == "NAME":
            raise SyntaxFault(f'Syntax Error: {upper} is a reserved word; write "{token}" or `{token}` to use it as a name', span)
        return _ident(upper, span)

    alias = identifier
    describe_name = identifier

    def of_word(self, meta: Any, children: list[Any]) -> _Ident:
        return _ident("OF", _token_span(children[0]))

    def plain_word(self, meta: Any, children: list[Any]) -> _Ident:
        return _ident(str(children[0]).upper(), _token_span(children[0]))

    describe_word = plain_word
    emit_word = plain_word

    # -------------------------------------------------------------------------------------------- literals

    def string(self, meta: Any, children: list[Any]) -> ast.StringLiteral:
        return ast.StringLiteral(unquote(children[0]), span=_span(meta))

    def integer(self, meta: Any, children: list[Any]) -> ast.IntegerLiteral:
        digits = children[0].lstrip("0") or "0"
        return ast.IntegerLiteral(int(digits) if len(digits) <= 20 else 10**20, span=_span(meta))

    def decimal(self, meta: Any, children: list[Any]) -> ast.DecimalLiteral:
        return ast.DecimalLiteral(str(children[0]), span=_span(meta))

    def double(self, meta: Any, children: list[Any]) -> ast.DoubleLiteral:
        return ast.DoubleLiteral(float(children[0]), span=_span(meta))

    def true(self, meta: Any, children: list[Any]) -> ast.BooleanLiteral:
        return ast.BooleanLiteral(True, span=_span(meta))

    def false(self, meta: Any, children: list[Any]) -> ast.BooleanLiteral:
        return ast.BooleanLiteral(False, span=_span(meta))

    def null(self, meta: Any, children: list[Any]) -> ast.NullLiteral:
        return ast.NullLiteral(span=_span(meta))

    def typed_literal(self, meta: Any, children: list[Any]) -> ast.Expression:
        name, text = children
        if name != "DECIMAL":
            raise SyntaxFault(f"unknown kind of literal {name} '...'; only DECIMAL '1.23' can be written so", _span(meta))
        number = unquote(text).removeprefix("+")
        if not _DECIMAL.fullmatch(number):
            raise SyntaxFault(f"{text} is no DECIMAL; expected digits with or without a point, as in '1.23'", _span(meta))
        return ast.DecimalLiteral(number if "." in number else f"{number}.", span=_span(meta))

    # -------------------------------------------------------------------------------------------- expressions

    or_ = _chain("OR")
    and_ = _chain("AND")
    equal = _binary("=")
    less = _binary("<")
    greater = _binary(">")
    concat = _chain("||")
    add = _binary("+")
    subtract = _binary("-")
    multiply = _binary("*")
    divide = _binary("/")
    modulo = _binary("%")
    is_distinct = _binary("IS DISTINCT FROM")
    is_not_distinct = _binary("IS NOT DISTINCT FROM")
    not_ = _unary("NOT")
    plus = _unary("+")
    is_null = _unary("IS NULL")
    is_not_null = _unary("IS NOT NULL")

    def comparison(self, meta: Any, children: list[Any]) -> ast.Binary:
        left, op, right = children
        return ast.Binary("<>" if op == "!=" else str(op), left, right, span=_span(meta))

    def negate(self, meta: Any, children: list[Any]) -> ast.Expression:
        span = _span(meta)
        match children[0]:
            case ast.IntegerLiteral(value) if value > 0:
                return ast.IntegerLiteral(-value, span=span)
            case ast.DecimalLiteral(text) if not text.startswith("-"):
                return ast.DecimalLiteral("-" + text, span=span)
            case ast.DoubleLiteral(number):
                return ast.DoubleLiteral(-number, span=span)
            case operand:
                return ast.Unary("-", operand, span=span)

    def between(self, meta: Any, children: list[Any]) -> ast.Between:
        return ast.Between(*children, span=_span(meta))

    def not_between(self, meta: Any, children: list[Any]) -> ast.Between:
        operand, low, high = children
        return ast.Between(operand, low, high, True, span=_span(meta))

    def in_(self, meta: Any, children: list[Any]) -> ast.InList:
        return ast.InList(children[0], tuple(children[1:]), span=_span(meta))

    def not_in(self, meta: Any, children: list[Any]) -> ast.InList:
        return ast.InList(children[0], tuple(children[1:]), is_negated=True, span=_span(meta))

    def like(self, meta: Any, children: list[Any]) -> ast.Like:
        operand, pattern, escape = children
        text = None if escape is None else unquote(escape)
        if text is not None and len(text) != 1:
            raise SyntaxFault(f"Expected single character escape but got: {text}", _span(meta))
        return ast.Like(operand, pattern, text, span=_span(meta))

    def not_like(self, meta: Any, children: list[Any]) -> ast.Like:
        plain = AstBuilder.like(self, meta, children)
        return ast.Like(plain.operand, plain.pattern, plain.escape, True, span=plain.span)

    def ilike(self, meta: Any, children: list[Any]) -> ast.Like:
        return replace(AstBuilder.like(self, meta, children), ignores_case=True)

    def not_ilike(self, meta: Any, children: list[Any]) -> ast.Like:
        return replace(AstBuilder.not_like(self, meta, children), ignores_case=True)

    def at_time_zone(self, meta: Any, children: list[Any]) -> ast.AtTimeZone:
        return ast.AtTimeZone(children[0], unquote(children[1]), span=_span(meta))

    def subscript(self, meta: Any, children: list[Any]) -> ast.Subscript:
        return ast.Subscript(children[0], children[1], span=_span(meta))

    def dereference(self, meta: Any, children: list[Any]) -> ast.Dereference:
        return ast.Dereference(children[0], str(children[1]), span=_span(meta))

    def column(self, meta: Any, children: list[Any]) -> ast.Name:
        return ast.Name(str(children[0]), span=_span(meta))

    def qualified_column(self, meta: Any, children: list[Any]) -> ast.Name:
        return ast.Name(str(children[1]), str(children[0]), span=_span(meta))

    def call(self, meta: Any, children: list[Any]) -> ast.Call:
        args = tuple(c for c in children[1:] if c is not None)
        return ast.Call(str(children[0]).upper(), args, span=_span(meta))

    def call_distinct(self, meta: Any, children: list[Any]) -> ast.Call:
        return ast.Call(str(children[0]).upper(), tuple(children[1:]), is_distinct=True, span=_span(meta))

    def call_star(self, meta: Any, children: list[Any]) -> ast.Call:
        return ast.Call(str(children[0]).upper(), (), is_star=True, span=_span(meta))

    def over_partition(self, meta: Any, children: list[Any]) -> tuple[Any, ...]:
        return tuple(children)

    def over(self, meta: Any, children: list[Any]) -> ast.Over:
        call, partition_by, order_by = children
        return ast.Over(call, partition_by or (), order_by[1][0] if order_by else (), span=_span(meta))

    def when(self, meta: Any, children: list[Any]) -> ast.When:
        return ast.When(children[0], children[1], span=_span(meta))

    def simple_case(self, meta: Any, children: list[Any]) -> ast.SimpleCase:
        operand, *whens, default = children
        return ast.SimpleCase(operand, tuple(whens), default, span=_span(meta))

    def searched_case(self, meta: Any, children: list[Any]) -> ast.SearchedCase:
        *whens, default = children
        _check_whens(whens, _span(meta))
        return ast.SearchedCase(tuple(whens), default, span=_span(meta))

    def cast(self, meta: Any, children: list[Any]) -> ast.Cast:
        return ast.Cast(children[0], children[1], span=_span(meta))

    def array(self, meta: Any, children: list[Any]) -> ast.MakeArray:
        return ast.MakeArray(tuple(c for c in children if c is not None), span=_span(meta))

    def map_entry(self, meta: Any, children: list[Any]) -> tuple[Any, Any]:
        return (children[0], children[1])

    def struct_entry(self, meta: Any, children: list[Any]) -> tuple[Any, Any]:
        return (children[0], children[1])

    def map(self, meta: Any, children: list[Any]) -> ast.MakeMap:
        return ast.MakeMap(tuple(c for c in children if c is not None), span=_span(meta))

    def struct(self, meta: Any, children: list[Any]) -> ast.MakeStruct:
        return ast.MakeStruct(tuple((str(c[0]), c[1]) for c in children if c is not None), span=_span(meta))

    def anonymous(self, meta: Any, children: list[Any]) -> ast.Lambda:
        head = str(children[0])[:-2].strip().strip("()")
        return ast.Lambda(tuple(p.strip().upper() for p in head.split(",")), children[1], span=_span(meta))

    # -------------------------------------------------------------------------------------------- types

    def array_type(self, meta: Any, children: list[Any]) -> ast.TypeName:
        return ast.TypeName("ARRAY", elements=(children[0],), span=_span(meta))

    def map_type(self, meta: Any, children: list[Any]) -> ast.TypeName:
        return ast.TypeName("MAP", elements=(children[0], children[1]), span=_span(meta))

    def field(self, meta: Any, children: list[Any]) -> tuple[str, ast.TypeName]:
        return (str(children[0]), children[1])

    def struct_type(self, meta: Any, children: list[Any]) -> ast.TypeName:
        return ast.TypeName("STRUCT", fields=tuple(c for c in children if c is not None), span=_span(meta))

    def empty_struct_type(self, meta: Any, children: list[Any]) -> ast.TypeName:
        return ast.TypeName("STRUCT", span=_span(meta))

    def simple_type(self, meta: Any, children: list[Any]) -> ast.TypeName:
        parameters = tuple(str(c) for c in children[1:] if c is not None)
        return ast.TypeName(str(children[0]), parameters, span=_span(meta))

    # -------------------------------------------------------------------------------------------- query

    def select_expr(self, meta: Any, children: list[Any]) -> ast.SelectItem:
        alias = None if children[1] is None else str(children[1])
        return ast.SelectItem("expr", children[0], alias, span=_span(meta))

    def select_struct(self, meta: Any, children: list[Any]) -> ast.SelectItem:
        return ast.SelectItem("struct", children[0], span=_span(meta))

    def select_source(self, meta: Any, children: list[Any]) -> ast.SelectItem:
        return ast.SelectItem("source", source=str(children[0]), span=_span(meta))

    def select_all(self, meta: Any, children: list[Any]) -> ast.SelectItem:
        return ast.SelectItem("all", span=_span(meta))

    def source(self, meta: Any, children: list[Any]) -> ast.SourceRef:
        name, as_of, alias = children
        return ast.SourceRef(str(name), str(name if alias is None else alias), as_of=as_of, span=_span(meta))

    def as_of_time(self, meta: Any, children: list[Any]) -> ast.AsOf:
        token = children[0]
        return ast.AsOf(unquote(token) if token.type == "STRING" else _whole(token), span=_span(meta))

    def as_of_offsets(self, meta: Any, children: list[Any]) -> ast.AsOf:
        return ast.AsOf(offsets=tuple(map(int, children)), span=_span(meta))

    def inner_source(self, meta: Any, children: list[Any]) -> ast.SourceRef:
        query, alias = children
        if alias is None:
            raise SyntaxFault("a query in FROM needs a name: FROM (SELECT ...) AS name", _span(meta))
        return ast.SourceRef(str(alias), str(alias), query, span=_span(meta))

    def named_query(self, meta: Any, children: list[Any]) -> tuple[str, ast.Query]:
        return str(children[0]), children[1]

    def named_queries(self, meta: Any, children: list[Any]) -> _Named:
        return _Named(children)

    def inner_query(self, meta: Any, children: list[Any]) -> ast.Query:
        first: ast.Query = children[0]
        unions = children[1:]
        return replace(first, unions=tuple(unions)) if unions else first

    def distinct(self, meta: Any, children: list[Any]) -> _Clause:
        return _Clause(("DISTINCT", (True, _span(meta))))

    def order_item(self, meta: Any, children: list[Any]) -> ast.OrderItem:
        expression, direction, nulls = children
        is_descending = direction is not None and direction.type == "DESC"
        return ast.OrderItem(expression, is_descending, nulls is not None and nulls.type == "FIRST", span=_span(meta))

    def order_by(self, meta: Any, children: list[Any]) -> _Clause:
        return _Clause(("ORDER BY", (tuple(children), _span(meta))))

    def inner(self, meta: Any, children: list[Any]) -> str:
        return "INNER"

    def left(self, meta: Any, children: list[Any]) -> str:
        return "LEFT"

    def right(self, meta: Any, children: list[Any]) -> str:
        return "RIGHT"

    def full(self, meta: Any, children: list[Any]) -> str:
        return "FULL"

    def join(self, meta: Any, children: list[Any]) -> ast.Join:
        kind, source, within, on = children
        return ast.Join(kind, source, within, on, span=_span(meta))

    def duration(self, meta: Any, children: list[Any]) -> ast.Duration:
        amount, unit = _whole(children[0]), children[1]
        if unit not in UNITS_MS:
            known = ", ".join(sorted({u for u in UNITS_MS if u.endswith("S")}))
            calendar = f"; WINDOW CALENDAR ({unit}) has those of the calendar" if unit in _CALENDAR else ""
            raise SyntaxFault(f"unknown time unit {unit}; expected one of {known}{calendar}", _span(meta))
        return ast.Duration(amount, str(unit), amount * UNITS_MS[unit], span=_span(meta))

    def unit(self, meta: Any, children: list[Any]) -> str:
        return str(children[0]).upper()

    def grace(self, meta: Any, children: list[Any]) -> ast.Duration:
        return children[0]  # type: ignore[no-any-return]

    def within_same(self, meta: Any, children: list[Any]) -> ast.Within:
        return ast.Within(children[0], children[0], children[1], span=_span(meta))

    def within_both(self, meta: Any, children: list[Any]) -> ast.Within:
        return ast.Within(*children, span=_span(meta))

    def window_name(self, meta: Any, children: list[Any]) -> None:
        return None

    def tumbling(self, meta: Any, children: list[Any]) -> _Clause:
        _, size, retention, grace = children
        return self._window(meta, ast.Window("TUMBLING", size, None, retention, grace, span=_span(meta)))

    def hopping(self, meta: Any, children: list[Any]) -> _Clause:
        _, size, advance, retention, grace = children
        return self._window(meta, ast.Window("HOPPING", size, advance, retention, grace, span=_span(meta)))

    def session_window(self, meta: Any, children: list[Any]) -> _Clause:
        _, gap, retention, grace = children
        return self._window(meta, ast.Window("SESSION", gap, None, retention, grace, span=_span(meta)))

    def calendar(self, meta: Any, children: list[Any]) -> _Clause:
        _, unit, zone, retention, grace = children
        zone = "UTC" if zone is None else zone[1:-1].replace("''", "'")
        return self._window(meta, ast.CalendarWindow(unit, zone, retention, grace, span=_span(meta)))

    def _window(self, meta: Any, window: ast.Window | ast.CalendarWindow) -> _Clause:
        return _Clause(("WINDOW", (window, _span(meta))))

    def where(self, meta: Any, children: list[Any]) -> _Clause:
        return _Clause(("WHERE", (children[0], _span(meta))))

    def grouping(self, meta: Any, children: list[Any]) -> tuple[Any, ...]:
        return tuple(children)

    def group_by(self, meta: Any, children: list[Any]) -> _Clause:
        return _Clause(("GROUP BY", (children[0], _span(meta))))

    def partition_by(self, meta: Any, children: list[Any]) -> _Clause:
        return _Clause(("PARTITION BY", (children[0], _span(meta))))

    def having(self, meta: Any, children: list[Any]) -> _Clause:
        return _Clause(("HAVING", (children[0], _span(meta))))

    def qualify(self, meta: Any, children: list[Any]) -> _Clause:
        return _Clause(("QUALIFY", (children[0], _span(meta))))

    def emit_changes(self, meta: Any, children: list[Any]) -> _Clause:
        return _Clause(("EMIT", ("CHANGES", _span(meta))))

    def emit_final(self, meta: Any, children: list[Any]) -> _Clause:
        return _Clause(("EMIT", ("FINAL", _span(meta))))

    def emit_snapshot(self, meta: Any, children: list[Any]) -> _Clause:
        return _Clause(("EMIT", (ast.SNAPSHOT, _span(meta))))

    def limit(self, meta: Any, children: list[Any]) -> _Clause:
        limit, offset = children
        return _Clause(("LIMIT", ((_whole(limit), 0 if offset is None else _whole(offset)), _span(meta))))

    def relation(self, meta: Any, children: list[Any]) -> tuple[Any, ...]:
        return tuple(children)

    def query(self, meta: Any, children: list[Any]) -> ast.Query:
        items = tuple(c for c in children if isinstance(c, ast.SelectItem))
        source, *joins = next(c for c in children if type(c) is tuple)
        clauses = {c[0]: c[1] for c in children if isinstance(c, _Clause)}

        def content(clause: str) -> Any:
            return clauses[clause][0] if clause in clauses else None

        limit, offset = content("LIMIT") or (None, 0)
        built = ast.Query(
            items,
            source,
            tuple(joins),
            content("WINDOW"),
            content("WHERE"),
            content("GROUP BY"),
            content("PARTITION BY"),
            content("HAVING"),
            content("EMIT"),
            limit,
            tuple(c for c in children if isinstance(c, ast.Query)),
            tuple((name, value[1]) for name, value in clauses.items()),
            "DISTINCT" in clauses,
            content("ORDER BY") or (),
            offset,
            content("QUALIFY"),
            span=_span(meta),
        )
        named = next((c for c in children if isinstance(c, _Named)), None)
        return built if named is None else _with_named(built, named, _span(meta))

    query_part = query

    def union(self, meta: Any, children: list[Any]) -> ast.Query:
        part: ast.Query = children[0]
        return part

    # -------------------------------------------------------------------------------------------- statements

    def start(self, meta: Any, children: list[Any]) -> Any:
        return children[0]

    def query_statement(self, meta: Any, children: list[Any]) -> ast.QueryStatement:
        return ast.QueryStatement(children[0], span=_span(meta))

    show_properties = _show("PROPERTIES")
    show_topics = _show("TOPICS")
    show_streams = _show("STREAMS")
    show_tables = _show("TABLES")
    show_functions = _show("FUNCTIONS")
    show_types = _show("TYPES")
    show_variables = _show("VARIABLES")
    show_queries = _show("QUERIES")

    def show_connectors(self, meta: Any, children: list[Any]) -> ast.Show:
        kind = next((f"{str(c).upper()} " for c in children if c is not None), "")
        return ast.Show(f"{kind}CONNECTORS", span=_span(meta))

    show_connector_plugins = _show("CONNECTOR PLUGINS")

    def describe_source(self, meta: Any, children: list[Any]) -> ast.Describe:
        return ast.Describe("SOURCE", str(children[0]), children[1] is not None, span=_span(meta))

    def describe_streams(self, meta: Any, children: list[Any]) -> ast.Describe:
        return ast.Describe("STREAMS", "", children[0] is not None, span=_span(meta))

    def describe_tables(self, meta: Any, children: list[Any]) -> ast.Describe:
        return ast.Describe("TABLES", "", children[0] is not None, span=_span(meta))

    def describe_function(self, meta: Any, children: list[Any]) -> ast.Describe:
        return ast.Describe("FUNCTION", str(children[0]), span=_span(meta))

    def describe_connector(self, meta: Any, children: list[Any]) -> ast.Describe:
        return ast.Describe("CONNECTOR", str(children[0]), span=_span(meta))

    def explain_statement(self, meta: Any, children: list[Any]) -> ast.Explain:
        return ast.Explain(children[0], span=_span(meta))

    def explain_query(self, meta: Any, children: list[Any]) -> ast.Explain:
        return ast.Explain(None, str(children[1]), children[0] is not None, span=_span(meta))

    def print(self, meta: Any, children: list[Any]) -> ast.Print:
        name, from_beginning, interval, limit = children
        every = 1 if interval is None else _whole(interval)
        if every < 1:
            raise SyntaxFault(f"INTERVAL is at least 1, found {every}", _span(meta))
        most = None if limit is None else _whole(limit)
        return ast.Print(_name_or_string(name), from_beginning is not None, every, most, span=_span(meta))

    def from_beginning(self, meta: Any, children: list[Any]) -> str:
        return "from beginning"

    def not_exists(self, meta: Any, children: list[Any]) -> str:
        return "not exists"

    def timeout(self, meta: Any, children: list[Any]) -> ast.Duration:
        duration: ast.Duration = children[0]
        return duration

    def control(self, meta: Any, children: list[Any]) -> ast.QueryControl:
        verb, target = children
        is_all = isinstance(target, Token)
        return ast.QueryControl(str(verb).upper(), None if is_all else str(target), span=_span(meta))

    def set_property(self, meta: Any, children: list[Any]) -> ast.SetProperty:
        return ast.SetProperty(unquote(children[0]), unquote(children[1]), span=_span(meta))

    def alter_system(self, meta: Any, children: list[Any]) -> ast.AlterSystem:
        return ast.AlterSystem(unquote(children[0]), unquote(children[1]), span=_span(meta))

    def unset_property(self, meta: Any, children: list[Any]) -> ast.UnsetProperty:
        return ast.UnsetProperty(unquote(children[0]), span=_span(meta))

    def define(self, meta: Any, children: list[Any]) -> ast.Define:
        return ast.Define(str(children[0]).upper(), unquote(children[1]), span=_span(meta))

    def undefine(self, meta: Any, children: list[Any]) -> ast.Undefine:
        return ast.Undefine(str(children[0]).upper(), span=_span(meta))

    def run_script(self, meta: Any, children: list[Any]) -> ast.RunScript:
        return ast.RunScript(unquote(children[0]), span=_span(meta))

    def or_replace(self, meta: Any, children: list[Any]) -> str:
        return "or replace"

    def if_not_exists(self, meta: Any, children: list[Any]) -> str:
        return "if not exists"

    def if_exists(self, meta: Any, children: list[Any]) -> str:
        return "if exists"

    def delete_topic(self, meta: Any, children: list[Any]) -> str:
        return "delete topic"

    def primary_key(self, meta: Any, children: list[Any]) -> tuple[str, str | None]:
        return ("PRIMARY KEY", None)

    def key(self, meta: Any, children: list[Any]) -> tuple[str, str | None]:
        return ("KEY", None)

    def headers(self, meta: Any, children: list[Any]) -> tuple[str, str | None]:
        return ("HEADERS", None)

    def header(self, meta: Any, children: list[Any]) -> tuple[str, str | None]:
        return ("HEADER", unquote(children[0]))

    def element(self, meta: Any, children: list[Any]) -> ast.ColumnElement:
        name, type_name, constraint = children
        kind, header_key = constraint or (None, None)
        return ast.ColumnElement(str(name), type_name, kind, header_key, span=_span(meta))

    def elements(self, meta: Any, children: list[Any]) -> tuple[ast.ColumnElement, ...]:
        return tuple(children)

    def negative_literal(self, meta: Any, children: list[Any]) -> ast.Expression:
        return AstBuilder.negate(self, meta, children)

    def property(self, meta: Any, children: list[Any]) -> ast.Property:
        name, literal = children
        text = unquote(name) if isinstance(name, Token) else str(name)
        value: Any = None
        if isinstance(literal, ast.DecimalLiteral):
            value = Decimal(literal.text)
        elif not isinstance(literal, ast.NullLiteral):
            value = literal.value
        if (type(value) is int and value not in INT64) or value in (math.inf, -math.inf):  # the literal itself is not kept
            raise SyntaxFault(f"Invalid numeric literal: the value of {text} does not fit 64 bits", literal.span)
        is_as_written = isinstance(name, Token) or text != text.upper()
        return ast.Property(text.upper(), value, text if is_as_written else text.lower(), span=_span(meta))

    def with_clause(self, meta: Any, children: list[Any]) -> tuple[ast.Property, ...]:
        return tuple(c for c in children if c is not None)

    def create_source(self, meta: Any, children: list[Any]) -> ast.CreateSource:
        replace, source, kind, if_missing, name, elements, properties = children
        return ast.CreateSource(
            str(name),
            str(kind).upper() == "TABLE",
            elements or (),
            properties or (),
            replace is not None,
            if_missing is not None,
            source is not None,
            span=_span(meta),
        )

    def create_as(self, meta: Any, children: list[Any]) -> ast.CreateAs:
        replace, kind, if_missing, name, properties, query = children
        return ast.CreateAs(
            str(name),
            str(kind).upper() == "TABLE",
            query,
            properties or (),
            replace is not None,
            if_missing is not None,
            span=_span(meta),
        )

    def insert_query(self, meta: Any, children: list[Any]) -> ast.InsertQuery:
        return ast.InsertQuery(str(children[0]), children[2], children[1] or (), span=_span(meta))

    def columns(self, meta: Any, children: list[Any]) -> tuple[str, ...]:
        return tuple(str(c) for c in children)

    def insert_values(self, meta: Any, children: list[Any]) -> ast.InsertValues:
        target, columns, *rows = children
        return ast.InsertValues(str(target), columns or (), tuple(rows), span=_span(meta))

    def row(self, meta: Any, children: list[Any]) -> tuple[ast.Expression, ...]:
        return tuple(e for e in children if e is not None)

    def alter_option(self, meta: Any, children: list[Any]) -> tuple[str, ast.TypeName]:
        return (str(children[-2]), children[-1])

    def alter(self, meta: Any, children: list[Any]) -> ast.AlterSource:
        kind, name, *columns = children
        return ast.AlterSource(str(name), str(kind).upper() == "TABLE", tuple(columns), span=_span(meta))

    def drop_source(self, meta: Any, children: list[Any]) -> ast.Drop:
        kind, if_there, name, delete = children
        return ast.Drop(str(name), str(kind).upper() == "TABLE", if_there is not None, delete is not None, span=_span(meta))

    def drop_type(self, meta: Any, children: list[Any]) -> ast.DropType:
        return ast.DropType(str(children[1]), children[0] is not None, span=_span(meta))

    def create_type(self, meta: Any, children: list[Any]) -> ast.CreateType:
        return ast.CreateType(str(children[1]), children[2], children[0] is not None, span=_span(meta))

    def create_connector(self, meta: Any, children: list[Any]) -> ast.CreateConnector:
        kind, if_missing, name, properties = children
        is_source = str(kind).upper() == "SOURCE"
        return ast.CreateConnector(str(name), is_source, properties or (), if_missing is not None, span=_span(meta))

    def drop_connector(self, meta: Any, children: list[Any]) -> ast.DropConnector:
        if_there, name = children
        return ast.DropConnector(str(name), if_there is not None, span=_span(meta))

    assert_values = _assert_in_test("ASSERT VALUES")
    assert_tombstone = _assert_in_test("ASSERT NULL VALUES")

    def assert_topic(self, meta: Any, children: list[Any]) -> ast.AssertTopic:
        absent, name, properties, timeout = children
        return ast.AssertTopic(str(name), properties or (), absent is not None, timeout, span=_span(meta))

    def assert_schema(self, meta: Any, children: list[Any]) -> ast.AssertSchema:
        absent, subject, number, timeout = children
        found = None if subject is None else _name_or_string(subject)
        return ast.AssertSchema(found, None if number is None else _whole(number), absent is not None, timeout, span=_span(meta))

    def assert_source(self, meta: Any, children: list[Any]) -> ast.AssertInTest:
        return ast.AssertInTest(f"ASSERT {str(children[0]).upper()}", span=_span(meta))
