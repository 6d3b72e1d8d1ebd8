"""Which sub-topologies can be computed range by range, and the program that does it for one range. No Spark, no log.

A chain of stateless nodes gives the same records for an offset range whether or not it has seen what lies before. Behind it an
aggregate can start empty in each range, if folding the ranges' states together is the same, bit for bit, as adding the
records one after another: counts, sums of integers, minima and maxima of everything but floats. Whatever is behind the
aggregate runs where the states are merged.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from logflume.streams import graph as g
from logflume.streams.expr import Side
from logflume.streams.graph import TimeWindow
from logflume.streams.operators import OperatorProgram, Wiring, operator_program
from logflume.streams.seams import OutputTopic, Plan, Program, SubTopology

_PLACES = frozenset({(Side.META, "ROWPARTITION"), (Side.META, "ROWOFFSET")})


@dataclass(frozen=True, slots=True, eq=False)
class RangeForm:
    """A sub-topology over one offset range.

    Attributes:
        source: the node that reads.
        program: the chain and its aggregates alone; a windowed store's last column is the number of records in the entry.
        outputs: Sink and Repartition nodes that the chain writes.
        merges: store -> the node that merges what is in it into its own entries.
        windows: store -> its window, for windowed ones.
    """

    subtopology: str
    source: str
    program: Program
    outputs: Mapping[str, OutputTopic]
    merges: Mapping[str, str]
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
    return sub.program.wiring if isinstance(sub.program, OperatorProgram) else None


def range_form(sub: SubTopology) -> RangeForm | None:
    """Return a sub-topology over one range, None where that would not be exact.

    It has one input, a stream; up to its aggregates it keeps nothing; and these emit at the task's commit.
    """
    wiring = _wiring(sub)
    if wiring is None or len(sub.program.sources) != 1:
        return None
    source = wiring.node(next(iter(sub.program.sources)))
    if source.kind is not g.EdgeKind.STREAM or g.store_of(source) is not None:
        return None
    chain: set[str] = {source.name}
    partial: dict[str, g.Node] = {}
    if not _follow(wiring, source.name, chain, partial) or _behind(wiring, partial) & chain:
        return None
    found = {name: partial.get(name, operator.node) for name, operator in wiring.operators.items()}
    nodes = {name: node for name, node in found.items() if name in chain or name in partial}
    outputs = {name: sub.outputs[name] for name in sub.outputs if name in chain and name != source.name}
    specs = [spec for name in partial for spec in wiring.operators[name].stores()]
    return RangeForm(
        sub.name,
        source.name,
        operator_program(nodes, [source.name], list(outputs)),
        outputs,
        {g.store_of(made) or "": name for name, made in partial.items()},
        {spec.name: spec.window for spec in specs if spec.window is not None},
    )


def _follow(wiring: Wiring, name: str, chain: set[str], partial: dict[str, g.Node]) -> bool:
    """Collect the nodes up to those with a partial form; False when one of them cannot be computed range by range."""
    for child in wiring.children[name]:
        if child in chain:
            continue
        if child in wiring.lates:  # which of its records are late is known with those before only
            return False
        operator = wiring.operators[child]
        made = operator.partial()
        if made is not None:
            partial[child] = made
            continue
        node = operator.node
        is_output = child in wiring.outputs
        is_held = operator.is_stateless and node.kind is g.EdgeKind.STREAM and not operator.stores()
        if not is_output and not is_held:
            return False
        chain.add(child)
        if not is_output and not _follow(wiring, child, chain, partial):
            return False
    return True


def _behind(wiring: Wiring, partial: Mapping[str, g.Node]) -> Set[str]:
    """Return the names of all nodes behind the aggregates."""
    found: set[str] = set()
    waiting = list(partial)
    while waiting:
        for child in wiring.children[waiting.pop()]:
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found
