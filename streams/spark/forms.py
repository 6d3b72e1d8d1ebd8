"""Which sub-topologies can be computed range by range, and the program that does it for one range. No Spark, no log.

A chain of stateless nodes gives the same records for an offset range whether or not it has seen what lies before. Behind it an
aggregate can start empty in each range, if folding the ranges' states together is the same, bit for bit, as adding the
records one after another: counts, sums of integers, minima and maxima of everything but floats. Whatever is behind the
aggregate runs where the states are merged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

from logflume.log.schemas import Kind
from logflume.streams import graph as g
from logflume.streams.compiler import CompiledProgram, compile_program
from logflume.streams.compiler.usage import Wiring
from logflume.streams.expr import Side
from logflume.streams.functions import totals
from logflume.streams.graph import TimeWindow
from logflume.streams.kernels import tiered
from logflume.streams.seams import OutputTopic, Plan, Program, State, SubTopology

_CHAIN = (g.Filter, g.Project, g.FlatMap, g.Rekey, g.Merge)
_EXACT_KINDS = frozenset({Kind.BOOLEAN, Kind.INTEGER, Kind.BIGINT, Kind.STRING, Kind.BYTES, Kind.DATE, Kind.TIME, Kind.TIMESTAMP})
"""Kinds of state columns whose merge is exact. Not DOUBLE (sums round by order, a NaN stays where it came first), nor DECIMAL."""

_PLACES = frozenset({(Side.META, "ROWPARTITION"), (Side.META, "ROWOFFSET")})

Merge = Callable[[State, State], State]


@dataclass(frozen=True, slots=True, eq=False)
class RangeForm:
    """A sub-topology over one offset range.

    Attributes:
        source: the node that reads.
        program: the chain and its aggregates alone; a windowed store's last column is the number of records in the entry.
        outputs: Sink and Repartition nodes that the chain writes.
        merges: store -> function of (state, partial state).
        windows: store -> its window, for windowed ones.
    """

    subtopology: str
    source: str
    program: Program
    outputs: Mapping[str, OutputTopic]
    merges: Mapping[str, Merge]
    windows: Mapping[str, TimeWindow]


@dataclass(frozen=True, slots=True, eq=False)
class Forms:
    """What of an application is computed range by range.

    Attributes:
        by_name: sub-topologies that read a source topic.
        combined: repartition topic -> the form of its reader, run where the topic would be written: aggregates without windows,
            to which the order of their input means nothing.
    """

    by_name: Mapping[str, RangeForm]
    combined: Mapping[str, RangeForm]

    @property
    def combined_readers(self) -> Mapping[str, RangeForm]:
        """Sub-topology -> form, of those that read a combined topic."""
        return {form.subtopology: form for form in self.combined.values()}


def forms_of(plan: Plan) -> Forms:
    """Return the forms of an application's sub-topologies; those without one are replayed record by record."""
    found = {sub.name: form for sub in plan.subtopologies if (form := range_form(sub)) is not None}
    repartition = {out.topic for sub in plan.subtopologies for out in sub.outputs.values() if out.is_repartition}
    topics = {sub.name: set(sub.program.sources.values()) for sub in plan.subtopologies}
    by_name = {name: form for name, form in found.items() if not topics[name] & repartition}
    written = {topic: _is_in_chains(plan, topic, by_name) for topic in repartition}
    combined = {
        topic: form
        for name, form in found.items()
        for topic in topics[name] & repartition
        if written[topic] and _has_no_order(plan, form)
    }
    return Forms(by_name, combined)


def _is_in_chains(plan: Plan, topic: str, forms: Mapping[str, RangeForm]) -> bool:
    """Return whether everything that writes a repartition topic is part of a chain that runs range by range."""
    for sub in plan.subtopologies:
        chain = forms[sub.name].outputs if sub.name in forms else {}
        if any(out.topic == topic and node not in chain for node, out in sub.outputs.items()):
            return False
    return True


def _has_no_order(plan: Plan, form: RangeForm) -> bool:
    """Return whether a form gives the same whatever the order and the offsets of its input."""
    if form.windows or form.outputs:
        return False
    wiring = _wiring(next(sub for sub in plan.subtopologies if sub.name == form.subtopology))
    return wiring is not None and not wiring.needs[form.source] & _PLACES


def _wiring(sub: SubTopology) -> Wiring | None:
    program = getattr(sub.program, "reference", sub.program)
    return program.wiring if isinstance(program, CompiledProgram) else None


def range_form(sub: SubTopology) -> RangeForm | None:
    """Return a sub-topology over one range, None where that would not be exact.

    It has one input, a stream; up to its aggregates it keeps nothing; and these emit at the task's commit.
    """
    wiring = _wiring(sub)
    if wiring is None or len(sub.program.sources) != 1:
        return None
    source = wiring.nodes[next(iter(sub.program.sources))]
    if source.kind is not g.EdgeKind.STREAM or g.store_of(source) is not None:
        return None
    chain: set[str] = {source.name}
    aggregates: list[g.Aggregate] = []
    if not _follow(wiring, source.name, chain, aggregates) or _behind(wiring, aggregates) & chain:
        return None
    partial = {node.name: _partial_node(node) for node in aggregates}
    nodes = {name: partial.get(name, node) for name, node in wiring.nodes.items() if name in chain or name in partial}
    outputs = {name: sub.outputs[name] for name in sub.outputs if name in chain and name != source.name}
    return RangeForm(
        sub.name,
        source.name,
        tiered(compile_program(nodes, [source.name], list(outputs))),
        outputs,
        {node.store: merge_of(node.aggregations) for node in aggregates},
        {node.store: node.window for node in aggregates if node.window is not None},
    )


def _follow(wiring: Wiring, name: str, chain: set[str], aggregates: list[g.Aggregate]) -> bool:
    """Collect the nodes up to the aggregates; False when one of them cannot be computed range by range."""
    for child in wiring.children[name]:
        if child.name in chain:
            continue
        if isinstance(child, g.Aggregate):
            if not is_mergeable(child):
                return False
            if child not in aggregates:
                aggregates.append(child)
            continue
        is_output = child.name in wiring.outputs
        is_held = isinstance(child, _CHAIN) and child.kind is g.EdgeKind.STREAM and g.store_of(child) is None
        if not is_output and not is_held:
            return False
        chain.add(child.name)
        if not is_output and not _follow(wiring, child.name, chain, aggregates):
            return False
    return True


def _behind(wiring: Wiring, aggregates: list[g.Aggregate]) -> Set[str]:
    """Return the names of all nodes behind the aggregates."""
    found: set[str] = set()
    waiting = [node.name for node in aggregates]
    while waiting:
        for child in wiring.children[waiting.pop()]:
            if child.name not in found:
                found.add(child.name)
                waiting.append(child.name)
    return found


def is_mergeable(node: g.Aggregate) -> bool:
    """Return whether the states of ranges can be merged exactly."""
    if node.emit is not g.Emit.COMMIT or g.is_bare(node.schema):
        return False
    used = [aggregation.aggregator for aggregation in node.aggregations]
    return all(each.merge is not None and all(c.type.kind in _EXACT_KINDS for c in each.state_columns) for each in used)


def _partial_node(node: g.Aggregate) -> g.Aggregate:
    """Return the aggregate of one range: a window's state with its number of records, which the ranges before may make late."""
    if node.window is None:
        return node
    name = "records"
    while any(aggregation.name == name for aggregation in node.aggregations):
        name += "_"
    return replace(node, aggregations=(*node.aggregations, g.Aggregation(name, totals.count())))


def merge_of(aggregations: tuple[g.Aggregation, ...]) -> Merge:
    """Return the function from the state of an entry and that of a partial entry to the state of both.

    >>> merge_of((g.Aggregation("n", totals.count()), g.Aggregation("m", totals.count())))((1, 2), (10, 20))
    (11, 22)
    """
    parts: list[tuple[Merge, int, int]] = []
    start = 0
    for aggregation in aggregations:
        stop = start + len(aggregation.aggregator.state_columns)
        assert aggregation.aggregator.merge is not None
        parts.append((aggregation.aggregator.merge, start, stop))
        start = stop

    def merged(state: State, partial: State) -> State:
        found: tuple[Any, ...] = ()
        for merge, i, j in parts:
            found += merge(state[i:j], partial[i:j])
        return found

    return parts[0][0] if len(parts) == 1 else merged
