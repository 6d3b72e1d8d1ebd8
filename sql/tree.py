"""Walking and rewriting of expression trees, whatever their node types."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

from . import ast


@lru_cache(maxsize=128)
def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind) if f.name != "span")


def _kind(e: ast.Expression) -> Any:
    return e.__class__


def children(e: ast.Expression) -> Iterator[ast.Expression]:
    """Yield the direct sub-expressions in order of the text."""
    for name in _field_names(_kind(e)):
        yield from _expressions(getattr(e, name))


def _expressions(value: Any) -> Iterator[Any]:
    if isinstance(value, ast.When):
        yield value.condition
        yield value.result
    elif isinstance(value, ast.Node) and not isinstance(value, ast.TypeName):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _expressions(item)


def walk(e: ast.Expression) -> Iterator[ast.Expression]:
    """Yield the expression and all below it, outermost first."""
    yield e
    for child in children(e):
        yield from walk(child)


def names_in(e: ast.Expression) -> Iterator[ast.Name]:
    """Yield the columns that an expression names."""
    return (each for each in walk(e) if isinstance(each, ast.Name))


def free_names(e: ast.Expression, bound: frozenset[str] = frozenset()) -> Iterator[ast.Name]:
    """Yield the names in an expression that no lambda around them binds."""
    if isinstance(e, ast.Name):
        if e.source is not None or e.name not in bound:
            yield e
        return
    if isinstance(e, ast.Lambda):
        bound |= set(e.params)
    for child in children(e):
        yield from free_names(child, bound)


def source_names(query: ast.Query) -> Iterator[str]:
    """Yield the streams and tables that a query reads, those of queries within it too."""
    for ref in (query.source, *(join.source for join in query.joins)):
        if ref.query is None:
            yield ref.name
        else:
            yield from source_names(ref.query)
    for part in query.unions:
        yield from source_names(part)


def rewrite(e: ast.Expression, change: Callable[[ast.Expression], ast.Expression | None]) -> ast.Expression:
    """Return the tree with every node replaced for which `change` gives one; what it gives is not looked into again."""
    changed = change(e)
    if changed is not None:
        return changed
    updates: dict[str, Any] = {}
    for name in _field_names(_kind(e)):
        old = getattr(e, name)
        new = _rewritten(old, change)
        if new is not old:
            updates[name] = new
    return replace(e, **updates) if updates else e


def _rewritten(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, ast.When):
        condition, result = rewrite(value.condition, change), rewrite(value.result, change)
        is_same = condition is value.condition and result is value.result
        return value if is_same else replace(value, condition=condition, result=result)
    if isinstance(value, ast.Node) and not isinstance(value, ast.TypeName):
        return rewrite(value, change)  # type: ignore[arg-type]
    if isinstance(value, tuple):
        items = tuple(_rewritten(item, change) for item in value)
        return value if all(a is b for a, b in zip(items, value, strict=True)) else items
    return value


def split_disjuncts(e: ast.Expression) -> list[ast.Expression]:
    """Return the operands of a chain of ORs."""
    if isinstance(e, ast.Binary) and e.op == "OR":
        return split_disjuncts(e.left) + split_disjuncts(e.right)
    return [e]


def split_conjuncts(e: ast.Expression) -> list[ast.Expression]:
    """Return the operands of a chain of ANDs.

    >>> from logflume.sql.parser import parse_expression
    >>> len(split_conjuncts(parse_expression("a = 1 AND (b = 2 AND c = 3)")))
    3
    """
    if isinstance(e, ast.Binary) and e.op == "AND":
        return split_conjuncts(e.left) + split_conjuncts(e.right)
    return [e]
