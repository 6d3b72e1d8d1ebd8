"""How far a query that ends has read, told before its answer to who asked for that.

An answer that is there soon is the same as if nobody had asked. One that takes longer begins with lines
{recordsRead, recordsTotal}; a refusal is then a line as well, for the status has gone out before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

from starlette.concurrency import run_in_threadpool

from logflume.log import LogflumeError
from logflume.sql.errors import QueryFailed
from logflume.sql.render import to_json
from logflume.sql.results import PushQuery
from logflume.sql.session import Session

from .errors import RestError, as_rest_error
from .forms import Delimited, StartedQuery
from .queries import Queries, written

QUIET_S, EVERY_S = 0.5, 0.25
"""How long nothing is told at first, and from one line to the next."""


class Reading:
    """A query that a thread starts, which for one that ends is all its work. To be made in the event loop.

    Each tuple of `_read` is replaced whole: the thread writes it, the loop reads it.
    """

    def __init__(self, queries: Queries, text: str, session: Session) -> None:
        self._queries, self._text = queries, text
        self._read, self._is_given_up = (0, 0), False
        session.on_read = self._note
        self._starting = asyncio.create_task(run_in_threadpool(queries.start, text, session))

    def _note(self, read: int, total: int) -> None:
        """Keep how far it is. Raises QueryFailed: nobody waits for it any more, so that the rest need not be read."""
        if self._is_given_up:
            raise QueryFailed("who asked for it has gone away")
        self._read = (read, total)

    async def soon(self) -> StartedQuery | None:
        """Return the query if it has started before anything is to be told, else None. Raises RestError: it is refused."""
        return self._starting.result() if await self._is_done(QUIET_S) else None

    async def _is_done(self, within_s: float) -> bool:
        done, _ = await asyncio.wait({self._starting}, timeout=within_s)
        return bool(done)

    async def told(self, form: Delimited) -> AsyncIterator[bytes]:
        """Yield how far it has read until it has started, then its answer."""
        is_taken = False
        try:
            while not await self._is_done(EVERY_S):
                read, total = self._read
                yield to_json({"recordsRead": read, "recordsTotal": total}) + b"\n"
            is_taken = True
        finally:
            if not is_taken:
                self._is_given_up = True
                self._starting.add_done_callback(self._drop)
        try:
            started = self._starting.result()
        except (LogflumeError, RestError) as error:
            yield to_json(as_rest_error(error, self._text).body()) + b"\n"
            return
        async with aclosing(written(started, form, self._queries)) as parts:
            async for part in parts:
                yield part

    def _drop(self, starting: asyncio.Task[StartedQuery]) -> None:
        """Close what was started for nobody."""
        if not starting.cancelled() and starting.exception() is None and isinstance(starting.result().rows, PushQuery):
            asyncio.get_running_loop().run_in_executor(None, self._queries.close, starting.result().id)
