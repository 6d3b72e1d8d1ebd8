"""Reads a table's rows from whoever keeps them: the engine in this process, and the workers of this machine, by partition.

Each partition's rows are taken once, from one holder. While partitions move, or a worker is starting, it is asked again; what
nobody answers for in time is an error that names it, never left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .errors import SqlError
from .table_state import TablePage, TableRead, TableShape

WAIT_S = 15.0
_PAUSE_FIRST_S, _PAUSE_MAX_S = 0.02, 0.5

Reader = Callable[[TableRead], TablePage]


class StateUnavailable(SqlError):
    """Part of a table's state is held by no worker that answers; the message names which. A retry may succeed."""

    code = "SQL_STATE_UNAVAILABLE"
    is_retriable = True


def table_rows(
    shape: TableShape,
    keys: tuple[bytes, ...] | None,
    partitions: tuple[int, ...],
    holders: Callable[[], Iterable[Reader]],
    *,
    cause: Callable[[], str] = lambda: "",
    wait_s: float = WAIT_S,
    sleep: Callable[[float], None] = time.sleep,
    monotonic_s: Callable[[], float] = time.monotonic,
) -> Iterator[list[Any]]:
    """Yield the rows of these keys, or all, in these partitions.

    `holders`: whom to ask, asked for again at each attempt. `cause`: why a query that keeps the state will not come, if so.

    Raises:
        StateUnavailable: nobody answers for some of the partitions.
    """
    asking = _Asking(shape.query_id, holders, cause, monotonic_s() + wait_s, sleep, monotonic_s)
    if keys is not None:
        missing = set(partitions)
        while missing:
            page = asking.ask(TableRead(shape.query_id, tuple(sorted(missing)), keys), missing)
            missing.difference_update(page.partitions)
            yield from page.rows
        return
    for partition in partitions:
        after: bytes | None = None
        while True:
            page = asking.ask(TableRead(shape.query_id, (partition,), None, after), {partition})
            yield from page.rows
            after = page.after
            if after is None:
                break


class NotHeld(Exception):
    """What is asked for is not to be had in this process alone, or not at once."""


def held_rows(
    shape: TableShape, partitions: int | None, read: Reader, keys_max: int, keys: tuple[bytes, ...] | None
) -> Iterator[list[Any]]:
    """Return the rows of keys that this process holds. Raises NotHeld before the first."""
    if keys is None or partitions is None or len(keys) > keys_max:
        raise NotHeld
    wanted = shape.partitions_of(keys, partitions)
    page = read(TableRead(shape.query_id, wanted, keys))
    if set(page.partitions) != set(wanted):
        raise NotHeld
    return iter(page.rows)


class _Asking:
    """Asks holder after holder for one read until one has something of it, with growing pauses, up to a deadline."""

    def __init__(
        self,
        query_id: str,
        holders: Callable[[], Iterable[Reader]],
        cause: Callable[[], str],
        deadline_s: float,
        sleep: Callable[[float], None],
        monotonic_s: Callable[[], float],
    ) -> None:
        self._query_id, self._holders, self._cause = query_id, holders, cause
        self._deadline_s, self._sleep, self._monotonic_s = deadline_s, sleep, monotonic_s

    def ask(self, read: TableRead, missing: set[int]) -> TablePage:
        pause_s = _PAUSE_FIRST_S
        while True:
            asked = 0
            for holder in self._holders():
                asked += 1
                page = holder(read)
                if page.partitions:
                    return page
            why = self._cause()
            if why or self._monotonic_s() + pause_s > self._deadline_s:
                shown = ", ".join(map(str, sorted(missing)))
                raise StateUnavailable(
                    f"partition(s) {shown} of the state of query {self._query_id} are held by none of the {asked} "
                    f"process(es) that answer: {why or 'its workers are starting, restoring or gone; try again'}"
                )
            self._sleep(pause_s)
            pause_s = min(pause_s * 2, _PAUSE_MAX_S)
