"""What is told of a table's row that went: of its columns those that are its key, or the bounds of its window."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from logflume.streams.expr import TABLE_PREFIX, ColumnRef, Expr, Meta, Side
from logflume.streams.graph import CalendarWindow, JoinKind, SessionWindow

from . import plan as p


def removed_row(plan: p.QueryPlan) -> Callable[[Any], tuple[Any, ...]]:
    """Return what makes of a watched key the row that went, null for all that only the row knew.

    A session's end is not known: of its window the key that is watched has the start.
    """
    names = [column.name for column in p.key_columns(plan.root)]
    columns = plan.root.columns if isinstance(plan.root, p.Select) else ()
    window = plan.window
    is_bare = window is None and len(names) == 1

    def end(start: int) -> int | None:
        if window is None or isinstance(window, SessionWindow):
            return None
        return window.end_of(start) if isinstance(window, CalendarWindow) else start + window.size_ms

    def value(found: ColumnRef | None, key: tuple[Any, ...]) -> Any:
        if found is None:
            return None
        if found.side is Side.META:
            return key[-1] if found.name == Meta.WINDOWSTART else end(key[-1])
        return key[names.index(found.name)]

    known = [partial(value, _of_key(e, plan.root.input) if isinstance(plan.root, p.Select) else None) for _, e in columns]
    return lambda key: tuple(of((key,) if is_bare else key) for of in known)


def _of_key(e: Expr, operator: p.Operator) -> ColumnRef | None:
    """Return the part of the key, or the bound of its window, that an expression over the rows of an operator always is."""
    if not isinstance(e, ColumnRef):
        return None
    if e.side is Side.KEY:
        return next((ColumnRef(Side.KEY, c.name, c.type) for c in p.key_columns(operator) if c.name == e.name), None)
    if e.side is Side.META:
        return e if e.name in (Meta.WINDOWSTART, Meta.WINDOWEND) else None
    match operator:
        case p.Filter(source, _):
            return _of_key(e, source)
        case p.Select(source, columns, _):
            return _of_key(dict(columns)[e.name], source)
        case p.JoinTables(left, right, kind, columns):
            return _of_joined(dict(columns)[e.name], left, right, kind)
        case p.JoinForeign(left, _, kind, columns):
            return _of_joined(dict(columns)[e.name], left, None, kind)
    return None


def _of_joined(e: Expr, left: p.Operator, right: p.Operator | None, kind: JoinKind) -> ColumnRef | None:
    """Return what a join's column is of the key, which both sides share; `right`: None, its key is another.

    A column of a side that may be missing may be null where the key is not.
    """
    if not isinstance(e, ColumnRef) or kind is JoinKind.OUTER:
        return None
    if not e.name.startswith(TABLE_PREFIX):
        return _of_key(e, left)
    if right is None or kind is not JoinKind.INNER:
        return None
    found = _of_key(ColumnRef(e.side, e.name.removeprefix(TABLE_PREFIX), e.type), right)
    return None if found is None or found.side is not Side.KEY else ColumnRef(Side.KEY, p.key_columns(left)[0].name, found.type)
