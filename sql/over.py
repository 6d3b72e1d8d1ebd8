"""Functions over rows of the result, `f(...) OVER (PARTITION BY ... ORDER BY ...)`, and QUALIFY, which keeps rows by them.

For queries that end. The query runs without them first, with all that they read as columns that are not shown; then each function
goes through the rows of each partition in order. An aggregate with ORDER BY is of the rows up to this one and those that stand
beside it, without of all rows of the partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from logflume.log import near_matches
from logflume.log.schemas import BIGINT, Column, DataType
from logflume.streams import expr as x

from . import ast
from .binding.aggregation import bind_aggregate, is_aggregate
from .binding.context import Context
from .binding.expressions import Binder
from .binding.scope import Scope, Visible
from .errors import StatementError
from .evaluate import evaluate
from .format import expression_text
from .ordering import check_order, sorted_rows
from .results import Rows
from .tree import rewrite, walk

_HIDDEN, _RESULT = "KSQL_OVER_ARG_", "KSQL_OVER_"
_NUMBERING = ("ROW_NUMBER", "RANK", "DENSE_RANK")
_NEIGHBOURS = ("LAG", "LEAD")
_ENDS = ("FIRST_VALUE", "LAST_VALUE")
KNOWN = (*_NUMBERING, *_NEIGHBOURS, *_ENDS)
_Row = tuple[Any, ...]


def has_over(query: ast.Query) -> bool:
    """Tell whether a query has such functions, or QUALIFY."""
    return query.qualify is not None or any(i.expression is not None and _overs(i.expression) for i in query.select)


def _overs(e: ast.Expression) -> list[ast.Over]:
    return [part for part in walk(e) if isinstance(part, ast.Over)]


def run_over(query: ast.Query, context: Context, run: Callable[[ast.Query], Rows]) -> Rows:
    """Run a query without its functions over rows, then do what they say.

    Raises:
        StatementError: a function that is none of these, or one where it cannot be.
    """
    if query.is_distinct or query.unions:
        kind = "SELECT DISTINCT" if query.is_distinct else "UNION ALL"
        raise StatementError(f"functions OVER rows do not go with {kind}", query.span)
    plan = _Plan(context)
    items = [plan.item(item, n) for n, item in enumerate(query.select)]
    keeps = None if query.qualify is None else plan.lifted(query.qualify)
    hidden = tuple(ast.SelectItem("expr", e, name, span=e.span) for e, name in plan.hidden.items())
    plain = replace(query, select=(*items, *hidden), qualify=None, limit=None, offset=0)
    found = run(plain)
    return _finished(query, plan, keeps, found)


@dataclass(slots=True)
class _Plan:
    """What is computed of the rows.

    `hidden`: what functions and conditions read; `results`: the functions, by column; `shown`: items of the SELECT that are made
    of them, by name.
    """

    context: Context
    hidden: dict[ast.Expression, str] = field(default_factory=dict)
    results: dict[ast.Over, str] = field(default_factory=dict)
    shown: dict[str, ast.Expression] = field(default_factory=dict)

    def item(self, item: ast.SelectItem, number: int) -> ast.SelectItem:
        """Return an item of the SELECT, a literal in place of what is computed later."""
        e = item.expression
        if e is None or not _overs(e):
            return item
        name = item.alias or f"KSQL_COL_{number}"
        self.shown[name] = self.lifted(e)
        return replace(item, expression=ast.IntegerLiteral(0, span=e.span), alias=name)

    def lifted(self, e: ast.Expression) -> ast.Expression:
        """Return an expression over hidden columns and results."""

        def change(node: ast.Expression) -> ast.Expression | None:
            if isinstance(node, ast.Over):
                return ast.Name(self._result(node), span=node.span)
            if isinstance(node, ast.Name) and node.source is None and node.name in self.shown:
                return self.shown[node.name]
            if isinstance(node, ast.Name) or is_aggregate(node, self.context.functions):
                return ast.Name(self._column(node), span=node.span)
            return None

        return rewrite(e, change)

    def _result(self, over: ast.Over) -> str:
        if over.call.is_distinct:
            raise StatementError(f"DISTINCT does not go with OVER: {expression_text(over)}", over.span)
        name = over.call.name
        if name not in KNOWN and not is_aggregate(over.call, self.context.functions):
            near = near_matches(name, [*KNOWN, *self.context.functions.aggregates])
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            raise StatementError(
                f"{name} is not a function over rows; those are {', '.join(KNOWN)} and aggregates.{hint}", over.span
            )
        if not over.order_by and name in KNOWN:
            raise StatementError(f"{name} needs an order: OVER (ORDER BY ...)", over.span)
        inner = [*over.partition_by, *(item.expression for item in over.order_by), *over.call.args]
        for e in inner:
            nested = _overs(e)
            if nested:
                raise StatementError(f"functions OVER rows can not be nested: {expression_text(over)}", nested[0].span)
            if not isinstance(e, ast.IntegerLiteral | ast.StringLiteral | ast.DecimalLiteral | ast.NullLiteral):
                self._column(e)
        return self.results.setdefault(over, f"{_RESULT}{len(self.results)}")

    def _column(self, e: ast.Expression) -> str:
        return self.hidden.setdefault(e, f"{_HIDDEN}{len(self.hidden)}")

    def column_of(self, e: ast.Expression) -> ast.Expression:
        """Return where an argument stands: a hidden column, or a literal itself."""
        name = self.hidden.get(e)
        return e if name is None else ast.Name(name, span=e.span)


def _finished(query: ast.Query, plan: _Plan, keeps: ast.Expression | None, found: Rows) -> Rows:
    columns, rows = list(found.columns), list(found.rows)
    shown = len(columns) - len(plan.hidden)
    for over, name in plan.results.items():
        type, values = _Function(plan, over, columns, rows).results()
        columns.append(Column(name, type))
        rows = [(*row, value) for row, value in zip(rows, values, strict=True)]
    scope = _scope(columns)
    if keeps is not None:
        condition = _binder(plan, scope, "QUALIFY").condition(keeps)
        rows = [row for row in rows if _value(condition, columns, row) is True]
    places = {c.name: n for n, c in enumerate(columns[:shown])}
    for name, e in plan.shown.items():
        bound = _binder(plan, scope, "SELECT").bind(e)
        place = places[name]
        rows = [(*row[:place], _value(bound, columns, row), *row[place + 1 :]) for row in rows]
        columns[place] = Column(name, bound.type)
    end = len(rows) if query.limit is None else query.offset + query.limit
    cut = tuple(row[:shown] for row in rows[query.offset : end])
    return replace(found, columns=tuple(columns[:shown]), rows=cut, is_limited=len(rows) > end)


def _scope(columns: Sequence[Column]) -> Scope:
    """Return the scope of what is computed: hidden columns and results, which no user names."""
    own = [c for c in columns if c.name.startswith(_RESULT)]
    return Scope(tuple(Visible("", c.name, x.ColumnRef(x.Side.VALUE, c.name, c.type)) for c in own))


def _binder(plan: _Plan, scope: Scope, clause: str) -> Binder:
    context = plan.context
    return Binder(scope, context.functions, context.catalog.types, clause, fixed_now_ms=context.fixed_now_ms)


def _value(e: x.Expr, columns: Sequence[Column], row: _Row) -> Any:
    """Evaluate over a row; null for what fails, as everywhere in a SELECT."""
    try:
        return evaluate(e, {(x.Side.VALUE, c.name): value for c, value in zip(columns, row, strict=False)})
    except (ArithmeticError, ValueError, TypeError, LookupError):
        return None


class _Function:
    """One function over the rows of a result."""

    def __init__(self, plan: _Plan, over: ast.Over, columns: Sequence[Column], rows: Sequence[_Row]) -> None:
        self._plan, self._over, self._columns, self._rows = plan, over, columns, rows
        self._places = {c.name: n for n, c in enumerate(columns)}
        self._order = [self._place(item.expression) for item in over.order_by]
        for item, place in zip(over.order_by, self._order, strict=True):
            check_order(columns[place], item)

    def results(self) -> tuple[DataType, list[Any]]:
        """Return the type of its results, and one for each row."""
        name = self._over.call.name
        values: list[Any] = [None] * len(self._rows)
        type, compute = self._numbering() if name in _NUMBERING else self._of_arguments()
        for numbers in self._partitions():
            for number, value in zip(numbers, compute(numbers), strict=True):
                values[number] = value
        return type, values

    def _partitions(self) -> Iterator[list[int]]:
        """Yield the numbers of the rows of each partition in order."""
        groups: dict[Any, list[int]] = {}
        places = [self._place(e) for e in self._over.partition_by]
        for number, row in enumerate(self._rows):
            key = tuple(repr(row[p]) if isinstance(row[p], list | dict) else row[p] for p in places)
            groups.setdefault(key, []).append(number)
        for numbers in groups.values():
            keyed = [(*self._order_key(number), number) for number in numbers]
            for place, item in reversed(list(enumerate(self._over.order_by))):
                keyed = sorted_rows(keyed, place, item)
            yield [row[-1] for row in keyed]

    def _order_key(self, number: int) -> _Row:
        return tuple(self._rows[number][place] for place in self._order)

    def _place(self, e: ast.Expression) -> int:
        column = self._plan.column_of(e)
        if not isinstance(column, ast.Name):
            raise StatementError(f"expected a column or an expression over columns, found {expression_text(e)}", e.span)
        return self._places[column.name]

    def _peers(self, numbers: Sequence[int]) -> Iterator[list[int]]:
        """Yield the rows that stand side by side in the order; without an order all of them."""
        run: list[int] = []
        for number in numbers:
            if run and self._order_key(run[-1]) != self._order_key(number):
                yield run
                run = []
            run.append(number)
        if run:
            yield run

    def _numbering(self) -> tuple[DataType, Callable[[Sequence[int]], Iterable[Any]]]:
        name = self._over.call.name
        if self._over.call.args:
            raise StatementError(f"{name}() has no arguments", self._over.span)

        def numbered(numbers: Sequence[int]) -> Iterator[int]:
            done = 0
            for rank, run in enumerate(self._peers(numbers), start=1):
                for n in range(len(run)):
                    yield {"ROW_NUMBER": done + n + 1, "RANK": done + 1, "DENSE_RANK": rank}[name]
                done += len(run)

        return BIGINT, numbered

    def _of_arguments(self) -> tuple[DataType, Callable[[Sequence[int]], Iterable[Any]]]:
        name = self._over.call.name
        if name in _NEIGHBOURS:
            return self._neighbour(-1 if name == "LAG" else 1)
        if name in _ENDS:
            return self._end(is_first=name == "FIRST_VALUE")
        return self._aggregate()

    def _neighbour(self, direction: int) -> tuple[DataType, Callable[[Sequence[int]], Iterable[Any]]]:
        args = self._over.call.args
        shape = f"{self._over.call.name}(value[, rows[, otherwise]])"
        if not 1 <= len(args) <= 3 or (len(args) > 1 and not isinstance(args[1], ast.IntegerLiteral)):
            raise StatementError(f"expected {shape} with a whole number of rows", self._over.span)
        distance = args[1].value if len(args) > 1 and isinstance(args[1], ast.IntegerLiteral) else 1
        if distance < 0:
            raise StatementError(f"{shape}: rows are counted from 0, found {distance}", self._over.span)
        place = self._place(args[0])
        otherwise = self._constant(args[2]) if len(args) > 2 else None

        def moved(numbers: Sequence[int]) -> Iterator[Any]:
            for n in range(len(numbers)):
                there = n + direction * distance
                yield self._rows[numbers[there]][place] if 0 <= there < len(numbers) else otherwise

        return self._columns[place].type, moved

    def _constant(self, e: ast.Expression) -> Any:
        bound = _binder(self._plan, Scope(()), "SELECT").bind(e)
        return evaluate(bound, {})

    def _end(self, *, is_first: bool) -> tuple[DataType, Callable[[Sequence[int]], Iterable[Any]]]:
        if len(self._over.call.args) != 1:
            raise StatementError(f"expected {self._over.call.name}(value)", self._over.span)
        place = self._place(self._over.call.args[0])

        def ends(numbers: Sequence[int]) -> Iterator[Any]:
            for run in self._peers(numbers):
                yield from [self._rows[numbers[0] if is_first else run[-1]][place]] * len(run)

        return self._columns[place].type, ends

    def _aggregate(self) -> tuple[DataType, Callable[[Sequence[int]], Iterable[Any]]]:
        call = self._over.call
        args = tuple(self._plan.column_of(a) for a in call.args)
        binder = _binder(self._plan, _scope(self._columns), "SELECT")
        bound = bind_aggregate(replace(call, args=args), 0, binder, self._plan.context.properties).aggregation
        aggregator = bound.aggregator

        def folded(numbers: Sequence[int]) -> Iterator[Any]:
            state = aggregator.initial
            for run in self._peers(numbers):
                for number in run:
                    values = [_value(a, self._columns, self._rows[number]) for a in bound.args]
                    if not (aggregator.skips_null and None in values):
                        state = aggregator.add(state, *values)
                yield from [aggregator.result(state)] * len(run)

        return aggregator.type, folded
