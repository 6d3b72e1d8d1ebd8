"""Reads a topic: decoding, event time, and the rows of a table that is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from logflume.log import DecodeError, InvalidInput
from logflume.log.records import I64, Chunk
from logflume.log.schemas import Kind, is_object_class, never_null

from .. import graph as g
from ..columns import Batch, Bytes, Column
from ..columns.batch import PATH_BITS, ColumnId, objects_of
from ..columns.decode import KeyDecoder, ValueDecoder
from ..columns.encode import KeyEncoder
from ..columns.evaluate import Evaluation
from ..columns.key_forms import KeyForms
from ..expr import WHOLE, Side, columns_used
from ..seams import StateStore, StoreSpec, Taken
from ..vectors.expressions import Mask
from ..windows import key_suffix_bytes, store_window
from .operator import Bind, Cut, Operator, RawKey, Task, Wiring, Work
from .rows import keep_rows
from .slices import Slice
from .versions import is_versioned, keep_versions, versions_spec

_MANY_FORMS = frozenset({"DELIMITED", "JSON"})
"""Formats in which other programs may write one key as different bytes: with quotes, blanks, zeros, fields in another order."""


class SourceOperator(Operator[g.Source | g.Repartition]):
    """A Source, or a Repartition where it is read."""

    node_class = g.Source

    @property
    def timestamp(self) -> Evaluation | None:
        node = self.node
        return Evaluation(node.timestamp) if isinstance(node, g.Source) and node.timestamp is not None else None

    @property
    def store(self) -> str | None:
        return self.node.store if isinstance(self.node, g.Source) else None

    @property
    def is_key_rewritten(self) -> bool:
        """Return whether keys are brought to the form in which the format writes them: one key in two forms would be two keys."""
        return isinstance(self.node, g.Source) and self.node.key_format.name in _MANY_FORMS

    def stores(self) -> tuple[StoreSpec, ...]:
        schema = self.node.schema
        if self.store is None:
            return ()
        if isinstance(self.node, g.Source) and is_versioned(self.node):
            return (versions_spec(self.node),)
        return (StoreSpec(self.store, schema.key, schema.value, store_window(schema.window)),)

    def raw_key(self, inputs: Sequence[RawKey | None]) -> RawKey | None:
        return self.node.key_format, self.node.schema.key

    def cut(self, wiring: Wiring) -> Cut:
        """By keys as they are in the topic; not where decoding makes them, or rows are kept by time or for all slices."""
        node = self.node
        is_whole = g.is_global(node) or is_versioned(node) or node.schema.window is not None or self.is_key_rewritten
        return Cut.WHOLE if is_whole else Cut.ROWS

    def plan(self, wiring: Wiring) -> Bind:
        return lambda task: SourceWork(self, wiring, task)

    def decoders(self, wiring: Wiring) -> tuple[KeyDecoder, ValueDecoder]:
        """Return what decodes what is read further on: all of the value for a table that is kept."""
        node, time = self.node, self.timestamp
        reads = set(wiring.needs[node.name]) | (set() if time is None else columns_used(time.expr))
        values, keys = _names(reads, Side.VALUE, node.schema.value), _names(reads, Side.KEY, node.schema.key)
        if self.store is not None:
            values = frozenset(column.name for column in node.schema.value)
        if self.is_key_rewritten:
            keys = frozenset(column.name for column in node.schema.key)
        bare_class = node.schema.value_class if g.is_bare(node.schema) else None
        return (
            KeyDecoder(
                node.key_format,
                node.schema.key,
                keys,
                suffix_bytes=key_suffix_bytes(node.schema.window),
                is_checked=isinstance(node, g.Source),
            ),
            ValueDecoder(node.value_format, node.schema.value, values, bare_class=bare_class, filled_class=self.typed_class),
        )

    @property
    def typed_class(self) -> type[Any] | None:
        """The class with fields that values of a topic are declared to be of."""
        found = self.node.schema.value_class
        return found if isinstance(self.node, g.Source) and is_object_class(found) else None


def _names(reads: set[ColumnId], side: Side, columns: Sequence[object]) -> frozenset[str]:
    if (side, WHOLE) in reads:
        return frozenset(column.name for column in columns)  # type: ignore[attr-defined]
    return frozenset(name for at, name in reads if at is side)


class SourceWork(Work):
    """See `SourceOperator`."""

    def __init__(self, operator: SourceOperator, wiring: Wiring, task: Task) -> None:
        self._node, self._task = operator.node, task
        self._keys, self._values = operator.decoders(wiring)
        self._time = operator.timestamp
        readers = wiring.readers.get(operator.node.topic, ())
        self._branch = readers.index(operator.node.name) if operator.node.name in readers else 0
        self._branches = len(readers)
        self._needs_time = isinstance(operator.node, g.Source) and operator.node.needs_time
        self._is_table = operator.node.kind is g.EdgeKind.TABLE
        schema, format = operator.node.schema, operator.node.key_format
        self._rewriter = KeyEncoder(format, schema.key, is_raw=False, window=schema.window) if operator.is_key_rewritten else None
        is_plain = isinstance(operator.node, g.Source) and schema.window is None
        self._forms = KeyForms.of(format, schema.key) if is_plain else None
        self._store: StateStore | None = None if operator.store is None else task.store(operator.store)
        self._wants_old = operator.node.name in wiring.wants_old
        value_class = operator.node.schema.value_class
        is_whole = (Side.VALUE, WHOLE) in wiring.needs[operator.node.name] and not g.is_bare(operator.node.schema)
        self._object_class = value_class if is_whole and is_object_class(value_class) else None
        self._never_null = [] if operator.typed_class is None else sorted(never_null(operator.typed_class))
        self._slice: Slice | None = None

    def restrict(self, own: Slice) -> None:
        """Decode the records of a slice of the task alone."""
        self._slice = own

    def process(self, batch: Batch, source: str) -> None:
        raise AssertionError("a source has no input but its topic")

    def put(self, batch: Batch) -> None:
        """Keep records that were decoded, where the node is a table that is kept, and forward them."""
        if self._store is not None:
            batch = self._kept(self._store, batch, wants_old=self._wants_old)
        if len(batch):
            self._task.forward(self._node.name, batch)

    def restore(self, chunk: Chunk, start: int, stop: int) -> None:
        """Take records into the table's store only."""
        assert self._store is not None
        part = Taken(self._node.name, chunk, start, stop, np.arange(stop - start))
        self._kept(self._store, self.decoded(part), wants_old=False)
        self._task.changed(self._store.spec.name, None)

    def _kept(self, store: StateStore, batch: Batch, *, wants_old: bool) -> Batch:
        """Put the rows into the table's store; return those that are changes."""
        node = self._node
        if not isinstance(node, g.Source) or node.history_ms is None:
            batch.old = keep_rows(self._task, store, batch, wants_old=wants_old)
            return batch
        kept, late = keep_versions(store, batch, node.history_ms, wants_old=wants_old)
        for row in late:
            self._task.report("late", node.name, batch, row, store.stream_time_ms)
        return kept

    def decoded(self, part: Taken) -> Batch:
        """Return records as rows, those that can be decoded; the others are reported."""
        node, chunk, start, stop, places = self._node, part.chunk, part.start, part.stop, part.places
        rows = np.arange(start, stop)
        keys = Bytes.of_spans(chunk.buffer, chunk.key_starts[start:stop], chunk.key_sizes[start:stop])
        if self._forms is not None:
            keys = self._forms.unified(keys)
        times = np.ascontiguousarray(chunk.timestamps_ms[start:stop])
        batch = Batch(node.schema, times, keys, {}, chunk=chunk, rows=rows, order=places << PATH_BITS, path_bits=PATH_BITS)
        if self._slice is not None:
            chosen = np.flatnonzero(self._slice.own(batch))
            chunk, start, stop = chunk.take(chosen + start), 0, len(chosen)
            batch = batch.take(chosen)
        if self._branches > 1:
            batch = batch.branch(self._branch, self._branches)
        is_bad = batch.times < 0
        if is_bad.any():
            self._report(batch, is_bad, "negative_time", batch.times)
        if self._is_table:
            is_null = chunk.key_sizes[start:stop] < 0
            self._report(batch, is_null & ~is_bad, "null_key", None)
            is_bad = is_bad | is_null
        if is_bad.any():
            chosen = np.flatnonzero(~is_bad)
            chunk, start, stop = chunk.take(chosen + start), 0, len(chosen)
            batch = batch.take(chosen)
        assert batch.keys is not None
        columns, kept = self._keys.decode(batch.keys, batch.memory, self._task.reporter(node.name, batch, reason="decode"))
        if kept is not None:
            chunk, start, stop = chunk.take(kept + start), 0, len(kept)
            batch = batch.take(kept)
        batch.columns = columns
        found = self._values.decode(chunk, start, stop, self._task.reporter(node.name, batch, reason="decode"))
        if found.rows is not None:
            batch = batch.take(found.rows)
        batch.columns |= found.columns
        batch.nulls = found.nulls
        batch.memory += found.memory
        if self._never_null:
            batch = self._whole(batch)
        if self._rewriter is not None:
            batch = self._rewritten(batch, self._rewriter)
        if self._object_class is not None:
            batch = self._with_objects(batch)
        return batch if self._time is None else self._timed(batch, self._time)

    def _whole(self, batch: Batch) -> Batch:
        """Leave out rows with a null, in what is read of them, where the class of the values allows none."""
        is_short = np.zeros(len(batch), np.bool_)
        for name in self._never_null:
            column = batch.columns.get((Side.VALUE, name))
            if column is None:
                continue
            lacks = column.nulls() & ~is_short
            if batch.nulls is not None:
                lacks &= ~batch.nulls
            if lacks.any():
                told = DecodeError(
                    f"field {name!r} is null, or absent without a default, which {self._told_class()} does not allow: "
                    f"`{name}: T | None`?"
                )
                for row in np.flatnonzero(lacks).tolist():
                    self._task.report("decode", self._node.name, batch, row, told)
                is_short |= lacks
        return batch.without(is_short) if is_short.any() else batch

    def _told_class(self) -> str:
        found = self._node.schema.value_class
        return "the class" if found is None else found.__name__

    def _rewritten(self, batch: Batch, rewriter: KeyEncoder) -> Batch:
        keys, failed = rewriter.encode(batch, self._task.reporter(self._node.name, batch, reason="decode"))
        batch = replace(batch, keys=keys)
        return batch.without(np.isin(np.arange(len(batch)), list(failed))) if failed else batch

    def _with_objects(self, batch: Batch) -> Batch:
        """Make the objects of the user's class now: a row that the class refuses cannot be decoded."""
        objects, failed = objects_of(batch)
        for row, error in failed.items():
            self._task.report("decode", self._node.name, batch, row, error)
        batch.columns[Side.VALUE, WHOLE] = Column.of_objects(objects, Kind.ANY)
        return batch if not failed else batch.take(np.array([r for r in range(len(batch)) if r not in failed], np.int64))

    def _report(self, batch: Batch, mask: Mask, reason: str, causes: I64 | None) -> None:
        for row in np.flatnonzero(mask).tolist():
            self._task.report(reason, self._node.name, batch, row, None if causes is None else int(causes[row]))

    def _timed(self, batch: Batch, time: Evaluation) -> Batch:
        """Replace the records' own times by those of an expression; without one a record is left out."""
        name, failed = self._node.name, set[int]()
        report = self._task.reporter(name, batch)

        def note(row: int, error: Exception) -> None:
            failed.add(row)
            report(row, error)

        column = time.column(batch, note)
        nulls = column.nulls()
        for row in np.flatnonzero(nulls).tolist():
            if row not in failed:
                self._task.report("expression", name, batch, row, "the event time is null")
        times = _times(column)
        early = ~nulls & (times < 0)
        if self._needs_time and (nulls | early).any():
            row = int(np.flatnonzero(nulls | early)[0])
            raise _no_time(self._node, batch, row, None if nulls[row] else int(times[row]))
        self._report(batch, early, "negative_time", times)
        batch.times = times
        return batch.without(nulls | early)


def _no_time(node: g.Source | g.Repartition, batch: Batch, row: int, found: int | None) -> InvalidInput:
    chunk, rows = batch.chunk, batch.rows
    where = repr(node.topic)
    if chunk is not None and rows is not None:
        where = f"{chunk.topic}-{chunk.partition} offset {chunk.offsets[rows[row]]}"
    return InvalidInput(
        f"Fatal user code error in TimestampExtractor callback for record at {where}: its event time "
        f"is {'missing' if found is None else found}; correct the record, or let such records be left out"
    )


def _times(column: Column) -> I64:
    vector = column.vector() if column.kind in (Kind.BIGINT, Kind.TIMESTAMP, Kind.INTEGER) else None
    if vector is not None:
        found: I64 = vector.data
        return found
    return np.array([-1 if value is None else value for value in column.objects()], np.int64)
