"""Logical plan -> topology: one node of `streams.graph` per operator, named after what it does and never by position."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

from logflume.log.schemas import Column, FormatSpec
from logflume.streams import expr as x
from logflume.streams import graph as g

from . import plan as p
from .errors import NotSupported


class _Builder:
    """Collects nodes; a name that is taken gets its operator's source appended, else a letter."""

    def __init__(self) -> None:
        self.nodes: dict[str, g.Node] = {}

    def add(self, wanted: str, make: type[g.Node], **fields: Any) -> g.Node:
        name, letter = wanted, ord("B")
        while name in self.nodes:
            name, letter = f"{wanted}-{chr(letter)}", letter + 1
        node = make(name=name, **fields)
        self.nodes[name] = node
        return node

    def build(self, operator: p.Operator) -> g.Node:
        match operator:
            case p.Scan():
                return self._scan(operator)
            case p.Filter():
                return self._filter(operator)
            case p.Select(input, columns, name):
                source = self.build(input)
                schema = g.Schema(source.schema.key, _columns(columns), source.schema.window)
                return self.add(name, g.Project, schema=schema, kind=source.kind, inputs=(source.name,), columns=columns)
            case p.Explode(input, columns):
                return self._explode(input, columns)
            case p.Rekey(input, keys, name):
                source = self.build(input)
                schema = g.Schema(_columns(keys), source.schema.value)
                return self.add(f"{name}-KEY", g.Rekey, schema=schema, kind=source.kind, inputs=(source.name,), key=keys)
            case p.Aggregate():
                return self._aggregate(operator)
            case p.JoinTable(stream, table, kind, columns):
                left, right = self.build(stream), self.build(table)
                schema = g.Schema(left.schema.key, _columns(columns))
                return self.add(
                    "JOIN",
                    g.StreamTableJoin,
                    schema=schema,
                    kind=g.EdgeKind.STREAM,
                    inputs=(left.name, right.name),
                    join=kind,
                    columns=columns,
                )
            case p.JoinAny():
                raise NotSupported(operator.what, operator.span)
        raise AssertionError(operator)

    def _scan(self, operator: p.Scan) -> g.Node:
        source = operator.source
        window = None
        if source.window is not None:
            if source.window.size_ms is None:
                raise NotSupported(f"reading {source.name}, whose key is session-windowed")
            window = g.TimeWindow(source.window.size_ms, source.window.advance_ms or source.window.size_ms)
        return self.add(
            source.name,
            g.Source,
            schema=g.Schema(source.key, source.value, window),
            kind=g.EdgeKind.TABLE if source.is_table else g.EdgeKind.STREAM,
            topic=source.topic,
            key_format=_used(source.key_format, source.key),
            value_format=source.value_format,
            timestamp=operator.timestamp,
        )

    def _filter(self, operator: p.Filter) -> g.Node:
        """A filter of a source table keeps the rows that pass, so that one that never did puts out no tombstone."""
        source = self.build(operator.input)
        is_kept = source.kind is g.EdgeKind.TABLE and operator.name == "WHERE"
        return self.add(
            operator.name,
            g.Filter,
            schema=source.schema,
            kind=source.kind,
            inputs=(source.name,),
            predicate=operator.predicate,
            store=operator.name if is_kept else None,
        )

    def _explode(self, input: p.Operator, columns: tuple[tuple[str, Any, bool], ...]) -> g.Node:
        source = self.build(input)
        value = tuple(Column(n, e.type.element if is_list else e.type) for n, e, is_list in columns)
        schema = replace(source.schema, value=value)
        return self.add("EXPLODE", g.FlatMap, schema=schema, kind=source.kind, inputs=(source.name,), columns=columns)

    def _aggregate(self, operator: p.Aggregate) -> g.Node:
        source = self.build(operator.input)
        if source.kind is g.EdgeKind.TABLE:
            raise NotSupported("GROUP BY on a table", operator.span)
        value = tuple(Column(a.name, a.aggregator.type) for a in operator.aggregations)
        return self.add(
            "AGGREGATE",
            g.Aggregate,
            schema=g.Schema(source.schema.key, value, operator.window),
            kind=g.EdgeKind.TABLE,
            inputs=(source.name,),
            store="AGGREGATE",
            aggregations=operator.aggregations,
            window=operator.window,
            emit=operator.emit,
        )


def _used(format: FormatSpec, columns: tuple[Column, ...]) -> FormatSpec:
    """A side without columns is not written, whatever format it would have."""
    return format if columns else FormatSpec("NONE")


def _columns(named: tuple[tuple[str, Any], ...]) -> tuple[Column, ...]:
    return tuple(Column(name, e.type) for name, e in named)


def _with_key_names(builder: _Builder, last: g.Node, key: tuple[Column, ...]) -> g.Node:
    """Give a key of several columns the names it is written with; a single one is written without a name."""
    if len(key) < 2 or [c.name for c in key] == [c.name for c in last.schema.key]:
        return last
    named = tuple(
        (column.name, x.ColumnRef(x.Side.KEY, old.name, old.type)) for column, old in zip(key, last.schema.key, strict=True)
    )
    schema = replace(last.schema, key=key)
    return builder.add("KEY-NAMES", g.Rekey, schema=schema, kind=last.kind, inputs=(last.name,), key=named)


def build_topology(plan: p.QueryPlan, *, watch: Any = None) -> g.Topology:
    """Build the topology of a query. A watched query ends in `watch`, a callable of (key, value, timestamp)."""
    builder = _Builder()
    last = builder.build(plan.root)
    if plan.output is not None:
        output = plan.output
        last = _with_key_names(builder, last, output.key)
        builder.add(
            "SINK",
            g.Sink,
            schema=g.Schema(output.key, output.value, last.schema.window),
            kind=last.kind,
            inputs=(last.name,),
            topic=output.topic,
            key_format=_used(output.key_format, output.key),
            value_format=output.value_format,
            timestamp=output.timestamp,
            partitions=output.partitions,
            topic_configs=dict(output.topic_configs),
        )
    elif watch is not None:
        builder.add("WATCH", g.Foreach, schema=last.schema, kind=last.kind, inputs=(last.name,), function=watch)
    return g.Topology(plan.id, MappingProxyType(builder.nodes))
