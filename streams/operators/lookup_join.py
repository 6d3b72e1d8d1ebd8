"""Joins of a stream with rows looked up in other ways: as of the record's time, after a grace period, in a global table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np

from logflume.log.records import Headers
from logflume.log.schemas import ANY
from logflume.log.schemas import Column as Field

from .. import graph as g
from ..columns import Batch
from ..columns.encode import KeyEncoder
from ..columns.evaluate import evaluations
from ..expr import Side
from ..seams import State
from ..windows import WINDOW_START
from .emission import Emission, Emitted, Joiner, rows_of
from .lookups import lookup_of
from .operator import Task, Wiring, Work
from .rows import Rows, put_entry
from .versions import is_view_of_versions

WAITING = (Field("rows", ANY),)
"""Values and headers of the records of a key and time that wait for the table to come as far, in order."""


class LookupJoinWork(Work):
    """A StreamTableJoin row by row; see the module."""

    def __init__(self, node: g.StreamTableJoin, wiring: Wiring, task: Task) -> None:
        self._node, self._task = node, task
        self._is_left = node.join is g.JoinKind.LEFT
        stream, table = (wiring.node(name) for name in node.inputs)
        self._stream, self._is_versioned = stream.schema, is_view_of_versions(wiring, table.name)
        self._lookup = lookup_of(wiring, table.name)
        self._joiner = Joiner(node, evaluations(node.columns, is_on_table=False), stream.schema, table.schema)
        self._is_global = g.is_global(table)
        self._emission = None
        if wiring.raw_keys[node.name]:
            self._emission = Emission(node, wiring, keeps_keys=node.grace_ms is None, computes=node.columns)
        self._key = evaluations(node.key, is_on_table=False)
        self._encoder = None
        if isinstance(table, g.Source) and node.key:
            self._encoder = KeyEncoder(table.key_format, table.schema.key, is_raw=False, window=None)
        self._waiting = None if node.store is None else _Waiting(task.store(node.store))

    def process(self, batch: Batch, source: str) -> None:
        batch = self._valued(batch)
        keys = self._table_keys(batch)
        if not self._is_left:
            gone = np.fromiter([key is None for key in keys], np.bool_, len(batch))
            for row in np.flatnonzero(gone).tolist():
                self._task.report("null_key", self._node.name, batch, row, None)
            if gone.any():
                batch, keys = batch.without(gone), [key for key in keys if key is not None]
        if not len(batch):
            return
        if self._waiting is not None and self._node.grace_ms is not None:
            self._join_later(batch, keys, self._waiting, self._node.grace_ms)
            return
        self._join(batch, keys, Rows.of(batch))

    def _valued(self, batch: Batch) -> Batch:
        if batch.nulls is None:
            return batch
        for row in np.flatnonzero(batch.nulls).tolist():
            self._task.report("null_value", self._node.name, batch, row, None)
        return batch.without(batch.nulls)

    def _table_keys(self, batch: Batch) -> list[bytes | None]:
        """Return the encoded keys of the rows to look up."""
        if not self._key or self._encoder is None:
            assert batch.keys is not None, "a change of key is followed by a repartition"
            return batch.keys.objects()
        report = self._task.reporter(self._node.name, batch)
        names = [column.name for column in self._lookup.schema.key]
        columns = {(Side.KEY, name): each.column(batch, report) for name, (_, each) in zip(names, self._key, strict=True)}
        is_null = np.logical_or.reduce([column.nulls() for column in columns.values()])
        found, _ = self._encoder.encode(replace(batch, columns=columns, keys=None, schema=self._lookup.schema), report)
        return [None if null else key for key, null in zip(found.objects(), is_null.tolist(), strict=True)]

    def _join(self, shell: Batch, keys: Sequence[bytes | None], values: Rows) -> None:
        """Join rows with the table's, and forward them."""
        found, _ = self._lookup.find(self._task, keys, shell, as_of=shell.times.tolist() if self._is_versioned else None)
        if not self._is_left and found.gone is not None:
            rows = np.flatnonzero(~found.gone)
            shell, found, values = shell.take(rows), found.take(rows), values.take(rows)
        if len(shell):
            after = self._joiner.joined(self._task, replace(shell, schema=self._node.schema), values, found)
            if len(after):
                self._task.forward(self._node.name, after)

    def _join_later(self, batch: Batch, keys: Sequence[bytes | None], waiting: _Waiting, grace_ms: int) -> None:
        """Join rows that are late already, and those that have waited long enough."""
        assert self._emission is not None
        emitted, values, left, headers = Emitted(), list[State | None](), list[Headers](), batch.headers()
        store = waiting.store
        for row, (key, value, time) in enumerate(
            zip(keys, rows_of(batch, self._stream.value), batch.times.tolist(), strict=True)
        ):
            store.stream_time_ms = max(store.stream_time_ms, time)
            oldest = store.stream_time_ms - grace_ms
            if time < oldest or key is None:
                emitted.add(row, key, time, None)
                values.append(value)
                left.append(() if headers is None else headers[row])
                continue
            waiting.add(key, time, value, () if headers is None else headers[row])
            for due_key, due_time, due, own in waiting.take(oldest):
                emitted.add(row, due_key, due_time, None)
                values.append(due)
                left.append(own)
        if len(emitted):
            shell = self._emission.shell(emitted, batch)
            shell.set_headers(left)
            self._join(shell, emitted.keys, Rows.of_states(values, self._stream.value))


class _Waiting:
    """Records that wait, in a store by time and key, with a heap of them in memory."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self._heap: list[tuple[int, bytes]] | None = None

    def _entries(self) -> list[tuple[int, bytes]]:
        if self._heap is None:
            self._heap = [(WINDOW_START.unpack_from(key)[0], key[8:]) for key, _ in self.store.range(b"", None)]
            heapify(self._heap)
        return self._heap

    def add(self, key: bytes, time: int, value: State | None, headers: Headers) -> None:
        heap, place = self._entries(), WINDOW_START.pack(time) + key
        self.store.load([place])
        entry = self.store.resident.get(place)
        rows = [] if entry is None or entry.state is None else entry.state[0]
        if not rows:
            heappush(heap, (time, key))
        row = [None if value is None else list(value), [list(header) for header in headers]]
        put_entry(self.store, place, ([*rows, row],), time)

    def take(self, oldest: int) -> list[tuple[bytes, int, State, Headers]]:
        """Return key, time, value and headers of the records up to a time, in order; they wait no more."""
        heap, found = self._entries(), []
        while heap and heap[0][0] <= oldest:
            time, key = heappop(heap)
            place = WINDOW_START.pack(time) + key
            self.store.load([place])
            rows = self.store.resident[place].state[0]
            put_entry(self.store, place, None, time)
            found += [(key, time, tuple(row), tuple((name, value) for name, value in headers)) for row, headers in rows]
        return found
