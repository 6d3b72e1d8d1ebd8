"""Windows that are still open, for aggregates whose results leave once, when their window closes (Emit.FINAL).

What has closed leaves with the task commit that moves stream time past it. As stream time is kept with each commit, what has left
already is known after a restart: every window that was closed by the stream time of the last commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from logflume.log.records import I64, Headers

from ..columns import Batch
from ..graph import TimeWindow
from ..seams import Entry, StateStore
from ..windows import WINDOW_START


class OpenWindows:
    """The entries of one store by window start, from the first use on; generated code adds what it changes."""

    __slots__ = ("_by_start", "_span_ms", "_store")

    def __init__(self, store: StateStore, window: TimeWindow) -> None:
        self._store = store
        self._span_ms = window.size_ms + window.grace_ms
        self._by_start: dict[int, dict[bytes, Entry]] | None = None

    def by_start(self) -> dict[int, dict[bytes, Entry]]:
        """Return the entries; at first those that the store held open at its last commit."""
        if self._by_start is None:
            self._by_start = {}
            closed = self._last_closed()
            for key, entry in self._store.range(b"", None):
                start = WINDOW_START.unpack(key[-8:])[0]
                if start > closed:
                    self._by_start.setdefault(start, {})[key] = entry
        return self._by_start

    def take_closed(self) -> Iterator[tuple[bytes, Entry]]:
        """Yield the entries of windows that have closed by now, in order of (start, key); they are not open any more."""
        opened = self.by_start()
        closed = self._last_closed()
        for start in sorted(start for start in opened if start <= closed):
            yield from sorted(opened.pop(start).items(), key=_key)

    def _last_closed(self) -> int:
        """Return the largest window start whose window takes no more records."""
        return self._store.stream_time_ms - self._span_ms


def _key(item: tuple[bytes, Entry]) -> bytes:
    return item[0]


class OpenEntries:
    """The entries of one store by the time in their keys, or what `time_of` makes of it, until that is before stream time -
    `wait_ms`."""

    def __init__(self, store: StateStore, wait_ms: int, *, time_of: Callable[[int], int] = int) -> None:
        self._store, self._wait_ms, self._time_of = store, wait_ms, time_of
        self._by_time: dict[int, dict[bytes, Entry]] = {}

    def start(self) -> None:
        """Begin: the store is restored. What had closed by its last commit has left."""
        closed_at = self._store.stream_time_ms - self._wait_ms
        for key, entry in self._store.range(b"", None):
            time = self._time_of(WINDOW_START.unpack_from(key, len(key) - 8)[0])
            if time >= closed_at:
                self._by_time.setdefault(time, {})[key] = entry

    def note(self, key: bytes) -> None:
        """Note that an entry has changed; it is in memory."""
        entry = self._store.resident.get(key)
        if entry is not None:
            time = self._time_of(WINDOW_START.unpack_from(key, len(key) - 8)[0])
            self._by_time.setdefault(time, {})[key] = entry

    def take_closed(self, stream_time_ms: int) -> list[tuple[bytes, Entry]]:
        """Return the entries that have closed by now; they are not open any more. In order of time."""
        opened, closed_at = self._by_time, stream_time_ms - self._wait_ms
        return [item for time in sorted(t for t in opened if t < closed_at) for item in opened.pop(time).items()]


class ClosingHeaders:
    """The headers of the records that moved stream time since the last commit: what closes leaves with those of the record by
    which it did.

    `time_of`, `wait_ms`: as in `OpenEntries`; `times_at`: how far from their end keys have the time in them.
    """

    def __init__(self, wait_ms: int, *, time_of: Callable[[int], int] = int, times_at: int = WINDOW_START.size) -> None:
        self._wait_ms, self._time_of, self._times_at = wait_ms, time_of, times_at
        self._clocks: list[int] = []
        self._headers: list[Headers] = []

    def note(self, batch: Batch, clocks: Sequence[int] | I64) -> None:
        """Note rows, and stream time with each of them."""
        headers = batch.headers()
        if headers is None:
            self._note(int(clocks[-1]), ())
            return
        latest = np.array(clocks, np.int64)
        risen = np.flatnonzero(np.diff(latest, prepend=self._clocks[-1] if self._clocks else -1) > 0)
        for row, clock in zip(risen.tolist(), latest[risen].tolist(), strict=True):
            self._note(clock, headers[row])

    def _note(self, clock: int, headers: Headers) -> None:
        if self._clocks and clock <= self._clocks[-1]:
            return
        if self._headers and not headers and not self._headers[-1]:
            self._clocks[-1] = clock
        else:
            self._clocks.append(clock)
            self._headers.append(headers)

    def take(self, keys: Callable[[], Sequence[bytes | None]]) -> list[Headers] | None:
        """Return the headers of entries that have closed, None: none has any; begin anew. `keys`: theirs, if they matter."""
        clocks, headers = np.array(self._clocks, np.int64), [*self._headers, ()]
        self._clocks, self._headers = [], []
        if not any(headers):
            return None
        ends = [self._time_of(WINDOW_START.unpack_from(key, len(key) - self._times_at)[0]) for key in keys() if key is not None]
        return [headers[place] for place in np.searchsorted(clocks, np.array(ends, np.int64) + (self._wait_ms + 1)).tolist()]
