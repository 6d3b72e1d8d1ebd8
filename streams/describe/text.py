"""A description as text."""

from __future__ import annotations

from .data import Description


def to_text(description: Description) -> str:
    """Return the sub-topologies, their nodes with inputs, and their stores."""
    lines = [description.application]
    for number, part in enumerate(description.parts, 1):
        lines.append(f"  {number}. {part.name}")
        stores = {store.name: store for store in part.stores}
        for node in part.nodes:
            head = f"    {node.name}  {node.kind}"
            title = "; ".join(text for text in (node.title, *node.details) if text)
            lines.append(f"{head}: {title}" if title else head)
            if node.inputs:
                lines.append(f"      <- {', '.join(node.inputs)}")
            if node.store in stores:
                store = stores[node.store]
                lines.append(f"      store {store.name} ({store.columns}), changelog {store.changelog}")
    return "\n".join(lines)
