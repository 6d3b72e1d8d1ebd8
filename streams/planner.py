"""Topology -> Plan: checks the graph, puts repartition topics where a changed key meets a keyed operator, and splits it.

The rewrite is a tuple of functions from topology to topology, each independent of the others' code. Names never depend on a
node's position: a repartition is named after the node that changed the key, a sub-topology after its first source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from logflume.log import InvalidInput, UnknownName, check_own_topic
from logflume.log.schemas import ROW_FORMAT, Column, FormatSpec, Kind, holds

from . import graph as g
from .expr import Side
from .operators import operator_program
from .operators.wiring import wire
from .seams import OutputTopic, Plan, SubTopology, changelog_topic

_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}\Z")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}\Z")
_KEY_KINDS = frozenset({Kind.INTEGER, Kind.BIGINT, Kind.DOUBLE, Kind.STRING, Kind.BYTES})


def plan(topology: g.Topology) -> Plan:
    """Check, rewrite, split and plan a topology.

    Raises:
        InvalidInput: the graph cannot work; the message names the node and the fix.
    """
    rewritten = rewrite(topology)
    parts = split(rewritten)
    if parts and all(g.is_global(part[name_of(part)]) for part in parts):
        raise InvalidInput(
            f"nothing joins the global table {name_of(parts[0])!r}, and it is read by those who do: join a stream with it, or "
            "read its topic by app.table(topic, store='...') to look rows up"
        )
    return Plan(rewritten.name, tuple(_subtopology(rewritten, part) for part in parts))


def rewrite(topology: g.Topology) -> g.Topology:
    """Return the topology as it will run: checked, tables stored where needed, repartitions in place and narrowed."""
    steps = (
        check, store_joined_tables, insert_repartitions, part_inputs, keep_null_keys, narrow_repartitions, bar_own_topics,
    )  # fmt: skip
    for step in steps:
        topology = step(topology)
    return topology


def check(topology: g.Topology) -> g.Topology:
    """Refuse a graph with unknown inputs, wrong order, clashing names of stores or topics, or inputs of the wrong kind."""
    if not _NAME.match(topology.name):
        raise InvalidInput(f"application name {topology.name!r}: use letters, digits, '.', '_' and '-'")
    seen: dict[str, g.Node] = {}
    stores: dict[str, str] = {}
    for name, node in topology.nodes.items():
        if name != node.name:
            raise InvalidInput(f"node {node.name!r} is listed as {name!r}")
        for source in node.inputs:
            if source not in seen:
                raise UnknownName(f"input of {name!r}", source, seen)
        store = g.store_of(node)
        if store is not None:
            if not _NAME.match(store):
                raise InvalidInput(f"store name {store!r} of {name!r}: use letters, digits, '.', '_' and '-'")
            _check_topic(changelog_topic(topology.name, store), name)
            if store in stores:
                raise InvalidInput(
                    f"two nodes, {stores[store]!r} and {name!r}, keep a store {store!r}: give one of them store='...'"
                )
            stores[store] = name
        if isinstance(node, g.Source | g.Sink | g.Repartition):
            _check_topic(node.topic, name)
            check_own_topic(node.topic)
        for topic in node.topics if isinstance(node, g.Route) else ():
            _check_topic(topic, name)
            check_own_topic(topic)
        _check_node(node, [seen[source] for source in node.inputs])
        seen[name] = node
    _check_loops(seen)
    return topology


def _check_loops(nodes: Mapping[str, g.Node]) -> None:
    """Refuse a topic that is written from what is read from it, also by way of others: each record would come back for ever."""
    sources: dict[str, frozenset[str]] = {}
    feeds: dict[str, set[str]] = {}
    for name, node in nodes.items():
        own = {node.topic} if isinstance(node, g.Source) else set[str]()
        sources[name] = frozenset(own.union(*(sources[source] for source in node.inputs)))
        written = (node.topic,) if isinstance(node, g.Sink) else node.topics if isinstance(node, g.Route) else ()
        for topic in sources[name] if written else ():
            feeds.setdefault(topic, set()).update(written)
    for first in feeds:
        reached, todo = set[str](), [first]
        while todo:
            fresh = feeds.get(todo.pop(), set()) - reached
            reached |= fresh
            todo += fresh
        if first in reached:
            raise InvalidInput(
                f"topic {first!r} is written from what is read from it, so each record would come back for ever: write to "
                "another topic"
            )


def _check_topic(topic: str, node: str) -> None:
    if not _TOPIC.match(topic) or topic in (".", ".."):
        raise InvalidInput(
            f"{node!r} needs a topic {topic!r}, but topics have up to 249 letters, digits, '.', '_' and '-': "
            "pass a (shorter) name='...'"
        )


_INPUTS: Mapping[type[g.Node], int] = {
    g.Source: 0, g.StreamTableJoin: 2, g.StreamJoin: 2, g.TableJoin: 2, g.Answer: 2, g.Resolve: 2,
}  # fmt: skip


def _check_node(node: g.Node, inputs: list[g.Node]) -> None:
    wanted = _INPUTS.get(type(node), 1)
    if len(inputs) != wanted and not isinstance(node, g.Merge | g.Aggregate):
        raise InvalidInput(f"{node.name!r} needs {wanted} inputs, found {len(inputs)}")
    if isinstance(node, g.StreamTableJoin):
        _check_join(node, *inputs)
    elif isinstance(node, g.Filter | g.Project) and node.store is not None and node.kind is not g.EdgeKind.TABLE:
        raise InvalidInput(f"{node.name!r} is a stream and has no rows to keep in a store")
    elif isinstance(node, g.ToTable) and not node.schema.key:
        raise InvalidInput(f"{node.name!r} makes a table of records without a key: select_key something first")
    elif isinstance(node, g.Aggregate):
        if any(each.kind is not g.EdgeKind.STREAM for each in inputs):
            raise InvalidInput(
                f"{node.name!r} aggregates a table, {inputs[0].name!r}: group it by a key (group_by), or make it a stream first "
                "(to_stream)"
            )
        if not node.schema.key:
            raise InvalidInput(f"{node.name!r} aggregates records without a key: group_by something first")
        if node.emit is g.Emit.FINAL and node.window is None:
            raise InvalidInput(f"{node.name!r}: emit='final' needs a window, whose end makes a result final")
        if node.ttl_ms is not None and (node.window is not None or node.ttl_ms <= 0):
            raise InvalidInput(f"{node.name!r}: ttl= is a time above 0, of aggregates without windows")
        if isinstance(node.window, g.TimeWindow):
            _check_window(node.name, node.window)
        if isinstance(node.window, g.UnlimitedWindow) and node.emit is g.Emit.FINAL:
            raise InvalidInput(f"{node.name!r}: emit='final' needs windows that end; an unlimited window never does")
    elif isinstance(node, g.Late):
        aggregate = inputs[0]
        if not isinstance(aggregate, g.Aggregate) or (aggregate.window is None and aggregate.ttl_ms is None):
            raise InvalidInput(f"{node.name!r}: records come late for a windowed aggregate, {aggregate.name!r} is none")
    elif isinstance(node, g.Merge):
        values = {node.schema.value} if g.is_bare(node.schema) else {i.schema.value for i in inputs}
        if len(values) > 1 or len({(i.schema.key, i.schema.window) for i in inputs}) > 1:
            raise InvalidInput(
                f"{node.name!r} merges streams of different columns: {', '.join(_describe(i.schema) for i in inputs)}"
            )


def _check_window(name: str, window: g.TimeWindow) -> None:
    if window.size_ms <= 0 or not 0 < window.advance_ms <= window.size_ms or window.grace_ms < 0:
        raise InvalidInput(
            f"{name!r}: a window needs size > 0, 0 < advance <= size and grace >= 0, found size {window.size_ms} ms, "
            f"advance {window.advance_ms} ms, grace {window.grace_ms} ms"
        )


def _describe(schema: g.Schema) -> str:
    return "(" + ", ".join(f"{c.name} {c.type}" for c in (*schema.key, *schema.value)) + ")"


def _check_join(node: g.StreamTableJoin, stream: g.Node, table: g.Node) -> None:
    if stream.kind is not g.EdgeKind.STREAM or table.kind is not g.EdgeKind.TABLE:
        raise InvalidInput(f"{node.name!r} joins a {stream.kind} with a {table.kind}: expected a stream with a table")
    if node.join is g.JoinKind.OUTER:
        raise InvalidInput(f"{node.name!r}: a stream and a table join inner or left; there is no outer join of them")
    ours, theirs = [c.type for c in stream.schema.key], [c.type for c in table.schema.key]
    if ours != theirs and not any(t.kind is Kind.ANY for t in (*ours, *theirs)):
        raise InvalidInput(
            f"{node.name!r}: the stream's key is ({', '.join(map(str, ours))}), the table's ({', '.join(map(str, theirs))}); "
            "join on a column of the table's key type (cast if needed)"
        )


def store_joined_tables(topology: g.Topology) -> g.Topology:
    """Keep each table that is looked up, or whose rows before a change are asked for, in a store of its own name."""
    nodes = dict(topology.nodes)
    for node in topology.nodes.values():
        found = [table for name in _looked_up(node) for table in _kept_behind(nodes, node, name)]
        found += _joins_ahead(nodes, node)
        for table in {table.name: table for table in found}.values():
            taken = {g.store_of(n) for n in nodes.values()}
            if table.name in taken:
                raise InvalidInput(f"table {table.name!r} needs a store and its name is taken: give the table store='...'")
            nodes[table.name] = replace(table, store=table.name)
    for name, node in nodes.items():
        if isinstance(node, g.TableJoin) and _may_go_together(nodes, node):
            nodes[name] = replace(node, takes_back=True)
    return replace(topology, nodes=MappingProxyType(nodes))


def _joins_ahead(nodes: Mapping[str, g.Node], node: g.Node) -> list[Any]:
    """Return the joins of tables whose rows before only a store of their own can tell: a side is looked up as it will be.

    Whoever compares their rows with those before would meet pairs that there never were.
    """
    if isinstance(node, g.TableJoin) and node.store is None and _may_go_together(nodes, node):
        return [node]
    if not isinstance(node, g.Regroup | g.Subscribe | g.Suppress | g.Filter):
        return []
    source = nodes[node.inputs[0]]
    while isinstance(source, g.Filter | g.Project) and source.store is None:
        source = nodes[source.inputs[0]]
    is_ahead = isinstance(source, g.TableJoin) and source.store is None and _is_ahead(nodes, source.name)
    return [source] if is_ahead else []


def _may_go_together(nodes: Mapping[str, g.Node], node: g.TableJoin) -> bool:
    """Return whether rows of both sides of an inner join may go at one task commit, so that neither finds the other."""
    return node.join is g.JoinKind.INNER and all(_is_ahead(nodes, name) and _may_go(nodes, name) for name in node.inputs)


def _is_ahead(nodes: Mapping[str, g.Node], name: str) -> bool:
    """Return whether a table, when it is looked up, has rows that it puts out only at the task commit, or when they are final."""
    match nodes[name]:
        case g.Aggregate(emit=emit) | g.TableAggregate(emit=emit):
            return emit is not g.Emit.UPDATE
        case g.Resolve() | g.Rekey():
            return False
        case node:
            return any(_is_ahead(nodes, source) for source in node.inputs)


def _may_go(nodes: Mapping[str, g.Node], name: str) -> bool:
    """Return whether rows of a table may be deleted: those of named aggregates that do not expire are there for good."""
    match nodes[name]:
        case g.Aggregate(window=g.SessionWindow()):
            return True
        case g.Aggregate(ttl_ms=None) | g.TableAggregate() as node:
            return g.is_bare(node.schema)
        case g.Project() as node:
            return g.is_bare(node.schema) or _may_go(nodes, node.inputs[0])
    return True


def _looked_up(node: g.Node) -> tuple[str, ...]:
    """Return the inputs of a node whose rows it looks up, or compares with the rows before."""
    match node:
        case g.StreamTableJoin():
            return node.inputs[1:]
        case g.TableJoin() | g.Regroup() | g.Subscribe() | g.Suppress():
            return node.inputs
        case g.Answer() | g.Resolve():
            return node.inputs[1:]
    return ()


def _kept_behind(nodes: Mapping[str, g.Node], consumer: g.Node, name: str) -> list[Any]:
    """Return the tables without a store that rows of a table come from."""
    node = nodes[name]
    if g.store_of(node) is not None:
        return []
    if isinstance(node, g.Source | g.ToTable | g.Resolve) and node.kind is g.EdgeKind.TABLE:
        return [node]
    if not isinstance(node, g.Filter | g.Project | g.TableJoin | g.Suppress):
        raise InvalidInput(f"{consumer.name!r} joins {name!r}, which is neither kept nor a view of a kept table")
    return [table for source in node.inputs for table in _kept_behind(nodes, consumer, source)]


def insert_repartitions(topology: g.Topology) -> g.Topology:
    """Put a Repartition between a changed key and each aggregate or join; consumers of one stream share it.

    before: Rekey -> Aggregate        after: Rekey -> Repartition -> Aggregate
    """
    nodes: dict[str, g.Node] = {}
    formats: dict[str, FormatSpec | None] = {}
    for node in topology.nodes.values():
        inputs = list(node.inputs)
        for place, wanted in _wanted_formats(node, [formats[name] for name in inputs]):
            source = nodes[inputs[place]]
            format = wanted or default_key_format(source.schema.key)
            if not _is_written_as(source, formats[source.name], format):
                repartition = _repartition(topology, nodes, source, format, node)
                nodes[repartition.name] = repartition
                formats[repartition.name] = repartition.key_format
                inputs[place] = repartition.name
        node = node if inputs == list(node.inputs) else replace(node, inputs=tuple(inputs))
        nodes[node.name] = node
        formats[node.name] = _key_format(node, [formats[name] for name in node.inputs])
    return replace(topology, nodes=MappingProxyType(nodes))


def part_inputs(topology: g.Topology) -> g.Topology:
    """Give a cogroup that has a stream more than once an edge for each time: its aggregators are told apart by their inputs.

    before: orders -> Aggregate(orders, orders)       after: orders -> Merge, Merge -> Aggregate(Merge, Merge)
    """
    nodes: dict[str, g.Node] = {}
    for node in topology.nodes.values():
        if isinstance(node, g.Aggregate) and len(set(node.inputs)) < len(node.inputs):
            node = replace(node, inputs=tuple(_edges(nodes, node)))
        nodes[node.name] = node
    return replace(topology, nodes=MappingProxyType(nodes))


def _edges(nodes: dict[str, g.Node], node: g.Aggregate) -> Iterator[str]:
    """Yield the inputs of a node, those that are there more than once behind a new Merge each."""
    for place, source in enumerate(node.inputs):
        if node.inputs.count(source) == 1:
            yield source
            continue
        edge = f"{node.name}-{source}-{place + 1}"
        nodes[edge] = g.Merge(name=edge, schema=nodes[source].schema, kind=nodes[source].kind, inputs=(source,))
        yield edge


def keep_null_keys(topology: g.Topology) -> g.Topology:
    """Let records without a key through each Repartition that a left or outer join follows, however far: that joins them.

    before: Repartition -> Filter -> left join       after: Repartition(keeps_null_keys) -> Filter -> left join
    """
    nodes: dict[str, g.Node] = {}
    takers: set[str] = set()
    for name, node in reversed(list(topology.nodes.items())):
        if name in takers and isinstance(node, g.Repartition):
            node = replace(node, keeps_null_keys=True)
        takers.update(_null_keys_from(node, is_followed=name in takers))
        nodes[name] = node
    return replace(topology, nodes=MappingProxyType(dict(reversed(list(nodes.items())))))


def _null_keys_from(node: g.Node, *, is_followed: bool) -> tuple[str, ...]:
    """Return the inputs whose records without a key matter: to the node, or to a join that follows it (`is_followed`)."""
    match node:
        case g.StreamJoin(join=g.JoinKind.OUTER):
            return node.inputs
        case g.StreamJoin(join=g.JoinKind.LEFT) | g.StreamTableJoin(join=g.JoinKind.LEFT) | g.Answer(join=g.JoinKind.LEFT):
            return node.inputs[:1]
        case g.StreamTableJoin() if node.key:  # the key that it joins by is not that of the record
            return node.inputs[:1] if is_followed else ()
        case g.StreamJoin() | g.StreamTableJoin() | g.Answer() | g.Deduplicate():
            return ()
    return node.inputs if is_followed and node.kind is g.EdgeKind.STREAM else ()


def _is_written_as(source: g.Node, written: FormatSpec | None, wanted: FormatSpec) -> bool:
    """Return whether keys of one value have one form in both formats.

    Windowed keys cannot be written anew: there, one schema under two subjects is one, as a registry gives it one id.
    """
    if written is not None and source.schema.window is not None:
        return replace(written, subject="") == replace(wanted, subject="")
    return written == wanted


def _wanted_formats(node: g.Node, formats: list[FormatSpec | None]) -> list[tuple[int, FormatSpec | None]]:
    """Return which inputs of a node have to be partitioned by their encoded key, in which format (None: any)."""
    match node:
        case g.StreamTableJoin() if node.key:
            return []
        case g.StreamTableJoin() | g.Answer() | g.Resolve():
            return [(0, formats[1])]
        case g.Aggregate() | g.StreamJoin():
            wanted = next((format for format in reversed(formats) if format is not None), None)
            return [(place, wanted) for place in range(len(formats))]
        case g.ToTable() | g.TableAggregate() | g.Deduplicate():
            return [(0, formats[0])]
    return []


def _key_format(node: g.Node, inputs: list[FormatSpec | None]) -> FormatSpec | None:
    """Return the format of the encoded key at hand behind a node, None after a change of key."""
    match node:
        case g.Source() | g.Repartition():
            return node.key_format
        case g.Rekey() | g.Regroup() | g.Subscribe() | g.Answer():
            return None
        case g.Process() if not node.is_keyed:
            return None
        case g.StreamTableJoin() | g.TableJoin() | g.StreamJoin():
            return inputs[0]
    return inputs[0] if all(i == inputs[0] for i in inputs) else None


def key_format_of(nodes: Mapping[str, g.Node], name: str) -> FormatSpec:
    """Return the format of the encoded keys of a table, as it will run."""
    node = nodes[name]
    found = node.key_format if isinstance(node, g.Source) else None
    if found is None and node.inputs and not isinstance(node, g.Rekey | g.Regroup):
        found = key_format_of(nodes, node.inputs[0])
    return found or default_key_format(node.schema.key)


def _repartition(
    topology: g.Topology, nodes: Mapping[str, g.Node], source: g.Node, key_format: FormatSpec, consumer: g.Node
) -> g.Repartition:
    """Return the repartition behind `source`, the one that is there if it has that format."""
    if source.schema.window is not None and not isinstance(consumer, g.Resolve):
        raise InvalidInput(f"{consumer.name!r}: a windowed key cannot be repartitioned as it is; select_key first")
    name = f"{source.name}-repartition"
    existing = nodes.get(name)
    if isinstance(existing, g.Repartition):
        if existing.key_format == key_format:
            return existing
        name = f"{source.name}-{consumer.name}-repartition"
    _check_topic(f"{topology.name}-{name}", source.name)
    return g.Repartition(
        name=name, schema=source.schema, kind=g.EdgeKind.STREAM, inputs=(source.name,),
        topic=f"{topology.name}-{name}", partitions=None, key_format=key_format,
        value_format=internal_format(source.schema),
    )  # fmt: skip


def internal_format(schema: g.Schema) -> FormatSpec:
    """Return how values are written to a topic that the application alone reads: JSON where their types are not known."""
    if any(holds(column.type, Kind.ANY) for column in schema.value):
        return FormatSpec("JSON", is_wrapped=not g.is_bare(schema))
    return ROW_FORMAT


def default_key_format(key: tuple[Column, ...]) -> FormatSpec:
    """Return how a key is written where nobody said: one primitive as Kafka's serializers do, else JSON."""
    if not key:
        return FormatSpec("NONE")
    if len(key) == 1:
        return FormatSpec("KAFKA" if key[0].type.kind in _KEY_KINDS else "JSON", is_wrapped=False)
    return FormatSpec("JSON")


def narrow_repartitions(topology: g.Topology) -> g.Topology:
    """Write only those value columns to a repartition topic that something behind it reads."""
    nodes = dict(topology.nodes)
    for name in reversed([n.name for n in nodes.values() if isinstance(n, g.Repartition)]):
        node = nodes[name]
        assert isinstance(node, g.Repartition)
        sources = [n.name for n in nodes.values() if isinstance(n, g.Source | g.Repartition)]
        outputs = [n.name for n in nodes.values() if isinstance(n, g.Sink | g.Route | g.Repartition)]
        read = {column for side, column in wire(nodes, sources, outputs).needs[name] if side is Side.VALUE}
        if not node.value_format.is_wrapped or "*" in read:
            continue
        schema = replace(node.schema, value=tuple(column for column in node.schema.value if column.name in read))
        nodes[name] = replace(node, schema=schema, value_format=internal_format(schema))
    return replace(topology, nodes=MappingProxyType(nodes))


def bar_own_topics(topology: g.Topology) -> g.Topology:
    """Tell each Route which topics it may not write: what the application reads (records would come back), and its own."""
    nodes = dict(topology.nodes)
    own = {n.topic for n in nodes.values() if isinstance(n, g.Source | g.Repartition)}
    own |= {changelog_topic(topology.name, store) for n in nodes.values() if (store := g.store_of(n)) is not None}
    for node in topology.nodes.values():
        if isinstance(node, g.Route):
            nodes[node.name] = replace(node, barred=frozenset(own - set(node.topics)))
    return replace(topology, nodes=MappingProxyType(nodes))


def split(topology: g.Topology) -> list[dict[str, g.Node]]:
    """Return the sub-topologies: nodes that are connected other than through a Repartition, each part in topology order.

    What reads one topic is connected by it, for a topic has one committed offset in a group. A global table connects nothing:
    each part that looks rows up in it reads it.
    """
    nodes = topology.nodes
    shared = {source for node in nodes.values() for source in node.inputs if g.is_global(nodes[source])}
    parent = {name: name for name in nodes}
    readers: dict[str, str] = {}

    def root(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for node in nodes.values():
        if not isinstance(node, g.Repartition):
            for source in set(node.inputs) - shared:
                parent[root(node.name)] = root(source)
        if isinstance(node, g.Source) and not g.is_global(node):
            parent[root(node.name)] = root(readers.setdefault(node.topic, node.name))
    parts: dict[str, dict[str, g.Node]] = {}
    for node in nodes.values():
        if node.name in shared:
            continue
        part = parts.setdefault(root(node.name), {})
        part |= {name: nodes[name] for name in shared.intersection(node.inputs)}
        part[node.name] = node
        if isinstance(node, g.Repartition):
            parts.setdefault(root(node.inputs[0]), {})[node.name] = node
    order = {name: i for i, name in enumerate(nodes)}
    ordered = [dict(sorted(part.items(), key=lambda item: order[item[0]])) for part in parts.values()]
    return [part for part in ordered if sources_of(part)]


def name_of(part: Mapping[str, g.Node]) -> str:
    """Return the source after which a sub-topology is named: the first that is its own."""
    sources = sources_of(part)
    return next((name for name in sources if not g.is_global(part[name])), sources[0])


def sources_of(part: Mapping[str, g.Node]) -> list[str]:
    """Return what a sub-topology reads: its Sources, and Repartitions that one of its nodes takes as input."""
    read = {name for node in part.values() if not isinstance(node, g.Repartition) for name in node.inputs}
    read |= {n.inputs[0] for n in part.values() if isinstance(n, g.Repartition)}
    return [n.name for n in part.values() if isinstance(n, g.Source) or (isinstance(n, g.Repartition) and n.name in read)]


def outputs_of(part: Mapping[str, g.Node]) -> list[str]:
    """Return what a sub-topology writes: its Sinks and Routes, and Repartitions whose input is one of its nodes."""
    outside = [n.name for n in part.values() if isinstance(n, g.Repartition) and n.inputs[0] not in part]
    return [n.name for n in part.values() if isinstance(n, g.Sink | g.Route | g.Repartition) and n.name not in outside]


def _subtopology(topology: g.Topology, part: dict[str, g.Node]) -> SubTopology:
    program = operator_program(part, sources_of(part), outputs_of(part))
    outputs = {}
    for name in outputs_of(part):
        node = part[name]
        written = topology.nodes[node.inputs[0]]
        suffix_bytes = program.suffix_bytes(name)
        if isinstance(node, g.Repartition):
            outputs[name] = OutputTopic(node.topic, node.partitions, is_repartition=True, key_suffix_bytes=suffix_bytes)
        elif isinstance(node, g.Route):
            outputs[name] = OutputTopic(
                "", node.partitions, node.topic_configs, key_suffix_bytes=suffix_bytes, is_computed=True, among=node.topics
            )
        else:
            assert isinstance(node, g.Sink)
            is_table = written.kind is g.EdgeKind.TABLE
            outputs[name] = OutputTopic(
                node.topic, node.partitions, node.topic_configs, key_suffix_bytes=suffix_bytes, is_table=is_table
            )
    tables = {n.store: n.name for n in part.values() if isinstance(n, g.Source) and n.store is not None}
    from .contents import contents_of  # describes with what itself imports the planner

    global_sources = frozenset(n.name for n in part.values() if g.is_global(n))
    name = re.sub(r"[^A-Za-z0-9._-]", "_", name_of(part))
    return SubTopology(name, program, outputs, tables, contents_of(part, program.stores), global_sources=global_sources)
