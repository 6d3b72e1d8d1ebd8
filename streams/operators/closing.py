"""Windows that are still open, for aggregates whose results leave once, when their window closes (Emit.FINAL).

What has closed leaves with the task commit that moves stream time past it. As stream time is kept with each commit, what has left
already is known after a restart: every window that was closed by the stream time of the last commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

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
