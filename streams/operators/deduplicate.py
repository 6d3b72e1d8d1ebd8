"""Lets the first record of each key pass; the others end here.

An entry of the store is a record that has passed: under its key, or, where duplicates are such within a time, under its key and
time, so that it expires.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from logflume.log.schemas import BOOLEAN
from logflume.log.schemas import Column as Field

from .. import graph as g
from ..columns import Batch
from ..seams import StoreSpec
from .operator import Bind, Operator, Task, Wiring, Work
from .rows import put_entry
from .timeline import Timeline
from .to_table import keyed_rows

PASSED = (Field("passed", BOOLEAN),)


class DeduplicateOperator(Operator[g.Deduplicate]):
    """A Deduplicate."""

    node_class = g.Deduplicate

    def stores(self) -> tuple[StoreSpec, ...]:
        node = self.node
        window = None if node.within_ms is None else g.TimeWindow(node.within_ms + node.grace_ms + 1, 1)
        return (StoreSpec(node.store, node.schema.key, PASSED, window),)

    def plan(self, wiring: Wiring) -> Bind:
        return lambda task: DeduplicateWork(self.node, task)


class DeduplicateWork(Work):
    """See `DeduplicateOperator`."""

    def __init__(self, node: g.Deduplicate, task: Task) -> None:
        self._node, self._task, self._store = node, task, task.store(node.store)
        self._within_ms = node.within_ms
        self._passed = Timeline(self._store, (node.within_ms or 0) + node.grace_ms + 1)

    def start(self) -> None:
        if self._within_ms is not None:
            self._passed.start()

    def process(self, batch: Batch, source: str) -> None:
        batch = keyed_rows(self._task, self._node.name, batch)
        if not len(batch):
            return
        assert batch.keys is not None
        keys: list[Any] = batch.keys.objects()
        rows = self._first_of_all(batch, keys) if self._within_ms is None else self._first_within(batch, keys, self._within_ms)
        if rows:
            self._task.forward(self._node.name, batch if len(rows) == len(batch) else batch.take(np.array(rows, np.int64)))

    def _first_of_all(self, batch: Batch, keys: list[bytes]) -> list[int]:
        store, rows = self._store, []
        store.load(keys)
        for row, (key, time) in enumerate(zip(keys, batch.times.tolist(), strict=True)):
            if store.resident.get(key) is None:
                put_entry(store, key, (True,), time)
                rows.append(row)
        return rows

    def _first_within(self, batch: Batch, keys: list[bytes], within_ms: int) -> list[int]:
        rows, store, passed = [], self._store, self._passed
        passed.know(list(dict.fromkeys(keys)), int(batch.times.min()) - within_ms + 1)
        clock = store.stream_time_ms
        for row, (key, time) in enumerate(zip(keys, batch.times.tolist(), strict=True)):
            clock = max(clock, time)
            if time < clock - self._node.grace_ms:
                self._task.report("late", self._node.name, batch, row, (time, clock))
            elif not passed.times(key, time - within_ms + 1, time + within_ms - 1):
                passed.put(key, time, (True,), time)
                rows.append(row)
        store.stream_time_ms = clock
        return rows

    def commit(self) -> None:
        if self._within_ms is not None:
            self._passed.sweep()
