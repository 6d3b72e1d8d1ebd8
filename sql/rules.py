"""Rewrite rules of logical plans: each a function from plan to plan with a before and an after. `optimize` runs them to the end.

A rule must not change what a query gives, nor when records are dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from logflume.streams import expr as x

from . import plan as p

Rule = Callable[[p.Operator], p.Operator]

# Rules run until nothing changes; each application removes something, so this is far beyond any plan.
_ROUNDS_MAX = 50


def merge_filters(operator: p.Operator) -> p.Operator:
    """Two filters in a row are one.

    before: Filter b (Filter a (in))        after: Filter (a AND b) (in)
    """
    if isinstance(operator, p.Filter) and isinstance(operator.input, p.Filter):
        inner = operator.input
        both = x.Binary(x.BinaryOp.AND, inner.predicate, operator.predicate, inner.predicate.type)
        return p.Filter(inner.input, both, inner.name)
    return operator


def push_filter_below_join(operator: p.Operator) -> p.Operator:
    """A filter on the stream's columns alone runs before the lookup.

    before: Filter f(stream) (Join s t)        after: Join (Filter f s) t
    """
    if not isinstance(operator, p.Filter) or not isinstance(operator.input, p.JoinTable):
        return operator
    join = operator.input
    sources = dict(join.columns)
    if any(not isinstance(c, x.ColumnRef) or _is_of_table(sources.get(c.name)) for c in column_refs(operator.predicate)):
        return operator
    return replace(join, stream=p.Filter(join.stream, substitute(operator.predicate, sources), operator.name))


def narrow_join(operator: p.Operator) -> p.Operator:
    """A projection over a join makes the join give only what is read.

    before: Select a (Join a, b, c)        after: Select a (Join a)
    """
    if not isinstance(operator, p.Select) or not isinstance(operator.input, _Join):
        return operator
    join = operator.input
    read = {c.name for _, e in operator.columns for c in column_refs(e) if c.side is x.Side.VALUE}
    kept = tuple(column for column in join.columns if column[0] in read) or join.columns[:1]
    return operator if len(kept) == len(join.columns) else replace(operator, input=replace(join, columns=kept))


def narrow_sides(operator: p.Operator) -> p.Operator:
    """A join makes its sides give only what it reads.

    before: Join a (Select a, b) (Select c)        after: Join a (Select a) (Select c)
    """
    if not isinstance(operator, p.JoinStreams | p.JoinTables | p.JoinForeign):
        return operator
    read = {c.name for _, e in operator.columns for c in column_refs(e)}
    if isinstance(operator, p.JoinForeign):
        read |= {c.name for c in column_refs(operator.key)}
    left = _narrowed(operator.left, read)
    right = _narrowed(operator.right, {name.removeprefix("TABLE:") for name in read if name.startswith("TABLE:")})
    return operator if (left, right) == (operator.left, operator.right) else replace(operator, left=left, right=right)


def narrow_select(operator: p.Operator) -> p.Operator:
    """A projection over a changed key makes the one before it give only what is read.

    before: Select a (Rekey k (Select a, b, k))        after: Select a (Rekey k (Select a, k))
    """
    if not isinstance(operator, p.Select) or not isinstance(operator.input, p.Rekey):
        return operator
    rekey = operator.input
    read = {c.name for _, e in (*operator.columns, *rekey.keys) for c in column_refs(e) if c.side is x.Side.VALUE}
    inner = _narrowed(rekey.input, read)
    return operator if inner == rekey.input else replace(operator, input=replace(rekey, input=inner))


def _narrowed(operator: p.Operator, read: set[str]) -> p.Operator:
    """Return an operator that is a projection with only the columns that are read, one at least: a row has a value."""
    if not isinstance(operator, p.Select):
        return operator
    kept = tuple(column for column in operator.columns if column[0] in read) or operator.columns[:1]
    return operator if len(kept) == len(operator.columns) else replace(operator, columns=kept)


_Join = p.JoinTable | p.JoinStreams | p.JoinTables | p.JoinForeign

RULES: tuple[Rule, ...] = (merge_filters, push_filter_below_join, narrow_join, narrow_sides, narrow_select)


def optimize(root: p.Operator) -> p.Operator:
    """Apply all rules everywhere until nothing changes."""
    for _ in range(_ROUNDS_MAX):
        changed = _everywhere(root)
        if changed == root:
            return root
        root = changed
    raise AssertionError("rewrite rules do not come to an end")


def _everywhere(operator: p.Operator) -> p.Operator:
    match operator:
        case p.Scan():
            rebuilt: p.Operator = operator
        case p.Union(parts):
            rebuilt = p.Union(tuple(map(_everywhere, parts)))
        case p.JoinStreams(left, right) | p.JoinTables(left, right) | p.JoinForeign(left, right):
            rebuilt = replace(operator, left=_everywhere(left), right=_everywhere(right))
        case p.JoinTable(stream, table):
            rebuilt = replace(operator, stream=_everywhere(stream), table=_everywhere(table))
        case _:
            rebuilt = replace(operator, input=_everywhere(operator.input))
    for rule in RULES:
        rebuilt = rule(rebuilt)
    return rebuilt


# ------------------------------------------------------------------------------------------------ expressions


def _is_of_table(e: x.Expr | None) -> bool:
    return e is None or any(c.name.startswith("TABLE:") for c in column_refs(e))


def column_refs(e: x.Expr | x.Lambda) -> list[x.ColumnRef]:
    """Return the columns that an expression reads."""
    if isinstance(e, x.ColumnRef):
        return [e]
    return [c for child in _parts(e) for c in column_refs(child)]


def _parts(e: x.Expr | x.Lambda) -> list[x.Expr | x.Lambda]:
    match e:
        case x.Unary(_, operand) | x.Cast(operand) | x.FieldAccess(operand):
            return [operand]
        case x.Binary(_, left, right) | x.Index(left, right):
            return [left, right]
        case x.Call(_, args) | x.PyCall(_, args) | x.MakeArray(args):
            return list(args)
        case x.Case(branches, default):
            return [*(part for branch in branches for part in branch), default]
        case x.MakeMap(entries):
            return [part for entry in entries for part in entry]
        case x.MakeStruct(fields):
            return [part for _, part in fields]
        case x.Lambda(_, body):
            return [body]
    return []


def substitute(e: x.Expr, columns: dict[str, x.Expr]) -> x.Expr:
    """Return an expression with value columns replaced by what they stand for."""
    return _substituted(e, columns)  # type: ignore[return-value]


def _substituted(e: x.Expr | x.Lambda, columns: dict[str, x.Expr]) -> x.Expr | x.Lambda:
    def sub(child: x.Expr) -> x.Expr:
        return substitute(child, columns)

    match e:
        case x.ColumnRef(side, name):
            return columns.get(name, e) if side is x.Side.VALUE else e
        case x.Unary(_, operand) | x.Cast(operand) | x.FieldAccess(operand):
            return replace(e, operand=sub(operand))
        case x.Binary(_, left, right):
            return replace(e, left=sub(left), right=sub(right))
        case x.Index(operand, index):
            return replace(e, operand=sub(operand), index=sub(index))
        case x.Call(_, args):
            return replace(e, args=tuple(_substituted(a, columns) for a in args))
        case x.PyCall(_, args):
            return replace(e, args=tuple(sub(a) for a in args))
        case x.MakeArray(items):
            return replace(e, items=tuple(sub(i) for i in items))
        case x.MakeMap(entries):
            return replace(e, items=tuple((sub(k), sub(v)) for k, v in entries))
        case x.MakeStruct(fields):
            return replace(e, items=tuple((n, sub(v)) for n, v in fields))
        case x.Case(branches, default):
            return replace(e, branches=tuple((sub(c), sub(r)) for c, r in branches), default=sub(default))
        case x.Lambda(_, body):
            return replace(e, body=sub(body))
    return e
