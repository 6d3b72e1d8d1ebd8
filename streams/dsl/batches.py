"""Functions over many records at once, and coroutines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from logflume.log import InvalidInput, UnknownName
from logflume.log.schemas import ANY, Column, is_object_class

from .. import graph as g
from .callables import expect_arguments, returned_type
from .calling import Function
from .schemas import column_type, value_schema
from .stream import Stream
from .windows import Duration, milliseconds

_FIX = "pass name='...'"


class Calls(NamedTuple):
    """How coroutines are called, as their caller said it."""

    limit: int
    ordered: bool
    retries: int
    pause: Duration
    timeout: Duration | None
    rows_max: int


def map_batches(stream: Stream, function: Function, returns: Any, form: str, rows_max: int, name: str | None) -> Stream:
    """Add a function over batches."""
    expect_arguments(function, (1,), 1, "map_batches()")
    forms = [str(known) for known in g.BatchForm]
    if form not in forms:
        raise UnknownName("form of batches", str(form), forms)
    untyped = [column.name for column in stream.schema.value if column.type == ANY]
    if untyped:
        raise InvalidInput(
            f"map_batches() needs columns of known types, {untyped[0]!r} has none: give the source a class, or "
            "select(x=lf.col.x.cast(float))"
        )
    schema = _returned(stream.schema, returns)
    if any(column.type == ANY for column in schema.value):
        raise InvalidInput(f"map_batches(returns=...) needs columns of known types, found {returns!r}")
    node = g.MapBatches(
        name=name or stream.graph.free(f"{stream.node.name}-batches"), schema=schema, kind=g.EdgeKind.STREAM,
        inputs=(stream.node.name,), function=function, form=g.BatchForm(form), rows_max=_at_least(rows_max, 1, "rows_max"),
    )  # fmt: skip
    return Stream(stream.graph, stream.graph.add(node, fix=_FIX), name or stream.base)


def _returned(schema: g.Schema, returns: Any) -> g.Schema:
    if returns is None:
        return schema
    if isinstance(returns, dict) and returns:
        columns = tuple(Column(column, column_type(type)) for column, type in returns.items())
        return replace(schema, value=columns, value_class=None)
    if is_object_class(returns):
        columns, value_class = value_schema(returns)
        return replace(schema, value=columns, value_class=value_class)
    raise InvalidInput(f"map_batches(returns=...) takes a class with typed fields or names and types, found {returns!r}")


def map_async(stream: Stream, function: Function, calls: Calls, name: str | None) -> Stream:
    """Add a coroutine function."""
    count = expect_arguments(function, (1, 2), 1, "map_async()")
    returned = returned_type(function)
    value_class = returned if calls.rows_max == 1 and is_object_class(returned) else None
    schema = replace(stream.schema, value=(Column("value", ANY),), value_class=value_class)
    node = g.MapAsync(
        name=name or stream.graph.free(f"{stream.node.name}-async"), schema=schema, kind=g.EdgeKind.STREAM,
        inputs=(stream.node.name,), function=function, takes_key=count == 2, is_ordered=bool(calls.ordered),
        rows_max=_at_least(calls.rows_max, 1, "rows_max"), limit=_at_least(calls.limit, 1, "limit"),
        retries=_at_least(calls.retries, 0, "retries"), pause_ms=milliseconds(calls.pause),
        timeout_ms=None if calls.timeout is None else milliseconds(calls.timeout),
    )  # fmt: skip
    return Stream(stream.graph, stream.graph.add(node, fix=_FIX), name or stream.base)


def _at_least(value: Any, least: int, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidInput(f"{name}= is a whole number of at least {least}, found {value!r}")
    return value
