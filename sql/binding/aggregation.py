"""GROUP BY: finds the aggregate calls of a query, binds their arguments, and says what is a key and what a result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from logflume.log.schemas import ANY, DataType, Kind
from logflume.sql import ast
from logflume.sql.errors import StatementError
from logflume.sql.format import expression_text
from logflume.sql.functions import choose_overload
from logflume.sql.tree import children, walk
from logflume.streams import expr as x
from logflume.streams.functions import AggregateOverload, Library, as_decimal, count_distinct, fill, is_numeric
from logflume.streams.graph import Aggregation

from .coercion import implicit_cast
from .expressions import Binder
from .scope import WINDOW_COLUMNS, Scope


@dataclass(frozen=True, slots=True)
class BoundAggregate:
    """An aggregate call with its arguments over the input, and the column that holds its result."""

    call: ast.Call
    aggregation: Aggregation
    has_undo: bool

    @property
    def column(self) -> x.ColumnRef:
        return x.ColumnRef(x.Side.VALUE, self.aggregation.name, self.aggregation.aggregator.type)


def is_aggregate(e: ast.Expression, library: Library) -> bool:
    return isinstance(e, ast.Call) and e.name in library.aggregates


def has_aggregate(e: ast.Expression, library: Library) -> bool:
    """Tell whether an aggregate call is anywhere in an expression."""
    return any(is_aggregate(part, library) for part in walk(e))


def aggregate_calls(expressions: Sequence[ast.Expression], library: Library) -> list[ast.Call]:
    """Return the distinct aggregate calls in order of appearance. Raises StatementError for nested ones."""
    found: dict[ast.Call, None] = {}
    for e in expressions:
        for part in walk(e):
            if not isinstance(part, ast.Call) or not is_aggregate(part, library):
                continue
            inner = [n.name for c in children(part) for n in walk(c) if isinstance(n, ast.Call) and is_aggregate(n, library)]
            if inner:
                raise StatementError(f"Aggregate functions can not be nested: {part.name}({inner[0]}())", part.span)
            found.setdefault(part)
    return list(found)


def refuse_bounds(e: ast.Expression, scope: Scope) -> None:
    """Refuse the bounds of the window that groups where only SELECT may name them."""
    for part in walk(e):
        if isinstance(part, ast.Name) and part.name in WINDOW_COLUMNS and scope.find(part) is None:
            raise StatementError(
                f"Window bounds column {part.name} can only be used in the SELECT clause of windowed aggregations and can not be "
                "passed to aggregate functions.\nSee https://github.com/confluentinc/ksql/issues/4397",
                part.span,
            )


def bind_aggregate(call: ast.Call, index: int, binder: Binder, properties: Mapping[str, str]) -> BoundAggregate:
    """Bind one call over the columns of the aggregation's input. `properties`: limits that the session sets."""
    overloads = binder.functions.aggregates[call.name].overloads
    bound = [binder.bind(a) for a in call.args]
    if call.is_distinct:
        return _distinct(call, index, bound)
    chosen, arg_types = _choose(call, overloads, bound)
    split = _columns_of(chosen, len(bound))
    constants = [_constant(call, n, bound[n], binder.scope) for n in range(split, len(bound))]
    limit = properties.get(chosen.limit_property or "")
    if limit is not None:
        constants.append(_limit(chosen, limit, call))
    args = tuple(implicit_cast(b, t) if t.kind is not Kind.ANY else b for b, t in zip(bound[:split], arg_types, strict=True))
    try:
        aggregator = chosen.make([a.type for a in args], constants)
    except ValueError as e:
        raise StatementError(f"Invalid arguments of {call.name}: {e}", call.span) from None
    return BoundAggregate(call, Aggregation(f"KSQL_AGG_VARIABLE_{index}", aggregator, args), chosen.has_undo)


def _distinct(call: ast.Call, index: int, bound: Sequence[x.Expr]) -> BoundAggregate:
    if call.name != "COUNT":
        raise StatementError(f"DISTINCT is for COUNT(DISTINCT ...), found {call.name}; COLLECT_SET gives the values", call.span)
    return BoundAggregate(call, Aggregation(f"KSQL_AGG_VARIABLE_{index}", count_distinct(), tuple(bound)), True)


def _choose(
    call: ast.Call, overloads: Sequence[AggregateOverload], bound: Sequence[x.Expr]
) -> tuple[AggregateOverload, list[DataType]]:
    types = [b.type for b in bound]
    index, variables = choose_overload(call.name, [o.signature for o in overloads], types)
    chosen = overloads[index]
    patterns = chosen.signature.expand(len(bound))
    assert patterns is not None
    count = _columns_of(chosen, len(bound))
    wanted: list[DataType] = []
    for pattern, type in zip(patterns[:count], types[:count], strict=True):
        if pattern.kind == "decimal" and is_numeric(type):
            wanted.append(as_decimal(type))
        else:
            wanted.append(type if pattern.kind in ("any", "struct") else fill(pattern, variables, [type]))
    return chosen, wanted


def _columns_of(overload: AggregateOverload, count: int) -> int:
    """Return how many of `count` arguments are values, not constants."""
    return count - overload.constants if overload.constants >= 0 else -overload.constants


def _limit(overload: AggregateOverload, text: str, call: ast.Call) -> int:
    if not text.strip().isdigit():
        raise StatementError(f"{overload.limit_property} must be a whole number, found {text!r}", call.span)
    return int(text)


def _constant(call: ast.Call, index: int, bound: x.Expr, scope: Scope) -> object:
    if not isinstance(bound, x.Literal) or bound.type == ANY:
        e = call.args[index]
        raise StatementError(
            f"Parameter {index + 1} passed to function {call.name} must be a literal constant, "
            f"but was expression: '{expression_text(scope.shown(e))}'",
            e.span,
        )
    value: object = bound.value
    return value
