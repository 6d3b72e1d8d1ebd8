"""What is wrong with a script, and what is right but seldom meant, found without running any of it: `logflume sql lint`.

Statements are parsed and planned one after the other against a catalog that each one changes as it would; what fails is told, and
the rest is still looked at. Statements that read what a failed one would have made are left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from logflume.log import InvalidInput
from logflume.log.schemas import MemoryRegistry, format_of, register_schema
from logflume.streams.functions import Library, builtin_library

from . import ast
from .applying import plan_persistent, replaced_query
from .binding.context import REGISTRY_URL, Context
from .catalog import Catalog, SourceInfo
from .definitions import apply_definition, check_is_free, new_query_id
from .findings import Finding, Severity, at, refusal, undefined, used_variables
from .inference import inferred
from .inserts import values_records
from .once import is_computed, plan_once
from .options import format_name, read_options
from .parser import parse_statement
from .planner import format_names, plan_push, register_schemas
from .properties import check_property
from .pull import bind_pull
from .row_records import RecordMakers
from .scripts import StatementText, split_script
from .tree import names_in, source_names, walk


@dataclass(slots=True)
class _Script:
    """What the statements so far have made. `unknown`: names that a failed statement would have made."""

    catalog: Catalog
    properties: dict[str, str]
    functions: Library
    has_registry: bool
    variables: dict[str, str] = field(default_factory=dict)
    defined: dict[str, StatementText] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)

    def context(self) -> Context:
        return Context(self.catalog, self.functions, {**self.catalog.properties, **self.properties})


def lint_script(
    text: str, *, catalog: Catalog | None = None, registry_url: str | None = None, functions: Library | None = None
) -> list[Finding]:
    """Look at a script; return what was found, in order.

    Args:
        catalog: what exists before it; nothing without.
        registry_url: where columns that statements do not name are looked up; without it such statements are not checked.
        functions: what statements may call; the built-in ones without.

    >>> for found in lint_script("CREATE STREAM s (a INT);\\nSELECT * FORM s;"): print(found.line, found.code)
    1 SQL_STATEMENT
    2 SQL_SYNTAX
    """
    registry = MemoryRegistry()
    properties = {REGISTRY_URL: registry_url or registry.location}
    script = _Script(catalog or Catalog(), properties, functions or builtin_library(), registry_url is not None)
    found: list[Finding] = []
    for source in split_script(text):
        found += _look_at(script, source)
    unused = (s for name, s in script.defined.items() if name not in script.used)
    found += [_warning(s, ast.NOWHERE, "unused-variable", f"nothing uses the variable of {s.text}") for s in unused]
    return sorted(found, key=lambda f: (f.line, f.column))


def _look_at(script: _Script, source: StatementText) -> Iterator[Finding]:
    script.used |= used_variables(source)
    if missing := undefined(source, script.variables):
        yield missing
        return
    try:
        statement = parse_statement(source, variables=script.variables)
        yield from _warnings(statement, source)
        if script.unknown & set(_reads(statement)):
            script.unknown |= set(_made(statement))
            return
        if not script.has_registry and _needs_registry(statement, script):
            script.unknown |= set(_made(statement))
            message = "its columns are in a schema registry, which was not given"
            yield at(source, ast.NOWHERE, Severity.NOTE, "not-checked", message)
            return
        _apply(script, statement, source)
    except InvalidInput as error:
        yield refusal(error, source)
        script.unknown |= _made_by_text(source)


def _needs_registry(statement: ast.Statement, script: _Script) -> bool:
    """Tell whether a CREATE leaves columns to a registry."""
    if not isinstance(statement, ast.CreateSource) or any(e.constraint is None for e in statement.elements):
        return False
    options = read_options(statement.properties, "C")
    _, value = format_names(options, script.context())
    return value is not None and format_of(format_name(value, options.span("VALUE_FORMAT"))).schemas is not None


def _apply(script: _Script, statement: ast.Statement, source: StatementText) -> None:
    """Do what a statement would do to the catalog and the session. Raises StatementError: it would be refused."""
    context = script.context()
    match statement:
        case ast.SetProperty(name, value):
            check_property(name, value, statement.span)
            script.properties[name] = value
        case ast.UnsetProperty(name):
            check_property(name, None, statement.span)
            script.properties.pop(name, None)
        case ast.Define(name, value):
            script.variables[name], script.defined[name.upper()] = value, source
        case ast.Undefine(name):
            script.variables.pop(name, None)
        case ast.QueryStatement(query):
            _plan_query(query, context)
        case ast.Explain(inner) if inner is not None:
            _apply(replace(script), inner, source)
        case ast.CreateAs() | ast.InsertQuery():
            _add_query(script, statement, context)
        case ast.InsertValues():
            values_records(statement, context, RecordMakers())
        case ast.Describe("SOURCE", name):
            context.catalog.source(name, statement.span)
        case ast.CreateSource():
            statement = inferred(statement, context)
            script.catalog = apply_definition(statement, context)
            _register(script.catalog.sources[statement.name])
        case ast.Drop() | ast.AlterSource() | ast.CreateType() | ast.DropType() | ast.AlterSystem() | ast.AssertInTest():
            script.catalog = apply_definition(statement, context)


def _register(source: SourceInfo) -> None:
    """Let later statements find the columns of a source in the registry that stands for the real one."""
    for spec, columns in ((source.key_format, source.key), (source.value_format, source.value)):
        if spec.registry is not None and isinstance(spec.registry, MemoryRegistry):
            register_schema(spec, columns)


def _plan_query(query: ast.Query, context: Context) -> None:
    if query.emit is not None:
        plan_push(query, context, query_id="LINT")
        return
    plain = replace(query, order_by=(), offset=0)
    if is_computed(plain, context):
        plan_once(plain, context)
    else:
        bind_pull(plain, context)


def _add_query(script: _Script, s: ast.CreateAs | ast.InsertQuery, context: Context) -> None:
    if isinstance(s, ast.CreateAs) and s.if_not_exists and s.name in context.catalog.sources:
        return
    if isinstance(s, ast.CreateAs) and replaced_query(s, context.catalog) is None:
        check_is_free(s.name, s.is_table, context.catalog, s.span)
    planned = plan_persistent(s, context, new_query_id(s, context.catalog))
    planned.topology  # noqa: B018 - what cannot be built is found here
    register_schemas(planned, s.span)
    catalog = script.catalog.with_query(planned.query)
    if planned.sink is not None:
        catalog = catalog.with_source(planned.sink)
    script.catalog = replace(catalog, next_number=catalog.next_number + 1)


def _reads(statement: ast.Statement) -> Iterator[str]:
    """Yield the names that a statement needs."""
    match statement:
        case ast.QueryStatement(query) | ast.CreateAs(query=query):
            yield from source_names(query)
        case ast.InsertQuery(target, query):
            yield target
            yield from source_names(query)
        case ast.InsertValues(target):
            yield target
        case ast.Drop(name) | ast.AlterSource(name) | ast.Describe(name=name):
            yield name
        case ast.Explain(inner) if inner is not None:
            yield from _reads(inner)


def _made(statement: ast.Statement) -> Iterator[str]:
    if isinstance(statement, ast.CreateSource | ast.CreateAs):
        yield statement.name


def _made_by_text(source: StatementText) -> set[str]:
    """Return the name that a statement would have made, which may not even parse."""
    words = re.match(r"(?is)create\s+.*?\b(?:stream|table)\s+(?:if\s+not\s+exists\s+)?(\w+|`[^`]+`)", source.text)
    name = words.group(1) if words else ""
    return {name.strip("`") if name.startswith("`") else name.upper()} if name else set()


# ------------------------------------------------------------------------------------------------ warnings

_Rule = Callable[[ast.Statement], Iterator[tuple[ast.Span, str]]]


def _plain_patterns(statement: ast.Statement) -> Iterator[tuple[ast.Span, str]]:
    for e in _expressions(statement):
        if isinstance(e, ast.Like) and isinstance(e.pattern, ast.StringLiteral) and not set("%_") & set(e.pattern.value):
            yield e.span, "a pattern without % and _ only matches itself; write = or put a % where anything may stand"


def _constant_conditions(statement: ast.Statement) -> Iterator[tuple[ast.Span, str]]:
    for query in _queries(statement):
        for clause, e in (("WHERE", query.where), ("HAVING", query.having)):
            if e is not None and not any(names_in(e)) and not any(isinstance(each, ast.Call) for each in walk(e)):
                yield e.span, f"this {clause} is the same for every row: it reads no column"


def _values_by_place(statement: ast.Statement) -> Iterator[tuple[ast.Span, str]]:
    if isinstance(statement, ast.InsertValues) and not statement.columns:
        yield statement.span, "name the columns: without them the values go by place, and a column added later breaks it"


def _joins_without_grace(statement: ast.Statement) -> Iterator[tuple[ast.Span, str]]:
    for join in chain.from_iterable(query.joins for query in _queries(statement)):
        if join.within is not None and join.within.grace is None:
            yield (
                join.span,
                "WITHIN without GRACE PERIOD keeps both sides for a day beyond the window; say how late records may come",
            )


def _limits_without_order(statement: ast.Statement) -> Iterator[tuple[ast.Span, str]]:
    if isinstance(statement, ast.QueryStatement):
        query = statement.query
        if query.limit is not None and query.emit is None and not query.order_by and query.group_by is not None:
            yield query.clause_span("LIMIT"), "LIMIT without ORDER BY gives any of the rows, not the first"


_RULES: Mapping[str, _Rule] = {
    "plain-pattern": _plain_patterns,
    "constant-condition": _constant_conditions,
    "values-by-place": _values_by_place,
    "join-without-grace": _joins_without_grace,
    "limit-without-order": _limits_without_order,
}


def _warnings(statement: ast.Statement, source: StatementText) -> Iterator[Finding]:
    for code, rule in _RULES.items():
        for span, message in rule(statement):
            yield _warning(source, span, code, message)


def _queries(statement: ast.Statement) -> Iterator[ast.Query]:
    """Yield the queries of a statement, those within others too."""
    todo = [statement.query] if isinstance(statement, ast.QueryStatement | ast.CreateAs | ast.InsertQuery) else []
    while todo:
        query = todo.pop()
        yield query
        todo += query.unions
        todo += [ref.query for ref in (query.source, *(join.source for join in query.joins)) if ref.query is not None]


def _expressions(statement: ast.Statement) -> Iterator[ast.Expression]:
    for query in _queries(statement):
        parts = [item.expression for item in query.select] + [query.where, query.having, *(join.on for join in query.joins)]
        for e in parts:
            if e is not None:
                yield from walk(e)


def _warning(source: StatementText, span: ast.Span, code: str, message: str) -> Finding:
    return at(source, span, Severity.WARNING, code, message)
