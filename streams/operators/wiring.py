"""The wiring of a sub-topology: what follows from its edges, asked of its operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .. import graph as g
from ..columns.batch import ColumnId
from ..expr import Side
from .late import LateOperator
from .operator import Operator, RawKey, Wiring
from .outputs import OutputOperator
from .registry import operator_of
from .source import SourceOperator


def wire(nodes: Mapping[str, g.Node], sources: Sequence[str], outputs: Sequence[str]) -> Wiring:
    """Work out the wiring of a sub-topology; `nodes` hold every node it runs, inputs first."""
    operators: dict[str, Operator[Any]] = {}
    for node in nodes.values():
        if not isinstance(node, g.Repartition):
            operators[node.name] = operator_of(node)
            continue
        if node.name in outputs:
            operators[f"{node.name} (written)" if node.name in sources else node.name] = OutputOperator(node)
        if node.name in sources:
            operators[node.name] = SourceOperator(node)
    children: dict[str, list[str]] = {name: [] for name in operators}
    for name, operator in operators.items():
        if isinstance(operator, SourceOperator):
            continue
        for source in dict.fromkeys(operator.node.inputs):
            if operator.takes(source):
                children[source].append(name)
    raw_keys: dict[str, RawKey | None] = {}
    for name, operator in operators.items():
        inputs = () if isinstance(operator, SourceOperator) else operator.node.inputs
        raw_keys[name] = operator.raw_key([raw_keys[source] for source in inputs])
    wiring = Wiring(
        operators,
        tuple(sources),
        tuple(outputs),
        {name: tuple(found) for name, found in children.items()},
        {},
        raw_keys,
        frozenset(),
        {operator.node.inputs[0]: name for name, operator in operators.items() if isinstance(operator, LateOperator)},
    )
    return replace(wiring, needs=_needs(wiring), wants_old=frozenset(_wanting(wiring)))


def _needs(wiring: Wiring) -> dict[str, frozenset[ColumnId]]:
    """Return what is read of each node; a computed bare value always, for it alone says whether it is null."""
    needs: dict[str, frozenset[ColumnId]] = {}
    for name in reversed(list(wiring.operators)):
        operator = wiring.operators[name]
        node = operator.node
        found = operator.keeps()
        if g.is_bare(node.schema) and not isinstance(operator, SourceOperator):
            found = found | {(Side.VALUE, node.schema.value[0].name)}
        for child in wiring.children[name]:
            found = found | wiring.operators[child].reads(node, needs[child], wiring)
            late = wiring.lates.get(child)
            found = found if late is None else found | needs[late]
        needs[name] = frozenset(found)
    return needs


def _wanting(wiring: Wiring) -> set[str]:
    wanting: set[str] = set()
    for name in reversed(list(wiring.operators)):
        if wiring.node(name).kind is not g.EdgeKind.TABLE:
            continue
        for child in wiring.children[name]:
            if wiring.operators[child].wants_old(is_asked=child in wanting):
                wanting.add(name)
    return wanting
