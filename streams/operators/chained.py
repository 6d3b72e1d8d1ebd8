"""A store's entries as typed columns, those of a key one behind the other (`kernels.chains`): sessions, sliding windows.

All entries that are alive are in memory. When they outgrow the store's memory setting the store lets go of them between two
batches (`is_given_up`), and who asked for them goes on with objects, which are read when they are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from logflume.log.records import I64, Headers

from .. import graph as g
from ..columns import Batch, Bytes, Old
from ..kernels import Kernels, loaded_kernels, more_kernels
from ..state.store import Store
from .aggregate_columns import ColumnsForm, columns_form, spec_of
from .emission import Emission
from .entries import States
from .operator import Errors, Task
from .results import results_of_states

MAX_READ_ENTRIES = 1_000_000
"""How many entries are read from disk to have all that are alive in memory, if that has room for them."""
_BESIDE_BYTES = 2 * 4 + 4 + 8
"""Bytes of a chain a slot: its share of the table, the next one, its turn."""


def chained_form(node: g.Aggregate, store: Any) -> ColumnsForm | None:
    """Return the form of an aggregate whose entries can be chained, None where a state is no number or has another merge."""
    if node.others or not isinstance(store, Store):
        return None
    form = columns_form(node, store.spec)
    if form is None:
        return None
    for aggregation in node.aggregations:
        aggregator = aggregation.aggregator
        if aggregator.kernel in ("count", "sum", "mean") and None in aggregator.initial:
            return None
    return form


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """The kernels of a store's entries and of its chains."""

    loaded: Kernels
    chains: ModuleType
    own: ModuleType


def kernels_for(own: str) -> Found | None:
    """Return the kernels, `own` by name, once they are there."""
    loaded, found = loaded_kernels(), more_kernels(own)
    chains = more_kernels("chains") if found is not None else None  # part of the others: compiled with the first of them
    return None if loaded is None or chains is None or found is None else Found(loaded, chains, found)


def has_all(store: Store) -> bool:
    """Return whether all entries that are alive are in memory; they are read where that has room for them."""
    store.preload(max_entries=MAX_READ_ENTRIES)
    return store.complete_from == 0


@dataclass(frozen=True, slots=True, eq=False)
class Changes:
    """Changed entries: the rows that caused it (None at a task commit), keys with the window, times, states and those before."""

    rows: I64 | None
    keys: Bytes
    times: I64
    states: States
    before: States

    def without(self, failed: I64) -> Changes:
        """Return the changes that other rows caused."""
        assert self.rows is not None
        kept = np.flatnonzero(~np.isin(self.rows, failed))
        after, before = (
            States([column.take(kept) for column in states.columns], None if states.gone is None else states.gone[kept])
            for states in (self.states, self.before)
        )
        return Changes(self.rows[kept], self.keys.take(kept), self.times[kept], after, before)


def forward(
    task: Task,
    node: g.Aggregate | g.TableAggregate,
    emission: Emission,
    changes: Changes,
    causing: Batch | None,
    errors: Errors | None,
    *,
    headers: Sequence[Headers] | None = None,
) -> None:
    """Forward the results of changed entries, without those of rows that failed.

    `headers`: of each result; None: those of the row that caused it.
    """
    assert errors is None or headers is None, "headers are those of all results"
    if errors is not None and errors.failed:
        changes = changes.without(np.array(sorted(errors.failed), np.int64))
    if not len(changes.times) or not emission.has_consumers:
        return
    rows = np.empty(0, np.int64) if changes.rows is None else changes.rows
    batch = emission.shell_of(rows, changes.keys, changes.times, causing)
    report = task.reporter(node.name, batch)
    batch.columns |= results_of_states(node, changes.states, report)
    batch.nulls = changes.states.gone
    if emission.wants_old:
        gone = changes.before.gone
        none = np.zeros(len(batch), np.bool_) if gone is None else gone
        batch.old = Old(results_of_states(node, changes.before, report), none)
    if headers is not None:
        batch.set_headers(headers)
    task.forward(node.name, batch)


class Chained:
    """The arrays of one store and of its chains. One thread; `ready` comes before each use of a kernel."""

    def __init__(
        self, form: ColumnsForm, store: Store, found: Found, *, keeps_before: bool, newest: int
    ) -> None:  # fmt: skip
        """`newest`: the largest time that entries had so far."""
        self._store, self._chains = store, found.chains
        self.columns = store.use_columns(found.loaded.slots, keeps_before=keeps_before, beside_bytes=_BESIDE_BYTES)
        self.spec = spec_of(form, found.loaded.slots, keeps_before)
        self._newest = np.array([newest, 0], np.int64)
        self._renumbered = -1
        self.made: Any = None

    @property
    def is_given_up(self) -> bool:
        """Whether the store has let go of the columns."""
        return self._store.columns is not self.columns

    @property
    def newest(self) -> int:
        """The largest time of an entry so far."""
        return int(self._newest[0])

    def note_time(self, time_ms: int) -> None:
        """Entries of others, which are not kept here, have reached this time."""
        self._newest[0] = max(self.newest, time_ms)

    def ready(self) -> None:
        """Make the chains those of the slots as they are numbered now."""
        slots = self.columns.slots
        room = len(slots.hashes)
        if self._renumbered != self.columns.renumbered:
            self._renumbered = self.columns.renumbered
            self._empty(room)
            changed = self.columns.changed
            self.made.turns[changed] = np.arange(self._newest[1], self._newest[1] + len(changed))
            self._newest[1] += len(changed)
            living = np.flatnonzero(~slots.gone[: len(self.columns)])
            self._link(living[np.argsort(slots.starts[living], kind="stable")])
        elif room > len(self.made.older):
            old = self.made
            self._empty(room)
            self.made.older[: len(old.older)] = old.older
            self.made.turns[: len(old.turns)] = old.turns
            heads = old.table[old.table >= 0].astype(np.int64)
            self._link(heads)
            self.made.older[heads] = old.older[heads]

    def _empty(self, room: int) -> None:
        self.made = self._chains.Chains(
            table=np.full(2 * room, -1, np.int32), older=np.full(room, -1, np.int32), turns=np.zeros(room, np.int64),
            newest=self._newest,
        )  # fmt: skip
        self.columns.turns = self.made.turns

    def _link(self, order: I64) -> None:
        slots = self.columns.slots
        self._chains.link(slots, self.made, slots.arena.ctypes.data, order)

    def grow(self, slots: int, key_bytes: int) -> None:
        """Make room for more slots, and bytes of keys."""
        self.columns.make_room(slots, key_bytes)
        self.ready()

    def trail(self, room: int) -> Any:
        """Return room for changes to be told of."""
        states = len(self.columns.is_float)
        return self._chains.Trail(
            *(np.empty(room, np.int64) for _ in range(3)), np.empty(room, np.bool_), np.empty((room, states), np.int64),
            np.empty((room, states), np.float64), np.empty((room, states), np.bool_), np.empty(room, np.bool_),
            np.empty((room, states), np.int64), np.empty((room, states), np.float64), np.empty((room, states), np.bool_),
            np.zeros(1, np.int64),
        )  # fmt: skip

    def longer(self, trail: Any, room: int) -> Any:
        """Return a trail with more room."""
        made, count = self.trail(room), int(trail.count[0])
        for ours, theirs in zip(trail[:-1], made[:-1], strict=True):
            theirs[:count] = ours[:count]
        made.count[0] = count
        return made

    def between(self, first_ms: int, stop_ms: int) -> I64:
        """Return the slots with first <= time < stop, in order of time and key."""
        slots, times = self.columns.slots, self.columns.window_starts()
        found = np.flatnonzero((times >= first_ms) & (times < stop_ms) & ~slots.gone[: len(self.columns)])
        keys: list[Any] = Bytes.of_spans(slots.arena, slots.key_starts[found], slots.key_sizes[found]).objects()
        by_key = found[np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)]
        ordered: I64 = by_key[np.argsort(slots.starts[by_key], kind="stable")]
        return ordered

    def in_turn(self) -> I64:
        """Return the places in `columns.changed`, in order of the first change under the key that each slot has now."""
        order: I64 = np.argsort(self.made.turns[self.columns.changed], kind="stable")
        return order
