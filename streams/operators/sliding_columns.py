"""Sliding windows of numbers as typed columns: `kernels.sliding` does at once what `sliding.py` does row by row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from logflume.log.records import I64

from ..columns import Bytes, Column
from ..state.store import Store
from .aggregate_columns import ColumnsForm, addresses_of, states_of
from .chained import Chained, Changes, Found

START_BYTES = 8


@dataclass(frozen=True, slots=True, eq=False)
class Limits:
    """How long windows are, how long they wait behind their end, how far behind the newest start they are seen."""

    size_ms: int
    grace_ms: int
    keep_ms: int


class SlidingColumns:
    """The windows of one store. `emitted_to`: those that start before have closed and left."""

    def __init__(
        self, form: ColumnsForm, store: Store, found: Found, limits: Limits, *, newest: int, emitted_to: int, keeps_before: bool
    ) -> None:
        self._form, self._kernels, self._slots, self._limits = form, found.own, found.loaded.slots, limits
        self.chained = Chained(form, store, found, keeps_before=keeps_before, newest=newest)
        self._numbers = np.array([limits.size_ms, limits.grace_ms, limits.keep_ms], np.int64)
        self._emitted_to, self._wants_before = emitted_to, keeps_before

    def take(
        self, keys: Bytes, times: I64, clocks: I64, args: list[Column], starts: I64 | None, *, is_traced: bool
    ) -> tuple[Any, Any]:
        """Take rows into their windows; return which are late, and the trail.

        `starts`: the newest start of all windows before each row; None: nothing is known of others' than those here.
        """
        limits = self._numbers if starts is None else np.concatenate([self._numbers, starts])
        chained, count, most = self.chained, len(times), self._kernels.MOST_NEW
        chained.ready()
        addresses, sizes = keys.addresses()
        arguments, kept = addresses_of(args)
        late, times = np.zeros(count, np.bool_), np.ascontiguousarray(times)
        trail, at = chained.trail(2 * count + 64 if is_traced else 0), 0
        while True:
            met = np.empty(len(chained.columns.slots.hashes), np.int64)
            at = self._kernels.fold_sliding(
                chained.columns.slots, chained.columns.before, chained.made, chained.spec, trail, addresses, sizes, times, clocks,
                limits, at, count, arguments, late, met,
            )  # fmt: skip
            if at == count:
                break
            chained.grow(most + 1, most * int(sizes[at]))
            if is_traced:
                trail = chained.longer(trail, 2 * len(trail.rows))
        del kept
        return late, trail

    def followed(self, keys: Bytes, trail: Any) -> Changes:
        """Return the changes of a trail; `keys`: of the rows that were taken."""
        count = int(trail.count[0])
        rows, none = trail.rows[:count], ~trail.had[:count]
        addresses, sizes = keys.addresses()
        return Changes(
            rows,
            self._windowed(addresses[rows], sizes[rows], trail.starts[:count]),
            trail.ends[:count],
            states_of(self._form, trail.nulls[:count], trail.ints[:count], trail.floats[:count], None),
            states_of(self._form, trail.old_nulls[:count], trail.old_ints[:count], trail.old_floats[:count], none),
        )

    def changed(self) -> Changes:
        """Return the windows changed since the last commit."""
        order, kept = self.chained.in_turn(), self.chained.columns.before
        before = states_of(self._form, kept.nulls[order], kept.ints[order], kept.floats[order], ~kept.had[order])
        return self._of_slots(self.chained.columns.changed[order], before)

    def closed(self, stream_time_ms: int) -> Changes:
        """Return the windows that have closed since they were asked for last, in order of start and key."""
        to = stream_time_ms - self._limits.size_ms - self._limits.grace_ms
        found = self.chained.between(self._emitted_to, to)
        self._emitted_to = max(to, self._emitted_to)
        slots = self.chained.columns.slots
        nothing = np.ones(len(found), np.bool_)
        return self._of_slots(found, states_of(self._form, slots.nulls[found], slots.ints[found], slots.floats[found], nothing))

    def _of_slots(self, which: I64, before: Any) -> Changes:
        slots = self.chained.columns.slots
        addresses = slots.key_starts[which] + slots.arena.ctypes.data
        states = states_of(self._form, slots.nulls[which], slots.ints[which], slots.floats[which], None)
        return Changes(
            None, self._windowed(addresses, slots.key_sizes[which], slots.starts[which]), slots.times[which], states, before
        )

    def _windowed(self, keys: I64, sizes: Any, starts: I64) -> Bytes:
        out = np.empty(int(sizes.sum(dtype=np.int64)) + START_BYTES * len(keys) + 1, np.uint8)
        positions = np.empty(len(keys), np.int64)
        self._slots.windowed_keys(keys, sizes, np.ascontiguousarray(starts), out, positions)
        return Bytes.of_spans(out, positions, (sizes + START_BYTES).astype(np.int32))
