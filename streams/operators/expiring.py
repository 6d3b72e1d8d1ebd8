"""Aggregates whose keys live for a time: one that has had no record for that long is deleted, and its row with it.

Time is stream time, that of the newest record of any key. What is due lies in a heap of (time, key), in which an entry may lie
with an older time than its own: when that comes up it is put back with its own.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np

from .. import graph as g
from ..columns import Batch
from .clocks import Clocks
from .emission import Emission, Emitted
from .folding import Folding
from .operator import Errors, Task, Wiring, Work
from .rows import put_entry
from .table_aggregate import changed_entries
from .to_table import keyed_rows


class ExpiringWork(Work):
    """An Aggregate with `ttl_ms`; several inputs (a cogroup) have one stream time."""

    def __init__(self, node: g.Aggregate, wiring: Wiring, task: Task) -> None:
        assert node.ttl_ms is not None
        self._node, self._task, self._store, self._ttl_ms = node, task, task.store(node.store), node.ttl_ms
        aggregations = (node.aggregations, *node.others)
        self._foldings = {name: Folding(node, each) for name, each in zip(node.inputs, aggregations, strict=True)}
        self._folding = self._foldings[node.inputs[0]]
        self._is_update = node.emit is g.Emit.UPDATE
        self._emission = Emission(node, wiring, keeps_keys=False)
        self._clocks = Clocks(node.inputs, self._store)
        self._heap: list[tuple[int, bytes]] = []

    def start(self) -> None:
        self._clocks.start()
        self._heap = [(entry.timestamp_ms, key) for key, entry in self._store.range(b"", None) if entry.state is not None]
        heapify(self._heap)

    def process(self, batch: Batch, source: str) -> None:
        batch = keyed_rows(self._task, self._node.name, batch)
        if batch.nulls is not None:
            for row in np.flatnonzero(batch.nulls).tolist():
                self._task.report("null_value", self._node.name, batch, row, None)
            batch = batch.without(batch.nulls)
        if not len(batch):
            return
        assert batch.keys is not None
        folding = self._foldings[source]
        errors = Errors(self._task, self._node, batch)
        arguments = folding.arguments(batch, errors)
        keys: list[Any] = batch.keys.objects()
        self._store.load(keys)
        emitted = Emitted()
        for row, (key, time) in enumerate(zip(keys, batch.times.tolist(), strict=True)):
            self._clocks.observe(source, time)
            self._expire(emitted, row)
            if time <= self._clocks.latest - self._ttl_ms:
                self._task.late(self._node.name, batch, row, (time, self._clocks.latest))
                continue
            entry = self._store.resident.get(key)
            old = None if entry is None else entry.state
            state = folding.add(old, arguments[row], row, errors.callable)
            stamp = time if old is None or entry is None else max(time, entry.timestamp_ms)
            put_entry(self._store, key, state, stamp)
            if old is None and state is not None:
                heappush(self._heap, (stamp, key))
            emitted.add(row, key, stamp, folding.result(state), folding.result(old))
        if self._is_update:
            self._emission.forward(self._task, emitted, batch, errors=errors)

    def _expire(self, emitted: Emitted, row: int) -> None:
        """Delete what has lived its time."""
        dead_at = self._clocks.latest - self._ttl_ms
        while self._heap and self._heap[0][0] <= dead_at:
            _, key = heappop(self._heap)
            self._store.load([key])
            entry = self._store.resident.get(key)
            if entry is None or entry.state is None:
                continue
            if entry.timestamp_ms > dead_at:
                heappush(self._heap, (entry.timestamp_ms, key))
                continue
            old, time = self._folding.result(entry.state), entry.timestamp_ms
            put_entry(self._store, key, None, time)
            emitted.add(row, key, time, None, old)

    def commit(self) -> None:
        if not self._is_update:
            self._emission.forward(self._task, changed_entries(self._store, self._folding), None)
