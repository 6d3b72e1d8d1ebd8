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
from logflume.log.records import I32, I64

from .. import graph as g
from ..columns import Batch
from .operator import Cut, Wiring
from .slices import consumers_of, inputs_of


def nodes_in_phases(wiring: Wiring, asking: Set[str]) -> frozenset[str] | None:
    """Return the nodes that take each phase before the next one: these, what keeps the rows for them, what leads there.

    What follows and works on the rows of some keys alone does so too: the rows of all phases, in order of cause, would come to it
    one by one. `asking`: those that look up what records of the sub-topology's topics change. Global tables, which are read
    apart, are not in it. None: one of those that it takes does not work on the rows of some keys alone.
    """
    found, waiting = set(asking), [*asking]
    consumers = {name: children for name, children in consumers_of(wiring).items() if not g.is_global(wiring.node(name))}
    while waiting:
        child = waiting.pop()
        new = {name for name, children in consumers.items() if child in children} - found
        found |= new
        waiting += new
    by_key = {
        name for name, each in wiring.operators.items() if each.cut(wiring) in (Cut.ROWS, Cut.KEYS) and not each.has_effects
    }
    if not found <= by_key:
        return None
    following = by_key - {*wiring.sources, *wiring.outputs}
    while more := {name for name in following - found if inputs_of(wiring, name) <= found}:
        found |= more
    return frozenset(found)


def phases_of(batches: Sequence[tuple[str, Batch]]) -> Iterator[tuple[str, Batch]]:
    """Yield records of a round, by source, phase by phase; keys whose hashes are equal are taken for one. No batch is empty."""
    if not batches:
        return
    hashes = np.concatenate([_hashes(batch) for _, batch in batches])
    order = np.concatenate([_order(batch) for _, batch in batches])
    counts = [len(batch) for _, batch in batches]
    which = np.repeat(np.arange(len(batches)), counts)
    by_key = np.lexsort((order, hashes))
    hashes, turns = hashes[by_key], which[by_key]
    is_first = np.ones(len(by_key), np.bool_)
    is_first[1:] = (hashes[1:] != hashes[:-1]) | (hashes[1:] < 0)  # records without a key have nothing to do with each other
    steps = np.zeros(len(by_key), np.int64)
    steps[1:] = (turns[1:] - turns[:-1]) % len(batches)
    steps[is_first] = 0
    reached = np.cumsum(steps)
    first = np.maximum.accumulate(np.where(is_first, np.arange(len(by_key)), 0))
    phases = np.empty(len(by_key), np.int64)
    phases[by_key] = turns[first] + reached - reached[first]
    starts = np.concatenate(([0], np.cumsum(counts)))
    in_order = np.lexsort((order, phases))
    bounds = [0, *(np.flatnonzero(np.diff(phases[in_order])) + 1).tolist(), len(in_order)]
    for low, high in pairwise(bounds):
        at = in_order[low:high]
        number = int(which[at[0]])
        source, batch = batches[number]
        yield source, batch.take(at - starts[number])


def _hashes(batch: Batch) -> I32:
    assert batch.keys is not None, "a source has encoded keys"
    return span_hashes(*batch.keys.spans())


def _order(batch: Batch) -> I64:
    assert batch.order is not None, "a source has an order"
    return batch.order
