"""Records of several topics in few steps where rows are looked up that the same records change.

Which row a record meets hangs on the records of its own key alone. So those of a key keep their order, and those of other keys
need not: a phase takes the next records of one topic of all keys at once. Records whose keys alternate between two topics N times
take N phases; where no key is in both topics it is two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from itertools import pairwise

import numpy as np

from logflume.log import span_hashes

from .. import graph as g
from ..columns.key_forms import KeyForms
from ..seams import Taken
from .operator import Cut, Wiring
from .slices import consumers_of


def nodes_in_phases(wiring: Wiring, asking: Set[str]) -> frozenset[str] | None:
    """Return the nodes that take each phase before the next one: these, what keeps the rows for them, what leads there.

    `asking`: those that look up what records of the sub-topology's topics change. Global tables, which are read apart, are not
    in it. None: one of all these does not work on the rows of some keys alone, or keys are not known as they come.
    """
    found, waiting = set(asking), [*asking]
    consumers = {name: children for name, children in consumers_of(wiring).items() if not g.is_global(wiring.node(name))}
    while waiting:
        child = waiting.pop()
        new = {name for name, children in consumers.items() if child in children} - found
        found |= new
        waiting += new
    operators = [wiring.operators[name] for name in found]
    is_by_key = all(each.cut(wiring) in (Cut.ROWS, Cut.KEYS) and not each.has_effects for each in operators)
    return frozenset(found) if is_by_key and not any(map(_has_forms, (each.node for each in operators))) else None


def _has_forms(node: g.Node) -> bool:
    """Return whether one key of a source may be written in several ways."""
    return isinstance(node, g.Source) and KeyForms.of(node.key_format, node.schema.key) is not None


def phases_of(parts: Sequence[Taken]) -> Iterator[Taken]:
    """Yield the records of a round phase by phase; keys whose hashes are equal are taken for one."""
    hashes = np.concatenate(
        [span_hashes(p.chunk.buffer, p.chunk.key_starts[p.start : p.stop], p.chunk.key_sizes[p.start : p.stop]) for p in parts]
    )
    places = np.concatenate([part.places for part in parts])
    counts = [part.stop - part.start for part in parts]
    which = np.repeat(np.arange(len(parts)), counts)
    order = np.lexsort((places, hashes))
    hashes, turns = hashes[order], which[order]
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = (hashes[1:] != hashes[:-1]) | (hashes[1:] < 0)  # records without a key have nothing to do with each other
    steps = np.zeros(len(order), np.int64)
    steps[1:] = (turns[1:] - turns[:-1]) % len(parts)
    steps[is_first] = 0
    reached = np.cumsum(steps)
    first = np.maximum.accumulate(np.where(is_first, np.arange(len(order)), 0))
    phases = np.empty(len(order), np.int64)
    phases[order] = turns[first] + reached - reached[first]
    starts = np.concatenate(([0], np.cumsum(counts)))
    in_order = np.lexsort((places, phases))
    bounds = [0, *(np.flatnonzero(np.diff(phases[in_order])) + 1).tolist(), len(in_order)]
    for low, high in pairwise(bounds):
        at = in_order[low:high]
        number = int(which[at[0]])
        part, rows = parts[number], at - starts[number]
        yield Taken(part.source, part.chunk.take(part.start + rows), 0, len(rows), part.places[rows])
