"""A store of a task as the compiled tier uses it: rows counted into its columns, results put out.

Between two calls from the compiled tier the reference tier may have had the store: it is lent single entries as objects and
`settle` takes them back.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from logflume.log.records import I64, Chunk

from .. import graph as g
from ..expr import Meta, Side
from ..seams import Outputs, Problems, TaskFunction
from ..state.store import Store
from .aggregates import AggregatePlan, Update, state_column
from .flow import Batch, Flow, Keys, prepare_all
from .vectors import ColumnId, Mask, Rows, Vector

if TYPE_CHECKING:
    from ..state.columns import EntryColumns

_REPORT_ROOM = 4096
_MAX_MARKED_SHARE = 4
"""Where more than one result in this many is marked, all of them are the reference tier's."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a tally needs of its task. `json`, `texts`: kernels."""

    outputs: Outputs
    problems: Problems
    reference: TaskFunction
    json: ModuleType
    texts: ModuleType


class Tally:
    """The columns of one store and what is counted into them. From when it is made the store's entries are in columns."""

    def __init__(self, plan: AggregatePlan, store: Store, around: Surroundings, kernels: ModuleType) -> None:
        self._plan = plan
        self._store = store
        self._around = around
        self._kernels = kernels
        self._columns: EntryColumns = store.use_columns(kernels, keeps_before=plan.keeps_before)
        self._is_update = plan.node.emit is g.Emit.UPDATE
        self._spec = _spec(plan, kernels)
        self._trace = _trace(plan, kernels)

    def settle(self) -> None:
        """Take back what the reference tier has had."""
        self._store.settle()

    def load(self, keys: Keys, times: I64, alive: Mask) -> None:
        """Read the entries that living rows will change and that are not in memory."""
        if self._store.complete_from == 0:
            return
        room = int(alive.sum()) * self._plan.most_windows
        rows, starts = np.empty(room, np.int64), np.empty(room, np.int64)
        count = self._kernels.missing(
            self._columns.slots, self._spec, keys.starts, keys.sizes, times, alive, self._store.complete_from, rows, starts
        )
        if count == 0:
            return
        sizes = keys.sizes[rows[:count]]
        out = np.empty(int(sizes.sum(dtype=np.int64)), np.uint8)
        self._kernels.copy_keys(keys.starts, keys.sizes, rows[:count], out)
        ends = np.cumsum(sizes, dtype=np.int64)
        data = out.tobytes()
        wanted = [data[a:b] for a, b in zip((ends - sizes).tolist(), ends.tolist(), strict=True)]
        if self._plan.node.window is not None:
            pairs = zip(wanted, starts[:count].tolist(), strict=True)
            wanted = [key + g.WINDOW_START.pack(start) for key, start in pairs]
        self._store.load(set(wanted))
        self._store.settle()

    def update(self, rows: Update, first: int, last: int) -> None:
        """Count the living ones of rows first..last, and put out and report what follows from them."""
        kernels, most = self._kernels, self._plan.most_windows
        self._columns.slots.counters[kernels.STREAM_TIME] = self._store.stream_time_ms
        at = first
        while at < last:
            at = kernels.update(
                self._columns.slots, self._columns.before, self._spec, self._trace, rows.keys.starts, rows.keys.sizes, rows.times,
                rows.alive, at, last, rows.arguments,
            )  # fmt: skip
            self._store.stream_time_ms = int(self._columns.slots.counters[kernels.STREAM_TIME])
            self._report(rows.batch)
            if at < last:
                self._columns.make_room(most, most * int(rows.keys.sizes[at]))

    def _report(self, batch: Batch) -> None:
        """Report windows that were late, and put out single updates, since the last call."""
        trace, counters, chunk = self._trace, self._columns.slots.counters, batch.chunk
        node, problems = self._plan.node.name, self._around.problems
        for row, window, now in trace.late[: counters[self._kernels.LATE]].tolist():
            offset = int(chunk.offsets[batch.start + row])
            problems.report("late", node, chunk.topic, chunk.partition, offset, (window, now))
        count = int(counters[self._kernels.TRACED])
        counters[self._kernels.LATE] = counters[self._kernels.TRACED] = 0
        if count == 0 or not self._plan.then:
            return
        slots = trace.slots[:count].copy()
        entries = self._columns.encode(slots, b"", self._segment_ms()).chunk("")
        states = (trace.nulls[:count], trace.ints[:count], trace.floats[:count])
        outputs = _Caused(self._around.outputs, trace.rows[:count] + batch.start)
        result = self._results(entries, states, slots, trace.times[:count].copy(), outputs)
        at = 0
        for row in np.flatnonzero(result.marks).tolist():
            _apply(result, at, row)
            assert self._plan.encode is not None
            value = self._plan.encode(self._state(states, row))
            key, time = entries.slice(row, row + 1).keys(), int(trace.times[row])
            self._around.outputs.send(self._plan.output, key, [value], [time], causes=[int(outputs.causes[row])])
            at = row + 1
        _apply(result, at, count)

    # -- results at a task commit ----------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Put out the results of all changed entries, where they leave at a task commit."""
        self._store.settle()
        changed = self._columns.changed
        if self._is_update or len(changed) == 0 or self._plan.then == ():
            return
        if self._plan.then is None:
            self._flush_objects(changed)
            return
        slots = self._columns.slots
        states = (slots.nulls[changed], slots.ints[changed], slots.floats[changed])
        entries = self._store.encode_dirty().chunk("")
        result = self._results(entries, states, changed, entries.timestamps_ms, _Uncaused(self._around.outputs))
        marked = np.flatnonzero(result.marks)
        if len(marked) * _MAX_MARKED_SHARE > len(changed):
            self._flush_objects(changed)
            return
        at = 0
        for block in np.split(marked, np.flatnonzero(np.diff(marked) > 1) + 1) if len(marked) else ():
            _apply(result, at, int(block[0]))
            self._flush_objects(changed[block])
            at = int(block[-1]) + 1
        _apply(result, at, len(changed))

    def _flush_objects(self, slots: I64) -> None:
        """Let the reference tier put out the results of some changed slots."""
        store, keys = self._store, self._columns.keys(slots)
        before = self._columns.states_before() if self._plan.keeps_before else [None] * len(keys)
        store.resident.update(zip(keys, self._columns.entries(slots), strict=True))
        store.dirty.update(zip(keys, before, strict=True))
        self._around.reference.flush()
        store.resident.clear()
        store.dirty.clear()

    def _results(self, entries: Chunk, states: tuple[Any, Any, Any], slots: I64, times: I64, outputs: Outputs) -> Batch:
        """Compute the results of N states (nulls, ints and floats: [N, A]) and prepare what follows; nothing goes out yet."""
        assert self._plan.then is not None
        nulls, ints, floats = states
        count, columns = len(times), dict[ColumnId, Vector]()
        for c, is_float in enumerate(self._plan.is_float):
            mask = np.ascontiguousarray(nulls[:, c])
            columns[state_column(c)] = Vector((floats if is_float else ints)[:, c], None, mask if mask.any() else None)
        for name in self._plan.meta:
            columns[Side.META, name] = Vector(self._meta(name, slots, times))
        rows = Rows(count, columns, self._around.texts)
        keys = Keys(entries.key_starts + entries.buffer.ctypes.data, entries.key_sizes)
        batch = Batch(entries, 0, count, self._around.json, outputs, {}, {}, np.zeros(count, np.bool_))
        alive = np.ones(count, np.bool_)
        with np.errstate(all="ignore"):
            found = self._plan.results(rows)
            for vector in found.values():
                batch.mark(vector.unsure, alive)
            columns |= {column: vector._replace(unsure=None) for column, vector in found.items()}
            prepare_all(self._plan.then, batch, Flow(rows, alive, times, keys))
        return batch

    def _meta(self, name: str, slots: I64, times: I64) -> I64:
        if name == Meta.ROWTIME:
            return times
        assert self._plan.node.window is not None
        starts: I64 = self._columns.slots.starts[slots]
        return starts if name == "WINDOWSTART" else starts + self._plan.node.window.size_ms

    def _state(self, states: tuple[Any, Any, Any], row: int) -> tuple[Any, ...]:
        nulls, ints, floats = states
        return tuple(
            None if nulls[row, c] else float(floats[row, c]) if is_float else int(ints[row, c])
            for c, is_float in enumerate(self._plan.is_float)
        )

    def _segment_ms(self) -> int:
        return self._store.layout.segment_ms if self._store.layout else 0


def _apply(batch: Batch, first: int, last: int) -> None:
    for effect in batch.effects:
        effect.apply(first, last)


@dataclass(frozen=True, slots=True, eq=False)
class _Uncaused:
    """Outputs of a flush: no record caused them."""

    outputs: Outputs

    def send(self, node: str, *columns: Any, headers: Any = None, causes: Any = None) -> None:
        self.outputs.send(node, *columns, headers=headers)

    def send_columns(self, node: str, records: Chunk, *, causes: I64 | None = None) -> None:
        self.outputs.send_columns(node, records)


@dataclass(frozen=True, slots=True, eq=False)
class _Caused:
    """Outputs of single updates: row k was caused by record causes[k] of the chunk at hand."""

    outputs: Outputs
    causes: I64

    def send(self, node: str, *columns: Any, headers: Any = None, causes: Any = None) -> None:
        self.outputs.send(node, *columns, headers=headers, causes=self.causes[causes].tolist())

    def send_columns(self, node: str, records: Chunk, *, causes: I64 | None = None) -> None:
        self.outputs.send_columns(node, records, causes=self.causes[causes])


def _spec(plan: AggregatePlan, kernels: ModuleType) -> Any:
    """Return what `slots.update` does."""
    window, first = plan.node.window, plan.first_state
    names = {"count": kernels.COUNT, "sum": kernels.SUM, "mean": kernels.MEAN, "min": kernels.MIN, "max": kernels.MAX}
    spans = (window.size_ms, window.advance_ms, window.size_ms + window.grace_ms) if window else (0, 1, 0)
    wholes = [0 if value is None or is_float else value for value, is_float in zip(first, plan.is_float, strict=True)]
    return kernels.Spec(
        np.array([names[part.kernel] for part in plan.parts], np.int64),
        np.array([part.column for part in plan.parts], np.int64),
        np.array([part.arg for part in plan.parts], np.int64),
        np.array(plan.is_float, np.int64),
        np.array([kind.name == "DOUBLE" for kind in plan.arg_kinds], np.int64),
        np.array(wholes, np.int64),
        np.array([0.0 if value is None else value for value in first], np.float64),
        np.array([value is None for value in first], np.bool_),
        np.array([*spans, plan.most_windows, plan.node.emit is g.Emit.UPDATE, plan.keeps_before], np.int64),
    )


def _trace(plan: AggregatePlan, kernels: ModuleType) -> Any:
    """Return room for what `slots.update` reports."""
    states, most = len(plan.is_float), plan.most_windows
    room = _REPORT_ROOM + most if plan.node.emit is g.Emit.UPDATE else 0
    columns: list[npt.NDArray[np.int64]] = [np.empty(room, np.int64) for _ in range(3)]
    return kernels.Trace(
        np.empty((_REPORT_ROOM + most, 3), np.int64),
        *columns,
        np.empty((room, states), np.int64),
        np.empty((room, states), np.float64),
        np.empty((room, states), np.bool_),
    )
