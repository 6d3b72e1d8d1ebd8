"""Logical plan -> topology: one node of `streams.graph` per operator, named after what it does and never by position."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

from logflume.log.schemas import INTEGER, Column, FormatSpec
from logflume.streams import expr as x
from logflume.streams import graph as g
from logflume.streams.planner import default_key_format

from . import plan as p
from .binding.query import DAY_MS
from .errors import StatementError


class _Builder:
    """Collects nodes; a name that is taken gets its operator's source appended, else a letter."""

    def __init__(self, query_id: str) -> None:
        self.query_id = query_id
        self.nodes: dict[str, g.Node] = {}
        self._scans: list[tuple[p.Scan, g.Node]] = []

    def add(self, wanted: str, make: type[g.Node], **fields: Any) -> g.Node:
        name, letter = wanted, ord("B")
        while name in self.nodes:
            name, letter = f"{wanted}-{chr(letter)}", letter + 1
        if fields.get("store") == wanted:  # a store is named after its node
            fields["store"] = name
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
                kept = name if name != "SELECT" and source.kind is g.EdgeKind.TABLE and _has_places(columns) else None
                return self.add(
                    name, g.Project, schema=schema, kind=source.kind, inputs=(source.name,), columns=columns, store=kept
                )
            case p.Explode(input, columns):
                return self._explode(input, columns)
            case p.Rekey(input, keys, name):
                source = self.build(input)
                schema = g.Schema(_columns(keys), source.schema.value)
                return self.add(f"{name}-KEY", g.Rekey, schema=schema, kind=source.kind, inputs=(source.name,), key=keys)
            case p.Union(parts):
                nodes = [self.build(part) for part in parts]
                names = tuple(node.name for node in nodes)
                return self.add("UNION", g.Merge, schema=nodes[0].schema, kind=g.EdgeKind.STREAM, inputs=names)
            case p.Regroup():
                return self._regroup(operator)
            case p.Aggregate():
                return self._aggregate(operator)
            case p.JoinTable():
                return self._join_table(operator)
            case p.JoinStreams():
                return self._join_streams(operator)
            case p.JoinTables():
                return self._join_tables(operator)
            case p.JoinForeign():
                return self._join_foreign(operator)
        raise AssertionError(operator)

    def _scan(self, operator: p.Scan) -> g.Node:
        """Return the node of a source; one that is read twice is one node."""
        found = next((node for scan, node in self._scans if scan == operator), None)
        if found is None:
            found = self._source(operator)
            self._scans.append((operator, found))
        return found

    def _source(self, operator: p.Scan) -> g.Node:
        source = operator.source
        return self.add(
            source.name,
            g.Source,
            schema=g.Schema(source.key, source.value, None if source.window is None else source.window.of_key()),
            kind=g.EdgeKind.TABLE if source.is_table else g.EdgeKind.STREAM,
            topic=source.topic,
            key_format=_used(source.key_format, source.key),
            value_format=source.value_format,
            timestamp=operator.timestamp,
            needs_time=operator.needs_time,
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
        if source.kind is g.EdgeKind.TABLE:  # each change gives its items anew
            source = self.add("CHANGES", g.ToStream, schema=source.schema, kind=g.EdgeKind.STREAM, inputs=(source.name,))
        value = tuple(Column(n, e.type.element if is_list else e.type) for n, e, is_list in columns)
        schema = replace(source.schema, value=value)
        return self.add("EXPLODE", g.FlatMap, schema=schema, kind=source.kind, inputs=(source.name,), columns=columns)

    def _regroup(self, operator: p.Regroup) -> g.Node:
        source = self.build(operator.input)
        value = _columns(operator.columns)
        twice = tuple(Column(sign + c.name, c.type) for sign in "-+" for c in value)
        return self.add(
            "GROUP-BY-KEY",
            g.Regroup,
            schema=g.Schema(_columns(operator.keys), (Column(g.REGROUPED, INTEGER), *twice)),
            kind=g.EdgeKind.STREAM,
            inputs=(source.name,),
            key=operator.keys,
            columns=operator.columns,
        )

    def _aggregate(self, operator: p.Aggregate) -> g.Node:
        source = self.build(operator.input)
        value = tuple(Column(a.name, a.aggregator.type) for a in operator.aggregations)
        common: dict[str, Any] = {
            "schema": g.Schema(source.schema.key, value, operator.window),
            "kind": g.EdgeKind.TABLE,
            "inputs": (source.name,),
            "store": "AGGREGATE",
            "aggregations": operator.aggregations,
            "emit": operator.emit,
        }
        if isinstance(source, g.Regroup):
            row = g.Schema(source.schema.key, _columns(source.columns))
            return self.add("AGGREGATE", g.TableAggregate, row=row, **common)
        return self.add("AGGREGATE", g.Aggregate, window=operator.window, **common)

    # -------------------------------------------------------------------------------------------- joins

    def _join_table(self, operator: p.JoinTable) -> g.Node:
        left, right = self.build(operator.stream), self.build(operator.table)
        right = self._aligned(right, self._shared_format(right))
        return self._joined(g.StreamTableJoin, left, right, operator)

    def _join_streams(self, operator: p.JoinStreams) -> g.Node:
        left, right = self._co_partitioned(self.build(operator.left), self.build(operator.right))
        return self._joined(
            g.StreamJoin,
            left,
            right,
            operator,
            before_ms=operator.before_ms,
            after_ms=operator.after_ms,
            grace_ms=max(DAY_MS - operator.before_ms - operator.after_ms, 0) if operator.grace_ms is None else operator.grace_ms,
            is_eager=operator.grace_ms is None,
            store="JOIN",
        )

    def _join_tables(self, operator: p.JoinTables) -> g.Node:
        left, right = self._co_partitioned(self.build(operator.left), self.build(operator.right))
        return self._joined(g.TableJoin, left, right, operator)

    def _joined(
        self,
        make: type[g.Node],
        left: g.Node,
        right: g.Node,
        operator: p.JoinTable | p.JoinStreams | p.JoinTables,
        **fields: Any,
    ) -> g.Node:
        return self.add(
            "JOIN",
            make,
            schema=g.Schema(left.schema.key, _columns(operator.columns), left.schema.window),
            kind=left.kind,
            inputs=(left.name, right.name),
            join=operator.kind,
            columns=operator.columns,
            **fields,
        )

    def _join_foreign(self, operator: p.JoinForeign) -> g.Node:
        left, right = self.build(operator.left), self.build(operator.right)
        right = self._aligned(right, self._shared_format(right))
        key = tuple((column.name, operator.key) for column in right.schema.key)
        asked = self.add(
            "JOIN-SUBSCRIBE",
            g.Subscribe,
            schema=g.Schema(_columns(key), g.SUBSCRIPTION),
            kind=g.EdgeKind.STREAM,
            inputs=(left.name,),
            join=operator.kind,
            key=key,
        )
        asked = self._through(asked, f"{asked.name}-questions", self._format(right))
        row = tuple(Column(f"right:{c.name}", c.type) for c in right.schema.value)
        answered = self.add(
            "JOIN-ANSWER",
            g.Answer,
            schema=g.Schema(left.schema.key, (*g.ANSWER, *row), left.schema.window),
            kind=g.EdgeKind.STREAM,
            inputs=(asked.name, right.name),
            join=operator.kind,
            store="JOIN-ANSWER",
            key_format=self._format(left),
        )
        answered = self._through(answered, f"{answered.name}-answers", self._format(left))
        return self.add(
            "JOIN",
            g.Resolve,
            schema=g.Schema(left.schema.key, _columns(operator.columns), left.schema.window),
            kind=g.EdgeKind.TABLE,
            inputs=(answered.name, left.name),
            join=operator.kind,
            key=key,
            columns=operator.columns,
        )

    # -------------------------------------------------------------------------------------------- key formats

    def _format(self, node: g.Node) -> FormatSpec:
        """Return how the keys of a table, or of a stream that is keyed as it was read, are written."""
        return self._written(node) or default_key_format(node.schema.key)

    def _written(self, node: g.Node) -> FormatSpec | None:
        """Return how the keys behind a node are written; None: not yet, as they are new."""
        match node:
            case g.Source() | g.Repartition():
                return node.key_format
            case g.Rekey() | g.Regroup():
                return None
            case g.Resolve():
                return self._written(self.nodes[node.inputs[1]])
        return self._written(self.nodes[node.inputs[0]])

    def _shared_format(self, node: g.Node) -> FormatSpec:
        """Return in which format others may meet the keys behind a node.

        Bytes that name a registered schema are not the same for the same key, so such keys are written anew.
        """
        format = self._format(node)
        return default_key_format(node.schema.key) if format.registry else format

    def _co_partitioned(self, left: g.Node, right: g.Node) -> tuple[g.Node, g.Node]:
        """Return both sides with keys in one format; the side whose keys are as they were read stays, if one can."""
        formats = self._written(left), self._written(right)
        if formats[0] is not None and formats[1] is not None:
            is_same = replace(formats[0], subject="") == replace(formats[1], subject="") and left.schema.key == right.schema.key
            # Windowed keys cannot be written anew; one schema has one id, so keys of equal columns are equal bytes.
            if (formats[0] == formats[1] and not formats[0].registry) or (is_same and left.schema.window is not None):
                return left, right
        kept = next((each for each in formats if each is not None and not each.registry), default_key_format(left.schema.key))
        return self._aligned(left, kept), self._aligned(right, kept)

    def _aligned(self, node: g.Node, format: FormatSpec) -> g.Node:
        """Return a side of a join with keys in a format: as it is, or by way of a topic."""
        if self._written(node) == format:
            return node
        if node.schema.window is not None:
            raise StatementError(
                "Implicit repartitioning of windowed sources is not supported. See https://github.com/confluentinc/ksql/issues/4385."
            )
        if node.kind is g.EdgeKind.STREAM:
            return self._through(node, f"{node.name}-repartition", format)
        stream = self.add(f"{node.name}-CHANGES", g.ToStream, schema=node.schema, kind=g.EdgeKind.STREAM, inputs=(node.name,))
        moved = self._through(stream, f"{node.name}-repartition", format)
        return self.add(f"{node.name}-ROWS", g.ToTable, schema=node.schema, kind=g.EdgeKind.TABLE, inputs=(moved.name,))

    def _through(self, node: g.Node, name: str, format: FormatSpec) -> g.Node:
        return self.add(
            name,
            g.Repartition,
            schema=node.schema,
            kind=g.EdgeKind.STREAM,
            inputs=(node.name,),
            topic=f"{self.query_id}-{name}",
            partitions=None,
            key_format=format,
            value_format=FormatSpec("JSON"),
        )


def _used(format: FormatSpec, columns: tuple[Column, ...]) -> FormatSpec:
    """A side without columns is not written, whatever format it would have."""
    return format if columns else FormatSpec("NONE")


def _has_places(columns: tuple[p.NamedExpr, ...]) -> bool:
    """Tell whether columns are of where a record was, which is not known any more when its row is looked up."""
    places = {x.Meta.ROWPARTITION.value, x.Meta.ROWOFFSET.value, x.Meta.HEADERS.value}
    return any(side is x.Side.META and name in places for _, e in columns for side, name in x.columns_used(e))


def _columns(named: tuple[tuple[str, Any], ...]) -> tuple[Column, ...]:
    return tuple(Column(name, e.type) for name, e in named)


def _with_key_names(builder: _Builder, last: g.Node, output: p.Output) -> g.Node:
    """Give key columns the names they are written with; a bare one is written without a name."""
    key = output.key
    if (len(key) < 2 and not output.key_format.is_wrapped) or [c.name for c in key] == [c.name for c in last.schema.key]:
        return last
    named = tuple(
        (column.name, x.ColumnRef(x.Side.KEY, old.name, old.type)) for column, old in zip(key, last.schema.key, strict=True)
    )
    schema = replace(last.schema, key=key)
    return builder.add("KEY-NAMES", g.Rekey, schema=schema, kind=last.kind, inputs=(last.name,), key=named)


def build_topology(plan: p.QueryPlan, *, watch: Any = None) -> g.Topology:
    """Build the topology of a query. A watched query ends in `watch`, a callable of (key, value, timestamp)."""
    builder = _Builder(plan.id)
    last = builder.build(plan.root)
    if plan.output is not None:
        output = plan.output
        last = _with_key_names(builder, last, output)
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
