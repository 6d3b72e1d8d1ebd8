"""Pull queries: what is true now, as a finished result. From a query's state where there is some, else from the topic, bounded.

A table made by GROUP BY is answered from its state, wherever that is (`pull_reads.py`): by key when WHERE fixes all key columns,
else by a scan. Other tables and streams are read from their topic (`pull_topic.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from logflume.log.interfaces import Log
from logflume.log.schemas import ANY, BIGINT, INTEGER, Column, Kind
from logflume.streams import expr as x

from . import ast
from .as_of import Until, points
from .binding.context import Context
from .binding.expressions import Binder
from .binding.projection import canonical, spread
from .binding.scope import Scope
from .binding.sources import source_columns
from .catalog import SourceInfo
from .errors import StatementError
from .evaluate import evaluate
from .format import expression_text
from .once import is_computed, run_once
from .ordering import run_ordered
from .over import has_over, run_over
from .pull_scans import check_limit, check_scan
from .pull_topic import Skipped, topic_rows
from .results import Rows
from .table_state import TableShape, ValueRow, value_of
from .tree import names_in, split_conjuncts, split_disjuncts

KEYS_MAX = 10_000
_EXACT = (Kind.INTEGER, Kind.BIGINT, Kind.STRING, Kind.BOOLEAN)
"""A key of these types is what was asked for when its bytes are; a number of another type may have been rounded to it."""


@dataclass(frozen=True, slots=True)
class KeptTable:
    """A table in the state of a running query. `read` gives the rows of encoded keys, or all."""

    shape: TableShape
    read: Callable[[tuple[bytes, ...] | None], Iterator[list[Any]]]


@dataclass(frozen=True, slots=True)
class Pull:
    """A bound pull query.

    Attributes:
        rest: the conditions of `where` that rows found by their keys do not meet by that alone.
        compared: what the source's only key column is compared with, if that is how its keys are fixed.
    """

    source: SourceInfo
    where: tuple[x.Expr, ...]
    rest: tuple[x.Expr, ...]
    columns: tuple[tuple[str, x.Expr], ...]
    keys: tuple[tuple[Any, ...], ...] | None
    limit: int | None
    compared: tuple[ast.Expression, ...] = ()


def run_pull(query: ast.Query, context: Context, log: Log, kept: Callable[[SourceInfo], KeptTable | None]) -> Rows:
    """Answer a pull query.

    Raises:
        StatementError: clauses that a pull query cannot have, unknown names.
        SqlError: the topic is beyond the limit, or part of the state is out of reach.
    """
    if query.order_by or query.offset:
        check_limit(query, context)
        whole = replace(context, rows_max=None)
        return run_ordered(query, lambda plain: run_pull(plain, whole, log, kept)).first(context.rows_max)
    if has_over(query):
        check_limit(query, context)
        whole = replace(context, rows_max=None)
        return run_over(query, whole, lambda plain: run_pull(plain, whole, log, kept)).first(context.rows_max)
    until = points(query, context.catalog)
    if is_computed(query, context):
        check_limit(query, context)
        return run_once(query, context, log, until=until).first(context.rows_max)
    pull = bind_pull(query, context)
    return answered(pull, context, log, kept, until=until.get(pull.source.topic))


def answered(
    pull: Pull,
    context: Context,
    log: Log,
    kept: Callable[[SourceInfo], KeptTable | None],
    *,
    until: Until | None = None,
) -> Rows:
    """Answer a bound query, as its topic was at the point of AS OF. Raises SqlError as `run_pull`."""
    found: list[tuple[Any, ...]] = []
    skipped = Skipped()
    has_more = False
    table = kept(pull.source) if until is None else None
    rows, note = _candidates(pull, context, log, table, skipped, until)
    where = pull.where if table is None else pull.rest
    for row in rows:
        if pull.limit is not None and len(found) >= pull.limit:
            break
        if all(value_of(condition, row) is True for condition in where):
            has_more = context.rows_max is not None and len(found) >= context.rows_max
            if has_more:
                break
            found.append(tuple(value_of(e, row) for _, e in pull.columns))
    columns = tuple(Column(name, e.type) for name, e in pull.columns)
    is_limited = pull.limit is not None and len(found) >= pull.limit
    return Rows(pull.source.name, columns, tuple(found), note + skipped.note(), roles(pull), is_limited, has_more)


def roles(pull: Pull) -> dict[str, str]:
    """Return what columns of the answer are other than values, by name: KEY, HEADERS or HEADER('name')."""
    if not pull.source.is_table:
        return {}
    headers = {h.name: "HEADERS" if h.key is None else f"HEADER('{h.key}')" for h in pull.source.headers}
    return {name: "KEY" if _is_key(e) else headers[name] for name, e in pull.columns if _is_key(e) or name in headers}


def _is_key(e: x.Expr) -> bool:
    return isinstance(e, x.ColumnRef) and (e.side is x.Side.KEY or e.name in (x.Meta.WINDOWSTART, x.Meta.WINDOWEND))


# ------------------------------------------------------------------------------------------------ binding


def is_simple(query: ast.Query) -> bool:
    """Tell whether the rows of a query are all that it needs: nothing to sort, to compute over rows or to look up in the past."""
    return not (query.order_by or query.offset or has_over(query)) and query.source.as_of is None


def bind_pull(query: ast.Query, context: Context) -> Pull:
    """Bind what is answered from one source's rows. Raises StatementError: clauses that it cannot have, unknown names."""
    _refuse(query, context)
    check_limit(query, context)
    source = context.catalog.source(query.source.name, query.source.span)
    _refuse_places(query)
    alias = query.source.alias
    columns_of_source = source_columns(source, alias)
    if source.is_table:  # * has what records carry beside them before their values
        headers = {h.name for h in source.headers}
        columns_of_source.sort(key=lambda c: (c.is_pseudo, not c.is_key, c.name not in headers))
    scope = Scope(tuple(columns_of_source))
    binder = Binder(scope, context.functions, context.catalog.types, "SELECT", fixed_now_ms=context.fixed_now_ms)
    conditions = replace(binder, clause="WHERE")
    where = () if query.where is None else (conditions.condition(query.where),)
    items = spread(query.select, scope, binder, None, has_bounds=True)
    _refuse_duplicates([i.name for i in items], query)
    columns = [(i.name, binder.bind(i.expression)) for i in items]
    fixed = None if query.where is None else _keys(query.where, source, scope, binder)
    if source.is_table:
        check_scan(query, source, context, has_keys=fixed is not None)
    if fixed is None:
        return Pull(source, where, where, tuple(columns), None, query.limit)
    keys, open_parts, compared = fixed
    rest = tuple(conditions.condition(part) for part in open_parts)
    return Pull(source, where, rest, tuple(columns), keys, query.limit, compared)


def _refuse(query: ast.Query, context: Context) -> None:
    refused: dict[str, ast.Span | None] = {
        "JOIN": query.joins[0].span if query.joins else None,
        "WINDOW": None if query.window is None else query.clause_span("WINDOW"),
        "UNION ALL": query.unions[0].span if query.unions else None,
        "GROUP BY": None if query.group_by is None else query.clause_span("GROUP BY"),
        "PARTITION BY": None if query.partition_by is None else query.clause_span("PARTITION BY"),
        "HAVING": None if query.having is None else query.clause_span("HAVING"),
    }
    for clause, span in refused.items():
        if span is not None:
            raise StatementError(
                f"Pull queries don't support {clause} clauses. Add EMIT CHANGES to follow the result instead.", span
            )
    for item in query.select:
        if item.expression is not None and isinstance(item.expression, ast.Call):
            kind = context.functions.kind_of(item.expression.name)
            if kind in ("aggregate", "table"):
                raise StatementError(
                    f"Pull queries don't support {kind} functions. Add EMIT CHANGES, or make a table of it.", item.span
                )


def _refuse_places(query: ast.Query) -> None:
    """Refuse what a state does not know of its rows: where they were read from."""
    parts = [("SELECT", i.expression) for i in query.select] + [("WHERE", query.where)]
    for clause, e in parts:
        for name in () if e is None else names_in(e):
            if name.name in ("ROWPARTITION", "ROWOFFSET"):
                raise StatementError(
                    f"Pull queries don't support the following columns in {clause} clauses: `{name.name}`", name.span
                )


def _refuse_duplicates(names: Sequence[str], query: ast.Query) -> None:
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise StatementError(
            f"Duplicate value columns found in schema: {', '.join(f'`{name}`' for name in twice)}; give one of them another name "
            "with AS",
            query.span,
        )


def _keys(
    where: ast.Expression, source: SourceInfo, scope: Scope, binder: Binder
) -> tuple[tuple[tuple[Any, ...], ...], list[ast.Expression], tuple[ast.Expression, ...]] | None:
    """Return the keys that WHERE fixes, the conditions that they do not settle, and what the last fixed column is compared with.

    None: not all key columns are fixed.

    Raises:
        StatementError: a table is asked for null as a key.
    """
    choices_of_where = split_disjuncts(where)
    if len(choices_of_where) == 1 or _fixed_column(canonical(where, scope, "WHERE"))[0] is not None:
        return _keys_of_all(where, source, scope, binder)
    each = [_keys_of_all(choice, source, scope, binder) for choice in choices_of_where]
    keys = [key for found in each if found is not None for key in found[0]]
    return None if None in each or len(keys) > KEYS_MAX else (tuple(keys), [where], ())


def _keys_of_all(
    where: ast.Expression, source: SourceInfo, scope: Scope, binder: Binder
) -> tuple[tuple[tuple[Any, ...], ...], list[ast.Expression], tuple[ast.Expression, ...]] | None:
    """Return the same of conditions that must all hold."""
    fixed: dict[str, list[Any]] = {}
    rest: list[ast.Expression] = []
    compared: tuple[ast.Expression, ...] = ()
    for part in split_conjuncts(where):
        e = canonical(part, scope, "WHERE")
        name, choices = _fixed_column(e)
        column = next((c for c in source.key if c.name == name), None)
        if column is None or column.name in fixed:
            rest.append(part)
            continue
        try:
            bound = [binder.bind(c) for c in choices]
            values = [evaluate(binder.as_type(c, b, column.type), {}) for c, b in zip(choices, bound, strict=True)]
        except (StatementError, KeyError):
            rest.append(part)
            continue
        if source.is_table and None in values:
            raise StatementError(f"Primary key columns can not be NULL: {expression_text(part)}", part.span)
        if column.type.kind not in _EXACT or not all(_is_exact(b, column) for b in bound):
            rest.append(part)
        fixed[column.name] = [v for v in values if v is not None]
        compared = tuple(choices)
    if not source.key or any(c.name not in fixed for c in source.key):
        return None
    keys = tuple(product(*(fixed[c.name] for c in source.key)))
    return (keys, rest, compared) if len(keys) <= KEYS_MAX else None


def _is_exact(bound: x.Expr, column: Column) -> bool:
    return bound.type in (column.type, ANY) or (bound.type == INTEGER and column.type == BIGINT)


def _fixed_column(e: ast.Expression) -> tuple[str | None, list[ast.Expression]]:
    """Return the column of `k = 1`, `k IN (1, 2)` or a chain of ORs of such, and what it is compared with."""
    match e:
        case ast.Binary("OR", left, right):
            (name, choices), (other, others) = _fixed_column(left), _fixed_column(right)
            return (name, choices + others) if name == other else (None, [])
        case ast.Binary("=", ast.Name(name), value) if not isinstance(value, ast.Name):
            return name, [value]
        case ast.Binary("=", value, ast.Name(name)) if not isinstance(value, ast.Name):
            return name, [value]
        case ast.InList(ast.Name(name), items, False):
            return name, list(items)
    return None, []


def _candidates(
    pull: Pull, context: Context, log: Log, kept: KeptTable | None, skipped: Skipped, until: Until | None
) -> tuple[Iterator[ValueRow], str]:
    if kept is None:
        rows = topic_rows(pull.source, log, skipped, until=until, on_read=context.on_read)
        return rows, f"read from topic {pull.source.topic}, start to {'end' if until is None else 'the point of AS OF'}"
    shape = kept.shape
    how = "a scan of its state" if pull.keys is None else f"{len(pull.keys)} key(s) of its state"
    keys = None if pull.keys is None else shape.encoded(pull.keys)
    return (shape.value_row(row) for row in kept.read(keys)), f"read from {how}"
