"""A description as a Mermaid flowchart."""

from __future__ import annotations

from .data import Description, NodeBox

_SHAPES = {
    "source": ("([", "])"),
    "table": ("[(", ")]"),
    "sink": ("([", "])"),
    "repartition": ("[/", "/]"),
    "aggregate": ("[(", ")]"),
}


def to_mermaid(description: Description) -> str:
    """Return text for a Mermaid renderer, one subgraph per sub-topology."""
    lines = ["flowchart LR"]
    ids: dict[tuple[int, str, bool], str] = {}
    edges = []
    for number, part in enumerate(description.parts):
        lines.append(f'  subgraph p{number}["{_escape(part.name)}"]')
        for node in part.nodes:
            is_output = bool(node.inputs)
            ids[number, node.name, is_output] = f"n{len(ids)}"
            lines.append(f"    {ids[number, node.name, is_output]}{_shape(node)}")
            for source in node.inputs:
                origin = ids.get((number, source, False)) or ids[number, source, True]
                edges.append(f"  {origin} --> {ids[number, node.name, is_output]}")
        lines.append("  end")
    edges += _topic_edges(description, ids)
    return "\n".join([*lines, *edges]) + "\n"


def _topic_edges(description: Description, ids: dict[tuple[int, str, bool], str]) -> list[str]:
    """Return the edges through internal topics: dashed."""
    edges = []
    written = {
        node.topic: ids[i, node.name, True]
        for i, part in enumerate(description.parts)
        for node in part.nodes
        if node.inputs and node.topic
    }
    for number, part in enumerate(description.parts):
        edges += [
            f"  {written[node.topic]} -.-> {ids[number, node.name, False]}"
            for node in part.nodes
            if not node.inputs and node.topic in written
        ]
    return edges


def _shape(node: NodeBox) -> str:
    opening, closing = _SHAPES.get(node.kind, ("[", "]"))
    text = "<br/>".join(_escape(line) for line in (f"<b>{node.kind}</b>", node.title, *node.details) if line)
    return f'{opening}"{text}"{closing}'


def _escape(text: str) -> str:
    kept = text.startswith("<b>")
    escaped = text if kept else text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return escaped.replace('"', "#quot;")
