"""Which columns anything downstream reads: only those are decoded and computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from logflume.log.schemas import Column, FormatSpec

from .. import graph as g
from ..expr import TABLE_PREFIX, WHOLE, Expr, PyCall, Side, columns_used, walk
from .flow import ColumnId, Labels

_KEYED_BYTES = (g.Source, g.Repartition)


@dataclass(frozen=True, slots=True)
class Wiring:
    """The nodes of a sub-topology and what follows from their edges alone.

    Attributes:
        nodes: by name, inputs first. A Repartition is here twice over: as an output of the sub-topology that writes it
            (in `outputs`), and as a source of the one that reads it (in `sources`).
        children: name -> consumers inside the sub-topology, in order of creation.
        needs: name -> the columns of its output that a consumer reads.
        raw_keys: name -> format and columns of the encoded key at hand there, None after a change of key.
        wants_old: TABLE nodes whose consumers compare with the row before.
        labels: what nodes and stores are called in the text.
    """

    nodes: Mapping[str, g.Node]
    sources: tuple[str, ...]
    outputs: tuple[str, ...]
    children: Mapping[str, tuple[g.Node, ...]]
    needs: Mapping[str, frozenset[ColumnId]]
    raw_keys: Mapping[str, tuple[FormatSpec, tuple[Column, ...]] | None]
    wants_old: frozenset[str]
    labels: Labels


def wire(nodes: Mapping[str, g.Node], sources: Sequence[str], outputs: Sequence[str]) -> Wiring:
    """Work out the wiring of a sub-topology; `nodes` hold every node it runs, inputs first."""
    children: dict[str, list[g.Node]] = {name: [] for name in nodes}
    for node in nodes.values():
        if node.name in sources and node.name not in outputs:
            continue
        for name in dict.fromkeys(node.inputs):
            if not (isinstance(node, g.StreamTableJoin) and name == node.inputs[1] and name != node.inputs[0]):
                children[name].append(node)
    raw_keys = _raw_keys(nodes, sources)
    needs = _needs(nodes, children, raw_keys, set(sources))
    return Wiring(
        nodes,
        tuple(sources),
        tuple(outputs),
        {name: tuple(found) for name, found in children.items()},
        needs,
        raw_keys,
        frozenset(_wants_old(nodes, children)),
        Labels.of(nodes, [store for store in map(g.store_of, nodes.values()) if store is not None]),
    )


def calls_python(expr: Expr) -> bool:
    """Return whether an expression holds a plain callable: what that raises drops the record."""
    return any(isinstance(n, PyCall) for n in walk(expr))


def sees_null(node: g.Node, expr: Expr) -> bool:
    """Return whether an expression of a node is evaluated for a null value: when a plain callable takes all of a stream's value.

    On a table a null value is a deleted row, which no callable is asked about.
    """
    return node.kind is not g.EdgeKind.TABLE and any(
        isinstance(n, PyCall) and (Side.VALUE, WHOLE) in columns_used(n) for n in walk(expr)
    )


def _raw_keys(nodes: Mapping[str, g.Node], sources: Sequence[str]) -> dict[str, tuple[FormatSpec, tuple[Column, ...]] | None]:
    found: dict[str, tuple[FormatSpec, tuple[Column, ...]] | None] = {}
    for node in nodes.values():
        if isinstance(node, _KEYED_BYTES) and node.name in sources:
            found[node.name] = (node.key_format, node.schema.key)
        elif isinstance(node, g.Rekey):
            found[node.name] = None
        else:
            inputs = [found[name] for name in node.inputs]
            same = all(raw == inputs[0] for raw in inputs) or isinstance(node, g.StreamTableJoin)
            found[node.name] = inputs[0] if same else None
    return found


def _needs(
    nodes: Mapping[str, g.Node],
    children: Mapping[str, list[g.Node]],
    raw_keys: Mapping[str, tuple[FormatSpec, tuple[Column, ...]] | None],
    sources: set[str],
) -> dict[str, frozenset[ColumnId]]:
    needs: dict[str, frozenset[ColumnId]] = {}
    for name in reversed(list(nodes)):
        kept = isinstance(nodes[name], g.Filter | g.Project | g.ToTable) and g.store_of(nodes[name]) is not None
        stored = {(Side.VALUE, column.name) for column in nodes[name].schema.value} if kept else set()
        needs[name] = frozenset(stored).union(*(_reads(child, nodes[name], nodes, needs, raw_keys) for child in children[name]))
    return needs


def _reads(
    node: g.Node,
    source: g.Node,
    nodes: Mapping[str, g.Node],
    needs: Mapping[str, frozenset[ColumnId]],
    raw_keys: Mapping[str, tuple[FormatSpec, tuple[Column, ...]] | None],
) -> set[ColumnId]:
    """Return the columns of `source` that `node` reads for itself and for what follows it.

    Whether a computed bare value is null is only known from the value, so that who asks for that reads it.
    """
    found = _reads_by_expressions(node, source, nodes, needs, raw_keys)
    is_computed = g.is_bare(source.schema) and not isinstance(source, _KEYED_BYTES)
    if is_computed and isinstance(node, g.Filter | g.Aggregate | g.StreamTableJoin | g.ToTable):
        found.add((Side.VALUE, source.schema.value[0].name))
    return found


def _reads_by_expressions(
    node: g.Node,
    source: g.Node,
    nodes: Mapping[str, g.Node],
    needs: Mapping[str, frozenset[ColumnId]],
    raw_keys: Mapping[str, tuple[FormatSpec, tuple[Column, ...]] | None],
) -> set[ColumnId]:
    below = needs[node.name] if not isinstance(node, g.Repartition) else frozenset()
    beside = {c for c in below if c[0] is not Side.VALUE}
    match node:
        case g.Filter():
            return set(below) | columns_used(node.predicate)
        case g.Project():
            return beside.union(*(columns_used(x) for name, x in node.columns if is_needed(below, name)))
        case g.FlatMap():
            return beside.union(*(columns_used(x) for _, x, _ in node.columns))
        case g.Rekey():
            kept = {c for c in below if c[0] is not Side.KEY}
            return kept.union(*(columns_used(x) for _, x in node.key))
        case g.Sink() | g.Repartition():
            return _written(node, source, raw_keys[source.name])
        case g.Aggregate():
            arguments = {c for a in node.aggregations for x in a.args for c in columns_used(x)}
            return arguments | (
                beside - {(Side.META, "WINDOWSTART"), (Side.META, "WINDOWEND")} if node.emit is g.Emit.UPDATE else set()
            )
        case g.StreamTableJoin():
            used = {c for name, x in node.columns if is_needed(below, name) for c in columns_used(x)}
            if any(side is Side.KEY for side, _ in _view_reads(nodes, node.inputs[1])):
                beside |= {(Side.KEY, column.name) for column in source.schema.key}
            return beside | {c for c in used if not c[1].startswith(TABLE_PREFIX)}
        case g.Foreach():
            return set(below) | {(Side.VALUE, WHOLE), (Side.KEY, WHOLE)}
    return set(below)


def _view_reads(nodes: Mapping[str, g.Node], name: str) -> set[ColumnId]:
    """Return what the views between a joined table and the table that is kept read."""
    node = nodes[name]
    if g.store_of(node) is not None:
        return set()
    if isinstance(node, g.Filter):
        return columns_used(node.predicate) | _view_reads(nodes, node.inputs[0])
    if isinstance(node, g.Project):
        return _view_reads(nodes, node.inputs[0]).union(*(columns_used(x) for _, x in node.columns))
    return set()


def is_needed(needs: frozenset[ColumnId], name: str) -> bool:
    """Return whether a value column is read, by itself or as part of the whole."""
    return (Side.VALUE, name) in needs or (Side.VALUE, WHOLE) in needs


def _written(
    node: g.Sink | g.Repartition, source: g.Node, raw_key: tuple[FormatSpec, tuple[Column, ...]] | None
) -> set[ColumnId]:
    columns = {(Side.VALUE, column.name) for column in node.schema.value}
    if raw_key is None or raw_key[0] != node.key_format:
        columns |= {(Side.KEY, column.name) for column in source.schema.key}
        if source.schema.window is not None:
            columns.add((Side.META, "WINDOWSTART"))
    if isinstance(node, g.Sink) and node.timestamp is not None:
        columns |= columns_used(node.timestamp)
    return columns


def _wants_old(nodes: Mapping[str, g.Node], children: Mapping[str, list[g.Node]]) -> set[str]:
    wanting: set[str] = set()
    for name in reversed(list(nodes)):
        for child in children[name]:
            if child.kind is not g.EdgeKind.TABLE or nodes[name].kind is not g.EdgeKind.TABLE:
                continue
            if isinstance(child, g.Filter) or child.name in wanting:
                wanting.add(name)
    return wanting
