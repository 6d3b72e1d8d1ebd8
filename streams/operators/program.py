"""A sub-topology at work: batches go from operator to operator, inputs first.

A round is what the task takes at once. Its batches wait at their consumers until all inputs of a consumer have had theirs, so
that one which is reached on several ways sees rows in order of cause. Where an operator looks rows up in a store that records of
another topic may change in the same round, these take turns by key (`phases.py`); in one that the same record may change, rounds
are single records, and each row that a record becomes goes all its way, consumer by consumer, before the next one.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from logflume.log import LogflumeError
from logflume.log.records import I64

from .. import graph as g
from ..columns import Batch
from ..columns.batch import PATH_BITS
from ..kernels import observe
from ..seams import Outputs, Problems, StateStore, StoreSpec, Taken
from ..windows import key_suffix_bytes
from .classes import classes_of
from .operator import Bind, Reporter, Wiring, Work
from .outputs import Output, first_cause, put_out
from .phases import nodes_in_phases, phases_of
from .slices import Region, Slice, SlicedWork, region_of
from .source import SourceWork
from .wiring import wire

_FAR = 1 << 62
_OF_NO_RECORD = -1 << 63 - PATH_BITS
"""The number of the first row that no record has caused; behind 16 M of them, those of a node keep their order, not branches."""


@dataclass(frozen=True, eq=False)
class OperatorProgram:
    """Implements `seams.Program`. Not picklable: ship the topology and plan it again."""

    wiring: Wiring

    @property
    def sources(self) -> Mapping[str, str]:
        return {name: self.wiring.node(name).topic for name in self.wiring.sources}  # type: ignore[attr-defined]

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        nodes = [operator.node for operator in self.wiring.operators.values()]
        classes = classes_of(nodes)
        return tuple(replace(spec, classes=classes) for op in self.wiring.operators.values() for spec in op.stores())

    @cached_property
    def plans(self) -> Mapping[str, Bind]:
        """How each node's Work is made."""
        return {name: operator.plan(self.wiring) for name, operator in self.wiring.operators.items()}

    @cached_property
    def writers(self) -> Mapping[tuple[str, int], str]:
        """Topic and bytes of the window in its keys, which partitioning leaves out -> the first node that writes such there."""
        found: dict[tuple[str, int], str] = {}
        for name in self.wiring.outputs:
            node = self.wiring.node(name)
            if not isinstance(node, g.Route):
                found.setdefault((node.topic, self.suffix_bytes(name)), name)  # type: ignore[attr-defined]
        return found

    def suffix_bytes(self, output: str) -> int:
        """Return how many bytes of the keys that an output writes say which window they are of."""
        return key_suffix_bytes(self.wiring.schema(self.wiring.node(output).inputs[0]).window)

    @cached_property
    def region(self) -> Region | None:
        """What slices of a task share among them; None: it cannot be cut."""
        return region_of(self.wiring)

    @cached_property
    def careful(self) -> frozenset[str]:
        """Nodes whose rows go one by one: behind them a store is both changed and looked up."""
        operators = self.wiring.operators
        readers = {name: together for together in self.wiring.readers.values() for name in together}
        starts = {readers.get(name, (name,)) for name in operators}
        found: set[str] = set()
        for together in starts:
            edges = set().union(*(_edges(self.wiring, start) for start in together))
            own = {spec.name for name in {*together, *(to for _, to in edges)} for spec in operators[name].stores()}
            asked = {store for come, to in edges for store in operators[to].looks_up(come, self.wiring)}
            if own & asked:
                found |= {*together}
        return frozenset(found)

    @cached_property
    def in_phases(self) -> frozenset[str] | None:
        """The nodes that take a round phase by phase, none where nobody looks up what a round changes; None: not possible."""
        operators = self.wiring.operators
        kept = [spec.name for each in operators.values() if not g.is_global(each.node) for spec in each.stores()]
        edges = {edge for names in self.wiring.readers.values() for name in names for edge in _edges(self.wiring, name)}
        if self.careful or len(set(kept)) < len(kept):
            return None
        return nodes_in_phases(self.wiring, {to for come, to in edges if operators[to].looks_up(come, self.wiring) & {*kept}})

    @property
    def takes_together(self) -> bool:
        """Whether a round may hold records of several topics."""
        return len(self.wiring.readers) > 1 and self.in_phases is not None

    def bind(self, stores: Mapping[str, StateStore], outputs: Outputs, problems: Problems) -> BoundProgram:
        """Return the function of one task."""
        return BoundProgram(self, stores, outputs, problems)


def _edges(wiring: Wiring, start: str) -> set[tuple[str, str]]:
    """Return the edges on which batches go that come from a node."""
    found: set[tuple[str, str]] = set()
    waiting, seen = [start], {start}
    while waiting:
        name = waiting.pop()
        following = wiring.following(name)
        found |= {(name, child) for child in following}
        waiting += [child for child in following if child not in seen]
        seen |= set(following)
    return found


def depth_first(wiring: Wiring) -> list[str]:
    """Return the nodes, inputs first; where that can be, what follows from a node's first consumer before its second one."""
    left: list[str] = []
    seen: set[str] = set()
    for source in reversed(wiring.sources):
        stack = [(source, list(wiring.following(source)))]
        seen.add(source)
        while stack:
            name, children = stack[-1]
            if not children:
                left.append(name)
                stack.pop()
                continue
            child = children.pop()
            if child not in seen:
                seen.add(child)
                stack.append((child, list(wiring.following(child))))
    return left[::-1]


class BoundProgram:
    """Implements `seams.TaskFunction`, and is the `Task` of its operators. One thread."""

    def __init__(self, program: OperatorProgram, stores: Mapping[str, StateStore], outputs: Outputs, problems: Problems) -> None:
        self._stores, self._outputs, self._problems = stores, outputs, problems
        self._children = program.wiring.children
        self._careful = program.careful
        self._is_careful = False
        self._order = [name for name in depth_first(program.wiring) if name not in program.wiring.sources]
        in_phases = program.in_phases or frozenset()
        self._in_phases = [name for name in self._order if name in in_phases]
        self._waiting: dict[str, list[tuple[str, Batch]]] = {}
        self._writers = program.writers
        self._suffixes = {name: program.suffix_bytes(name) for name in program.wiring.outputs}
        self._sent: dict[tuple[str, str], list[Output]] = {}
        self._next_number: int | None = None
        self._lates = program.wiring.lates
        self._late: list[tuple[Batch, int]] = []
        self._has_started = False
        self._flushed_at: dict[str, int] = {}
        self.stream_time_ms, self.now_ms = -1, 0
        self.rows_by_node: dict[str, int] = {}
        self._is_restoring = False
        self._globals = {name for name in program.wiring.sources if g.is_global(program.wiring.node(name))}
        self._watchers: dict[str, list[Callable[[Batch | None], None]]] = {}
        self.works: dict[str, Work] = {name: bind(self) for name, bind in program.plans.items()}
        self._following = [work for work in self.works.values() if type(work).due_ms is not Work.due_ms]
        self.follows_clock = any(type(work).advance is not Work.advance for work in self.works.values())
        self._round_start, self._round_times = 0, np.empty(0, np.int64)
        self._slice: Slice | None = None

    def restrict(self, own: Slice) -> None:
        """Run one slice of the task, before the first record is taken."""
        assert not self._has_started, "a task is cut before it starts"
        self._slice = own
        for name in own.region.cuts:
            self.works[name] = SlicedWork(self.works[name], name, own)
        for name in own.region.nodes:
            work = self.works[name]
            if isinstance(work, SourceWork):
                work.restrict(own)

    def stop_clock(self) -> None:
        """Have no wall clock from the start: history and micro-batches are computed when they are, not when they happened."""
        self.now_ms = -1

    # -- seams.TaskFunction ----------------------------------------------------------------------------------------------

    def process(self, source: str, chunk: Any, start: int, stop: int) -> None:
        if source in self._globals:
            self._source(source).restore(chunk, start, stop)
            return
        self._take_round([Taken(source, chunk, start, stop, np.arange(start, stop))], start, chunk.timestamps_ms[start:stop])

    def process_together(self, parts: Sequence[Taken]) -> None:
        start = min(int(part.places[0]) for part in parts)
        times = np.empty(max(int(part.places[-1]) for part in parts) + 1 - start, np.int64)
        for part in parts:
            times[part.places - start] = part.chunk.timestamps_ms[part.start : part.stop]
        self._take_round(parts, start, times)

    def _take_round(self, parts: Sequence[Taken], start: int, times: I64) -> None:
        """Take records in the order of their places, the first of which is `start`; `times`: of the records in that order."""
        stop = start + len(times)
        observe(len(times))
        self._start()
        self._round_start = start
        self._round_times = np.maximum.accumulate(np.maximum(times, self.stream_time_ms))
        is_careful = any(part.source in self._careful for part in parts)
        while start < stop:
            end = start + 1 if is_careful else min(max(self._due(), start + 1), stop)
            self._take_all([part.between(start, end) for part in parts])
            self._drain()
            self.stream_time_ms = int(self._round_times[end - 1 - self._round_start])
            if any(map(self._is_due, self._following)):
                self._put_out(end - 1)
                self._follow(end - 1)
            start = end
        self._put_out(stop - 1)

    def _take_all(self, parts: Sequence[Taken]) -> None:
        """Take records, those of several topics in phases if some are looked up by others."""
        parts = [part for part in parts if part.start < part.stop]
        batches = ((part.source, self._source(part.source).decoded(part)) for part in parts)
        if not self._in_phases or len(parts) < 2:
            for source, batch in batches:
                self._source(source).put(batch)
            return
        for source, batch in phases_of([each for each in batches if len(each[1])]):
            self._source(source).put(batch)
            for name in self._in_phases:
                self._take(name)

    def _source(self, name: str) -> SourceWork:
        work = self.works[name]
        assert isinstance(work, SourceWork)
        return work

    def _due(self) -> int:
        """Return behind which record of the round something is due by stream time; far away when nothing is."""
        due = [each.due_ms for each in self._following if each.due_ms is not None]
        if not due:
            return _FAR
        at = int(self._round_times.searchsorted(min(due), side="left"))
        return _FAR if at == len(self._round_times) else self._round_start + at + 1

    def _start(self) -> None:
        if not self._has_started:
            self._has_started = True
            self._flushed_at = {name: store.stream_time_ms for name, store in self._stores.items()}
            self.stream_time_ms = max(self._flushed_at.values(), default=-1)
            for work in self.works.values():
                work.start()

    def _is_due(self, work: Work) -> bool:
        return work.due_ms is not None and work.due_ms <= self.stream_time_ms

    def _follow(self, cause: int | None) -> None:
        """Do what is due by stream time; `cause`: the record that moved it."""
        with self._apart(cause):
            for work in self._following:
                if self._is_due(work):
                    work.follow(self.stream_time_ms)
                    self._drain()

    @contextlib.contextmanager
    def _apart(self, cause: int | None) -> Iterator[None]:
        """Number the rows made in here, which no record has caused: they go on in the order in which they were made.

        `cause`: the record of the round behind which they go out; None: after the round.
        """
        self._next_number = _OF_NO_RECORD
        try:
            yield
        finally:
            self._next_number = None
        self._put_out(cause)

    def follow(self, stream_time_ms: int) -> None:
        """Note that stream time is at least this."""
        self._start()
        self.stream_time_ms = max(self.stream_time_ms, stream_time_ms)
        self._follow(None)

    def restore(self, source: str, chunk: Any, start: int, stop: int) -> None:
        self._is_restoring = True
        self._source(source).restore(chunk, start, stop)
        self._is_restoring = False

    def advance(self, now_ms: int) -> None:
        """Tell the operators the time of the wall clock."""
        self.now_ms = now_ms
        self._start()
        with self._apart(None):
            for name in self._order:
                self._take(name)
                self.works[name].advance(now_ms)

    def flush(self) -> None:
        for name, store in self._stores.items():
            store.expiry_time_ms = self._flushed_at.get(name)  # what leaves now meets what was there when it was computed
        try:
            with self._apart(None):
                for name in self._order:
                    self._take(name)
                    self.works[name].commit()
                self._drain()
        finally:
            for name, store in self._stores.items():
                store.expiry_time_ms, self._flushed_at[name] = None, store.stream_time_ms

    # -- operators.Task --------------------------------------------------------------------------------------------------

    def stream_time_at(self, cause: int) -> int:
        return int(self._round_times[cause - self._round_start])

    def store(self, name: str) -> StateStore:
        return self._stores[name]

    def goes_by_row(self, node: str) -> bool:
        return node in self._careful

    def watch(self, store: str, watcher: Callable[[Batch | None], None]) -> None:
        self._watchers.setdefault(store, []).append(watcher)

    def changed(self, store: str, batch: Batch | None) -> None:
        for watcher in self._watchers.get(store, ()):
            watcher(batch)

    def forward(self, node: str, batch: Batch) -> None:
        if not len(batch):
            return
        self.rows_by_node[node] = self.rows_by_node.get(node, 0) + len(batch)
        if self._next_number is not None and batch.order is None:
            batch = batch.numbered(self._next_number)
            self._next_number = min(self._next_number + len(batch), -1)
        if self._is_careful or (node in self._careful and batch.causes is not None):
            self._forward_rows(node, batch)
            return
        children = self._children[node]
        if len(children) == 1:
            self._waiting.setdefault(children[0], []).append((node, batch))
            return
        for place, child in enumerate(children):
            self._waiting.setdefault(child, []).append((node, batch.branch(place, len(children))))

    def _forward_rows(self, node: str, batch: Batch) -> None:
        """Take each row all its way before the next one; what waits now came before it."""
        if self._is_careful:
            self._give_rows(node, batch)
            return
        self._drain()
        self._is_careful = True
        try:
            self._give_rows(node, batch)
        finally:
            self._is_careful = False

    def _give_rows(self, node: str, batch: Batch) -> None:
        children = self._children[node]
        for row in range(len(batch)):
            own = batch if len(batch) == 1 else batch.take(np.array([row]))
            for place, child in enumerate(children):
                self._give(child, [(node, own.branch(place, len(children)))])

    def send(self, node: str, topic: str, output: Output) -> None:
        writer = self._writers.get((topic, self._suffixes[node]), node)
        self._sent.setdefault((writer, topic), []).append(output)

    def report(self, reason: str, node: str, batch: Batch | None, row: int, cause: object) -> None:
        if isinstance(cause, LogflumeError) and cause.is_retriable:
            raise cause  # the row is not at fault: the task waits and takes it again
        if isinstance(cause, MemoryError):
            raise cause  # nor here: were rows left out, it could be all that come
        if self._is_restoring or (self._slice is not None and self._slice.mutes(node)):
            return
        chunk, rows = (None, None) if batch is None else (batch.chunk, batch.rows)
        if chunk is None or rows is None:
            self._problems.report(reason, node, "", -1, -1, cause)
        else:
            self._problems.report(reason, node, chunk.topic, chunk.partition, int(chunk.offsets[rows[row]]), cause)

    def late(self, node: str, batch: Batch, row: int, cause: object, *, counts_elsewhere: bool = False) -> None:
        if node not in self._lates or counts_elsewhere:
            self.report("late", node, batch, row, cause)
        elif not self._late or self._late[-1][0] is not batch or self._late[-1][1] != row:
            self._late.append((batch, row))

    def reporter(self, node: str, batch: Batch, *, reason: str = "expression") -> Reporter:
        return lambda row, error: self.report(reason, node, batch, row, error)

    # -- the way of batches ----------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        if self._waiting:
            for name in self._order:
                self._take(name)

    def _take(self, name: str) -> None:
        batches = self._waiting.pop(name, None)
        if batches is not None:
            self._give(name, batches)

    def _give(self, name: str, batches: Sequence[tuple[str, Batch]]) -> None:
        outer, self._late = self._late, []
        try:
            if any(batch.order is None for _, batch in batches):
                for source, batch in batches:
                    self.works[name].process(batch, source)
            else:
                self.works[name].process_all(batches)
            if self._late:
                self._forward_late(name)
        finally:
            self._late = outer

    def _forward_late(self, name: str) -> None:
        """Give the rows that a node was told of as late to its Late."""
        late, self._late = self._late, []
        for _, group in itertools.groupby(late, key=lambda item: id(item[0])):
            found = list(group)
            left = found[0][0].take(np.array([row for _, row in found], np.int64))
            if self._is_careful:
                self._give(self._lates[name], [(name, left)])
            else:
                self._waiting.setdefault(self._lates[name], []).append((name, left))

    def _put_out(self, cause: int | None) -> None:
        sent, self._sent = self._sent, {}
        topics = sorted(sent.items(), key=lambda item: first_cause(item[1])) if len(sent) > 1 else sent.items()
        for (node, topic), found in topics:
            put_out(self._outputs, node, topic, found, cause)


def operator_program(nodes: Mapping[str, g.Node], sources: Sequence[str], outputs: Sequence[str]) -> OperatorProgram:
    """Plan a sub-topology: `sources` are its Source and Repartition nodes, `outputs` its Sink and Repartition nodes."""
    return OperatorProgram(wire(nodes, sources, outputs))
