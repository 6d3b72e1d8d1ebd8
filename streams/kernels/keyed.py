"""A task of a sub-topology with one aggregate, on the compiled tier: its store as columns, rows counted into slots.

A run is decoded into arguments, which a kernel counts into the entries of the store. A row that is not certain goes through the
reference tier in its place: the entries it touches are lent to that tier as objects, and taken back after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from logflume.log.records import Chunk

from .. import graph as g
from ..compiler import CompiledProgram
from ..expr import Side
from ..seams import Outputs, Problems, StateStore, StoreSpec, TaskFunction
from ..state.columns import EntryColumns
from ..state.store import Store
from .aggregates import AggregateChain
from .columns import Rows, Values
from .stateless import Encoded, _decode, _encode
from .tier import compiled_tier

_FEW_RECORDS = 64
_MAX_MARKED_SHARE = 4
"""Where more than one row (or result) in this many is marked, all of them are the reference tier's."""
_REPORT_ROOM = 4096
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class KeyedProgram:
    """Implements `seams.Program`: the reference tier, and the compiled tier where it is ready."""

    reference: CompiledProgram
    chain: AggregateChain

    @property
    def sources(self) -> Mapping[str, str]:
        return self.reference.sources

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        return self.reference.stores

    @property
    def source_code(self) -> str:
        return self.reference.source_code

    def bind(self, stores: Mapping[str, StateStore], outputs: Outputs, problems: Problems) -> TaskFunction:
        """Return the functions of one task."""
        reference, store = self.reference.bind(stores, outputs, problems), stores[self.chain.node.store]
        if not isinstance(store, Store):
            return reference
        return KeyedFunction(reference, self.chain, store, outputs, problems)


@dataclass(frozen=True, slots=True, eq=False)
class Arguments:
    """A run of N rows, decoded: what `slots.update` takes. status, times: [N]; nulls, ints, floats: [G, N]."""

    status: I64
    times: I64
    nulls: npt.NDArray[np.bool_]
    ints: npt.NDArray[np.int64]
    floats: npt.NDArray[np.float64]


class KeyedFunction:
    """Implements `seams.TaskFunction`. The store is kept as columns from the first commit on at which the kernels are there."""

    def __init__(
        self, reference: TaskFunction, chain: AggregateChain, store: Store, outputs: Outputs, problems: Problems
    ) -> None:
        self._reference = reference
        self._chain = chain
        self._store = store
        self._outputs = outputs
        self._problems = problems
        self._is_update = chain.node.emit is g.Emit.UPDATE
        self._spec: Any = None
        self._trace: Any = None

    def restore(self, source: str, chunk: Any, start: int, stop: int) -> None:
        self._reference.restore(source, chunk, start, stop)

    # -- records ---------------------------------------------------------------------------------------------------------

    def process(self, source: str, chunk: Any, start: int, stop: int) -> None:
        rows = compiled_tier().kernels(stop - start)
        columns = None if rows is None else self._columns(stop - start)
        if rows is None or columns is None or (self._is_update and chunk.header_counts[start:stop].any()):
            self._process_objects(source, chunk, start, stop)
            return
        arguments = self._decode(chunk, start, stop, rows)
        marked = np.flatnonzero(arguments.status == rows.MARKED)
        if len(marked) * _MAX_MARKED_SHARE > stop - start:
            self._process_objects(source, chunk, start, stop)
            return
        keys = Keys(
            np.ascontiguousarray(chunk.buffer),
            np.ascontiguousarray(chunk.key_starts[start:stop]),
            np.ascontiguousarray(chunk.key_sizes[start:stop]),
        )
        self._load(columns, keys, arguments)
        kernels, at = columns.kernels, 0
        columns.slots.counters[kernels.STREAM_TIME] = self._store.stream_time_ms
        while at < stop - start:
            why, at = kernels.update(
                columns.slots, self._spec, self._trace, *keys, arguments.times, arguments.status, at, stop - start,
                arguments.nulls, arguments.ints, arguments.floats,
            )  # fmt: skip
            self._store.stream_time_ms = int(columns.slots.counters[kernels.STREAM_TIME])
            self._report(columns, chunk, start, rows)
            if why == kernels.FULL:
                most = self._chain.most_windows
                columns.make_room(most, most * int(keys.sizes[at]))
            elif why == kernels.UNSURE:
                last = at + 1
                while last < stop - start and arguments.status[last] == rows.MARKED:
                    last += 1
                self._process_objects(source, chunk, start + at, start + last)
                columns.slots.counters[kernels.STREAM_TIME] = self._store.stream_time_ms
                at = last

    def _process_objects(self, source: str, chunk: Chunk, start: int, stop: int) -> None:
        """Let the reference tier process rows; a part of a chunk as a chunk of its own, so that only that is made objects of."""
        if not self._is_update and stop - start < len(chunk):
            chunk, start, stop = chunk.slice(start, stop), 0, stop - start
        self._reference.process(source, chunk, start, stop)
        self._store.settle()

    def _columns(self, records: int) -> EntryColumns | None:
        """Return the store's entries as columns, from a longer run on that follows a commit; None while it keeps objects."""
        store = self._store
        if store.columns is None:
            if records < _FEW_RECORDS or store.has_changes:
                return None
            from . import slots

            self._prepare(slots)
            store.use_columns(slots)
        return store.columns

    def _prepare(self, slots: ModuleType) -> None:
        chain, window = self._chain, self._chain.node.window
        names = {"count": slots.COUNT, "sum": slots.SUM, "mean": slots.MEAN, "min": slots.MIN, "max": slots.MAX}
        most, states = chain.most_windows, len(chain.first_state)
        first = chain.first_state
        is_float = [isinstance(value, float) for value in first]
        for step, aggregation in zip(chain.steps, chain.node.aggregations, strict=True):
            is_float[step.column] = aggregation.aggregator.state_columns[0].type.kind.name == "DOUBLE"
        spans = (window.size_ms, window.advance_ms, window.size_ms + window.grace_ms) if window else (0, 1, 0)
        self._spec = slots.Spec(
            np.array([names[step.kernel] for step in chain.steps], np.int64),
            np.array([step.column for step in chain.steps], np.int64),
            np.array([step.arg for step in chain.steps], np.int64),
            np.array(is_float, np.int64),
            np.array([kind == 3 for kind, _ in chain.before.outputs], np.int64),
            np.array(
                [0 if value is None or is_real else value for value, is_real in zip(first, is_float, strict=True)], np.int64
            ),
            np.array([0.0 if value is None else value for value in first], np.float64),
            np.array([value is None for value in first], np.bool_),
            np.array([*spans, most, self._is_update], np.int64),
        )
        room = _REPORT_ROOM + most if self._is_update else 0
        self._trace = slots.Trace(
            np.empty((_REPORT_ROOM + most, 3), np.int64),
            *(np.empty(room, np.int64) for _ in range(3)),
            np.empty((room, states), np.int64),
            np.empty((room, states), np.float64),
            np.empty((room, states), np.bool_),
        )

    def _decode(self, chunk: Chunk, start: int, stop: int, kernels: ModuleType) -> Arguments:
        """Decode a run; a row without a key, or that anything is not certain of, is marked."""
        chain = self._chain.before
        status, rows = _decode(chain, chunk, start, stop, kernels)
        if not chain.fields:
            status[_is_empty_object(chunk, start, stop)] = kernels.CERTAIN
        shape = (len(chain.outputs), stop - start)
        nulls, ints, floats = np.zeros(shape, np.bool_), np.zeros(shape, np.int64), np.zeros(shape, np.float64)
        times = np.ascontiguousarray(chunk.timestamps_ms[start:stop])
        with np.errstate(all="ignore"):
            keep = status == kernels.CERTAIN
            for condition in chain.conditions:
                keep &= condition(rows)
            for i, (kind, column) in enumerate(chain.outputs):
                values = column(rows)
                nulls[i] = values.nulls
                if values.sizes is None:
                    (floats if kind == kernels.DOUBLE else ints)[i] = values.data
            if self._chain.time is not None:
                found = self._chain.time(rows)
                times = np.ascontiguousarray(found.data, np.int64)
                np.logical_or(rows.marks, found.nulls | (times < 0), out=rows.marks)
        np.logical_or(rows.marks, chunk.key_sizes[start:stop] < 0, out=rows.marks)
        status[(status == kernels.CERTAIN) & ~keep] = kernels.DROPPED
        status[rows.marks] = kernels.MARKED
        return Arguments(status, times, nulls, ints, floats)

    def _load(self, columns: EntryColumns, keys: Keys, arguments: Arguments) -> None:
        """Read the entries that the run will change and that are not in memory."""
        if self._store.complete_from == 0:
            return
        kernels, room = columns.kernels, len(keys.sizes) * self._chain.most_windows
        rows, starts = np.empty(room, np.int64), np.empty(room, np.int64)
        count = kernels.missing(
            columns.slots, self._spec, *keys, arguments.times, arguments.status, self._store.complete_from, rows, starts
        )
        if count == 0:
            return
        data, begins, sizes = keys.buffer, keys.starts[rows[:count]], keys.sizes[rows[:count]]
        wanted = {data[a : a + n].tobytes() for a, n in zip(begins.tolist(), sizes.tolist(), strict=True)}
        if self._chain.node.window is not None:
            pairs = zip(begins.tolist(), sizes.tolist(), starts[:count].tolist(), strict=True)
            wanted = {data[a : a + n].tobytes() + g.WINDOW_START.pack(start) for a, n, start in pairs}
        self._store.load(wanted)
        self._store.settle()

    def _report(self, columns: EntryColumns, chunk: Chunk, start: int, rows: ModuleType) -> None:
        """Report windows that were late, and put out updates, since the last call."""
        kernels, trace, counters = columns.kernels, self._trace, columns.slots.counters
        node, problems = self._chain.node.name, self._problems
        for row, window, now in trace.late[: counters[kernels.LATE]].tolist():
            offset = int(chunk.offsets[start + row])
            problems.report("late", node, chunk.topic, chunk.partition, offset, (window, now))
        count = int(counters[kernels.TRACED])
        counters[kernels.LATE] = counters[kernels.TRACED] = 0
        if not self._is_update or count == 0 or self._chain.after is None:
            return
        slots, states = trace.slots[:count], (trace.nulls[:count], trace.ints[:count], trace.floats[:count])
        encoded = self._results(states, rows)
        values = _values(encoded)
        for i in np.flatnonzero(encoded.status == rows.MARKED).tolist():
            assert self._chain.encode is not None
            values[i] = self._chain.encode(self._state(states, i))
        causes = (trace.rows[:count] + start).tolist()
        self._outputs.send(
            self._chain.after.sink, columns.keys(slots), values, trace.times[:count].tolist(), headers=None, causes=causes
        )

    # -- results ---------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        columns = self._store.columns
        if columns is None:
            self._reference.flush()
            return
        self._store.settle()
        if self._is_update or not self._chain.has_consumers or len(columns.changed) == 0:
            return
        changed, rows = columns.changed, compiled_tier().kernels(0)
        if self._chain.after is None or rows is None:
            self._flush_objects(columns, changed)
            return
        slots = columns.slots
        states = (slots.nulls[changed], slots.ints[changed], slots.floats[changed])
        encoded = self._results(states, rows)
        marked = np.flatnonzero(encoded.status == rows.MARKED)
        if len(marked) * _MAX_MARKED_SHARE > len(changed):
            self._flush_objects(columns, changed)
            return
        at = 0
        for block in np.split(marked, np.flatnonzero(np.diff(marked) > 1) + 1) if len(marked) else ():
            self._send(columns, changed, encoded, at, int(block[0]), rows)
            self._flush_objects(columns, changed[block])
            at = int(block[-1]) + 1
        self._send(columns, changed, encoded, at, len(changed), rows)

    def _flush_objects(self, columns: EntryColumns, slots: I64) -> None:
        """Let the reference tier put out the results of some changed slots."""
        store, keys = self._store, columns.keys(slots)
        store.resident.update(zip(keys, columns.entries(slots), strict=True))
        store.dirty.update(dict.fromkeys(keys))
        self._reference.flush()
        store.resident.clear()
        store.dirty.clear()

    def _send(self, columns: EntryColumns, changed: I64, encoded: Encoded, first: int, last: int, rows: ModuleType) -> None:
        """Put out the results of certain rows first..last."""
        assert self._chain.after is not None
        which = np.flatnonzero(encoded.status[first:last] == rows.CERTAIN) + first
        if len(which) == 0:
            return
        slots, values = changed[which], _values(encoded)
        chosen = values if len(which) == len(values) else [values[i] for i in which.tolist()]
        self._outputs.send(self._chain.after.sink, columns.keys(slots), chosen, columns.slots.times[slots].tolist())

    def _results(self, states: tuple[Any, Any, Any], kernels: ModuleType) -> Encoded:
        """Compute and encode the results of N states, given as nulls, ints and floats: [N, A]."""
        chain = self._chain.after
        assert chain is not None
        nulls, ints, floats = states
        found: dict[tuple[Side, str], Values] = {}
        for c in range(nulls.shape[1]):
            data = floats[:, c] if self._spec.is_float[c] else ints[:, c]
            found[Side.META, str(c)] = Values(nulls[:, c], data)
        rows = Rows(np.zeros(1, np.uint8), found, np.zeros(len(nulls), np.bool_), kernels)
        status = np.full(len(nulls), kernels.CERTAIN, np.int64)
        with np.errstate(all="ignore"):
            for condition in chain.conditions:
                status[~condition(rows)] = kernels.DROPPED
            columns = [column(rows) for _, column in chain.outputs]
        status[rows.marks] = kernels.MARKED
        return _encode(chain, rows, columns, status, kernels)

    def _state(self, states: tuple[Any, Any, Any], row: int) -> tuple[Any, ...]:
        nulls, ints, floats = states
        is_float = self._spec.is_float
        return tuple(
            None if nulls[row, c] else float(floats[row, c]) if is_float[c] else int(ints[row, c]) for c in range(len(is_float))
        )


@dataclass(frozen=True, slots=True, eq=False)
class Keys:
    """The record keys of N rows as spans of a buffer; iterates as the kernels take them."""

    buffer: npt.NDArray[np.uint8]
    starts: I64
    sizes: npt.NDArray[np.int32]

    def __iter__(self) -> Any:
        return iter((self.buffer, self.starts, self.sizes))


def _is_empty_object(chunk: Chunk, start: int, stop: int) -> npt.NDArray[np.bool_]:
    """Return where a value is `{}`, as a repartition topic has it when no column is read behind it: bool[N]."""
    found: npt.NDArray[np.bool_] = (chunk.value_sizes[start:stop] == 2) & (chunk.timestamps_ms[start:stop] >= 0)
    at = chunk.value_starts[start:stop][found]
    found[found] = (chunk.buffer[at] == ord("{")) & (chunk.buffer[at + 1] == ord("}"))
    return found


def _values(encoded: Encoded) -> list[bytes | None]:
    """Return the encoded rows as objects, aligned with the status; nothing useful where that is not CERTAIN."""
    count = len(encoded.status)
    none = np.zeros(count, np.int32)
    wide = none.astype(np.int64)
    chunk = Chunk("", -1, encoded.data, wide, wide, wide, none, encoded.starts, encoded.sizes, wide, none, count)
    return chunk.values()
