"""Entries of an aggregate as typed columns: states that are numbers, changed by kernels (`kernels.slots`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from logflume.log.records import I64, Chunk
from logflume.log.schemas import Kind

from .. import graph as g
from ..columns import Bytes, Column
from ..kernels import Kernels
from ..seams import StoreSpec
from ..state.codec import ENTRY_VERSION
from ..state.columns import holds
from ..state.order import window_starts
from ..state.store import Store
from ..state.windows import WINDOW_START_BYTES
from ..vectors.expressions import Mask, Vector
from .closing import OpenEntries, closing_wait_ms
from .entries import Change, States, Updated
from .operator import Reporter
from .partial import partial_codec

_KERNELS = ("count", "sum", "mean", "min", "max")
_WHOLE = (Kind.INTEGER, Kind.BIGINT)


@dataclass(frozen=True, slots=True, eq=False)
class ColumnsForm:
    """What the kernels do for an aggregate. A state columns, G arguments.

    Attributes:
        own: how many state columns stand before those of the aggregations.
        parts: per aggregation the kernel's name, its first state column and its argument (-1: none).
        arg_kinds: of the arguments; `takes`: per argument the kinds of a column that the kernel reads.
    """

    node: g.Aggregate
    own: int
    parts: tuple[tuple[str, int, int], ...]
    arg_kinds: tuple[Kind, ...]
    first_state: tuple[Any, ...]
    is_float: tuple[bool, ...]


def columns_form(node: g.Aggregate, spec: StoreSpec) -> ColumnsForm | None:
    """Return the form of an aggregate, None where a state or an argument is no number, or an aggregation has no kernel."""
    if g.is_bare(node.schema) or not holds(spec.columns):
        return None
    own = len(spec.columns) - sum(len(aggregation.aggregator.state_columns) for aggregation in node.aggregations)
    parts, kinds, first_state = [], list[Kind](), [0] * own
    for aggregation in node.aggregations:
        aggregator = aggregation.aggregator
        kernel, state = aggregator.kernel or "", aggregator.state_columns[0].type.kind
        if kernel not in _KERNELS or len(aggregation.args) != (0 if kernel == "count" and not aggregation.args else 1):
            return None
        if kernel in ("sum", "mean") and state not in (Kind.BIGINT, Kind.DOUBLE):
            return None
        arg = -1
        if aggregation.args:
            arg = len(kinds)
            kinds.append(aggregation.args[0].type.kind)
            takes = (*_WHOLE, state) if kernel in ("sum", "mean") else (state,)
            if kernel != "count" and kinds[-1] not in takes:
                return None
        parts.append((kernel, len(first_state), arg))
        first_state += aggregator.initial
    if any(type(value) not in (int, float, type(None)) for value in first_state):
        return None
    is_float = tuple(column.type.kind is Kind.DOUBLE for column in spec.columns)
    return ColumnsForm(node, own, tuple(parts), tuple(kinds), tuple(first_state), is_float)


def merging_form(form: ColumnsForm) -> ColumnsForm:
    """Return what merges partial entries: each state column of theirs is the argument of a fold into that of the entry."""
    assert not any(form.is_float), "sums of floats depend on the order, so they have no partial form"
    parts: list[tuple[str, int, int]] = []
    for kernel, column, _ in form.parts:
        parts.append((kernel if kernel in ("min", "max") else "sum", column, column))
        if kernel == "mean":
            parts.append(("sum", column + 1, column + 1))
    return replace(form, parts=tuple(parts), arg_kinds=(Kind.BIGINT,) * len(form.is_float))


class ColumnEntries:
    """Implements `entries.Entries` over `Store.columns`; from when it is made the store's entries are there."""

    def __init__(self, form: ColumnsForm, store: Store, loaded: Kernels, *, wants_old: bool, emitted_to: int | None) -> None:
        self._form, self._store, self._kernels = form, store, loaded.slots
        self._wants_old = wants_old
        self._is_update = form.node.emit is g.Emit.UPDATE
        self._window = form.node.window if isinstance(form.node.window, g.TimeWindow) else None
        keeps_before = wants_old and not self._is_update
        self._columns = store.use_columns(loaded.slots, keeps_before=keeps_before)
        self._spec = spec_of(form, loaded.slots, keeps_before)
        self._emitted_to = -1 if emitted_to is None else emitted_to
        self._open: OpenEntries | None = None
        self._merging: Any = None

    def open(self) -> None:
        """Nothing to note: the entries of windows are found by their start."""

    # -- changes ---------------------------------------------------------------------------------------------------------

    def update(self, change: Change, report: Reporter, *, is_traced: bool) -> Updated | None:
        traced = self._traced(change.count if is_traced else 0)
        self._fold(change, self._spec, traced)
        if not is_traced:
            return None
        found = change.keys if change.rows is None else change.keys.take(change.rows)
        if change.starts is not None:
            found = self._with_starts(*found.addresses(), np.ascontiguousarray(change.starts))
        old = None
        if self._wants_old:
            old = states_of(self._form, traced.old_nulls, traced.old_ints, traced.old_floats, ~traced.had)
        return Updated(
            found, traced.times, change.starts, states_of(self._form, traced.nulls, traced.ints, traced.floats, None), old
        )

    def _fold(self, change: Change, spec: Any, traced: Any) -> None:
        """Fold the arguments of a change into the entries as `spec` says."""
        self._store.settle()
        kernels, count = self._kernels, change.count
        keys, sizes = change.keys.addresses()
        rows = np.arange(count) if change.rows is None else change.rows
        starts = np.zeros(count, np.int64) if change.starts is None else np.ascontiguousarray(change.starts)
        times = np.ascontiguousarray(change.times)
        self._load(change, rows, starts)
        arguments, kept = addresses_of(change.args)
        at = 0
        while at < count:
            at = kernels.fold(
                self._columns.slots,
                self._columns.before,
                spec,
                traced,
                keys,
                sizes,
                times,
                rows,
                starts,
                at,
                count,
                arguments,
            )
            if at < count:
                self._columns.make_room(1, int(sizes[rows[at]]))
        del kept

    def absorb(self, partials: Chunk) -> int:
        """Fold the states of partial entries, as arguments, into the entries."""
        times, ints, nulls = self._decoded(partials)
        sizes, rows, starts, late = partials.key_sizes, None, None, 0
        if self._window is not None:
            starts, sizes = window_starts(partials), sizes - WINDOW_START_BYTES
            is_late = starts <= self._closed()
            if is_late.any():
                late, rows = int(ints[-1][is_late].sum()), np.flatnonzero(~is_late)
                starts = starts[rows]
        args = [
            Column.of_vector(Vector(data, None, mask if mask.any() else None), len(data), Kind.BIGINT)
            for data, mask in zip(ints, nulls, strict=True)
        ]
        if self._merging is None:
            keeps_before = self._wants_old and not self._is_update
            self._merging = spec_of(merging_form(self._form), self._kernels, keeps_before)
        keys = Bytes.of_spans(partials.buffer, partials.key_starts, sizes)
        self._fold(Change(keys, times, args, rows, starts), self._merging, self._traced(0))
        return late

    def _decoded(self, partials: Chunk) -> tuple[I64, I64, Mask]:
        """Return times int64[N], states int64[A, N] and which are null of encoded entries. Raises as `EntryCodec.decode` does."""
        columns, count = len(self._form.is_float) + (self._window is not None), len(partials)
        times, ints, nulls = np.empty(count, np.int64), np.empty((columns, count), np.int64), np.empty((columns, count), np.bool_)
        done = self._kernels.decode(
            partials.buffer, partials.value_starts, partials.value_sizes, ENTRY_VERSION, times, ints, nulls
        )
        for value in partials.slice(done, done + 1).values():
            partial_codec(self._form.node).decode(value or b"")
            raise AssertionError(f"the kernel does not read the entry {value!r}")
        return times, ints, nulls

    def _load(self, change: Change, rows: I64, starts: I64) -> None:
        """Read entries that will change and are not in memory."""
        floor = self._store.complete_from
        if floor == 0 or (self._window is not None and not (starts < floor).any()):
            return
        keys, sizes = change.keys.addresses()
        found = np.empty(len(rows), np.int64)
        self._kernels.find(self._columns.slots, keys[rows], sizes[rows], starts, found)
        missing = np.flatnonzero((found < 0) & (starts < floor))
        if len(missing) == 0:
            return
        wanted: list[Any] = change.keys.take(rows[missing]).objects()
        if self._window is not None:
            pack = g.WINDOW_START.pack
            wanted = [key + pack(start) for key, start in zip(wanted, starts[missing].tolist(), strict=True)]
        self._store.load(set(wanted))
        self._store.settle()

    def _traced(self, room: int) -> Any:
        states, old = len(self._form.is_float), room if self._wants_old else 0
        return self._kernels.Traced(
            np.empty(room, np.int64),
            np.empty(room, np.int64),
            np.empty((room, states), np.int64),
            np.empty((room, states), np.float64),
            np.empty((room, states), np.bool_),
            np.empty(old, np.bool_),
            np.empty((old, states), np.int64),
            np.empty((old, states), np.float64),
            np.empty((old, states), np.bool_),
        )

    def _with_starts(self, keys: I64, sizes: Any, starts: I64) -> Bytes:
        """Return keys with window starts behind them."""
        out = np.empty(int(sizes.sum(dtype=np.int64)) + 8 * len(keys) + 1, np.uint8)
        positions = np.empty(len(keys), np.int64)
        self._kernels.windowed_keys(keys, sizes, starts, out, positions)
        return Bytes.of_spans(out, positions, (sizes + 8).astype(np.int32))

    # -- results ---------------------------------------------------------------------------------------------------------

    def changed(self) -> Updated:
        self._store.settle()
        return self._of_slots(self._columns.changed.copy(), has_before=self._wants_old)

    def closed(self) -> Updated:
        self._store.settle()
        closed = self._closed()
        self._read_closing()
        starts = self._columns.window_starts()
        slots = np.flatnonzero((starts > self._emitted_to) & (starts <= closed))
        self._emitted_to = max(closed, self._emitted_to)
        kept = self._columns.slots
        keys = Bytes.of_spans(kept.arena, kept.key_starts[slots], kept.key_sizes[slots]).objects()
        by_key = np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)  # type: ignore[arg-type]
        by_start = by_key[np.argsort(starts[slots[by_key]], kind="stable")]
        return self._of_slots(slots[by_start], has_before=False)

    def _closed(self) -> int:
        assert self._window is not None
        return self._store.stream_time_ms - self._window.size_ms - self._window.grace_ms

    def _read_closing(self) -> None:
        """Read the entries of closing windows that have gone from memory, as some have that are or were still open."""
        assert self._window is not None
        if self._open is None:
            if self._store.complete_from <= max(self._emitted_to + 1, 0):
                return
            self._open = OpenEntries(self._store, closing_wait_ms(self._window))
            self._open.start(self._emitted_to + 1)
        keys = self._open.take_closed(self._store.stream_time_ms, self._columns.keys(self._columns.changed))
        slots = self._columns.find(keys) if keys else np.empty(0, np.int64)
        self._store.load({key for key, slot in zip(keys, slots.tolist(), strict=True) if slot < 0})
        self._store.settle()

    def _of_slots(self, which: I64, *, has_before: bool) -> Updated:
        slots = self._columns.slots
        starts = slots.starts[which] if self._window is not None else None
        positions, sizes = slots.key_starts[which], slots.key_sizes[which]
        if starts is None:
            keys = Bytes.of_spans(slots.arena, positions, sizes)
        else:
            keys = self._with_starts(positions + slots.arena.ctypes.data, sizes, starts)
        before = None
        if has_before:
            kept, count = self._columns.before, len(which)
            before = states_of(self._form, kept.nulls[:count], kept.ints[:count], kept.floats[:count], ~kept.had[:count])
        elif self._wants_old:
            none = np.ones(len(which), np.bool_)
            before = states_of(self._form, slots.nulls[which], slots.ints[which], slots.floats[which], none)
        return Updated(
            keys,
            slots.times[which],
            starts,
            states_of(self._form, slots.nulls[which], slots.ints[which], slots.floats[which], None),
            before,
        )


def addresses_of(args: Sequence[Column]) -> tuple[I64, list[Any]]:
    """Return the addresses of the arguments' nulls and data, int64[G, 2], and what must live as long."""
    addresses, kept = np.zeros((len(args), 2), np.int64), []
    for i, column in enumerate(args):
        vector = column.vector()
        if vector is None:
            vector = _fitting(column)
        addresses[i, 0] = 0 if vector.nulls is None else vector.nulls.ctypes.data
        addresses[i, 1] = vector.data.ctypes.data
        kept.append(vector)
    return addresses, kept


def _fitting(column: Column) -> Vector:
    """Return a column of which only the nulls count, or whose values a callable gave as another type of number."""
    values = column.objects()
    nulls = np.fromiter([value is None for value in values], np.bool_, column.count)
    if column.kind is Kind.DOUBLE:
        return Vector(np.array([0.0 if value is None else float(value) for value in values]), None, nulls)
    if column.kind in _WHOLE:
        wrapped = [0 if value is None else (int(value) + 2**63) % 2**64 - 2**63 for value in values]
        return Vector(np.array(wrapped, np.int64), None, nulls)
    return Vector(np.zeros(column.count, np.int64), None, nulls)


def states_of(form: ColumnsForm, nulls: Any, ints: Any, floats: Any, gone: Mask | None) -> States:
    """Return rows of state columns as states, without the columns that are no aggregation's."""
    columns, kinds = [], [column.type.kind for a in form.node.aggregations for column in a.aggregator.state_columns]
    for c, kind in enumerate(kinds, form.own):
        mask = nulls[:, c]
        if gone is not None:
            mask = mask | gone
        data = np.ascontiguousarray((floats if form.is_float[c] else ints)[:, c])
        columns.append(Column.of_vector(Vector(data, None, mask if mask.any() else None), len(data), kind))
    return States(columns, gone if gone is not None and gone.any() else None)


def spec_of(form: ColumnsForm, kernels: Any, keeps_before: bool) -> Any:
    """Return what `slots.fold` does."""
    names = {"count": kernels.COUNT, "sum": kernels.SUM, "mean": kernels.MEAN, "min": kernels.MIN, "max": kernels.MAX}
    first = form.first_state
    wholes = [0 if value is None or is_float else value for value, is_float in zip(first, form.is_float, strict=True)]
    return kernels.Spec(
        np.array([names[kernel] for kernel, _, _ in form.parts], np.int64),
        np.array([column for _, column, _ in form.parts], np.int64),
        np.array([arg for _, _, arg in form.parts], np.int64),
        np.array(form.is_float, np.int64),
        np.array([kind is Kind.DOUBLE for kind in form.arg_kinds], np.int64),
        np.array(wholes, np.int64),
        np.array([0.0 if value is None else value for value in first], np.float64),
        np.array([value is None for value in first], np.bool_),
        np.array([keeps_before], np.int64),
    )
