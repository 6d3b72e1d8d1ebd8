"""Values from coroutines, many under way at a time: records enriched by a service, for example.

The coroutines run on an event loop of the task, in its thread, while a batch is taken (ordered: until all of it is there) and at
each task commit, which waits for all of them: nothing is committed whose result has not left. A call that fails is tried again;
what fails to the end ends the way of its rows.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable
from typing import Any

import numpy as np

from logflume.log import LogflumeError
from logflume.log.schemas import Column as Field

from .. import graph as g
from ..columns import Batch, Column
from ..columns.batch import ColumnId
from ..expr import WHOLE, Side
from .operator import Bind, Operator, Task, Wiring, Work


class WrongResult(LogflumeError):
    """A coroutine over lists did not give one result for each value."""

    code = "BROKEN_CONTRACT"


class MapAsyncOperator(Operator[g.MapAsync]):
    """A MapAsync."""

    node_class = g.MapAsync
    has_effects = True

    def reads(self, source: g.Node, below: frozenset[ColumnId], wiring: Wiring) -> set[ColumnId]:
        keys = [source.schema.key] if self.node.takes_key else []
        found = {c for c in below if c[0] is not Side.VALUE} | {(Side.VALUE, c.name) for c in source.schema.value}
        found |= {(Side.KEY, column.name) for columns in keys for column in columns}
        return found | {(Side.VALUE, WHOLE)}

    def plan(self, wiring: Wiring) -> Bind:
        return lambda task: MapAsyncWork(self.node, task)


class MapAsyncWork(Work):
    """See `MapAsyncOperator`. `_pending`: calls whose results have not left, in order, with the batch and the rows that they are
    for; `_finished`: those among them that have come, in the order in which they came."""

    def __init__(self, node: g.MapAsync, task: Task) -> None:
        self._node, self._task = node, task
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pending: dict[asyncio.Task[list[Any]], tuple[Batch, list[int]]] = {}
        self._finished: list[asyncio.Task[list[Any]]] = []
        self._field: Field = node.schema.value[0]

    def process(self, batch: Batch, source: str) -> None:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            weakref.finalize(self, self._loop.close)
        values = batch.column(Side.VALUE, WHOLE).objects()
        keys = batch.column(Side.KEY, WHOLE).objects() if self._node.takes_key else values
        rows_max, started = self._node.rows_max, []
        for at in range(0, len(batch), rows_max):
            rows = list(range(at, min(at + rows_max, len(batch))))
            self._make_room(self._loop)
            call = self._loop.create_task(self._asked([keys[row] for row in rows], [values[row] for row in rows]))
            started.append((call, rows))
            self._pending[call] = (batch, rows)
        if self._node.is_ordered:
            self._finish_in_order(self._loop, batch, started)
        else:
            self._put_out_done()

    def advance(self, now_ms: int) -> None:
        if self._loop is not None and self._pending:
            self._loop.run_until_complete(asyncio.sleep(0))
            self._put_out_done()

    def commit(self) -> None:
        if self._loop is not None and self._pending:
            self._loop.run_until_complete(asyncio.wait(list(self._pending)))
            self._put_out_done()

    def _make_room(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait until fewer than `limit` calls are under way."""
        running = [call for call in self._pending if not call.done()]
        while len(running) >= self._node.limit:
            loop.run_until_complete(asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED))
            running = [call for call in running if not call.done()]

    async def _asked(self, keys: list[Any], values: list[Any]) -> list[Any]:
        """Return the results for some values; the last failure of all tries is raised."""
        try:
            return await self._tried(keys, values)
        finally:
            call = asyncio.current_task()
            assert call is not None
            self._finished.append(call)

    async def _tried(self, keys: list[Any], values: list[Any]) -> list[Any]:
        node = self._node
        for attempt in range(node.retries + 1):
            try:
                async with asyncio.timeout(None if node.timeout_ms is None else node.timeout_ms / 1000):
                    return await self._once(keys, values)
            except WrongResult:
                raise
            except Exception:
                if attempt == node.retries:
                    raise
                await asyncio.sleep(node.pause_ms * 2**attempt / 1000)
        raise AssertionError("the last attempt returns or raises")

    async def _once(self, keys: list[Any], values: list[Any]) -> list[Any]:
        node = self._node
        if node.rows_max == 1:
            made: Awaitable[Any] = node.function(keys[0], values[0]) if node.takes_key else node.function(values[0])
            return [await made]
        results = await (node.function(keys, values) if node.takes_key else node.function(values))
        if not isinstance(results, list | tuple) or len(results) != len(values):
            shown = f"{len(results)} results" if isinstance(results, list | tuple) else repr(results)[:100]
            raise WrongResult(f"the function must return a list with one result for each of {len(values)} values, found {shown}")
        return list(results)

    # -- results ---------------------------------------------------------------------------------------------------------

    def _finish_in_order(
        self, loop: asyncio.AbstractEventLoop, batch: Batch, started: list[tuple[asyncio.Task[list[Any]], list[int]]]
    ) -> None:
        loop.run_until_complete(asyncio.wait([call for call, _ in started]))
        self._finished.clear()
        rows: list[int] = []
        results: list[Any] = []
        for call, own in started:
            del self._pending[call]
            for row, value in self._results(call, batch, own):
                rows.append(row)
                results.append(value)
        self._put_out(batch, rows, results, is_in_order=True)

    def _put_out_done(self) -> None:
        """Forward the results that have come, each call's by itself."""
        finished, self._finished = self._finished, []
        for call in finished:
            batch, own = self._pending.pop(call)
            found = self._results(call, batch, own)
            self._put_out(batch, [row for row, _ in found], [value for _, value in found], is_in_order=False)

    def _results(self, call: asyncio.Task[list[Any]], batch: Batch, rows: list[int]) -> list[tuple[int, Any]]:
        error = call.exception()
        if error is None:
            return list(zip(rows, call.result(), strict=True))
        for row in rows:
            self._task.report("callable", self._node.name, batch, row, error)
        return []

    def _put_out(self, batch: Batch, rows: list[int], results: list[Any], *, is_in_order: bool) -> None:
        if not rows:
            return
        column = Column.of_objects(results, self._field.type.kind)
        nulls = column.nulls()
        taken = batch if len(rows) == len(batch) else batch.take(np.array(rows, np.int64))
        columns: dict[ColumnId, Column] = {(Side.VALUE, self._field.name): column}
        made = taken.with_values(self._node.schema, columns, nulls=nulls if nulls.any() else None, old=None)
        if not is_in_order:
            made.order = None
        self._task.forward(self._node.name, made)
