"""Joins of a stream: with a stream within a window, with a table, with a global table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logflume.log import InvalidInput

from .. import graph as g
from ..expr import Expr
from .joins import joined_columns
from .stream import Function, On, Stream, Within, bind_keys, cast_to
from .windows import milliseconds, signed_milliseconds

if TYPE_CHECKING:
    from .table import GlobalTable, Table

_FIX = "pass name='...'"


def stream_join(
    left: Stream, kind: g.JoinKind, right: Stream, joiner: Function | None, on: On | None, within: Within, prefix: str,
    name: str | None,
) -> Stream:  # fmt: skip
    """Add a join of two streams."""
    before_ms, after_ms = _bounds(within)
    if left.schema.window is not None or right.schema.window is not None:
        raise InvalidInput("a join of streams needs plain keys: select_key(...) on the side that is windowed")
    if not left.schema.key or not right.schema.key:
        raise InvalidInput("a join of streams needs keys: stream(..., key=str), or select_key(...) first")
    stream, names = left.rekeyed_on(on, right.schema.key)
    base = f"{left.base}-{right.base}"
    schema, columns = joined_columns(stream.schema, right.schema, joiner, prefix, names)
    node = g.StreamJoin(
        name=name or left.graph.free(base), schema=schema, kind=g.EdgeKind.STREAM,
        inputs=(stream.node.name, right.node.name), join=kind, columns=columns, before_ms=before_ms, after_ms=after_ms,
        grace_ms=milliseconds(within.grace or 0), store=name or base,
    )  # fmt: skip
    return Stream(left.graph, left.graph.add(node, fix=_FIX), name or base)


def _bounds(within: Within) -> tuple[int, int]:
    """Return how far ahead and behind a partner may be; one of both may be negative."""
    before = within.within if within.before is None else within.before
    after = within.within if within.after is None else within.after
    if before is None or after is None:
        raise InvalidInput("a join of streams needs a time: join(other, ..., within=lf.minutes(5)), or before= and after=")
    before_ms, after_ms = signed_milliseconds(before), signed_milliseconds(after)
    if before_ms + after_ms < 0:
        raise InvalidInput(f"a join's window needs before + after >= 0, found {before_ms} and {after_ms} ms")
    return before_ms, after_ms


def table_join(
    stream: Stream, kind: g.JoinKind, table: Table | GlobalTable, joiner: Function | None, on: On | None, within: Within,
    prefix: str, name: str | None,
) -> Stream:  # fmt: skip
    """Add a join of a stream with a table."""
    from .table import GlobalTable

    if within.within is not None or within.before is not None or within.after is not None:
        raise InvalidInput("within, before and after are for joins of two streams; a table is looked up as it is")
    if kind is g.JoinKind.OUTER:
        raise InvalidInput("a stream and a table join inner or left: a row without a record has no time to join at")
    base = f"{stream.base}-{table.base}"
    key: tuple[tuple[str, Expr], ...] = ()
    if isinstance(table, GlobalTable):
        bound = () if on is None else bind_keys(on if isinstance(on, tuple) else (on,), None, "join(on=...)", stream.scope())
        names = tuple(n for n, _ in bound)
        if bound and len(bound) != len(table.schema.key):
            raise InvalidInput(
                f"join(on=...) names the {len(table.schema.key)} key columns of {table.base!r}, found {len(bound)}"
            )
        key = tuple((n, cast_to(x, c.type)) for (n, x), c in zip(bound, table.schema.key, strict=False))
    else:
        stream, names = stream.rekeyed_on(on, table.schema.key)
    schema, columns = joined_columns(stream.schema, table.schema, joiner, prefix, names)
    grace_ms = None if within.grace is None else milliseconds(within.grace)
    if grace_ms is not None and getattr(table.node, "history_ms", None) is None:
        raise InvalidInput(f"grace needs the rows of earlier times: {table.base!r} has none, give it history=lf.hours(1)")
    node = g.StreamTableJoin(
        name=name or stream.graph.free(base), schema=schema, inputs=(stream.node.name, table.node.name), columns=columns,
        key=key, grace_ms=grace_ms, store=None if grace_ms is None else f"{name or base}-waiting", kind=g.EdgeKind.STREAM,
        join=kind,
    )  # fmt: skip
    return Stream(stream.graph, stream.graph.add(node, fix=_FIX), name or base)
