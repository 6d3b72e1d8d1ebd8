"""What a user sees of the objects of the DSL: their methods in help() and completion, in a notebook a picture."""

from __future__ import annotations

from inspect import Signature
from types import MappingProxyType

from .. import graph as g
from .naming import Graph

# Of the DSL's own rooms: how the objects are made, and what they do for each other.
_INSIDE = frozenset({"base", "graph", "inputs", "node", "over", "rekeyed_on", "row", "scope", "stream", "then", "unpair"})


class Face(type):
    """A class that lists to help() and dir() what a user calls, not how it is built."""

    def __dir__(cls) -> list[str]:
        return [name for name in super().__dir__() if not name.startswith("_") and name not in _INSIDE]

    @property
    def __signature__(cls) -> Signature:
        """Nobody makes these objects by hand."""
        return Signature()


def picture(graph: Graph, node: g.Node) -> str:
    """Return what leads to a node, as SVG."""
    wanted = {node.name}
    for each in reversed(graph.nodes.values()):  # inputs come first there
        if each.name in wanted:
            wanted.update(each.inputs)
    nodes = {name: each for name, each in graph.nodes.items() if name in wanted}
    return g.Topology(graph.name, MappingProxyType(nodes)).describe().svg()
