"""The graph while it grows, and the names of its nodes.

A name that something lasting hangs on (a store, an internal topic) is given by the user or derived from what the node does; a
clash is an error. Other names may be numbered: nothing outside this process sees them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from logflume.log import InvalidInput

from ..graph import Node, Sink, Topology


@dataclass(slots=True)
class Graph:
    """Nodes by name in order of creation. `registry`: where the schemas of its topics are."""

    name: str
    registry: str = ""
    nodes: dict[str, Node] = field(default_factory=dict)

    def add(self, node: Node, *, fix: str) -> Node:
        """Add a node whose name lasts; the very same node may be there already.

        Raises:
            InvalidInput: another node has the name; the message ends with `fix`.
        """
        if not isinstance(node.name, str):
            raise InvalidInput(f"a name is text of letters, digits, '.', '_' and '-', found {node.name!r}")
        existing = self.nodes.get(node.name)
        if isinstance(existing, Sink) and existing != node:
            self._give_way(existing)
            existing = None
        if existing is not None and existing != node:
            raise InvalidInput(f"there is already something else named {node.name!r} in {self.name!r}: {fix}")
        if existing is None:
            self.nodes[node.name] = node
        return self.nodes[node.name]

    def _give_way(self, sink: Sink) -> None:
        """Name a sink anew, in its place: a topic that is written and then read has its name for what reads it, in any order."""
        renamed = replace(sink, name=self.free(f"{sink.topic}-sink"))
        self.nodes = {each.name: each for each in (renamed if each is sink else each for each in self.nodes.values())}

    def free(self, wanted: str) -> str:
        """Return a name for a node without lasting effect."""
        name, number = wanted, 1
        while name in self.nodes:
            number += 1
            name = f"{wanted}-{number}"
        return name

    def expect_own(self, other: Graph, what: str) -> None:
        """Raise InvalidInput: `what` is of another application's graph."""
        if other is not self:
            raise InvalidInput(
                f"{what} belongs to application {other.name!r}, this to {self.name!r}: make both with one App, or let the other "
                "write a topic and read that"
            )

    def topology(self) -> Topology:
        """Return the graph as data."""
        return Topology(self.name, MappingProxyType(dict(self.nodes)))


def slug(text: str) -> str:
    """Return text as part of a name: what topics and directories allow.

    >>> slug("dep delay > 15")
    'dep_delay_15'
    """
    return re.sub(r"[^A-Za-z0-9.-]+", "_", text).strip("_") or "value"


def duration(ms: int) -> str:
    """Return a duration as part of a name.

    >>> duration(3_600_000), duration(1_500)
    ('1h', '1500ms')
    """
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)):
        if ms % size == 0:
            return f"{ms // size}{unit}"
    return f"{ms}ms"
