"""Sessions whose states are numbers, as typed columns: `kernels.sessions` does in one go what `session.py` does row by row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from logflume.log.records import I64

from ..columns import Bytes, Column
from ..state.store import Store
from ..vectors.expressions import Mask
from .aggregate_columns import ColumnsForm, addresses_of, states_of
from .chained import Chained, Changes, Found

BOUNDS_BYTES = 16


@dataclass(frozen=True, slots=True, eq=False)
class Limits:
    """How far apart records of a session are at most, how long a session waits, how far behind the newest one they are seen."""

    gap_ms: int
    wait_ms: int
    keep_ms: int


class SessionColumns:
    """The sessions of one store. `emitted_to`: what ends before has closed and left."""

    def __init__(
        self, form: ColumnsForm, store: Store, found: Found, limits: Limits, *, newest: int, emitted_to: int, keeps_before: bool
    ) -> None:
        self._form, self._kernels, self._limits = form, found.own, limits
        self.chained = Chained(form, store, found, keeps_before=keeps_before, newest=newest)
        self._numbers = np.array([limits.gap_ms, limits.wait_ms, limits.keep_ms], np.int64)
        self._emitted_to = emitted_to

    def take(self, keys: Bytes, times: I64, clocks: I64, args: list[Column], *, is_traced: bool) -> tuple[Any, Any, Any]:
        """Take rows into their sessions; return which are late, the starts of the sessions that those would make, the trail."""
        chained, count = self.chained, len(times)
        chained.ready()
        addresses, sizes = keys.addresses()
        arguments, kept = addresses_of(args)
        late, starts = np.zeros(count, np.bool_), np.zeros(count, np.int64)
        trail, at, times = chained.trail(2 * count + 4 if is_traced else 0), 0, np.ascontiguousarray(times)
        while True:
            at = self._kernels.fold_sessions(
                chained.columns.slots, chained.columns.before, chained.made, chained.spec, trail, addresses, sizes, times, clocks,
                self._numbers, at, count, arguments, late, starts,
            )  # fmt: skip
            if at == count:
                break
            chained.grow(2, int(sizes[at]))
            if is_traced:
                trail = chained.longer(trail, 2 * len(trail.rows) + 4)
        del kept
        return late, starts, trail

    # -- results ---------------------------------------------------------------------------------------------------------

    def followed(self, keys: Bytes, trail: Any) -> Changes:
        """Return the changes of a trail; `keys`: of the rows that were taken."""
        count = int(trail.count[0])
        rows, gone, none = trail.rows[:count], trail.gone[:count], ~trail.had[:count]
        addresses, sizes = keys.addresses()
        return Changes(
            rows,
            self._bounded(addresses[rows], sizes[rows], trail.starts[:count], trail.ends[:count]),
            trail.ends[:count],
            states_of(self._form, trail.nulls[:count], trail.ints[:count], trail.floats[:count], gone),
            states_of(self._form, trail.old_nulls[:count], trail.old_ints[:count], trail.old_floats[:count], none),
        )

    def changed(self) -> Changes:
        """Return what became of sessions since the last commit: one whose start has moved is another one."""
        columns, order = self.chained.columns, self.chained.in_turn()
        slots, which, kept = columns.slots, columns.changed[order], columns.before
        had, old_starts = kept.had[: len(order)][order], kept.ints[: len(order), 0][order]
        is_gone, starts = slots.gone[which], slots.ints[which, 0]
        has_left = had & (is_gone | (starts != old_starts))
        left, alive = np.flatnonzero(has_left), np.flatnonzero(~is_gone)
        places = np.concatenate([left, alive])
        of_left = np.concatenate([np.ones(len(left), np.bool_), np.zeros(len(alive), np.bool_)])
        turn = np.argsort(2 * places + ~of_left, kind="stable")
        places, of_left = places[turn], of_left[turn]
        found, before = which[places], order[places]
        bounds = np.where(of_left, old_starts[places], starts[places])
        none = ~(had[places] & (of_left | ~has_left[places]))
        return Changes(
            None,
            self._keys(found, bounds),
            slots.starts[found],
            states_of(self._form, slots.nulls[found], slots.ints[found], slots.floats[found], of_left),
            states_of(self._form, kept.nulls[before], kept.ints[before], kept.floats[before], none),
        )

    def closed(self, stream_time_ms: int) -> Changes:
        """Return the sessions that have closed since they were asked for last, in order of end, start and key."""
        columns, to = self.chained.columns, stream_time_ms - self._limits.wait_ms
        slots, found = columns.slots, self.chained.between(self._emitted_to, to)
        self._emitted_to = max(to, self._emitted_to)
        found = found[np.lexsort((slots.ints[found, 0], slots.starts[found]))]
        nulls, ints, floats = slots.nulls[found], slots.ints[found], slots.floats[found]
        nothing: Mask = np.ones(len(found), np.bool_)
        return Changes(
            None, self._keys(found, ints[:, 0]), slots.starts[found], states_of(self._form, nulls, ints, floats, None),
            states_of(self._form, nulls, ints, floats, nothing),
        )  # fmt: skip

    def _keys(self, which: I64, starts: I64) -> Bytes:
        slots = self.chained.columns.slots
        return self._bounded(
            slots.key_starts[which] + slots.arena.ctypes.data, slots.key_sizes[which], starts, slots.starts[which]
        )

    def _bounded(self, keys: I64, sizes: Any, starts: I64, ends: I64) -> Bytes:
        out = np.empty(int(sizes.sum(dtype=np.int64)) + BOUNDS_BYTES * len(keys) + 1, np.uint8)
        positions = np.empty(len(keys), np.int64)
        self._kernels.bounded_keys(keys, sizes, np.ascontiguousarray(starts), np.ascontiguousarray(ends), out, positions)
        return Bytes.of_spans(out, positions, (sizes + BOUNDS_BYTES).astype(np.int32))
