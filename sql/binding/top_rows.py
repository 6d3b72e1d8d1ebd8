"""The first rows of each group: ROW_NUMBER() OVER (PARTITION BY ... ORDER BY ... DESC) with QUALIFY, in queries that go on.

The result is a table of the group and the place in it. Each group keeps its first rows only, as TOPK does (rows without a value
to order by are left out), and gives them anew when a row comes; what a place had before is overwritten. What is read is a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from logflume.log.schemas import Column, DataType
from logflume.sql import ast
from logflume.sql import plan as p
from logflume.sql.errors import StatementError
from logflume.sql.format import expression_text
from logflume.sql.tree import walk
from logflume.streams import expr as x

from .expressions import Binder
from .scope import Scope, Visible

ROWS_MAX = 1_000
"""Of a group: all of them are kept in one value, and given anew with each change."""
_TOP, _ROW = "KSQL_TOP", "KSQL_ROW"
_SHAPE = "ROW_NUMBER() OVER (PARTITION BY columns ORDER BY column DESC) AS place ... QUALIFY place <= number"


@dataclass(frozen=True, slots=True)
class TopRows:
    """What such a query says: of each group of `groups` the `count` largest by `order`, numbered as `place`.

    `items`: name and expression of what else is selected; those that are groups among them.
    """

    query: ast.Query
    place: str
    groups: tuple[ast.Expression, ...]
    order: ast.Expression
    count: int
    items: tuple[tuple[str, ast.Expression], ...]

    def kept(self) -> ast.Query:
        """Return the query that keeps the rows of each group: groups as values, then one list."""
        args = (self.order, *(e for _, e in self.others()), ast.IntegerLiteral(self.count))
        if not self.others():
            args = (self.order, *args)
        select = [ast.SelectItem("expr", e, f"{_ROW}_{n}", span=e.span) for n, e in enumerate(self.groups)]
        select.append(ast.SelectItem("expr", ast.Call("TOPK", args, span=self.query.span), _TOP, span=self.query.span))
        return replace(self.query, select=tuple(select), group_by=self.groups, qualify=None)

    def others(self) -> list[tuple[str, ast.Expression]]:
        """Return what is selected beside the groups."""
        return [item for item in self.items if item[1] not in self.groups]


@dataclass(frozen=True, slots=True)
class Followed:
    """The bound rows: their plan, the key (groups, then the place), and their columns."""

    root: p.Operator
    key: tuple[Column, ...]
    columns: tuple[p.NamedExpr, ...]


def top_rows(query: ast.Query) -> TopRows | None:
    """Return what a query says of the first rows of groups; None: it has no functions over rows.

    Raises:
        StatementError: it has others than can be followed.
    """
    overs = [part for e in _expressions(query) for part in walk(e) if isinstance(part, ast.Over)]
    if not overs and query.qualify is None:
        return None
    place = next((i for i in query.select if isinstance(i.expression, ast.Over)), None)
    over = overs[0] if overs else None
    count = None if over is None else _count(query.qualify, over, None if place is None else place.alias)
    is_one = over is not None and all(each == over for each in overs) and over.call.name == "ROW_NUMBER" and not over.call.args
    if over is None or count is None or not is_one or not over.partition_by or len(over.order_by) != 1:
        raise _refused(over, query)
    clauses = (query.group_by, query.partition_by, query.window, query.having)
    has_more = any(clause is not None for clause in clauses) or query.is_distinct or bool(query.unions)
    if not over.order_by[0].is_descending or over.order_by[0].has_nulls_first or has_more or place is None:
        raise _refused(over, query)
    items = [(_name(i), i.expression) for i in query.select if i is not place]
    found = [(name, e) for name, e in items if e is not None and not any(isinstance(n, ast.Over) for n in walk(e))]
    if len(found) < len(items):
        raise _refused(over, query)
    return TopRows(query, place.alias or "ROW_NUMBER", over.partition_by, over.order_by[0].expression, count, tuple(found))


def followed(
    top: TopRows, kept: Sequence[Column], root: p.Operator, binder: Callable[[Scope], Binder], *, sink: str | None
) -> Followed:
    """Return the rows behind `root`, which keeps them (`kept`: its columns). `sink`: what is made of them, None: someone watches.

    Raises:
        StatementError: the sink would be without a part of its key, or without values.
    """
    bound = binder(Scope(tuple(Visible("", c.name, x.ColumnRef(x.Side.VALUE, c.name, c.type)) for c in kept)))
    types = {c.name: c.type for c in kept}
    groups = [x.ColumnRef(x.Side.VALUE, f"{_ROW}_{n}", types[f"{_ROW}_{n}"]) for n in range(len(top.groups))]
    first, last = ast.IntegerLiteral(1), ast.Call("ARRAY_LENGTH", (ast.Name(_TOP),))
    lists = [(top.place, bound.bind(ast.Call("GENERATE_SERIES", (_bigint(first), _bigint(last)))))]
    for n, (name, _) in enumerate(top.others()):
        field = ast.Lambda(("R",), ast.Dereference(ast.Name("R"), f"col{n}"))
        lists.append((name, bound.bind(ast.Call("TRANSFORM", (ast.Name(_TOP), field)))))
    spread = p.Explode(root, (*((g.name, g, False) for g in groups), *((f"{_ROW}:{name}", e, True) for name, e in lists)))
    items = {name: x.ColumnRef(x.Side.VALUE, f"{_ROW}:{name}", _item(e)) for name, e in lists}
    keys = [(_key_name(top, n, sink), g) for n, g in enumerate(groups)]
    keys.append((top.place, items[top.place]))
    if sink is None:
        shown = [(name, groups[top.groups.index(e)] if e in top.groups else items[name]) for name, e in top.items]
        number = next(n for n, i in enumerate(top.query.select) if isinstance(i.expression, ast.Over))
        shown.insert(number, (top.place, items[top.place]))
    else:
        shown = [(name, items[name]) for name, _ in top.others()]
        if not shown:
            raise StatementError("The projection contains no value columns.", top.query.span)
    carried = p.Select(spread, (*((e.name, e) for _, e in keys), *shown), "ROWS")
    keyed = p.Rekey(carried, tuple(keys), "ROWS")
    columns = tuple((name, x.ColumnRef(x.Side.VALUE, name, e.type)) for name, e in shown)
    return Followed(p.Select(keyed, columns), tuple(Column(n, e.type) for n, e in keys), columns)


def _key_name(top: TopRows, number: int, sink: str | None) -> str:
    names = [name for name, e in top.items if e == top.groups[number]]
    if sink is not None and len(names) != 1:
        shown = expression_text(top.groups[number])
        found = "more than once" if names else "not at all"
        raise StatementError(
            f"Key missing from projection (ie, SELECT). `{sink}` has a row for each {shown} and {top.place}: its query must "
            f"select {shown} once, and it does {found}",
            top.groups[number].span,
        )
    return names[0] if names else f"{_ROW}_{number}"


def _item(e: x.Expr) -> DataType:
    assert e.type.element is not None
    return e.type.element


def _bigint(e: ast.Expression) -> ast.Expression:
    return ast.Cast(e, ast.TypeName("BIGINT"))


def _expressions(query: ast.Query) -> list[ast.Expression]:
    found = [item.expression for item in query.select]
    return [e for e in (*found, query.qualify) if e is not None]


def _name(item: ast.SelectItem) -> str:
    if item.expression is None:
        raise StatementError(
            "the first rows of groups have the columns that the SELECT names: name them in place of *", item.span
        )
    if item.alias is not None:
        return item.alias
    if isinstance(item.expression, ast.Name):
        return item.expression.name
    raise StatementError("a column of the first rows of groups needs a name: give it one with AS", item.span)


def _count(qualify: ast.Expression | None, over: ast.Over, place: str | None) -> int | None:
    """Return how many rows of each group QUALIFY keeps; None: it says something else."""
    if not isinstance(qualify, ast.Binary) or not isinstance(qualify.right, ast.IntegerLiteral):
        return None
    if qualify.left != over and qualify.left != ast.Name(place or ""):
        return None
    count = {"<=": qualify.right.value, "<": qualify.right.value - 1, "=": 1 if qualify.right.value == 1 else 0}.get(
        qualify.op, 0
    )
    if count > ROWS_MAX:
        raise StatementError(f"at most the first {ROWS_MAX:,} rows of each group can be followed, found {count:,}", qualify.span)
    return count if count > 0 else None


def _refused(over: ast.Over | None, query: ast.Query) -> StatementError:
    what = "QUALIFY is" if over is None else f"{over.call.name} OVER (...) needs all rows, so it is"
    can = f"a query that goes on can have the first rows of each group alone, as SELECT columns, {_SHAPE}"
    return StatementError(f"{what} for queries that end: {can}", query.clause_span("QUALIFY") if over is None else over.span)
