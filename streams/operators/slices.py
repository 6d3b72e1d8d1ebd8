"""A task cut by keys: several run it side by side over all of its records, each keeping the state and results of its own keys.

Which order records have, what time it is at each of them and which of them are bad is known only by looking at all of them: so
every slice takes all records, in the order of the task, and runs what stands before the cut in full. Behind the cut, the region,
an operator is given the rows of its slice alone, and is told where the rows of others have moved its time. The cut is as early
as it can be: at best where a source has read keys, before it decodes anything else. An operator whose results depend on time has
none in the region before it, because the rows that would move its time are not all there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from logflume.log import span_hashes
from logflume.log.records import I64

from .. import graph as g
from ..columns import Batch, Bytes
from ..vectors.expressions import Mask
from .operator import Cut, Wiring, Work, interleaved

TOLD_OF_NOTHING_MS = 1 << 62
"""The `slack_ms` of a Work that is given the rows of all slices and goes by them."""
_MIXING = np.uint64(0x9E3779B97F4A7C15)


@runtime_checkable
class TimedWork(Protocol):
    """What a Work can do whose operator is cut with TIMES."""

    def cut(self, own: Slice) -> bool:
        """Note, before it starts, that the task is cut; return whether it wants the rows of other slices too, to know them by."""
        ...

    @property
    def slack_ms(self) -> int:
        """How far behind the largest time a row may be for which no other time makes a difference."""
        ...

    def moves_time(self, batch: Batch) -> Mask:
        """Return which rows of an input move the time of that input."""
        ...

    def note_time(self, source: str, time_ms: int) -> None:
        """Note that rows of other slices have moved the time of an input to this."""
        ...


@runtime_checkable
class ClosingWork(Protocol):
    """A `TimedWork` that can let go of what closes with the headers of the record by which it did."""

    @property
    def notes_closing(self) -> bool:
        """Whether it does."""
        ...

    def note_closing(self, batch: Batch) -> None:
        """Note the rows of all slices that move time, before any of them is given."""
        ...


@dataclass(frozen=True, slots=True)
class Region:
    """What is behind the cut of a sub-topology.

    Attributes:
        nodes: the operators that take the rows of a slice alone; a source of them decodes no other rows.
        cuts: of those that rows come to over the cut, the inputs on which they do.
        timed: those of them that are told of the time.
        stores: what these operators keep.
    """

    nodes: frozenset[str]
    cuts: Mapping[str, frozenset[str]]
    timed: frozenset[str]
    stores: frozenset[str]


@dataclass(frozen=True, slots=True)
class Slice:
    """One of `count` slices of a task. The first one also puts out what is before the cut."""

    region: Region
    number: int
    count: int

    def own(self, batch: Batch) -> Mask:
        """Return which rows are of this slice; those without a key are of the first."""
        if batch.keys is None:
            if batch.rows is None or batch.chunk is None:
                return np.full(len(batch), self.number == 0)
            owned: Mask = batch.chunk.offsets[batch.rows] % self.count == self.number
            return owned
        return self.own_keys(batch.keys)

    def own_keys(self, keys: Bytes) -> Mask:
        """Return which keys are of this slice; null is of the first.

        What follows from a key's hash modulo some number the keys of a partition have in common: so it is mixed once more.
        """
        hashes = span_hashes(*keys.spans())
        mixed = (hashes.astype(np.uint64) * _MIXING) >> np.uint64(32)
        mine: Mask = np.where(hashes < 0, 0, mixed % np.uint64(self.count)) == self.number
        return mine

    def mutes(self, node: str) -> bool:
        """Return whether what a node reports is told by another slice."""
        return self.number > 0 and node not in self.region.nodes


def region_of(wiring: Wiring) -> Region | None:
    """Return what a task can be cut into slices behind; None where that would not be exact, or would share no state."""
    if any(operator.has_effects for operator in wiring.operators.values()):
        return None
    cuts = {name: operator.cut(wiring) for name, operator in wiring.operators.items()}
    consumers = consumers_of(wiring)
    nodes = {name for name, cut in cuts.items() if cut is not Cut.WHOLE}
    while True:
        placed = {name for name in nodes if _is_placed(wiring, name, nodes, cuts, consumers)}
        if placed == nodes:
            break
        nodes = placed
    if not any(cuts[name] in _KEYED for name in nodes):
        return None
    if any(_lets_go_together(wiring, name) and writes_repartition(wiring, name) for name in wiring.operators.keys() - nodes):
        return None  # what it lets go of would be dealt out on its way to the topic, where it has an order
    inputs = {name: frozenset(inputs_of(wiring, name) - nodes) for name in nodes}
    stores = frozenset(spec.name for name in nodes for spec in wiring.operators[name].stores())
    over = {name: found for name, found in inputs.items() if found}
    return Region(frozenset(nodes), over, frozenset(name for name in over if cuts[name] is Cut.TIMES), stores)


_KEYED = (Cut.KEYS, Cut.TIMES)


def _is_placed(wiring: Wiring, name: str, nodes: set[str], cuts: Mapping[str, Cut], consumers: Mapping[str, set[str]]) -> bool:
    """Return whether a node can be in the region: all that follows from it is too, and can work with what it gives.

    Where rows with the start of a window behind their key come over the cut, they are dealt out by both: nothing may follow that
    wants all rows of a key, whatever their window.
    """
    if any(child not in nodes or cuts[child] is Cut.TIMES for child in consumers[name]):
        return False
    if all(wiring.schema(over).window is None for over in inputs_of(wiring, name) - nodes):
        return True
    return not any(
        cuts[each] in _KEYED and not wiring.operators[each].keeps_windows_apart for each in _with_all_behind(name, consumers)
    )


def _lets_go_together(wiring: Wiring, name: str) -> bool:
    """Return whether rows of several keys may leave a node at one record or a task commit."""
    return bool(wiring.operators[name].stores()) and not isinstance(wiring.node(name), g.Source | g.Repartition)


def writes_repartition(wiring: Wiring, name: str) -> bool:
    """Return whether something that follows from a node goes to a repartition topic."""
    following = {each: set(wiring.following(each)) for each in wiring.operators}
    return any(isinstance(wiring.node(each), g.Repartition) for each in _with_all_behind(name, following))


def is_ordered_at_commit(wiring: Wiring, node: g.Aggregate | g.TableAggregate) -> bool:
    """Return whether what leaves an aggregate at a task commit, of several slices, goes to a repartition topic: ordered there."""
    return node.emit is not g.Emit.UPDATE and writes_repartition(wiring, node.name)


def _with_all_behind(name: str, consumers: Mapping[str, set[str]]) -> set[str]:
    found, waiting = {name}, [name]
    while waiting:
        more = consumers[waiting.pop()] - found
        found |= more
        waiting += more
    return found


def consumers_of(wiring: Wiring) -> dict[str, set[str]]:
    """Return of each node which others take its rows, or look them up."""
    owners = {spec.name: name for name, operator in wiring.operators.items() for spec in operator.stores()}
    found = {name: set(wiring.following(name)) for name in wiring.operators}
    for name, operator in wiring.operators.items():
        for come in inputs_of(wiring, name):
            for store in operator.looks_up(come, wiring):
                if store in owners:
                    found[owners[store]].add(name)
    return found


def inputs_of(wiring: Wiring, name: str) -> set[str]:
    """Return the nodes whose rows a node takes."""
    return {parent for parent in wiring.operators if name in wiring.following(parent)}


class SlicedWork(Work):
    """Gives a Work the rows of a slice, of inputs that come over the cut. The rows of its other inputs are of the slice already.

    Between two rows the time of a Work may have been moved by rows of others. It matters to a row that does not move time itself
    and is further behind than what counts for sure: before such a one the Work is told, and what is given to it at once ends
    there.
    """

    def __init__(self, work: Work, name: str, own: Slice) -> None:
        self._work, self._own, self._cut = work, own, own.region.cuts[name]
        self._clocks: dict[str, int] = {}
        self._timed: TimedWork | None = None
        self._gives_all = False
        if name in own.region.timed:
            assert isinstance(work, TimedWork), name
            self._timed, self._gives_all = work, work.cut(own)
        self._closing = work if isinstance(work, ClosingWork) and work.notes_closing else None

    def start(self) -> None:
        self._work.start()

    def commit(self) -> None:
        self._work.commit()

    def advance(self, now_ms: int) -> None:
        self._work.advance(now_ms)

    def process(self, batch: Batch, source: str) -> None:
        self.process_all([(source, batch)])

    def process_all(self, batches: Sequence[tuple[str, Batch]]) -> None:
        if self._timed is not None:
            self._take_in_time(self._timed, batches)
            return
        self._give([(source, batch.where(self._own.own(batch)) if source in self._cut else batch) for source, batch in batches])

    def _give(self, batches: Sequence[tuple[str, Batch]]) -> None:
        found = [(source, batch) for source, batch in batches if len(batch)]
        if len(found) == 1:
            self._work.process(found[0][1], found[0][0])
        elif found:
            self._work.process_all(found)

    def _take_in_time(self, work: TimedWork, batches: Sequence[tuple[str, Batch]]) -> None:
        moves = [work.moves_time(batch) for _, batch in batches]
        if self._closing is not None:
            moving = [(source, batch.where(those)) for (source, batch), those in zip(batches, moves, strict=True)]
            for _, batch in interleaved(moving):
                if len(batch):
                    self._closing.note_closing(batch)
        rows = _Rows.of(batches, [self._own.own(batch) for _, batch in batches], moves)
        sources = list(dict.fromkeys(source for source, _ in batches))
        whiches = np.array([sources.index(source) for source, _ in batches])[rows.parts]
        clocks = np.stack([rows.clock(whiches == at, self._clocks.get(each, -1)) for at, each in enumerate(sources)])
        known = np.stack([rows.known(whiches == at, self._clocks.get(each, -1)) for at, each in enumerate(sources)])
        elsewhere = max(self._clocks.values(), default=-1)
        before = np.maximum(clocks[:, :-1].max(axis=0), elsewhere)
        edges = [0]
        noted = clocks[:, 0]
        for row in np.flatnonzero(
            rows.own & (rows.times <= before - work.slack_ms) & (clocks[:, :-1] > known[:, :-1]).any(axis=0)
        ).tolist():
            if (clocks[:, row] > np.maximum(known[:, row], noted)).any():
                noted = clocks[:, row]
                edges.append(row)
        wanted = np.ones_like(rows.own) if self._gives_all else rows.own
        for start, stop in zip(edges, [*edges[1:], len(rows.own)], strict=True):
            for at, source in enumerate(sources):
                work.note_time(source, int(clocks[at, start]))
            chosen = [rows.of_part(part, start, stop, wanted) for part in range(len(batches))]
            self._give([(source, batch.take(own)) for (source, batch), own in zip(batches, chosen, strict=True)])
        for at, source in enumerate(sources):
            self._clocks[source] = int(clocks[at, -1])
            work.note_time(source, self._clocks[source])


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """The N rows of several batches in order of cause: batch, place in it, time, whether it is own and whether it moves time."""

    parts: I64
    places: I64
    times: I64
    own: Mask
    moves: Mask

    @classmethod
    def of(cls, batches: Sequence[tuple[str, Batch]], own: Sequence[Mask], moves: Sequence[Mask]) -> _Rows:
        counts = [len(batch) for _, batch in batches]
        parts, places = np.repeat(np.arange(len(counts)), counts), np.concatenate([np.arange(count) for count in counts])
        times, owned, moving = np.concatenate([b.times for _, b in batches]), np.concatenate(own), np.concatenate(moves)
        if len(batches) > 1:
            orders = [batch.order for _, batch in batches]
            assert all(order is not None for order in orders), "a task commit gives one batch at a time"
            order = np.argsort(np.concatenate(orders), kind="stable")  # type: ignore[arg-type]
            parts, places, times, owned, moving = parts[order], places[order], times[order], owned[order], moving[order]
        return cls(parts, places, times, owned, moving)

    def clock(self, which: Mask, before: int) -> I64:
        """Return the time of an input before each row, and behind the last: int64[N + 1]."""
        return self._risen(which & self.moves, before)

    def known(self, which: Mask, before: int) -> I64:
        """Return the same by the rows of this slice alone."""
        return self._risen(which & self.moves & self.own, before)

    def _risen(self, counted: Mask, before: int) -> I64:
        moved = np.where(counted, self.times, -1)
        return np.maximum.accumulate(np.concatenate([[before], moved]))

    def of_part(self, part: int, start: int, stop: int, wanted: Mask) -> I64:
        """Return the wanted rows of a batch among rows start..stop."""
        span = slice(start, stop)
        found: I64 = self.places[span][(self.parts[span] == part) & wanted[span]]
        return found
