"""Entries of an aggregate as objects: any states, changed by one loop in Python that is generated for the aggregations."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any, cast

import numpy as np

from logflume.log.records import Chunk

from .. import graph as g
from ..columns import Bytes
from ..functions.arithmetic import wrap64
from ..functions.folds import Fold, Reduce, is_sized
from ..seams import Entry, State, StateStore
from ..state.windows import window_start
from .closing import OpenEntries, closing_wait_ms
from .entries import Change, States, Updated
from .folding import state_fields, step
from .operator import Reporter
from .partial import merge_of, partial_codec
from .rows import states_and_times


class ObjectEntries:
    """Implements `entries.Entries` over `StateStore.resident`."""

    def __init__(self, node: g.Aggregate, store: StateStore, *, wants_old: bool) -> None:
        self._node, self._store, self._wants_old = node, store, wants_old
        self._fields = state_fields(node)
        self._run = _fold_function(node)
        self._window = node.window if isinstance(node.window, g.TimeWindow) else None
        self.emitted_to: int | None = None
        self._open = None
        if node.emit is g.Emit.FINAL and self._window is not None:
            self._open = OpenEntries(store, closing_wait_ms(self._window))

    def open(self) -> None:
        """Note, before anything changes, which windows had closed by the last commit: their results have left."""
        if self._open is not None and self.emitted_to is None:
            self._open.start()
            self.emitted_to = self._closed()

    def _closed(self) -> int:
        assert self._window is not None
        return self._store.stream_time_ms - self._window.size_ms - self._window.grace_ms

    def update(self, change: Change, report: Reporter, *, is_traced: bool) -> Updated | None:
        keys: list[Any] = change.keys.objects()
        times, args = change.times.tolist(), [column.objects() for column in change.args]
        rows: Sequence[int] = range(len(keys))
        if change.rows is not None:
            rows = change.rows.tolist()
            keys, times = [keys[row] for row in rows], [times[row] for row in rows]
            args = [[values[row] for row in rows] for values in args]
        if change.starts is not None:
            pack = g.WINDOW_START.pack
            keys = [key + pack(start) for key, start in zip(keys, change.starts.tolist(), strict=True)]
        self._store.load(keys)
        trace: tuple[list[Any], list[Any], list[int], list[int]] | None = ([], [], [], []) if is_traced else None
        self._run(self._store.resident, self._store.dirty, rows, keys, times, args, report, trace)
        if trace is None:
            return None
        after, before, stamps, pairs = trace
        old = States.of(before, self._fields) if self._wants_old else None
        times_of, states, starts = np.array(stamps, np.int64), States.of(after, self._fields), change.starts
        if len(pairs) == len(keys):
            return Updated(Bytes.of_objects(keys), times_of, starts, states, old)
        which = np.array(pairs, np.int64)
        kept = [keys[pair] for pair in pairs]
        return Updated(Bytes.of_objects(kept), times_of, None if starts is None else starts[which], states, old, which)

    def absorb(self, partials: Chunk) -> int:
        keys: list[Any] = partials.keys()
        decode, merge, late = partial_codec(self._node).decode, merge_of(self._node.aggregations), 0
        entries = list(map(decode, cast(list[bytes], partials.values())))
        if self._window is not None:
            closed = self._closed()
            is_open = [window_start(key) > closed for key in keys]
            late = sum(_state(entry)[-1] for entry, counts in zip(entries, is_open, strict=True) if not counts)
            keys, entries = list(compress(keys, is_open)), list(compress(entries, is_open))
            for each in entries:
                each.state = _state(each)[:-1]
        self._store.load(keys)
        resident, dirty = self._store.resident, self._store.dirty
        for key, partial in zip(keys, entries, strict=True):
            entry = resident.get(key)
            if entry is None or entry.state is None:
                resident[key] = partial
                if entry is None or key not in dirty:
                    dirty[key] = None
                continue
            if key not in dirty:
                dirty[key] = entry.state
            entry.state = merge(entry.state, _state(partial))
            entry.timestamp_ms = max(entry.timestamp_ms, partial.timestamp_ms)
        return late

    def changed(self) -> Updated:
        keys, before = list(self._store.dirty), list(self._store.dirty.values())
        entries: list[Any] = list(map(self._store.resident.get, keys))
        if True in [entry is None or entry.state is None for entry in entries]:
            there = [
                entry is not None and (entry.state is not None or old is not None)
                for entry, old in zip(entries, before, strict=True)
            ]
            keys, entries, before = (list(compress(each, there)) for each in (keys, entries, before))
        return self._of_entries(keys, entries, before)

    def closed(self) -> Updated:
        assert self._open is not None
        self.open()
        self.emitted_to = self._closed()
        found = self._open.take_entries(self._store.stream_time_ms)
        return self._of_entries([key for key, _ in found], [entry for _, entry in found], [None] * len(found))

    def _of_entries(self, keys: list[bytes], entries: list[Entry], before: list[Any]) -> Updated:
        starts = None
        if self._window is not None:
            unpack = g.WINDOW_START.unpack
            starts = np.array([unpack(key[-8:])[0] for key in keys], np.int64)
        states, times = states_and_times(entries)
        old = States.of(before, self._fields) if self._wants_old else None
        return Updated(Bytes.of_objects(list(keys)), times, starts, States.of(states, self._fields), old)


def _state(partial: Entry) -> State:
    assert partial.state is not None, "a partial entry has a state"
    return partial.state


def _fold_function(node: g.Aggregate) -> Any:
    """Return the loop: (resident, dirty, rows, keys, times, args, report, trace) -> None; it changes `resident` and `dirty`.

    A null argument leaves a state that skips nulls; what `add` raises is reported and leaves the state, where a plain callable
    raised it the whole entry.
    """
    scope: dict[str, Any] = {"Entry": Entry, "wrap64": wrap64, "is_sized": is_sized}
    names: list[str] = []
    initial: list[Any] = []
    lines: list[str] = []
    arg = 0
    for i, aggregation in enumerate(node.aggregations):
        aggregator = aggregation.aggregator
        own = [f"s{len(names) + c}" for c in range(len(aggregator.state_columns))]
        args = [f"a{arg + k}" for k in range(len(aggregation.args))]
        names += own
        initial += aggregator.initial
        arg += len(args)
        scope[f"add{i}"] = aggregator.add
        lines += step(aggregator, f"add{i}", own, args, on_error="continue" if is_fold(aggregator) else "")
    for at, value in enumerate(initial):
        scope[f"initial{at}"] = value
    states = f"{', '.join(names)},"
    new = f"({states})" if not g.is_bare(node.schema) else f"None if {names[0]} is None else ({states})"
    targets = ", ".join(["pair", "row", "key", "time", *[f"a{k}" for k in range(arg)]])
    text = f"""
def run(resident, dirty, rows, keys, times, args, report, trace):
    after, before, stamps, pairs = trace or [None] * 4
    for {targets} in zip(range(len(keys)), rows, keys, times, *args):
        entry = resident.get(key)
        state = None if entry is None else entry.state
        if state is None:
            {states} = {", ".join(f"initial{k}" for k in range(len(initial)))},
        else:
            {states} = state
{chr(10).join("        " + line for line in lines)}
        if key not in dirty:
            dirty[key] = state
        new = {new}
        if entry is None:
            resident[key] = entry = Entry(new, time)
        else:
            entry.state = new
            if state is None or time > entry.timestamp_ms:
                entry.timestamp_ms = time
        if trace is not None:
            after.append(new)
            before.append(state)
            stamps.append(entry.timestamp_ms)
            pairs.append(pair)
"""
    exec(compile(text, f"<aggregate {node.name}>", "exec"), scope)
    return scope["run"]


def is_fold(aggregator: g.Aggregator) -> bool:
    """Return whether a plain callable changes the state: what that raises ends the row's way."""
    return isinstance(aggregator.add, Fold | Reduce)
