"""A topology as it will run, as plain data: what the text, the diagram and the picture are drawn from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from .. import graph as g
from ..dsl.naming import duration
from ..planner import name_of, outputs_of, rewrite, sources_of, split
from ..seams import changelog_topic
from .words import expression_text, function_name


@dataclass(frozen=True, slots=True)
class NodeBox:
    """A node of a sub-topology: what it does in a few words, and its details.

    Attributes:
        kind: source, table, filter, select, map, key, aggregate, join, sink, repartition, ...
        inputs: names of nodes in the same sub-topology.
        topic: for sources, sinks and repartitions. `store`: its state store.
    """

    name: str
    kind: str
    title: str
    details: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    topic: str | None = None
    store: str | None = None


@dataclass(frozen=True, slots=True)
class StoreBox:
    """A state store and the topic that it is restored from."""

    name: str
    columns: str
    changelog: str


@dataclass(frozen=True, slots=True)
class Part:
    """A sub-topology."""

    name: str
    nodes: tuple[NodeBox, ...]
    stores: tuple[StoreBox, ...]


@dataclass(frozen=True, slots=True)
class Description:
    """A described topology. `str()` is text; `mermaid()` and `svg()` are pictures.

    >>> import logflume.streams as lf
    >>> app = lf.App("words")
    >>> app.stream("lines", str).group_by(lf.col.value).count().to("counts")
    >>> print(app.topology().describe())
    words
      1. lines
        lines  source: reads lines
        lines-by-value  key: value
          <- lines
        lines-by-value-repartition  repartition: writes words-lines-by-value-repartition
          <- lines-by-value
      2. lines-by-value-repartition
        lines-by-value-repartition  repartition: reads words-lines-by-value-repartition
        lines-by-value-count  aggregate: count = count()
          <- lines-by-value-repartition
          store lines-by-value-count (count BIGINT), changelog words-lines-by-value-count-changelog
        counts  sink: writes counts
          <- lines-by-value-count
    """

    application: str
    parts: tuple[Part, ...] = field(default_factory=tuple)

    def __str__(self) -> str:
        from .text import to_text

        return to_text(self)

    def with_rates(self, rates: Mapping[str, float]) -> Description:
        """Return the description with how many rows a second leave its nodes, as far as that is known."""

        def rated(node: NodeBox) -> NodeBox:
            rate = rates.get(node.name)
            return node if rate is None else replace(node, details=(*node.details, f"{rate:,.0f} rows/s"))

        return replace(self, parts=tuple(replace(part, nodes=tuple(map(rated, part.nodes))) for part in self.parts))

    def mermaid(self) -> str:
        """Return a Mermaid flowchart."""
        from .mermaid import to_mermaid

        return to_mermaid(self)

    def svg(self) -> str:
        """Return a picture."""
        from .svg import to_svg

        return to_svg(self)

    def _repr_svg_(self) -> str:
        return self.svg()


def describe(topology: g.Topology) -> Description:
    """Describe a topology as it will run, repartition topics and stores included. Raises InvalidInput where it cannot run."""
    rewritten = rewrite(topology)
    return Description(rewritten.name, tuple(_part(rewritten.name, part) for part in split(rewritten)))


def _part(application: str, part: Mapping[str, g.Node]) -> Part:
    sources, outputs = sources_of(part), outputs_of(part)
    boxes = []
    for node in part.values():
        if isinstance(node, g.Repartition):
            if node.name in outputs:
                boxes.append(_box(node, f"writes {node.topic}", node.inputs, node.topic))
            if node.name in sources:
                boxes.append(_box(node, f"reads {node.topic}", (), node.topic))
        else:
            boxes.append(_describe(node))
    stores = [_store(application, node) for node in part.values() if g.store_of(node) is not None]
    return Part(name_of(part), tuple(boxes), tuple(stores))


def _box(node: g.Node, title: str, inputs: tuple[str, ...], topic: str | None, details: tuple[str, ...] = ()) -> NodeBox:
    return NodeBox(node.name, _kind(node), title, details, inputs, topic, g.store_of(node))


def _kind(node: g.Node) -> str:
    if isinstance(node, g.Source):
        return "table" if node.kind is g.EdgeKind.TABLE else "source"
    return {
        g.Filter: "filter", g.Project: "select", g.FlatMap: "flat map", g.Rekey: "key", g.Repartition: "repartition",
        g.Aggregate: "aggregate", g.StreamTableJoin: "join", g.ToStream: "to stream", g.ToTable: "to table",
        g.StreamJoin: "join", g.TableJoin: "join", g.Subscribe: "ask", g.Answer: "answer", g.Resolve: "join",
        g.Split: "split", g.Branch: "branch",
        g.Regroup: "key", g.TableAggregate: "aggregate", g.Suppress: "suppress", g.Process: "process", g.Child: "child",
        g.Merge: "merge",
        g.MapBatches: "map", g.MapAsync: "map", g.Late: "late", g.Deduplicate: "deduplicate",
        g.Foreach: "call", g.Sink: "sink", g.Route: "sink",
    }[type(node)]  # fmt: skip


def _describe(node: g.Node) -> NodeBox:
    match node:
        case g.Source():
            return _box(node, f"reads {node.topic}", (), node.topic)
        case g.Sink():
            return _box(node, f"writes {node.topic}", node.inputs, node.topic)
        case g.Route():
            among = (f"among {', '.join(node.topics)}",) if node.topics else ()
            return _box(node, f"writes to {expression_text(node.topic_of)}", node.inputs, expression_text(node.topic_of), among)
        case g.Filter():
            return _box(node, expression_text(node.predicate), node.inputs, None)
        case g.Split():
            return _box(node, ", ".join(expression_text(predicate) for predicate in node.predicates), node.inputs, None)
        case g.Branch():
            return _box(node, "the rest" if node.number == g.REST else f"branch {node.number + 1}", node.inputs, None)
        case g.Project():
            texts = [(name, expression_text(expr)) for name, expr in node.columns]
            kept = ", ".join(name if name == text else f"{name} = {text}" for name, text in texts)
            return _box(node, kept, node.inputs, None)
        case g.FlatMap():
            return _box(node, ", ".join(f"{name} in {expression_text(x)}" for name, x, _ in node.columns), node.inputs, None)
        case g.Rekey():
            return _box(node, ", ".join(expression_text(x) for _, x in node.key), node.inputs, None)
        case g.Aggregate():
            return _box(node, _aggregations(node.aggregations), node.inputs, None, _window(node.window))
        case g.TableAggregate():
            return _box(node, _aggregations(node.aggregations), node.inputs, None)
        case g.Regroup():
            return _box(node, ", ".join(expression_text(x) for _, x in node.key), node.inputs, None)
        case g.StreamTableJoin():
            waits = () if node.grace_ms is None else (f"after {duration(node.grace_ms)}",)
            return _box(node, f"{node.join} with {node.inputs[1]}", node.inputs, None, waits)
        case g.TableJoin():
            return _box(node, f"{node.join} with {node.inputs[1]}", node.inputs, None)
        case g.StreamJoin():
            times = f"from {duration(node.before_ms)} before to {duration(node.after_ms)} after"
            grace = f", grace {duration(node.grace_ms)}" if node.grace_ms else ""
            return _box(node, f"{node.join} with {node.inputs[1]}", node.inputs, None, (times + grace,))
        case g.Subscribe():
            return _box(node, ", ".join(expression_text(x) for _, x in node.key), node.inputs, None)
        case g.Answer() | g.Resolve():
            return _box(node, f"{node.join} with {node.inputs[1]}", node.inputs, None)
        case g.Suppress():
            until = "until the window closes" if node.wait_ms is None else f"for {duration(node.wait_ms)}"
            bound = () if node.max_records is None else (f"at most {node.max_records} records",)
            return _box(node, until, node.inputs, None, bound)
        case g.Process():
            return _box(node, function_name(node.make), node.inputs, None, tuple(f"store {s.name}" for s in node.stores))
        case g.Child():
            return _box(node, f"what {node.inputs[0]} gives {node.child}", node.inputs, None)
        case g.MapBatches():
            return _box(node, f"{function_name(node.function)} over {node.form} batches", node.inputs, None)
        case g.MapAsync():
            return _box(node, f"{function_name(node.function)}, {node.limit} at a time", node.inputs, None)
        case g.Late():
            return _box(node, f"too late for {node.inputs[0]}", node.inputs, None)
        case g.Deduplicate():
            within = "" if node.within_ms is None else f" within {duration(node.within_ms)}"
            return _box(node, f"the first of each key{within}", node.inputs, None)
        case g.Foreach():
            return _box(node, expression_text(node.function), node.inputs, None)
    return _box(node, "", node.inputs, None)


def _aggregations(aggregations: tuple[g.Aggregation, ...]) -> str:
    return ", ".join(f"{a.name} = {a.aggregator.name}({', '.join(expression_text(x) for x in a.args)})" for a in aggregations)


def _window(window: g.Window | None) -> tuple[str, ...]:
    match window:
        case None:
            return ()
        case g.CalendarWindow():
            text = f"each {window.unit} in {window.zone}"
        case g.UnlimitedWindow():
            return (f"unlimited from {window.start_ms} ms" if window.start_ms else "unlimited",)
        case g.SessionWindow():
            text = f"session gap {duration(window.gap_ms)}"
        case g.SlidingWindow():
            text = f"sliding {duration(window.size_ms)}"
        case _:
            text = f"tumbling {duration(window.size_ms)}"
            if window.advance_ms != window.size_ms:
                text = f"hopping {duration(window.size_ms)} every {duration(window.advance_ms)}"
    return (text + (f", grace {duration(window.grace_ms)}" if window.grace_ms else ""),)


def _store(application: str, node: g.Node) -> StoreBox:
    store = g.store_of(node)
    assert store is not None
    changelog = node.topic if isinstance(node, g.Source) else changelog_topic(application, store)
    return StoreBox(store, ", ".join(f"{c.name} {c.type}" for c in node.schema.value), changelog)
