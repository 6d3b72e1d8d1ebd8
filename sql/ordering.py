"""ORDER BY and OFFSET of queries that end: their rows are sorted and cut when all of them are there."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from logflume.log.schemas import Column, Kind

from . import ast
from .errors import StatementError
from .format import expression_text
from .results import Rows

_HIDDEN = "KSQL_ORDER_"
_GENERATED = "KSQL_COL_"


def run_ordered(query: ast.Query, run: Callable[[ast.Query], Rows]) -> Rows:
    """Run a query without ORDER BY, OFFSET and LIMIT, then do what they say.

    An item of ORDER BY is a number (the column at that place), the name that the SELECT gives a column, or any expression that
    could stand in the SELECT.

    Raises:
        StatementError: an item that is none of these, or that has no order.
    """
    query = replace(query, order_by=tuple(replace(i, expression=_meant(i.expression, query)) for i in query.order_by))
    hidden = [i.expression for i in query.order_by if not _is_shown(i.expression, query)]
    extra = tuple(ast.SelectItem("expr", e, f"{_HIDDEN}{n}", span=e.span) for n, e in enumerate(hidden))
    if hidden and (query.is_distinct or query.unions):
        kind = "SELECT DISTINCT" if query.is_distinct else "UNION ALL"
        text = expression_text(hidden[0])
        raise StatementError(f"ORDER BY {text}: rows of {kind} are ordered by columns that it selects", hidden[0].span)
    found = run(replace(query, select=query.select + extra, order_by=(), offset=0, limit=None))
    shown = len(found.columns) - len(hidden)
    rows, places = list(found.rows), iter(range(shown, len(found.columns)))
    order = [_place(i, query, found.columns[:shown]) if _is_shown(i.expression, query) else next(places) for i in query.order_by]
    for item, place in zip(reversed(query.order_by), reversed(order), strict=True):
        check_order(found.columns[place], item)
        rows = sorted_rows(rows, place, item)
    end = len(rows) if query.limit is None else query.offset + query.limit
    cut = tuple(row[:shown] for row in rows[query.offset : end])
    return replace(found, columns=found.columns[:shown], rows=cut, is_limited=len(rows) > end)


def _meant(e: ast.Expression, query: ast.Query) -> ast.Expression:
    """Return `O.ID` for a bare ID that the SELECT takes from one source alone."""
    if isinstance(e, ast.Name) and e.source is None:
        selected = [i.expression for i in query.select if isinstance(i.expression, ast.Name) and i.alias is None]
        same = list(dict.fromkeys(s for s in selected if s.name == e.name))
        if len(same) == 1:
            return replace(same[0], span=e.span)
    return e


def _is_shown(e: ast.Expression, query: ast.Query) -> bool:
    """Tell whether an item names a column of the result; else it is selected besides, and not shown."""
    if isinstance(e, ast.IntegerLiteral):
        return True
    if isinstance(e, ast.Name) and e.source is None:
        is_generated = e.name.startswith(_GENERATED)
        is_united = query.is_distinct or bool(query.unions)
        return is_generated or is_united or any(i.alias == e.name for i in query.select)
    return False


def _place(item: ast.OrderItem, query: ast.Query, columns: Sequence[Column]) -> int:
    e = item.expression
    if isinstance(e, ast.IntegerLiteral):
        if not 1 <= e.value <= len(columns):
            raise StatementError(f"ORDER BY {e.value}: the result has {len(columns)} columns, counted from 1", e.span)
        return e.value - 1
    assert isinstance(e, ast.Name)
    names = [c.name for c in columns]
    if e.name not in names:
        raise StatementError(f"ORDER BY {e.name}: the result has no such column; it has {', '.join(names)}", e.span)
    return names.index(e.name)


def check_order(column: Column, item: ast.OrderItem) -> None:
    """Refuse values that have no order. Raises StatementError."""
    if column.type.kind in (Kind.ARRAY, Kind.MAP, Kind.STRUCT):
        raise StatementError(f"ORDER BY: values of {column.type} have no order; name an element or a field", item.span)


def sorted_rows(rows: list[tuple[Any, ...]], place: int, item: ast.OrderItem) -> list[tuple[Any, ...]]:
    """Sort rows by the values at one place; rows with equal ones stay as they were."""
    nulls = [row for row in rows if row[place] is None]
    others = sorted((row for row in rows if row[place] is not None), key=lambda r: _rank(r[place]), reverse=item.is_descending)
    return nulls + others if item.has_nulls_first else others + nulls


def _rank(value: Any) -> tuple[bool, Any]:
    """Return what orders a value; NaN stands above all numbers."""
    is_nan = isinstance(value, float) and math.isnan(value)
    return is_nan, 0 if is_nan else value
