"""What statements give: rows, messages, and running queries that can be read and stopped."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from logflume.log.schemas import Column

from .errors import QueryFailed

_WAIT_S = 0.2
# Rows that wait for a reader; beyond it the query waits.
BUFFERED_ROWS_MAX = 10_000
_PUT_WAIT_S = 0.5


@dataclass(frozen=True, slots=True)
class Message:
    """A statement was done. `query_id`: of a persistent query that it started."""

    text: str
    query_id: str | None = None


def inserted(count: int) -> Message:
    """Return what INSERT VALUES says."""
    return Message(f"{count} row{'s' if count > 1 else ''} inserted")


@dataclass(frozen=True, slots=True)
class Rows:
    """A finished table of rows, aligned with `columns`.

    Attributes:
        note: where it was read from, or what was left out.
        roles: what columns of the table that was asked are other than values, by name: KEY, HEADERS or HEADER('name').
        is_limited: LIMIT ended it.
        has_more: there are more rows than the session asked for.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    note: str = ""
    roles: Mapping[str, str] = field(default_factory=dict)
    is_limited: bool = False
    has_more: bool = False

    def first(self, count: int | None) -> Rows:
        """Return no more than so many rows; None: all."""
        if count is None or len(self.rows) <= count:
            return self
        return replace(self, rows=self.rows[:count], has_more=True)


@dataclass(frozen=True, slots=True)
class PushRow:
    """One row of a push query. `is_tombstone`: the row of that key is gone (a table's change); of its values there are
    those that are the key.
    """

    values: tuple[Any, ...]
    timestamp_ms: int
    is_tombstone: bool = False


def watch_function(
    rows: queue.Queue[PushRow],
    is_over: Callable[[], bool],
    *,
    removed: Callable[[Any], tuple[Any, ...]] | None = None,
) -> Callable[[Any, Any, int], None]:
    """Return what the topology calls for each row: it queues the row, and waits while the reader is slow.

    A record without a value is the removal of a row in a table's changes, and no row of a stream. `removed`: of its key, what
    the row that went is shown as; None: this is a stream.
    """

    def watch(key: Any, value: Any, timestamp_ms: int) -> None:
        if value is not None:
            row = PushRow(tuple(value), timestamp_ms)
        elif removed is not None:
            row = PushRow(removed(key), timestamp_ms, True)
        else:
            return
        while not is_over():
            try:
                rows.put(row, timeout=_PUT_WAIT_S)
            except queue.Full:
                continue
            return

    return watch


class Places(Protocol):
    """Where the rows of a query come from: partition and offset, the last two of each row's values."""

    def is_new(self, partition: int, offset: int) -> bool: ...

    def token(self) -> str: ...


class PushQuery:
    """A running query: iterate over its rows, `cancel` it from any thread. Iteration ends at LIMIT, on cancel or on failure.

    Its engine is stopped, and what it kept is removed, exactly once.
    """

    def __init__(
        self,
        query_id: str,
        columns: tuple[Column, ...],
        rows: queue.Queue[PushRow],
        *,
        limit: int | None,
        check: Callable[[], BaseException | None],
        stop: Callable[[], None],
        dropped: Callable[[], Mapping[str, int]] = dict,
        places: Places | None = None,
    ) -> None:
        self.query_id, self.columns, self.limit = query_id, columns, limit
        self._rows, self._check, self._stop, self._dropped = rows, check, stop, dropped
        self._places = places
        self._is_cancelled = False
        self._is_stopped = False

    @property
    def is_cancelled(self) -> bool:
        return self._is_cancelled

    @property
    def token(self) -> str | None:
        """What a later query needs to go on behind the rows that were given; None: nobody asked for one."""
        return None if self._places is None else self._places.token()

    def cancel(self) -> None:
        """End the iteration soon; returns at once."""
        self._is_cancelled = True

    def poll(self, *, timeout_s: float = _WAIT_S) -> PushRow | None:
        """Return the next row, None when none came in time. Raises QueryFailed when the query has stopped."""
        try:
            row = self._rows.get(timeout=timeout_s)
            while self._places is not None:
                *values, partition, offset = row.values
                if self._places.is_new(partition, offset):
                    return replace(row, values=tuple(values))
                row = self._rows.get(timeout=timeout_s)
            return row
        except queue.Empty:
            error = self._check()
            if error is not None:
                raise QueryFailed(f"query {self.query_id} stopped: {error}") from error
            return None

    def __iter__(self) -> Iterator[PushRow]:
        left = self.limit
        try:
            while not self._is_cancelled and left != 0:
                row = self.poll()
                if row is not None:
                    left = None if left is None else left - 1
                    yield row
        finally:
            self.close()

    def close(self) -> None:
        """Stop the query and wait until it has ended. Idempotent."""
        self._is_cancelled = True
        if not self._is_stopped:
            self._is_stopped = True
            self._stop()

    def dropped(self) -> Mapping[str, int]:
        """Return how many records were left out, by reason (decode, expression, late, null_key, ...)."""
        return self._dropped()

    def __enter__(self) -> PushQuery:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


Result = Message | Rows | PushQuery
