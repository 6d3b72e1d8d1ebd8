"""What the entries of a store mean, as text: compared when an application goes on, so that no changed aggregate is fed old state.

The columns alone do not say it: a count and a sum are both one BIGINT. Of a plain function only the name can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from . import graph as g
from .describe.words import expression_text
from .seams import StoreSpec


def contents_of(nodes: Mapping[str, g.Node], specs: Sequence[StoreSpec]) -> dict[str, str]:
    """Return store -> what it holds, of the stores that have a changelog of their own (a table's topic is read again anyway).

    `specs`: all stores of these nodes, those too that only an operator knows of (what waits in joins and suppress).
    """
    kept = {store: node for node in nodes.values() if (store := g.store_of(node)) is not None}
    return {
        spec.name: _describe(kept[spec.name], store_key_format(nodes, kept[spec.name])) if spec.name in kept else _waiting(spec)
        for spec in specs
        if not isinstance(kept.get(spec.name), g.Source)
    }


def _waiting(spec: StoreSpec) -> str:
    columns = ", ".join(f"{column.name} {column.type}" for column in spec.columns)
    return f"{columns} by {', '.join(f'{column.name} {column.type}' for column in spec.key)}, for its operator alone"


def _describe(node: g.Node, key_format: str) -> str:
    if isinstance(node, g.Aggregate | g.TableAggregate):
        parts = [
            f"{x.name} = {x.aggregator.name}({', '.join(map(expression_text, x.args))}) {_types(x)}" for x in node.aggregations
        ]
    else:
        parts = [f"{column.name} {column.type}" for column in node.schema.value]
    window = node.schema.window
    span = "" if window is None else f" per {window}"
    if isinstance(window, g.TimeWindow):
        span = f" per window of {window.size_ms} ms every {window.advance_ms} ms"
    key = ", ".join(f"{column.name} {column.type}" for column in node.schema.key)
    return f"{', '.join(parts)} by {key} as {key_format}{span}"


def _types(aggregation: g.Aggregation) -> str:
    return "/".join(str(column.type) for column in aggregation.aggregator.state_columns)


def store_key_format(nodes: Mapping[str, g.Node], node: g.Node) -> str:
    """Return the format of a store's keys: that of the source or repartition topic before it."""
    while not isinstance(node, g.Source | g.Repartition):
        node = nodes[node.inputs[0]]
    return node.key_format.name
