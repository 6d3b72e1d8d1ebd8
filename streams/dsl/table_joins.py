"""Joins of tables: by key, and by a foreign key."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from logflume.log import InvalidInput
from logflume.log.schemas import Column

from .. import graph as g
from ..planner import key_format_of
from ..windows import joined_window
from .joins import joined_columns
from .stream import Function, On, bind_keys, cast_to

if TYPE_CHECKING:
    from .table import Table

_FIX = "pass name='...'"


def table_join(
    left: Table, kind: g.JoinKind, right: Table, joiner: Function | None, prefix: str, store: str | None, name: str | None
) -> Table:
    """Add a join of two tables by their key."""
    from .table import Table

    try:
        window = joined_window(left.schema.window, right.schema.window)
    except ValueError as error:
        windows = f"({left.schema.window}, {right.schema.window})"
        raise InvalidInput(f"{left.base!r} and {right.base!r} have different windows {windows}: {error}") from error
    base = f"{left.base}-{right.base}"
    schema, columns = joined_columns(left.schema, right.schema, joiner, prefix, ())
    node = g.TableJoin(
        name=store or name or left.graph.free(base), schema=replace(schema, window=window), kind=g.EdgeKind.TABLE,
        inputs=(left.node.name, right.node.name), join=kind, columns=columns, store=store,
    )  # fmt: skip
    return Table(left.graph, left.graph.add(node, fix=_FIX), name or base)


def foreign_key_join(
    left: Table, kind: g.JoinKind, right: Table, joiner: Function | None, on: On, prefix: str, store: str | None, name: str | None
) -> Table:
    """Add a join of a table with the rows of another that it names: questions to the right side, and answers back."""
    from .table import Table

    graph, base = left.graph, name or f"{left.base}-{right.base}"
    bound = bind_keys(on if isinstance(on, tuple) else (on,), None, "join(on=...)", left.scope())
    keys = right.schema.key
    if right.schema.window is not None or len(bound) != len(keys):
        raise InvalidInput(
            f"join(on=...) names the key of {right.base!r}, which is ({', '.join(f'{c.name} {c.type}' for c in keys)}"
            f"{', windowed' if right.schema.window else ''}); found {len(bound)} columns"
        )
    key = tuple((n, cast_to(x, column.type)) for (n, x), column in zip(bound, keys, strict=True))
    schema, columns = joined_columns(left.schema, right.schema, joiner, prefix, tuple(n for n, _ in bound))
    subscribe = g.Subscribe(
        name=f"{base}-subscriptions", schema=g.Schema(tuple(Column(n, x.type) for n, x in key), g.SUBSCRIPTION),
        kind=g.EdgeKind.STREAM, inputs=(left.node.name,), join=kind, key=key,
    )  # fmt: skip
    graph.add(subscribe, fix=_FIX)
    answer = g.Answer(
        name=f"{base}-answers",
        schema=g.Schema(
            left.schema.key, (*g.ANSWER, *(Column(f"right:{c.name}", c.type) for c in right.schema.value)), left.schema.window
        ),
        kind=g.EdgeKind.STREAM, inputs=(subscribe.name, right.node.name), join=kind, store=f"{base}-subscribers",
        key_format=key_format_of(graph.nodes, left.node.name),
    )  # fmt: skip
    graph.add(answer, fix=_FIX)
    node = g.Resolve(
        name=store or base, schema=schema, kind=g.EdgeKind.TABLE, inputs=(answer.name, left.node.name), join=kind,
        key=key, columns=columns, store=store, right_class=right.schema.value_class,
    )  # fmt: skip
    return Table(graph, graph.add(node, fix=_FIX), base)
