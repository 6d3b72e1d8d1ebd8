"""Plain functions over whole records, as expressions and as nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from logflume.log import InvalidInput
from logflume.log.schemas import ANY, BOOLEAN

from .. import graph as g
from ..expr import WHOLE, ColumnRef, Expr, PyCall, Side
from .binding import Scope, bind
from .callables import expect_arguments
from .fields import Value
from .naming import Graph

Function = Callable[..., Any]


def call(function: Function, what: str, *, type: Any = ANY, contract: Callable[[Function], Function] | None = None) -> PyCall:
    """Return a call of `function(value)` or `function(key, value)`; `contract` checks what it returns."""
    takes_key = expect_arguments(function, (1, 2), 1, what) == 2
    whole = ColumnRef(Side.VALUE, WHOLE, ANY)
    function = function if contract is None else contract(function)
    return PyCall(function, (ColumnRef(Side.KEY, WHOLE, ANY), whole) if takes_key else (whole,), type)


def condition(predicate: Value | Function, scope: Scope, what: str) -> Expr:
    """Return a condition as a tree."""
    if not isinstance(predicate, Value):
        return call(predicate, what, type=BOOLEAN)
    expr = bind(predicate, scope)
    if expr.type not in (BOOLEAN, ANY):
        raise InvalidInput(f"{what}: `{predicate!r}` is {expr.type}, expected a condition (BOOLEAN)")
    return expr


def foreach_node(graph: Graph, node: g.Node, function: Function, what: str) -> g.Foreach:
    """Return a node that calls a function, whatever arguments it takes."""
    count = expect_arguments(function, (1, 2, 3), 2, what)
    name = graph.free(f"{node.name}-{what.removesuffix('()')}")
    return g.Foreach(name=name, schema=node.schema, kind=node.kind, inputs=(node.name,), function=_ADAPT[count](function))


@dataclass(frozen=True, slots=True)
class OfValue:
    """Calls `function(value)`."""

    function: Function

    def __call__(self, key: Any, value: Any, timestamp_ms: int) -> None:
        self.function(value)


@dataclass(frozen=True, slots=True)
class OfKeyValue:
    """Calls `function(key, value)`."""

    function: Function

    def __call__(self, key: Any, value: Any, timestamp_ms: int) -> None:
        self.function(key, value)


_ADAPT: dict[int, Callable[[Function], Function]] = {1: OfValue, 2: OfKeyValue, 3: lambda function: function}
